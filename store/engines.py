"""Engines of SQLite and PostgreSQL, whose commits are durable when they return, and the errors of their drivers.

A driver's text may quote a row ("Failing row contains ...") or the connection string, so of its errors only the code is
used: the SQLSTATE of PostgreSQL, and the result code of SQLite. A server that refuses a login gives none.
"""

from __future__ import annotations

import logging
import re
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry

from ..schemas.settings.base import SettingsError
from ..schemas.settings.secrets import SecretError
from .address import StoreAddress
from .errors import StoreAway, StoreConflict, StoreDamaged, StoreError
from .files import identity, log_of
from .log import heads, log

#: Execution option of SQLite's transactions that write.
WRITES = "quiltstream_writes"

#: In the ``info`` of a connection to an SQLite file: the path of the log that it writes to, and which file that is.
LOG = "quiltstream_log"

#: In the ``info`` of a connection to a pooler: what each transaction tells the server.
_TOLD = "quiltstream_told"

_LOGGING_NAME = "quiltstream"

#: Settings of synchronous_commit with which a confirmed commit survives a crash of the server and of its standbys.
_DURABLE = ("on", "remote_apply")

# Rows and connection details would be logged at DEBUG by these, whatever the root logger's level is.
for _logger in ("engine.Engine", "pool.impl.QueuePool"):
    logging.getLogger(f"sqlalchemy.{_logger}.{_LOGGING_NAME}").setLevel(logging.WARNING)

#: One connection, which says nothing of what goes over it.
_OPTIONS: dict[str, Any] = {
    "hide_parameters": True,
    "logging_name": _LOGGING_NAME,
    "pool_logging_name": _LOGGING_NAME,
    "poolclass": sa.QueuePool,
    "pool_size": 1,
    "max_overflow": 0,
}


