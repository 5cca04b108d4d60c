"""Connections to a ledger: one for each process, with the settings of its engine.

All stores of a process with the same address share one :class:`Database`. Before a fork its connection is closed, once
a running transaction has ended: SQLite's locks belong to the process and its library remembers them, so a child that
inherits an open file and opens it again believes it holds locks that it does not.

A driver's text may quote a row ("Failing row contains ...") or the connection string, so of its errors only the kind is
used: the SQLSTATE of PostgreSQL, and of SQLite the fixed phrases of its error codes.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import select
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, DisconnectionError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry

from . import layout, sqlite_file, tables
from .address import WATCH, Ask, Continuity, StoreAddress
from .errors import (
    AddressError,
    NotDurableError,
    StoreAway,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreMisplaced,
    StoreMissing,
    StoreReadOnly,
    StoreStandby,
    StoreUnavailable,
    UnknownNameError,
)
from .integrity import checked_rows, damaged
from .sqlite_file import Identity, identity, log_of

if TYPE_CHECKING:
    from .accounts import Account
    from .recorded_rows import ChargedThrough

#: Execution options of SQLite's transactions: one that writes, and a statement without a transaction around it.
WRITES = "quiltstream_writes"
BARE = "quiltstream_bare"

#: In the ``info`` of a connection to an SQLite file: the path of the log that it writes to, and which file that is.
LOG = "quiltstream_log"

Check = Callable[[Ask], None]
"""What a new connection is held against; it may raise an error of the store."""

_LOGGING_NAME = "quiltstream"
_LEFT = "quiltstream_left"

#: In the ``info`` of a connection to a pooler: what each transaction tells the server.
_TOLD = "quiltstream_told"

#: A server's connection that was not used for so long is asked whether it still is one.
_SILENCE_S = 10.0

#: Between two tries to switch a new file of SQLite to its log.
_RETRY_SECONDS = 0.02

#: Settings of synchronous_commit with which a confirmed commit survives a crash of the server and of its standbys.
_DURABLE = ("on", "remote_apply")

# Rows and connection details would be logged at DEBUG by these, whatever the root logger's level is.
for _logger in ("engine.Engine", "pool.impl.QueuePool"):
    logging.getLogger(f"sqlalchemy.{_logger}.{_LOGGING_NAME}").setLevel(logging.WARNING)


def _engine(url: sa.URL | str, **options: Any) -> Engine:
    """An engine with one connection, which says nothing of what goes over it."""
    return sa.create_engine(
        url,
        hide_parameters=True,
        logging_name=_LOGGING_NAME,
        pool_logging_name=_LOGGING_NAME,
        poolclass=sa.QueuePool,
        pool_size=1,
        max_overflow=0,
        **options,
    )


def sqlite_engine(path: Path, wait: float, check: Check | None = None, *, immutable: bool = False) -> Engine:
    """An engine of an SQLite file that is there, whose commits are on the disk when they return. It makes no file.

    An immutable one, on a disk that is mounted read-only, is read without a lock.
    """
    # as a URI the path must not end at a question mark or a hash sign of its own
    uri = f"{path.absolute().as_uri()}?mode={'ro&immutable=1' if immutable else 'rw'}"

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(uri, timeout=wait, check_same_thread=False, uri=True)

    engine = _engine("sqlite://", creator=connect)

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, record: ConnectionPoolEntry) -> None:
        # transactions begin where `begin` below says so, not where the driver guesses
        connection.isolation_level = None
        if not immutable:
            _use_write_ahead_log(connection, wait)
            for pragma in ("synchronous=FULL", "fullfsync=ON", "secure_delete=ON", "foreign_keys=ON"):
                connection.execute(f"PRAGMA {pragma}")
            connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()  # the log is opened by what reads
            record.info[LOG] = (log := log_of(path)), identity(log)
        if check is not None:
            check(lambda statement: connection.execute(statement).fetchone())

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        options = connection.get_execution_options()
        if not options.get(BARE, False):
            connection.exec_driver_sql("BEGIN IMMEDIATE" if options.get(WRITES, False) else "BEGIN")

    return engine


def _use_write_ahead_log(connection: sqlite3.Connection, wait: float) -> None:
    """Switch a new file to WAL; SQLite does not wait for its own lock here when two processes do it at once."""
    deadline = time.monotonic() + wait
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
            if mode != "wal":
                mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_SECONDS)
            continue
        if mode != "wal":
            raise StoreUnavailable(
                "ledger: its disk does not support SQLite's write-ahead log (a network file system?); "
                "use a local disk, or PostgreSQL"
            )
        return


def _parameters(url: sa.URL) -> dict[str, Any]:
    """What a connection to a server is made with where its address does not say it."""
    defaults: dict[str, Any] = {
        "connect_timeout": 10,
        "application_name": "quiltstream",
        # a machine that is gone without a word is noticed within two minutes, and not after the system's two hours
        "keepalives_idle": 30,
        "keepalives_interval": 15,
        "keepalives_count": 6,
        # without one OpenSSL asks for that of an encrypted key, at the terminal or on standard input; others ignore it
        "sslpassword": "none",
    }
    return {name: value for name, value in defaults.items() if name not in url.query}


def server_engine(url: sa.URL, wait: float, check: Check | None, password: Callable[[], str | None]) -> Engine:
    """An engine of PostgreSQL; a connection to a server that may forget a commit is refused.

    A pooler may give each transaction another connection of the server. There parameters of a session do not hold, so
    each transaction sets its own; and a prepared statement may be another client's of the same name, so none is used.
    The password is read anew, and ``check`` asked, for each new connection; ``wait`` is seconds to wait for a lock.
    """
    engine = _engine(
        url,
        # after a wait for the domain's row, the next statement must see what the other one wrote
        isolation_level="READ COMMITTED",
        connect_args={
            **_parameters(url),
            # the driver gives bytes for texts where a database has no encoding
            "client_encoding": "utf8",
            "prepare_threshold": None,
        },
    )

    _log_in_with(engine, password)

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, record: ConnectionPoolEntry) -> None:
        with connection.cursor() as cursor:
            told = {
                # a server whose configuration changes while a job runs changes the sessions that have not set it
                "synchronous_commit": _durable(cursor),
                "lock_timeout": str(max(1, int(wait * 1_000))),
                # a worker that froze inside a transaction must not stop all others for ever
                "idle_in_transaction_session_timeout": "10min",
                # with 0 or less the server rounds numbers, which are then not what was written and look damaged
                "extra_float_digits": "3",
            }
            _tell(cursor.execute, told, "session")
            if cursor.execute("SELECT pg_backend_pid()").fetchone()[0] != connection.info.backend_pid:
                record.info[_TOLD] = told
            if check is not None:
                check(lambda statement: cursor.execute(statement).fetchone())
        connection.commit()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        told = connection.info.get(_TOLD)
        if told is not None and connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
            _tell(connection.exec_driver_sql, told, "transaction")

    @event.listens_for(engine, "checkin")
    def leave(_connection: Any, record: ConnectionPoolEntry) -> None:
        record.info[_LEFT] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def revive(connection: Any, record: ConnectionPoolEntry, _proxy: Any) -> None:
        # A server may have been restarted between two bundles. To ask it would cost each transaction a message more;
        # The server sends data unasked only when it closes the connection; ping after a long idle time.
        left = record.info.get(_LEFT)
        if left is None:  # made just now
            return
        silent = time.monotonic() - left > _SILENCE_S
        if _says_something(connection) or (silent and not _answers(engine, connection)):
            raise DisconnectionError  # the pool connects again

    return engine


def _password_in(url: sa.URL) -> str | None:
    """The password of an address, which has it before the host or among its parameters."""
    found = url.query.get("password", url.password)
    return found if found is None or isinstance(found, str) else found[-1]


def _log_in_with(engine: Engine, password: Callable[[], str | None]) -> None:
    """Read the password anew for each new connection."""

    @event.listens_for(engine, "do_connect")
    def log_in(_dialect: Any, _record: Any, _arguments: Any, parameters: dict[str, Any]) -> None:
        if (found := password()) is not None:
            parameters["password"] = found


def _durable(cursor: Any) -> str:
    """See that a server keeps what it has confirmed; its ``synchronous_commit``."""
    for name in ("fsync", "synchronous_commit"):
        value = cursor.execute(f"SHOW {name}").fetchone()[0]
        if value not in _DURABLE:
            raise NotDurableError(
                f"ledger: the server has {name} = {value}, so it may forget a row that was already published; "
                f"set {name} = on for this database or user"
            )
    return value


def _tell(execute: Callable[[str, tuple[str, ...]], Any], told: Mapping[str, str], scope: str) -> None:
    """Set parameters of the server for a session or a transaction."""
    local = "true" if scope == "transaction" else "false"
    execute("SELECT " + ", ".join(f"set_config('{name}', %s, {local})" for name in told), tuple(told.values()))


def _says_something(connection: Any) -> bool:
    """Whether there is something to read from a server."""
    asked = select.poll()
    asked.register(connection.fileno(), select.POLLIN)
    return bool(asked.poll(0))


def _answers(engine: Engine, connection: Any) -> bool:
    """Whether a server answers; what it says against it is not for this."""
    dialect = engine.dialect
    try:
        return bool(dialect.do_ping(connection))
    except dialect.loaded_dbapi.Error as error:
        if dialect.is_disconnect(error, connection, None):
            return False
        raise


class Database:
    """The connection of this process to one ledger, and what is remembered beside it.

    Attributes:
        address: where the ledger is.
        process: the process it belongs to.
        accounts: running ledgers by domain id; dropped whenever a transaction fails.
        charged_through: how far queries were seen charged, by domain, name and digest.
        users: how many stores share it.
    """

    def __init__(self, address: StoreAddress, wait: float) -> None:
        self.address = address
        self.process = os.getpid()
        self.accounts: dict[int, Account] = {}
        self.charged_through: dict[tuple[str, str, str], ChargedThrough] = {}
        self.users = 0
        self.lock = threading.RLock()
        self._known = Continuity(address)
        self._wait = wait
        self._engine: Engine | None = None
        self._password: str | None = None
        self._file: Identity | None = None
        self._path: Path | None = None
        self._busy = False
        self._ready = False
        self._whole: tuple[int, int] | None = None  # of a file that is read only, as it was when it was opened

    def open(self, *, create: bool = False, over: bool = False, expected: str | None = None) -> str:
        """Connect and check the tables.

        Args:
            create: make them where there is no ledger; never where one is known.
            over: with ``create``, also in the place of an SQLite file that was emptied.
            expected: name of the ledger that must be there.

        Returns:
            The name of the ledger.

        Raises:
            StoreMissing: there is none, and none was known or is to be made.
            StoreReplaced: another ledger is there, or none although one is expected.
            StoreError: the ledger cannot be used; the subclass says why.
        """
        with self.lock:
            if not self._ready:
                before = self._known.store_id
                self._known.store_id = before or expected
                try:
                    self._make_ready(create=create and self._known.store_id is None, over=over)
                except BaseException:
                    self._known.store_id = before
                    raise
            found = self._known.store_id
            if found is None or expected not in (None, found):
                raise Continuity(self.address, expected).replaced("another ledger is there", found)
            return found

    def _make_ready(self, *, create: bool, over: bool) -> None:
        self._prepare(create=create, over=over)
        with self.read() as connection:
            version = layout.version_of(connection, self.address)
        if version is None and not create:
            raise self._nothing_there(None if not self.address.is_sqlite else "its file holds no tables")
        path = self._path
        if version is None and path is not None:
            if not over:
                raise self._known.replaced("its file holds no tables, and a ledger is never without: it was emptied")
            opened = self._file
            self._make(over=lambda: sqlite_file.identity(path) == opened)
        elif version is None:
            with self.write() as connection:
                layout.make(connection, self.address)
        else:
            layout.check(version, self.address)
        with self.read() as connection:
            found = connection.scalar(sa.select(tables.meta.c.store_id))
        if found is None:
            raise damaged("its own row", "was removed")
        self._known.check_store(found)
        self._known.store_id, self._ready = found, True

    def try_to_make(self) -> None:
        """Make the tables where there are none, and undo it."""
        if self.address.is_sqlite:
            self._make(over=lambda: False)
            return
        with self.write() as connection:
            trial = connection.begin_nested()
            layout.make(connection, self.address)
            trial.rollback()

    @contextmanager
    def write(self) -> Generator[Connection]:
        """A transaction that holds SQLite's only write lock from its start; committed durably, or all undone."""
        if self._whole is not None:
            raise StoreReadOnly(
                f"ledger {self.address}: its disk is mounted read-only, so it can be looked at only; {_STOPS}"
            )
        with self.lock:
            self._known.entered.clear()
            with self._transaction(**{WRITES: True}) as connection:
                yield connection
            self._known.committed()

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
            self._require()  # what was read is of one moment

    def disconnect(self) -> None:
        """Close the connection if no transaction is running; the next use opens a new one."""
        if self._engine is not None:
            self._engine.dispose()

    def change(self) -> str | None:
        """What happened to the file since it was opened, in words; ``None`` if it is still the one at the address."""
        if self._file is None or self._path is None:
            return None
        changed = sqlite_file.change(self._path, self._file)
        # its folder may be writable by another mount, and SQLite looks for no lock and no log of what it reads as fixed
        if changed is None and self._whole not in (None, sqlite_file.whole(self._path)):
            return _WRITTEN
        return changed

    def _prepare(self, *, create: bool = False, over: bool = False) -> None:
        if self._engine is not None:
            return
        self.address.check_driver()
        url, check = self.address.resolve(), self._known.check_connection
        if not self.address.is_sqlite:
            self._password = _password_in(url)
            self._engine = server_engine(url, self._wait, check, self._password_now)
            return
        path = self._path = Path(url.database or "")
        misplaced = sqlite_file.misplaced(sqlite_file.target_of(path), sqlite_file.mounts())
        if misplaced is not None:
            raise StoreMisplaced(f"ledger {self.address}: {misplaced}. Nothing was charged or published")
        try:
            absent, sign = sqlite_file.absence(path)
            if absent:
                if not create or (sign is not None and not over):
                    raise self._nothing_there(sign)
                self._make(over=(lambda: sqlite_file.absence(path)[0]) if over else None)
            sqlite_file.check_usable(path)
            self._check_names(path)
        except OSError as error:
            whole = sqlite_file.whole(path) if error.errno == errno.EROFS and not create else None
            if whole is not None:
                self._engine, self._whole = sqlite_engine(path, self._wait, check, immutable=True), whole
                self._file = sqlite_file.identity(path)
                return
            raise self._unusable(error) from None
        self._engine = sqlite_engine(path, self._wait, check)
        self._file = sqlite_file.identity(path)

    def _password_now(self) -> str | None:
        """The password as it is now; the one read before while its file is just being replaced."""
        with suppress(AddressError):
            self._password = _password_in(self.address.resolve())
        return self._password

    def _make(self, *, over: Callable[[], bool] | None) -> None:
        """Make an SQLite ledger where there is none, or in the place of a file that was emptied, if it still is."""
        path = self._path
        if path is None:
            raise StoreUnavailable(f"ledger {self.address}: only a file is made so")
        self.disconnect()

        def fill(temporary: Path) -> None:
            engine = sqlite_engine(temporary, self._wait)
            try:
                with self._explained(), engine.connect() as plain:
                    connection = plain.execution_options(**{WRITES: True})
                    with connection.begin():
                        layout.make(connection, self.address)
            finally:
                engine.dispose()

        try:
            sqlite_file.make(path, fill, over=over)
        except OSError as error:
            raise self._unusable(error) from None
        self._file = sqlite_file.identity(path)

    def _check_names(self, path: Path) -> None:
        """See that a file has one name alone."""
        names = path.stat().st_nlink
        if names > 1:
            raise StoreMisplaced(
                f"ledger {self.address}: its file has {names} names (hard links), and SQLite keeps another log for "
                "each: what a job charges by one name is missing by the other, and would be drawn again. Stop all jobs "
                f"that use it, remove the other name (find -inum {path.stat().st_ino}) and keep the one whose log "
                f"{path.name}-wal is there; copies are made by quiltstream ledger backup"
            )

    def _unusable(self, error: OSError) -> StoreUnavailable:
        kind = StoreReadOnly if isinstance(error, PermissionError) or error.errno == errno.EROFS else StoreUnavailable
        why = f"the file cannot be opened or created ({os.strerror(error.errno or 0)}); check the path"
        if isinstance(error, PermissionError):
            why = "the file or its folder cannot be written by this user; grant it the right"
        return kind(f"ledger {self.address}: {why}; {_STOPS}")

    def _require(self) -> Engine:
        if self._engine is None:
            raise StoreUnavailable(f"ledger {self.address}: it is not open")
        changed = self.change()
        if changed == _WRITTEN:
            raise self._rewritten()
        if changed is not None:
            # the open connection would go on writing to a file that no other process sees
            raise self._known.replaced(changed)
        return self._engine

    def _rewritten(self) -> StoreReadOnly:
        return StoreReadOnly(f"ledger {self.address}: {_WRITTEN}; {_NOTHING}")

    def _nothing_there(self, sign: str | None) -> StoreError:
        """What is wrong where no ledger is."""
        if sign is not None or self._known.store_id is not None:
            return self._known.replaced(sign or "there is none any more")
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
        except UnknownNameError:
            self._check_names_of_record()
            raise
        except BaseException as error:
            # what was remembered may be ahead of what is on record
            self.accounts.clear()
            self.charged_through.clear()
            known = explained(error, self.address)
            if isinstance(error, Exception) and self.change() == _WRITTEN:
                known = self._rewritten()  # pages of two moments look damaged
            if isinstance(known, StoreStandby):
                # the address may lead to the primary by now, and an open connection does not
                self.disconnect()
            if self._known.store_id is not None and is_gone(error):
                known = self._known.replaced("its database or its tables are not there any more")
            if known is None:
                raise
            try:
                raise known from None
            finally:
                # not even where a debugger looks: the driver's text may quote a row
                known.__context__ = None

    def _check_names_of_record(self) -> None:
        """Where a name is not on record: see that this is the ledger that was known, with all that was seen of it."""
        if self._known.store_id is None or not self._ready:
            return
        with self._explained(), self._require().connect() as connection:
            found = connection.scalar(sa.select(tables.meta.c.store_id))
            rows = checked_rows(connection, tables.domains, sa.select(tables.domains))
        self._known.check_store(found)
        self._known.check_domains({row["name"]: row["last_sequence"] for row in rows})

    @contextmanager
    def _transaction(self, **options: Any) -> Generator[Connection]:
        with self._used(), self._explained(), self._require().connect() as plain:
            connection = plain.execution_options(**options, **{WATCH: self._known})
            with connection.begin():
                yield connection
            # what was committed to a file that is gone meanwhile is on no record that a later job finds
            self._require()
            log, opened = plain.info.get(LOG, (None, None))
            if opened is not None and sqlite_file.identity(log) != opened:
                raise self._known.replaced(f"its log {log.name} was moved, removed or replaced while the job ran")


