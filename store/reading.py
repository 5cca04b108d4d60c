"""Reading the record: entries, rows, what is missing, and what a domain has spent."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ..schemas.digests import canonical_json
from ..schemas.ledger import LedgerEntry
from ..schemas.slots import Window
from . import tables
from .codec import Row, block_from_bytes, domain_from_row, entry_from_row, query_from_row
from .histories import history_lost
from .lookups import domain_row, is_closed, payers_of, read_roster, registration_of
from .specs import Record, Registration

#: Blocks read in one short transaction: whoever reads slowly keeps no one waiting.
PAGE = 64

#: Windows looked at in one short transaction.
WINDOWS = 4_096


@dataclass(frozen=True, slots=True)
class QuerySummary:
    """What one query of a domain did.

    Attributes:
        name: the query.
        digest: digest of what determines its numbers.
        epsilon: what one run of it was to cost, as set; ``None`` if the header does not say.
        epsilon_dp: loss per slot charged for a window.
        windows: windows in its schedule; ``None`` for an endless one.
        charged: windows charged.
        refused: windows refused.
        blocks: blocks on record.
        admitted_stop: slot after which windows are refused; ``None`` if all are admitted.
        given_model: whether the loss holds only given a model estimated from the protected series.
    """

    name: str
    digest: str
    epsilon: float | None
    epsilon_dp: float
    windows: int | None
    charged: int
    refused: int
    blocks: int
    admitted_stop: int | None
    given_model: bool


@dataclass(frozen=True, slots=True)
class DomainSummary:
    """What a domain has spent and promised.

    Attributes:
        name: the domain.
        guarantee: ``stream`` or ``window``.
        model_id: digest of the belief.
        budget: the budget in force, epsilon.
        loss: what all charges so far cost together, epsilon.
        reserved_loss: the loss when everything promised is published, epsilon.
        remaining: budget less loss.
        unreserved: budget less reserved loss: what another query may be promised.
        charged: windows charged.
        refused: windows refused.
        naive: what adding up would say: the epsilons of all charged windows, each taken as published alone
            ([SC17] Theorem 3.7); ``None`` if a query's header has no epsilon.
        given_model: whether the loss holds only given a model estimated from the protected series.
        history_lost: whether charges are missing from the account, by an operator's word; once so, so for ever.
        closed: whether a merge found more charged than the budget: nothing is charged any more.
        flagged_charges: windows charged a second time elsewhere, as a merge found; they are part of the loss.
        flagged_blocks: blocks published beside those of record.
        events: budgets raised, schedules extended and history declared lost: (kind, query or ``None``, old, new,
            microseconds), as recorded.
        queries: its queries, in the order of registration.
    """

    name: str
    guarantee: str
    model_id: str
    budget: float
    loss: float
    reserved_loss: float
    remaining: float
    unreserved: float
    charged: int
    refused: int
    naive: float | None
    given_model: bool
    history_lost: bool
    closed: bool
    flagged_charges: int
    flagged_blocks: int
    events: tuple[tuple[str, str | None, str, str, int], ...]
    queries: tuple[QuerySummary, ...]


def registered(connection: Connection, domain: str, query: str) -> Registration | None:
    """What is on record for a query."""
    found = _rows_of(connection, domain, query)
    return None if found is None else registration_from_rows(connection, *found)


def _rows_of(connection: Connection, domain: str, query: str) -> tuple[Row, Row] | None:
    """The rows of a domain and of one of its queries; ``None`` if it is not on record."""
    return next((pair for pair in query_rows(connection, domain) if pair[1]["name"] == query), None)


def query_rows(connection: Connection, domain: str | None = None) -> list[tuple[Row, Row]]:
    """The rows of all queries, each with its domain's, by domain and order of registration."""
    domains, queries = tables.domains, tables.queries
    chosen = sa.select(domains).order_by(domains.c.name)
    if domain is not None:
        chosen = chosen.where(domains.c.name == domain)
    pairs: list[tuple[Row, Row]] = []
    for row in connection.execute(chosen).mappings().all():
        of_domain = sa.select(queries).where(queries.c.domain_id == row["id"]).order_by(queries.c.id)
        pairs.extend((row, query) for query in connection.execute(of_domain).mappings())
    return pairs


def registration_from_rows(connection: Connection, domain: Row, query: Row) -> Registration:
    """The registration that two rows make."""
    spec = query_from_row(query, domain["name"], read_roster(connection, query["roster_id"]))
    return registration_of(connection, domain, query, spec)


