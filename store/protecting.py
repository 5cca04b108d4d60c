"""Beliefs that rest on series which the domain protects, on record as such (theory section 7, item 5).

What is promised holds 'given the model' only, where the model was estimated from series that it is to protect. Which
series a domain protects may grow after a belief has joined it: from the transaction on in which such a series joins,
every charge of the domain says so. What was charged before did not hold the series, and stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ..schemas.models import hash_of_series
from . import tables
from .codec import Row, changes_from_text, changes_text, roster_from_bytes
from .integrity import alter, checked_rows
from .specs import BeliefChange


def protect(connection: Connection, row: Row, series: Iterable[str]) -> Row:
    """Note that a domain protects some series; inside a transaction that holds its lock.

    Args:
        connection: the transaction.
        row: of the domain.
        series: names.

    Returns:
        The domain's row as it is then.
    """
    changes = changes_from_text(row["changes"])
    if all(one.given_model or not one.series_hashes for one in changes):
        return row
    hashes = {hash_of_series(name) for name in series}
    return _kept(connection, row, [one.protecting(hashes) for one in changes])


def say_again(connection: Connection, row: Row, change: BeliefChange) -> Row:
    """Note what is known anew of a change that is on record; otherwise as :func:`protect`."""
    changes = changes_from_text(row["changes"])
    return _kept(connection, row, [one.agreed(change) if _is(one, change) else one for one in changes])


def protect_all(connection: Connection, row: Row) -> Row:
    """Note that a domain protects the series of all of its rosters; otherwise as :func:`protect`."""
    return _kept(connection, row, [as_protected(connection, row, one) for one in changes_from_text(row["changes"])])


def _is(one: BeliefChange, other: BeliefChange) -> bool:
    """Whether two changes are the same, in whatever words."""
    return (one.belief, one.model_id, one.slot) == (other.belief, other.model_id, other.slot)


def _kept(connection: Connection, row: Row, changes: Sequence[BeliefChange]) -> Row:
    text = changes_text(changes)
    if text == row["changes"]:
        return row
    return alter(connection, tables.domains, row["id"], changes=text)


def as_protected(connection: Connection, row: Row, change: BeliefChange) -> BeliefChange:
    """A change of belief that knows whether it rests on a series of the domain, of whichever roster."""
    if change.given_model or not change.series_hashes:
        return change
    queries, versions, rosters = tables.queries, tables.roster_versions, tables.rosters
    newest = sa.select(queries.c.roster_id).where(queries.c.domain_id == row["id"])
    earlier = (
        sa.select(versions.c.roster_id)
        .join(queries, queries.c.id == versions.c.query_id)
        .where(queries.c.domain_id == row["id"])
    )
    found = checked_rows(connection, rosters, sa.select(rosters).where(rosters.c.id.in_(newest.union(earlier))))
    series = {name for one in found for name in roster_from_bytes(one["entries"]).series}
    return change.protecting({hash_of_series(name) for name in series})


__all__ = ["as_protected", "protect", "protect_all", "say_again"]
