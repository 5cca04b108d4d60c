"""A throw-away PostgreSQL server for the end-to-end tests.

The server lives in one temporary folder and listens on a Unix socket in it, so that nothing outside can reach it and no
port can collide. PostgreSQL refuses to run as root; there it runs as the user ``postgres`` or ``nobody``.
"""

from __future__ import annotations

import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import time
from pathlib import Path

from .installed import NotInstalledError
from .processes import Processes, ServerError

START_SECONDS = 120
STOP_SECONDS = 90
PORT = 5432  # only a part of the socket's name


def find_binaries() -> Path:
    """The folder of the newest PostgreSQL server: on the path, or where Debian keeps it.

    Raises:
        NotInstalledError: there is none.
    """
    if (found := shutil.which("initdb")) is not None and shutil.which("postgres") is not None:
        return Path(found).resolve().parent
    folders = [folder for folder in Path("/usr/lib/postgresql").glob("*/bin") if (folder / "initdb").is_file()]
    if not folders:
        raise NotInstalledError("no PostgreSQL server is installed (Debian: apt-get install postgresql)")
    return max(folders, key=lambda folder: [int(n) for n in re.findall(r"\d+", folder.parent.name)])


def server_user() -> pwd.struct_passwd:
    """Who runs the server: the caller, or an unprivileged user where the caller is root."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid())
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    for name in ("postgres", "nobody"):
        if name in known:
            return known[name]
    raise ServerError("PostgreSQL refuses to run as root: make a user 'postgres' or 'nobody' to run it as")


class PostgresServer:
    """One cluster with one database, which can be stopped, killed and started again."""

    def __init__(self, binaries: Path) -> None:
        self._binaries = binaries
        user = server_user()
        self._who = (user.pw_uid, user.pw_gid) if os.geteuid() == 0 else None
        self._password = secrets.token_urlsafe(24)
        self._processes = Processes("postgres")
        self._folder = self._processes.folder
        os.chown(self._folder, user.pw_uid, user.pw_gid)
        self._data = self._folder / "data"
        try:
            password_file = self._folder / "password"
            password_file.write_text(self._password, encoding="utf-8")
            password_file.chmod(0o600)
            os.chown(password_file, user.pw_uid, user.pw_gid)
            self._run(
                *("initdb", "--pgdata", str(self._data), "--encoding=UTF8", "--locale=C"),
                *("--username=quiltstream", "--auth=scram-sha-256", f"--pwfile={password_file}"),
            )
            password_file.unlink()
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
        try:
            return self._processes.pid("postgres")
        except ServerError:
            return None

    def start(self) -> None:
        """Start the server and wait until it takes connections."""
        deadline = time.monotonic() + START_SECONDS
        self._spawn()
        while not self._ready():
            if time.monotonic() > deadline:
                raise ServerError(self._processes.complaint("postgres", f"no connection within {START_SECONDS} s"))
            if not self._processes.runs("postgres"):
                # After a kill the old server's children can hold its shared memory for a moment.
                self._processes.end("postgres")
                time.sleep(0.2)
                self._spawn()
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop the server fast: open transactions are rolled back, the data are written out."""
        self._processes.end("postgres", signal.SIGINT, STOP_SECONDS)

    def kill(self) -> None:
        """Kill the server as a power cut would (``kill -9``); start() then recovers from the write-ahead log."""
        self._processes.kill("postgres")

    def close(self) -> None:
        """Stop the server, if it runs, and remove all its files."""
        try:
            if self.pid is not None:
                self.stop()
        finally:
            self._processes.close()

    def _spawn(self) -> None:
        settings = {"listen_addresses": "", "unix_socket_directories": str(self._folder), "port": str(PORT)}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [self._binaries / "postgres", "-D", self._data, *options]
        self._processes.start("postgres", command, self._environment(), self._who)

    def _ready(self) -> bool:
        command = [self._binaries / "pg_isready", "-q", "-h", self._folder, "-p", str(PORT)]
        return subprocess.run(command, env=self._environment(), check=False).returncode == 0

    def _run(self, program: str, *arguments: str) -> None:
        self._processes.run(program, [self._binaries / program, *arguments], self._environment(), who=self._who)

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        connection = {"PGHOST": str(self._folder), "PGPORT": str(PORT), "PGUSER": "quiltstream"}
        return kept | connection | {"PGPASSWORD": self._password, "LC_ALL": "C", "HOME": str(self._folder)}
