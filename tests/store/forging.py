"""A ledger rewritten by a program that may write to it and knows how: all digests, counts and heads are made anew."""

from __future__ import annotations

from collections import Counter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from quiltstream.store import tables
from quiltstream.store.integrity import Chain, drawn_bytes, link_of, row_digest

#: Of each column that counts rows: the table they are in, and its column that names the parent.
_COUNTS: dict[sa.Table, dict[str, sa.Column[Any]]] = {
    tables.domains: {
        "query_rows": tables.queries.c.domain_id,
        "event_rows": tables.domain_events.c.domain_id,
    },
    tables.queries: {
        "reservation_rows": tables.reservations.c.query_id,
        "version_rows": tables.roster_versions.c.query_id,
    },
}


def reseal(connection: Connection) -> None:
    """Let everything agree with the rows that are there."""
    for table in tables.metadata.sorted_tables:
        if table is not tables.domains:
            _reseal(connection, table)
    drawn: dict[int, dict[int, bytes]] = {}
    for row in _rows(connection, tables.releases):
        drawn.setdefault(row["charge_id"], {})[row["shard"]] = row["row_digest"]
    charges = tables.charges
    for row in _rows(connection, charges):
        value = drawn_bytes(row["entry_id"], drawn.get(row["id"], {}))
        if value != row["drawn"]:
            connection.execute(charges.update().where(charges.c.id == row["id"]).values(drawn=value))
    _reseal(connection, tables.domains)
    domains = connection.scalar(sa.select(sa.func.count()).select_from(tables.domains))
    connection.execute(tables.meta.update().values(domain_rows=domains))
    _reseal(connection, tables.meta)


def _reseal(connection: Connection, table: sa.Table) -> None:
    counts = {name: Counter(connection.scalars(sa.select(parent))) for name, parent in _COUNTS.get(table, {}).items()}
    update = table.update().where(table.c.id == sa.bindparam("number"))
    changed: list[dict[str, Any]] = []
    for row in _rows(connection, table):
        made = {**row, **{name: found[row["id"]] for name, found in counts.items()}}
        if table is tables.domains:
            made |= _account(connection, row)
        made["row_digest"] = row_digest(table, made)
        if made != dict(row):
            names = [*counts, *(("head", "last_sequence") if table is tables.domains else ()), "row_digest"]
            changed.append({f"new_{name}": made[name] for name in names} | {"number": row["id"]})
    if changed:
        values = {name.removeprefix("new_"): sa.bindparam(name) for name in changed[0] if name != "number"}
        connection.execute(update.values(values), changed)


def _account(connection: Connection, domain: Any) -> dict[str, Any]:
    charges = tables.charges
    rows = connection.execute(sa.select(charges).where(charges.c.domain_id == domain["id"])).mappings()
    links: list[Any] = [link_of(row) for row in rows]
    chain = Chain(domain["name"])
    chain.add(sorted(links))
    return {"head": chain.head, "last_sequence": max((link[0] for link in links), default=0)}


def _rows(connection: Connection, table: sa.Table) -> list[Any]:
    return list(connection.execute(sa.select(table).order_by(table.c.id)).mappings().all())
