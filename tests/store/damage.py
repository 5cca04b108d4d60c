"""A small ledger with a row in every table, and ways to damage one of its values as a disk would."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.pool import NullPool

from quiltstream.privacy.models.classes import MixingBounds
from quiltstream.schemas.roster import Roster
from quiltstream.schemas.slots import Window
from quiltstream.store import Registration, Store
from quiltstream.store.log import heads, log
from quiltstream.store.specs import BeliefChange

from .samples import SERIES, domain, drafts, query

#: A belief that costs less than that of the samples, so that it may join.
WEAKER = MixingBounds(pi_min=0.25, gap=0.8)

GROUPS = Roster(tuple(zip(SERIES, ("east", "east", "west", "west", "west"), strict=True)))


def fill(store: Store) -> list[Registration]:
    """Two domains: one with groups, another roster, a raised budget and an estimate, and one with a refused window."""
    first = store.register(domain(budget=3.0), query(roster=GROUPS, windows=4, share=0.5))
    store.publish(first, drafts(first, windows_of(first)[:2]))
    store.raise_budget("homes", 4.0)
    moved = Roster((*GROUPS.entries, ("m6", "west")))
    first = store.register(domain(budget=4.0), query(roster=moved, windows=4, share=0.5))
    store.publish(first, drafts(first, windows_of(first)[2:3]))
    store.change_belief("homes", BeliefChange("joined", WEAKER.to_dict(), "model-2"))
    store.note_history_lost("homes", releases=3)
    second = store.register(domain("shops", budget=0.33), query(domain="shops", size=4, windows=6))
    store.publish(second, drafts(second))
    found = [store.registered(*names) for names in store.queries()]
    return [one for one in found if one is not None]


def windows_of(held: Registration) -> list[Window]:
    """All windows of a query."""
    return list(held.query.schedule.windows())


@contextmanager
def rewriting(store: Store) -> Generator[Connection]:
    """A transaction of somebody who may write to the database, past the store and all that it checks."""
    with sa.create_engine(store.address.resolve(), poolclass=NullPool).begin() as connection:
        yield connection


def rows_of(connection: Connection, table: sa.Table) -> list[dict[str, Any]]:
    """All rows of a table in their order."""
    return [dict(row) for row in connection.execute(sa.select(table).order_by(*table.primary_key)).mappings()]


def this(table: sa.Table, row: dict[str, Any]) -> sa.ColumnElement[bool]:
    """A row of a table."""
    return sa.and_(*(column == row[column.name] for column in table.primary_key))


def put_value(connection: Connection, table: sa.Table, row: dict[str, Any], column: str, value: Any) -> None:
    """Change one value of a row and nothing else."""
    connection.execute(table.update().where(this(table, row)).values({column: value}))


def flips(value: Any, step: int = 1) -> Iterator[Any]:
    """A value with one bit changed, for every bit or for some of them, in its own type where it has one."""
    if isinstance(value, bytes):
        for bit in range(0, 8 * len(value), step):
            changed = bytearray(value)
            changed[bit // 8] ^= 1 << bit % 8
            yield bytes(changed)
    elif isinstance(value, str):
        for bit in range(0, 7 * len(value), step):
            place = bit // 7
            changed_to = chr(ord(value[place]) ^ 1 << bit % 7)
            if changed_to != "\0":  # PostgreSQL has no text with it
                yield value[:place] + changed_to + value[place + 1 :]
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value ^ 1 << bit for bit in (0, 1, 5, 20))
    elif isinstance(value, float):
        yield from (value * (1 + 2**-52) or 1e-300, value * 0.5, value + 1.0)


def everything(store: Store) -> dict[str, Any]:
    """All that a ledger publishes and says."""
    return {
        "rows": {names: [batch.to_pylist() for batch in store.releases(*names)] for names in store.queries()},
        "entries": store.entries(),
        "summaries": {name: store.summary(name) for name in store.domains()},
        "registered": {names: store.registered(*names) for names in store.queries()},
    }


TABLES = (heads, log)
