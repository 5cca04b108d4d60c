"""A live job on a real Flink cluster, topic in and topic out: several lanes, and a TaskManager that is killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .flink import FlinkCluster
from .flink_bench import FlinkBench
from .kafka_topics import TopicBench, as_it_comes
from .live_bench import HOUR, NAMES, ORIGIN, readings

DAYS = 6


@pytest.fixture
def bench(flink_cluster: FlinkCluster, postgres_url: str, tmp_path: Path) -> Iterator[FlinkBench]:
    made = FlinkBench(tmp_path / "job", flink_cluster, postgres_url)
    made.from_ledger = True
    yield made
    made.close()


def test_a_killed_taskmanager_loses_no_row_of_topics_read_by_partition_groups(kafka, bench):
    """The bench begins the job once more, from the ledger alone, where Flink loses what the source handed back."""
    topics = TopicBench(kafka, bench, 3)
    windows = {"size": "1d", "start": "2013-01-01", "stop": f"2013-01-{DAYS + 1:02}", "lateness": "6h"}
    topics.settings({"lanes": 2}, windows=windows, live={"poll": "200ms"})
    frame = readings(DAYS + 0.5, seed=42)
    arriving = as_it_comes(frame, 6 * HOUR, seed=43)
    day = (arriving["time"] - ORIGIN) // (24 * HOUR)
    third = int((day < 2).sum())
    bench.submit()
    topics.send(arriving[:third], lambda name: NAMES.index(name) % 3)
    bench.wait_for_days(1)
    before = bench.on_record()
    bench.wait_for_checkpoint()
    bench.cluster.kill_taskmanager()
    topics.send(arriving[third:], lambda name: NAMES.index(name) % 3)
    bench.cluster.start_taskmanager()
    bench.wait_for_days(DAYS)
    bench.until(lambda: set(topics.sunk()) == set(bench.on_record()), "the topic has what is on record")
    topics.check(frame, DAYS)
    assert before.items() <= bench.on_record().items()
    print("begun anew:", bench.retries)  # noqa: T201 - a symptom of the runner's, not a failure