def entries(connection: Connection, domain: str | None = None) -> list[LedgerEntry]:
    """Every charge and refusal, by domain and sequence.

    Charges that a merge flagged are part of the account and stand between those of record; refusals that it flagged,
    of windows charged elsewhere, are not.
    """
    queries = {query["id"]: (domain_from_row(row), query) for row, query in query_rows(connection, domain)}
    of_domain: dict[int, str] = {query["domain_id"]: spec.name for spec, query in queries.values()}
    found: list[LedgerEntry] = []
    for domain_id in of_domain:
        rows: list[Row] = []
        for table in (tables.charges, tables.flagged_charges):
            held = table.c.sequence.is_not(None)
            rows += connection.execute(sa.select(table).where(table.c.domain_id == domain_id, held)).mappings()
        rows.sort(key=lambda row: row["sequence"])
        found.extend(entry_from_row(row, *queries[row["query_id"]]) for row in rows)
    return found


def page_of_records(connection: Connection, domain: str, query: str, after: tuple[int, int] | None) -> list[Record]:
    """The next blocks of a query by window and shard, after a place."""
    charges, releases = tables.charges, tables.releases
    found = _rows_of(connection, domain, query)
    if found is None:
        return []
    domain_of, query_of = found
    chosen = (
        sa.select(releases.c.shard, releases.c.completeness, releases.c.block, releases.c.paid_by, charges)
        .join(charges, charges.c.id == releases.c.charge_id)
        .where(releases.c.query_id == query_of["id"])
        .order_by(releases.c.window_start, releases.c.shard)
        .limit(PAGE)
    )
    if after is not None:
        chosen = chosen.where(sa.tuple_(releases.c.window_start, releases.c.shard) > sa.tuple_(*after))
    spec = domain_from_row(domain_of)
    rows = connection.execute(chosen).mappings().all()
    payers = payers_of(connection, (row["paid_by"] for row in rows))
    return [
        Record(
            window=Window(row["window_start"], row["window_stop"]),
            shard=row["shard"],
            entry=entry_from_row(payers.get(row["paid_by"], row), spec, query_of),
            block=block_from_bytes(row["block"], row["completeness"]),
            fresh=False,
        )
        for row in rows
    ]


def flagged_records(connection: Connection, domain: str, query: str) -> list[Record]:
    """The blocks that a merge found beside those of record, by window and shard, each with the charge that paid."""
    charges, flagged, releases = tables.charges, tables.flagged_charges, tables.flagged_releases
    found = _rows_of(connection, domain, query)
    if found is None:
        return []
    spec, query_of = domain_from_row(found[0]), found[1]
    rows = (
        connection.execute(
            sa.select(releases)
            .where(releases.c.query_id == query_of["id"])
            .order_by(releases.c.window_start, releases.c.shard, releases.c.id)
        )
        .mappings()
        .all()
    )
    payers: dict[str, Row] = {}
    for table in (charges, flagged):
        paid = sa.select(releases.c.entry_id).where(releases.c.query_id == query_of["id"])
        for row in connection.execute(sa.select(table).where(table.c.entry_id.in_(paid))).mappings():
            payers[row["entry_id"]] = row
    return [
        Record(
            window=Window(payers[row["entry_id"]]["window_start"], payers[row["entry_id"]]["window_stop"]),
            shard=row["shard"],
            entry=entry_from_row(payers[row["entry_id"]], spec, query_of),
            block=block_from_bytes(row["block"], row["completeness"]),
            fresh=False,
        )
        for row in rows
    ]


def finished(connection: Connection, domain: str, query: str, starts: range) -> tuple[set[int], set[tuple[int, int]]]:
    """Of the windows that start in a range: those refused, and the (window start, shard) of those with a block."""
    charges, releases = tables.charges, tables.releases
    found = _rows_of(connection, domain, query)
    if found is None:
        return set(), set()
    query_id = found[1]["id"]
    refused = connection.scalars(
        sa.select(charges.c.window_start).where(
            charges.c.query_id == query_id,
            charges.c.decision == "refused",
            charges.c.window_start.between(starts.start, starts.stop - 1),
        )
    )
    blocks = connection.execute(
        sa.select(releases.c.window_start, releases.c.shard).where(
            releases.c.query_id == query_id, releases.c.window_start.between(starts.start, starts.stop - 1)
        )
    )
    return set(refused), {(row.window_start, row.shard) for row in blocks}


