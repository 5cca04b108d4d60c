"""Levels of the topic under pseudonyms: what goes on, what a job makes of it, and that no name or key is anywhere."""

from __future__ import annotations

import json
import logging
import pickle
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from quiltstream.pipelines.errors import CommandError
from quiltstream.pipelines.gateway.delivery import DeliveryError, DeliveryTarget, KafkaDelivery
from quiltstream.pipelines.gateway.forward import Forward
from quiltstream.pipelines.gateway.metrics import RejectFile, Tally
from quiltstream.pipelines.gateway.pseudonyms import TopicNames
from quiltstream.pipelines.metrics_page import serve_metrics
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.gateway import GatewaySettings, Level
from quiltstream.schemas.settings.readings import Readings
from quiltstream.schemas.settings.secrets import PseudonymKey
from quiltstream.transforms.payloads import PayloadDecoder
from quiltstream.transforms.payloads.messages import Messages

from ..jobs import call
from .fake_kafka import Broker
from .test_forward import FakeLine, FakeTarget, incoming

SECRET = "correct horse battery staple"  # noqa: S105 - of this test
KEY = PseudonymKey(SECRET.encode())
NAMES = TopicNames(KEY, [2])

NOON_S = 1_767_614_400


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METER_KEY", SECRET)


def document(**forward: Any) -> dict[str, Any]:
    given = {"topics": ["meters/+/kwh"], "to": {"folder": {"path": "spool"}}} | forward
    return {"mqtt": {"host": "localhost", "client_id": "g1"}, "forward": given}


def problem(level: Any, topics: list[str]) -> str:
    with pytest.raises(SettingsError) as caught:
        GatewaySettings.parse(document(topics=topics, pseudonyms={"env": "METER_KEY", "level": level}))
    return str(caught.value)


def passed(
    target: DeliveryTarget, names: TopicNames | None, topics: list[str], rejects: RejectFile | None = None
) -> Tally:
    """Hand messages of some topics to a target, the way the gateway does."""
    tally, line = Tally(), FakeLine()
    forward = Forward(
        target,
        messages=100,
        bytes_=10**9,
        largest=1_000,
        retained=False,
        tally=tally,
        rejects=RejectFile(None) if rejects is None else rejects,
        names=names,
    )
    line.take = forward.take
    body = json.dumps({"ts": NOON_S, "kwh": 1.5}).encode()
    line.waiting.extend(incoming(at, body, topic=topic) for at, topic in enumerate(topics, 1))
    turns = iter([False, False])
    forward.run(line, lambda: next(turns, True), 5.0)
    return tally


# What goes on


def test_named_topic_levels_are_forwarded_as_pseudonyms_and_others_unchanged() -> None:
    assert NAMES.of("meters/m1/kwh") == f"meters/{KEY.name('m1')}/kwh"
    assert TopicNames(KEY, [1, 3]).of("a/b/c/d") == f"{KEY.name('a')}/b/{KEY.name('c')}/d"
    assert NAMES.of("meters/Zähler 7/kwh") == f"meters/{KEY.name('Zähler 7')}/kwh"


@pytest.mark.parametrize("topic", ["meters", "meters//kwh", "meters/ /kwh", ""])
def test_a_topic_without_a_name_at_the_level_stays_as_it_is(topic: str) -> None:
    assert NAMES.of(topic) == topic


TOPICS = ["meters/m1/kwh", "meters/m2/kwh", "meters/Zähler 7/kwh", "meters/m1/kwh", "meters//kwh", "meters/ /kwh"]


def decoded(readings: Readings, broker: Broker) -> tuple[list[str], list[int]]:
    """The series of what is in Kafka, and the numbers of the messages that are rejects."""
    records = broker.records
    found = PayloadDecoder(readings).decode(
        Messages(
            payloads=[value for _, _, value, _ in records],
            topics=["readings"] * len(records),
            keys=[key for _, key, _, _ in records],
            headers=[tuple(headers.items()) for _, _, _, headers in records],
            stamps_us=np.full(len(records), -1, dtype=np.int64),
            positions=np.arange(len(records)),
        )
    )
    series = [name for one in found if one.readings is not None for name in one.readings.column("series").to_pylist()]
    return sorted(series), sorted(at for one in found for part in one.rejects for at in part.positions.tolist())


