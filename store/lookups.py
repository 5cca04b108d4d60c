"""Rows of record that more than one task needs."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ..schemas.roster import Roster
from ..schemas.slots import Schedule
from . import tables
from .codec import Row, domain_from_row, roster_from_bytes
from .errors import UnknownNameError
from .specs import QuerySpec, Registration


def lock_domain(connection: Connection, name: str) -> Row | None:
    """A domain's row; PostgreSQL keeps it locked until the transaction ends, as SQLite does with the whole ledger."""
    domains = tables.domains
    return connection.execute(sa.select(domains).where(domains.c.name == name).with_for_update()).mappings().first()


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
    )


def end_of(schedule: Schedule) -> int | None:
    """Where the last whole window ends; ``None`` for an endless schedule."""
    return None if schedule.stop is None else schedule.covered.stop
