"""Engines: how a connection to a ledger is made, and what each one is told before it is used."""

from __future__ import annotations

import logging
import select
import selectors
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry

from .continuity import Ask
from .errors import NotDurableError, StoreUnavailable
from .sqlite_file import identity, log_of

#: Execution options of SQLite's transactions: one that writes, and a statement without a transaction around it.
WRITES = "quiltstream_writes"
BARE = "quiltstream_bare"

#: In the ``info`` of a connection to an SQLite file: the path of the log that it writes to, and which file that is.
LOG = "quiltstream_log"

Check = Callable[[Ask], None]
"""What a new connection is held against; it may raise an error of the store."""

_LOGGING_NAME = "quiltstream"
_LEFT = "quiltstream_left"

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


def _unchecked(_ask: Ask) -> None:
    """Take a new connection whatever ledger it leads to."""


def still_engine(path: Path, wait: float, check: Check = _unchecked) -> Engine:
    """An engine that reads a file on a disk that is mounted read-only, and takes no lock."""

    def connect() -> sqlite3.Connection:
        # as a URI the path must not end at a question mark or a hash sign of its own
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro&immutable=1", timeout=wait, check_same_thread=False, uri=True
        )
        connection.isolation_level = None
        check(lambda statement: connection.execute(statement).fetchone())
        return connection

    return _sqlite("sqlite://", creator=connect)


def sqlite_engine(path: Path, wait: float, check: Check = _unchecked) -> Engine:
    """An engine of an SQLite file that is there, whose commits are on the disk when they return. It makes no file."""

    def connect() -> sqlite3.Connection:
        # a file that vanished since it was looked for is not made anew
        return sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", timeout=wait, check_same_thread=False, uri=True)

    engine = _sqlite("sqlite://", creator=connect)

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, record: ConnectionPoolEntry) -> None:
        # transactions begin where `begin` below says so, not where the driver guesses
        connection.isolation_level = None
        _use_write_ahead_log(connection, wait)
        for pragma in ("synchronous=FULL", "fullfsync=ON", "secure_delete=ON", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()  # the log is opened by what reads
        record.info[LOG] = (log := log_of(path)), identity(log)
        check(lambda statement: connection.execute(statement).fetchone())

    return engine


def _sqlite(url: sa.URL | str, **options: Any) -> Engine:
    """An engine of SQLite, whose transactions begin where they say so."""
    engine = _engine(url, **options)

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


def server_engine(url: sa.URL, wait: float, check: Check = _unchecked) -> Engine:
    """An engine of PostgreSQL; a connection to a server that may forget a commit is refused."""
    defaults: dict[str, Any] = {
        "connect_timeout": 10,
        "application_name": "quiltstream",
        # a machine that is gone without a word is noticed within two minutes, and not after the system's two hours
        "keepalives_idle": 30,
        "keepalives_interval": 15,
        "keepalives_count": 6,
    }
    engine = _engine(
        url,
        # after a wait for the domain's row, the next statement must see what the other one wrote
        isolation_level="READ COMMITTED",
        connect_args={name: value for name, value in defaults.items() if name not in url.query},
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: Any) -> None:
        with connection.cursor() as cursor:
            for name in ("synchronous_commit", "fsync"):
                value = cursor.execute(f"SHOW {name}").fetchone()[0]
                if value not in _DURABLE:
                    raise NotDurableError(
                        f"ledger: the server has {name} = {value}, so it may forget a row that was already published; "
                        f"set {name} = on for this database or user"
                    )
                if name == "synchronous_commit":
                    # a server that is told otherwise while a job runs changes the sessions that have not said it
                    cursor.execute("SELECT set_config(%s, %s, false)", (name, value))
            milliseconds = max(1, int(wait * 1_000))
            cursor.execute("SELECT set_config('lock_timeout', %s, false)", (str(milliseconds),))
            # a worker that froze inside a transaction must not stop all others for ever
            cursor.execute("SET idle_in_transaction_session_timeout = '10min'")
            check(lambda statement: cursor.execute(statement).fetchone())
        connection.commit()

    @event.listens_for(engine, "checkin")
    def leave(_connection: Any, record: ConnectionPoolEntry) -> None:
        record.info[_LEFT] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def revive(connection: Any, record: ConnectionPoolEntry, _proxy: Any) -> None:
        # A server may have been restarted between two bundles. To ask it would cost each transaction a message more;
        # what it says unasked is its farewell, and only a long silence may hide that there is nobody.
        left = record.info.get(_LEFT)
        if left is None:  # made just now
            return
        silent = time.monotonic() - left > _SILENCE_S
        if _says_something(connection) or (silent and not _answers(engine, connection)):
            raise DisconnectionError  # the pool connects again

    return engine


def _says_something(connection: Any) -> bool:
    """Whether there is something to read from a server."""
    if not hasattr(select, "poll"):  # not on every system; this takes a descriptor more
        with selectors.DefaultSelector() as selector:
            selector.register(connection.fileno(), selectors.EVENT_READ)
            return bool(selector.select(0))
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
