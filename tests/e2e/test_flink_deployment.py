"""What `deploy/flink` starts in containers, started as processes: its options, its configuration of Flink.

What the alert rules go by is scraped from Flink's own reporter, and changed as `deploy/prometheus` changes it.

Beam's classes are brought along by the job, as there, and are not on the cluster's own path as in the other tests.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ..deploy.flink_files import flink_properties, options_of, services
from ..deploy.prometheus_files import FLINKS, counter, names_in_rules, relabelled, steps_for_flink
from . import flink
from .conftest import missing
from .flink import DIRECT, FlinkCluster, FlinkPrograms
from .flink_bench import FlinkBench
from .installed import installed
from .live_bench import readings, truth
from .processes import free_ports
from .prometheus import Prometheus
from .test_live_flink import part
from .test_live_watchdog import MINUTE

#: Of the shipped configuration, hosts, ports, paths and memory are the test's own.
OWN = ("jobmanager.", "rest.", "taskmanager.bind", "taskmanager.memory.", "state.", "metrics.reporter.prometheus.port")

#: What the command says when no TaskManager is left.
NOBODY = "no TaskManager is left in it; start one"

#: Where Flink's reporter is.
SERVICES = ("jobmanager", "taskmanager")

#: What rules go by that a job which is well never counts; the names are made as those of the others are.
NEVER = {counter("blocks-incomplete"), counter("sources-left-out")}


def configuration() -> str:
    """The tests' configuration of Flink, with the shipped one in its place wherever that says something."""
    shipped = {name: value for name, value in flink_properties().items() if not name.startswith(OWN)}
    kept = [
        line
        for line in flink.CONFIGURATION.splitlines()
        if line.split(":")[0] not in {*shipped, "classloader.resolve-order"}
    ]
    return "\n".join([*kept, *(f"{name}: {value}" for name, value in shipped.items()), ""])


class Sample(NamedTuple):
    """A metric as Prometheus keeps it."""

    name: str
    labels: dict[str, str]
    value: float


class ShippedCluster(FlinkCluster):
    """A cluster as the compose file makes it."""

    brings_beam = True

    #: Of the last job, as it was given.
    name = ""

    def __init__(self, programs: FlinkPrograms) -> None:
        self._reporters: dict[str, int] = dict(zip(SERVICES, free_ports(len(SERVICES)), strict=True))
        super().__init__(programs)

    def job_named(self, name: str) -> str | None:
        """The command, which knows the cluster, puts a mark behind the name."""
        mine = re.compile(rf"{re.escape(name)}-[0-9a-f]{{16}}")
        found = [job["jid"] for job in self._get("/jobs/overview")["jobs"] if mine.fullmatch(job["name"])]
        return found[0] if found else None

    def arguments(self, name: str, savepoint: str | None = None) -> list[str]:
        """The options of the service `submit`, but for places."""
        command = services()["submit"]["command"]
        self.name = name
        options = options_of(command[command.index("--") + 1 :]) | {
            "--job_endpoint": f"127.0.0.1:{self._jobs}",
            "--job_name": name,
            "--flink_master": f"127.0.0.1:{self._rest}",
            "--environment_config": f"127.0.0.1:{self._pool}",
            "--state_backend_storage_path": f"file://{self.folder}/checkpoints",
        }
        taken_up = [] if savepoint is None else [f"--savepoint_path={savepoint}"]
        return [*(f"{key}={value}" if value else key for key, value in options.items()), *taken_up]

    def scraped(self, *services: str) -> list[Sample]:
        """What Prometheus keeps of a scrape, by its shipped configuration."""
        found: list[Sample] = []
        for service in services:
            with DIRECT.open(f"http://127.0.0.1:{self._reporters[service]}/metrics", timeout=30) as answer:
                page = answer.read().decode()
            for name, labels, value in re.findall(r"^(\w+)(?:\{(.*)\})? (\S+)$", page, re.MULTILINE):
                told = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels))
                found.append(Sample(*relabelled(name, told, steps_for_flink()), float(value)))
        return found

    @property
    def reporters(self) -> list[str]:
        """Where Flink's reporters are."""
        return [f"127.0.0.1:{port}" for port in self._reporters.values()]

    def said(self) -> str:
        """What the last command printed."""
        return self._processes.log_of(f"submit-{self._submitted}").read_text(encoding="utf-8")

    def stop_command(self) -> int:
        """End the last command as compose and Kubernetes do, with SIGTERM; its exit code."""
        return self._processes.end(f"submit-{self._submitted}")

    def _start_java(self, name: str, memory: object, main: str, *arguments: str) -> None:
        logs = f"-Dlog4j.configurationFile=file:{self._configuration}/log4j.properties"
        # the images of Flink load it as a plugin
        jars = f"{self._programs.jars}/*:{installed('reporter').file('*.jar')}"
        port = f"-Dmetrics.reporter.prometheus.port={self._reporters[name]}"
        path = ["-cp", jars, main, "--configDir", self._configuration, *arguments, port]
        self._processes.start(name, [self._programs.java, *memory, *flink.QUICK, *flink.JAVA, logs, *path])  # type: ignore[misc]


