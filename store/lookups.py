"""Rows of record that more than one task needs.

Each function raises :class:`StoreDamaged` where a row is not what was written, or where some are missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ..schemas.roster import Roster
from ..schemas.slots import Schedule, Window
from . import tables
from .address import watch_of
from .codec import Row, domain_from_row, names_from_bytes, query_from_row, roster_from_bytes
from .errors import UnknownNameError
from .integrity import checked, checked_rows, counted, damaged
from .specs import TRANSITIONS, QuerySpec, Registration, RosterVersion

_Item = TypeVar("_Item")

#: Parameters of a statement at most, with room for others: SQLite takes at least 999.
MOST_PARAMETERS = 500


# Statements that every window asks are made once: to put one together takes as long as to have it answered.

_LOCKED = (
    sa.select(tables.domains, sa.select(tables.meta.c.store_id).scalar_subquery().label("store_id"))
    .where(tables.domains.c.name == sa.bindparam("name"))
    .with_for_update()
)

_LAST = (
    sa.select(sa.func.max(tables.charges.c.window_start))
    .where(tables.charges.c.query_id == tables.queries.c.id)
    .scalar_subquery()
)

_OF_RESERVATION = {column.name: f"{column.name}_of_reservation" for column in tables.reservations.c}

_ADMITTED = (
    _LAST.label("last"),
    *(column.label(_OF_RESERVATION[column.name]) for column in tables.reservations.c),
)

_REVISED = (
    sa.select(tables.queries, *_ADMITTED)
    .select_from(tables.queries.outerjoin(tables.reservations))
    .where(tables.queries.c.domain_id == sa.bindparam("domain_id"), tables.queries.c.name == sa.bindparam("name"))
)

_CHARGED_THROUGH = (
    sa.select(_LAST.label("start"), tables.queries.c.version_rows)
    .select_from(tables.queries.join(tables.domains))
    .where(tables.domains.c.name == sa.bindparam("domain"), tables.queries.c.name == sa.bindparam("query"))
)

_PROGRESS = (
    sa.select(*_ADMITTED)
    .select_from(tables.queries.outerjoin(tables.reservations))
    .where(tables.queries.c.id == sa.bindparam("query_id"))
)


_ROSTERS = sa.select(tables.rosters).where(tables.rosters.c.id.in_(sa.bindparam("ids", expanding=True)))

_OF_META = {column.name: f"{column.name}_of_meta" for column in tables.meta.c}

_DOMAINS = sa.select(tables.domains, *(column.label(_OF_META[column.name]) for column in tables.meta.c)).select_from(
    tables.meta.outerjoin(tables.domains, sa.true())
)


class ChargedThrough(NamedTuple):
    """How far a query is charged: what is never changed again.

    Attributes:
        start: the last window with an entry starts here or later, and all before it have one; ``None`` for none.
        revision: a registration that is as new as this has the rosters of all these windows.
        mine: whether this process made the last of these entries: then it is likely to make the next one too.
    """

    start: int | None
    revision: int
    mine: bool = False

    def reaches(self, window: Window) -> bool:
        """Whether a window has an entry, and thereby a roster."""
        return self.start is not None and window.start <= self.start


class Progress(NamedTuple):
    """How far a query has come, and how far it may go.

    Attributes:
        last: start of the last window with an entry; ``None`` where none has.
        admitted: spans that budget is reserved for, as first slot and the one behind the last; ``None`` is no end.
    """

    last: int | None
    admitted: list[tuple[int, int | None]]

    @classmethod
    def of(cls, rows: Sequence[Row], query: Row) -> Progress:
        """What rows of the two statements say that have it."""
        held = [{name: row[label] for name, label in _OF_RESERVATION.items()} for row in rows]
        held = [checked(tables.reservations, row) for row in held if row["id"] is not None]
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
    watch = watch_of(connection)
    if watch is not None:
        watch.check_domain(name, found)
    return None if found is None else checked(tables.domains, found)


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
    return (checked(tables.queries, rows[0]), Progress.of(rows, rows[0])) if rows else None


def charged_through(connection: Connection, domain: str, query: str) -> ChargedThrough | None:
    """How far a query is charged now, in one statement; ``None`` if there is no such query."""
    found = connection.execute(_CHARGED_THROUGH, {"domain": domain, "query": query}).first()
    return None if found is None else ChargedThrough(found.start, revision(found.version_rows))


def revision(versions: int) -> int:
    """How often a roster was changed of which there are so many versions: the first is none, and has no row alone."""
    return max(0, versions - 1)


def progress(connection: Connection, query: Row) -> Progress:
    """How far a query has come, given its row."""
    return Progress.of(connection.execute(_PROGRESS, {"query_id": query["id"]}).mappings().all(), query)


def meta_row(connection: Connection, *, lock: bool = False) -> Row:
    """The row about the ledger itself."""
    chosen = sa.select(tables.meta)
    rows = checked_rows(connection, tables.meta, chosen.with_for_update() if lock else chosen)
    return counted(rows, 1, f"rows of {tables.meta.name}")[0]


def domain_rows(connection: Connection, meta: Row | None = None) -> list[Row]:
    """The rows of all domains by name, read from the table itself and not through its index."""
    # in one statement: between two of them another job may make a domain
    found = connection.execute(_DOMAINS).mappings().all()
    if not found:
        raise damaged(tables.meta.name, "has no row")
    held = {name: found[0][label] for name, label in _OF_META.items()}
    rows = [checked(tables.domains, row) for row in found if row["id"] is not None]
    counted(rows, (meta or checked(tables.meta, held))["domain_rows"], "domains")
    return sorted(rows, key=lambda row: row["name"])


class _Children(NamedTuple):
    """Rows of a table that belong to rows of another one, in the order of a column; the others count them."""

    table: sa.Table
    parent: str
    order: str
    counter: str
    words: str

    def of(self, connection: Connection, parents: Sequence[Row]) -> dict[int, list[Row]]:
        """Those of some rows, by the number of the row, in as many statements for many rows as for one."""
        found: dict[int, list[Row]] = {parent["id"]: [] for parent in parents}
        for numbers in batched(list(found), MOST_PARAMETERS):
            for row in checked_rows(connection, self.table, _CHOSEN[self], {"parents": numbers}):
                found[row[self.parent]].append(row)
        for parent in parents:
            counted(found[parent["id"]], parent[self.counter], f"{self.words} {parent['name']!r}")
        return found


_QUERIES = _Children(tables.queries, "domain_id", "id", "query_rows", "queries of domain")
_EVENTS = _Children(tables.domain_events, "domain_id", "id", "event_rows", "decisions about domain")
# a later one is of later windows
_RESERVATIONS = _Children(tables.reservations, "query_id", "start", "reservation_rows", "reservations of query")
_VERSIONS = _Children(tables.roster_versions, "query_id", "id", "version_rows", "rosters of query")
_CHOSEN = {
    kind: sa.select(kind.table)
    .where(kind.table.c[kind.parent].in_(sa.bindparam("parents", expanding=True)))
    .order_by(kind.table.c[kind.parent], kind.table.c[kind.order])
    for kind in (_QUERIES, _EVENTS, _RESERVATIONS, _VERSIONS)
}


def queries_of(connection: Connection, domain: Row) -> list[Row]:
    """The rows of a domain's queries in the order of registration."""
    return _QUERIES.of(connection, [domain])[domain["id"]]


