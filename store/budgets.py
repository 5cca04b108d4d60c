"""Raising a budget: an explicit decision, kept with its time and both values.

What was refused stays refused. For every query, in the order of registration, budget is then reserved for as many of
the windows without an entry as fit.
"""

from __future__ import annotations

import math
from dataclasses import replace

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from . import tables
from .accounts import admitted_end, priced, promised
from .codec import Row, domain_from_row, query_from_row
from .errors import StoreError
from .integrity import alter
from .lookups import end_of, locked_domain_row, queries_of, read_roster, registration_of
from .registering import record_event, reserve, set_reserved_loss


def raise_budget(connection: Connection, name: str, budget: float) -> None:
    """Raise a domain's budget inside a transaction that may write.

    Raises:
        UnknownNameError: there is no such domain.
        StoreError: the new budget is not above the one in force.
    """
    row = locked_domain_row(connection, name)
    old = float(row["budget"])
    if not (math.isfinite(budget) and budget > old):
        raise StoreError(
            f"domain {name!r}: its budget is {old!r} and can only be raised to a larger, finite one, not "
            f"to {budget!r}; what was promised is not taken back"
        )
    row = alter(connection, tables.domains, row["id"], budget=budget)
    record_event(connection, row["id"], "budget-raised", old=old, new=budget)
    for query in queries_of(connection, row):
        _admit_more(connection, row, query)


def _admit_more(connection: Connection, row: Row, query_row: Row) -> None:
    domain = domain_from_row(row)
    query = query_from_row(query_row, domain.name, read_roster(connection, query_row["roster_id"]))
    admitted = registration_of(connection, row, query_row, query).admitted_stop
    if admitted is None:
        return
    charges = tables.charges
    last = connection.scalar(
        sa.select(sa.func.max(charges.c.window_start)).where(charges.c.query_id == query_row["id"])
    )
    schedule = query.schedule
    # windows up to here are promised or have their entry, and an entry is final
    start = admitted - schedule.size + schedule.every
    if last is not None:
        start = max(start, int(last) + schedule.every)
    end = end_of(schedule)
    if end is not None and start + schedule.size > end:
        return
    held = promised(connection, row)
    asked = priced(replace(schedule, start=start), query.epsilon_dp)
    fits, reserved = admitted_end(domain, asked, held)
    if fits != asked.start:
        reserve(connection, query_row["id"], asked.start, schedule.stop if fits is None else fits)
        set_reserved_loss(connection, row["id"], reserved)
