"""The connection of a process to a ledger, its transactions, and what the process knows of the record.

All stores of a process with the same address share one :class:`Database`. Before a fork its connection is closed, once
a running transaction has ended: SQLite's locks belong to the process and its library remembers them, so a child that
inherits an open file and opens it again believes it holds locks that it does not.

A transaction that writes has these statements: lock a head and read it; read the rows that are new since this process
looked last; append all rows; move the head. It is committed, or none of it is on record. Who dies before the commit has
changed nothing. Who dies after it finds its rows there, and draws none of them again.
"""

from __future__ import annotations

import errno
import os
import secrets
import sqlite3
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary, finalize

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from . import files
from .address import Seen, StoreAddress, replaced, seen_of
from .codec import library_version, now_us
from .domain import Blobs, Domain
from .engines import (
    LOG,
    NOTHING,
    STOPS,
    WRITES,
    check_schema,
    explained,
    is_gone,
    new_sqlite_engine,
    password_of,
    server_engine,
    sqlite_engine,
)
from .errors import StoreAway, StoreConflict, StoreDamaged, StoreError, StoreReplaced, damaged
from .log import APPEND, BEGIN, BLOBS, HEAD, HEADS, LOCKED, MOVE, ROWS, VERSION, Chain, Root, digest_of, heads
from .log import metadata as tables

#: Blobs read in one statement: SQLite takes at least 999 parameters.
_MOST_BLOBS = 500

# Any number will do, so long as every process uses the same one.
_ADVISORY_LOCK = 7_016_996_765_293_437_281


