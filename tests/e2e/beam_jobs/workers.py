"""A process that workers are forked from: ``python -m beam_jobs workers FD``, of the pool, which asks by that socket.

It has imported Beam and the libraries, which spares each worker a second of processor time; our own modules each
imports itself, as on any machine.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import warnings
from importlib import import_module

#: What a worker needs and would import. The threads that come of it are OpenBLAS' and Arrow's allocator's, which both
#: provide for a fork.
MODULES = (
    *("apache_beam", "apache_beam.runners.worker.sdk_worker", "numpy", "scipy.special", "pyarrow.parquet"),
    *("sqlalchemy", "sqlalchemy.dialects.postgresql.psycopg", "psycopg", "pydantic", "yaml"),
)


def fork() -> int:
    """Fork, without Python's word (3.12 and later) about threads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=DeprecationWarning)
        return os.fork()


def start_workers(asked: socket.socket) -> tuple[str, str]:
    """Serve until nobody can ask any more; returns in each worker, with its name and where its runner is."""
    for module in MODULES:
        import_module(module)
    gc.freeze()
    workers: dict[str, int] = {}
    while said := asked.recv(10_000).decode():
        what, worker, *where = said.split("\n")
        if what == "start":
            child = fork()
            if child == 0:
                asked.close()
                return worker, where[0]
            workers[worker] = child
        elif worker in workers:
            os.kill(workers[worker], signal.SIGKILL)
            os.waitpid(workers.pop(worker), 0)
        asked.send(b".")
    os._exit(0)


def run(arguments: list[str]) -> None:
    """Serve on the socket whose number is given; in a worker, work."""
    worker, where = start_workers(socket.socket(fileno=int(arguments[0])))
    from apache_beam.runners.worker.sdk_worker import SdkHarness  # noqa: PLC0415 - a worker has imported it

    SdkHarness(where, worker_id=worker).run()
