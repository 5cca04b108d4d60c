"""Errors of the database, in words that a person can act on and without what the driver says.

A driver's text may quote a row ("Failing row contains ...") or the connection string, so only its kind is used: the
SQLSTATE of PostgreSQL, and of SQLite the fixed phrases of its error codes.
"""

from __future__ import annotations

import re
import sqlite3

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from .address import StoreAddress
from .errors import (
    StoreAway,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)

#: True whenever the job stops: rows leave it only when they are on record.
_STOPS = "the job stops; nothing is published that is not on record"

_DAMAGED = (
    "the file is damaged or is no ledger; restore the newest backup, and know that what was charged after it is "
    "forgotten then"
)

_SQLITE: tuple[tuple[tuple[str, ...], type[StoreError], str], ...] = (
    (
        ("locked", "busy"),
        StoreBusy,
        "another process kept it locked for too long; look for a job that hangs, or for a program that has it open",
    ),
    (("is full",), StoreFull, "there is no room left on its disk; make room, or move it to a larger one"),
    (
        ("readonly", "read-only"),
        StoreReadOnly,
        "it cannot be written; allow this user to write the file and its folder",
    ),
    (
        ("malformed", "not a database", "file is encrypted", "corrupt", "could not decode"),
        StoreDamaged,
        _DAMAGED,
    ),
    (
        ("unable to open", "disk i/o error", "cannot open"),
        StoreUnavailable,
        "the file cannot be opened; check the path, and that this user may write the file and its folder",
    ),
)

_POSTGRES: tuple[tuple[tuple[str, ...], type[StoreError], str], ...] = (
    (("28",), StoreUnavailable, "the server refused the login; check user and password"),
    (("3D000",), StoreUnavailable, "the server has no such database; create it first (createdb)"),
    (("42501",), StoreUnavailable, "this user may not use the tables or create them; grant it the right"),
    (("25006",), StoreReadOnly, "the server takes no writes (a standby?); use the address of the primary"),
    (("53100",), StoreFull, "there is no room left on the server's disk; make room"),
    (("53",), StoreAway, "the server is out of connections or memory; use fewer workers or a larger server"),
    (
        ("55P03", "40P01", "40001", "57014"),
        StoreBusy,
        "another process kept the domain locked for too long; look for a job that hangs",
    ),
    (("08", "57P", "25P"), StoreAway, "the connection was lost; what was not confirmed is not on record: retry"),
    (("XX001", "XX002"), StoreDamaged, "the server reports damaged data; restore it from a backup"),
)

#: The client's library gives no SQLSTATE for a connection that the server refuses. A name has at most 63 bytes there.
_NO_DATABASE = re.compile(r'FATAL: {1,4}database "[^"]{0,64}" does not exist')
_NO_LOGIN = re.compile(
    r'FATAL: {1,4}(?:password authentication failed|role "[^"]{0,64}" does not exist|no pg_hba\.conf entry)'
)
_REFUSED = (
    (_NO_DATABASE, "the server has no such database; create it first (createdb)"),
    (_NO_LOGIN, "the server refused the login; check user and password"),
)


def explained(error: BaseException, address: StoreAddress) -> StoreError | None:
    """The error to raise in place of one of the database's; ``None`` for an error of another origin."""
    original = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(original, UnicodeDecodeError):
        # the driver fails of its own message where that quotes damaged text of the file
        return StoreDamaged(f"ledger {address}: {_DAMAGED}; {_STOPS}")
    if isinstance(error, PoolTimeout):
        return StoreBusy(f"ledger {address}: no free connection in this process; {_STOPS}")
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


def _from_sqlite(error: sqlite3.Error, address: StoreAddress) -> StoreError:
    text = str(error).lower()
    for phrases, kind, advice in _SQLITE:
        if any(phrase in text for phrase in phrases):
            return kind(f"ledger {address}: {advice}; {_STOPS}")
    return StoreError(f"ledger {address}: the database refused a statement ({type(error).__name__}); {_STOPS}")


def _from_server(error: DBAPIError, address: StoreAddress) -> StoreError:
    state = getattr(error.orig, "sqlstate", None)
    if state is None:
        if type(error.orig).__name__ in ("OperationalError", "InterfaceError", "ConnectionTimeout"):
            refused = next((advice for pattern, advice in _REFUSED if pattern.search(str(error.orig))), None)
            if refused is not None:
                return StoreUnavailable(f"ledger {address}: {refused}; {_STOPS}")
            return StoreAway(
                f"ledger {address}: the server cannot be reached; check host, port and that it runs; {_STOPS}"
            )
        return StoreError(f"ledger {address}: {type(error.orig).__name__}; {_STOPS}")
    for prefixes, kind, advice in _POSTGRES:
        if str(state).startswith(prefixes):
            return kind(f"ledger {address}: {advice} (SQLSTATE {state}); {_STOPS}")
    return StoreError(f"ledger {address}: the server refused a statement (SQLSTATE {state}); {_STOPS}")
