"""Processes of a test, which end with it.

Each is started in a session of its own, so that it and what it starts form one process group, and a group is ended by
its id. A watchdog process ends the groups and removes the folder even if the tests are killed.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path

TERMINATE_SECONDS = 10

# Reads "+group" and "-group" from its standard input until the tests close it or die, then ends the groups that are
# left and removes their folder. A group's id stays taken while any process is in the group.
WATCHDOG = """
import os, shutil, signal, sys, time
groups = set()
for line in sys.stdin:
    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass
for _ in range(50):
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    if not os.path.exists(sys.argv[1]):
        break
    time.sleep(0.1)
"""


class ServerError(RuntimeError):
    """A server did not do what it was told; the message carries the end of its log."""


#: Ports that no system gives to what asks for any port, as Flink's servers do while others start.
PORTS = range(10_000, 32_768)


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that nothing listens on, all different, in no order.

    They are let go before they are used, so a stranger could take one in between: the server then fails to start. Each
    worker of the tests has ports of its own, so that none is a stranger to another.
    """
    found: list[int] = []
    worker, workers = os.environ.get("PYTEST_XDIST_WORKER", "gw0"), os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
    mine = PORTS[int(worker.removeprefix("gw")) :: int(workers)]
    draw = random.SystemRandom()
    with contextlib.ExitStack() as stack:
        while len(found) < count:
            one, port = stack.enter_context(socket.socket()), draw.choice(mine)
            with contextlib.suppress(OSError):
                one.bind(("127.0.0.1", port))
                found.append(port)
    return found


def accepts(port: int) -> bool:
    """Whether something listens on a port of the loopback address."""
    with socket.socket() as one:
        one.settimeout(1)
        return one.connect_ex(("127.0.0.1", port)) == 0


def descendants(pid: int) -> list[int]:
    """The processes that a process started, and those that these started."""
    children: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # this one did
                children += map(int, (thread / "children").read_text("ascii").split())
    return [one for child in children for one in (child, *descendants(child))]


def alive(pid: int) -> bool:
    """Whether a process runs: one that ended and was not collected does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in {"Z", "X"}


@contextlib.contextmanager
def stopped(pids: Sequence[int]) -> Generator[None]:
    """Some processes stand still meanwhile (SIGSTOP)."""
    try:
        _signal_all(pids, signal.SIGSTOP)
        yield
    finally:
        _signal_all(pids, signal.SIGCONT)


def _signal_all(pids: Sequence[int], how: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            os.kill(pid, how)


class Processes:
    """The processes of one test, with a folder for their files and one log for each."""

    def __init__(self, name: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"quiltstream-{name}-"))
        self._logs = self.folder / "log"
        self._logs.mkdir()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._watchdog = subprocess.Popen(
            [sys.executable, "-c", WATCHDOG, str(self.folder)], stdin=subprocess.PIPE, text=True, start_new_session=True
        )

    def start(
        self,
        name: str,
        command: Sequence[str | Path],
        environment: Mapping[str, str] | None = None,
        who: tuple[int, int] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a process under a name that no running one has; its output is appended to the name's log.

        Args:
            name: in messages and of its log.
            command: its words.
            environment: its variables; this process's own by default.
            who: the user and the group that it runs as; this process's own by default.
        """
        if (running := self._running.get(name)) is not None:
            raise ServerError(f"{name} runs already, as process {running.pid}: end it first")
        with self.log_of(name).open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=environment,
                start_new_session=True,
                user=None if who is None else who[0],
                group=None if who is None else who[1],
                extra_groups=None if who is None else [],
            )
        self._tell_watchdog(f"+{process.pid}")
        self._running[name] = process
        return process

    def pid(self, name: str) -> int:
        """The id of a process, and of its group."""
        if name not in self._running:
            raise ServerError(f"{name} does not run: start it first")
        return self._running[name].pid

    def runs(self, name: str) -> bool:
        """Whether a process was started under the name and has not ended."""
        if name not in self._running:
            return False
        # The ended process is left uncollected: its id, which is also its group's, is not given to another meanwhile.
        return os.waitid(os.P_PID, self.pid(name), os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def all(self) -> list[int]:
        """The ids of all processes that run now, and of those that they started."""
        leaders = [process.pid for name, process in self._running.items() if self.runs(name)]
        return leaders + [pid for leader in leaders for pid in descendants(leader) if alive(pid)]

    def kill(self, name: str) -> None:
        """End a process and all it started at once (``kill -9``)."""
        self._signal(name, signal.SIGKILL)
        self._running.pop(name).wait()

    def end(self, name: str, how: signal.Signals = signal.SIGTERM, seconds: float = TERMINATE_SECONDS) -> int:
        """Ask a process to end, insist after a while, and leave nothing of its group; its exit code."""
        self._signal(name, how)
        deadline = time.monotonic() + seconds
        while self.runs(name) and time.monotonic() < deadline:
            time.sleep(0.05)
        self._signal(name, signal.SIGKILL)
        return self._running.pop(name).wait()

    def wait_for(self, name: str, ready: str, condition: Callable[[], bool], seconds: float) -> None:
        """Wait until a server is ready; it must not end before."""
        deadline = time.monotonic() + seconds
        while not condition():
            if not self.runs(name):
                raise ServerError(self.complaint(name, f"{name} ended before {ready}"))
            if time.monotonic() > deadline:
                raise ServerError(self.complaint(name, f"{name}: not {ready} within {seconds:.0f} s"))
            time.sleep(0.1)

    def run(
        self,
        name: str,
        command: Sequence[str | Path],
        environment: Mapping[str, str] | None = None,
        seconds: float = 120,
        who: tuple[int, int] | None = None,
    ) -> str:
        """Run a process to its end, which must be a good one and in time; what it wrote."""
        self.start(name, command, environment, who)
        deadline = time.monotonic() + seconds
        while self.runs(name):
            if time.monotonic() > deadline:
                self.kill(name)
                raise ServerError(self.complaint(name, f"{name} did not end within {seconds:.0f} s"))
            time.sleep(0.1)
        if (code := self.end(name)) != 0:
            raise ServerError(self.complaint(name, f"{name} ended with {code}"))
        return self.log_of(name).read_text(encoding="utf-8", errors="replace")

    def log_of(self, name: str) -> Path:
        """Where a process writes."""
        return self._logs / f"{name}.log"

    def complaint(self, name: str, what: str) -> str:
        """A message with the end of a process's log."""
        path = self.log_of(name)
        log = path.read_text(encoding="utf-8", errors="replace")[-4000:] if path.exists() else "(no log)"
        return f"{what}\n--- the log of {name} ends:\n{log}"

    def close(self) -> None:
        """End everything and remove the folder. QUILTSTREAM_KEEP_LOGS names a folder that the logs are copied to."""
        try:
            for name in reversed(list(self._running)):
                self.end(name)
            if keep := os.environ.get("QUILTSTREAM_KEEP_LOGS"):
                shutil.copytree(self._logs, Path(keep) / self.folder.name, dirs_exist_ok=True)
        finally:
            if self._watchdog.stdin is not None:
                self._watchdog.stdin.close()
            self._watchdog.wait(timeout=60)

    def _signal(self, name: str, how: signal.Signals) -> None:
        group = self.pid(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, how)
        if how is signal.SIGKILL:
            self._tell_watchdog(f"-{group}")

    def _tell_watchdog(self, line: str) -> None:
        if self._watchdog.stdin is None:
            raise ServerError("the watchdog has no standard input")
        self._watchdog.stdin.write(line + "\n")
        self._watchdog.stdin.flush()
