"""Each alert of a job on Flink at a real Prometheus: silent while all is well, and firing in its fault.

The cluster is as it is shipped. As beside it (``test_alerts.py``), an hour of the rules takes a good minute here, and
so a checkpoint is made every two seconds and not every ten.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from . import flink
from .conftest import missing
from .flink import FlinkPrograms
from .flink_bench import FlinkBench
from .installed import installed
from .processes import Processes
from .prometheus import Prometheus
from .test_alerts import Homes, page, present, serve_ledger
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
        fires("QuiltstreamRejects")
        homes.wrong = homes.late = 0
        # nothing is sent
        assert "QuiltstreamWindowOverdue" not in prometheus.fired(900)
        homes.paused = True
        fires("QuiltstreamWindowOverdue")
        homes.paused = False
        # they end again and again
        assert "QuiltstreamJobRestarts" not in prometheus.fired(900)
        for number in range(1, 6):
            until(lambda: cluster.set_up(bench.job) and cluster.kill_workers(), "workers run, and are killed")
            until(lambda number=number: restarts(asked) >= number, "Flink has begun the job again")
        fires("QuiltstreamJobRestarts")
        until(lambda: cluster.set_up(bench.job) and cluster.workers(), "it has workers again")
        # and there is none
        assert "QuiltstreamJobAway" not in prometheus.fired(900)
        cluster.cancel(bench.job)
        fires("QuiltstreamJobAway")
        assert prometheus.wrong_rules() == {}
    finally:
        homes.close()
        if prometheus is not None:
            prometheus.close()
