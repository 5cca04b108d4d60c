"""Reading a whole ledger for damage: every row, how the rows hang together, and the account priced anew by the core.

A *head* says what was on record of a domain at one moment, in a few words: how many charges, blocks and decisions there
were, and one digest of all of them. Whoever keeps it elsewhere can ask later whether all of that is still on record as
it was, whatever was written to the ledger since. Digests have no key: against somebody who may write to the ledger and
makes all of them anew, a head that is kept elsewhere is the only witness.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain, islice, pairwise
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from ..privacy.mechanisms.discrete_laplace import epsilon_dp_of
from ..privacy.mechanisms.histogram import LaplaceHistogram
from ..privacy.models.markov_chain import ChainError
from ..schemas.noise_laws import NO_NOISE
from ..schemas.roster import Roster
from . import tables
from .accounts import ledger_of, loss_of, promised, same_loss
from .codec import (
    block_from_bytes,
    changes_from_text,
    domain_from_row,
    names_from_bytes,
    query_from_row,
    roster_from_bytes,
    scale_text,
)
from .errors import StoreDamaged, StoreError
from .integrity import HEAD_BYTES, Chain, Row, damaged, drawn_of, is_whole, link_of, named
from .recorded_rows import chained_rows, domain_row, events_of
from .specs import TRANSITIONS, DomainSpec, QuerySpec

#: A roster in the place of a query's own, of which no price depends on more than is in the query's row.
_NOBODY = Roster((), "series")

#: Numbers of missing entries that are named.
_MOST_TOLD = 10

_HEAD = re.compile(rf"(\d{{1,18}})\.(\d{{1,18}})\.(\d{{1,18}})\.([0-9a-f]{{{2 * HEAD_BYTES}}})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Defect:
    """One thing that is not as it was written: in which table, which row or rows by their keys, and what is wrong."""

    table: str
    row: str
    what: str

    def __str__(self) -> str:
        return f"{self.table}: {self.row}: {self.what}"


@dataclass(frozen=True, slots=True)
class Head:
    """What was on record of a domain at a moment."""

    charges: int  # charges and refusals
    blocks: int  # blocks of noisy histograms
    decisions: int  # decisions about the domain, and what else is on record beside it
    digest: str  # of all of these in their order, hexadecimal

    def __str__(self) -> str:
        return f"{self.charges}.{self.blocks}.{self.decisions}.{self.digest}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """The inverse of ``str``.

        Raises:
            ValueError: the text is no head.
        """
        found = _HEAD.fullmatch(text.strip().lower())
        if found is None:
            raise ValueError(f"{text!r} is no head; one is like 12.96.3. and {2 * HEAD_BYTES} hexadecimal digits")
        return cls(int(found[1]), int(found[2]), int(found[3]), found[4])


@dataclass(frozen=True, slots=True)
class Verified:
    """What a ledger holds, and everything that is wrong with it."""

    store_id: str  # the random name of the ledger; empty where that is damaged
    # whether it holds real rows (``private``) or noise-free ones of tests (``none``); ``None`` for none yet
    mode: str | None
    rows: Mapping[str, int]  # rows by table
    heads: Mapping[str, Head]  # by domain
    defects: tuple[Defect, ...]  # what is not as it was written, in the order of the tables

    @property
    def whole(self) -> bool:
        """Whether nothing is wrong."""
        return not self.defects


def verify(connection: Connection, expected: Mapping[str, Sequence[Head]] | None = None) -> Verified:
    """Read everything for damage, and price every account anew; a second for some thousand charges.

    Args:
        connection: of a transaction that sees one state of the ledger.
        expected: heads by domain, from an earlier call and kept elsewhere: what they were made of must still be on
            record.

    Returns:
        What there is, its heads, and all that is wrong; nothing is raised for a damaged row.
    """
    found = _Reader(connection)
    with _any_text(connection):
        found.read(priced=True)
    return found.compared(expected or {})


def check_rows(connection: Connection) -> None:
    """Read everything as :func:`verify` does, but price no account, which is what takes long.

    Raises:
        StoreDamaged: something is not as it was written; the first such thing is named.
    """
    found = _Reader(connection)
    with _any_text(connection):
        found.read(priced=False)
    if found.defects:
        first, more = found.defects[0], len(found.defects) - 1
        where = first.row if first.row.startswith(first.table) else f"{first.table}, {first.row}"
        raise damaged(where, first.what + (f" (and {more:,} more defects)" if more else ""))


def head_of(connection: Connection, name: str) -> Head:
    """What is on record of a domain now, from its charges, decisions and the digests of its blocks."""
    domain = domain_row(connection, name)
    queries = sa.select(tables.queries.c.id).where(tables.queries.c.domain_id == domain["id"])
    table, charges = tables.releases, [row for row, _ in chained_rows(connection, domain)]
    chosen = sa.select(table.c.row_digest).where(table.c.query_id.in_(queries)).order_by(table.c.id)
    blocks: list[Row] = list(connection.execute(chosen).mappings())
    return _head_of(domain, charges, blocks, events_of(connection, domain))


@dataclass
class _Reader:
    """What was read: of each table the rows that could be read, without blocks, and what is wrong."""

    connection: Connection
    rows: dict[sa.Table, list[Row]] = field(default_factory=dict[sa.Table, list[Row]])
    defects: list[Defect] = field(default_factory=list[Defect])

    def read(self, *, priced: bool) -> None:
        """Read and compare everything, the losses of the accounts with the core only if they are to be priced."""
        self._read_structure()
        for table in tables.metadata.sorted_tables:
            self.rows[table] = list(self._read_table(table))
        self._check_meta()
        self._check_references()
        self._check_counts()
        for domain in self.rows[tables.domains]:
            charges = self._check_chain(domain)
            if priced:
                self._check_account(domain, charges)
        self._check_queries()
        self._check_blocks()

    def compared(self, expected: Mapping[str, Sequence[Head]]) -> Verified:
        """Everything that was found, held against heads from elsewhere."""
        domains = {str(row["name"]): row for row in self.rows[tables.domains]}
        for name, wanted in expected.items():
            for head in wanted:
                if name not in domains:
                    self._tell(tables.domains, f"name {name!r}", "is expected and not on record")
                elif not self._holds(domains[name], head):
                    what = f"what its head {head} was made of is not on record as it was"
                    self._tell(tables.domains, f"name {name!r}", what)
        meta = next(iter(self.rows[tables.meta]), None)
        return Verified(
            store_id="" if meta is None else str(meta["store_id"]),
            mode=None if meta is None else meta["mode"],
            rows={table.name: len(rows) for table, rows in self.rows.items()},
            heads={name: _head_of(row, *self._parts(row)) for name, row in sorted(domains.items())},
            defects=tuple(self.defects),
        )

    def _tell(self, table: sa.Table, row: Row | str, what: str) -> None:
        self.defects.append(Defect(table.name, row if isinstance(row, str) else named(table, row), what))

    def _read_structure(self) -> None:
        """Let SQLite compare its tables with their indexes; a server looks after its own files."""
        if self.connection.dialect.name != "sqlite":
            return
        for (text,) in self.connection.exec_driver_sql("PRAGMA integrity_check(100)"):
            if text != "ok":
                self.defects.append(Defect("the file", "SQLite's structure", str(text)))

    def _read_table(self, table: sa.Table) -> Iterator[Row]:
        chosen = sa.select(table).order_by(table.c.id).execution_options(yield_per=256)
        try:
            for row in self.connection.execute(chosen).mappings():
                try:
                    if is_whole(table, row):
                        _decode(table, row)
                    else:
                        self._tell(table, row, "is not what was written")
                except StoreError as error:
                    self._tell(table, row, f"cannot be decoded: {error}")
                # blocks are long, and needed no more
                yield {name: value for name, value in row.items() if name not in ("block", "entries", "joined")}
        except DBAPIError as error:
            if self.connection.dialect.name != "sqlite":
                raise
            self._tell(table, "the rows that follow", f"cannot be read ({type(error.orig).__name__})")

    def _check_meta(self) -> None:
        rows = self.rows[tables.meta]
        if len(rows) != 1:
            self._tell(tables.meta, "all rows", f"there are {len(rows)} and not one")

    def _check_references(self) -> None:
        ids = {table: {row["id"] for row in rows} for table, rows in self.rows.items()}
        for table, rows in self.rows.items():
            for key in table.foreign_keys:
                parent, name = key.column.table, key.parent.name
                for row in rows:
                    if row[name] not in ids[parent]:
                        self._tell(table, row, f"the row of {parent.name} it belongs to is missing")

    def _check_counts(self) -> None:
        for parent, column, child, parent_of in (
            (tables.domains, "query_rows", tables.queries, itemgetter("domain_id")),
            (tables.domains, "event_rows", tables.domain_events, itemgetter("domain_id")),
            (tables.queries, "reservation_rows", tables.reservations, itemgetter("query_id")),
            (tables.queries, "version_rows", tables.roster_versions, itemgetter("query_id")),
            (tables.meta, "domain_rows", tables.domains, lambda _: 1),  # the only row
        ):
            found = Counter(map(parent_of, self.rows[child]))
            for row in self.rows[parent]:
                if found[row["id"]] != row[column]:
                    what = f"there are {found[row['id']]}, and {row[column]} were written"
                    self._tell(child, f"those of {named(parent, row)}", what)

    def _links(self, domain: Row) -> list[Row]:
        """The entries of a domain's account, in the order of their numbers as far as they have any."""
        rows = [row for row in self.rows[tables.charges] if row["domain_id"] == domain["id"]]
        return sorted((row for row in rows if isinstance(row["sequence"], int)), key=itemgetter("sequence"))

    def _check_chain(self, domain: Row) -> list[Row]:
        rows, where = self._links(domain), f"those of domain {domain['name']!r}"
        numbers = [row["sequence"] for row in rows]
        last = domain["last_sequence"]
        if isinstance(last, int):
            ends = [0, *sorted({number for number in numbers if 0 < number <= last}), last + 1]
            # a damaged last number may be any
            gaps = chain.from_iterable(range(one + 1, other) for one, other in pairwise(ends))
            if missing := list(islice(gaps, _MOST_TOLD + 1)):
                said = ", ".join(map(str, missing[:_MOST_TOLD])) + (", ..." if len(missing) > _MOST_TOLD else "")
                self._tell(tables.charges, where, f"the entries with these numbers are missing: {said}")
        if len(numbers) != len(set(numbers)) or (numbers and numbers[-1] != last):
            self._tell(tables.charges, where, f"they are not numbered from 1 to {last}, each once")
        made = Chain(str(domain["name"]))
        made.add([link_of(row) for row in rows])
        if made.head != domain["head"]:
            self._tell(tables.charges, where, "their chain does not end in the head on record")
        return rows

    def _check_account(self, domain: Row, charges: list[Row]) -> None:
        """Price everything anew, and compare what the entries say."""
        try:
            spec = domain_from_row(domain)
            self._price(spec, domain, charges)
            reserved = loss_of(spec, promised(self.connection, domain))
            if not same_loss(reserved, domain["reserved_loss"]):
                self._tell(tables.domains, domain, f"reserved_loss is {domain['reserved_loss']!r}, not {reserved!r}")
        except (StoreError, ChainError, ValueError, TypeError, ArithmeticError) as error:
            what = f"the account cannot be priced ({type(error).__name__})"
            self._tell(tables.charges, f"those of domain {domain['name']!r}", what)

    def _price(self, spec: DomainSpec, domain: Row, charges: list[Row]) -> None:
        # a belief that was added later is not in what the entries before it say
        known, account, lost = 0, ledger_of(replace(spec, changes=())), 0.0
        spans: list[tuple[int, int, float]] = []
        for row in charges:
            span = (row["window_start"], row["window_stop"], row["epsilon_dp"])
            charged = row["decision"] == "charged"
            while True:
                made = account.charge(*span) if charged else None
                before, after = (account.loss, None) if made is None else (made.loss_before, made.loss_after)
                agree = same_loss(before, row["loss_before"]) and (after is None or same_loss(after, row["loss_after"]))
                if agree or known == len(spec.changes):
                    break
                known += 1
                account = ledger_of(replace(spec, changes=spec.changes[:known]))
                account.replay(spans)
            if not agree:
                said = f"loss_before and loss_after are {row['loss_before']!r} and {row['loss_after']!r}"
                self._tell(tables.charges, row, f"{said}; by the core {before!r} and {after!r}")
            if charged:
                spans.append(span)
                lost = row["loss_after"]
        whole = ledger_of(spec).replay(spans)
        recorded = max(lost, domain["changed_loss"] or 0.0)
        # where another belief raised the loss, what the entries say may be above it
        if not same_loss(recorded, whole) and not (spec.changes and recorded > whole):
            self._tell(tables.domains, domain, f"the loss is {recorded!r}, and by the core {whole!r}")

    def _check_queries(self) -> None:
        """See that each query's entries are those of the first windows of its schedule, and derive what they say."""
        entries: dict[Any, list[Row]] = defaultdict(list)
        for row in self.rows[tables.charges]:
            entries[row["query_id"]].append(row)
        reserved: dict[Any, list[Row]] = defaultdict(list)
        for row in self.rows[tables.reservations]:
            reserved[row["query_id"]].append(row)
        for row in self.rows[tables.queries]:
            # a damaged row is told already
            with suppress(StoreError, TypeError, ArithmeticError, ValueError):
                query = query_from_row(row, "", _NOBODY)
                self._check_density(row, query)
                start = query.schedule.first
                for entry in sorted(entries[row["id"]], key=itemgetter("window_start")):
                    window = query.schedule.window_at(start)
                    if (entry["window_start"], entry["window_stop"]) != (window.start, window.stop):
                        what = f"it is not of window {window}, which is the next of its query"
                        self._tell(tables.charges, entry, what)
                        break
                    self._check_entry(entry, query.of_length(len(window)), reserved[row["id"]])
                    start = query.schedule.start_after(start)

    def _check_density(self, row: Row, query: QuerySpec) -> None:
        """Derive what a release of a query loses from the exact scale of its noise, for each length of its windows."""
        if query.mechanism in (TRANSITIONS, NO_NOISE):
            return
        for one in (query, *map(query.of_length, query.lengths)):
            density = epsilon_dp_of(one.scale, LaplaceHistogram.sensitivity)
            if one.release_epsilon_dp != density:
                self._tell(tables.queries, row, f"a release loses {one.release_epsilon_dp!r}; by its scale {density!r}")

    def _check_entry(self, entry: Row, query: QuerySpec, reserved: list[Row]) -> None:
        """Hold an entry against its query's noise, what is reserved for that, and the budget."""
        said, noise = (entry["epsilon_dp"], entry["scale"]), (query.epsilon_dp, scale_text(query.scale))
        if said != noise:
            self._tell(tables.charges, entry, f"epsilon_dp and scale are {said!r}; its query has {noise!r}")
        start, stop, after, budget = (entry[name] for name in ("window_start", "window_stop", "loss_after", "budget"))
        admitted = any(one["start"] <= start and (one["stop"] is None or stop <= one["stop"]) for one in reserved)
        charged = entry["decision"] == "charged"
        if charged != (admitted and after <= budget) and (charged or not same_loss(after, budget)):
            what = f"it was {entry['decision']}, and by budget and promises it was not to be"
            self._tell(tables.charges, entry, what)

    def _check_blocks(self) -> None:
        """Hold each block against what its charge says was drawn."""
        blocks: dict[Any, dict[Any, Row]] = defaultdict(dict)
        charges = {row["id"]: row for row in self.rows[tables.charges]}
        window = itemgetter("query_id", "window_start")
        for row in self.rows[tables.releases]:
            blocks[row["charge_id"]][row["shard"]] = row
            charge = charges.get(row["charge_id"])
            if charge is not None and window(charge) != window(row):
                self._tell(tables.releases, row, "its charge is of another window")
        for number, charge in charges.items():
            try:
                drawn = drawn_of(charge)
            except StoreDamaged:
                self._tell(tables.charges, charge, "does not say which blocks were drawn for it")
                continue
            for shard in sorted({*drawn, *blocks[number]}, key=str):
                held = blocks[number].get(shard)
                if held is None:
                    where = f"shard {shard} of {named(tables.charges, charge)}"
                    self._tell(tables.releases, where, "the block was drawn and is missing")
                elif drawn.get(shard) != held["row_digest"]:
                    self._tell(tables.releases, held, "is not the block that was drawn")

    def _holds(self, domain: Row, head: Head) -> bool:
        """Whether what a head was made of is where it was."""
        counts, parts = (head.charges, head.blocks, head.decisions), self._parts(domain)
        if any(count > len(rows) for count, rows in zip(counts, parts, strict=True)):
            return False
        return _head_of(domain, *(rows[:count] for count, rows in zip(counts, parts, strict=True))) == head

    def _parts(self, domain: Row) -> tuple[list[Row], list[Row], list[Row]]:
        """Charges by number, and blocks and decisions in the order in which they came."""
        queries = {row["id"] for row in self.rows[tables.queries] if row["domain_id"] == domain["id"]}
        blocks = [row for row in self.rows[tables.releases] if row["query_id"] in queries]
        events = [row for row in self.rows[tables.domain_events] if row["domain_id"] == domain["id"]]
        return self._links(domain), blocks, events


