"""Runs Python scripts in processes forked from one that has imported their modules: ``python starter.py FD MODULE...``.

Two seconds of processor time are spared for each. ``FD`` is a socket of the process that asks (``starting.py``): each
message on it is a command with a folder and variables, and brings a socket that tells of the new process, and its
standard input, output and errors. The process ends when nobody can ask any more.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import runpy
import socket
import sys
import tempfile
import warnings
from importlib import import_module
from typing import Any

LARGEST = 1 << 18


def main() -> str:
    """Serve; returns in each process that shall run a script, with that script."""
    asked = socket.socket(fileno=int(sys.argv[1]))
    root = logging.getLogger()
    silent = logging.NullHandler()
    root.addHandler(silent)  # else what is said during an import sets up printing, which is the script's to do
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=FutureWarning)  # as the command line does
        for module in sys.argv[2:]:
            import_module(module)
    sys.stdout.flush()  # else each script would say it
    root.removeHandler(silent)
    gc.freeze()
    while True:
        message, files, _, _ = socket.recv_fds(asked, LARGEST, 4)
        if not message:
            sys.exit()
        if fork() == 0:
            asked.close()
            return attend(json.loads(message), files)
        for file in files:
            os.close(file)
        with contextlib.suppress(ChildProcessError):  # all have been collected
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def fork() -> int:
    """Fork, without Python's word (3.12 and later) about threads.

    There are only those of libraries that provide for a fork: OpenBLAS and Arrow's allocator.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=DeprecationWarning)
        return os.fork()


def attend(told: dict[str, Any], files: list[int]) -> str:
    """Start a process and tell of it; returns in the new one, with the script that it shall run.

    Its id, which is also its group's, stays taken until the other end has heard of its end, as that of any child.
    """
    teller = socket.socket(fileno=files[0])
    ready, begun = os.pipe()
    child = fork()
    if child == 0:
        os.setsid()
        os.write(begun, b".")
        teller.close()
        for number, file in enumerate(files[1:]):
            os.dup2(file, number)
        for file in (ready, begun, *files[1:]):
            os.close(file)
        return become(told)
    os.read(ready, 1)
    for file in (ready, begun, *files[1:]):
        os.close(file)
    teller.send(str(child).encode())
    ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
    try:
        teller.send(str(code).encode())
        teller.recv(1)
    except OSError:
        pass  # who asked is gone
    os.waitpid(child, 0)
    os._exit(0)


def become(told: dict[str, Any]) -> str:
    """Make this process what it would be if it had been started by the command."""
    os.chdir(told["folder"])
    os.environ.clear()
    os.environ.update(told["environment"])
    tempfile.tempdir = None
    sys.argv[:] = told["words"]
    return told["words"][0]


if __name__ == "__main__":
    runpy.run_path(main(), run_name="__main__")