_WRITTEN = (
    "its disk is mounted read-only here, and a job writes to it by another mount, so what is read is of no one moment; "
    "read it where it can be written, or read a copy that `quiltstream ledger backup` makes there"
)


#: Tables that a job adds no row to, and those of which it changes rows: the counts of children, and what is drawn.
_NOT_ADDED_TO = (tables.meta,)
_CHANGED = (
    tables.meta,
    tables.domains,
    tables.domain_events,
    tables.queries,
    tables.reservations,
    tables.roster_versions,
    tables.charges,
)
_REMOVED_FROM = (tables.reservations, tables.rosters)

#: Rights that are missing of which a message names so many.
_NAMED = 3


def check_rights(connection: Connection, address: StoreAddress) -> None:
    """See that this user may do at a server what a job does, which a first write to one table does not tell.

    Raises:
        StoreReadOnly: a right is missing.
    """
    asked: dict[str, sa.ColumnElement[Any]] = {}
    for table in tables.metadata.sorted_tables:
        rights = ["SELECT", *("INSERT",) * (table not in _NOT_ADDED_TO), *("UPDATE",) * (table in _CHANGED)]
        for right in rights:
            asked[f"{right} ON {table.name}"] = sa.func.has_any_column_privilege(table.name, right)
        if table in _REMOVED_FROM:
            asked[f"DELETE ON {table.name}"] = sa.func.has_table_privilege(table.name, "DELETE")
        if table not in _NOT_ADDED_TO:
            sequence = sa.func.pg_get_serial_sequence(table.name, "id")
            asked[f"USAGE ON SEQUENCE {table.name}_id_seq"] = sa.func.has_sequence_privilege(sequence, "USAGE, UPDATE")
    found = connection.execute(sa.select(*asked.values())).one()
    # unknown is not missing: a table may have got its numbers in another way
    missing = [name for name, has in zip(asked, found, strict=True) if has is False]
    if missing:
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        raise StoreReadOnly(
            f"ledger {address}: this user has no right to {', '.join(missing[:_NAMED])}{more}; GRANT SELECT, INSERT, "
            f"UPDATE, DELETE ON ALL TABLES and USAGE ON ALL SEQUENCES of its schema; {_STOPS}"
        )