class Database:
    """The connection of this process to one ledger, and what is folded from its rows.

    Attributes:
        address: where the ledger is.
        process: the process it belongs to.
        lock: held by whoever uses it.
    """

    def __init__(self, address: StoreAddress, wait: float) -> None:
        self.address = address
        self.process = os.getpid()
        self.lock = threading.RLock()
        self._store_id: str | None = None
        self._chains: dict[str, Chain] = {}
        self._wait = wait
        self._engine: Engine | None = None
        self._file: files.Identity | None = None
        self._path: Path | None = None
        self._busy = False
        self._ready = False
        self._fixed = False  # of a file on a disk that is mounted read-only: it is looked at only

    # opening

    def open(self, *, create: bool = False, over: bool = False, expected: str | None = None) -> str:
        """Connect and check the tables.

        Args:
            create: make them where there is no ledger; never where one is known.
            over: with ``create``, also in the place of an SQLite file that was emptied.
            expected: name of the ledger that must be there.

        Returns:
            The name of the ledger.
        """
        with self.lock:
            if not self._ready:
                self._store_id = expected
                try:
                    self._make_ready(create=create and expected is None, over=over)
                except BaseException:
                    self._store_id = None
                    raise
                self._ready = True
            found = self._store_id or ""
            if expected not in (None, found):
                raise replaced(self.address, "another ledger is there", expected, found)
            return found

    def _make_ready(self, *, create: bool, over: bool) -> None:
        if self._engine is None:
            self._connect(create=create, over=over)
        with self._transaction() as connection:
            there = self._has_tables(connection)
        if not there and not create:
            raise self._nothing_there("its file holds no tables" if self.address.is_sqlite else None)
        if not there and self._path is not None:
            path, opened = self._path, self._file
            if not over:
                raise self._replaced("its file holds no tables, and a ledger is never without: it was emptied")
            self._make(path, over=lambda: files.identity(path) == opened)
        elif not there:
            with self._transaction(writes=True) as connection:
                self._make_tables(connection)
        with self._transaction() as connection:
            row = connection.execute(HEAD, {"name": ""}).first()
            if row is None:
                raise damaged("its own row", "was removed")
            self._store_id = self._store_id or str(row.store_id)
            self.chain(connection, "")

    def _connect(self, *, create: bool, over: bool) -> None:
        self.address.check_driver()
        url = self.address.resolve()
        if self.address.is_sqlite:
            self._engine = self._opened_file(Path(url.database or ""), create=create, over=over)
        else:
            self._engine = server_engine(url, self._wait, password_of(self.address, url))
        finalize(self, self._engine.dispose)

    def _opened_file(self, path: Path, *, create: bool, over: bool) -> Engine:
        misplaced = files.misplaced(path, files.mounts())
        if misplaced is not None:
            raise StoreConflict(f"ledger {self.address}: {misplaced}. Nothing was charged or published")
        self._path = path
        try:
            absent, sign = files.absence(path)
            if absent:
                if not create or (sign is not None and not over):
                    raise self._nothing_there(sign)
                self._make(path, over=(lambda: files.absence(path)[0]) if over else None)
            files.check_usable(path)
        except OSError as error:
            # what is in the log can be read only where it can be written
            self._fixed = error.errno == errno.EROFS and not create and files.is_whole(path)
            if not self._fixed:
                raise self._unusable(error) from None
        self._file = files.identity(path)
        return sqlite_engine(path, self._wait, immutable=self._fixed)

    def _make(self, path: Path, *, over: Callable[[], bool] | None) -> None:
        """Make an SQLite ledger where there is none, or in the place of a file that was emptied, if it still is."""
        self.disconnect()

        def fill(temporary: Path) -> None:
            engine = new_sqlite_engine(temporary)
            try:
                with self._explained(), engine.connect() as connection:
                    with connection.begin():
                        self._make_tables(connection)
                    connection.connection.execute("PRAGMA journal_mode=WAL")
            finally:
                engine.dispose()

        try:
            files.make(path, fill, over=over)
        except OSError as error:
            raise self._unusable(error) from None
        self._file = files.identity(path)

    def _has_tables(self, connection: Connection) -> bool:
        inspector = sa.inspect(connection)
        if inspector.has_table(heads.name):
            return True
        if self.address.is_sqlite and inspector.get_table_names():
            raise StoreDamaged(f"ledger {self.address}: the file is a database of something else; name another file")
        return False

    def _make_tables(self, connection: Connection) -> None:
        """Make the tables where there are none; of two processes that do, one waits for the other."""
        if not self.address.is_sqlite:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
            if self._has_tables(connection):
                return
            check_schema(connection, self.address)
        tables.create_all(connection, checkfirst=False)
        root = Root(secrets.token_hex(16))
        connection.execute(APPEND, [root.add("ledger", {"at": now_us(), "by": library_version()})])
        connection.execute(BEGIN, root.row)

    def try_to_make(self) -> None:
        """Make the tables where there are none, and undo it."""
        if self._path is not None:
            self._make(self._path, over=lambda: False)
            return
        with self._transaction(writes=True) as connection:
            self._make_tables(connection)
            connection.rollback()

    # errors

    def _unusable(self, error: OSError) -> StoreError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return StoreAway(f"ledger {self.address}: there is no room left on its disk; make room; {NOTHING}")
        why = f"the file cannot be opened or created ({os.strerror(error.errno or 0)}); check the path"
        if isinstance(error, PermissionError):
            why = "the file or its folder cannot be written by this user; grant it the right"
        return StoreConflict(f"ledger {self.address}: {why}; {STOPS}")

    def _replaced(self, what: str, found: str | None = None) -> StoreReplaced:
        return replaced(self.address, what, self._store_id, found)

    def _older(self, chain: str, seen: int, found: int) -> StoreReplaced:
        of = f"domain {chain!r}" if chain else "its own log"
        now = f"its last one there is number {found}" if found < seen else "another one is there"
        what = f"an older copy or a restored backup is there: row {seen} of {of} was on record, and {now}"
        return self._replaced(what, self._store_id)

    def _nothing_there(self, sign: str | None) -> StoreError:
        """What is wrong where no ledger is."""
        if sign is not None or self._store_id is not None:
            return self._replaced(sign or "there is none any more")
        none = "there is none; check the address, or run the job that creates it"
        return StoreConflict(f"ledger {self.address}: {none}", missing=True)

    def change(self) -> str | None:
        """What happened to the file since it was opened, in words; ``None`` if it is still the one at the address."""
        return None if self._file is None or self._path is None else files.change(self._path, self._file)

    def _require(self) -> Engine:
        if self._engine is None:
            raise StoreConflict(f"ledger {self.address}: it is not open")
        changed = self.change()
        if changed is not None:
            # the open connection would go on writing to a file that no other process sees
            raise self._replaced(changed)
        return self._engine

    def disconnect(self) -> None:
        """Close the connection if no transaction is running; the next use opens a new one."""
        if self._engine is not None:
            self._engine.dispose()

    @contextmanager
    def _explained(self) -> Generator[None]:
        try:
            yield
        except BaseException as error:
            known = explained(error, self.address)
            if isinstance(known, StoreAway) and not self.address.is_sqlite:
                # the address may lead to another primary by now, and an open connection does not
                self.disconnect()
            if self._store_id is not None and is_gone(error):
                known = self._replaced("its database or its tables are not there any more")
            if known is None:
                raise
            try:
                raise known from None
            finally:
                # not even where a debugger looks: the driver's text may quote a row
                known.__context__ = None

    # transactions

    @contextmanager
    def _used(self) -> Generator[None]:
        with self.lock:
            if self._busy:
                raise StoreConflict("ledger: a draft's draw must not use the store, its transaction is running")
            self._busy = True
            try:
                yield
            finally:
                self._busy = False

    @contextmanager
    def _transaction(self, *, writes: bool = False) -> Generator[Connection]:
        with self._used(), self._explained(), self._require().connect() as plain:
            connection = plain.execution_options(**{WRITES: writes})
            with connection.begin():
                yield connection
            # what was committed to a file that is gone meanwhile is on no record that a later job finds
            self._require()
            written, opened = plain.info.get(LOG, (None, None))
            if opened is not None and files.identity(written) != opened:
                raise self._replaced(f"its log {written.name} was moved, removed or replaced while the job ran")

    @contextmanager
    def reading(self) -> Generator[Look]:
        """A transaction that writes nothing."""
        with self._transaction() as connection:
            yield Look(self, connection)

    @contextmanager
    def writing(self, *names: str) -> Generator[Writing]:
        """A transaction that holds the locks of some domains, which it takes in the order of their names.

        It is committed durably, or all undone; what was added to a chain is forgotten then.
        """
        if self._fixed:
            why = "its disk is mounted read-only, so it can be looked at only"
            raise StoreConflict(f"ledger {self.address}: {why}; {STOPS}")
        # one lock around all: what is known of a chain is ahead of the record while its rows are not committed
        with self.lock:
            made: Writing | None = None
            try:
                with self._transaction(writes=True) as connection:
                    made = Writing(self, connection, names)
                    yield made
                    made.flush()
            except BaseException:
                if made is not None:
                    made.undo()
                raise
            made.keep()

    @contextmanager
    def raw_sqlite(self) -> Generator[sqlite3.Connection]:
        """The driver's own connection, outside any transaction, for SQLite's backup and checks."""
        with self._used(), self._explained(), self._require().connect() as connection:
            raw: Any = connection.connection.driver_connection
            yield raw
            self._require()  # what was read is of one moment

    # chains

    @property
    def seen(self) -> Seen:
        """The last row of each domain that any connection of this process has seen."""
        return seen_of(self.address, self._store_id or "")

    def forget(self, name: str) -> None:
        """Forget what is known of a chain: the next use folds it anew."""
        self._chains.pop(name, None)

    def adopt(self, name: str, chain: Chain) -> None:
        """Know a chain whose rows are on record."""
        self._chains[name] = chain
        self.seen[name] = max(self.seen.get(name, (0, b"")), (chain.seq, chain.digest))

    def known(self, name: str) -> Domain | None:
        """What is known of a domain, without a look at the record."""
        found = self._chains.get(name)
        return found if isinstance(found, Domain) else None

    def chain(self, connection: Connection, name: str, *, lock: bool = False) -> Chain | None:
        """What is on record under a name; ``None`` if nothing is. PostgreSQL locks the head, SQLite the ledger."""
        # before the look: other connections of the process see more meanwhile
        seen = self.seen.get(name, (0, b""))
        row = connection.execute(LOCKED if lock else HEAD, {"name": name}).first()
        return self._absent(connection, name, seen[0]) if row is None else self._folded(connection, row, seen)

    def chains(self, connection: Connection, names: Iterable[str]) -> dict[str, Chain]:
        """What is on record under names that the ledger lists, whose heads are read in one statement."""
        wanted = list(names)
        seen = {name: self.seen.get(name, (0, b"")) for name in wanted}
        there = {row.domain: row for row in connection.execute(HEADS, {"names": wanted})}
        for name in wanted:
            if name not in there:
                self._absent(connection, name, seen[name][0])
        return {name: self._folded(connection, there[name], seen[name]) for name in wanted if name in there}

    def _folded(self, connection: Connection, row: Any, seen: tuple[int, bytes]) -> Chain:
        """What is on record under a name, with all rows up to its head."""
        name = row.domain
        if row.store_id != self._store_id:
            raise self._replaced("another ledger is there", row.store_id)
        if row.version != VERSION:
            raise StoreConflict(
                f"ledger {self.address}: its tables have version {row.version!r}, which this program does not know (it "
                f"writes {VERSION}); use the quiltstream that wrote it"
            )
        held = self._chains.get(name)
        if not isinstance(last := row.seq, int):
            raise damaged(f"the head of domain {name!r}" if name else "the head of its own log", "is no number")
        if last < seen[0]:
            raise self._older(name, seen[0], last)
        self.forget(name)  # until all of it is known
        led = False
        if held is not None and held.seq <= last:
            with suppress(StoreDamaged):
                led = self._caught_up(connection, held, last, row.digest)
        if held is None or not led:
            # what was known does not lead to what is there: see what that is
            held = Domain(name, row.store_id) if name else Root(row.store_id)
            if not self._caught_up(connection, held, last, row.digest):
                raise damaged(held.said, "has rows that are not those that were written, or lacks some")
        if seen[0] and not held.holds(*seen):
            raise self._older(name, seen[0], last)
        self.adopt(name, held)
        return held

    def _caught_up(self, connection: Connection, held: Chain, last: int, digest: Any) -> bool:
        """Enter the rows up to a number; whether they are those that the head was made of."""
        while held.seq < last:
            rows = connection.execute(ROWS, {"name": held.name, "after": held.seq, "last": last}).all()
            if not rows:
                return False
            for row in rows:
                if not (isinstance(row[1], str) and isinstance(row[2], str)):
                    return False
                held.take(*row)
        return (held.seq, held.digest) == (last, digest)

    def _absent(self, connection: Connection, name: str, seen: int) -> None:
        """Nothing is on record under a name: see that nothing was."""
        if not name:
            raise damaged("its own row", "was removed")
        root = self.root(connection)
        if seen:
            raise self._older(name, seen, 0)
        if name in root.domains and connection.execute(HEAD, {"name": name}).first() is None:
            raise damaged(f"domain {name!r}", "has no head any more")

    def root(self, connection: Connection) -> Root:
        """The ledger's own log."""
        found = self.chain(connection, "")
        if not isinstance(found, Root):
            raise damaged("its own row", "was removed")
        return found

    def domain(self, connection: Connection, name: str) -> Domain | None:
        """A domain; ``None`` if it is not on record."""
        with suppress(UnicodeEncodeError):  # a name of bytes that are no UTF-8, which no driver takes, is on no record
            found = self.chain(connection, name) if name else None
            return found if isinstance(found, Domain) else None
        return None

    def blobs(self, connection: Connection, name: str, wanted: Mapping[int, str]) -> dict[int, bytes]:
        """Blobs of a domain by the numbers of their rows, held against their digests."""
        numbers, found = list(wanted), dict[int, Any]()
        for at in range(0, len(numbers), _MOST_BLOBS):
            asked = {"name": name, "numbers": numbers[at : at + _MOST_BLOBS]}
            found |= {row.seq: row.blob for row in connection.execute(BLOBS, asked)}
        for number, digest in wanted.items():
            blob = found.get(number)
            if not isinstance(blob, bytes) or digest_of(blob) != digest:
                what = "is missing" if blob is None else "is not what was written"
                raise damaged(f"domain {name!r}: what row {number} holds", what)
        return found


