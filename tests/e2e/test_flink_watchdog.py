"""A live job on a Flink cluster that has lost its machines: the watchdog says so, on the log and as a metric.

Beam tells no counters of a job there, and the workers are elsewhere. What tells is that a window is late on record,
and, where the command knows the cluster's REST address, the cluster itself.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .flink import FlinkCluster
from .live_bench import PATIENCE, Bench, RunnerLostError, Running, day_of, readings, truth
from .test_flink_cancel import RestBench
from .test_live_watchdog import MINUTE, page_of

LATE = "nothing was put on record for"
NOBODY = "no TaskManager is left in it; start one"
WELL = ("windows are put on record again", "the job has its TaskManagers again")


@pytest.fixture
def bench(flink_cluster: FlinkCluster, postgres_url: str, tmp_path: Path) -> Iterator[RestBench]:
    """An empty place for jobs."""
    made = RestBench(tmp_path / "job", flink_cluster, postgres_url)
    yield made
    made.close()


def calmly(true: Callable[[], bool], what: str) -> None:
    """Wait until something is true, without a look at the cluster, which cannot be asked now."""
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def whole(bench: RestBench, job: Running) -> Running:
    """Wait until a job has put everything on record; one of which the runner has lost the source is begun anew."""
    try:
        bench.wait_for(4)
    except RunnerLostError as error:
        sys.stdout.write(f"begun anew: {error}\n")
        job.kill()
        job = bench.start()
        bench.wait_for(4)
    return job


def test_a_cluster_without_machines_is_reported_within_a_minute_with_its_cause(
    bench: RestBench,
) -> None:
    """Nothing takes their place; the window whose readings have come is late, and waits."""
    cluster = bench.cluster
    bench.settings(live={"poll": "200ms", "restarts": 0, "metrics_port": 0})
    frame = readings(4.5, seed=71)
    for day in range(3):
        bench.put(f"{day}.jsonl", day_of(frame, day))
    job = bench.start()
    bench.wait_for(2)
    published = bench.on_record()
    bench.until(lambda: not page_of(job)["window-overdue"], "nothing is late")
    assert page_of(job)["taskmanager-away"] == 0
    # while it was set up, or read what was there, a window may have been late already
    before = len(job.said)

    def since(kind: str) -> list[str]:
        """What was said of a kind since all was well."""
        return [one["text"] for one in job.said[before:] if one["kind"] == kind]

    cluster.kill_taskmanager()
    begun = time.monotonic()
    try:
        for day in (3, 4):
            bench.put(f"{day}.jsonl", day_of(frame, day))
        told: dict[str, float] = {}

        def look() -> bool:
            said, page, now = since("warning"), page_of(job), time.monotonic() - begun
            found = {
                "late, on the log": any(text.startswith(LATE) for text in said),
                "late, on the page": page["window-overdue"] == 1,
                "the cause, on the log": any(NOBODY in text for text in said),
                "the cause, on the page": page["taskmanager-away"] == 1,
            }
            for name, true in found.items():
                if true:
                    told.setdefault(name, now)
            return len(told) == len(found)

        bench.until(look, "the watchdog says that a window is late, and why")
        sys.stdout.write("".join(f"{name}: after {at:.1f} s\n" for name, at in told.items()))
        assert max(told.values()) <= MINUTE
        assert bench.on_record() == published
        assert job.process.poll() is None
        assert not set(WELL) & set(since("resumed"))
    finally:
        cluster.start_taskmanager()
    after = whole(bench, job)
    if after is job:
        bench.until(lambda: set(WELL) <= set(since("resumed")), "the watchdog says that it is over")
    bench.until(lambda: Bench.stopped(bench, after), "the command ends with its schedule")
    assert after.process.returncode == 0, after.err.read_text(encoding="utf-8")
    bench.until(bench.sink_whole, "the sink has what is on record")
    assert bench.counts() == truth(frame, range(4))
    bench.check(earlier=published)


def test_a_dead_worker_pool_and_jobmanager_are_named_soon_and_waited_for(bench: RestBench) -> None:
    """Flink begins the job again and again without its pool, and has lost it after the JobManager's end."""
    cluster = bench.cluster
    bench.settings(live={"poll": "200ms", "restarts": 0, "metrics_port": 0})
    frame = readings(4.5, seed=72)
    for day in range(3):
        bench.put(f"{day}.jsonl", day_of(frame, day))
    job = bench.start()
    bench.wait_for(2)
    published = bench.on_record()

    def told(kind: str, what: str) -> bool:
        return any(what in one["text"] for one in job.said if one["kind"] == kind)

    cluster.kill_pool()
    begun = time.monotonic()
    bench.until(lambda: told("warning", "the worker pool at"), "the worker pool is named")
    assert time.monotonic() - begun <= MINUTE
    assert page_of(job)["pool-away"] == 1
    cluster.start_pool()
    bench.until(lambda: told("resumed", "the worker pool takes connections again"), "it is back")
    cluster.kill_jobmanager()
    begun = time.monotonic()
    calmly(lambda: page_of(job)["runner-away"] == 1, "the JobManager is named")
    assert time.monotonic() - begun <= MINUTE
    calmly(lambda: told("warning", "the JobManager of") or told("waiting", "does not answer"), "the line names it")
    assert job.process.poll() is None, job.err.read_text(encoding="utf-8")
    cluster.start_jobmanager()
    calmly(lambda: told("resumed", "the runner answers again"), "it is back")
    for day in (3, 4):
        bench.put(f"{day}.jsonl", day_of(frame, day))
    after = whole(bench, job)
    bench.until(lambda: Bench.stopped(bench, after), "the command ends with its schedule")
    assert after.process.returncode == 0, after.err.read_text(encoding="utf-8")
    assert "restart" not in {one["kind"] for one in job.said}
    bench.until(bench.sink_whole, "the sink has what is on record")
    assert bench.counts() == truth(frame, range(4))
    bench.check(earlier=published)
