"""SQLite's writers wait in the order in which they came, and none waits for one that is gone."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quiltstream.store import Store, sqlite_file
from quiltstream.store.errors import StoreBusy
from quiltstream.store.sqlite_file import WriterQueue

from .samples import domain, query

LONG = 60.0


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@contextmanager
def queue_of(ledger: Path, wait: float = LONG) -> Generator[WriterQueue]:
    queue = WriterQueue(ledger, wait)
    yield queue
    queue.close()


def numbers(ledger: Path) -> tuple[int, int]:
    """The last number taken, and the last one whose turn it was."""
    return sqlite_file._NUMBERS.unpack(ledger.with_name("ledger.db-queue").read_bytes().ljust(16, b"\0"))


def test_queued_writers_are_served_in_order_of_request(ledger: Path) -> None:
    came: list[int] = []

    def write(number: int) -> None:
        with queue_of(ledger) as queue, queue.turn():
            came.append(number)

    threads: list[threading.Thread] = []
    with queue_of(ledger) as first:
        with first.turn():
            for number in range(8):
                taken = numbers(ledger)[0]
                threads.append(threading.Thread(target=write, args=(number,)))
                threads[-1].start()
                while numbers(ledger)[0] == taken:
                    time.sleep(0.001)
            assert came == []
        with first.turn():
            # it asked again before anyone looked, and is behind them all
            came.append(-1)
        for thread in threads:
            thread.join()
    assert came == [0, 1, 2, 3, 4, 5, 6, 7, -1]


def test_a_killed_queued_writer_blocks_no_other_writer(ledger: Path) -> None:
    for _ in range(2):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            with queue_of(ledger) as queue:
                held = queue.turn()
                held.__enter__()
                os.write(writing, b"x")
                signal.pause()
        assert os.read(reading, 1) == b"x"
        os.close(reading)
        os.close(writing)
        locked = pytest.raises(sqlite3.OperationalError, match="locked")
        with queue_of(ledger, 0.05) as impatient, locked, impatient.turn():
            pass
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with queue_of(ledger) as next_one, next_one.turn():
            assert numbers(ledger)[0] == numbers(ledger)[1]


def test_a_timeout_in_the_writer_queue_is_reported_as_a_locked_ledger(ledger: Path) -> None:
    with Store(f"sqlite:///{ledger}", wait=0.1, create=True) as store:
        store.domains()
        with queue_of(ledger) as other, other.turn():
            with pytest.raises(StoreBusy, match="locked for too long"):
                store.register(domain(), query())
            # who only reads does not wait
            assert store.domains() == ()
        assert store.register(domain(), query()).fresh


def test_a_stopped_queued_writer_blocks_no_other_writer(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_file, "_STOPPED_S", 0.05)
    with Store(f"sqlite:///{ledger}", create=True) as store, queue_of(ledger) as stopped, stopped.turn():
        assert store.register(domain(), query()).fresh
        # the file was closed in its turn: what was done in it stands
        stopped.close()


def test_an_unusable_queue_file_blocks_no_writer(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = ledger.with_name("ledger.db-queue")
    beside.mkdir()
    with Store(f"sqlite:///{ledger}", create=True) as store:
        assert store.register(domain(), query()).fresh
    assert beside.is_dir()
    beside.rmdir()
    monkeypatch.setattr(sqlite_file, "_SET", None)
    with Store(f"sqlite:///{ledger}", create=True) as store:
        assert store.register(domain("others"), query(domain="others")).fresh
    monkeypatch.undo()
    for content in (b"", b"1", b"\x7f" * 16, b"\xff" * 16):
        beside.write_bytes(content)
        for _ in range(3):
            with queue_of(ledger) as queue, queue.turn():
                pass


def test_the_queue_file_is_private_and_removed_with_the_last_writer(ledger: Path) -> None:
    beside = ledger.with_name("ledger.db-queue")
    with queue_of(ledger) as first, queue_of(ledger) as second:
        with first.turn():
            assert beside.stat().st_mode & 0o777 == 0o600
            second.close()
            assert beside.exists()
            with queue_of(ledger, 0.01) as third, pytest.raises(sqlite3.OperationalError), third.turn():
                pass
            assert beside.exists()
        beside.unlink()
        with first.turn():
            assert beside.exists()
    assert not beside.exists()
