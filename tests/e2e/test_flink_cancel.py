"""Live jobs whose commands know the REST address of their Flink cluster: nothing of them is left there at the end."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .flink import FlinkCluster
from .flink_bench import ENDED, FlinkBench, FlinkRunning
from .live_bench import Running, day_of, readings, truth
from .live_contract import LIVE


@pytest.fixture
def bench(flink_cluster: FlinkCluster, postgres_url: str, tmp_path: Path) -> Iterator[FlinkBench]:
    """An empty place for jobs."""
    made = FlinkBench(tmp_path / "job", flink_cluster, postgres_url)
    made.live = LIVE
    yield made
    made.close()


def ended_of(job: Running) -> str:
    """The id of the job that a command says is over."""
    said = [one["text"] for one in job.said if one["kind"] == "stop"]
    found = re.search(r"its job ([0-9a-f]{32}) in the Flink cluster at \S+ is over \(CANCELED\)", "\n".join(said))
    assert found is not None, (job.said, job.err.read_text(encoding="utf-8"))
    return found[1]


def test_ctrl_c_and_the_end_of_a_schedule_cancel_only_the_commands_own_job(
    bench: FlinkBench,
) -> None:
    """Two commands give their jobs the same name."""
    other = FlinkBench(bench.folder.with_name("other"), bench.cluster, bench.server)
    bench.others.append(other)
    bench.common = other.common = f"both-{time.time_ns()}"
    frame = readings(4.5, seed=61)
    for one in (bench, other):
        one.live = LIVE
        one.settings()
        for day in range(3):
            one.put(f"{day}.jsonl", day_of(frame, day))
    # one after the other: a submission takes a while, and either has its time
    first = bench.start()
    bench.wait_for(2)
    second = other.start()
    other.wait_for(2)
    assert isinstance(first, FlinkRunning)
    jobs = {job["jid"] for job in first.submitted}
    assert len(jobs) == 2
    os.killpg(first.process.pid, signal.SIGINT)
    assert first.wait() == 130, first.err.read_text(encoding="utf-8")
    assert first.err.read_text(encoding="utf-8") == ""
    cancelled = ended_of(first)
    assert first.state_of(cancelled) == "CANCELED"
    (left,) = jobs - {cancelled}
    assert first.state_of(left) == "RUNNING"
    # the other command's schedule comes to its end
    for day in (3, 4):
        other.put(f"{day}.jsonl", day_of(frame, day))
    assert second.wait() == 0, second.err.read_text(encoding="utf-8")
    assert first.state_of(left) in ENDED, second.said
    if first.state_of(left) == "CANCELED":
        assert ended_of(second) == left
    assert other.counts() == truth(frame, range(4))
    other.check()
    # and what was stopped goes on
    for day in (3, 4):
        bench.put(f"{day}.jsonl", day_of(frame, day))
    again = bench.run()
    assert again.process.returncode == 0, again.err.read_text(encoding="utf-8")
    assert bench.stopped(again)
    assert bench.counts() == truth(frame, range(4))
    bench.check()


def test_a_job_whose_workers_would_fail_for_ever_is_cancelled_and_its_code_is_the_commands(bench: FlinkBench) -> None:
    bench.settings()
    frame = readings(4.5, seed=62)
    for day in range(3):
        bench.put(f"{day}.jsonl", day_of(frame, day))
    job = bench.start()
    bench.wait_for(2)
    assert isinstance(job, FlinkRunning)
    (bench.folder / "final").touch()
    assert job.process.wait(timeout=120) == 4, job.err.read_text(encoding="utf-8")
    assert "damaged, as the test says. Flink would begin its workers again for ever" in job.err.read_text()
    assert {one["state"] for one in job.submitted} == {"CANCELED"}
