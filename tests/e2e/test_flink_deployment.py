"""What `deploy/flink` starts in containers, started as processes: its options, its configuration of Flink.

What the alert rules go by is scraped from Flink's own reporter, and changed as `deploy/prometheus` changes it.

Beam's classes are brought along by the job, as there, and are not on the cluster's own path as in the other tests.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..deploy.flink_files import flink_properties, options_of, services
from ..deploy.prometheus_files import FLINKS, counter, names_in_rules
from . import flink
from .conftest import missing
from .flink import FlinkCluster, FlinkPrograms
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


class ShippedCluster(FlinkCluster):
    """A cluster as the compose file makes it."""

    brings_beam = True

    #: Of the last job, as it was given.
    name = ""

    def __init__(self, programs: FlinkPrograms) -> None:
        self._reporters: dict[str, int] = dict(zip(SERVICES, free_ports(len(SERVICES)), strict=True))
        super().__init__(programs)

    def arguments(self, name: str) -> list[str]:
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
        return [f"{key}={value}" if value else key for key, value in options.items()]

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


def wanted() -> set[str]:
    """The metrics of rules and panels that come from Flink."""
    found = {one for one in names_in_rules() if one.startswith("flink_") or one == "quiltstream_rejected"}
    return (found | FLINKS) - NEVER


def check_metrics(cluster: ShippedCluster, prometheus: Prometheus) -> None:
    """The alert rules' metrics are named as the rules name them, have the labels that they use, and say what is so."""
    assert prometheus.values("flink_jobmanager_numRunningJobs") == [1.0]
    assert prometheus.values("flink_jobmanager_numRegisteredTaskManagers") == [1.0]
    for name in (counter("decoded-readings"), counter("polls"), 'quiltstream_rejected{reason="late"}'):
        assert prometheus.values(f"sum({name}) > 0"), name
    watermark = "flink_taskmanager_job_task_operator_currentInputWatermark"
    assert len(prometheus.values(f'{watermark}{{operator_name="Publish_Collect_GroupByKey"}}')) == 1
    # the mark that the command puts at the end of the job's name is taken off, and the attempt's labels are
    of_job = '{__name__=~"(flink_taskmanager_job|quiltstream)_.*"'
    mine = re.sub(r"\W", "_", cluster.name)
    assert prometheus.values(f'count({of_job},job_name="{mine}"}})')
    assert prometheus.values(f'count({of_job},job_name!="{mine}"}})') == []
    assert prometheus.values(f'count({of_job},task_attempt_id!=""}})') == []


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
    prometheus.start()
    bench.until(lambda: all(map(prometheus.values, wanted())), "Flink reports what the alert rules go by")
    bench.until(lambda: prometheus.values('sum(quiltstream_rejected{reason="late"}) > 0'), "late readings are a metric")
    check_metrics(cluster, prometheus)
    # every rule can be evaluated on that, and none fires
    bench.until(lambda: prometheus.up() and not prometheus.wrong_rules(), "every rule is evaluated")
    assert prometheus.alerts("firing") == set()
    # the workers
    assert cluster.kill_workers() >= 1
    bench.put("2.jsonl", part(frame, 3.5, 5.5))
    bench.wait_for_days(5)
    # the TaskManager: the watchdog says so within a minute, on the log and as a metric
    assert NOBODY not in cluster.said()
    cluster.kill_taskmanager()
    begun = time.monotonic()
    try:
        bench.until(lambda: NOBODY in cluster.said(), "the command says that no TaskManager is left")
        gone = "flink_jobmanager_numRegisteredTaskManagers == 0"
        bench.until(lambda: prometheus.values(gone), "and so does Flink")
        assert time.monotonic() - begun <= MINUTE
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
