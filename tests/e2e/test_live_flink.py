"""Live jobs on a real Flink cluster with their ledger in PostgreSQL: the contract, and what faults cost.

Files arrive when a test puts them, and a fault strikes once what the files before it bring is on record, so every fault
has its place whatever the machine's speed. What is on record is compared with an independent computation over all
readings. Where the runner loses a part of its state, our windows stay missing instead of being wrong: the test says so
and begins once more, and completeness is asked for again. That a state was taken up is asked for of a pass in which
nothing was begun anew: where the runner loses something, the whole scenario is gone through once more.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ..examined import Tally, every
from .flink import FlinkCluster
from .flink_bench import FlinkBench, held_release
from .kafka import KafkaBroker
from .kafka_topics import TopicBench
from .live_bench import DAY, DAY_US, NAMES, ORIGIN, SERIES, Bench, readings, truth
from .live_contract import LiveContract
from .postgres import PostgresServer

DAYS = 8

#: Each in a shard of its own of three; the readings of the first come from two.
GROUPS = {"x": ["a", "c"], "z": ["b"], "r": ["d", "e"]}


class TestFlink(LiveContract):
    counts_readings = False
    # the workers have a standard input of their own
    test_standard_input_is_read_as_it_arrives_and_its_end_completes_past_windows = None  # pyright: ignore[reportAssignmentType]

    def new_bench(self, folder: Path, request: pytest.FixtureRequest) -> Bench:
        return FlinkBench(folder, request.getfixturevalue("flink_cluster"), request.getfixturevalue("postgres_url"))


@pytest.fixture
def bench(
    request: pytest.FixtureRequest, flink_cluster: FlinkCluster, postgres_url: str, tmp_path: Path
) -> Iterator[FlinkBench]:
    """A place for jobs whose keys are the test's parameter."""
    made = FlinkBench(tmp_path / "job", flink_cluster, postgres_url, request.param)
    made.from_ledger = True
    yield made
    made.close()


def settle(bench: FlinkBench, days: int) -> None:
    """Write the settings of a job over some days."""
    bench.settings(
        group_by=None if bench.keys is SERIES else "group",
        windows={"size": "1d", "start": "2013-01-01", "stop": f"2013-01-{days + 1:02}"},
        live={"poll": "200ms"},
    )


def undisturbed(test: Callable[..., None]) -> Callable[..., None]:
    """The same test, once more in an empty place if a job was begun anew in it; then that must not happen again."""

    @functools.wraps(test)
    def once_or_twice(bench: FlinkBench, **fixtures: Any) -> None:
        test(bench=bench, **fixtures)
        if not bench.retries:
            return
        sys.stdout.write("the whole scenario once more\n")
        bench.renew()
        bench.retries = 0
        test(bench=bench, **fixtures)
        assert not bench.retries, "the runner lost its source in both passes, so its restore was not seen"

    return once_or_twice


def part(frame: pl.DataFrame, begin: float, end: float) -> pl.DataFrame:
    """The readings from a fraction of a day to another."""
    day = (pl.col("time") - ORIGIN) / DAY_US
    return frame.filter((day >= begin) & (day < end))


def complete(bench: FlinkBench, tally: Tally, frame: pl.DataFrame, days: int, earlier: dict[str, str]) -> None:
    """Wait for everything, end the job, and see that nothing but the truth is on record and in the sink."""
    bench.wait_for_days(days)
    bench.until(bench.sink_whole, "the sink has what is on record")
    bench.cluster.cancel(bench.job)
    bench.expected = truth(frame, range(days), bench.keys)
    assert bench.counts() == bench.expected
    tally.take(bench.check(every(DAY, DAY, days * DAY), earlier=earlier))


@pytest.mark.parametrize("bench", [GROUPS], ids=["groups"], indirect=True)
@undisturbed
def test_killed_machines_and_the_ledger_alone_lose_and_change_no_row(bench: FlinkBench, tally: Tally) -> None:
    cluster, frame = bench.cluster, readings(DAYS + 0.5, seed=21)
    settle(bench, DAYS)
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
        bench.until(held, "the fourth day is being released")
        assert sum(start == 3 * DAY for start, _ in bench.counts()) == 1
        published = bench.on_record()
        cluster.kill_taskmanager()
    cluster.start_taskmanager()
    bench.put("4.jsonl", part(frame, 4.5, 5.5))
    bench.wait_for_days(5)
    # within a window again: the process with our code, while its TaskManager goes on
    assert cluster.kill_workers() >= 1
    bench.put("5.jsonl", part(frame, 5.5, 6.5))
    bench.wait_for_days(6)
    assert bench.retries or cluster.checkpoints(bench.job)["counts"]["restored"] >= 3
    bench.put("6.jsonl", part(frame, 6.5, 7.5))
    bench.wait_for_days(7)
    cluster.cancel(bench.job)
    published |= bench.on_record()
    # nothing is left but the ledger
    for path in (bench.folder / "releases").iterdir():
        path.unlink()
    bench.put("7.jsonl", part(frame, 7.5, 8.5))
    bench.submit()
    complete(bench, tally, frame, DAYS, published)


@pytest.mark.parametrize("bench", [SERIES], ids=["series"], indirect=True)
@pytest.mark.parametrize("away_s", [0, 30], ids=["back at once", "away for longer than a checkpoint"])
@undisturbed
def test_a_database_killed_within_a_release_loses_no_row_of_the_running_job(
    bench: FlinkBench, postgres_server: PostgresServer, tally: Tally, away_s: float
) -> None:
    """Nobody touches the job: its runner takes it up again from its checkpoint."""
    frame = readings(4.5, seed=23)
    settle(bench, 4)
    bench.put("0.jsonl", part(frame, 0, 1.5))
    job = bench.submit()
    bench.wait_for_days(1)
    with held_release(bench.url, 1) as held:
        bench.put("1.jsonl", part(frame, 1.5, 2.5))
        bench.until(held, "the second day is being released")
        published = bench.on_record()
        postgres_server.kill()
        bench.put("2.jsonl", part(frame, 2.5, 3.5))
        bench.put("3.jsonl", part(frame, 3.5, 4.5))
        time.sleep(away_s)
        postgres_server.start()
    complete(bench, tally, frame, 4, published)
    assert bench.retries or bench.job == job


@pytest.mark.parametrize("bench", [GROUPS], ids=["groups"], indirect=True)
@undisturbed
def test_an_upgrade_begins_anew_from_the_ledger_and_the_topic(bench: FlinkBench, kafka: KafkaBroker) -> None:
    """Cancelled within a window, by which its workers end, and begun without its state."""
    topics, frame = TopicBench(kafka, bench, 2), readings(4.5, seed=33).sort("time")
    days = {"size": "1d", "start": "2013-01-01", "stop": "2013-01-05"}
    topics.settings(group_by="group", windows=days, live={"poll": "200ms"})
    topics.send(part(frame, 0, 2.5), lambda name: NAMES.index(name) % 2)
    bench.submit()
    bench.wait_for_days(2)
    bench.cluster.cancel(bench.job)
    before = bench.on_record()
    topics.send(part(frame, 2.5, 4.5), lambda name: NAMES.index(name) % 2)
    bench.submit()
    bench.wait_for_days(4)
    bench.until(lambda: set(topics.sunk()) == {row.release_id for row in bench.rows()}, "the sink has the record")
    bench.cluster.cancel(bench.job)
    assert bench.counts() == truth(frame, range(4), bench.keys)
    assert before.items() <= bench.on_record().items()
