"""A live job whose Prism is killed ends, and is begun again by its supervisor."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from ..examined import Tally, every
from .live_bench import DAY, Bench, Running, day_of, readings, truth
from .processes import alive, descendants


def prisms_of(job: Running) -> list[int]:
    """The processes of Prism that a job started and that run."""

    def is_prism(pid: int) -> bool:
        try:
            return b"prism" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
        except (FileNotFoundError, ProcessLookupError):
            return False

    return [pid for pid in descendants(job.process.pid) if alive(pid) and is_prism(pid)]


def kill_prism(bench: Bench, job: Running) -> int:
    """Kill the one Prism of a job."""
    (pid,) = bench.until(lambda: prisms_of(job), "Prism runs")
    os.kill(pid, signal.SIGKILL)
    return pid


def test_a_job_whose_prism_is_killed_in_the_middle_twice_publishes_every_window_once(
    bench: Bench, tally: Tally
) -> None:
    bench.settings(windows={"size": "1d", "start": "2013-01-01", "stop": "2013-01-11"})
    frame = readings(10.5, seed=21)
    job = bench.start(supervised=True)
    killed, published = list[int](), dict[str, str]()
    for last, least in ((4, 1), (8, 5)):
        for day in range(last - 4, last):
            bench.put(f"{day:02}.jsonl", day_of(frame, day))
        # in the middle of it: as soon as a row of the last windows to come is there
        bench.wait_for_some(least)
        published = bench.on_record()
        killed.append(kill_prism(bench, job))
        bench.until(lambda: [pid for pid in prisms_of(job) if pid not in killed], "another Prism runs")
    for day in (8, 9, 10):
        bench.put(f"{day:02}.jsonl", day_of(frame, day))
    assert job.wait() == 0, job.err.read_text(encoding="utf-8")
    assert bench.counts() == truth(frame, range(10))
    tally.take(bench.check(every(DAY, DAY, 10 * DAY), earlier=published))
    assert [one["kind"] for one in job.said].count("start") == 3
    failed = job.err.read_text(encoding="utf-8").splitlines()
    # whichever of its signs is seen first
    assert len(failed) == 2
    assert all("the runner" in text or "worker" in text for text in failed), failed
