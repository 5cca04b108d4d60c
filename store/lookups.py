"""Rows of record that more than one task needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ..schemas.roster import Roster
from ..schemas.slots import Schedule, Window
from . import tables
from .codec import Row, domain_from_row, names_from_bytes, roster_from_bytes
from .errors import UnknownNameError
from .specs import QuerySpec, Registration, RosterVersion

# SQLite takes at least 999 parameters in a statement.
_NAMES = 500


# Statements that every window asks are made once: to put one together takes as long as to have it answered.

_LOCKED = sa.select(tables.domains).where(tables.domains.c.name == sa.bindparam("name")).with_for_update()

_REVISION = (
    sa.select(sa.func.count(tables.roster_versions.c.id))
    .where(tables.roster_versions.c.query_id == tables.queries.c.id)
    .scalar_subquery()
)

_LAST = (
    sa.select(sa.func.max(tables.charges.c.window_start))
    .where(tables.charges.c.query_id == tables.queries.c.id)
    .scalar_subquery()
)

_ADMITTED = (
    _LAST.label("last"),
    tables.reservations.c.start.label("admitted_start"),
    tables.reservations.c.stop.label("admitted_stop"),
)

_REVISED = (
    sa.select(tables.queries, _REVISION.label("versions"), *_ADMITTED)
    .select_from(tables.queries.outerjoin(tables.reservations))
    .where(tables.queries.c.domain_id == sa.bindparam("domain_id"), tables.queries.c.name == sa.bindparam("name"))
)

_SETTLED = (
    sa.select(_LAST.label("start"), _REVISION.label("versions"))
    .select_from(tables.queries.join(tables.domains))
    .where(tables.domains.c.name == sa.bindparam("domain"), tables.queries.c.name == sa.bindparam("query"))
)

_PROGRESS = (
    sa.select(*_ADMITTED)
    .select_from(tables.queries.outerjoin(tables.reservations))
    .where(tables.queries.c.id == sa.bindparam("query_id"))
)


class Settled(NamedTuple):
    """What of a query will never be otherwise.

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
    def of(cls, rows: Sequence[Row]) -> Progress:
        """What rows of the two statements say that have it."""
        spans = [(row["admitted_start"], row["admitted_stop"]) for row in rows if row["admitted_start"] is not None]
        return cls(rows[0]["last"] if rows else None, spans)


def lock_domain(connection: Connection, name: str) -> Row | None:
    """A domain's row; PostgreSQL keeps it locked until the transaction ends, as SQLite does with the whole ledger."""
    return connection.execute(_LOCKED, {"name": name}).mappings().first()


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
    return (rows[0], Progress.of(rows)) if rows else None


def settled(connection: Connection, domain: str, query: str) -> Settled | None:
    """What is settled of a query now, in one statement; ``None`` if there is no such query."""
    found = connection.execute(_SETTLED, {"domain": domain, "query": query}).first()
    return None if found is None else Settled(found.start, revision(found.versions))


def revision(versions: int) -> int:
    """How often a roster was changed of which there are so many versions: the first is none, and has no row alone."""
    return max(0, versions - 1)


def progress(connection: Connection, query_id: int) -> Progress:
    """How far a query has come."""
    return Progress.of(connection.execute(_PROGRESS, {"query_id": query_id}).mappings().all())


def domain_row(connection: Connection, name: str) -> Row:
    """A domain's row, not locked.

    Raises:
        UnknownNameError: there is no such domain.
    """
    domains = tables.domains
    found = connection.execute(sa.select(domains).where(domains.c.name == name)).mappings().first()
    if found is None:
        known = connection.execute(sa.select(domains.c.name).order_by(domains.c.name)).scalars().all()
        raise UnknownNameError(
            f"domain {name!r} is not on record in this ledger; it has {', '.join(known) or 'no domain yet'}"
        )
    return found


def query_row(connection: Connection, domain_id: int, name: str) -> Row | None:
    """A query's row."""
    queries = tables.queries
    found = connection.execute(sa.select(queries).where(queries.c.domain_id == domain_id, queries.c.name == name))
    return found.mappings().first()


def read_roster(connection: Connection, roster_id: int) -> Roster:
    """A roster of record."""
    rosters = tables.rosters
    return roster_from_bytes(
        connection.execute(sa.select(rosters.c.entries).where(rosters.c.id == roster_id)).scalar_one()
    )


