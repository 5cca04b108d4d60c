"""One connection a process: opened on first use, never carried over a fork, used by one thread at a time.

All stores of a process with the same address share one :class:`Database`. Before a fork its connection is closed, once
a running transaction has ended: SQLite's locks belong to the process and its library remembers them, so a child that
inherits an open file and opens it again believes it holds locks that it does not.
"""

from __future__ import annotations

import errno
import os
import secrets
import sqlite3
import threading
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy.engine import Connection, Engine

from . import schema
from .address import StoreAddress
from .engines import BARE, WRITES, server_engine, sqlite_engine, still_engine
from .errors import StoreError, StoreMissing, StoreReadOnly, StoreUnavailable
from .faults import explained
from .writer_queue import WriterQueue

if TYPE_CHECKING:
    from .accounts import Account
    from .lookups import Settled


class Database:
    """The connection of this process to one ledger, and what is remembered beside it.

    Attributes:
        address: where the ledger is.
        process: the process it belongs to.
        accounts: running ledgers by domain id; dropped whenever a transaction fails.
        settled: what was seen on record of queries, by domain, name and digest.
        users: how many stores share it.
    """

    def __init__(self, address: StoreAddress, wait: float) -> None:
        self.address = address
        self.process = os.getpid()
        self.accounts: dict[int, Account] = {}
        self.settled: dict[tuple[str, str, str], Settled] = {}
        self.users = 0
        self.lock = threading.RLock()
        self._wait = wait
        self._engine: Engine | None = None
        self._file: tuple[int, int] | None = None
        self._path: Path | None = None
        self._queue: WriterQueue | None = None
        self._busy = False
        self._ready = False
        self._read_only = False

    def open(self, *, create: bool) -> None:
        """Connect and check the tables; make them where there are none.

        Raises:
            StoreError: the ledger cannot be used; the subclass says why.
        """
        with self.lock:
            if self._ready:
                return
            self._prepare(create=create)
            with self.read() as connection:
                version = schema.version_of(connection, self.address)
            if version is None:
                if not create:
                    raise self._nothing_there()
                with self.write() as connection:
                    schema.upgrade(connection, self.address)
            else:
                schema.check(version, self.address)
            self._ready = True

    def migrate(self) -> None:
        """Bring older tables to this program's version."""
        with self.lock:
            self._prepare(create=False)
            with self.write() as connection:
                if schema.version_of(connection, self.address) is None:
                    raise self._nothing_there()
                schema.upgrade(connection, self.address)

    @contextmanager
    def write(self) -> Generator[Connection]:
        """A transaction that holds SQLite's only write lock from its start; committed durably, or all undone."""
        if self._read_only:
            raise StoreReadOnly(
                f"ledger {self.address}: its disk is mounted read-only, so it can be looked at only; the job stops; "
                "nothing is published that is not on record"
            )
        with self._transaction(**{WRITES: True}) as connection:
            yield connection

    @contextmanager
    def read(self) -> Generator[Connection]:
        """A transaction that sees one state of the ledger and writes nothing."""
        options = {} if self.address.is_sqlite else {"isolation_level": "REPEATABLE READ"}
        with self._transaction(**options) as connection:
            yield connection

    @contextmanager
    def glance(self) -> Generator[Connection]:
        """For one statement that reads: it sees one state of the ledger without a transaction around it."""
        options = {BARE: True} if self.address.is_sqlite else {"isolation_level": "AUTOCOMMIT"}
        with self._transaction(**options) as connection:
            yield connection

    @contextmanager
    def raw_sqlite(self) -> Generator[sqlite3.Connection]:
        """The driver's own connection, outside any transaction, for SQLite's backup and checks."""
        with self._used(), self._explained(), self._require().connect() as connection:
            raw = connection.connection.driver_connection
            if not isinstance(raw, sqlite3.Connection):
                raise StoreUnavailable(f"ledger {self.address}: this needs an SQLite file")
            yield raw

    def disconnect(self) -> None:
        """Close the connection if no transaction is running; the next use opens a new one."""
        if self._engine is not None:
            self._engine.dispose()
        if self._queue is not None:
            self._queue.close()

    @property
    def replaced(self) -> bool:
        """Whether the file that was opened is no longer the one at the address."""
        return self._file is not None and self._path is not None and _identity(self._path) != self._file

    def _prepare(self, *, create: bool) -> None:
        if self._engine is not None:
            return
        self.address.check_driver()
        url = self.address.resolve()
        if not self.address.is_sqlite:
            self._engine = server_engine(url, self._wait)
            return
        self._path = Path(url.database or "")
        if not self._path.exists() and not create:
            raise self._nothing_there()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _make_or_try(self._path)
        except PermissionError:
            raise StoreReadOnly(
                f"ledger {self.address}: the file or its folder cannot be written by this user; grant it the right; "
                f"the job stops; nothing is published that is not on record"
            ) from None
        except OSError as error:
            if error.errno == _READ_ONLY_DISK and not create and _is_whole(self._path):
                # nobody can write there, so what is read cannot change meanwhile
                self._engine, self._read_only = still_engine(self._path, self._wait), True
                self._file = _identity(self._path)
                return
            kind = StoreReadOnly if error.errno == _READ_ONLY_DISK else StoreUnavailable
            raise kind(
                f"ledger {self.address}: the file cannot be opened or created ({os.strerror(error.errno or 0)}); "
                f"check the path; the job stops; nothing is published that is not on record"
            ) from None
        self._engine = sqlite_engine(url, self._wait)
        self._queue = WriterQueue(self._path, self._wait)
        self._file = _identity(self._path)

    def _require(self) -> Engine:
        if self._engine is None:
            raise StoreUnavailable(f"ledger {self.address}: it is not open")
        if self.replaced:
            # the open connection would go on writing to a file that nobody else sees
            raise StoreUnavailable(
                f"ledger {self.address}: its file was moved, removed or replaced while the job ran; stop all jobs that "
                f"use it and put the file back: what it holds was charged"
            )
        return self._engine

    def _nothing_there(self) -> StoreMissing:
        return StoreMissing(f"ledger {self.address}: there is none; check the address, or run the job that creates it")

    @contextmanager
    def _used(self) -> Generator[None]:
        with self.lock:
            if self._busy:
                raise StoreError("ledger: a draft's draw must not use the store, its transaction is running")
            self._busy = True
            try:
                yield
            finally:
                self._busy = False

    @contextmanager
    def _explained(self) -> Generator[None]:
        try:
            yield
        except BaseException as error:
            # what was remembered may be ahead of what is on record
            self.accounts.clear()
            self.settled.clear()
            known = explained(error, self.address)
            if known is None:
                raise
            try:
                raise known from None
            finally:
                # not even where a debugger looks: the driver's text may quote a row
                known.__context__ = None

    @contextmanager
    def _transaction(self, **options: Any) -> Generator[Connection]:
        with self._used(), self._explained(), self._require().connect() as plain, self._turn(**options):
            connection = plain.execution_options(**options)
            with connection.begin():
                yield connection

    def _turn(self, **options: Any) -> AbstractContextManager[None]:
        return self._queue.turn() if self._queue is not None and options.get(WRITES, False) else nullcontext()


