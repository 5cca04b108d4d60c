from __future__ import annotations

import json
import logging
import pickle
from pathlib import Path

import pytest

from quiltstream.pipelines.runners import new_pipeline, options_of
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.connectors import FileSource
from quiltstream.schemas.settings.job import EXAMPLE, load_settings
from quiltstream.schemas.settings.readings import Readings
from quiltstream.schemas.settings.secrets import PseudonymKey
from quiltstream.store.address import StoreAddress
from quiltstream.store.errors import StoreConflict
from quiltstream.store.specs import Registration
from quiltstream.store.store import Store
from quiltstream.transforms.payloads import PayloadDecoder
from quiltstream.transforms.plan import Plan, make_plan
from quiltstream.transforms.sources.files import ReadReadings

from ..formats.decoding import decode as decode_files
from .payloads import NOON_S, NOON_US, decode, dumped, messages

SECRET = "correct horse battery staple"  # noqa: S105 - of this test
KEY = PseudonymKey(SECRET.encode())

COLUMNS = {"series": "id", "time": "ts", "value": "kwh", "pseudonyms": {"env": "QUILT_KEY"}}
READINGS = Readings.model_validate(COLUMNS | {"each": "payload"})


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUILT_KEY", SECRET)


def body(name: str, value: float = 1.5) -> str:
    return json.dumps({"id": name, "ts": NOON_S, "kwh": value, "owner": "somebody", "street": "somewhere"})


def test_series_names_of_messages_are_replaced_and_unused_fields_dropped():
    given = messages(body("meter A"), body("meter B"), body("meter A", 2.0), body(""))
    rows, rejects = decode(READINGS, given)
    a, b = KEY.name("meter A"), KEY.name("meter B")
    assert rows == sorted([(a, NOON_US, 1.5), (b, NOON_US, 1.5), (a, NOON_US, 2.0)])
    assert rejects == [(3, "missing-series")]


def test_recipes_have_pseudonyms():
    said = {"recipe": "thingsboard", "value": "values.power", "pseudonyms": {"env": "QUILT_KEY"}}
    readings = Readings.model_validate(said)
    given = dumped({"m 1": [{"ts": NOON_S * 1_000, "values": {"power": 1.5}}]})
    assert decode(readings, given) == ([(KEY.name("m 1"), NOON_US, 1.5)], [])


def test_names_of_files_are_replaced(tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_text(f"id,ts,kwh\nm1,{NOON_S},1\nm2,{NOON_S},2\n,{NOON_S},3\n", encoding="utf-8")
    rows, rejects = decode_files(FileSource(csv=str(path)), Readings.model_validate(COLUMNS))
    assert rows == sorted([(KEY.name("m1"), NOON_US, 1.0), (KEY.name("m2"), NOON_US, 2.0)])
    assert [reason for _, reason in rejects] == ["missing-series"]


def test_the_key_is_neither_pickled_nor_printed(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    decoder = PayloadDecoder(READINGS)
    decoder.decode(messages(body("m1")))
    path = tmp_path / "a.csv"
    path.write_text(f"id,ts,kwh\nm1,{NOON_S},1\n", encoding="utf-8")
    pipeline = new_pipeline(options_of([]))
    _ = pipeline | ReadReadings(FileSource(csv=str(path)), Readings.model_validate(COLUMNS))
    shown = [repr(decoder), repr(READINGS), repr(decoder.__getstate__()), str(pipeline.to_runner_api()), caplog.text]
    shown += [pickle.dumps(decoder).decode("latin-1"), str(pipeline.options.display_data())]
    assert [text for text in shown if SECRET in text] == []


def test_a_worker_without_the_key_stops_instead_of_emitting_names(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("QUILT_KEY")
    with pytest.raises(SettingsError, match="the variable QUILT_KEY is not set on this machine"):
        PayloadDecoder(READINGS).decode(messages(body("m1")))


def plan_in(folder: Path) -> Plan:
    text = EXAMPLE.replace("scale: 2000}", "scale: 2000, pseudonyms: {env: QUILT_KEY}}")
    return make_plan(load_settings(text.replace("model.json", "{pi_min: 0.1, gap: 0.5}"), folder=folder))


def register(store: Store, plan: Plan) -> Registration:
    assert plan.roster is not None
    query = plan.query(plan.schedule, plan.roster, schedule_given=True, roster_given=True)
    return store.register(plan.domain, query)


def test_a_job_with_another_key_is_refused_by_its_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "roster.csv").write_text("series,feeder\nm1,f1\n", encoding="utf-8")
    first = plan_in(tmp_path)
    assert first.roster is not None
    assert first.roster.series == (KEY.name("m1"),)
    assert first.domain.reading["pseudonyms"] == KEY.fingerprint
    assert SECRET not in repr(first)
    with Store(StoreAddress(f"sqlite:///{tmp_path / 'ledger.db'}"), create=True) as store:
        register(store, first)
        register(store, plan_in(tmp_path))
        monkeypatch.setenv("QUILT_KEY", SECRET + "!")
        with pytest.raises(StoreConflict) as caught:
            register(store, plan_in(tmp_path))
    assert "pseudonyms" in str(caught.value)
    assert SECRET not in str(caught.value)
