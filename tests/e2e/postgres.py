"""A throw-away PostgreSQL server for the end-to-end tests.

The server lives in one temporary folder and listens on a Unix socket in it, so that nothing outside can reach it and no
port can collide. PostgreSQL refuses to run as root; there it runs as the user ``postgres`` or ``nobody``. A watchdog
process stops the server and removes the folder even if the tests are killed.
"""

from __future__ import annotations

import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

START_SECONDS = 120
STOP_SECONDS = 90
PORT = 5432  # only a part of the socket's name

# Reads the server's process id from its standard input (0: none is running) until the tests close it or die, then stops
# the server fast and removes its folder.
WATCHDOG = """
import os, shutil, signal, sys, time
pid = 0
for line in sys.stdin:
    pid = int(line)
if pid:
    os.kill(pid, signal.SIGINT)
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            break
        time.sleep(0.1)
shutil.rmtree(sys.argv[1], ignore_errors=True)
"""


class PostgresError(RuntimeError):
    """The server did not do what it was told; the message carries its log."""


def find_binaries() -> Path | None:
    """The folder of the newest PostgreSQL server: on the path, or where Debian keeps it."""
    if (found := shutil.which("initdb")) is not None and shutil.which("postgres") is not None:
        return Path(found).resolve().parent
    folders = [folder for folder in Path("/usr/lib/postgresql").glob("*/bin") if (folder / "initdb").is_file()]
    return max(folders, key=lambda folder: [int(n) for n in re.findall(r"\d+", folder.parent.name)], default=None)


def server_user() -> pwd.struct_passwd:
    """Who runs the server: the caller, or an unprivileged user where the caller is root."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid())
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    for name in ("postgres", "nobody"):
        if name in known:
            return known[name]
    msg = "PostgreSQL refuses to run as root, and there is neither a user 'postgres' nor a user 'nobody' to run it as"
    raise PostgresError(msg)


class PostgresServer:
    """One cluster with one database, started and stopped by process id."""

    def __init__(self, binaries: Path) -> None:
        self._binaries = binaries
        user = server_user()
        self._owner = (user.pw_uid, user.pw_gid)
        privileged = os.geteuid() == 0
        # None leaves the identity of a child as it is.
        self._uid, self._gid = self._owner if privileged else (None, None)
        self._groups: list[int] | None = [] if privileged else None
        self._password = secrets.token_urlsafe(24)
        self._folder = Path(tempfile.mkdtemp(prefix="quiltstream-postgres-"))
        self._data = self._folder / "data"
        self._log = self._folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog = subprocess.Popen(
            [sys.executable, "-c", WATCHDOG, str(self._folder)],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            self._create()
            self.start()
            self._run("createdb", "quiltstream")
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """The database's address for SQLAlchemy, with the password in it."""
        return f"postgresql+psycopg://quiltstream:{self._password}@/quiltstream?host={self._folder}&port={PORT}"

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the server and wait until it takes connections."""
        if self._process is not None:
            msg = f"the server runs already, as process {self._process.pid}: stop it first"
            raise PostgresError(msg)
        deadline = time.monotonic() + START_SECONDS
        self._process = self._spawn()
        while not self._ready():
            if time.monotonic() > deadline:
                raise PostgresError(self._complaint(f"the server took no connection within {START_SECONDS} s"))
            if self._process.poll() is not None:
                # After a kill the old server's children can hold its shared memory for a moment.
                time.sleep(0.2)
                self._process = self._spawn()
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop the server fast: open transactions are rolled back, the data are written out."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Kill the server as a power cut would (``kill -9``); start() then recovers from the write-ahead log."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """Stop the server, if it runs, and remove all its files."""
        try:
            if self._process is not None and self._process.poll() is None:
                self.stop()
        finally:
            if self._watchdog.stdin is not None:
                self._watchdog.stdin.close()
            self._watchdog.wait(timeout=STOP_SECONDS)

    def _create(self) -> None:
        password_file = self._folder / "password"
        password_file.write_text(self._password, encoding="utf-8")
        for path in (self._folder, password_file):
            path.chmod(0o700 if path.is_dir() else 0o600)
            os.chown(path, *self._owner)
        self._run(
            *("initdb", "--pgdata", str(self._data), "--encoding=UTF8", "--locale=C"),
            *("--username=quiltstream", "--auth=scram-sha-256", f"--pwfile={password_file}"),
        )
        password_file.unlink()

    def _spawn(self) -> subprocess.Popen[bytes]:
        settings = {"listen_addresses": "", "unix_socket_directories": str(self._folder), "port": str(PORT)}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [self._binaries / "postgres", "-D", str(self._data), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env=self._environment(),
                start_new_session=True,
                user=self._uid,
                group=self._gid,
                extra_groups=self._groups,
            )
        self._tell_watchdog(process.pid)
        return process

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            msg = "the server does not run: start it first"
            raise PostgresError(msg)
        self._process.send_signal(how)
        try:
            self._process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise PostgresError(self._complaint(f"the server did not end within {STOP_SECONDS} s")) from None
        self._process = None
        self._tell_watchdog(0)

    def _tell_watchdog(self, pid: int) -> None:
        if self._watchdog.stdin is None:
            msg = "the watchdog has no standard input"
            raise PostgresError(msg)
        self._watchdog.stdin.write(f"{pid}\n")
        self._watchdog.stdin.flush()

    def _ready(self) -> bool:
        command: Sequence[str | Path] = [self._binaries / "pg_isready", "-q", "-h", str(self._folder), "-p", str(PORT)]
        return subprocess.run(command, env=self._environment(), check=False).returncode == 0

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._binaries / program, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=self._folder,
            env=self._environment(),
            check=False,
            user=self._uid,
            group=self._gid,
            extra_groups=self._groups,
        )
        if done.returncode != 0:
            raise PostgresError(self._complaint(f"{program} ended with {done.returncode}: {done.stderr.strip()}"))

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        connection = {"PGHOST": str(self._folder), "PGPORT": str(PORT), "PGUSER": "quiltstream"}
        return kept | connection | {"PGPASSWORD": self._password, "LC_ALL": "C", "HOME": str(self._folder)}

    def _complaint(self, what: str) -> str:
        log = self._log.read_text(encoding="utf-8", errors="replace")[-4000:] if self._log.exists() else "(no log)"
        return f"{what}\n--- the server's log ends:\n{log}"
