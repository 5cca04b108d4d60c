"""Building a graph writes nothing and asks nothing: no file, no row, no reservation, no need of a database."""

from __future__ import annotations

import datetime as dt
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.flink_runner import FlinkRunner
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.runners.portability.prism_runner import PrismRunner

from quiltstream.pipelines.connectors.files import write_releases
from quiltstream.pipelines.connectors.live import live_sinks, live_source
from quiltstream.pipelines.live.job import pace_of
from quiltstream.pipelines.runners import read_source
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.job import Settings, read_settings
from quiltstream.store.errors import BudgetRefused
from quiltstream.store.store import Store
from quiltstream.transforms import PrivateHistograms
from quiltstream.transforms.beam_yaml import PrivateHistogramsOfRows

from .jobs import START, job, readings, write_csv

ENDLESS = {"size": "1d", "start": "2024-03-01"}
MESSAGES = {"each": "payload", "series": "meter", "time": "ts", "value": "kwh", "unit": "kWh", "scale": 2000}
PUBSUB = {"subscription": "projects/my-grid/subscriptions/meters"}
LIVE = {
    "folder": {"source": {"csv": "inbox/*.csv"}, "sink": {"parquet": "releases"}},
    "kafka": {
        "source": {"kafka": {"servers": "127.0.0.1:1", "topics": ["load"], "start": "earliest"}},
        "sink": {"kafka": {"servers": "127.0.0.1:1", "topic": "released"}},
        "memory": "memory.json",
        "readings": MESSAGES,
    },
    "pubsub": {
        "source": {"pubsub": PUBSUB},
        "sink": {"pubsub": {"topic": "projects/my-grid/topics/released"}},
        "memory": "memory.json",
        "readings": MESSAGES,
    },
}
#: Where nothing answers.
AWAY = "postgresql://nobody:nothing@127.0.0.1:1/none"


def settings_in(folder: Path, ledger: str | None = None, **changes: Any) -> Settings:
    (folder / "inbox").mkdir()
    write_csv(folder / "inbox" / "0.csv", readings(3))
    changes |= {} if ledger is None else {"ledger": ledger}
    return read_settings(job(folder, **changes).settings)


def built(settings: Settings, kind: str, folder: Path) -> beam.Pipeline:
    """A pipeline of each kind, as the commands and users make it."""
    live = kind in LIVE or kind == "own, endless"
    runner: Any = PrismRunner() if live else FnApiRunner()
    pipeline = beam.Pipeline(runner=runner, options=PipelineOptions([]))
    if kind == "files":
        published = pipeline | "Read" >> read_source(settings, None)
        write_releases((published.readings | PrivateHistograms(settings)).releases, settings)
    elif kind in LIVE:
        plan = PrivateHistograms(settings).plan
        pace = pace_of(settings, plan.grid, plan.schedule, plan.grid.time_of(plan.schedule.first))
        decoded = pipeline | "Read" >> live_source(settings).read(pace)
        published = decoded.readings | PrivateHistograms(settings, by_watermark=kind == "pubsub")
        _ = published.releases | "Sink" >> live_sinks(settings)[0].releases()
    else:
        row = {"series": "m1", "time": START, "value": 1.0}
        rows: Any = pipeline | beam.Create([row]).with_output_types(dict[str, Any])
        rows.is_bounded = not live
        own = PrivateHistograms(settings)
        _ = rows | (PrivateHistogramsOfRows(str(folder / "settings.yaml")) if kind == "beam yaml" else own)
    return pipeline


@pytest.mark.parametrize("ledger", [None, AWAY], ids=["sqlite", "no database"])
@pytest.mark.parametrize("kind", ["files", *LIVE, "own", "own, endless", "beam yaml"])
def test_building_a_graph_writes_nothing_and_asks_nobody(
    tmp_path: Path, kind: str, ledger: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: dict[str, Any] = LIVE.get(kind, {})
    if kind in LIVE or kind == "own, endless":
        changes = {**changes, "windows": ENDLESS}
    settings = settings_in(tmp_path, ledger, **changes)
    before = sorted(tmp_path.rglob("*"))

    def refuse(*_: Any) -> Any:
        raise AssertionError("a graph connects to nothing")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    built(settings, kind, tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_runner_whose_steps_cannot_wait_is_refused_with_what_to_do(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, windows=ENDLESS)
    pipeline = beam.Pipeline(runner=FlinkRunner(), options=PipelineOptions([]))
    rows: Any = pipeline | beam.Create([{}]).with_output_types(dict[str, Any])
    rows.is_bounded = False
    away = settings.changed({"ledger": AWAY})
    with pytest.raises(SettingsError, match=r"use PrivateHistograms\(\.\.\.\)\.register\(\)"):
        _ = rows | PrivateHistograms(away)
    registered = PrivateHistograms(settings).register()
    with Store(f"sqlite:///{tmp_path / 'ledger.db'}") as store:
        assert store.queries() == [("streets", "daily")]
    assert registered.plan.address.store_id


def template(folder: Path, **changes: Any) -> beam.Pipeline:
    """A pipeline whose query is on no record while it is built."""
    settings = settings_in(folder, **changes)
    pipeline = beam.Pipeline(runner=FnApiRunner())
    rows = [{"series": m, "time": dt.datetime.fromisoformat(t), "value": v * 2000} for m, t, v in readings(3)]
    given: Any = pipeline | beam.Create(rows).with_output_types(dict[str, Any])
    published = given | PrivateHistograms(settings)
    write_releases(published.releases, settings)
    return pipeline


GIVEN = {"windows": {"size": "1d", "start": "2024-03-01", "stop": "2024-03-04"}, "source": None, "readings": None}


@pytest.mark.parametrize("windows", [GIVEN["windows"], {"size": "1d"}], ids=["given", "left to the data"])
def test_a_template_that_runs_twice_publishes_the_same_rows_and_is_charged_once(tmp_path: Path, windows: Any) -> None:
    made = template(tmp_path, **GIVEN | {"windows": windows})
    assert not (tmp_path / "ledger.db").exists()
    found: list[bytes] = []
    for _ in range(2):
        made.run().wait_until_finish()
        found.append((tmp_path / "releases.parquet").read_bytes())
    assert found[0] == found[1]
    with Store(f"sqlite:///{tmp_path / 'ledger.db'}") as store:
        assert [entry.decision for entry in store.entries()] == ["charged"] * 3


def test_a_budget_that_is_too_small_is_refused_when_the_job_begins(tmp_path: Path) -> None:
    changes = GIVEN | {"privacy": {"epsilon": 1.0, "budget": 1e-6}}
    made = template(tmp_path, **changes)
    with pytest.raises(BudgetRefused):
        made.run().wait_until_finish()
    with Store(f"sqlite:///{tmp_path / 'ledger.db'}") as store:
        assert store.queries() == []
    assert not (tmp_path / "releases.parquet").exists()


def test_a_graph_over_files_imports_no_database_broker_or_decoder_of_messages() -> None:
    program = (
        "import sys\nfrom quiltstream.transforms import PrivateHistograms\n"
        "import quiltstream.transforms.sources.files\n"
        "print(sorted({'sqlalchemy', 'duckdb', 'jmespath', 'confluent_kafka', 'paho'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
