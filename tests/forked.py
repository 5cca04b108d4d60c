"""Programs of the tests in processes of their own, each forked from one that has imported everything.

An import of Beam takes longer than most commands of the tests. Run as a script, this file is the process that forks;
``Forker`` is its owner in a test process. A client stands for each program: its streams, folder and environment are the
program's, signals that end a program are handed on, and it ends as the program does.
"""

from __future__ import annotations

import importlib
import json
import logging
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

#: The command line of the package.
COMMAND = "from quiltstream.pipelines.cli import main; main(prog_name='quiltstream')"

#: What a job imports while it is made and run; a command imports it when it needs it.
WARM = (
    "apache_beam.runners.portability.fn_api_runner.fn_runner",
    "quiltstream.pipelines.cli",
    "quiltstream.pipelines.commands.run",
    "quiltstream.pipelines.live.command",
)

_CLIENT = """\
import json, os, signal, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    asked = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [len(asked).to_bytes(8, "big")], [0, 1, 2])
    server.sendall(asked)
    answers = server.makefile()
    program = int(answers.readline())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: os.kill(program, number))
    code = int(answers.readline())
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


class Forker:
    """A process that forks programs."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="forker-")
        self._address = str(Path(self._folder.name) / "address")
        self._process = subprocess.Popen(
            [sys.executable, __file__, self._address], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            raise RuntimeError("the process that forks programs did not begin: its error is above")

    @property
    def client(self) -> list[str]:
        """Words that begin a command: a program, as text, and its words follow. ``-IS`` leaves out what has no use."""
        return [sys.executable, "-IS", "-c", _CLIENT.format(address=self._address)]

    def command(self, path: Path) -> None:
        """Write a program that is the package's command line."""
        inserted = f"import sys\nsys.argv.insert(1, {COMMAND!r})\n"
        path.write_text(f"#!{sys.executable} -IS\n{inserted}{_CLIENT.format(address=self._address)}", "utf-8")
        path.chmod(0o755)

    def run(self, program: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a program, as ``python -c`` does."""
        return subprocess.run(
            [*self.client, program, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )

    def close(self) -> None:
        """End the process; programs that still run are left."""
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._process.wait(timeout=30)
        self._folder.cleanup()


_begun: list[Forker] = []


def forker() -> Forker:
    """The process that forks for this test process; it is begun when it is first asked for."""
    if not _begun:
        _begun.append(Forker())
    return _begun[0]


def close() -> None:
    """End it, if it was begun."""
    while _begun:
        _begun.pop().close()


def _received(connection: socket.socket) -> tuple[list[int], Any]:
    size, streams, _, _ = socket.recv_fds(connection, 8, 3)
    left, parts = int.from_bytes(size, "big"), list[bytes]()
    while left:
        parts.append(connection.recv(left))
        left -= len(parts[-1])
    return list(streams), json.loads(b"".join(parts))


def _run(streams: list[int], words: list[str], folder: str, environment: dict[str, str]) -> int:
    """In the forked process: be the program."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    program, *rest = words
    sys.argv = ["-c", *rest]
    code: Any = 0
    try:
        exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 - a test's own
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
    for module in WARM:
        importlib.import_module(module)
    # what Beam remarks while it is imported leaves a handler that a command would not have
    logging.getLogger().handlers.clear()
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
    """Answer the clients whose programs ended."""
    for child in list(children):
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            with children.pop(child) as connection:
                connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    _serve(sys.argv[1])
