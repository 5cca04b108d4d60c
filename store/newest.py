"""The newest charge and block of a query, and which are on record: what tells a ledger from an older copy of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from .tables import charges, domains, flagged_charges, flagged_releases, queries, releases
from .uniting import MARK, base_of

# SQLite takes at least 999 parameters in a statement.
_NAMES = 500

#: The charge that paid for a block of record.
_PAYER = sa.func.coalesce(releases.c.paid_by, charges.c.entry_id)


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


class NewestBlock(NamedTuple):
    """The block of a query that was put on record last.

    Attributes:
        entry_id: the charge that paid for it.
        shard: which part of the window.
        stop: the slot behind the window's last.
    """

    entry_id: str
    shard: int
    stop: int


class BlockNumber(NamedTuple):
    """Where a block is on record.

    Attributes:
        query_id: its query.
        number: rises in the order in which the blocks of a query were committed; 0 for one that a merge flagged.
    """

    query_id: int
    number: int


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


def newest_block(connection: Connection, domain: str, query: str) -> NewestBlock | None:
    """The block of a query that was put on record last; ``None`` if it has none."""
    found = connection.execute(
        sa.select(_PAYER, releases.c.shard, charges.c.window_stop)
        .select_from(releases.join(charges, charges.c.id == releases.c.charge_id))
        .join(queries, queries.c.id == releases.c.query_id)
        .join(domains, domains.c.id == queries.c.domain_id)
        .where(domains.c.name == domain, queries.c.name == query)
        .order_by(releases.c.id.desc())
        .limit(1)
    ).first()
    return None if found is None else NewestBlock(*found)


def block_numbers(connection: Connection, blocks: Sequence[tuple[str, int]]) -> list[BlockNumber | None]:
    """Where blocks are on record; ``None`` for each that is not.

    Args:
        connection: a transaction.
        blocks: the charge that paid for each, also by a name from before a merge, and its shard.
    """
    wanted = sorted({base_of(entry_id) for entry_id, _ in blocks})
    found: dict[tuple[str, int], BlockNumber] = {}
    for begin in range(0, len(wanted), _NAMES):
        part = wanted[begin : begin + _NAMES]
        _number(connection, charges.c.entry_id.in_(part), None, found)
    for base in sorted({base_of(one) for one, shard in blocks if (base_of(one), shard) not in found}):
        # a merge names a second charge, or a second draw, by the name of the first with a mark
        named = (base, f"{base}{MARK}")
        _number(connection, _is_of(charges.c.entry_id, *named), _is_of(releases.c.paid_by, *named), found)
        flagged = sa.select(flagged_releases.c.entry_id, flagged_releases.c.shard, flagged_releases.c.query_id)
        for entry_id, shard, query_id in connection.execute(flagged.where(_is_of(flagged_releases.c.entry_id, *named))):
            found.setdefault((base_of(entry_id), shard), BlockNumber(query_id, 0))
    return [found.get((base_of(entry_id), shard)) for entry_id, shard in blocks]


def _is_of(column: Any, base: str, marked: str) -> Any:
    return sa.or_(column == base, column.startswith(marked))


def _number(connection: Connection, own: Any, other: Any, found: dict[tuple[str, int], BlockNumber]) -> None:
    """Note where blocks of record are by the charge that paid for them: their window's own, or another one."""
    chosen: Iterable[Any] = (sa.and_(own, releases.c.paid_by.is_(None)), *(() if other is None else (other,)))
    for where in chosen:
        rows = sa.select(_PAYER, releases.c.shard, releases.c.query_id, releases.c.id).select_from(
            releases.join(charges, charges.c.id == releases.c.charge_id)
        )
        for entry_id, shard, query_id, number in connection.execute(rows.where(where)):
            found[base_of(entry_id), shard] = BlockNumber(query_id, number)


def has_entry(connection: Connection, entry_id: str) -> bool:
    """Whether a charge is on record, also under the name that a merge gave it."""
    base = base_of(entry_id)
    for table in (charges, flagged_charges):
        named = sa.or_(table.c.entry_id == base, table.c.entry_id.startswith(f"{base}{MARK}"))
        if connection.scalar(sa.select(sa.func.count()).select_from(table).where(named)):
            return True
    return False


__all__ = ["BlockNumber", "Newest", "NewestBlock", "block_numbers", "has_entry", "newest_block", "newest_of"]
