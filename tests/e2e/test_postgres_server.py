"""The throw-away server keeps what was committed, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from .postgres import PostgresServer


def connect(url: str) -> psycopg.Connection:
    return psycopg.connect(url.replace("postgresql+psycopg", "postgresql"))


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_the_server_survives_a_kill_with_what_was_committed(postgres_server: PostgresServer, postgres_url: str) -> None:
    with connect(postgres_url) as connection:
        connection.execute("create table survivor (n int)")
        connection.execute("insert into survivor values (7)")
    postgres_server.kill()
    with pytest.raises(psycopg.OperationalError):
        connect(postgres_url)
    postgres_server.start()
    with connect(postgres_url) as connection:
        assert connection.execute("select n from survivor").fetchall() == [(7,)]
        connection.execute("drop table survivor")


def test_the_server_writes_through_to_disk(postgres_url: str) -> None:
    with connect(postgres_url) as connection:
        shown = [connection.execute(f"show {name}").fetchone() for name in ("fsync", "synchronous_commit")]
    assert shown == [("on",), ("on",)]


def test_a_wrong_password_is_refused(postgres_url: str) -> None:
    with pytest.raises(psycopg.OperationalError, match="password"):
        connect(postgres_url.replace("quiltstream:", "quiltstream:wrong", 1))


def test_the_server_dies_with_the_tests_that_started_it(postgres_binaries: Path) -> None:
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from postgres import PostgresServer\n"
        f"server = PostgresServer(Path({str(postgres_binaries)!r}))\n"
        "print(server.pid, server._folder, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        pid, folder = child.stdout.readline().split()
        child.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 30
    while not (gone(int(pid)) and not Path(folder).exists()):
        assert time.monotonic() < deadline, "the server or its folder outlived the process that started it"
        time.sleep(0.1)
