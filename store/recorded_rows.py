"""Rows as they are on record: domains, queries, rosters, charges and blocks, each held against its digest.

Each function raises :class:`StoreDamaged` where a row is not what was written, or where some are missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ..schemas.roster import Roster
from ..schemas.slots import Schedule, Window
from .address import watch_of
from .codec import Row, names_from_bytes, roster_from_bytes
from .errors import UnknownNameError
from .integrity import (
    Chain,
    check_drawn,
    checked,
    checked_rows,
    checked_stream,
    counted,
    damaged,
    drawn_of,
    link_of,
    named,
)
from .specs import TRANSITIONS, BlockKey
from .tables import (
    charges,
    domain_events,
    domains,
    meta,
    queries,
    releases,
    reservations,
    roster_versions,
    rosters,
)

_Item = TypeVar("_Item")

#: Parameters of a statement at most, with room for others: SQLite takes at least 999.
MOST_PARAMETERS = 500

#: Blocks read in one short transaction: a slow reader blocks no writer.
PAGE = 64


# Statements that every window asks are made once: to put one together takes as long as to have it answered.

_LOCKED = (
    sa.select(domains, sa.select(meta.c.store_id).scalar_subquery().label("store_id"))
    .where(domains.c.name == sa.bindparam("name"))
    .with_for_update()
)

_LAST = sa.select(sa.func.max(charges.c.window_start)).where(charges.c.query_id == queries.c.id).scalar_subquery()

_OF_RESERVATION = {column.name: f"{column.name}_of_reservation" for column in reservations.c}

_ADMITTED = (_LAST.label("last"), *(column.label(_OF_RESERVATION[column.name]) for column in reservations.c))

_REVISED = (
    sa.select(queries, *_ADMITTED)
    .select_from(queries.outerjoin(reservations))
    .where(queries.c.domain_id == sa.bindparam("domain_id"), queries.c.name == sa.bindparam("name"))
)

_CHARGED_THROUGH = (
    sa.select(_LAST.label("start"), queries.c.version_rows)
    .select_from(queries.join(domains))
    .where(domains.c.name == sa.bindparam("domain"), queries.c.name == sa.bindparam("query"))
)

_PROGRESS = (
    sa.select(*_ADMITTED).select_from(queries.outerjoin(reservations)).where(queries.c.id == sa.bindparam("query_id"))
)


_ROSTERS = sa.select(rosters).where(rosters.c.id.in_(sa.bindparam("ids", expanding=True)))

_OF_META = {column.name: f"{column.name}_of_meta" for column in meta.c}

_DOMAINS = sa.select(domains, *(column.label(_OF_META[column.name]) for column in meta.c)).select_from(
    meta.outerjoin(domains, sa.true())
)


class ChargedThrough(NamedTuple):
    """How far a query is charged: what is never changed again."""

    # the last window with an entry starts here or later, and all before it have one; ``None`` for none
    start: int | None
    revision: int  # a registration that is as new as this has the rosters of all these windows
    # whether this process made the last of these entries: then it is likely to make the next one too
    mine: bool = False

    def reaches(self, window: Window) -> bool:
        """Whether a window has an entry, and thereby a roster."""
        return self.start is not None and window.start <= self.start


class Progress(NamedTuple):
    """How far a query has come, and how far it may go."""

    last: int | None  # start of the last window with an entry; ``None`` where none has
    # spans that budget is reserved for, as first slot and the one behind the last; ``None`` is no end
    admitted: list[tuple[int, int | None]]

    @classmethod
    def of(cls, rows: Sequence[Row], query: Row) -> Progress:
        """What rows of the two statements say that have it."""
        held = [{name: row[label] for name, label in _OF_RESERVATION.items()} for row in rows]
        held = [checked(reservations, row) for row in held if row["id"] is not None]
        counted(held, query["reservation_rows"], f"reservations of query {query['name']!r}")
        return cls(rows[0]["last"] if rows else None, [(row["start"], row["stop"]) for row in held])


def batched(items: Sequence[_Item], size: int) -> Iterator[Sequence[_Item]]:
    """The items, so many at a time."""
    return (items[at : at + size] for at in range(0, len(items), size))


def lock_domain(connection: Connection, name: str) -> Row | None:
    """A domain's row; PostgreSQL keeps it locked until the transaction ends, as SQLite does with the whole ledger.

    Raises:
        StoreReplaced: the row is of another ledger than the process knows, or of an older copy.
    """
    found = connection.execute(_LOCKED, {"name": name}).mappings().first()
    row = None if found is None else checked(domains, found)
    watch = watch_of(connection)
    if watch is not None:
        watch.check_domain(name, row)
    return row


def locked_domain_row(connection: Connection, name: str) -> Row:
    """The row of a domain that is on record, locked until the transaction ends.

    Raises:
        UnknownNameError: there is no such domain.
    """
    row = lock_domain(connection, name)
    while row is None:
        domain_row(connection, name)
        # a server shows it now: it was registered between the two statements, and is not locked yet
        row = lock_domain(connection, name)
    return row


def revised_query_row(connection: Connection, domain_id: int, name: str) -> tuple[Row, Progress] | None:
    """A query's row with the number of versions of its roster, and how far it has come, in one statement."""
    rows = connection.execute(_REVISED, {"domain_id": domain_id, "name": name}).mappings().all()
    return (checked(queries, rows[0]), Progress.of(rows, rows[0])) if rows else None