def _head_of(domain: Row, charges: list[Row], blocks: list[Row], events: list[Row]) -> Head:
    made = hashlib.blake2b(repr(("head", domain["name"], domain["frozen"])).encode(), digest_size=HEAD_BYTES)
    links = Chain(str(domain["name"]))
    links.add([link_of(row) for row in charges])
    made.update(links.head)
    for rows in (blocks, events):
        part = hashlib.blake2b(digest_size=HEAD_BYTES)
        for row in rows:
            part.update(repr(row["row_digest"]).encode())
        made.update(part.digest())
    return Head(len(charges), len(blocks), len(events), made.hexdigest())


def _decode(table: sa.Table, row: Row) -> None:
    """Read what a row holds; an error is damage, or a row of a program that made a mistake."""
    if table is tables.rosters:
        if roster_from_bytes(row["entries"]).digest != row["digest"]:
            raise StoreDamaged("its digest is another")
    elif table is tables.roster_versions:
        names_from_bytes(row["joined"])
    elif table is tables.domains:
        domain_from_row(row)
        changes_from_text(row["changes"])
    elif table is tables.queries:
        query_from_row(row, "", _NOBODY)
    elif table is tables.releases:
        block_from_bytes(row["block"], row["completeness"])


@contextmanager
def _any_text(connection: Connection) -> Generator[None]:
    """Let SQLite give text that is no UTF-8 as well, so that its row is told and the next ones are read."""
    raw = connection.connection.driver_connection
    if not isinstance(raw, sqlite3.Connection):
        yield
        return
    before, raw.text_factory = raw.text_factory, lambda data: data.decode("utf-8", "surrogateescape")
    try:
        yield
    finally:
        raw.text_factory = before