def summary(connection: Connection, name: str) -> DomainSummary:
    """What a domain has spent and promised.

    Raises:
        UnknownNameError: there is no such domain.
    """
    row = domain_row(connection, name)
    domain = domain_from_row(row)
    charges = tables.charges
    loss = connection.scalar(
        sa.select(charges.c.loss_after)
        .where(charges.c.domain_id == row["id"], charges.c.decision == "charged")
        .order_by(charges.c.sequence.desc())
        .limit(1)
    )
    # entries of a united ledger say what was lost in the ledgers they were made in
    loss = max(float(loss or 0.0), float(row["merged_loss"] or 0.0))
    queries = tuple(_query_summary(connection, *pair) for pair in query_rows(connection, name))
    epsilons = [query.epsilon for query in queries if query.charged]
    naive = None
    if None not in epsilons:
        again = _flagged_by_query(connection, row["id"])
        naive = sum((query.charged + again.get(query.name, 0)) * (query.epsilon or 0.0) for query in queries)
    reserved = float(row["reserved_loss"])
    events = tables.domain_events
    decided = connection.execute(
        sa.select(events.c.kind, events.c.query, events.c.old, events.c.new, events.c.at_us)
        .where(events.c.domain_id == row["id"])
        .order_by(events.c.id)
    )
    return DomainSummary(
        name=name,
        guarantee=domain.guarantee,
        model_id=domain.model_id,
        budget=domain.budget,
        loss=loss,
        reserved_loss=reserved,
        remaining=max(0.0, domain.budget - loss),
        unreserved=max(0.0, domain.budget - reserved),
        charged=sum(query.charged for query in queries),
        refused=sum(query.refused for query in queries),
        naive=naive,
        given_model=any(one.given_model for one in (*queries, *domain.changes)),
        history_lost=history_lost(connection, row["id"]),
        closed=is_closed(row),
        flagged_charges=_count(connection, tables.flagged_charges, tables.flagged_charges.c.domain_id == row["id"]),
        flagged_blocks=_count(
            connection,
            tables.flagged_releases.join(tables.queries, tables.queries.c.id == tables.flagged_releases.c.query_id),
            tables.queries.c.domain_id == row["id"],
        ),
        events=tuple((one.kind, one.query, one.old, _told(one.kind, one.new), one.at_us) for one in decided),
        queries=queries,
    )


def _told(kind: str, new: str) -> str:
    """What a decision says; of a model that was estimated only what may be published."""
    if kind != "model-estimated":
        return new
    model = json.loads(new)
    told = {"model_id": model.get("model_id"), "method": model.get("provenance", {}).get("method")}
    return canonical_json(told)


def _flagged_by_query(connection: Connection, domain_id: int) -> dict[str, int]:
    flagged, queries = tables.flagged_charges, tables.queries
    rows = connection.execute(
        sa.select(queries.c.name, sa.func.count())
        .join(flagged, flagged.c.query_id == queries.c.id)
        .where(flagged.c.domain_id == domain_id, flagged.c.decision == "charged")
        .group_by(queries.c.name)
    )
    return {row[0]: row[1] for row in rows}


def _count(connection: Connection, table: sa.FromClause, condition: sa.ColumnElement[bool]) -> int:
    return int(connection.scalar(sa.select(sa.func.count()).select_from(table).where(condition)) or 0)


def _query_summary(connection: Connection, domain: Row, query: Row) -> QuerySummary:
    charges, releases = tables.charges, tables.releases
    counts: dict[str, int] = {
        row[0]: row[1]
        for row in connection.execute(
            sa.select(charges.c.decision, sa.func.count())
            .where(charges.c.query_id == query["id"])
            .group_by(charges.c.decision)
        )
    }
    blocks = connection.scalar(
        sa.select(sa.func.count()).select_from(releases).where(releases.c.query_id == query["id"])
    )
    registration = registration_from_rows(connection, domain, query)
    schedule = registration.query.schedule
    epsilon: Any = registration.query.header.get("epsilon")
    return QuerySummary(
        name=query["name"],
        digest=query["digest"],
        epsilon=None if epsilon is None else float(epsilon),
        epsilon_dp=float(query["epsilon_dp"]),
        windows=None if schedule.stop is None else len(schedule),
        charged=counts.get("charged", 0),
        refused=counts.get("refused", 0),
        blocks=int(blocks or 0),
        admitted_stop=registration.admitted_stop,
        given_model=bool(query["given_model"]),
    )
