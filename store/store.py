"""The ledger of record: what was charged and what was published, kept so that neither happens twice.

A :class:`Store` is a small value: it holds an address, travels to any worker, and connects on first use.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from ..schemas.ledger import LedgerEntry
from ..schemas.releases import COMPLETENESS, release_ids
from ..schemas.slots import SlotGrid, Window
from . import answers, changes, exports, verification
from .address import StoreAddress
from .answers import DomainSummary
from .changes import Changed, Estimated
from .codec import block_from_bytes
from .database import Database, Look, borrow
from .domain import Query, windows_from
from .engines import check_rights
from .errors import StoreConflict, damaged
from .log import Head, heads
from .publishing import Publisher, check_drafts
from .registration import Others, Registrar, Sharing
from .specs import BeliefChange, BlockKey, BlockToPublish, DomainSpec, QuerySpec, Record, Registration, layout_of

#: Blocks, and windows, that are looked at in one short transaction: a slow reader blocks no writer.
PAGE, _WINDOWS = 64, 4_096


class Store:
    """The ledger of record at an address.

    Every method is one or a few short transactions. A method that changes anything does all of it or nothing, and
    returns only after it is on the disk. Stores of one process share one connection, and none is carried over a fork. A
    ledger that cannot be used is a :class:`StoreError` of every method, and so is a name that is not on record, but of
    `registered`, `entries`, `records` and `estimated`, which find nothing.

    A store that was opened once insists on the ledger that it found, also after it travelled to another process: each
    later opening that finds another ledger there, an older copy or none raises :class:`StoreReplaced`. What is read is
    held against the digests of everything before it; a difference raises :class:`StoreDamaged`.

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

    @property
    def address(self) -> StoreAddress:
        """Where the ledger is; with its name, once it was opened."""
        return self._address

    @property
    def store_id(self) -> str:
        """The random name of the ledger."""
        return self._opened().store_id or ""

    def is_there(self) -> bool:
        """Whether a ledger is at the address; one that was known and is gone is an error. None is made."""
        try:
            self._opened(create=False)
        except StoreConflict as error:
            if not error.details.get("missing"):
                raise
            return False
        return True

    # what writes

    def register(
        self, domain: DomainSpec, query: QuerySpec, estimated: Estimated | None = None, *, trial: bool = False
    ) -> Registration:
        """Put a query on record and reserve budget for its whole schedule, or return what is on record for it.

        The first registration of a name wins. Where a later one leaves schedule or roster to the data, those of the
        first hold; shards and header are always those of the first. A given ``windows.stop`` that is later than the
        recorded one extends the schedule, if budget can be reserved for all of the new windows. Another given roster
        holds from the first window on that is not charged, if no series is in more groups than was calibrated for; of
        two jobs that change it at once, the second one fails. A model that the job estimated is put on record with a
        new query, together with the change of the domain's belief that it makes, or neither is. Of a ``trial`` nothing
        is put on record, and no budget is promised.

        Raises:
            StoreConflict: the domain or query has other content, and the error names the field and both values; another
                domain has series of the roster that may not be shared; or the store holds rows of the other kind (real,
                or noise-free rows of tests).
            BudgetRefused: the budget does not allow the first window, or not all of an extension.
        """
        database = self._database()
        with database.reading() as look:
            known = look.domain(domain.name)
            before = None if known is None else known.queries.get(query.name)
            roster = None if before is None else before.versions[-1].digest
        with database.writing("", domain.name) as writing:
            if estimated is not None and estimated.change is not None:
                held = writing.known(domain.name)
                changes.change_belief(writing, held, estimated.change, writing.blobs(domain.name))
            made = Registrar(writing, domain.name, roster).register(domain, query)
            if made.fresh and estimated is not None:
                changes.note_estimate(writing, writing.known(domain.name), query.name, estimated)
            if trial:
                writing.undo()
            return made

    def join(
        self, registration: Registration, entries: Sequence[tuple[str, str | None]], most: int | None = None
    ) -> Registration:
        """Let series join the roster of the windows that are not charged yet; known ones keep the groups they have.

        Saying the same again changes nothing, and where no window is left no series joins. A series of another domain
        of the ledger stays out, unless the two may share it, and so do those beyond ``most``. The answer is the query
        as it is now: the same registration where nothing changed since it was read.
        """
        held = self.current(registration)
        known = held.query.roster.groups_of
        if (most is not None and len(known) >= most) or all(series in known for series, _ in entries):
            return held
        domain, query = registration.domain.name, registration.query.name
        with self._database().writing("", domain) as writing:
            found = Registrar(writing, domain).join(query, entries, most)
        return held if found.revision == held.revision else found

    def charge_windows(
        self, registration: Registration, windows: Iterable[Window], begun: Registration | None = None
    ) -> Registration:
        """Charge complete windows before they are counted; a charged window keeps its roster for ever.

        Earlier windows of the schedule are charged with them. One that is charged and has no block yet is missing, and
        is published whenever it is counted again. ``begun`` is what was on record when the job began, where it rejects
        the readings of series that it does not know: a roster that was changed since holds for later windows then
        (:meth:`.Registration.as_begun`). The answer is the query with these rosters: the same registration, of any age,
        where it has them. A process that knows of the charges makes no query.

        Raises:
            StoreConflict: what is on record is not what the registration says, or a window is not one of the query's.
        """
        asked = sorted(windows)
        check_drafts(registration, asked)
        if not asked:
            return registration
        database, name, last = self._database(), registration.domain.name, asked[-1]
        while True:
            with database.lock:
                known = database.known(name)
                query = None if known is None else known.queries.get(registration.query.name)
                if query is not None and query.digest == registration.digest and last.start in query.entries:
                    return registration if registration.revision >= query.revision else self.current(registration)
            with database.writing(name) as writing:
                Publisher(writing, registration).charge_windows(last, begun)

    def publish(self, registration: Registration, drafts: Sequence[BlockToPublish]) -> list[Record]:
        """Charge, draw and keep what is not on record yet, in one transaction, and return what is.

        Charging a window first charges all earlier ones of the schedule that have no entry. A window that the budget
        does not allow has a refusal on record instead of a block, for all shards and for ever. One record a draft comes
        back, in their order.

        Raises:
            StoreConflict: what is on record is not what the registration says: the job must stop, unless the ``field``
                is ``roster``, which :meth:`charge_windows` gives anew; or a draft does not belong to the query.
        """
        check_drafts(registration, (one.window for one in drafts), (one.shard for one in drafts))
        if not drafts:
            return []
        database = self._database()
        while True:
            with database.writing(registration.domain.name) as writing:
                records = Publisher(writing, registration).publish(drafts)
            if records is not None:
                return records

    def change_belief(self, domain: str, change: BeliefChange) -> Changed:
        """Add another belief to a domain's, or let it follow them, if the budget allows it.

        Raises:
            BudgetRefused: what is charged or promised would pass the budget; nothing was changed.
            StoreError: the belief cannot be priced, or its slot lies before an earlier change.
        """
        with self._database().writing(domain) as writing:
            return changes.change_belief(writing, writing.known(domain), change, writing.blobs(domain))

    def raise_budget(self, domain: str, budget: float) -> DomainSummary:
        """Raise a domain's budget, on record with its time; windows refused before stay refused.

        Raises:
            StoreError: the new budget is not above the one in force.
        """
        with self._database().writing(domain) as writing:
            changes.raise_budget(writing, writing.known(domain), budget)
        return self.summary(domain)

    def note_history_lost(self, domain: str, *, releases: int) -> DomainSummary:
        """Mark a domain for ever as one whose account lacks charges, because an operator says that they are lost.

        ``releases`` is how many releases were found that are not on record.
        """
        with self._database().writing(domain) as writing:
            changes.decide(writing, writing.known(domain), changes.LOST, old=0, new=releases)
        return self.summary(domain)

    # what reads

    def registered(self, domain: str, query: str) -> Registration | None:
        """What is on record for a query; ``None`` if there is no such query."""
        with self._look() as look:
            held = look.domain(domain)
            known = None if held is None else held.queries.get(query)
            return None if held is None or known is None else held.registration(known, look.blobs(domain))

    def current(self, registration: Registration) -> Registration:
        """The registration with the rosters that are on record now; the same one if there is no other."""
        domain, query = registration.domain.name, registration.query.name
        with self._look() as look:
            held = look.known(domain)
            known = held.query(query)
            if known.revision == registration.revision:
                return registration
            return held.registration(known, look.blobs(domain))

    def next_start(self, registration: Registration) -> int:
        """Start of a query's first window without an entry: all before it are charged or refused."""
        with self._look() as look:
            return look.known(registration.domain.name).query(registration.query.name).next_start

    def missing(self, registration: Registration, *, start: int | None = None) -> Iterator[tuple[Window, int]]:
        """The (window, shard) of the schedule that should have a block and do not, in order.

        Refused windows and shards without a key are not missing. An endless schedule misses endlessly many. Windows
        that are not charged have the newest roster, which may be newer than the registration; while it has no series,
        the first shard stands for the window. Windows that start before the slot ``start`` are left out.
        """
        windows = windows_from(registration.query.schedule, start)
        while page := list(islice(windows, _WINDOWS)):
            now = self.current(registration)
            with self._look() as look:
                known = look.known(registration.domain.name).query(registration.query.name)
                found = [place for window in page for place in _missing(now, known, window)]
            yield from found

    def domains(self) -> tuple[str, ...]:
        """The names of all domains."""
        with self._look() as look:
            return tuple(sorted(look.root.domains))

    def queries(self) -> list[tuple[str, str]]:
        """The (domain, query) names of all queries, by domain and order of registration."""
        with self._look() as look:
            return [(name, query) for name in sorted(look.root.domains) for query in look.known(name).queries]

    def entries(self, domain: str | None = None) -> list[LedgerEntry]:
        """Every charge and refusal, of one domain or of all, by domain and sequence. It may be published."""
        with self._look() as look:
            names = sorted(look.root.domains) if domain is None else [domain]
            held = [look.domain(name) for name in names]
            return [entry for one in held if one is not None for entry in one.ledger_entries()]

    def summary(self, domain: str) -> DomainSummary:
        """What a domain has spent and promised."""
        with self._look() as look:
            held = look.known(domain)
            others = Others.of(look, held.spec)
            shares = others.sharings(held.all_series(look.blobs(domain)), held) if others.domains else ()
            return answers.summary(held, shares)

    def completeness(self, domain: str) -> dict[str, dict[str, int]]:
        """How many windows of each query have rows of each completeness; one with shards of several counts for each."""
        with self._look() as look:
            held = look.known(domain)
            found: dict[str, dict[str, int]] = {}
            for name, query in held.queries.items():
                told = Counter(said for _, said in {(at[0], one.completeness) for at, one in query.blocks.items()})
                found[name] = {said: told[said] for said in COMPLETENESS}
            return found

    def estimated(self, domain: str, query: str) -> dict[str, Any] | None:
        """The model that a job estimated for a query; ``None`` if none is on record."""
        with self._look() as look:
            return changes.estimated_model(look.domain(domain), query)

    def price_change(self, domain: str, change: BeliefChange) -> Changed:
        """What :meth:`change_belief` would answer or raise now of a belief; nothing is written."""
        with self._look() as look:
            return changes.priced_change(look.known(domain), change)

    def records(self, domain: str, query: str, *, after: BlockKey | None = None) -> Iterator[Record]:
        """Every block on record of a query, by window and shard; or those after a window's first slot and a shard."""
        while True:
            with self._look() as look:
                page = _page(look, domain, query, after)
            yield from page
            if len(page) < PAGE:
                return
            after = (page[-1].window.start, page[-1].shard)

    def releases(self, domain: str, query: str) -> Iterator[pa.RecordBatch]:
        """The released rows of a query, as they left the job, by window and shard."""
        with self._look() as look:
            held = look.known(domain)
            registration = held.registration(held.query(query), look.blobs(domain))
        for record in self.records(domain, query):
            if record.block is not None:
                if record.block.keys != layout_of(registration, record.window).keys(record.shard):
                    registration = self.current(registration)  # the window has a roster that came since
                yield exports.rows_of(registration, record)

    def unknown_releases(self, ids: Iterable[str]) -> frozenset[str]:
        """Those of some release ids that are not on record; if a sink has one, the ledger forgot charges."""
        wanted = set(ids)
        for domain, query in self.queries():
            with self._look() as look:
                held = look.known(domain)
                known, grid = held.query(query), SlotGrid(**held.spec.grid)
                registration = held.registration(known, look.blobs(domain))
                for start, shard in known.blocks:
                    window = registration.query.schedule.window_at(start)
                    layout = layout_of(registration, window)
                    if shard not in layout.occupied:
                        raise damaged(f"query {query!r}", f"has a block of a shard that window {window} has not")
                    times = grid.time_of(window.start), grid.time_of(window.stop)
                    wanted.difference_update(
                        release_ids(domain, query, registration.digest, times, layout.keys(shard)) if wanted else ()
                    )
        return frozenset(wanted)

    def check_apart(self, domain: DomainSpec, series: Collection[str]) -> tuple[Sharing, ...]:
        """What a domain, on record or not, will share with each other one when it has some series, without a change.

        Raises:
            StoreConflict: a registration of them would be refused.
        """
        with self._look() as look:
            held, others = look.domain(domain.name), Others.of(look, domain)
            others.check(series, held)
            own = frozenset[str]() if held is None else held.all_series(look.blobs(domain.name))
            return others.sharings(own | set(series), held)

    def left_alone(self, domain: DomainSpec, series: Collection[str]) -> set[str]:
        """Those of some series that may not join a domain, on record or not, because another one has them."""
        with self._look() as look:
            return Others.of(look, domain).left_alone(series, look.domain(domain.name))

    # the record as a whole

    def head(self, domain: str) -> Head:
        """What is on record of a domain now: a word to keep elsewhere, and to ask for later by :meth:`holds`."""
        with self._look() as look:
            return look.known(domain).head

    def known_head(self, domain: str) -> Head:
        """The same as far as this process knows, which is not less than what it put on record itself."""
        known = self._database().known(domain)
        return self.head(domain) if known is None else known.head

    def holds(self, domain: str, head: Head) -> bool:
        """Whether everything that a head was made of is on record as it was."""
        with self._look() as look:
            held = look.domain(domain)
            return held is not None and held.holds(head.seq, bytes.fromhex(head.digest))

    def verify(self, expected: Mapping[str, Sequence[Head]] | None = None) -> verification.Verified:
        """Read everything for damage, and price every account anew; a second for some thousand charges.

        Of ``expected``, heads by domain that were kept elsewhere, all must still be on record. Nothing is raised for a
        damaged row: the answer has all that is wrong.
        """
        with self._look() as look:
            return verification.verify(look.connection, expected or {})

    def check_rows(self) -> None:
        """Read everything as :meth:`verify` does, but price no account, which is what takes long."""
        with self._look() as look:
            verification.check_rows(look.connection)

    def check_writable(self, *, undone: bool = False) -> None:
        """Find out whether a job could write here, and change nothing: no ledger is made where there is none.

        What was tried is committed, which a full disk shows, unless it is to be ``undone``; an error says why not.
        """
        database = self._borrowed()
        if not self.is_there():
            database.try_to_make()
            return
        if not self._address.is_sqlite:
            with self._look() as look:
                check_rights(look.connection, self._address)
        with database.writing("") as writing:
            trial = writing.connection.begin_nested()
            writing.connection.execute(heads.update().where(heads.c.domain == "").values(version=heads.c.version))
            if undone:
                trial.rollback()
            else:
                trial.commit()

    def export(self, path: Path | str) -> int:
        """Write the whole log without blobs, the audit trail, to a file whose suffix is its format; how many rows.

        ``.jsonl`` or ``.parquet``: ``domain``, ``seq``, ``key``, ``body`` (JSON), and ``digest``, hexadecimal, of the
        domain's log up to the row.
        """
        with self._look() as look:
            return exports.export(Path(path), look.connection, [look.root, *map(look.known, sorted(look.root.domains))])

    def backup(self, path: Path | str) -> None:
        """Copy an SQLite ledger to a new file while jobs may be running; one that is damaged is not copied.

        A restored backup has forgotten what was charged after it: restore one only where nothing newer is left.

        Raises:
            ValueError: the ledger is not SQLite, or the file exists.
            OSError: it cannot be written.
            StoreDamaged: something is not as it was written; an earlier backup may be whole.
        """
        database = self._database()
        exports.back_up(Path(path), self._address, database.raw_sqlite, self.check_rows)

    def close(self) -> None:
        """Give the connection back; the store connects again when it is used again."""
        self._shared = None

    # connections

    def _look(self) -> AbstractContextManager[Look]:
        return self._database().reading()

    def _borrowed(self) -> Database:
        if self._shared is None or self._shared.process != os.getpid():
            self._shared = borrow(self._address, self._wait)
        return self._shared

    def _database(self) -> Database:
        self._opened()
        return self._borrowed()

    def _opened(self, *, create: bool = True) -> StoreAddress:
        found = self._borrowed().open(create=create and self._create, over=self._over, expected=self._address.store_id)
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


def _missing(now: Registration, known: Query, window: Window) -> list[tuple[Window, int]]:
    """The shards of a window that should have a block and do not."""
    entry = known.entries.get(window.start)
    if now.query.roster.awaits is not None and entry is None:
        return [(window, 0)]  # no series was seen yet; one may be before the window is over
    if entry is not None and not entry.charged:
        return []
    return [(window, shard) for shard in layout_of(now, window).occupied if (window.start, shard) not in known.blocks]


def _page(look: Look, domain: str, query: str, after: BlockKey | None) -> list[Record]:
    """The next blocks of a query, by window and shard."""
    held = look.domain(domain)
    known = None if held is None else held.queries.get(query)
    if held is None or known is None:
        return []
    places = sorted(place for place in known.blocks if after is None or place > after)[:PAGE]
    there = {place: known.blocks[place] for place in places}
    read, reader = look.blobs(domain)({one.seq: one.digest for one in there.values()}), held.reader(known)
    found: list[Record] = []
    for (start, shard), one in there.items():
        entry, block = known.entries[start], block_from_bytes(read[one.seq], one.completeness)
        found.append(Record(Window(start, entry.stop), shard, reader(entry), block, fresh=False))
    return found
