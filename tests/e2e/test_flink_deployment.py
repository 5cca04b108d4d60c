"""What `deploy/flink` starts in containers, started as processes: its pool, its options, its configuration of Flink.

Beam's classes are brought along by the job, as there, and are not on the cluster's own path as in the other tests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..deploy.flink_files import FLINK, flink_properties, options_of, services
from . import flink
from .flink import FlinkCluster, FlinkPrograms
from .flink_bench import FlinkBench
from .live_bench import readings, truth
from .test_live_flink import part

#: Of the shipped configuration, hosts, ports, paths and memory are the test's own; its reporter is not here.
OWN = ("jobmanager.", "rest.", "taskmanager.bind", "taskmanager.memory.", "state.", "metrics.")

#: What the alert rules go by, behind the names of the steps that count it.
WATCHED = {
    "_3__Read__Publish__quiltstream_decoded_readings",
    "_7__Publish__Sink__quiltstream_rows_released",
    "Publish_Collect_GroupByKey_currentInputWatermark",
}


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

    def arguments(self, name: str, savepoint: str | None = None) -> list[str]:
        """The options of the service `submit`, but for places."""
        command = services()["submit"]["command"]
        options = options_of(command[command.index("--") + 1 :]) | {
            "--job_endpoint": f"127.0.0.1:{self._jobs}",
            "--job_name": name,
            "--environment_config": f"127.0.0.1:{self._pool}",
            "--state_backend_storage_path": f"file://{self.folder}/checkpoints",
        }
        taken_up = [] if savepoint is None else [f"--savepoint_path={savepoint}"]
        return [*(f"{key}={value}" if value else key for key, value in options.items()), *taken_up]

    def metrics(self, job: str) -> set[str]:
        """The names of the metrics that the job's steps report, as Prometheus has them: _ for what is no letter.

        Flink puts the number of the subtask before each.
        """
        vertices = [vertex["id"] for vertex in self._get(f"/jobs/{job}")["vertices"]]
        told = {one["id"] for vertex in vertices for one in self._get(f"/jobs/{job}/vertices/{vertex}/metrics")}
        return {re.sub(r"\W", "_", name.split(".", 1)[1]) for name in told}

    def _start_java(self, name: str, memory: object, main: str, *arguments: str) -> None:
        logs = f"-Dlog4j.configurationFile=file:{self._configuration}/log4j.properties"
        path = ["-cp", f"{self._programs.jars}/*", main, "--configDir", self._configuration, *arguments]
        self._processes.start(name, [self._programs.java, *memory, *flink.JAVA, logs, *path])  # type: ignore[misc]

    def _start_pool(self) -> None:
        command = [self._programs.python, FLINK / "worker_pool.py", str(self._pool)]
        self._processes.start("pool", command, self.environment)


@pytest.fixture
def cluster(flink_programs: FlinkPrograms, monkeypatch: pytest.MonkeyPatch) -> Iterator[ShippedCluster]:
    """A cluster that is started and ended with the test."""
    monkeypatch.setattr(flink, "CONFIGURATION", configuration())
    started = ShippedCluster(flink_programs)
    yield started
    started.close()


@pytest.fixture
def bench(cluster: ShippedCluster, postgres_url: str, tmp_path: Path) -> Iterator[FlinkBench]:
    """A job of some days over files that arrive."""
    made = FlinkBench(tmp_path / "job", cluster, postgres_url)
    made.from_ledger = True
    made.settings(windows={"size": "1d", "start": "2013-01-01", "stop": "2013-01-09"}, live={"poll": "2s"})
    yield made
    made.close()


def test_a_job_runs_as_it_is_shipped_and_survives_its_workers(bench: FlinkBench, cluster: ShippedCluster) -> None:
    frame = readings(5.5, seed=31)
    bench.put("0.jsonl", part(frame, 0, 1.5))
    bench.submit()
    bench.wait_for_days(1)
    bench.put("1.jsonl", part(frame, 1.5, 3.5))
    bench.wait_for_days(3)
    assert cluster.kill_workers() >= 1
    bench.put("2.jsonl", part(frame, 3.5, 5.5))
    bench.wait_for_days(5)
    assert bench.counts() == truth(frame, range(5), bench.keys)
    bench.until(lambda: cluster.metrics(bench.job) >= WATCHED, "Flink reports what the alert rules go by")
