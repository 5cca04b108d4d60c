"""Scripts that are started by another process, which has imported what they import (``starter.py``)."""

from __future__ import annotations

import atexit
import functools
import itertools
import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import pytest

HERE = Path(__file__).parent

#: What a live job imports.
LIVE = ("quiltstream.pipelines.live.command", "quiltstream.transforms", "stamped")

#: The only variables that a script finds as they were when its imports were made.
BEFORE = ("PATH", "PYTHONPATH", "PYTHONUNBUFFERED")

#: What Python seeds its hashes with, in turn. All that is forked from one process has one seed, and one order of a set.
SEEDS = ("1", "2")


class Started:
    """A process, as far as the tests ask one; its id is its group's and its session's too."""

    def __init__(self, pid: int, teller: socket.socket, stdin: IO[str] | None) -> None:
        self.pid = pid
        self.stdin = stdin
        self.returncode: int | None = None
        self._teller = teller
        teller.settimeout(0)

    def poll(self) -> int | None:
        """The exit code, minus the signal that ended it; ``None`` while it runs."""
        if self.returncode is None:
            try:
                said = self._teller.recv(100)
            except BlockingIOError:
                return None
            self._over(said)
        return self.returncode

    def wait(self) -> int:
        """The exit code, when it ends."""
        if self.returncode is None:
            self._teller.settimeout(None)
            self._over(self._teller.recv(100))
        assert self.returncode is not None
        return self.returncode

    def _over(self, said: bytes) -> None:
        self.returncode = int(said)
        self._teller.close()


class Starter:
    """Starts scripts with one Python, in processes that begin with everything imported."""

    def __init__(self, python: str, environment: Mapping[str, str], modules: Sequence[str]) -> None:
        self._modules = modules
        self._asks, asked = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._complaints = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - until close()
        self._process = subprocess.Popen(
            [python, HERE / "starter.py", str(asked.fileno()), *modules],
            stdin=subprocess.DEVNULL,
            stdout=self._complaints,
            stderr=self._complaints,
            env=environment,
            pass_fds=[asked.fileno()],
            start_new_session=True,
        )
        asked.close()

    def start(
        self,
        words: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        stdin: IO[str] | int,
        stdout: IO[bytes],
        stderr: IO[bytes],
    ) -> Started:
        """Start a script, whose name is the first word; ``stdin`` may be that of a file, ``DEVNULL`` or ``PIPE``."""
        message = {"words": list(words), "folder": str(folder), "environment": dict(environment)}
        told, teller = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pipe: IO[str] | None = None
        with ExitStack() as stack:
            stack.enter_context(teller)
            if stdin == subprocess.PIPE:
                read, write = os.pipe()
                stack.callback(os.close, read)
                pipe = os.fdopen(write, "w", encoding="utf-8")
            elif stdin == subprocess.DEVNULL:
                read = os.open(os.devnull, os.O_RDONLY)
                stack.callback(os.close, read)
            else:
                read = stdin if isinstance(stdin, int) else stdin.fileno()
            files = [teller.fileno(), read, stdout.fileno(), stderr.fileno()]
            socket.send_fds(self._asks, [json.dumps(message).encode()], files)
        said = told.recv(100)
        self._complaints.seek(0)
        complaints = self._complaints.read()
        if complaints or not said:
            told.close()
            how = "are not imported without a word" if said else "cannot be imported"
            pytest.fail(f"{', '.join(self._modules)} {how}: {complaints}")
        return Started(int(said), told, pipe)

    def close(self) -> None:
        """Let it end; what it has started goes on."""
        self._asks.close()
        self._process.wait()
        self._complaints.close()


class Turns:
    """Starters with one Python that differ in its hash seed, and take turns.

    So what depends on hashes, or on the order of a set, differs between a job and the one that is begun after it.
    """

    def __init__(self, python: str, environment: Mapping[str, str], modules: Sequence[str]) -> None:
        self._given = (python, environment, modules)
        self._made: dict[str, Starter] = {}
        self._seeds = itertools.cycle(SEEDS)

    def next(self) -> Starter:
        """The one whose turn it is; each is made when it is first wanted."""
        seed = next(self._seeds)
        if seed not in self._made:
            python, environment, modules = self._given
            self._made[seed] = Starter(python, {**environment, "PYTHONHASHSEED": seed}, modules)
        return self._made[seed]

    def close(self) -> None:
        """Let them end."""
        for one in self._made.values():
            one.close()


@functools.cache
def _turns(python: str, environment: tuple[tuple[str, str], ...]) -> Turns:
    made = Turns(python, os.environ | dict(environment), LIVE)
    atexit.register(made.close)
    return made


def start_live(
    python: str,
    words: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    stdin: IO[str] | int,
    stdout: IO[bytes],
    stderr: IO[bytes],
) -> Started:
    """Start a script that does what a live job does, with the modules of one there already."""
    whole = os.environ | environment
    before = tuple((name, whole[name]) for name in BEFORE if name in whole)
    return _turns(python, before).next().start(words, folder, whole, stdin, stdout, stderr)