_shared: dict[tuple[str, float], Database] = {}
_shared_lock = threading.RLock()


def borrow(address: StoreAddress, wait: float) -> Database:
    """This process's database of an address; it is opened by its first use."""
    with _shared_lock:
        key = (address.url, wait)
        database = _shared.get(key)
        if database is None or database.change() is not None:
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


_NOTHING = "nothing is published that is not on record"

#: True whenever the job stops: rows leave it only when they are on record.
_STOPS = f"the job stops; {_NOTHING}"

DAMAGED = (
    "the file is damaged or is no ledger; restore the newest backup, and know that what was charged after it is "
    "forgotten then"
)

_SQLITE: tuple[tuple[tuple[str, ...], type[StoreError], str], ...] = (
    (
        ("locked", "busy"),
        StoreBusy,
        "another process kept it locked for too long; look for a job that hangs, or for a program that has it open, "
        "and whether its file system has locks",
    ),
    (("is full",), StoreFull, "there is no room left on its disk; make room, or move it to a larger one"),
    (
        ("readonly", "read-only"),
        StoreReadOnly,
        "it cannot be written; allow this user to write the file and its folder",
    ),
    (("malformed", "not a database", "file is encrypted", "corrupt", "could not decode"), StoreDamaged, DAMAGED),
    (
        ("unable to open", "cannot open"),
        StoreUnavailable,
        "the file cannot be opened; check the path, and that this user may write the file and its folder",
    ),
    (
        ("disk i/o error",),
        StoreUnavailable,
        "its disk, or file system, failed, or has no locks; see the system's log and the quota of this user, or use "
        "another disk of this machine",
    ),
)

