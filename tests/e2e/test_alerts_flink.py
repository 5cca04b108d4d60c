"""Each alert of a job on Flink at a real Prometheus: silent while all is well, and firing in its fault.

The cluster is as it is shipped. As beside it (``test_alerts.py``), an hour of the rules takes a good minute here, and
so a checkpoint is made every two seconds and not every ten.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from . import flink
from .conftest import missing
from .flink import FlinkPrograms, workers_of
from .flink_bench import FlinkBench
from .installed import installed
from .kafka import KafkaBroker
from .kafka_topics import TopicBench
from .live_bench import NAMES
from .processes import Processes, stopped
from .prometheus import Prometheus
from .test_alerts import SECONDS, Homes, page, present, schedule_now, serve_ledger
from .test_flink_deployment import ShippedCluster, configuration

__all__ = ["page"]

#: Seconds of an hour of the rules.
HOUR = 75.0

SHIPPED = "--checkpointing_interval=10000"
OFTEN = "--checkpointing_interval=2000"


def until(true: Callable[[], Any], what: str, seconds: float = 300.0) -> None:
    """Wait until something is true; the bench would take what stands still here for a runner that is lost."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.5)


class QuickCluster(ShippedCluster):
    """The shipped cluster, with checkpoints that are as much more frequent as the rules are quicker."""

    def arguments(self, name: str, savepoint: str | None = None) -> list[str]:
        words = super().arguments(name, savepoint)
        assert SHIPPED in words
        return [OFTEN if word == SHIPPED else word for word in words]

    def still_workers(self) -> AbstractContextManager[None]:
        """All workers stand still meanwhile."""
        return stopped(workers_of(self.pid("pool")))


def restarts(prometheus: Prometheus) -> float:
    """How often Flink has begun the job again."""
    return sum(prometheus.values("flink_jobmanager_job_numRestarts"))


@pytest.fixture
def cluster(flink_programs: FlinkPrograms, monkeypatch: pytest.MonkeyPatch) -> Iterator[QuickCluster]:
    if not installed("reporter").folder.is_dir():
        missing("Flink's reporter is not there (run `.ci/servers.sh flink`)")
    monkeypatch.setattr(flink, "CONFIGURATION", configuration())
    started = QuickCluster(flink_programs)
    yield started
    started.close()


@pytest.fixture
def bench(cluster: QuickCluster, postgres_url: str, tmp_path: Path) -> Iterator[FlinkBench]:
    made = FlinkBench(tmp_path / "job", cluster, postgres_url)
    yield made
    made.close()


def test_alerts_on_flink_fire_for_each_fault_and_not_in_a_healthy_hour(
    bench: FlinkBench, cluster: QuickCluster, prometheus_program: Path, page: tuple[Processes, int]
) -> None:
    present(bench, idle=None, poll="1s")
    bench.submit()
    homes = Homes(bench)
    prometheus: Prometheus | None = None
    try:
        until(lambda: bench.windows() > 0, "a window is on record")
        places = {"flink": cluster.reporters, "ledger": [serve_ledger(page, bench)]}
        prometheus = asked = Prometheus(prometheus_program, places, hour=HOUR)

        def fires(*names: str) -> None:
            until(lambda: set(names) <= asked.fired(900), f"{names} fire")

        prometheus.start()
        until(lambda: asked.up() and not asked.wrong_rules(), "every rule is evaluated")
        windows, begun = bench.windows(), time.monotonic()
        until(lambda: time.monotonic() - begun > 1.2 * HOUR, "an hour has passed")
        assert prometheus.fired(900) == set()
        assert bench.windows() > windows + 3
        # of seven readings one is no number, and one is of the last minute
        homes.wrong = homes.late = 1
        fires("QuiltstreamRejects", "QuiltstreamLateReadings")
        homes.wrong = homes.late = 0
        # a batch is lost on its way, and its window is never complete
        quiet = ("QuiltstreamNoReadings", "QuiltstreamWindowOverdue", "QuiltstreamBlocksIncomplete")
        assert prometheus.fired(900).isdisjoint(quiet)
        (bench.folder / "lose").touch()
        fires("QuiltstreamBlocksIncomplete")
        # nothing is sent
        homes.paused = True
        fires("QuiltstreamNoReadings")
        fires("QuiltstreamWatermarkStalled", "QuiltstreamWindowOverdue")
        homes.paused = False
        # the workers stand still
        quiet = ("QuiltstreamNoLook", "QuiltstreamNoCheckpoint", "QuiltstreamJobRestarts")
        assert prometheus.fired(900).isdisjoint(quiet)
        with cluster.still_workers():
            fires("QuiltstreamNoLook", "QuiltstreamNoCheckpoint")
        # they end again and again
        assert "QuiltstreamJobRestarts" not in prometheus.fired(900)
        for number in range(1, 6):
            until(lambda: cluster.set_up(bench.job) and cluster.kill_workers(), "workers run, and are killed")
            until(lambda number=number: restarts(asked) >= number, "Flink has begun the job again")
        fires("QuiltstreamJobRestarts")
        until(lambda: cluster.set_up(bench.job) and cluster.workers(), "it has workers again")
        # one more job than is meant, and then none
        first = bench.job
        bench.submit()
        fires("QuiltstreamTwoJobs")
        assert "QuiltstreamNoJob" not in prometheus.fired(900)
        for job in (first, bench.job):
            cluster.cancel(job)
        fires("QuiltstreamNoJob")
        assert prometheus.wrong_rules() == {}
    finally:
        homes.close()
        if prometheus is not None:
            prometheus.close()


def test_an_alert_fires_for_a_silent_partition_on_flink(
    kafka: KafkaBroker, bench: FlinkBench, cluster: QuickCluster, prometheus_program: Path
) -> None:
    topics = TopicBench(kafka, bench, 2)
    topics.settings(**schedule_now(), live={"poll": "1s", "idle": "20s"})
    bench.submit()
    prometheus = Prometheus(prometheus_program, {"flink": cluster.reporters}, hour=HOUR)

    def until_sent(partitions: Sequence[int], true: Callable[[], Any], what: str) -> None:
        """Wait while some of the partitions get readings of now."""

        def sent() -> Any:
            now = int(time.time()) * SECONDS
            rows = [json.dumps({"series": name, "time": now, "value": 100.0}).encode() for name in NAMES]
            placed = [(number % 2, row) for number, row in enumerate(rows)]
            kafka.send(topics.source, [one for one in placed if one[0] in partitions])
            return true()

        until(sent, what)

    try:
        prometheus.start()
        until_sent((0, 1), lambda: prometheus.up() and not prometheus.wrong_rules(), "every rule is evaluated")
        until_sent((0, 1), lambda: bench.windows() > 3, "windows are on record")
        assert prometheus.fired(900) == set()
        until_sent((0,), lambda: "QuiltstreamSourceLeftOut" in prometheus.fired(900), "an alert fires")
    finally:
        prometheus.close()
