"""A PostgreSQL ledger whose disk is full: real file systems of some megabytes, filled to the last page.

Two disks can be full. On that of the tables the server refuses a statement and goes on. On that of its log it stops
with a panic in the middle of whatever it did, and cannot come up again until there is room.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, NoReturn

import psycopg
import pytest
from psycopg import sql

from quiltstream.store import Store, StoreError
from quiltstream.store.errors import StoreAway

from ..examined import Tally
from ..store.faults import whole
from ..store.samples import domain, drafts, query, seen
from .conftest import missing
from .postgres import PostgresServer, server_user
from .processes import descendants

MEGABYTE = 1 << 20
PAGE = 8192

#: Enough that the tables, their indexes and the log need new pages in the middle of it.
WINDOWS = 30


@dataclass
class SmallDisk:
    """A file system of its own."""

    folder: Path  # where it is

    @property
    def _filler(self) -> Path:
        return self.folder / "filler"

    def fill(self, room: int) -> None:
        """Leave so many bytes, rounded up to whole pages."""
        self.clear()
        with self._filler.open("wb", buffering=0) as file:
            with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
                _write_for_ever(file)
            file.truncate(max(0, file.seek(0, os.SEEK_END) - room))

    def clear(self) -> None:
        """Make room."""
        self._filler.unlink(missing_ok=True)


def _write_for_ever(file: FileIO) -> NoReturn:
    block = bytes(MEGABYTE)
    while True:
        file.write(block)


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Generator[SmallDisk]:
    """A new file system that the server may write; a user who may mount none is like a server that is missing."""
    folder.mkdir()
    owner = server_user()
    options = f"size={megabytes}m,uid={owner.pw_uid},gid={owner.pw_gid},mode=700"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        missing(f"this user may not mount a file system, so that none can be full: {done.stderr.strip()}")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def server(postgres_binaries: Path) -> Iterator[PostgresServer]:
    """A server of the test's own, because others would suffer with it."""
    made = PostgresServer(postgres_binaries)
    yield made
    made.close()


@pytest.fixture
def disk(server: PostgresServer) -> Iterator[SmallDisk]:
    """A disk beside the server's data, where its user can go."""
    data = Path(execute(server.url, "select setting from pg_settings where name = 'data_directory'"))
    with small_disk(data.parent / "small", 128) as made:
        yield made


def execute(url: str, *statements: str) -> Any:
    """Run statements outside a transaction; the first field of the last answer."""
    with psycopg.connect(url.replace("postgresql+psycopg", "postgresql"), autocommit=True) as connection:
        answer = None
        for statement in statements:
            cursor = connection.execute(sql.SQL(statement))  # pyright: ignore[reportArgumentType] - of this test's own
            answer = None if cursor.description is None else cursor.fetchone()
        return None if answer is None else answer[0]


def power_cut(server: PostgresServer) -> None:
    """Kill every process of a server: one that waits for the log would wait for ever, also without its server."""
    assert server.pid is not None
    others = descendants(server.pid)
    server.kill()
    for pid in others:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def publish(url: str, name: str) -> tuple[dict[str, Any], StoreError | None]:
    """Publish a domain's windows two by two, the later ones first; what was said to be on record, and what ended it."""
    published: dict[str, Any] = {}
    with Store(url, wait=30, create=True) as store:
        try:
            held = store.register(domain(name), query(domain=name, windows=WINDOWS))
            windows = list(held.query.schedule.windows())[::-1]
            for at in range(0, len(windows), 2):
                published |= seen(store.publish(held, drafts(held, windows[at : at + 2])))
        except StoreError as error:
            return published, error
    return published, None


def complete(url: str, name: str, published: dict[str, Any], tally: Tally) -> None:
    """See that nothing was lost once there is room, and publish the rest."""
    with Store(url, wait=30, create=True) as store:
        held = store.register(domain(name), query(domain=name, windows=WINDOWS))
        tally.take(whole(store, held, published))


def test_a_full_disk_of_the_servers_tables_stops_the_job_and_loses_nothing(
    server: PostgresServer, disk: SmallDisk, tally: Tally
) -> None:
    """Some pages more each time, until all of a job finds room; its tables are new each time."""
    execute(server.url, f"create tablespace small location '{disk.folder}'")
    reached: list[int] = []
    room = 0
    while True:
        schema = f"room{room}"
        execute(server.url, f"create schema {schema}")
        url = f"{server.url}&options=-csearch_path%3D{schema}%20-cdefault_tablespace%3Dsmall"
        with Store(url, create=True) as store:
            store.domains()
        disk.fill(room)
        published, error = publish(url, "homes")
        disk.clear()
        complete(url, "homes", published, tally)
        execute(server.url, f"drop schema {schema} cascade", "checkpoint")
        if error is None:
            break
        assert isinstance(error, StoreAway), error
        assert "(SQLSTATE 53100)" in str(error)
        reached.append(len(published))
        room += PAGE if published else 8 * PAGE
    # in the registration, and in the middle of publishing
    assert reached[0] == 0
    assert len(set(reached)) > 3
    assert len(published) == 2 * WINDOWS


@pytest.mark.parametrize("room", [512, 40_000, 120_000])
def test_a_full_disk_of_the_server_log_loses_no_row(
    server: PostgresServer, disk: SmallDisk, tally: Tally, room: int
) -> None:
    """So many bytes of log into the jobs the server has no room for more, and then no way to come up before it has."""
    url = server.url
    with Store(url, create=True) as store:
        store.domains()
    log = Path(execute(url, "select setting from pg_settings where name = 'data_directory'")) / "pg_wal"
    server.stop()
    owner = server_user()
    moved = disk.folder / "wal"
    subprocess.run(["cp", "-a", log, moved], check=True)
    subprocess.run(["rm", "-r", log], check=True)
    log.symlink_to(moved)
    os.lchown(log, owner.pw_uid, owner.pw_gid)
    server.start()
    segment = execute(url, "select setting::bigint from pg_settings where name = 'wal_segment_size'")
    # the next segments are written already, so as to be ready: they are used up first
    execute(url, "checkpoint")
    ahead = len(list(moved.glob("0000*"))) - 1
    disk.fill(0)
    for _ in range(ahead):
        execute(url, "select pg_logical_emit_message(false, 'x', repeat('x', 100))", "select pg_switch_wal()")
    at = execute(url, "select (pg_current_wal_insert_lsn() - '0/0')::bigint") % segment
    execute(url, f"select pg_logical_emit_message(false, 'x', repeat('x', {int((segment - at - room) * 0.998)}))")
    said: dict[str, dict[str, Any]] = {}
    error = None
    while error is None:
        name = f"homes-{len(said)}"
        said[name], error = publish(url, name)
    # where it strikes a commit the server panics, elsewhere it still has the time to say why
    assert isinstance(error, StoreAway), error
    assert "nothing is published that is not on record" in str(error)
    power_cut(server)
    disk.clear()
    server.start()
    for name, published in said.items():
        complete(url, name, published, tally)
