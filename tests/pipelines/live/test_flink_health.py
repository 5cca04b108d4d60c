"""How a job does in its Flink cluster, as the cluster's REST API tells it, and what of that is told on."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from quiltstream.pipelines.live.flink_health import FlinkHealth
from quiltstream.pipelines.live.verdict import Cause

NAME = "quiltstream-0123456789abcdef"


class Api:
    """Answers as Flink does; what is asked is noted."""

    def __init__(self) -> None:
        self.jobs: Any = []
        self.room: Any = {"taskmanagers": 2, "slots-available": 1, "slots-total": 4}
        self.asked: list[tuple[str, str]] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                api.asked.append((self.command, self.path))
                body = json.dumps({"jobs": api.jobs} if self.path == "/jobs/overview" else api.room).encode()
                self.send_response(200)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.place = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def job(self, state: str, *, name: str = NAME, running: int = 0, finished: int = 0, total: int = 5) -> None:
        tasks = {"total": total, "running": running, "finished": finished, "scheduled": total - running - finished}
        self.jobs.append({"jid": f"{len(self.jobs):032x}", "name": name, "state": state, "tasks": tasks})

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def api() -> Iterator[Api]:
    made = Api()
    yield made
    made.close()


def test_a_job_whose_tasks_all_run_or_are_over_is_well(api: Api) -> None:
    api.job("RUNNING", running=4, finished=1)
    api.job("FAILED", name=f"{NAME}-of-another")
    assert FlinkHealth(api.place, NAME).trouble() is None
    assert api.asked == [("GET", "/jobs/overview")]


@pytest.mark.parametrize("state", ["INITIALIZING", "CANCELLING", "CANCELED", "FAILED", "FINISHED", None])
def test_of_a_job_that_has_not_begun_or_is_over_beam_tells(api: Api, state: str | None) -> None:
    if state is not None:
        api.job(state)
    assert FlinkHealth(api.place, NAME).trouble() is None


@pytest.mark.parametrize("state", ["RUNNING", "RESTARTING", "CREATED"])
@pytest.mark.parametrize(
    ("managers", "said"),
    [
        (0, "no TaskManager is left in it; start one"),
        (1, "it has 1 TaskManager with 3 free slots, which may be too few, or the job fails again and again"),
    ],
)
def test_tasks_that_do_not_run_are_told_with_what_the_cluster_has_for_them(
    api: Api, state: str, managers: int, said: str
) -> None:
    api.job(state, running=1, finished=1)
    api.room = {"taskmanagers": managers, "slots-available": 3 * managers}
    found = FlinkHealth(api.place, NAME).trouble()
    assert found is not None
    cause, text = found
    assert cause is Cause.NO_WORKER
    assert text.startswith(f"3 of 5 tasks of the job do not run in the Flink cluster at {api.place}: {said}")
    assert {method for method, _ in api.asked} == {"GET"}


def test_a_cluster_that_does_not_answer_or_says_something_else_is_told_without_its_words(api: Api) -> None:
    health = FlinkHealth(api.place, NAME)
    for jobs in ("secret", [{"name": NAME, "state": "RUNNING", "tasks": {"total": "secret"}}], [{"x": "secret"}]):
        api.jobs = jobs
        found = health.trouble()
        assert found is not None
        assert found[0] is Cause.RUNNER
        assert "cannot be asked how the job is: it answered with something else than a list of jobs" in found[1]
        assert "secret" not in found[1]
    api.jobs = []
    api.job("RUNNING")
    api.room = "secret"
    found = health.trouble()
    assert found is not None
    assert (found[0], "secret" in found[1]) == (Cause.RUNNER, False)
    gone = FlinkHealth("127.0.0.1:1", NAME).trouble()
    assert gone is not None
    assert gone[0] is Cause.RUNNER
    assert "it could not be reached (ConnectionRefusedError)" in gone[1]