def charged_through(connection: Connection, domain: str, query: str) -> ChargedThrough | None:
    """How far a query is charged now, in one statement; ``None`` if there is no such query."""
    found = connection.execute(_CHARGED_THROUGH, {"domain": domain, "query": query}).first()
    if found is None:
        return None
    versions = _whole(found.version_rows, f"{queries.name}: the number of versions of a roster")
    return ChargedThrough(_slot(found.start), revision(versions))


def _slot(start: Any) -> int | None:
    return None if start is None else _whole(start, f"{charges.name}: the window of a charge")


def _whole(value: Any, what: str) -> int:
    """A number from its column alone, which no digest covers."""
    if not isinstance(value, int):
        raise damaged(what, "is not what was written")
    return value


def revision(versions: int) -> int:
    """How often a roster was changed of which there are so many versions: the first is none, and has no row alone."""
    return max(0, versions - 1)


def progress(connection: Connection, query: Row) -> Progress:
    """How far a query has come, given its row."""
    return Progress.of(connection.execute(_PROGRESS, {"query_id": query["id"]}).mappings().all(), query)


def meta_row(connection: Connection, *, lock: bool = False) -> Row:
    """The row about the ledger itself."""
    chosen = sa.select(meta)
    rows = checked_rows(connection, meta, chosen.with_for_update() if lock else chosen)
    return counted(rows, 1, f"rows of {meta.name}")[0]


def domain_rows(connection: Connection, about: Row | None = None) -> list[Row]:
    """The rows of all domains by name, read from the table itself and not through its index."""
    # in one statement: between two of them another job may make a domain
    found = connection.execute(_DOMAINS).mappings().all()
    if not found:
        raise damaged(meta.name, "has no row")
    held = {name: found[0][label] for name, label in _OF_META.items()}
    rows = [checked(domains, row) for row in found if row["id"] is not None]
    counted(rows, (about or checked(meta, held))["domain_rows"], "domains")
    return sorted(rows, key=lambda row: row["name"])


class _Children(NamedTuple):
    """Reads the rows of a table that belong to rows of another one, in the order of a column; the others count them."""

    table: sa.Table
    parent: str
    order: str
    counter: str
    words: str

    def __call__(self, connection: Connection, parent: Row) -> list[Row]:
        """Those of one row."""
        return self.of_all(connection, [parent])[parent["id"]]

    def of_all(self, connection: Connection, parents: Sequence[Row]) -> dict[int, list[Row]]:
        """Those of several, by the number of the row, in as many statements as for one."""
        found: dict[int, list[Row]] = {parent["id"]: [] for parent in parents}
        for numbers in batched(list(found), MOST_PARAMETERS):
            for row in checked_rows(connection, self.table, _CHOSEN[self], {"parents": numbers}):
                found[row[self.parent]].append(row)
        for parent in parents:
            counted(found[parent["id"]], parent[self.counter], f"{self.words} {parent['name']!r}")
        return found


#: A domain's queries and what was decided about it, in the order in which they came.
queries_of = _Children(queries, "domain_id", "id", "query_rows", "queries of domain")
events_of = _Children(domain_events, "domain_id", "id", "event_rows", "decisions about domain")
#: What budget is reserved for of a query, of which a later one is of later windows; and the versions of its roster in
#: their order, none where it was never changed.
reservations_of = _Children(reservations, "query_id", "start", "reservation_rows", "reservations of query")
versions_of = _Children(roster_versions, "query_id", "id", "version_rows", "rosters of query")