def roster_digest(connection: Connection, domain: str, query: str) -> str | None:
    """Digest of a query's newest roster; ``None`` if there is no such query."""
    domains, queries, rosters = tables.domains, tables.queries, tables.rosters
    return connection.scalar(
        sa.select(rosters.c.digest)
        .join(queries, queries.c.roster_id == rosters.c.id)
        .join(domains, domains.c.id == queries.c.domain_id)
        .where(domains.c.name == domain, queries.c.name == query)
    )


def frozen_windows(connection: Connection, domain: str, query: str, starts: Iterable[int]) -> dict[int, str]:
    """Of windows that start at these slots: those charged or refused, each with the digest of its roster."""
    domains, queries, charges, rosters = tables.domains, tables.queries, tables.charges, tables.rosters
    wanted, found = sorted(set(starts)), dict[int, str]()
    for at in range(0, len(wanted), _NAMES):
        rows = connection.execute(
            sa.select(charges.c.window_start, rosters.c.digest)
            .join(rosters, rosters.c.id == charges.c.roster_id)
            .join(queries, queries.c.id == charges.c.query_id)
            .join(domains, domains.c.id == queries.c.domain_id)
            .where(
                domains.c.name == domain,
                queries.c.name == query,
                charges.c.window_start.in_(wanted[at : at + _NAMES]),
            )
        )
        found |= {row.window_start: row.digest for row in rows}
    return found


def next_start(connection: Connection, query_id: int, schedule: Schedule) -> int:
    """Start of the first window without an entry: entries are made in the order of the schedule."""
    charges = tables.charges
    last = connection.scalar(sa.select(sa.func.max(charges.c.window_start)).where(charges.c.query_id == query_id))
    return start_after(last, schedule)


def start_after(last: int | None, schedule: Schedule) -> int:
    """Start of the window behind the last one with an entry, or of the first one where none has."""
    return schedule.first if last is None else last + schedule.every


def begun(connection: Connection, registration: Registration) -> int:
    """The same for a query of record.

    Raises:
        UnknownNameError: the query is not on record.
    """
    domain, query = registration.domain.name, registration.query.name
    row = query_row(connection, domain_row(connection, domain)["id"], query)
    if row is None:
        raise UnknownNameError(f"query {query!r} of domain {domain!r} is not on record in this ledger")
    return next_start(connection, row["id"], registration.query.schedule)


def _versions(connection: Connection, query_id: int, newest: Row, roster: Roster) -> dict[str, Any]:
    """The fields of a registration about rosters that were changed."""
    versions = tables.roster_versions
    rows = connection.execute(sa.select(versions).where(versions.c.query_id == query_id).order_by(versions.c.id)).all()
    if not rows:
        return {}
    visible: list[Any] = []
    for row in rows:
        # a version for windows none of which was charged is replaced by the next one
        while visible and visible[-1].start >= row.start:
            visible.pop()
        visible.append(row)
    rosters = {newest["roster_id"]: roster}
    for row in visible:
        if row.roster_id not in rosters:
            rosters[row.roster_id] = read_roster(connection, row.roster_id)
    return {
        "versions": tuple(RosterVersion(row.start, rosters[row.roster_id]) for row in visible),
        "joined": tuple(name for row in rows for name in names_from_bytes(row.joined)),
        "revision": revision(len(rows)),
    }


def registration_of(connection: Connection, domain: Row, query: Row, spec: QuerySpec) -> Registration:
    """What is on record for a query: its rows, and its specification with roster and schedule."""
    reservations = tables.reservations
    last = connection.execute(
        sa.select(reservations.c.stop)
        .where(reservations.c.query_id == query["id"])
        .order_by(reservations.c.id.desc())
        .limit(1)
    ).scalar_one()
    end = end_of(spec.schedule)
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
        **_versions(connection, query["id"], query, spec.roster),
    )


def is_closed(domain: Row) -> bool:
    """Whether a merge found more charged than a domain's budget: then nothing is charged any more."""
    return domain["merged_loss"] is not None and float(domain["merged_loss"]) > float(domain["budget"])


def payers_of(connection: Connection, names: Iterable[str | None]) -> dict[str | None, Row]:
    """The flagged charges of these names; most blocks have none, and then nothing is asked."""
    flagged = tables.flagged_charges
    wanted = sorted({name for name in names if name is not None})
    found: dict[str | None, Row] = {}
    for at in range(0, len(wanted), _NAMES):
        rows = connection.execute(sa.select(flagged).where(flagged.c.entry_id.in_(wanted[at : at + _NAMES])))
        found |= {row["entry_id"]: row for row in rows.mappings()}
    return found


def end_of(schedule: Schedule) -> int | None:
    """Where the last whole window ends; ``None`` for an endless schedule."""
    return None if schedule.stop is None else schedule.covered.stop