@pytest.fixture
def cluster(flink_programs: FlinkPrograms, monkeypatch: pytest.MonkeyPatch) -> Iterator[ShippedCluster]:
    """A cluster that is started and ended with the test."""
    if not installed("reporter").folder.is_dir():
        missing("Flink's reporter is not there (run `.ci/servers.sh flink`)")
    monkeypatch.setattr(flink, "CONFIGURATION", configuration())
    started = ShippedCluster(flink_programs)
    yield started
    started.close()


@pytest.fixture
def prometheus(cluster: ShippedCluster, prometheus_program: Path) -> Iterator[Prometheus]:
    """A Prometheus that will scrape the cluster, and nothing else: what it is not to scrape it does not miss."""
    made = Prometheus(prometheus_program, {"flink": cluster.reporters})
    yield made
    made.close()


@pytest.fixture
def bench(cluster: ShippedCluster, postgres_url: str, tmp_path: Path) -> Iterator[FlinkBench]:
    """A job of some days over files that arrive."""
    made = FlinkBench(tmp_path / "job", cluster, postgres_url)
    made.from_ledger = True
    made.settings(windows={"size": "1d", "start": "2013-01-01", "stop": "2013-01-09"}, live={"poll": "2s"})
    yield made
    made.close()


def whole(page: list[Sample]) -> bool:
    """Whether there is all that the alert rules go by."""
    return wanted() <= {one.name for one in page}


def wanted() -> set[str]:
    """The metrics of the alert rules that come from Flink."""
    return {one for one in names_in_rules() if one.startswith("flink_") or one == "quiltstream_rejected"} - NEVER


def values(page: list[Sample], name: str, **labels: str) -> list[float]:
    """What a metric is wherever it has these labels."""
    return [one.value for one in page if one.name == name and labels.items() <= one.labels.items()]


def check_metrics(cluster: ShippedCluster, page: list[Sample]) -> None:
    """The alert rules' metrics are named as the rules name them, have the labels that they use, and say what is so."""
    assert whole(page), wanted() - {one.name for one in page}
    assert wanted() >= FLINKS
    assert values(page, "flink_jobmanager_numRunningJobs") == [1.0]
    assert values(page, "flink_jobmanager_numRegisteredTaskManagers") == [1.0]
    assert sum(values(page, counter("decoded-readings"))) > 0
    assert sum(values(page, counter("polls"))) > 0
    assert sum(values(page, "quiltstream_rejected", reason="late")) > 0
    watermark = "flink_taskmanager_job_task_operator_currentInputWatermark"
    assert len(values(page, watermark, operator_name="Publish_Collect_GroupByKey")) == 1
    # the mark that the command puts behind the job's name is taken off, and the attempt's labels are
    of_job = [one.labels for one in page if one.name.startswith(("flink_taskmanager_job_", "quiltstream_"))]
    assert {one["job_name"] for one in of_job} == {re.sub(r"\W", "_", cluster.name)}
    assert not any(name.startswith("task_attempt") for one in of_job for name in one)


def test_a_job_runs_as_it_is_shipped_and_survives_its_workers_and_its_command(
    bench: FlinkBench, cluster: ShippedCluster, prometheus: Prometheus
) -> None:
    frame = readings(7.5, seed=31)
    bench.put("0.jsonl", part(frame, 0, 1.5))
    bench.submit()
    bench.wait_for_days(1)
    bench.put("1.jsonl", part(frame, 1.5, 3.5))
    bench.wait_for_days(3)
    # what the alert rules go by
    bench.put("late.jsonl", part(frame, 0, 0.5))
    bench.until(lambda: whole(cluster.scraped(*SERVICES)), "Flink reports what the alert rules go by")
    check_metrics(cluster, cluster.scraped(*SERVICES))
    # a real Prometheus can evaluate every rule on that, and none fires
    prometheus.start()
    bench.until(lambda: prometheus.up() and not prometheus.wrong_rules(), "every rule is evaluated")
    bench.until(lambda: prometheus.values('sum(quiltstream_rejected{reason="late"}) > 0'), "late readings are a metric")
    assert prometheus.alerts("firing") == set()
    # the workers
    assert cluster.kill_workers() >= 1
    bench.put("2.jsonl", part(frame, 3.5, 5.5))
    bench.wait_for_days(5)
    # the TaskManager: the watchdog says so within a minute, on the log and as a metric
    assert NOBODY not in cluster.said()
    cluster.kill_taskmanager()
    begun, told = time.monotonic(), dict[str, float]()
    try:

        def look() -> bool:
            gone = values(cluster.scraped("jobmanager"), "flink_jobmanager_numRegisteredTaskManagers") == [0.0]
            for name, true in (("on the log", NOBODY in cluster.said()), ("as a metric", gone)):
                if true:
                    told.setdefault(name, time.monotonic() - begun)
            return len(told) == 2

        bench.until(look, "the command and Flink say that no TaskManager is left")
        sys.stdout.write("".join(f"{name}: after {at:.1f} s\n" for name, at in told.items()))
        assert max(told.values()) <= MINUTE
    finally:
        cluster.start_taskmanager()
    # the command: its job goes on
    job = bench.job
    assert cluster.stop_command() == 143
    assert "is left in the Flink cluster at" in cluster.said()
    assert cluster.state(job) == "RUNNING"
    bench.put("3.jsonl", part(frame, 5.5, 7.5))
    bench.wait_for_days(7)
    assert cluster.state(bench.job) == "RUNNING"
    assert bench.counts() == truth(frame, range(7), bench.keys)
