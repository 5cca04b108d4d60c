"""The ledger of record: what was charged and what was published, kept so that neither happens twice.

A :class:`Store` is a small value: it holds an address, travels to any worker, and connects on first use.
"""

from __future__ import annotations

import inspect
import os
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar

import pyarrow as pa
from sqlalchemy.engine import Connection

from ..schemas.ledger import LEDGER_SCHEMA
from ..schemas.slots import Window
from ..schemas.table_files import ENTRIES, RELEASES
from . import domain_changes, exports, queries, recorded_rows, tables, verification
from .address import StoreAddress
from .connection import DAMAGED, Database, borrow, check_rights, give_back
from .domain_changes import Estimated
from .errors import StoreDamaged, StoreMissing, UnknownNameError
from .exports import has_keys, rows_of
from .publishing import Publisher, check_drafts, check_windows
from .queries import DomainSummary
from .recorded_rows import ChargedThrough
from .registration import Registrar, Sharing, check_apart, left_alone, sharings
from .specs import BlockToPublish, DomainSpec, QuerySpec, Record, Registration

_P = ParamSpec("_P")
_T = TypeVar("_T")

#: Largest SQLite file that is read through for damage before a job starts, in bytes; it takes about a second.
_CHECKED_BYTES = 2**28


def _read(database: Database) -> AbstractContextManager[Connection]:
    return database.read()


def _write(database: Database) -> AbstractContextManager[Connection]:
    return database.write()


