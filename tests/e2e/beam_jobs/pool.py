"""Beam's pool of Python workers, on the loopback address only.

Beam's own ``worker_pool_main`` listens on every address, starts its workers with whatever ``python`` comes first on
PATH (where that one has no Beam the job waits for ever without a word), and gives them a pipe to write to that nobody
reads.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc

WORKER = """
import sys
from apache_beam.runners.worker.sdk_worker import SdkHarness
SdkHarness(sys.argv[1], worker_id=sys.argv[2]).run()
"""


class Pool(beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolServicer):
    """Starts a process for each worker that a runner asks for."""

    def __init__(self) -> None:
        self._workers: dict[str, subprocess.Popen[bytes]] = {}

    def StartWorker(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802 - the protocol's name
        """Start a worker that calls the runner back."""
        command = [sys.executable, "-c", WORKER, request.control_endpoint.url, request.worker_id]
        self._workers[request.worker_id] = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        return beam_fn_api_pb2.StartWorkerResponse()

    def StopWorker(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802 - the protocol's name
        """End a worker."""
        worker = self._workers.pop(request.worker_id, None)
        if worker is not None:
            worker.kill()
            worker.wait()
        return beam_fn_api_pb2.StopWorkerResponse()


def run(arguments: list[str]) -> None:
    """Serve on the port given until the process is ended."""
    server = grpc.server(
        ThreadPoolExecutor(4),
        options=[("grpc.http2.max_pings_without_data", 0), ("grpc.http2.max_ping_strikes", 0)],
    )
    beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(Pool(), server)
    if not server.add_insecure_port(f"127.0.0.1:{arguments[0]}"):
        sys.exit(f"port {arguments[0]} of the loopback address is taken")
    server.start()
    threading.Event().wait()
