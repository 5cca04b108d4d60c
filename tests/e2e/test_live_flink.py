"""The live job on a real Flink cluster with its ledger in PostgreSQL: what faults cost, which is never a wrong row.

Files arrive when a test puts them, and a fault strikes once what the files before it bring is on record, so every fault
has its place whatever the machine's speed. What is on record is compared with an independent computation over all
readings. Where the runner loses a part of its state, our windows stay missing instead of being wrong: the job is then
begun once more from the ledger alone, the test says so, and completeness is asked for again.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from quiltstream.privacy.classes import MixingBounds
from quiltstream.privacy.ledger import Ledger
from quiltstream.schemas.rowfiles import write_rows
from quiltstream.store import Store

from .flink import HERE, FlinkCluster
from .live_bench import BELIEF, DAY, DAY_US, NAMES, ORIGIN, SERIES, SLOT, Bench, readings, truth
from .outcomes import wait_until
from .postgres_schemas import new_schema

DAYS = 8
BUDGET = 1.0
PATIENCE = 150

#: Each in a shard of its own of three; the readings of the first come from two.
GROUPS = {"x": ["a", "c"], "z": ["b"], "r": ["d", "e"]}

#: Without a new row for so long, what is missing will not come by itself: Flink takes a job up again in seconds.
QUIET = 60

#: The lock that keeps a transaction of the job from going on.
LOCK = 7_021_977


class FlinkBench(Bench):
    """A settings file, an inbox and a sink in a folder, a ledger on a server, and the job of the moment."""

    def __init__(self, folder: Path, cluster: FlinkCluster, ledger: str, keys: dict[str, list[str]]) -> None:
        super().__init__(folder, [], {})
        self.cluster = cluster
        self.url = ledger
        self.keys = keys
        self.job = ""
        self.begun_anew = False

    @property
    def ledger(self) -> str:
        return self.url

    def submit(self, savepoint: str | None = None) -> str:
        """Start a job on the cluster; without a savepoint it has nothing but the ledger."""
        script, settings = str(HERE / "live_job.py"), str(self.folder / "settings.yaml")
        self.job = self.cluster.submit(script, settings, "--noise", "none", "--", savepoint=savepoint)
        return self.job

    def account(self) -> str:
        """How things are, for the message of a failure."""
        state, counts = self.cluster.state(self.job), self.cluster.checkpoints(self.job)["counts"]
        return f"{state}, {counts}, on record: {sorted(self.counts())}, failures: {self.cluster.failures(self.job)}"

    def wait(self, what: str, condition: Callable[[], object]) -> None:
        wait_until(what, condition, PATIENCE, self.account)

    def wait_for_days(self, days: int) -> None:
        """Wait until the first days are on record; begin anew from the ledger, once, if they do not come."""
        seen, since = -1, time.monotonic()

        def there() -> bool:
            nonlocal seen, since
            rows = self.counts()
            if len(rows) != seen:
                seen, since = len(rows), time.monotonic()
            if time.monotonic() - since > QUIET and not self.begun_anew:
                self.begin_anew()
            found = Counter(start // DAY for start, _ in rows)
            return all(found[day] == len(self.keys) for day in range(days))

        self.wait(f"the first {days} days", there)

    def begin_anew(self) -> None:
        """Begin from the ledger because the runner has lost something; never because of a failure of our own."""
        account = self.account()
        assert "quiltstream" not in account, account
        sys.stdout.write(f"the runner lost a part of the job, which begins anew from the ledger: {account}\n")
        self.begun_anew = True
        self.cluster.cancel(self.job)
        self.submit()

    def wait_for_checkpoint(self) -> None:
        """Wait for a checkpoint that was begun after now."""

        def completed() -> int:
            return self.cluster.checkpoints(self.job)["counts"]["completed"]

        # one may be under way
        before = completed() + 1
        self.wait("a checkpoint", lambda: completed() > before)

    def recorded(self) -> list[bytes]:
        """What is on record, as the sink's files should have it."""
        trial, found = self.folder / "trial.jsonl", list[bytes]()
        with Store(self.url, create=False) as store:
            for batch in store.releases("homes", "load"):
                write_rows(trial, "jsonl", pa.Table.from_batches([batch]))
                found.append(trial.read_bytes())
        return sorted(found)

    def sunk(self) -> list[bytes]:
        """The files of the sink."""
        return sorted(path.read_bytes() for path in (self.folder / "releases").glob("*.jsonl"))

    def complete(self, frame: pl.DataFrame) -> None:
        """Wait for everything, end the job, and see that nothing but the truth is on record and in the sink."""
        self.wait_for_days(DAYS)
        self.wait("the sink has what is on record", lambda: self.sunk() == self.recorded())
        self.cluster.cancel(self.job)
        assert self.counts() == truth(frame, range(DAYS), self.keys)
        files = self.sunk()
        assert files == self.recorded()
        lines = [json.loads(line) for file in files for line in file.splitlines()]
        assert len({line["release_id"] for line in lines}) == len(lines) == DAYS * len(self.keys)
        # the ledger, worked out by the core from the rows alone
        core = Ledger(MixingBounds(BELIEF["pi_min"], BELIEF["gap"]))
        charges = sorted({(row.window_start, row.window_stop, row.epsilon_dp) for row in self.rows()})
        losses = {
            start: core.charge((start - ORIGIN) // SLOT, (stop - ORIGIN) // SLOT, epsilon).loss_after
            for start, stop, epsilon in charges
        }
        assert len(losses) == len(charges) == DAYS
        assert core.loss <= BUDGET
        with Store(self.url, create=False) as store:
            entries = store.entries("homes")
        assert [(entry.start_us, entry.decision, entry.loss_after) for entry in entries] == [
            (start, "charged", loss) for start, loss in losses.items()
        ]
        assert {row.window_start: row.loss_after for row in self.rows()} == losses


@pytest.fixture
def bench(
    request: pytest.FixtureRequest,
    flink_cluster: FlinkCluster,
    postgres_url: str,
    tmp_path: Path,
) -> Iterator[FlinkBench]:
    """A place for jobs whose keys are the test's parameter; the job that still runs in it is cancelled."""
    keys: dict[str, list[str]] = request.param
    with new_schema(postgres_url) as url:
        made = FlinkBench(tmp_path / "job", flink_cluster, url, keys)
        made.settings(
            ledger=url,
            group_by=None if keys is SERIES else "group",
            sink={"jsonl": "releases"},
            windows={"size": "1d", "start": "2013-01-01", "stop": f"2013-01-{DAYS + 1:02}"},
            privacy={"epsilon": 1.0, "budget": BUDGET},
            live={"poll": "1s"},
        )
        groups = {name: group for group, names in GROUPS.items() for name in names}
        roster = ["series,group", *(f"{name},{groups[name]}" for name in NAMES), ""]
        (made.folder / "roster.csv").write_text("\n".join(roster), encoding="utf-8")
        yield made
        if made.job and flink_cluster.state(made.job) not in {"CANCELED", "FAILED", "FINISHED"}:
            flink_cluster.cancel(made.job)


def part(frame: pl.DataFrame, begin: float, end: float) -> pl.DataFrame:
    """The readings from a fraction of a day to another."""
    day = (pl.col("time") - ORIGIN) / DAY_US
    return frame.filter((day >= begin) & (day < end))


@contextmanager
def held_release(url: str, day: int) -> Generator[Callable[[], bool]]:
    """Hold the transaction that puts the second block of a day on record; what is given tells whether one is held."""
    with psycopg.connect(url.replace("postgresql+psycopg", "postgresql"), autocommit=True) as connection:
        connection.execute(
            sql.SQL(
                "create function hold() returns trigger language plpgsql as $$ begin "
                "if exists (select from quiltstream_releases where window_start = new.window_start) "
                "then perform pg_advisory_xact_lock_shared({}); end if; return new; end $$"
            ).format(sql.Literal(LOCK))
        )
        connection.execute(
            sql.SQL(
                "create trigger hold before insert on quiltstream_releases for each row "
                "when (new.window_start = {}) execute function hold()"
            ).format(sql.Literal(day * DAY))
        )
        connection.execute("select pg_advisory_lock(%s)", (LOCK,))

        def held() -> bool:
            waiting = "select 1 from pg_locks where locktype = 'advisory' and not granted"
            return connection.execute(waiting).fetchone() is not None

        yield held
        connection.execute("select pg_advisory_unlock(%s)", (LOCK,))


@pytest.mark.parametrize("bench", [GROUPS], ids=["groups"], indirect=True)
def test_killed_taskmanagers_and_workers_cost_no_row_and_change_none(bench: FlinkBench) -> None:
    cluster, frame = bench.cluster, readings(DAYS + 0.5, seed=21)
    bench.put("0.jsonl", part(frame, 0, 1.5))
    bench.submit()
    bench.wait_for_days(1)
    bench.put("1.jsonl", part(frame, 1.5, 2.5))
    bench.wait_for_days(2)
    bench.wait_for_checkpoint()
    # within a window: half of the third day has been read, and is in the runner's state only
    cluster.kill_taskmanager()
    cluster.start_taskmanager()
    bench.put("2.jsonl", part(frame, 2.5, 3.5))
    bench.wait_for_days(3)
    # within a release: the fourth day is charged and has a block, and another is in a transaction
    with held_release(bench.url, 3) as held:
        bench.put("3.jsonl", part(frame, 3.5, 4.5))
        bench.wait("the fourth day is being released", held)
        assert sum(start == 3 * DAY for start, _ in bench.counts()) == 1
        cluster.kill_taskmanager()
    cluster.start_taskmanager()
    bench.put("4.jsonl", part(frame, 4.5, 5.5))
    bench.wait_for_days(5)
    # within a window again: the process with our code, while its TaskManager goes on
    assert cluster.kill_workers() >= 1
    for day in (5, 6, 7):
        bench.put(f"{day}.jsonl", part(frame, day + 0.5, day + 1.5))
    bench.complete(frame)
    assert bench.begun_anew or cluster.checkpoints(bench.job)["counts"]["restored"] >= 3


@pytest.mark.parametrize("bench", [SERIES], ids=["series"], indirect=True)
def test_a_job_taken_up_from_a_savepoint_and_one_begun_from_the_ledger_alone_go_on(bench: FlinkBench) -> None:
    cluster, frame = bench.cluster, readings(DAYS + 0.5, seed=22)
    bench.put("0.jsonl", part(frame, 0, 2.5))
    first = bench.submit()
    bench.wait_for_days(2)
    savepoint = cluster.stop_with_savepoint(first)
    bench.wait("the job has stopped", lambda: cluster.state(first) == "FINISHED")
    bench.put("2.jsonl", part(frame, 2.5, 3.5))
    bench.put("3.jsonl", part(frame, 3.5, 4.5))
    second = bench.submit(savepoint)
    assert cluster.checkpoints(second)["latest"]["restored"]["is_savepoint"]
    bench.wait_for_days(4)
    cluster.cancel(bench.job)
    published = bench.rows()
    # it went on where it had stopped; what a job reads that begins anew is labelled as replayed
    labels = {(row.window_start - ORIGIN) // DAY_US: row.completeness for row in published}
    assert bench.begun_anew or labels == {0: "replayed", 1: "replayed", 2: "live", 3: "live"}
    # nothing is left but the ledger
    for path in (bench.folder / "releases").iterdir():
        path.unlink()
    bench.put("4.jsonl", part(frame, 4.5, 6.5))
    bench.submit()
    bench.wait_for_days(6)
    bench.put("6.jsonl", part(frame, 6.5, DAYS + 0.5))
    bench.complete(frame)
    assert bench.rows()[: len(published)] == published
