"""Commands of the package in processes of their own, each forked from one that has imported everything.

An import of Beam takes longer than most commands of the tests. Run as a script, this file is the process that forks;
``Forker`` is its owner in a test process. ``client`` is a program that runs one command: its streams, folder and
environment are the command's, signals that end a program are handed on, and it ends as the command does.
"""

from __future__ import annotations

import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any

#: The program that stands for a command; ``-I -S`` leave out what it has no use for.
CLIENT = """\
#!{python} -IS
import json, os, signal, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    asked = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [len(asked).to_bytes(8, "big")], [0, 1, 2])
    server.sendall(asked)
    answers = server.makefile()
    command = int(answers.readline())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: os.kill(command, number))
    code = int(answers.readline())
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


class Forker:
    """A process that forks commands."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="forker-")
        self._address = str(Path(self._folder.name) / "address")
        self._process = subprocess.Popen(
            [sys.executable, __file__, self._address], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            raise RuntimeError("the process that forks commands did not begin: its error is above")

    def client(self, path: Path) -> Path:
        """Write the program that runs ``quiltstream`` in a process forked here."""
        path.write_text(CLIENT.format(python=sys.executable, address=self._address), encoding="utf-8")
        path.chmod(0o755)
        return path

    def close(self) -> None:
        """End the process; commands that still run are left."""
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._process.wait(timeout=30)
        self._folder.cleanup()


def _received(connection: socket.socket) -> tuple[list[int], Any]:
    size, streams, _, _ = socket.recv_fds(connection, 8, 3)
    left, parts = int.from_bytes(size, "big"), list[bytes]()
    while left:
        parts.append(connection.recv(left))
        left -= len(parts[-1])
    return list(streams), json.loads(b"".join(parts))


def _run(streams: list[int], words: list[str], folder: str, environment: dict[str, str]) -> int:
    """In the forked process: be the command."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    sys.argv = ["quiltstream", *words]
    from quiltstream.pipelines.cli import main  # noqa: PLC0415 - the owner of this process has no use for it

    code: Any = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        code = 1
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue] - the interpreter waits for threads so
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else int(code is not None)


def _serve(address: str) -> None:
    for module in ("apache_beam.runners.portability.fn_api_runner", "quiltstream.pipelines.cli"):
        importlib.import_module(module)
    children: dict[int, socket.socket] = {}
    ended, woken = os.pipe()
    for end in (ended, woken):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken)
    with socket.socket(socket.AF_UNIX) as listening, selectors.DefaultSelector() as selector:
        listening.bind(address)
        listening.listen()
        for file in (listening, ended, sys.stdin):
            selector.register(file, selectors.EVENT_READ)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            for key, _ in selector.select():
                if key.fileobj is sys.stdin:
                    return
                if key.fileobj is listening:
                    connection, _ = listening.accept()
                    streams, asked = _received(connection)
                    child = os.fork()
                    if child == 0:
                        signal.set_wakeup_fd(-1)
                        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                        signal.signal(signal.SIGINT, signal.default_int_handler)
                        os._exit(_run(streams, *asked) & 0xFF)
                    for stream in streams:
                        os.close(stream)
                    connection.sendall(b"%d\n" % child)
                    children[child] = connection
                else:
                    os.read(ended, 4096)
                    _tell(children)


def _tell(children: dict[int, socket.socket]) -> None:
    """Answer the clients whose commands ended."""
    for child in list(children):
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            with children.pop(child) as connection:
                connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    _serve(sys.argv[1])
