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
from .test_alerts import Homes, page, present, program, serve_ledger
from .test_flink_deployment import ShippedCluster, configuration

__all__ = ["page", "program"]

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


@pytest.mark.assures(
    "deployments",
    "An hour of a live job that is well fires no alert at a real Prometheus, and each fault fires its own",
)
def test_an_hour_on_flink_that_is_well_is_silent_and_each_fault_is_told(
    bench: FlinkBench, cluster: QuickCluster, program: Path, page: tuple[Processes, int]
) -> None:
    present(bench, idle=None, poll="1s")
    bench.submit()
    homes = Homes(bench)
    prometheus: Prometheus | None = None
    try:
        until(lambda: bench.windows() > 0, "a window is on record")
        places = {"flink": cluster.reporters, "ledger": [serve_ledger(page, bench)]}
        prometheus = asked = Prometheus(program, places, hour=HOUR)

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
        # nothing is sent
        assert not {"QuiltstreamNoReadings", "QuiltstreamWindowOverdue"} & prometheus.fired(900)
        homes.paused = True
        fires("QuiltstreamNoReadings")
        fires("QuiltstreamWatermarkStalled", "QuiltstreamWindowOverdue")
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
