"""Beam's pool of Python workers for a Flink TaskManager, on the loopback address only.

Beam's own ``worker_pool_main`` listens on every address, and whoever reaches it can run code here. It also starts its
workers with whatever ``python`` comes first on PATH, and gives them a pipe to write to that nobody reads: a worker that
prints 64 kB stops for ever. This one listens on the loopback address, which the TaskManager shares with it, starts
workers with its own Python, and lets them write where it writes.

    python worker_pool.py 50000
    python worker_pool.py 50000 9249

The second port is one that the TaskManager listens on. When nothing has listened there for a minute the pool ends with
code 3, so that it is started again: a container that shares a TaskManager's network is left behind in the old one
when the TaskManager's is started anew.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import grpc
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc

WORKER = """
import sys
from apache_beam.runners.worker.sdk_worker import SdkHarness
SdkHarness(sys.argv[1], worker_id=sys.argv[2]).run()
"""

#: Seconds that workers have to end once they were asked to.
END_S = 5.0

#: Seconds that the TaskManager may be away, and from one look to the next.
AWAY_S = 60.0
LOOK_S = 5.0


class Pool(beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolServicer):
    """Starts a process for each worker that a runner asks for.

    Flink numbers workers within the classes of a job, and each job brings its own: two jobs ask for a worker of the
    same id. What tells them apart is where a worker calls its runner, a port of its own for each. A runner asks for an
    end by the id alone, after it has closed that worker's connection and before it closes the port.
    """

    def __init__(self) -> None:
        self._workers: dict[tuple[str, str], subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()

    def StartWorker(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802 - the protocol's name
        """Start a worker that calls the runner back."""
        worker_id, place = request.worker_id, request.control_endpoint.url
        command = [sys.executable, "-c", WORKER, place, worker_id]
        with self._lock:
            self._bury()
            self._end((worker_id, place))
            worker = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603 - our own Python
            self._workers[worker_id, place] = worker
        return beam_fn_api_pb2.StartWorkerResponse()

    def StopWorker(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802 - the protocol's name
        """End a worker; of several of one id the one that ends by itself, or whose runner is gone soon."""
        with self._lock:
            named = [one for one in self._workers if one[0] == request.worker_id]
            if len(named) == 1:
                self._end(named[0])
            elif named:
                threading.Thread(target=self._end_left, args=(named,), daemon=True).start()
        return beam_fn_api_pb2.StopWorkerResponse()

    def close(self) -> None:
        """End all workers."""
        with self._lock:
            for one in list(self._workers):
                self._end(one)

    def _end_left(self, workers: list[tuple[str, str]]) -> None:
        """End those of some workers whose runner is gone when they had the time to end by themselves."""
        time.sleep(END_S)
        with self._lock:
            for one in workers:
                if not _is_called_from(one[1]):
                    self._end(one)

    def _end(self, name: tuple[str, str]) -> None:
        worker = self._workers.pop(name, None)
        if worker is None:
            return
        worker.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.wait(END_S)
            return
        worker.kill()
        worker.wait()

    def _bury(self) -> None:
        """Forget workers that have ended by themselves: a TaskManager that was killed asks for no end.

        Not those whose runner is still there: it is about to ask for their end, which must not be taken for another's.
        """
        for name in [name for name, worker in self._workers.items() if worker.poll() is not None]:
            if not _is_called_from(name[1]):
                del self._workers[name]


def _is_called_from(place: str) -> bool:
    """Whether a runner is there that a worker calls."""
    host, _, port = place.rpartition(":")
    return _listens(int(port), LOOK_S, host)


def watch(port: int, ended: threading.Event, *, away_s: float = AWAY_S, look_s: float = LOOK_S) -> bool:
    """Wait until ``ended`` is set, or nothing listens on a port of the loopback address any more.

    Args:
        port: that of a neighbour.
        ended: set by somebody else.
        away_s: seconds for which it may be away.
        look_s: seconds between two looks.

    Returns:
        Whether the neighbour has gone.
    """
    there = time.monotonic()
    while not ended.wait(look_s):
        if _listens(port, look_s):
            there = time.monotonic()
        elif time.monotonic() - there > away_s:
            return True
    return False


def _listens(port: int, timeout: float, host: str = "127.0.0.1") -> bool:
    try:
        socket.create_connection((host, port), timeout).close()
    except OSError:
        return False
    return True


def main(arguments: list[str]) -> int:
    """Serve on a port of the loopback address until SIGTERM, or until a neighbour has gone; the exit code."""
    ports = arguments[1:]
    if len(ports) not in {1, 2} or not all(port.isdecimal() for port in ports):
        sys.stderr.write("give the port to listen on, and perhaps one of the TaskManager: worker_pool.py 50000 9249\n")
        return 2
    # workers hold raw readings and noise, and inherit it; see quiltstream.schemas.files for the rest
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    address = f"127.0.0.1:{ports[0]}"
    pool = Pool()
    # grpc lets two servers share a port by default: a second pool would take half of the calls
    options = [("grpc.so_reuseport", 0), ("grpc.http2.max_pings_without_data", 0), ("grpc.http2.max_ping_strikes", 0)]
    server = grpc.server(ThreadPoolExecutor(4), options=options)
    beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(pool, server)
    try:
        bound = server.add_insecure_port(address)
    except RuntimeError:
        bound = 0
    if not bound:
        sys.stderr.write(f"{address} is taken\n")
        return 1
    ended = threading.Event()

    def end(_signal: int, _frame: FrameType | None) -> None:
        ended.set()

    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if one is not signal.SIGHUP or signal.getsignal(one) is not signal.SIG_IGN:
            signal.signal(one, end)
    server.start()
    sys.stdout.write(f"workers are started at {address}\n")
    sys.stdout.flush()
    gone = False
    if len(ports) == 1:
        ended.wait()
    else:
        gone = watch(int(ports[1]), ended)
    server.stop(0)
    pool.close()
    if gone:
        sys.stderr.write(f"nothing listens at 127.0.0.1:{ports[1]} any more\n")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
