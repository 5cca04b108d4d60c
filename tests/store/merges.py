"""Ledgers to be united, and everything that a united one holds."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from quiltstream.privacy.accounting.ledger import Ledger
from quiltstream.store import Store, StoreAddress, tables
from quiltstream.store.integrity import drawn_of
from quiltstream.store.merge import join_segments, merge

from .samples import BELIEF, domain, drafts, query

Content = dict[str, Any]


def address(path: Path) -> str:
    return f"sqlite:///{path}"


def united(target: Path, *sources: Path) -> Path:
    merge([StoreAddress(address(source)) for source in sources], target)
    return target


def fill(path: Path, *, windows: int = 6, name: str = "weekly", shards: tuple[int, ...] = (0, 1), **spec: Any) -> Path:
    """A ledger in which the first windows of a query are published."""
    budget = spec.pop("budget", 1.0)
    with Store(address(path), create=True) as store:
        held = store.register(domain(budget=budget), query(name, **spec))
        chosen = list(itertools.islice(held.query.schedule.windows(), windows))
        store.publish(held, drafts(held, chosen, shards))
    return path


def content(path: Path) -> Content:
    """All that a ledger holds, with names in place of row numbers."""
    with Store(address(path), create=False) as store, store._database().read() as connection:

        def rows(table: sa.Table) -> list[dict[str, Any]]:
            return [dict(row) for row in connection.execute(sa.select(table)).mappings()]

        domains = {row["id"]: row for row in rows(tables.domains)}
        queries = {row["id"]: row for row in rows(tables.queries)}
        rosters = {row["id"]: row["digest"] for row in rows(tables.rosters)}
        charges = {row["id"]: row["entry_id"] for row in rows(tables.charges)}

        def named(row: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
            # what depends on the numbers of rows is another in each ledger
            found = {key: value for key, value in row.items() if key not in ("id", "sequence", "row_digest", "drawn")}
            if "drawn" in row:
                found["drawn"] = tuple(drawn_of(row))
            if "domain_id" in found:
                found["domain_id"] = domains[found["domain_id"]]["name"]
            if "query_id" in found:
                found["query_id"] = queries[found["query_id"]]["name"]
            if "roster_id" in found:
                found["roster_id"] = rosters[found["roster_id"]]
            if "charge_id" in found:
                found["charge_id"] = charges[found["charge_id"]]
            return tuple(sorted(found.items()))

        found: Content = {
            table.name: sorted(map(named, rows(table)), key=repr)
            for table in (
                *(tables.charges, tables.flagged_charges, tables.releases, tables.flagged_releases),
                *(tables.queries, tables.domain_events, tables.roster_versions),
            )
        }
        found["budgets"] = {row["name"]: (row["budget"], row["reserved_loss"]) for row in domains.values()}
        found["promised"] = {
            row["name"]: join_segments(
                (one["start"], None if one["stop"] is None else one["stop"] - 1)
                for one in rows(tables.reservations)
                if one["query_id"] == number
            )
            for number, row in queries.items()
        }
    with Store(address(path), create=False) as store:
        assert store.verify().defects == ()
        found["losses"] = {name: store.summary(name).loss for name in store.domains()}
    return found


def recomputed(path: Path, name: str = "homes") -> float:
    """The loss by the mathematics alone, from the entries of the account."""
    with Store(address(path), create=False) as store:
        entries = [entry for entry in store.entries(name) if entry.decision == "charged"]
    ledger = Ledger(BELIEF)
    return ledger.replay((entry.window_start, entry.window_stop, entry.epsilon_dp) for entry in entries)
