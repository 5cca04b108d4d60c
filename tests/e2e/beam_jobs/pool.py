"""Beam's pool of Python workers, on the loopback address only.

Beam's own ``worker_pool_main`` listens on every address, starts its workers with whatever ``python`` comes first on
PATH (where that one has no Beam the job waits for ever without a word), and gives them a pipe to write to that nobody
reads.

Here workers are forked from a process that has imported Beam and the libraries, which spares each of them a second of
processor time; our own modules each imports itself, as on any machine.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import grpc
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc

#: The name of the process that workers are forked from.
STARTER = "starter"

#: What a worker needs and would import; none of it starts a thread.
MODULES = (
    *("apache_beam", "apache_beam.runners.worker.sdk_worker", "numpy", "scipy.special", "pyarrow.parquet"),
    *("sqlalchemy", "sqlalchemy.dialects.postgresql.psycopg", "psycopg", "pydantic", "yaml"),
)


class Pool(beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolServicer):
    """Has a process started for each worker that a runner asks for."""

    def __init__(self, starter: socket.socket) -> None:
        self._starter = starter
        self._lock = threading.Lock()

    def StartWorker(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802 - the protocol's name
        """Start a worker that calls the runner back."""
        self._say("start", request.worker_id, request.control_endpoint.url)
        return beam_fn_api_pb2.StartWorkerResponse()

    def StopWorker(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802 - the protocol's name
        """End a worker."""
        self._say("stop", request.worker_id)
        return beam_fn_api_pb2.StopWorkerResponse()

    def _say(self, *words: str) -> None:
        """Returns when it is done."""
        with self._lock:
            self._starter.send("\n".join(words).encode())
            self._starter.recv(1)


def name(process: str) -> None:
    """What this process is called from now on."""
    Path("/proc/self/comm").write_text(process, encoding="ascii")


def start_workers(asked: socket.socket) -> tuple[str, str]:
    """Serve until nobody can ask any more; returns in each worker, with its name and where its runner is."""
    name(STARTER)
    for module in MODULES:
        import_module(module)
    gc.freeze()
    workers: dict[str, int] = {}
    while said := asked.recv(10_000).decode():
        what, worker, *where = said.split("\n")
        if what == "start":
            child = os.fork()
            if child == 0:
                asked.close()
                name("python")
                return worker, where[0]
            workers[worker] = child
        elif worker in workers:
            os.kill(workers[worker], signal.SIGKILL)
            os.waitpid(workers.pop(worker), 0)
        asked.send(b".")
    os._exit(0)


def run(arguments: list[str]) -> None:
    """Serve on the port given until the process is ended."""
    asks, asked = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # before there is any thread
    if os.fork() == 0:
        asks.close()
        worker, where = start_workers(asked)
        from apache_beam.runners.worker.sdk_worker import SdkHarness  # noqa: PLC0415 - only a worker needs it

        SdkHarness(where, worker_id=worker).run()
        return
    asked.close()
    server = grpc.server(
        ThreadPoolExecutor(4),
        options=[("grpc.http2.max_pings_without_data", 0), ("grpc.http2.max_ping_strikes", 0)],
    )
    beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(Pool(asks), server)
    if not server.add_insecure_port(f"127.0.0.1:{arguments[0]}"):
        sys.exit(f"port {arguments[0]} of the loopback address is taken")
    server.start()
    threading.Event().wait()
