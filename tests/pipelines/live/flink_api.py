"""The part of Flink's REST API that lists and cancels jobs, on the loopback address, which does as it is told."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class FlinkApi:
    """Jobs and how they behave."""

    jobs: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])  # id -> (name, state)
    looks: int | None = 2  # how often a job that was asked to end is still CANCELLING; ``None`` for ever
    # statuses that the next requests for a cancellation are answered with
    refusals: list[int] = field(default_factory=list[int])
    status: int = 200  # of every list of jobs
    body: bytes | None = None  # of every list of jobs, if it is none
    silent_s: float = 0.0  # seconds before anything is answered
    tasks: dict[str, int] = field(default_factory=lambda: {"total": 5, "running": 4, "finished": 1})  # of every job
    managers: int = 1  # TaskManagers
    failure: str = ""  # the newest of every job
    cancelled: list[str] = field(default_factory=list[str])  # ids that were asked to end, in order
    listed: int = 0  # how often the jobs were listed
    place: str = ""  # HOST:PORT
    _added: int = 0

    def add(self, name: str, state: str = "RUNNING") -> str:
        """A job with an id of its own."""
        self._added += 1
        job = f"{self._added:032x}"
        self.jobs[job] = (name, state)
        return job

    def overview(self) -> bytes:
        """The list of jobs, and a step on for those that were asked to end."""
        self.listed += 1
        if self.body is not None:
            return self.body
        if self.looks is not None:
            self.looks -= bool(self.cancelled)
            if self.looks < 0:
                for job in self.cancelled:
                    self.jobs[job] = (self.jobs[job][0], "CANCELED")
        found = [
            {"jid": j, "name": name, "state": state, "tasks": self.tasks} for j, (name, state) in self.jobs.items()
        ]
        return json.dumps({"jobs": found}).encode()

    def cancel(self, job: str) -> int:
        """The status of a request for a cancellation."""
        if self.refusals:
            return self.refusals.pop(0)
        self.cancelled.append(job)
        self.jobs[job] = (self.jobs[job][0], "CANCELLING")
        return 202


@contextmanager
def flink_api() -> Generator[FlinkApi]:
    """A server that is there while the block runs."""
    api = FlinkApi()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/jobs/overview":
                self.answer(api.status, api.overview())
            elif self.path == "/taskmanagers":
                self.answer(200, json.dumps({"taskmanagers": [{}] * api.managers}).encode())
            else:
                entries = [{"stacktrace": api.failure}] if api.failure else []
                self.answer(200, json.dumps({"exceptionHistory": {"entries": entries}}).encode())

        def do_PATCH(self) -> None:
            path, _, mode = self.path.partition("?")
            assert mode == "mode=cancel"
            self.answer(api.cancel(path.removeprefix("/jobs/")), b"{}")

        def answer(self, status: int, body: bytes) -> None:
            time.sleep(api.silent_s)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body if status < 400 else b"secret")

        def log_message(self, format: str, *_: Any) -> None:  # noqa: A002 - as the base class names it
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    api.place = f"127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