_CHOSEN = {
    kind: sa.select(kind.table)
    .where(kind.table.c[kind.parent].in_(sa.bindparam("parents", expanding=True)))
    .order_by(kind.table.c[kind.parent], kind.table.c[kind.order])
    for kind in (queries_of, events_of, reservations_of, versions_of)
}


def series_of_all(connection: Connection, of: Sequence[Row]) -> dict[int, frozenset[str]]:
    """Every series that a query of a domain has or ever had, by the number of the domain."""
    # the keys of counts of transitions are states
    counting = [
        query
        for rows in queries_of.of_all(connection, of).values()
        for query in rows
        if query["mechanism"] != TRANSITIONS
    ]
    versions = versions_of.of_all(connection, counting)
    unchanged = read_rosters(connection, {query["roster_id"] for query in counting if not versions[query["id"]]})
    found: dict[int, set[str]] = {domain["id"]: set() for domain in of}
    for query in counting:
        names = found[query["domain_id"]]
        if query["roster_id"] in unchanged:
            names.update(unchanged[query["roster_id"]].series)
        for version in versions[query["id"]]:
            names.update(names_from_bytes(version["joined"]))
    return {number: frozenset(names) for number, names in found.items()}


def domain_row(connection: Connection, name: str) -> Row:
    """A domain's row, not locked."""
    found = find_domain(connection, name)
    if found is None:
        known = [row["name"] for row in domain_rows(connection)]
        if name in known:
            raise damaged(f"domain {name!r}", "is on record and not found there by its name")
        raise UnknownNameError(
            f"domain {name!r} is not on record in this ledger; it has {', '.join(known) or 'no domain yet'}"
        )
    return found


def find_domain(connection: Connection, name: str) -> Row | None:
    """The same; ``None`` where there is no such domain."""
    chosen = sa.select(domains).where(domains.c.name == name)
    with suppress(UnicodeEncodeError):  # a name of bytes that are no UTF-8, which no driver takes, is on no record
        return next(iter(checked_rows(connection, domains, chosen)), None)
    return None


def query_row(connection: Connection, domain_id: int, name: str) -> Row | None:
    """A query's row."""
    chosen = sa.select(queries).where(queries.c.domain_id == domain_id, queries.c.name == name)
    return next(iter(checked_rows(connection, queries, chosen)), None)


def recorded_query_row(connection: Connection, domain: Row, name: str) -> Row:
    """The row of a query that is on record.

    Raises:
        UnknownNameError: there is no such query.
    """
    found = query_row(connection, domain["id"], name)
    if found is None:
        raise unknown_query(domain["name"], name)
    return found


def unknown_query(domain: str, query: str) -> UnknownNameError:
    """The error for a query that is not on record."""
    return UnknownNameError(f"query {query!r} of domain {domain!r} is not on record in this ledger")


def read_roster(connection: Connection, roster_id: int) -> Roster:
    """A roster of record."""
    return read_rosters(connection, [roster_id])[roster_id]


def read_rosters(connection: Connection, roster_ids: Iterable[int]) -> dict[int, Roster]:
    """The same for several, by their number."""
    wanted, found = sorted(set(roster_ids)), dict[int, Roster]()
    for numbers in batched(wanted, MOST_PARAMETERS):
        rows = checked_rows(connection, rosters, _ROSTERS, {"ids": numbers})
        found |= {row["id"]: roster_from_bytes(row["entries"]) for row in rows}
    for number in wanted:
        if number not in found:
            raise damaged(f"{rosters.name}, row {number}", "is missing")
    return found


def roster_digest(connection: Connection, domain: str, query: str) -> str | None:
    """Digest of a query's newest roster; ``None`` if there is no such query."""
    return connection.scalar(
        sa.select(rosters.c.digest)
        .join(queries, queries.c.roster_id == rosters.c.id)
        .join(domains, domains.c.id == queries.c.domain_id)
        .where(domains.c.name == domain, queries.c.name == query)
    )