@pytest.mark.parametrize("place", ["topic[1]", "key"])
def test_a_job_reads_the_names_that_it_would_have_made_itself_with_the_same_key(place: str) -> None:
    made: list[tuple[list[str], list[int]]] = []
    for names, pseudonyms in ((NAMES, None), (None, {"env": "METER_KEY"})):
        broker = Broker()
        passed(KafkaDelivery("localhost:9092", "readings", Level(level=2), {}, library=broker.library), names, TOPICS)
        given = {"each": "payload", "series": place, "time": "ts", "value": "kwh", "pseudonyms": pseudonyms}
        made.append(decoded(Readings.model_validate(given), broker))
    assert made[0] == made[1]
    assert made[0] == (sorted(KEY.name(one) for one in ("m1", "m1", "m2", "Zähler 7")), [4, 5])


# That no name is anywhere


def test_kafka_has_the_real_name_neither_in_keys_nor_in_headers() -> None:
    for key in (Level(level=2), "topic"):
        broker = Broker()
        passed(
            KafkaDelivery("localhost:9092", "readings", key, {}, library=broker.library), NAMES, ["meters/secret-7/kwh"]
        )
        ((_, found, _, headers),) = broker.records
        topic = f"meters/{KEY.name('secret-7')}/kwh"
        assert found.decode() == (topic if key == "topic" else KEY.name("secret-7"))
        assert headers["mqtt-topic"].decode() == topic
        assert "secret-7" not in repr(broker.records)


class Refusing(FakeTarget):
    """Refuses every message."""

    def offer(self, number: int, message: Any) -> bool:
        self.bad.append(number)
        self.seen = message
        return True


@pytest.mark.night
def test_rejects_logs_and_counts_have_neither_the_name_nor_the_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    rejects, target = RejectFile(tmp_path / "rejects.jsonl"), Refusing()
    tally = passed(target, NAMES, ["meters/secret-7/kwh", f"meters/secret-7/{'x' * 50}"], rejects)
    rejects.close()
    lines = [json.loads(line) for line in (tmp_path / "rejects.jsonl").read_text(encoding="utf-8").splitlines()]
    # the same digest as that of the topic under its pseudonym: nothing of the name is behind it
    assert lines[0]["topic"] == rejects.digest(f"meters/{KEY.name('secret-7')}/kwh".encode())
    with (
        serve_metrics(0, tally.prometheus, "metrics.port") as port,
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer,
    ):
        shown = answer.read().decode()
    assert 'dropped_total{reason="refused-by-next-hop"} 2' in shown
    for text in (shown, caplog.text, json.dumps(lines), repr(target.seen), tally.line(0, 1.0)):
        assert "secret-7" not in text
        assert SECRET not in text


