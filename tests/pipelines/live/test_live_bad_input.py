"""Bad input of a live job: what each mistake ends with, before anything is read, and what may change between runs."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

from quiltstream.pipelines.live import job
from quiltstream.privacy import Ledger, MixingBounds
from quiltstream.schemas.slots import Window
from quiltstream.store import Store

from ..jobs import HOMES, Done, Job, change, readings, write_as, write_csv
from ..live_jobs import WINDOWS, made, run

pytestmark = pytest.mark.usefixtures("ending")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a job that has published its whole schedule."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(job, "live_pipeline", lambda options: beam.Pipeline(runner=FnApiRunner(), options=options))
        assert run(made(folder)).code == 0
    return folder


@pytest.fixture
def one(finished: Path, tmp_path: Path) -> Job:
    """A copy of that job."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return Job(tmp_path)


def stopped(one: Job, code: int) -> Done:
    """Run a job that must not begin to read: reading its only file would never end."""
    for path in (one.folder / "inbox").iterdir():
        path.unlink()
    os.mkfifo(one.folder / "inbox" / "0.csv")
    done = run(one)
    assert (done.code, done.out) == (code, ""), done.err
    return done


# Rosters


def test_a_roster_that_cannot_be_read_ends_the_job_before_it_reads(tmp_path: Path) -> None:
    one = made(tmp_path)
    (tmp_path / "roster.csv").write_text("meter,street\nm1,north\n", encoding="utf-8")
    done = stopped(one, 2)
    assert done.said("roster.csv")
    assert done.said("'series'")
    assert not one.ledger.exists()


# Lateness


@pytest.mark.night
def test_a_late_window_is_charged_as_if_it_were_charged_in_order(tmp_path: Path) -> None:
    """The account keeps every charge, so no lateness lies beyond its reach: order does not matter."""
    first = made(tmp_path, days=40, windows=WINDOWS | {"start": "2024-04-01", "stop": "2024-04-06"})
    change(first, query="later", privacy={"epsilon": 1.0, "budget": 9.0}, sink={"parquet": "later"})
    assert run(first).code == 0
    change(first, query="earlier", windows=WINDOWS | {"lateness": "30d"}, sink={"parquet": "earlier"})
    run(first).ended(0)
    with Store(f"sqlite:///{first.ledger}", create=True) as store:
        entries = [entry for entry in store.entries("streets") if entry.decision == "charged"]
        loss = store.summary("streets").loss
    assert [entry.query for entry in entries] == ["later"] * 5 + ["earlier"] * 5
    truth = Ledger(MixingBounds(0.05, 0.3))
    for entry in sorted(entries, key=lambda entry: entry.window_start):
        truth.charge(entry.window_start, entry.window_stop, entry.epsilon_dp)
    assert loss == truth.loss


# The ledger


def other_version(one: Job) -> None:
    with closing(sqlite3.connect(one.ledger)) as connection, connection:
        connection.execute("UPDATE quiltstream_heads SET version = 9999")


def damaged(one: Job) -> None:
    data = bytearray(one.ledger.read_bytes())
    data[8192:16384] = b"\xff" * 8192
    one.ledger.write_bytes(bytes(data))


@pytest.mark.night
@pytest.mark.parametrize(("fault", "said"), [(other_version, "9999"), (damaged, "is damaged")])
def test_a_ledger_that_cannot_be_used_stops_a_live_job_before_it_reads(
    one: Job, fault: Callable[[Job], None], said: str
) -> None:
    fault(one)
    done = stopped(one, 4)
    assert done.err.startswith("Error: ")
    assert done.said(said), done.err


# What may change between restarts: the rows of the table in docs/streaming.md

QUERY = "a query keeps what its numbers depend on: set it back, or use a new query name, which is charged anew"
DOMAIN = "a domain keeps what its account rests on: set it back; a domain of another name is for other series"
BELIEF = "an account rests on one belief: set the model back"


@pytest.mark.night
@pytest.mark.parametrize(
    ("changes", "said", "advice"),
    [
        (
            {"slots": {"interval": "30min", "origin": "2024-03-01T00:30:00"}},
            "slots.origin is '2024-03-01T00:30:00Z', but",
            DOMAIN,
        ),
        ({"missing": "state"}, "missing is 'state', but on record it is 'public'", DOMAIN),
        ({"missing": {"break": "2h"}}, "missing is {'break': '2h'}, but on record it is 'public'", DOMAIN),
        (
            {"readings": {"series": "meter", "time": "ts", "value": "kwh", "unit": "kWh", "scale": 1000}},
            "readings.scale is 1000.0, but on record it is 2000.0",
            DOMAIN,
        ),
        (
            {"privacy": {"epsilon": 1.0, "budget": 1.0, "guarantee": "window"}},
            "privacy.guarantee is 'window', but on record it is 'stream'",
            DOMAIN,
        ),
        ({"privacy": {"epsilon": 1.0, "budget": 2.0}}, "budget is 2.0, but on record it is 1.0", "ledger budget"),
        ({"by": "hour"}, "by is 'hour', but on record it is left out", QUERY),
        ({"model": {"pi_min": 0.05, "gap": 0.2}}, "model.gap is 0.2, but on record it is 0.3", BELIEF),
    ],
    ids=lambda case: "-".join(case) if isinstance(case, dict) else "",
)
def test_a_changed_fixed_setting_stops_the_job_early_and_names_both_values(
    one: Job, changes: dict[str, Any], said: str, advice: str
) -> None:
    change(one, **changes)
    done = stopped(one, 4)
    assert done.said(said), done.err
    assert done.said(advice), done.err


