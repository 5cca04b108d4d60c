"""How a job does in its Flink cluster, as the cluster's REST API tells it, and what of that is told on."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from quiltstream.pipelines.live.flink import FlinkHealth, WorkerPool
from quiltstream.pipelines.live.watchdog import Cause

from ...present import present

NAME = "quiltstream-0123456789abcdef"


class Api:
    """Answers as Flink does; what is asked is noted."""

    def __init__(self) -> None:
        self.jobs: Any = []
        self.managers: Any = []
        self.failures: list[str] = []
        self.asked: list[tuple[str, str]] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                api.asked.append((self.command, self.path))
                if self.path == "/jobs/overview":
                    said: Any = {"jobs": api.jobs}
                elif self.path == "/taskmanagers":
                    said = {"taskmanagers": api.managers}
                else:
                    said = {"exceptionHistory": {"entries": [{"stacktrace": one} for one in api.failures]}}
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(said).encode())

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.place = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def job(self, state: str, *, name: str = NAME, running: int = 0, finished: int = 0, total: int = 5) -> None:
        tasks = {"total": total, "running": running, "finished": finished, "scheduled": total - running - finished}
        self.jobs.append({"jid": f"{len(self.jobs):032x}", "name": name, "state": state, "tasks": tasks})

    def manager(self, heartbeat: int = 0, free: int = 3) -> None:
        self.managers.append({"id": f"tm-{len(self.managers)}", "timeSinceLastHeartbeat": heartbeat, "freeSlots": free})

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Port:
    """A port that takes connections until it is closed."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"

    def close(self) -> None:
        self._socket.close()


#: What Flink 1.19 says of a job whose worker pool is gone.
REFUSED = (
    "org.apache.beam.vendor.guava.v32_1_2_jre.com.google.common.util.concurrent.UncheckedExecutionException: "
    "org.apache.beam.vendor.grpc.v1p60p1.io.grpc.StatusRuntimeException: UNAVAILABLE: io exception\n\tat secret\n"
    "Caused by: org.apache.beam.vendor.grpc.v1p60p1.io.grpc.StatusRuntimeException: UNAVAILABLE: io exception\n"
    "Caused by: org.apache.beam.vendor.grpc.v1p60p1.io.netty.channel.AbstractChannel$AnnotatedConnectException: "
    "finishConnect(..) failed: Connection refused: /127.0.0.1:{port}\n"
    "Caused by: java.net.ConnectException: finishConnect(..) failed: Connection refused\n"
)


@pytest.fixture
def api() -> Iterator[Api]:
    made = Api()
    yield made
    made.close()


def test_a_job_with_all_tasks_running_or_finished_is_healthy(api: Api) -> None:
    api.job("RUNNING", running=4, finished=1)
    api.job("FAILED", name=f"{NAME}-of-another")
    assert FlinkHealth(api.place, NAME).trouble() is None
    assert {method for method, _ in api.asked} == {"GET"}


@pytest.mark.parametrize("state", ["RUNNING", "RESTARTING", "CREATED"])
def test_tasks_not_running_are_reported_with_the_resources_of_the_cluster(api: Api, state: str) -> None:
    api.job(state, running=1, finished=1)
    api.manager()
    found = present(FlinkHealth(api.place, NAME).trouble())
    assert (found.cause, found.sure) == (Cause.NO_WORKER, False)
    assert found.text.startswith(
        f"3 of 5 tasks of the job do not run in the Flink cluster at {api.place}: it has 1 TaskManager with 3 free "
        "slots, which may be too few, or the job fails again and again"
    )
    assert {method for method, _ in api.asked} == {"GET"}


def test_a_cluster_that_lost_its_taskmanagers_is_reported_at_once(api: Api) -> None:
    api.job("RUNNING")
    # a cluster on Kubernetes starts them when a job has come
    health = FlinkHealth(api.place, NAME)
    found = present(health.trouble())
    assert (found.cause, found.sure) == (Cause.TASKMANAGER, False)
    api.manager()
    health.trouble()
    api.managers.clear()
    found = present(health.trouble())
    assert (found.cause, found.sure) == (Cause.TASKMANAGER, True)
    assert "no TaskManager is left in it; start one" in found.text


@pytest.mark.parametrize("told", [True, False])
def test_a_dead_worker_pool_is_named_by_the_job_s_failure_or_by_its_own_port(api: Api, *, told: bool) -> None:
    port = Port()
    pool = WorkerPool(port.address, near=False)
    api.job("RESTARTING")
    api.manager()
    health = FlinkHealth(api.place, NAME, pool)
    found = present(health.trouble())
    assert found.cause is Cause.NO_WORKER
    port.close()
    api.failures = [REFUSED.format(port=pool.port)] if told else ["java.lang.RuntimeException: secret"]
    found = present(health.trouble())
    assert (found.cause, found.sure) == (Cause.POOL, True)
    assert found.text.startswith(f"the worker pool at {port.address} takes no connection: start it again")
    assert "secret" not in found.text


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("quiltstream.store.errors.StoreAway: secret", Cause.LEDGER),
        ("quiltstream.transforms.kafka.client.KafkaUnavailableError: secret", Cause.SINK),
        # the state of a job with another number of lanes, for one
        ("quiltstream.schemas.settings.base.SettingsError: secret", Cause.FAILED),
    ],
)
def test_the_missing_dependency_of_failing_workers_is_named(api: Api, line: str, cause: Cause) -> None:
    api.job("RESTARTING")
    api.manager()
    api.failures = [f"java.lang.RuntimeException: Error received from SDK harness: Traceback\n{line}\n\tat x"]
    found = present(FlinkHealth(api.place, NAME).trouble())
    assert found.cause is cause
    assert "secret" not in found.text


def test_an_unusable_cluster_answer_is_reported_without_its_content(api: Api) -> None:
    health = FlinkHealth(api.place, NAME)
    for jobs in ("secret", [{"name": NAME, "state": "RUNNING", "tasks": {"total": "secret"}}], [{"x": "secret"}]):
        api.jobs = jobs
        found = present(health.trouble())
        assert found.cause is Cause.RUNNER
        assert "cannot be asked how the job is: it answered with something else than a list of jobs" in found.text
        assert "secret" not in found.text
    api.jobs = []
    api.job("RUNNING")
    api.managers = "secret"
    found = present(health.trouble())
    assert (found.cause, "secret" in found.text) == (Cause.RUNNER, False)
    gone = present(FlinkHealth("127.0.0.1:1", NAME).trouble())
    assert gone.cause is Cause.RUNNER
    assert gone.text.startswith("the JobManager of the Flink cluster at 127.0.0.1:1 does not answer: it could not be")
