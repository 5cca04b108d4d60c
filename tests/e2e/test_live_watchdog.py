"""A live job on Prism of which something stands still: the watchdog says so, on the log and as a metric.

A process that is stopped (SIGSTOP) is the hardest to notice: its connections stay, and nothing of it fails.
"""

from __future__ import annotations

import os
import re
import sys
import time
import urllib.request
from collections.abc import Iterator

import pytest

from quiltstream.transforms.kafka.client import Cluster
from quiltstream.transforms.kafka.source import KafkaPartitions
from quiltstream.transforms.sources.contract import BEGIN

from ..transforms.kafka.contract import read, settle
from ..transforms.kafka.messages import JsonMessages, reading
from .flink import POOL, workers_of
from .kafka import KafkaBroker
from .live_bench import HERE, Bench, Running, day_of, readings, truth
from .processes import Processes, accepts, alive, free_ports, stopped
from .test_live_restart import prisms_of

#: The promise, in seconds.
MINUTE = 60.0


def start_pool(processes: Processes, port: int) -> None:
    """Start what starts workers, where Prism asks for them."""
    known = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    processes.start("pool", [sys.executable, str(POOL), str(port)], os.environ | {"PYTHONPATH": known})
    processes.wait_for("pool", "listening", lambda: accepts(port), 60)


@pytest.fixture
def pool() -> Iterator[tuple[Processes, int]]:
    """Beam's Python workers as processes of their own, and the port where Prism asks for them."""
    processes, (port,) = Processes("workers"), free_ports(1)
    try:
        start_pool(processes, port)
        yield processes, port
    finally:
        processes.close()


def texts(job: Running, kind: str) -> list[str]:
    """What a job said of a kind."""
    return [one["text"] for one in job.said if one["kind"] == kind]


