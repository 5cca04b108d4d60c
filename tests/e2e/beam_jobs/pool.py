"""Beam's pool of Python workers, on the loopback address only.

Beam's own ``worker_pool_main`` listens on every address, starts its workers with whatever ``python`` comes first on
PATH (where that one has no Beam the job waits for ever without a word), and gives them a pipe to write to that nobody
reads.

Here workers are grandchildren of the pool: they are forked from processes of its own (``workers.py``), which differ in
their hash seed and take turns, so that a worker has another order of a set than the one before it.
"""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc

#: The hash seed of each process that workers are forked from.
SEEDS = ("1", "2")


class Pool(beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolServicer):
    """Has a process started for each worker that a runner asks for."""

    def __init__(self, starters: Sequence[socket.socket]) -> None:
        self._turns = itertools.cycle(starters)
        self._starter_of: dict[str, socket.socket] = {}
        self._lock = threading.Lock()

    def StartWorker(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802 - the protocol's name
        """Start a worker that calls the runner back."""
        with self._lock:
            starter = self._starter_of[request.worker_id] = next(self._turns)
            say(starter, "start", request.worker_id, request.control_endpoint.url)
        return beam_fn_api_pb2.StartWorkerResponse()

    def StopWorker(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802 - the protocol's name
        """End a worker."""
        with self._lock:
            if (starter := self._starter_of.pop(request.worker_id, None)) is not None:
                say(starter, "stop", request.worker_id)
        return beam_fn_api_pb2.StopWorkerResponse()


def say(starter: socket.socket, *words: str) -> None:
    """Returns when it is done."""
    starter.send("\n".join(words).encode())
    starter.recv(1)


def start_starter(seed: str) -> socket.socket:
    """Start a process that workers are forked from; it ends when the socket is closed."""
    asks, asked = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with asked:
        number = asked.fileno()
        subprocess.Popen(
            [sys.executable, "-m", "beam_jobs", "workers", str(number)],
            env=os.environ | {"PYTHONHASHSEED": seed},
            pass_fds=[number],
        )
    return asks


def run(arguments: list[str]) -> None:
    """Serve on the port given until the process is ended."""
    server = grpc.server(
        ThreadPoolExecutor(4),
        options=[("grpc.http2.max_pings_without_data", 0), ("grpc.http2.max_ping_strikes", 0)],
    )
    pool = Pool([start_starter(seed) for seed in SEEDS])
    beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(pool, server)
    if not server.add_insecure_port(f"127.0.0.1:{arguments[0]}"):
        sys.exit(f"port {arguments[0]} of the loopback address is taken")
    server.start()
    threading.Event().wait()