def sqlite_engine(path: Path, wait: float, *, immutable: bool = False) -> Engine:
    """An engine of an SQLite file that is there. It makes no file.

    An immutable one, on a disk that is mounted read-only, is read without a lock.
    """
    # as a URI the path must not end at a question mark or a hash sign of its own
    uri = f"{path.absolute().as_uri()}?mode={'ro&immutable=1' if immutable else 'rw'}"

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(uri, timeout=wait, check_same_thread=False, uri=True)

    engine = sa.create_engine("sqlite://", creator=connect, **_OPTIONS)

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, record: ConnectionPoolEntry) -> None:
        # transactions begin where `begin` below says so, not where the driver guesses
        connection.isolation_level = None
        # bytes that are no text are found by the digest of their row
        connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
        if immutable:
            return
        # a ledger is made with its log on, so that no two processes switch it on at once
        if connection.execute("PRAGMA journal_mode=WAL").fetchone()[0] != "wal":
            raise StoreConflict(
                "ledger: its disk does not support SQLite's write-ahead log (a network file system?); "
                "use a local disk, or PostgreSQL"
            )
        for pragma in _SAFE:
            connection.execute(pragma)
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()  # the log is opened by what reads
        record.info[LOG] = (written := log_of(path)), identity(written)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get(WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


_SAFE = ("PRAGMA synchronous=FULL", "PRAGMA fullfsync=ON", "PRAGMA secure_delete=ON")


def new_sqlite_engine(path: Path) -> Engine:
    """An engine of a new, empty file: all of a commit is in the file, so that an error of the disk is the commit's."""
    engine = sa.create_engine("sqlite://", creator=lambda: sqlite3.connect(path, isolation_level=None), **_OPTIONS)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        for pragma in _SAFE:
            connection.exec_driver_sql(pragma)
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


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
    engine = sa.create_engine(
        url,
        # a server may have been restarted between two bundles
        pool_pre_ping=True,
        # after a wait for the domain's row, the next statement must see what the other one wrote
        isolation_level="READ COMMITTED",
        # the driver gives bytes for texts where a database has no encoding
        connect_args={**_parameters(url), "client_encoding": "utf8", "prepare_threshold": None},
        **_OPTIONS,
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


def password_of(address: StoreAddress, url: sa.URL) -> Callable[[], str | None]:
    """What gives the password as it is now: the one read before while its file is just being replaced."""

    def of(found: sa.URL) -> str | None:
        """It stands before the host or among the parameters."""
        password = found.query.get("password", found.password)
        return password if password is None or isinstance(password, str) else password[-1]

    last = of(url)

    def now() -> str | None:
        nonlocal last
        with suppress(SettingsError, SecretError):
            last = of(address.resolve())
        return last

    return now


#: The schema that a new table would be in, what set the search path, how many schemas it names, and other ledgers.
_PLACE = sa.text(
    "SELECT current_schema(), s.source, array_length(string_to_array(s.setting, ','), 1), ARRAY(SELECT n.nspname::text "
    "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relname = :name AND c.relkind IN ('r', 'p') "
    "ORDER BY 1) FROM pg_settings s WHERE s.name = 'search_path'"
)


def check_schema(connection: Connection, address: StoreAddress) -> None:
    """See that a ledger may be made in the schema that the server chose: beside another, only if the address names it.

    A second one would be a second budget for the same series.
    """
    here, source, schemas, others = connection.execute(_PLACE, {"name": heads.name}).one()
    if here is None:
        raise StoreConflict(
            f"ledger {address}: no schema of this user's search_path is there, or it may use none; create the schema, "
            "or grant the right to it. Nothing was charged or published"
        )
    if others and not (source == "client" and schemas == 1):
        raise StoreConflict(
            f"ledger {address}: there is none in the schema {here!r}, which the server chose by the search_path, and "
            f"this database has one in {' and '.join(map(repr, others))}. A second one would be a second budget for "
            "the same series, so none is made. Name the schema by itself in the address, by the option "
            "options=-csearch_path%3DNAME. Nothing was charged or published"
        )


def check_rights(connection: Connection, address: StoreAddress) -> None:
    """See that this user may do at a server what a job does."""
    rights = [(heads.name, right) for right in ("SELECT", "INSERT", "UPDATE")]
    rights += [(log.name, right) for right in ("SELECT", "INSERT")]
    found = connection.execute(sa.select(*(sa.func.has_table_privilege(*one) for one in rights))).one()
    missing = [f"{right} ON {table}" for (table, right), has in zip(rights, found, strict=True) if not has]
    if missing:
        raise StoreConflict(f"ledger {address}: this user has no right to {', '.join(missing)}; grant it; {STOPS}")


NOTHING = "nothing is published that is not on record"

#: True whenever the job stops: rows leave it only when they are on record.
STOPS = f"the job stops; {NOTHING}"

_Trouble = tuple[type[StoreError], str]

_BUSY: _Trouble = (
    StoreAway,
    "another process kept it locked for too long; look for a job that hangs, or for a program that has it open",
)
_FULL: _Trouble = StoreAway, "there is no room left on its disk; make room, or move it to a larger one"
_BROKEN: _Trouble = (
    StoreDamaged,
    "the file is damaged or is no ledger; restore the newest backup, and know that what was charged after it is "
    "forgotten then",
)
#: The server, or the pooler before it.
_LOGIN: _Trouble = StoreConflict, "the server refused the login; check user, password, database, sslmode and rights"
_LOST: _Trouble = (
    StoreAway,
    "the server cannot be reached, cut the connection or has none left; check host, port, sslmode and that it runs",
)

_SQLITE: dict[int, _Trouble] = {
    sqlite3.SQLITE_BUSY: _BUSY,
    sqlite3.SQLITE_LOCKED: _BUSY,
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_READONLY: (StoreConflict, "it cannot be written; allow this user to write the file and its folder"),
    sqlite3.SQLITE_CORRUPT: _BROKEN,
    sqlite3.SQLITE_NOTADB: _BROKEN,
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

#: By the beginnings of codes of PostgreSQL.
_POSTGRES: tuple[tuple[tuple[str, ...], _Trouble], ...] = (
    (("28", "3D000", "42501"), _LOGIN),
    (("25006",), (StoreAway, "the server takes no writes now; if that stays, use the address of the primary")),
    (("53100",), _FULL),
    (("55P03", "40P01", "40001", "57014"), _BUSY),
    (("08", "53", "57P", "25P"), _LOST),
    (("XX001", "XX002"), (StoreDamaged, "the server reports damaged data; restore it from a backup")),
)

#: The client's library gives no code for a login that is refused, nor for a server that takes no more of them.
_REFUSED = re.compile(
    r'FATAL: +(?:password|role "|permission denied|no pg_hba|pg_hba|database "|no such database|unsupported startup)'
    r"|no password supplied|invalid [a-z_ ]{1,40}value|invalid value for"
)
_TOO_MANY = re.compile(r"FATAL: +(?:too many|sorry, too many|remaining connection slots)")

#: Of PostgreSQL: no such table, database or schema.
_GONE = ("42P01", "3D000", "3F000")


def is_gone(error: BaseException) -> bool:
    """Whether an error of the database says that it, or a table of the ledger, is not there."""
    original = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(original, sqlite3.Error):
        # SQLite's word for a statement that it cannot prepare, and those of the store are always the same
        return getattr(original, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR
    return isinstance(error, DBAPIError) and getattr(original, "sqlstate", None) in _GONE


def explained(error: BaseException, address: StoreAddress) -> StoreError | None:
    """The error to raise in place of one of the database's; ``None`` for an error of another origin."""
    original = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(original, UnicodeDecodeError):
        # the driver fails of its own message where that quotes damaged text of the file
        kind, text = _BROKEN
    elif isinstance(original, sqlite3.Error):
        code = getattr(original, "sqlite_errorcode", sqlite3.SQLITE_IOERR)
        kind, text = _SQLITE.get(code & 0xFF, (StoreConflict, "the database refused a statement"))
    elif isinstance(error, DBAPIError):
        kind, text = _from_server(original)
    elif isinstance(error, SQLAlchemyError):
        kind, text = StoreConflict, type(error).__name__
    else:
        return None
    # a job may wait for what passes, so that it stops is not said of that
    return kind(f"ledger {address}: {text}; {NOTHING if kind is StoreAway else STOPS}")


def _from_server(original: BaseException | None) -> _Trouble:
    state = getattr(original, "sqlstate", None)
    if state is not None:
        refused = StoreConflict, "the server refused a statement"
        kind, text = next((said for codes, said in _POSTGRES if str(state).startswith(codes)), refused)
        return kind, f"{text} (SQLSTATE {state})"
    if type(original).__name__ not in ("OperationalError", "InterfaceError", "ConnectionTimeout"):
        return StoreConflict, "its address has a parameter that the driver does not take; mend it"
    text = str(original)
    return _LOGIN if _REFUSED.search(text) and not _TOO_MANY.search(text) else _LOST