_POSTGRES: tuple[tuple[tuple[str, ...], type[StoreError], str], ...] = (
    (("28",), StoreUnavailable, "the server refused the login; check user and password"),
    (("3D000",), StoreUnavailable, "the server has no such database; create it first (createdb)"),
    (
        ("42501",),
        StoreUnavailable,
        "this user may not use the tables and their sequences, or create them; grant it the right",
    ),
    (
        ("25006",),
        StoreStandby,
        "the server takes no writes (a standby, a failover, or default_transaction_read_only = on?); if that stays, "
        "use the address of the primary, or set that to off",
    ),
    (("53100",), StoreFull, "there is no room left on the server's disk; make room"),
    (("53",), StoreAway, "the server is out of connections or memory; use fewer workers or a larger server"),
    (("57014",), StoreBusy, "the server cancelled a statement: is the statement_timeout of this user too short?"),
    (
        ("55P03", "40P01", "40001"),
        StoreBusy,
        "another process kept the domain locked for too long; look for a job that hangs",
    ),
    (("08", "57P", "25P"), StoreAway, "the connection was lost; what was not confirmed is not on record: retry"),
    (("XX001", "XX002"), StoreDamaged, "the server reports damaged data; restore it from a backup"),
)

#: The client's library gives no SQLSTATE for a connection that is refused. A name has at most 63 bytes there.
_NO_DATABASE = re.compile(r'FATAL: {1,4}database "[^"]{0,64}" does not exist')
_REFUSED: tuple[tuple[re.Pattern[str], type[StoreError], str], ...] = (
    (_NO_DATABASE, StoreUnavailable, "the server has no such database; create it first (createdb)"),
    (
        # before the login, which a second try without encryption fails as well
        re.compile(r"FATAL: {1,4}(?:too many connections for|sorry, too many clients|remaining connection slots)"),
        StoreAway,
        "the server is out of connections for this user; use fewer workers, or allow it more",
    ),
    (
        re.compile(
            r'FATAL: {1,4}(?:password authentication failed|role "[^"]{0,64}" does not exist'
            r'|role "[^"]{0,64}" is not permitted to log in|permission denied for database "'
            r"|no pg_hba\.conf entry|pg_hba\.conf rejects|no such database: )|no password supplied"
        ),
        StoreUnavailable,
        "the server, or the pooler before it, refused the login; check user, password, database and sslmode of the "
        "address, the lines of pg_hba.conf, and that this user may connect",
    ),
    (
        # a connection that is cut names SSL, too
        re.compile(
            r"certificate verify failed|does not support SSL|certificate file|server certificate for|private key file"
            r"|requires a valid client certificate"
            r"|SSL error: [a-z0-9 ]{0,20}alert (?:unknown ca|[a-z ]{0,20}certificate)"
        ),
        StoreAway,  # a certificate may be renewed late
        "no encrypted connection to the server can be made; check sslmode, sslrootcert, sslcert and sslkey of its "
        "address, that the host is one of the server's certificate, and that this user alone may read the key",
    ),
    (
        re.compile(
            r"invalid [a-z_ ]{1,40}\b(?:value|integer)|invalid value for|unrecognized configuration parameter"
            r"|FATAL: {1,4}unsupported startup parameter"
        ),
        StoreUnavailable,
        "a parameter of its address, or a value of one, is none that the server, its pooler or its client library "
        "takes; mend the address",
    ),
)