def _method(
    begin: Callable[[Database], AbstractContextManager[Connection]], function: Callable[Concatenate[Connection, _P], _T]
) -> Callable[Concatenate[Store, _P], _T]:
    """The method that calls a function with the connection of one transaction."""

    @wraps(function)
    def method(self: Store, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        with begin(self._database()) as connection:  # pyright: ignore[reportPrivateUsage] - a method of it
            return function(connection, *args, **kwargs)

    return method


def _as_methods(store: type[Store]) -> type[Store]:
    """The class whose methods made of functions have the class's names for them, and the store as first parameter.

    A bound method is pickled by its name.
    """
    for name, method in list(vars(store).items()):
        if hasattr(method, "__wrapped__"):
            asked = inspect.signature(method)
            _, *others = asked.parameters.values()
            first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
            method.__signature__ = asked.replace(parameters=[first, *others])
            method.__name__, method.__qualname__, method.__module__ = name, f"{store.__name__}.{name}", store.__module__
    return store


@_as_methods
class Store:
    """The ledger of record at an address.

    Every method is one or a few short transactions. A method that changes anything does all of it or nothing, and
    returns only after it is on the disk. Stores of one process share one connection, and none is carried over a fork. A
    ledger that cannot be used is a :class:`StoreError` of every method, and a name that is not on record an
    :class:`UnknownNameError`, but of `registered`, `entries`, `records`, `newest`, `newest_block`,
    `estimates` and `source_ids`, which find nothing. Where a method is one transaction and no more, the function that
    is its content says what it does, and the store gives it the connection.

    A store that was opened once insists on the ledger that it found, also after it travelled to another process: each
    later opening that finds another ledger there, an older copy or none raises :class:`StoreReplaced`.

    Args:
        address: where the ledger is.
        create: whether to make a ledger where there is none and ``address`` names none.
        over: with ``create``, also in the place of an SQLite file that was emptied, by the operator's word.
        wait: seconds to wait for another process's transaction before giving up.
    """

    def __init__(
        self, address: StoreAddress | str, *, create: bool = False, over: bool = False, wait: float = 60.0
    ) -> None:
        self._address = address if isinstance(address, StoreAddress) else StoreAddress(address)
        self._create = create
        self._over = over
        self._wait = wait
        self._shared: Database | None = None
        self._return: Any = None

    registered = _method(_read, queries.registered)
    next_start = _method(_read, queries.next_start)
    entries = _method(_read, queries.entries)
    charged = _method(_read, queries.charged)
    summary = _method(_read, queries.summary)
    completeness = _method(_read, queries.completeness)
    newest = _method(_read, queries.newest_of)
    newest_block = _method(_read, queries.newest_block)
    block_numbers = _method(_read, queries.block_numbers)
    has_entry = _method(_read, queries.has_entry)
    price_change = _method(_read, domain_changes.priced_change)
    estimated = _method(_read, domain_changes.estimated_model)
    source_ids = _method(_read, domain_changes.source_ids)
    head = _method(_read, verification.head_of)
    verify = _method(_read, verification.verify)
    check_rows = _method(_read, verification.check_rows)

    change_belief = _method(_write, domain_changes.change_belief)
    note_source_ids = _method(_write, domain_changes.note_source_ids)

    @property
    def address(self) -> StoreAddress:
        """Where the ledger is; with its name, once it was opened."""
        return self._address

    @property
    def store_id(self) -> str:
        """The random name of the ledger."""
        return self._opened().store_id or ""

    def register(self, domain: DomainSpec, query: QuerySpec, estimated: Estimated | None = None) -> Registration:
        """Put a query on record and reserve budget for its whole schedule, or return what is on record for it.

        The first registration of a name wins. Where a later one leaves schedule or roster to the data, those of the
        first hold; shards and header are always those of the first. A given ``windows.stop`` that is later than the
        recorded one extends the schedule, if budget can be reserved for all of the new windows. Another given roster
        holds from the first window on that is not charged, if no series is in more groups than was calibrated for; of
        two jobs that change it at once, the second one fails.

        Args:
            domain: the domain.
            query: the query.
            estimated: the model that a job estimated for it, put on record with a new query; the belief of the domain
                changes with that, or neither is put on record.

        Raises:
            RegistrationConflict: the domain or query has other content; it names the field and both values.
            SharedSeries: another domain of the ledger has series of the roster, over the same slots, states and
                readings, or without the domain's word that they may be shared.
            BudgetRefused: the budget does not allow the first window, or not all of an extension.
            ModeError: the store holds rows of the other kind (real, or noise-free rows of tests).
        """
        return self._register(domain, query, estimated, keep=True)

    def rehearse(self, domain: DomainSpec, query: QuerySpec, estimated: Estimated | None = None) -> Registration:
        """What :meth:`register` would answer or raise now; nothing is put on record, and no budget is promised."""
        return self._register(domain, query, estimated, keep=False)

    def _register(
        self, domain: DomainSpec, query: QuerySpec, estimated: Estimated | None, *, keep: bool
    ) -> Registration:
        database = self._database()
        self.check()
        with database.read() as connection:
            roster = recorded_rows.roster_digest(connection, domain.name, query.name)
        with database.write() as connection:
            trial = None if keep else connection.begin_nested()
            if estimated is not None and estimated.change is not None:
                domain_changes.change_belief(connection, domain.name, estimated.change)
            made = Registrar(connection, roster).register(domain, query)
            if made.fresh and estimated is not None:
                domain_changes.note_estimate(connection, made, estimated)
            if trial is not None:
                trial.rollback()
            return made

    def current(self, registration: Registration) -> Registration:
        """The registration with the rosters that are on record now; the same one if there is no other."""
        names = (registration.domain.name, registration.query.name)
        database = self._database()
        with database.glance() as connection:
            charged = recorded_rows.charged_through(connection, *names)
        if charged is not None and charged.revision == registration.revision:
            return registration
        with database.read() as connection:
            found = queries.registered(connection, *names)
            if found is None:
                raise recorded_rows.unknown_query(*names)
        return found

    def join(
        self, registration: Registration, entries: Sequence[tuple[str, str | None]], most: int | None = None
    ) -> Registration:
        """Let series join the roster of the windows that are not charged yet; known ones keep the groups they have.

        Saying the same again changes nothing, and where no window is left no series joins. A series of another domain
        of the ledger stays out, unless the two may share it.

        Args:
            registration: the query, of any age.
            entries: series, each with its group, or with ``None`` where histograms are of series.
            most: how many series the roster may have then; the others stay outside. Any number if left out.

        Returns:
            The query as it is now: the same registration where nothing changed since it was read.
        """
        held = self.current(registration)
        if held.query.roster.joined_by(entries, most) is held.query.roster:
            return held
        with self._database().write() as connection:
            found = Registrar(connection).join(registration.domain.name, registration.query.name, entries, most)
        return held if found.revision == held.revision else found

    def charge_windows(
        self, registration: Registration, windows: Iterable[Window], begun: Registration | None = None
    ) -> Registration:
        """Charge complete windows before they are counted; a charged window keeps its roster for ever.

        A window that is charged and has no block yet is missing, and is published whenever it is counted again. Entries
        that were removed from the ledger before the last one are noticed when a window of theirs is published.

        Args:
            registration: the query, of any age.
            windows: the windows; earlier ones of the schedule are charged with them.
            begun: what was on record when the job began, where it rejects the readings of series that it does not know:
                a roster that was changed since holds for later windows (:meth:`.Registration.as_begun`). The newest
                roster for all of them if left out.

        Returns:
            The query, with these rosters: the same registration, of any age, where it has them.

        Raises:
            ChargeMismatch: what is on record is not what the registration says; stop the job.
            BlockError: a window is not one of the query's.
        """
        asked = sorted(windows)
        check_windows(registration, asked)
        if not asked:
            return registration
        charged = self._charged_through(registration, asked[-1], begun)
        return registration if registration.revision >= charged.revision else self.current(registration)

    def _charged_through(self, registration: Registration, last: Window, begun: Registration | None) -> ChargedThrough:
        """How far a query is charged, at least through a window; the charged windows are the first of the schedule.

        A process that finds its answer in memory makes no query.
        """
        names = (registration.domain.name, registration.query.name)
        database, key = self._database(), (*names, registration.digest)
        known = database.charged_through.get(key)
        if known is not None and known.reaches(last):
            return known
        if known is None or not known.mine:  # else it is probably this process's turn again
            with database.glance() as connection:
                known = recorded_rows.charged_through(connection, *names)
        while known is None or not known.reaches(last):
            with database.write() as connection:
                known = Publisher(connection, database.accounts).charge_windows(registration, last, begun)
        database.charged_through[key] = known
        return known

    def publish(self, registration: Registration, drafts: Sequence[BlockToPublish]) -> list[Record]:
        """Charge, draw and keep what is not on record yet, in one transaction, and return what is.

        Charging a window first charges all earlier windows of the schedule that have no entry; if these are very many,
        they are charged in transactions of their own before. A window that the budget does not allow has a refusal on
        record instead of a block, for all shards and for ever.

        Returns:
            One record a draft, in their order.

        Raises:
            ChargeMismatch: what is on record is not what the registration says; stop the job.
            RosterChanged: the same, because the roster was changed since: :meth:`charge_windows` gives the new one.
            BlockError: a draft does not belong to the query.
        """
        check_drafts(registration, drafts)
        if not drafts:
            return []
        database = self._database()
        while True:
            with database.write() as connection:
                records = Publisher(connection, database.accounts).publish(registration, drafts)
            if records is not None:
                return records

    def missing(self, registration: Registration, *, start: int | None = None) -> Iterator[tuple[Window, int]]:
        """The (window, shard) of the schedule that should have a block and do not, in order.

        Refused windows and shards without a key are not missing. An endless schedule misses endlessly many. Windows
        that are not charged have the newest roster, which may be newer than the registration; while it has no series,
        the first shard stands for the window. Windows that start before the slot ``start`` are left out.
        """
        for windows in queries.pages(registration, start):
            held = self.current(registration)
            with self._database().read() as connection:
                found = queries.places(connection, held, windows)
            yield from found

    def records(self, domain: str, query: str, *, after: tuple[int, int] | None = None) -> Iterator[Record]:
        """Every block on record of a query, by window and shard; or those after a window's first slot and a shard."""
        while True:
            with self._database().read() as connection:
                page = queries.page_of_records(connection, domain, query, after)
            yield from page
            if len(page) < recorded_rows.PAGE:
                return
            after = (page[-1].window.start, page[-1].shard)

    def releases(self, domain: str, query: str) -> Iterator[pa.RecordBatch]:
        """The released rows of a query, as they left the job, by window and shard."""
        registration = self.registered(domain, query)
        if registration is None:
            raise recorded_rows.unknown_query(domain, query)
        for record in self.records(domain, query):
            if not has_keys(registration, record):  # a window of a roster that came since
                registration = self.current(registration)
            yield rows_of(registration, record)

    def domains(self) -> tuple[str, ...]:
        """The names of all domains."""
        with self._database().read() as connection:
            return tuple(row["name"] for row in recorded_rows.domain_rows(connection))

    def queries(self) -> list[tuple[str, str]]:
        """The (domain, query) names of all queries."""
        with self._database().read() as connection:
            return [(domain["name"], query["name"]) for domain, query in recorded_rows.query_rows(connection)]

    def check_apart(self, domain: DomainSpec, series: Collection[str]) -> tuple[Sharing, ...]:
        """What a domain, on record or not, will share with each other one when it has some series, without a change.

        Raises:
            SharedSeries: a registration of them would be refused.
        """
        with self._database().read() as connection:
            check_apart(connection, domain, series)
            return sharings(connection, domain.name, series, domain.shares_with)

    def left_alone(self, domain: DomainSpec, series: Collection[str]) -> set[str]:
        """Those of some series that may not join a domain, on record or not, because another one has them."""
        with self._database().read() as connection:
            return left_alone(connection, domain, series)

    def raise_budget(self, domain: str, budget: float) -> DomainSummary:
        """Raise a domain's budget, on record with its time; windows refused before stay refused.

        Raises:
            StoreError: the new budget is not above the one in force.
        """
        with self._database().write() as connection:
            domain_changes.raise_budget(connection, domain, budget)
        return self.summary(domain)

    def note_history_lost(self, domain: str, *, releases: int) -> DomainSummary:
        """Mark a domain for ever as one whose account lacks charges, because an operator says that they are lost.

        ``releases`` is how many releases were found that are not on record.
        """
        with self._database().write() as connection:
            domain_changes.note_history_lost(connection, domain, releases)
            return queries.summary(connection, domain)

    def unknown_releases(self, ids: Iterable[str]) -> frozenset[str]:
        """Those of some release ids that are not on record; if a sink has one, the ledger forgot charges."""
        wanted = set(ids)
        for domain, query in self.queries():
            if not wanted:
                break
            # windows first: the rosters that are read after them have those of each, also where a job goes on meanwhile
            starts = [entry.window_start for entry in self.entries(domain) if entry.query == query]
            registration = self.registered(domain, query)
            if registration is not None:
                queries.strike(self._database(), registration, starts, wanted)
        return frozenset(wanted)

    def export(
        self,
        path: Path | str,
        what: Literal["ledger", "releases"] = "ledger",
        *,
        domain: str | None = None,
        query: str | None = None,
    ) -> int:
        """Write entries or released rows to a file whose suffix is its format: ``.parquet``, ``.avro`` or ``.jsonl``.

        Returns:
            How many rows were written.

        Raises:
            ExportError: another suffix, or the file cannot be written.
            UnknownNameError: there is no such domain or query.
            ValueError: ``what`` is neither.
        """
        if what not in ("ledger", "releases"):
            raise ValueError(f"what is {what!r}, but must be 'ledger' or 'releases': name one")
        known = self.queries()
        names = [pair for pair in known if domain in (None, pair[0]) and query in (None, pair[1])]
        if not names and (domain, query) != (None, None):
            asked = " of ".join(f"{kind} {name!r}" for kind, name in (("query", query), ("domain", domain)) if name)
            held = ", ".join(map("/".join, known)) or "no query yet"
            raise UnknownNameError(f"{asked} is not on record in this ledger; it has {held}")
        if what == "ledger":
            chosen = [entry.to_dict() for entry in self.entries(domain) if query in (None, entry.query)]
            return exports.export(Path(path), [pa.RecordBatch.from_pylist(chosen, schema=LEDGER_SCHEMA)], ENTRIES)
        return exports.export(Path(path), (batch for pair in names for batch in self.releases(*pair)), RELEASES)

    def backup(self, path: Path | str) -> None:
        """Copy an SQLite ledger to a new file while jobs may be running; one that is damaged is not copied.

        A restored backup has forgotten what was charged after it: restore one only where nothing newer is left.

        Raises:
            ExportError: the ledger is not SQLite, the file exists, or it cannot be written.
            StoreDamaged: something is not as it was written; an earlier backup may be whole.
        """
        database = self._database()
        exports.back_up(Path(path), self._address, database.raw_sqlite, self.check_rows)

    def check(self) -> None:
        """Read an SQLite file through for damage, if it is not very large; a server looks after its own files.

        Raises:
            StoreDamaged: the file is damaged.
        """
        database = self._database()
        if not self._address.is_sqlite:
            return
        path = Path(self._address.resolve().database or "")
        if path.stat().st_size > _CHECKED_BYTES:
            return
        with database.raw_sqlite() as connection:
            found = connection.execute("PRAGMA quick_check(1)").fetchone()
        if found is None or found[0] != "ok":
            raise StoreDamaged(f"ledger {self._address}: {DAMAGED}")

    def check_blocks(self, domain: str) -> None:
        """Read all blocks of a domain for damage.

        Raises:
            StoreDamaged: a block was changed or removed.
        """
        with self._database().read() as connection:
            recorded_rows.check_all_blocks(connection, recorded_rows.domain_row(connection, domain))

    def check_writable(self, *, undone: bool = False) -> None:
        """Find out whether a job could write here, and change nothing: no ledger is made where there is none.

        What was tried is committed, which a full disk shows, unless it is to be ``undone``.

        Raises:
            StoreMisplaced: a new ledger would be made beside another one of the database.
            StoreReadOnly: the ledger, or the folder for a new one, cannot be written.
            StoreUnavailable: where there is none, none could be made; the subclass says why.
        """
        database = self._borrowed()
        try:
            database.open(expected=self._address.store_id)
        except StoreMissing:
            database.try_to_make()
            return
        with database.write() as connection:
            if not self._address.is_sqlite:
                check_rights(connection, self._address)
            trial = connection.begin_nested()
            connection.execute(tables.meta.update().values(mode=tables.meta.c.mode))
            if undone:
                trial.rollback()
            else:
                trial.commit()

    def close(self) -> None:
        """Give the connection back; the store connects again when it is used again."""
        if self._return is not None:
            self._return()
        self._shared = self._return = None

    def _borrowed(self) -> Database:
        if self._shared is None or self._shared.process != os.getpid():
            self._shared = borrow(self._address, self._wait)
            self._return = weakref.finalize(self, give_back, self._shared)
        return self._shared

    def _database(self) -> Database:
        self._opened()
        return self._borrowed()

    def _opened(self) -> StoreAddress:
        found = self._borrowed().open(create=self._create, over=self._over, expected=self._address.store_id)
        if self._address.store_id is None:
            self._address = self._address.pinned(found)
        return self._address

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"address": self._address, "create": self._create, "over": self._over, "wait": self._wait}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["address"], create=state["create"], over=state["over"], wait=state["wait"])

    def __repr__(self) -> str:
        return f"Store({self._address!r})"