def page_of(job: Running) -> dict[str, float]:
    """The job's page of metrics: causes by name, all else by the name of the metric."""
    (text,) = texts(job, "metrics")
    (place,) = re.findall(r"127\.0\.0\.1:\d+/metrics", text)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{place}", timeout=10) as answer:
        lines = [line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {re.sub(r'^quiltstream_live_(trouble\{cause="(.+)"\}|)', r"\2", name): float(n) for name, n in lines}


def stall(bench: Bench, job: Running, still: list[int], cause: str, said: str, well: str) -> None:
    """Stop processes: log and page name the cause within a minute, and until the processes go on.

    Args:
        bench: the job's.
        job: what they work for.
        still: the processes.
        cause: the name of the metric.
        said: how the line on the log begins.
        well: the line when it is over.
    """
    published = bench.on_record()
    assert (page_of(job)[cause], page_of(job)["running"]) == (0, 1)
    begun = time.monotonic()
    with stopped(still):
        bench.until(lambda: any(text.startswith(said) for text in texts(job, "warning")), "the watchdog says so")
        bench.until(lambda: page_of(job)[cause] == 1, "the metric says so")
        sys.stdout.write(f"{cause}: told after {time.monotonic() - begun:.1f} s\n")
        assert time.monotonic() - begun <= MINUTE
        assert bench.on_record() == published
        assert job.process.poll() is None
        assert well not in texts(job, "resumed")
    bench.until(lambda: well in texts(job, "resumed"), "the watchdog says that it is over")
    assert page_of(job)[cause] == 0


def test_stopped_or_killed_workers_are_told_within_a_minute_and_the_job_completes(
    bench: Bench, pool: tuple[Processes, int]
) -> None:
    """Prism fails the job where a bundle is lost with them, else it waits for their pool; both are reported."""
    processes, port = pool
    bench.options = [one for one in bench.options if not one.startswith("--environment_type")]
    bench.options += ["--environment_type=EXTERNAL", f"--environment_config=localhost:{port}"]
    bench.settings(live={"poll": "20s", "restarts": 20, "metrics_port": 0})
    frame = readings(4.5, seed=32)
    for day in range(2):
        bench.put(f"{day}.jsonl", day_of(frame, day))
    job = bench.start()
    bench.wait_for(1)
    workers = bench.until(lambda: workers_of(processes.pid("pool")), "a worker runs")
    stall(
        bench, job, workers, "no-worker", "no worker has looked at the source for", "workers look at the source again"
    )
    bench.put("2.jsonl", day_of(frame, 2))
    bench.wait_for(2)
    published = bench.on_record()
    assert not texts(job, "restart")
    verdicts = ("no-worker", "pool-away", "job-failed")
    assert [page_of(job)[cause] for cause in verdicts] == [0, 0, 0]
    warned = len(texts(job, "warning"))
    begun = time.monotonic()
    processes.kill("pool")
    # they end with their parent, by a signal of the kernel's that comes a moment after
    bench.until(lambda: not any(alive(pid) for pid in workers), "the workers have ended with their pool")
    for day in (3, 4):
        bench.put(f"{day}.jsonl", day_of(frame, day))

    def told() -> bool:
        causes = ("no worker has looked at the source for", "the worker pool at ")
        return any(text.startswith(causes) for text in texts(job, "warning")[warned:]) or texts(job, "restart") != []

    bench.until(told, "the watchdog says so")
    bench.until(lambda: any(page_of(job)[cause] for cause in verdicts), "the metric says so")
    assert time.monotonic() - begun <= MINUTE
    assert bench.on_record() == published
    assert job.process.poll() is None
    # the way out that the line names: the workers, then the job
    job.kill()
    start_pool(processes, port)
    again = bench.run()
    assert again.process.returncode == 0, again.err.read_text(encoding="utf-8")
    assert bench.counts() == truth(frame, range(4))
    bench.check(earlier=published)


def test_a_stopped_runner_and_a_missing_folder_are_reported_between_two_polls(bench: Bench) -> None:
    """One look is two minutes: what it would tell is asked between two of them."""
    bench.settings(live={"poll": "2min", "restarts": 0, "metrics_port": 0})
    frame = readings(4.5, seed=33)
    for day in range(3):
        bench.put(f"{day}.jsonl", day_of(frame, day))
    job = bench.start()
    bench.wait_for(2)
    published = bench.on_record()
    # the look that found nothing more is over, and the next one is far off
    time.sleep(3)
    prisms = bench.until(lambda: prisms_of(job), "Prism runs")
    stall(bench, job, prisms, "runner-away", "the runner has not answered for", "the runner answers again")
    assert page_of(job)["source-away"] == 0
    inbox, away = bench.folder / "inbox", bench.folder / "elsewhere"
    inbox.rename(away)
    begun = time.monotonic()
    said = f"the source cannot be read: the folder {inbox} is not there. Its windows wait; it is tried again"
    bench.until(lambda: said in texts(job, "warning"), "the watchdog says so")
    bench.until(lambda: page_of(job)["source-away"] == 1, "the metric says so")
    told = time.monotonic() - begun
    away.rename(inbox)
    bench.put("3.jsonl", day_of(frame, 3))
    bench.until(lambda: "the source can be read again" in texts(job, "resumed"), "the watchdog says that it is over")
    over = time.monotonic() - begun - told
    sys.stdout.write(f"folder: away is told after {told:.1f} s, and back after {over:.1f} s\n")
    assert max(told, over) <= MINUTE
    assert page_of(job)["source-away"] == 0
    # what came meanwhile was read with the look that found the folder again
    bench.wait_for(3)
    bench.put("4.jsonl", day_of(frame, 4))
    inbox.rename(away)
    bench.until(lambda: page_of(job)["source-away"] == 1, "the metric says it again")
    away.rename(inbox)
    assert job.wait() == 0, job.err.read_text(encoding="utf-8")
    assert bench.counts() == truth(frame, range(4))
    bench.check(earlier=published)
    assert job.summary["restarts"] == 0


def test_a_lost_or_hanging_broker_is_detected_between_polls_without_reading(
    kafka: KafkaBroker,
) -> None:
    topic = kafka.topic(2)
    reader = KafkaPartitions(Cluster(kafka.servers), (topic,), JsonMessages()).reader(0, BEGIN)
    settle(reader)
    kafka.send(topic, [(0, reading("a", 0)), (1, reading("b", 0))])
    assert all(reader.check() for _ in range(5))
    for take_away, bring_back in ((kafka.hang, kafka.go_on), (kafka.kill, kafka.start)):
        take_away()
        begun = time.monotonic()
        try:
            assert not reader.check()
            # whoever reads beside it waits no longer than that
            assert time.monotonic() - begun < MINUTE / 4
        finally:
            bring_back()
        until = time.monotonic() + MINUTE
        while not reader.check():
            assert time.monotonic() < until, "the broker is back"
            time.sleep(0.2)
    assert sorted(read(reader, 2)) == ["a", "b"]
    reader.close()