def explained(error: BaseException, address: StoreAddress) -> StoreError | None:
    """The error to raise in place of one of the database's; ``None`` for an error of another origin."""
    original = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(original, UnicodeDecodeError):
        # the driver fails of its own message where that quotes damaged text of the file
        return StoreDamaged(f"ledger {address}: {DAMAGED}; {_STOPS}")
    if isinstance(original, sqlite3.Error):
        return _from_sqlite(original, address)
    if isinstance(error, DBAPIError):
        return _from_server(error, address)
    if isinstance(error, SQLAlchemyError):
        return StoreError(f"ledger {address}: {type(error).__name__}; {_STOPS}")
    return None


#: Of PostgreSQL: no such table, database or schema.
_GONE = ("42P01", "3D000", "3F000")


def is_gone(error: BaseException) -> bool:
    """Whether an error of the database says that it, or a table of the ledger, is not there."""
    original = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(original, sqlite3.Error):
        return "no such table" in str(original).lower()
    # a refused connection has no SQLSTATE
    return isinstance(error, DBAPIError) and (
        getattr(original, "sqlstate", None) in _GONE or _NO_DATABASE.search(str(original)) is not None
    )


def _said(kind: type[StoreError], address: StoreAddress, text: str) -> StoreError:
    """An error in words; a job may wait for what passes, so that it stops is not said of that."""
    return kind(f"ledger {address}: {text}; {_NOTHING if getattr(kind, 'passing', False) else _STOPS}")


