"""Engines of SQLite and PostgreSQL, whose commits are durable when they return, and the errors of their drivers.

A driver's text may quote a row ("Failing row contains ...") or the connection string, so of its errors only the code is
used: the SQLSTATE of PostgreSQL, and the result code of SQLite. A server that refuses a login gives none.
"""

from __future__ import annotations

import logging
import re
import sqlite3
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry

from .address import StoreAddress
from .errors import StoreAway, StoreConflict, StoreDamaged, StoreError
from .files import Identity, identity, log_of

#: Execution option of SQLite's transactions that write.
WRITES = "quiltstream_writes"

#: In the ``info`` of a connection to an SQLite file: the path of the log that it writes to, and which file that is.
LOG = "quiltstream_log"

#: In the ``info`` of a connection to a pooler: what each transaction tells the server.
_TOLD = "quiltstream_told"

_LOGGING_NAME = "quiltstream"

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


def sqlite_engine(path: Path, wait: float, *, immutable: bool = False, new: bool = False) -> Engine:
    """An engine of an SQLite file that is there. It makes no file.

    An immutable one, on a disk that is mounted read-only, is read without a lock. A new one is all in its file when a
    transaction is committed, so that an error of the disk is the commit's.
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
        # bytes that are no text are found by the digest of their row
        connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
        if immutable:
            return
        if not new:
            _use_write_ahead_log(connection, wait)
        for pragma in ("synchronous=FULL", "fullfsync=ON", "secure_delete=ON"):
            connection.execute(f"PRAGMA {pragma}")
        if not new:
            connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()  # the log is opened by what reads
            record.info[LOG] = (log := log_of(path)), identity(log)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get(WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

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
            if error.sqlite_errorcode & 0xFF not in _BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_SECONDS)
            continue
        if mode != "wal":
            raise StoreConflict(
                "ledger: its disk does not support SQLite's write-ahead log (a network file system?); "
                "use a local disk, or PostgreSQL"
            )
        return


def log_opened(connection: Connection) -> tuple[Path, Identity] | None:
    """The log that a connection to an SQLite file writes to."""
    log, opened = connection.info.get(LOG, (None, None))
    return None if log is None or opened is None else (log, opened)


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


def server_engine(url: sa.URL, wait: float, password: Callable[[], str | None]) -> Engine:
    """An engine of PostgreSQL; a connection to a server that may forget a commit is refused.

    A pooler may give each transaction another connection of the server. There parameters of a session do not hold, so
    each transaction sets its own; and a prepared statement may be another client's of the same name, so none is used.
    The password is read anew for each new connection; ``wait`` is seconds to wait for a lock.
    """
    engine = _engine(
        url,
        # a server may have been restarted between two bundles
        pool_pre_ping=True,
        # after a wait for the domain's row, the next statement must see what the other one wrote
        isolation_level="READ COMMITTED",
        # the driver gives bytes for texts where a database has no encoding
        connect_args={**_parameters(url), "client_encoding": "utf8", "prepare_threshold": None},
    )

    @event.listens_for(engine, "do_connect")
    def log_in(_dialect: Any, _record: Any, _arguments: Any, parameters: dict[str, Any]) -> None:
        if (found := password()) is not None:
            parameters["password"] = found

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, record: ConnectionPoolEntry) -> None:
        with connection.cursor() as cursor:
            told = {
                # a server whose configuration changes while a job runs changes the sessions that have not set it
                "synchronous_commit": _durable(cursor),
                "lock_timeout": str(max(1, int(wait * 1_000))),
                # a worker that froze inside a transaction must not stop all others for ever
                "idle_in_transaction_session_timeout": "10min",
            }
            _tell(cursor.execute, told, "session")
            if cursor.execute("SELECT pg_backend_pid()").fetchone()[0] != connection.info.backend_pid:
                record.info[_TOLD] = told
        connection.commit()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        told = connection.info.get(_TOLD)
        if told is not None:
            _tell(connection.exec_driver_sql, told, "transaction")

    return engine


def _durable(cursor: Any) -> str:
    """See that a server keeps what it has confirmed; its ``synchronous_commit``."""
    value = ""
    for name in ("fsync", "synchronous_commit"):
        value = cursor.execute(f"SHOW {name}").fetchone()[0]
        if value not in _DURABLE:
            raise StoreConflict(
                f"ledger: the server has {name} = {value}, so it may forget a row that was already published; "
                f"set {name} = on for this database or user"
            )
    return value


def _tell(execute: Callable[[str, tuple[str, ...]], Any], told: Mapping[str, str], scope: str) -> None:
    """Set parameters of the server for a session or a transaction."""
    local = "true" if scope == "transaction" else "false"
    execute("SELECT " + ", ".join(f"set_config('{name}', %s, {local})" for name in told), tuple(told.values()))


NOTHING = "nothing is published that is not on record"

#: True whenever the job stops: rows leave it only when they are on record.
STOPS = f"the job stops; {NOTHING}"

DAMAGED = (
    "the file is damaged or is no ledger; restore the newest backup, and know that what was charged after it is "
    "forgotten then"
)

_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)

_SQLITE: dict[int, tuple[type[StoreError], str]] = {
    **dict.fromkeys(
        _BUSY,
        (
            StoreAway,
            "another process kept it locked for too long; look for a job that hangs, or for a program that has it open",
        ),
    ),
    sqlite3.SQLITE_FULL: (StoreAway, "there is no room left on its disk; make room, or move it to a larger one"),
    sqlite3.SQLITE_READONLY: (
        StoreConflict,
        "it cannot be written; allow this user to write the file and its folder",
    ),
    sqlite3.SQLITE_CORRUPT: (StoreDamaged, DAMAGED),
    sqlite3.SQLITE_NOTADB: (StoreDamaged, DAMAGED),
    sqlite3.SQLITE_CANTOPEN: (
        StoreConflict,
        "the file cannot be opened; check the path, and that this user may write the file and its folder",
    ),
    sqlite3.SQLITE_IOERR: (
        StoreAway,
        "its disk failed, or has no room or no locks; see the system's log and the quota of this user, or use another "
        "disk of this machine",
    ),
}

_POSTGRES: tuple[tuple[tuple[str, ...], type[StoreError], str], ...] = (
    (("28", "3D000", "42501"), StoreConflict, "the server refused the login, the database or a table; check rights"),
    (("25006",), StoreAway, "the server takes no writes now; if that stays, use the address of the primary"),
    (("53100",), StoreAway, "there is no room left on the server's disk; make room"),
    (
        ("55P03", "40P01", "40001", "57014"),
        StoreAway,
        "another process kept the domain locked for too long; look for a job that hangs",
    ),
    (("08", "53", "57P", "25P"), StoreAway, "the connection was lost, or the server has none left; retry"),
    (("XX001", "XX002"), StoreDamaged, "the server reports damaged data; restore it from a backup"),
)

#: The client's library gives no SQLSTATE for a login that is refused. A name has at most 63 bytes there.
_REFUSED = re.compile(
    r'FATAL: {1,4}(?:password authentication failed|role "[^"]{0,64}" (?:does not exist|is not permitted to log in)'
    r'|permission denied for database "|no pg_hba\.conf entry|pg_hba\.conf rejects|no such database: '
    r'|database "[^"]{0,64}" does not exist|unsupported startup parameter)|no password supplied'
    r"|invalid [a-z_ ]{1,40}value|invalid value for"
)
_TOO_MANY = re.compile(r"FATAL: {1,4}(?:too many connections for|sorry, too many clients|remaining connection slots)")
_NO_DATABASE = re.compile(r'FATAL: {1,4}database "[^"]{0,64}" does not exist')


def explained(error: BaseException, address: StoreAddress) -> StoreError | None:
    """The error to raise in place of one of the database's; ``None`` for an error of another origin."""
    original = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(original, UnicodeDecodeError):
        # the driver fails of its own message where that quotes damaged text of the file
        return StoreDamaged(f"ledger {address}: {DAMAGED}; {STOPS}")
    if isinstance(original, sqlite3.Error):
        code = getattr(original, "sqlite_errorcode", sqlite3.SQLITE_IOERR)
        if getattr(original, "sqlite_errorname", None) == "SQLITE_IOERR_SHMSIZE":
            code = sqlite3.SQLITE_FULL
        kind, advice = _SQLITE.get(code & 0xFF, (StoreConflict, "the database refused a statement"))
        return _said(kind, address, advice)
    if isinstance(error, DBAPIError):
        return _from_server(error, address)
    if isinstance(error, SQLAlchemyError):
        return _said(StoreConflict, address, type(error).__name__)
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
    return kind(f"ledger {address}: {text}; {NOTHING if kind is StoreAway else STOPS}")


def _from_server(error: DBAPIError, address: StoreAddress) -> StoreError:
    state, name = getattr(error.orig, "sqlstate", None), type(error.orig).__name__
    if state is not None:
        for prefixes, kind, advice in _POSTGRES:
            if str(state).startswith(prefixes):
                return _said(kind, address, f"{advice} (SQLSTATE {state})")
        return _said(StoreConflict, address, f"the server refused a statement (SQLSTATE {state})")
    if name in ("OperationalError", "InterfaceError", "ConnectionTimeout"):
        text = str(error.orig)
        if _REFUSED.search(text) and not _TOO_MANY.search(text):
            advice = (
                "the server, or the pooler before it, refused the login; check user, password, database and sslmode"
            )
            return _said(StoreConflict, address, advice)
        advice = "the server cannot be reached or has no connection left; check host, port, sslmode and that it runs"
        return _said(StoreAway, address, advice)
    return _said(StoreConflict, address, "its address has a parameter that the driver does not take; mend it")