_READ_ONLY_DISK = errno.EROFS


def _make_or_try(path: Path) -> None:
    """Make an empty file for its owner alone, or see that the one that is there may be read and written.

    A file that is there is not opened: to close it again would drop all locks that other connections of this process
    hold on it, and the next process to close the ledger would take the log away that they still write to.

    Raises:
        OSError: neither can be done.
    """
    try:
        # drawn noise is for the owner of the process until it is published: nobody else may read the file
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)) from None
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS)) from None
        usable = os.R_OK | os.W_OK
        if not os.access(path, usable, effective_ids=os.access in os.supports_effective_ids):
            raise PermissionError from None


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_whole(path: Path) -> bool:
    """Whether a ledger is all in its file: what is in the log beside it can be read only where it can be written."""
    log = path.with_name(f"{path.name}-wal")
    return path.is_file() and not (log.exists() and log.stat().st_size)


def check_folder(address: StoreAddress) -> None:
    """Try whether a new SQLite ledger could be made.

    Raises:
        StoreReadOnly: nothing can be written in its folder, or the folder cannot be made.
    """
    path = Path(address.resolve().database or "")
    trial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        trial.touch(mode=0o600, exist_ok=False)
        trial.unlink()
    except OSError as error:
        raise StoreReadOnly(
            f"ledger {address}: nothing can be written in its folder ({os.strerror(error.errno or 0)}); check the path "
            f"and the rights of this user; the job stops; nothing is published that is not on record"
        ) from None


_shared: dict[tuple[str, float], Database] = {}
_shared_lock = threading.RLock()


def borrow(address: StoreAddress, wait: float) -> Database:
    """This process's database of an address; it is opened by its first use."""
    with _shared_lock:
        key = (address.url, wait)
        database = _shared.get(key)
        if database is None or database.replaced:
            database = _shared[key] = Database(address, wait)
        database.users += 1
        return database


def give_back(database: Database) -> None:
    """End one use; the last one closes the connection. In a forked child there is nothing to close."""
    if database.process != os.getpid():
        return
    with _shared_lock:
        database.users -= 1
        if database.users > 0:
            return
        for key in [key for key, held in list(_shared.items()) if held is database]:
            del _shared[key]
    database.disconnect()


_held_for_fork: list[Database] = []


def _before_fork() -> None:
    # Databases first, then the list: a thread inside a transaction may give another database back at any moment,
    # because that happens when a store is collected.
    while True:
        for database in list(_shared.values()):
            if database not in _held_for_fork:
                database.lock.acquire()
                _held_for_fork.append(database)
        _shared_lock.acquire()
        if all(database in _held_for_fork for database in _shared.values()):
            break
        _shared_lock.release()
    for database in _held_for_fork:
        database.disconnect()


def _after_fork_in_parent() -> None:
    while _held_for_fork:
        _held_for_fork.pop().lock.release()
    _shared_lock.release()


def _after_fork_in_child() -> None:
    global _shared_lock  # noqa: PLW0603 - the parent's lock may be waited for by threads that do not exist here
    _held_for_fork.clear()
    _shared.clear()
    _shared_lock = threading.RLock()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