@pytest.mark.night
def test_another_query_over_the_domain_is_charged_beside_the_first(one: Job) -> None:
    given = {"privacy": {"epsilon": 1.0, "budget": 1.0}}
    # more than what is left of the budget
    change(one, query="other", sink={"parquet": "others"}, privacy={"epsilon": 4.0, "budget": 1.0})
    done = stopped(one, 3)
    assert done.said("query 'other'"), done.err
    # and it is the series' own, whatever the domain is called
    change(one, domain="other", **given)
    done = stopped(one, 4)
    assert done.said("domain 'other': 6 of its series are in domain 'streets' of this ledger"), done.err
    change(one, states={"edges": [300, 500, 1000, 2000], "unit": "W"}, shares_series_with=["streets"])
    assert len(stopped_not(one)) == 10


def stopped_not(one: Job) -> list[str]:
    """Run a job whose source cannot be read; the names of the blocks that it then has in its sink."""
    for path in (one.folder / "inbox").iterdir():
        path.unlink()
    write_csv(one.folder / "inbox" / "0.csv", readings(6))
    run(one).ended(0)
    return [path.name for path in (one.folder / "others").iterdir()]


def rows(one: Job) -> dict[str, str]:
    """Every row on record by its name."""
    with Store(f"sqlite:///{one.ledger}", create=True) as store:
        batches = [row for batch in store.releases("streets", "daily") for row in batch.to_pylist()]
    return {row["release_id"]: repr(row) for row in batches}


@pytest.mark.night
def test_changeable_settings_take_effect_and_recorded_rows_stay(one: Job) -> None:
    before = rows(one)
    shutil.rmtree(one.folder / "inbox")
    (one.folder / "inbox2").mkdir()
    write_as("jsonl", one.folder / "inbox2" / "0.jsonl", readings(9))
    with (one.folder / "roster.csv").open("a", encoding="utf-8") as file:
        file.write("m9,north\n")
    (one.folder / "ledgers").mkdir()
    for path in one.folder.glob("ledger.db*"):
        path.rename(one.folder / "ledgers" / path.name)
    change(
        one,
        source={"jsonl": "inbox2/*.jsonl"},
        sink={"csv": "others"},
        rejects=None,
        live={"poll": "20ms", "idle": "1h"},
        shards=3,
        ledger="sqlite:///ledgers/ledger.db",
        # a later end, which the budget allows because a stream has none
        windows=WINDOWS | {"stop": "2024-03-08", "lateness": "2h"},
    )
    run(one).ended(0, "2 newly on record, 5 on record before, of 7")
    assert len(list((one.folder / "others").iterdir())) == 14
    with Store(f"sqlite:///{one.folder / 'ledgers' / 'ledger.db'}", create=True) as store:
        batches = [row for batch in store.releases("streets", "daily") for row in batch.to_pylist()]
        registration = store.registered("streets", "daily")
    after = {row["release_id"]: repr(row) for row in batches}
    assert {name: after[name] for name in before} == before
    assert len(after) == 14
    # what settings say of the shards does not count once they are on record
    assert registration is not None
    assert registration.query.shards == 8
    # the new roster holds for the new windows
    sizes = [len(registration.roster_of(Window(day * 48, day * 48 + 48)).series) for day in range(7)]
    assert sizes == [len(HOMES)] * 5 + [len(HOMES) + 1] * 2


# Modes of runners


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("--dataflow_service_options=streaming_mode_at_least_once", "exactly-once is the default"),
        ("--experiments=streaming_mode_at_least_once", "exactly-once is the default"),
        ("--additional_experiments=streaming_mode_at_least_once", "exactly-once is the default"),
        ("--enable_hot_key_logging", "the runner would write keys into its log"),
    ],
)
def test_unsafe_or_key_logging_runner_modes_are_refused_before_any_record(tmp_path: Path, word: str, why: str) -> None:
    done = run(made(tmp_path, ledger="postgresql://nowhere.invalid/db"), "--", "--runner=DataflowRunner", word)
    assert (done.code, done.out) == (2, "")
    assert done.said(f"{word}: ")
    assert done.said(why)
