"""A live job whose Prism is killed goes on by itself."""

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
    job = bench.start()
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
    assert job.err.read_text(encoding="utf-8") == ""
    assert bench.counts() == truth(frame, range(10))
    tally.take(bench.check(every(DAY, DAY, 10 * DAY), earlier=published))
    assert job.summary["restarts"] == 2
    assert job.summary["windows_published"] == 10
    restarts = [one["text"] for one in job.said if one["kind"] == "restart"]
    assert [text.partition(";")[2] for text in restarts] == [
        " begun again in 2 s, number 1 of this run",
        " begun again in 4 s, number 2 of this run",
    ]
    # whichever of its signs is seen first
    assert all("the runner" in text or "worker" in text for text in restarts), restarts


def test_a_job_over_standard_input_reports_that_it_cannot_be_restarted(bench: Bench) -> None:
    bench.settings(source={"stdin": "jsonl"})
    out, into = os.pipe()
    with os.fdopen(out, "rb") as reading, os.fdopen(into, "wb"):
        job = bench.start(stdin=reading.fileno())
        bench.until(lambda: "start" in {one["kind"] for one in job.said}, "the job runs")
        kill_prism(bench, job)
        assert job.wait() == 1
    assert "standard input cannot be read again: send what is missing" in job.err.read_text(encoding="utf-8")
    assert "restart" not in {one["kind"] for one in job.said}