def test_the_key_is_shown_nowhere_and_is_not_pickled(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("paho.mqtt.client", reason="the extra mqtt is not installed")
    from quiltstream.pipelines.gateway.run import parts_of  # noqa: PLC0415 - needs the extra

    caplog.set_level(logging.DEBUG)
    settings = GatewaySettings.parse(document(pseudonyms={"env": "METER_KEY", "level": 2}), folder=tmp_path)
    parts = parts_of(settings)
    assert parts.names is not None
    assert parts.names.of("meters/m1/kwh") == NAMES.of("meters/m1/kwh")
    for text in (repr(parts), repr(parts.names), repr(settings), settings.model_dump_json(), caplog.text):
        assert SECRET not in text
    with pytest.raises(TypeError, match="does not travel"):
        pickle.dumps(parts.names)


def test_a_gateway_that_runs_makes_pseudonyms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("paho.mqtt.client", reason="the extra mqtt is not installed")
    from quiltstream.pipelines.gateway import run  # noqa: PLC0415 - needs the extra

    class Line(FakeLine):
        """Brings one message, and then its broker refuses."""

        def __init__(self, _: Any, on_message: Any) -> None:
            super().__init__()
            self.take = on_message
            self.waiting.append(incoming(1, b"{}", topic="meters/secret-7/kwh"))

        def turn(self, seconds: float, *, room: Any = None) -> None:
            self.error = None if self.waiting else DeliveryError("over")
            super().turn(seconds, room=room)

    monkeypatch.setattr(run, "Connection", Line)
    path = tmp_path / "gateway.yaml"
    path.write_text(yaml.safe_dump(document(pseudonyms={"env": "METER_KEY", "level": 2})), encoding="utf-8")
    with pytest.raises(CommandError, match="over"):
        run.run_gateway(path)
    (segment,) = (tmp_path / "spool").glob("*.avro")
    assert KEY.name("secret-7").encode() in segment.read_bytes()
    assert b"secret-7" not in segment.read_bytes()


# Settings


@pytest.mark.parametrize(
    ("level", "topics", "words"),
    [
        (4, ["meters/+/kwh"], "pseudonyms.level is 4, and topics of 'meters/+/kwh' have 3: they would go on under"),
        (3, ["a/b/+", "$share/g/a/+"], "topics of '$share/g/a/+' have 2"),
        ([2, 4], ["meters/+/kwh"], "pseudonyms.level names 4, and no topic of forward.topics has more than 3 levels"),
        ([2, 2], ["meters/+/kwh"], "names a level twice"),
        (0, ["meters/+/kwh"], "is 0: input should be greater than or equal to 1"),
        ([], ["meters/+/kwh"], "forward.pseudonyms.level"),
        (True, ["meters/+/kwh"], "forward.pseudonyms.level"),
    ],
)
def test_a_level_that_topics_do_not_have_is_a_mistake(level: Any, topics: list[str], words: str) -> None:
    assert words in problem(level, topics)


@pytest.mark.parametrize(
    ("level", "topics"), [(9, ["meters/#"]), (2, ["a/+", "meters/+/kwh"]), ([2, 3], ["a/+", "b/c/+"]), (1, ["#"])]
)
def test_a_pseudonym_level_possible_in_every_filter_is_accepted(level: Any, topics: list[str]) -> None:
    given = document(topics=topics, pseudonyms={"env": "METER_KEY", "level": level})
    assert GatewaySettings.parse(given).forward.topics == topics


def check(folder: Path, **forward: Any) -> Any:
    pytest.importorskip("paho.mqtt.client", reason="the extra mqtt is not installed")
    path = folder / "gateway.yaml"
    path.write_text(yaml.safe_dump(document(**forward)), encoding="utf-8")
    return call("gateway", "--check", path)


def test_a_check_lists_levels_forwarded_as_pseudonyms_and_in_clear(tmp_path: Path) -> None:
    topics = ["meters/+/kwh", "sites/+/+/#"]
    done = check(tmp_path, topics=topics, pseudonyms={"env": "METER_KEY", "level": 2})
    done.ended(
        0,
        "level 2 of the topic goes on as a pseudonym; payloads go on as they are",
        "these go on as they are: level 3 of 'sites/+/+/#'; what # of 'sites/+/+/#' stands for",
    ).hid(SECRET)
    assert not check(tmp_path, pseudonyms={"env": "METER_KEY", "level": 2}).said("these go on as they are")
    assert check(tmp_path).said("topics go on as they are")


@pytest.mark.parametrize("secret", [None, "short"])
def test_a_gateway_without_the_key_does_not_start(
    tmp_path: Path, secret: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if secret is None:
        monkeypatch.delenv("METER_KEY")
    else:
        monkeypatch.setenv("METER_KEY", secret)
    done = check(tmp_path, pseudonyms={"env": "METER_KEY", "level": 2})
    assert done.code == 2
    words = "is not set on this machine" if secret is None else "holds a key of 5 bytes"
    assert f"forward.pseudonyms: the variable METER_KEY {words}" in " ".join(done.err.split())
    assert "short" not in done.err.replace("shorter", "")