def events_of(connection: Connection, domain: Row) -> list[Row]:
    """What was decided about a domain, in that order."""
    return _EVENTS.of(connection, [domain])[domain["id"]]


def events_of_all(connection: Connection, domains: Sequence[Row]) -> dict[int, list[Row]]:
    """The same of several domains, by the number of the domain."""
    return _EVENTS.of(connection, domains)


def reservations_of(connection: Connection, query: Row) -> list[Row]:
    """What budget is reserved for of a query, in the order in which it was."""
    return _RESERVATIONS.of(connection, [query])[query["id"]]


def versions_of(connection: Connection, query: Row) -> list[Row]:
    """The versions of a query's roster, in their order; none where it was never changed."""
    return _VERSIONS.of(connection, [query])[query["id"]]


def series_of_all(connection: Connection, domains: Sequence[Row]) -> dict[int, frozenset[str]]:
    """Every series that a query of a domain has or ever had, by the number of the domain."""
    # the keys of counts of transitions are states
    queries = [
        query
        for rows in _QUERIES.of(connection, domains).values()
        for query in rows
        if query["mechanism"] != TRANSITIONS
    ]
    versions = _VERSIONS.of(connection, queries)
    rosters = read_rosters(connection, {query["roster_id"] for query in queries if not versions[query["id"]]})
    found: dict[int, set[str]] = {domain["id"]: set() for domain in domains}
    for query in queries:
        names = found[query["domain_id"]]
        if query["roster_id"] in rosters:
            names.update(rosters[query["roster_id"]].series)
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
    chosen = sa.select(tables.domains).where(tables.domains.c.name == name)
    return next(iter(checked_rows(connection, tables.domains, chosen)), None)


def query_row(connection: Connection, domain_id: int, name: str) -> Row | None:
    """A query's row."""
    chosen = sa.select(tables.queries).where(tables.queries.c.domain_id == domain_id, tables.queries.c.name == name)
    return next(iter(checked_rows(connection, tables.queries, chosen)), None)


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
        rows = checked_rows(connection, tables.rosters, _ROSTERS, {"ids": numbers})
        found |= {row["id"]: roster_from_bytes(row["entries"]) for row in rows}
    for number in wanted:
        if number not in found:
            raise damaged(f"{tables.rosters.name}, row {number}", "is missing")
    return found