def next_start(connection: Connection, query_id: int, schedule: Schedule) -> int:
    """Start of the first window without an entry: entries are made in the order of the schedule."""
    last = connection.scalar(sa.select(sa.func.max(charges.c.window_start)).where(charges.c.query_id == query_id))
    return start_after(_slot(last), schedule)


def first_open(connection: Connection, query_id: int, schedule: Schedule) -> int | None:
    """The same; ``None`` where every window has one."""
    start = next_start(connection, query_id, schedule)
    return None if schedule.end is not None and schedule.window_at(start).stop > schedule.end else start


def start_after(last: int | None, schedule: Schedule) -> int:
    """Start of the window behind the last one with an entry, or of the first one where none has."""
    return schedule.first if last is None else schedule.start_after(last)


def query_rows(connection: Connection, domain: str | None = None) -> list[tuple[Row, Row]]:
    """The rows of all queries, each with its domain's, by domain and order of registration."""
    found = None if domain is None else find_domain(connection, domain)
    # one that is not found may have been removed
    chosen = [found] if found else [row for row in domain_rows(connection) if domain in (None, row["name"])]
    return [(row, query) for row in chosen for query in queries_of(connection, row)]


def chained_rows(connection: Connection, domain: Row) -> list[tuple[Row, bytes]]:
    """The charges and refusals of a domain by sequence, each with the head of the chain up to it."""
    chosen = sa.select(charges).where(charges.c.domain_id == domain["id"]).order_by(charges.c.sequence)
    rows = checked_rows(connection, charges, chosen)
    chain = Chain(domain["name"])
    heads = chain.heads(map(link_of, rows))
    chain.check(domain)
    return list(zip(rows, heads, strict=True))


def page_of_blocks(connection: Connection, query: Row, after: BlockKey | None) -> list[tuple[Row, Row]]:
    """The rows of the next blocks of a query by window and shard, after a place, each with its window's charge."""
    chosen = sa.select(releases).where(releases.c.query_id == query["id"]).limit(PAGE)
    chosen = chosen.order_by(releases.c.window_start, releases.c.shard)
    asked = sa.select(charges).where(charges.c.query_id == query["id"])
    if after is not None:
        chosen = chosen.where(sa.tuple_(releases.c.window_start, releases.c.shard) > sa.tuple_(*after))
        asked = asked.where(charges.c.window_start >= after[0])
    rows = checked_rows(connection, releases, chosen)
    held = {(row["window_start"], row["shard"]): row for row in rows}
    last = max(held) if len(rows) == PAGE else None
    if last is not None:
        asked = asked.where(charges.c.window_start <= last[0])
    paid = {row["window_start"]: row for row in checked_rows(connection, charges, asked)}
    for (start, shard), block in held.items():
        charge = paid.get(start)
        if charge is None or block["charge_id"] != charge["id"]:
            raise damaged(named(releases, block), "has no charge")
        check_drawn(charge, shard, block)
    for start, charge in paid.items():
        for shard in drawn_of(charge):
            place = (start, shard)
            if place not in held and (after is None or place > after) and (last is None or place <= last):
                check_drawn(charge, shard, None)
    return [(row, paid[row["window_start"]]) for row in rows]


def check_all_blocks(connection: Connection, domain: Row) -> None:
    """Read all blocks of a domain and hold them against what its charges say."""
    names = ("id", "entry_id", "sequence", "window_start", "query_id", "drawn")
    paid = connection.execute(
        sa.select(*(charges.c[name] for name in names)).where(charges.c.domain_id == domain["id"])
    )
    waiting = {row["id"]: (row["window_start"], row, drawn_of(row)) for row in paid.mappings()}
    of_domain = sa.select(queries.c.id).where(queries.c.domain_id == domain["id"])
    chosen = sa.select(releases).where(releases.c.query_id.in_(of_domain))
    asked = ("id", "charge_id", "window_start", "shard", "row_digest")
    for number, charge_id, window, shard, digest in checked_stream(connection, releases, chosen, asked):
        start, _, drawn = waiting.get(charge_id, (None, None, None))
        problem = None
        if drawn is None or start != window:
            problem = "has no charge"
        elif drawn.pop(shard, None) != digest:
            problem = "is not the one that was drawn"
        if problem is not None:
            raise damaged(named(releases, {"id": number, "window_start": window, "shard": shard}), problem)
    for _, charge, drawn in waiting.values():
        for shard in drawn:
            check_drawn(charge, shard, None)
