"""The newest charge of a query, and whether a charge is on record: what tells a ledger from an older copy of it."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from .tables import charges, domains, flagged_charges, queries
from .uniting import MARK, base_of


class Newest(NamedTuple):
    """The newest charge of a query.

    Attributes:
        entry_id: its random name.
        sequence: its number in the domain's account.
        start: first slot of its window.
        stop: the slot behind the window's last.
    """

    entry_id: str
    sequence: int
    start: int
    stop: int


def newest_of(connection: Connection, domain: str, query: str) -> Newest | None:
    """The newest charge of a query; ``None`` if it has none."""
    found = connection.execute(
        sa.select(charges.c.entry_id, charges.c.sequence, charges.c.window_start, charges.c.window_stop)
        .join(queries, queries.c.id == charges.c.query_id)
        .join(domains, domains.c.id == queries.c.domain_id)
        .where(domains.c.name == domain, queries.c.name == query, charges.c.decision == "charged")
        .order_by(charges.c.window_start.desc())
        .limit(1)
    ).first()
    return None if found is None else Newest(*found)


def has_entry(connection: Connection, entry_id: str) -> bool:
    """Whether a charge is on record, also under the name that a merge gave it."""
    base = base_of(entry_id)
    for table in (charges, flagged_charges):
        named = sa.or_(table.c.entry_id == base, table.c.entry_id.startswith(f"{base}{MARK}"))
        if connection.scalar(sa.select(sa.func.count()).select_from(table).where(named)):
            return True
    return False


__all__ = ["Newest", "has_entry", "newest_of"]