def roster_digest(connection: Connection, domain: str, query: str) -> str | None:
    """Digest of a query's newest roster; ``None`` if there is no such query."""
    domains, queries, rosters = tables.domains, tables.queries, tables.rosters
    return connection.scalar(
        sa.select(rosters.c.digest)
        .join(queries, queries.c.roster_id == rosters.c.id)
        .join(domains, domains.c.id == queries.c.domain_id)
        .where(domains.c.name == domain, queries.c.name == query)
    )


def next_start(connection: Connection, query_id: int, schedule: Schedule) -> int:
    """Start of the first window without an entry: entries are made in the order of the schedule."""
    charges = tables.charges
    last = connection.scalar(sa.select(sa.func.max(charges.c.window_start)).where(charges.c.query_id == query_id))
    return start_after(last, schedule)


def first_open(connection: Connection, query_id: int, schedule: Schedule) -> int | None:
    """Start of the first window without an entry; ``None`` where every window has one."""
    start, end = next_start(connection, query_id, schedule), end_of(schedule)
    return None if end is not None and schedule.window_at(start).stop > end else start


def start_after(last: int | None, schedule: Schedule) -> int:
    """Start of the window behind the last one with an entry, or of the first one where none has."""
    return schedule.first if last is None else schedule.start_after(last)


def begun(connection: Connection, registration: Registration) -> int:
    """The same for a query of record."""
    row = recorded_query_row(connection, domain_row(connection, registration.domain.name), registration.query.name)
    return next_start(connection, row["id"], registration.query.schedule)


def _versions(connection: Connection, newest: Row, roster: Roster) -> dict[str, Any]:
    """The fields of a registration about rosters that were changed."""
    rows = versions_of(connection, newest)
    if not rows:
        return {}
    visible: list[Row] = []
    for row in rows:
        # a version for windows none of which was charged is replaced by the next one
        while visible and visible[-1]["start"] >= row["start"]:
            visible.pop()
        visible.append(row)
    older = {row["roster_id"] for row in visible} - {newest["roster_id"]}
    rosters = {newest["roster_id"]: roster} | read_rosters(connection, older)
    return {
        "versions": tuple(RosterVersion(row["start"], rosters[row["roster_id"]]) for row in visible),
        "joined": tuple(name for row in rows for name in names_from_bytes(row["joined"])),
        "revision": revision(len(rows)),
    }


def registration_of(connection: Connection, domain: Row, query: Row, spec: QuerySpec) -> Registration:
    """What is on record for a query: its rows, and its specification with roster and schedule."""
    reserved = reservations_of(connection, query)
    if not reserved:
        raise damaged(f"reservations of query {query['name']!r}", "are none")
    last, end = reserved[-1]["stop"], end_of(spec.schedule)
    admitted_all = last is None or (end is not None and last >= end)
    return Registration(
        domain=domain_from_row(domain),
        query=spec,
        digest=query["digest"],
        admitted_stop=None if admitted_all else last,
        reserved_loss=float(domain["reserved_loss"]),
        fresh=False,
        belief=query["belief"],
        successor=query["successor"],
        **_versions(connection, query, spec.roster),
    )


def query_spec(connection: Connection, domain: Row, query: Row) -> QuerySpec:
    """The query of record that two rows make, with its newest roster."""
    return query_from_row(query, domain["name"], read_roster(connection, query["roster_id"]))


def registration_from_rows(connection: Connection, domain: Row, query: Row) -> Registration:
    """The registration that two rows make."""
    return registration_of(connection, domain, query, query_spec(connection, domain, query))


def is_closed(domain: Row) -> bool:
    """Whether a merge found more charged than a domain's budget: then nothing is charged any more."""
    return domain["merged_loss"] is not None and float(domain["merged_loss"]) > float(domain["budget"])


def payers_of(connection: Connection, names: Iterable[str | None]) -> dict[str | None, Row]:
    """The flagged charges of these names; most blocks have none, and then nothing is asked."""
    flagged = tables.flagged_charges
    wanted = sorted({name for name in names if name is not None})
    found: dict[str | None, Row] = {}
    for part in batched(wanted, MOST_PARAMETERS):
        rows = checked_rows(connection, flagged, sa.select(flagged).where(flagged.c.entry_id.in_(part)))
        found |= {row["entry_id"]: row for row in rows}
    if len(found) != len(wanted):
        raise damaged(f"{flagged.name}: charges that paid for blocks", "are missing")
    return found


def end_of(schedule: Schedule) -> int | None:
    """Where the last whole window ends; ``None`` for an endless schedule."""
    return None if schedule.stop is None else schedule.covered.stop