class Look:
    """A transaction: the record as it is now."""

    def __init__(self, database: Database, connection: Connection) -> None:
        self.connection = connection
        self._database = database

    @property
    def root(self) -> Root:
        """The ledger's own log."""
        return self._database.root(self.connection)

    def domain(self, name: str) -> Domain | None:
        """A domain; ``None`` if it is not on record."""
        return self._database.domain(self.connection, name)

    def known(self, name: str) -> Domain:
        """A domain that is on record."""
        found = self.domain(name)
        if found is None:
            known = ", ".join(sorted(self.root.domains)) or "no domain yet"
            raise StoreConflict(f"domain {name!r} is not on record in this ledger; it has {known}")
        return found

    def others(self, own: str) -> dict[str, Domain]:
        """All domains but one, by their names in order."""
        names = [name for name in sorted(self.root.domains) if name != own]
        found = self._database.chains(self.connection, names)
        return {name: one for name, one in found.items() if isinstance(one, Domain)}

    def blobs(self, name: str) -> Blobs:
        """What reads blobs of a domain."""
        return lambda wanted: self._database.blobs(self.connection, name, wanted)


class Writing(Look):
    """A transaction that adds rows to domains whose heads it has locked."""

    def __init__(self, database: Database, connection: Connection, names: tuple[str, ...]) -> None:
        super().__init__(database, connection)
        self._rows: list[dict[str, Any]] = []
        self._locked = {name: database.chain(connection, name, lock=True) for name in sorted(names)}
        # with how many rows each had then
        self._held = {name: (one, one.seq) for name, one in self._locked.items() if one is not None}

    @property
    def root(self) -> Root:
        """The ledger's own log."""
        found = self._held.get("")
        return super().root if found is None else found[0]  # pyright: ignore[reportReturnType] - the one without a name

    def domain(self, name: str) -> Domain | None:
        """A domain, as it is with what was added; ``None`` if it is not on record."""
        found = self._held.get(name)
        if found is None:
            return None if name in self._locked else super().domain(name)
        return found[0]  # pyright: ignore[reportReturnType] - one with a name

    def begin(self, name: str) -> Domain:
        """A domain that nothing is on record of: the ledger's own head is locked, so no other job makes it."""
        made = Domain(name, self.root.store_id)
        self._held[name] = made, 0
        self.add(self.root, f"domain/{name}", {"at": now_us()})
        return made

    def add(self, chain: Chain, key: str, body: dict[str, Any], blob: bytes | None = None) -> None:
        """Append a row."""
        self._rows.append(chain.add(key, body, blob))

    def flush(self) -> None:
        """Write everything."""
        if self._rows:
            self.connection.execute(APPEND, self._rows)
        for chain, before in self._held.values():
            if not before:
                self.connection.execute(BEGIN, chain.row)
            elif chain.seq != before:
                values = {"name": chain.name, "to": chain.seq, "becomes": chain.digest}
                self.connection.execute(MOVE, values)

    def undo(self) -> None:
        """Take everything back that was added, and forget chains that are ahead of the record."""
        for name, (chain, before) in self._held.items():
            if chain.seq != before:
                self._database.forget(name)
        self._rows, self._held = [], {}

    def keep(self) -> None:
        """What was added is on record now."""
        for name, (chain, _) in self._held.items():
            self._database.adopt(name, chain)


# databases of this process

_shared: WeakValueDictionary[tuple[str, float], Database] = WeakValueDictionary()
_shared_lock = threading.RLock()
_held_for_fork: list[Database] = []


def borrow(address: StoreAddress, wait: float) -> Database:
    """This process's database of an address, opened by its first use and closed when no store has it any more."""
    with _shared_lock:
        database = _shared.get((address.url, wait))
        if database is None or database.change() is not None:
            database = _shared[address.url, wait] = Database(address, wait)
        return database


def _before_fork() -> None:
    # Databases first, then their list: a thread inside a transaction may ask for another one.
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