def _from_sqlite(error: sqlite3.Error, address: StoreAddress) -> StoreError:
    text = str(error).lower()
    if getattr(error, "sqlite_errorname", None) == "SQLITE_IOERR_SHMSIZE":  # for which any disk error is the phrase
        text = "disk is full"
    for phrases, kind, advice in _SQLITE:
        if any(phrase in text for phrase in phrases):
            return _said(kind, address, advice)
    return _said(StoreError, address, f"the database refused a statement ({type(error).__name__})")


def _from_server(error: DBAPIError, address: StoreAddress) -> StoreError:
    state, name = getattr(error.orig, "sqlstate", None), type(error.orig).__name__
    if state is None:
        if name in ("OperationalError", "InterfaceError", "ConnectionTimeout"):
            for pattern, kind, advice in _REFUSED:
                if pattern.search(str(error.orig)):
                    return _said(kind, address, advice)
            advice = "the server cannot be reached; check host, port, target_session_attrs and that it runs"
            return _said(StoreAway, address, advice)
        if name == "ProgrammingError":
            advice = "its address has a parameter, or a value of one, that the driver does not take; mend the address"
            return _said(StoreUnavailable, address, advice)
        return _said(StoreError, address, name)
    for prefixes, kind, advice in _POSTGRES:
        if str(state).startswith(prefixes):
            return _said(kind, address, f"{advice} (SQLSTATE {state})")
    return _said(StoreError, address, f"the server refused a statement (SQLSTATE {state})")
