"""A live job on Prism of which something stands still: its page of metrics says so.

A process that is stopped (SIGSTOP) is the hardest to notice: its connections stay, and nothing of it fails.
"""

from __future__ import annotations

import re
import time
import urllib.request

from .live_bench import Bench, Running, day_of, readings, truth
from .processes import stopped
from .test_live_restart import prisms_of

#: The promise, in seconds.
MINUTE = 60.0


def texts(job: Running, kind: str) -> list[str]:
    """What a job said of a kind."""
    return [one["text"] for one in job.said if one["kind"] == kind]


def page_of(job: Running) -> dict[str, float]:
    """The job's page of metrics: causes by name, all else by the name of the metric."""
    (place,) = re.findall(r"127\.0\.0\.1:\d+/metrics", texts(job, "metrics")[0])
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{place}", timeout=10) as answer:
        lines = [line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {re.sub(r'^quiltstream_live_(trouble\{cause="(.+)"\}|)', r"\2", name): float(n) for name, n in lines}


def test_a_stopped_runner_and_a_missing_folder_are_told_between_two_polls(bench: Bench) -> None:
    """One look is two minutes: what it would tell is asked between two of them."""
    bench.settings(live={"poll": "2min", "metrics_port": 0})
    frame = readings(4.5, seed=33)
    for day in range(3):
        bench.put(f"{day}.jsonl", day_of(frame, day))
    job = bench.start()
    bench.wait_for(2)
    published = bench.on_record()

    def becomes(cause: str, value: int) -> None:
        begun = time.monotonic()
        bench.until(lambda: page_of(job)[cause] == value, f"{cause} is {value}")
        assert time.monotonic() - begun <= MINUTE

    # the look that found nothing more is over, and the next one is far off
    time.sleep(3)
    prisms = bench.until(lambda: prisms_of(job), "Prism runs")
    assert page_of(job)["no-worker"] == 0
    with stopped(prisms):
        becomes("no-worker", 1)
        assert bench.on_record() == published
        assert job.process.poll() is None
    becomes("no-worker", 0)
    assert any("the runner has not answered" in text for text in texts(job, "warning"))
    assert page_of(job)["source-away"] == 0
    inbox, away = bench.folder / "inbox", bench.folder / "elsewhere"
    inbox.rename(away)
    becomes("source-away", 1)
    away.rename(inbox)
    bench.put("3.jsonl", day_of(frame, 3))
    becomes("source-away", 0)
    # what came meanwhile was read with the look that found the folder again
    bench.wait_for(3)
    bench.put("4.jsonl", day_of(frame, 4))
    inbox.rename(away)
    becomes("source-away", 1)
    away.rename(inbox)
    assert job.wait() == 0, job.err.read_text(encoding="utf-8")
    assert bench.counts() == truth(frame, range(4))
    bench.check(earlier=published)
