"""Answers computed from the record: what was charged and published, what is missing, and what is newest."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ..privacy.accounting.charges import Span
from ..schemas.digests import canonical_json
from ..schemas.ledger import LedgerEntry
from ..schemas.releases import COMPLETENESS, release_ids
from ..schemas.slots import SlotGrid, Window
from . import integrity, recorded_rows, tables
from .accounts import Link
from .codec import Row, block_from_bytes, domain_from_row, entry_from_row, entry_reader
from .connection import Database
from .domain_changes import history_lost
from .integrity import Chain, damaged
from .registration import Sharing, registration_from_rows, sharings
from .specs import DomainSpec, Record, Registration, layout_of
from .tables import charges, domains, queries, releases

#: Windows looked at in one short transaction.
WINDOWS = 4_096


@dataclass(frozen=True, slots=True)
class QuerySummary:
    """What one query of a domain did: its windows charged and refused, and its blocks on record."""

    name: str
    digest: str
    epsilon: float | None  # what one run of it was to cost, as set; ``None`` if the header does not say
    epsilon_dp: float | dict[int, float]  # loss per slot charged for a window: one number, or by the slots of a window
    windows: int | None  # windows in its schedule; ``None`` for an endless one
    charged: int
    refused: int
    blocks: int
    admitted_stop: int | None  # slot after which windows are refused; ``None`` if all are admitted
    given_model: bool  # whether the loss holds only given a model estimated from the protected series

    @property
    def charged_text(self) -> str:
        """What a window is charged, in words."""
        if not isinstance(self.epsilon_dp, dict):
            return f"{self.epsilon_dp:.6g} a slot"
        least, most = min(self.epsilon_dp.values()), max(self.epsilon_dp.values())
        return f"{least:.6g} to {most:.6g} a slot, by the length of a window"


@dataclass(frozen=True, slots=True)
class DomainSummary:
    """What a domain has spent and promised, and its windows charged and refused."""

    name: str
    guarantee: str
    model_id: str  # digest of the belief
    budget: float  # the budget in force, epsilon
    loss: float  # what all charges so far cost together, epsilon
    reserved_loss: float  # the loss when everything promised is published, epsilon
    remaining: float  # budget less loss
    unreserved: float  # budget less reserved loss: what another query may be promised
    charged: int
    refused: int
    # what adding up would say: the epsilons of all charged windows, each taken as published alone ([SC17] Theorem 3.7);
    # ``None`` if a query's header has no epsilon
    naive: float | None
    given_model: bool  # whether the loss holds only given a model estimated from the protected series
    history_lost: bool  # whether charges are missing from the account, by an operator's word; once so, so for ever
    # other domains of the ledger that have some of its series; what they tell together is in no account
    shares: tuple[Sharing, ...]
    # budgets raised, schedules extended and history declared lost: (kind, query or ``None``, old, new, microseconds),
    # as recorded
    events: tuple[tuple[str, str | None, str, str, int], ...]
    queries: tuple[QuerySummary, ...]  # its queries, in the order of registration


def registered(connection: Connection, domain: str, query: str) -> Registration | None:
    """What is on record for a query; ``None`` if there is no such query."""
    found = _rows_of(connection, domain, query)
    return None if found is None else registration_from_rows(connection, *found)


def _rows_of(connection: Connection, domain: str, query: str) -> tuple[Row, Row] | None:
    """The rows of a domain and of one of its queries; ``None`` if it is not on record."""
    return next((pair for pair in recorded_rows.query_rows(connection, domain) if pair[1]["name"] == query), None)


def entries(connection: Connection, domain: str | None = None) -> list[LedgerEntry]:
    """Every charge and refusal, of one domain or of all, by domain and sequence. It may be published."""
    found = recorded_rows.query_rows(connection, domain)
    of_domains = {row["id"]: row for row, _ in found}
    readers = {query["id"]: entry_reader(domain_from_row(row), query) for row, query in found}
    return [
        readers[charge["query_id"]](charge, head)
        for row in of_domains.values()
        for charge, head in recorded_rows.chained_rows(connection, row)
    ]


def next_start(connection: Connection, registration: Registration) -> int:
    """Start of a query's first window without an entry: all before it are charged or refused."""
    domain = recorded_rows.domain_row(connection, registration.domain.name)
    query = recorded_rows.recorded_query_row(connection, domain, registration.query.name)
    return recorded_rows.next_start(connection, query["id"], registration.query.schedule)


@dataclass(frozen=True, slots=True)
class Charged:
    """A domain's account as its charges have it."""

    spans: dict[str, list[Span]]  # everything charged, by the query's name, in the order of the account
    entries: list[LedgerEntry]  # its last charges and refusals, or all of them
    total: int  # how many of these there are


def charged(connection: Connection, domain: str, last: int | None = None) -> Charged:
    """Everything that a domain was charged, and so many of its last charges and refusals in full, or all.

    Each row is held against its digest, and all of them against the chain.
    """
    row = recorded_rows.domain_row(connection, domain)
    held = {query["id"]: query for query in recorded_rows.queries_of(connection, row)}
    if last is None:
        ending = recorded_rows.chained_rows(connection, row)
        links = [integrity.link_of(charge) for charge, _ in ending]
    else:
        links, ending = _links_and_last(connection, row, last)
    spans: dict[str, list[Span]] = {}
    for _, _, query_id, start, stop, decision, epsilon_dp, _ in links:
        if decision == "charged":
            spans.setdefault(held[query_id]["name"], []).append((start, stop, epsilon_dp))
    spec = domain_from_row(row)
    readers = {charge["query_id"]: entry_reader(spec, held[charge["query_id"]]) for charge, _ in ending}
    return Charged(spans, [readers[charge["query_id"]](charge, head) for charge, head in ending], len(links))


def _links_and_last(connection: Connection, domain: Row, last: int) -> tuple[list[Link], list[tuple[Row, bytes]]]:
    """The links of a domain's charges, and the last rows, each with the head of the chain up to it."""
    table = tables.charges
    chosen = sa.select(table).where(table.c.domain_id == domain["id"]).order_by(table.c.sequence)
    links: list[Link] = list(integrity.checked_stream(connection, table, chosen, integrity.LINK))
    before = max(0, len(links) - last)
    chain = Chain(domain["name"])
    chain.add(links[:before])
    heads = chain.heads(links[before:])
    chain.check(domain)
    return links, list(zip(integrity.checked_rows(connection, table, chosen.offset(before)), heads, strict=True))


def page_of_records(connection: Connection, domain: str, query: str, after: tuple[int, int] | None) -> list[Record]:
    """The next blocks of a query by window and shard, after a place."""
    found = _rows_of(connection, domain, query)
    if found is None:
        return []
    spec, query_of = domain_from_row(found[0]), found[1]
    page = recorded_rows.page_of_blocks(connection, query_of, after)
    return [_record(block, charge, spec, query_of) for block, charge in page]


def _record(block: Row, charge: Row, domain: DomainSpec, query: Row) -> Record:
    """A block on record with its window's charge."""
    return Record(
        window=Window(charge["window_start"], charge["window_stop"]),
        shard=block["shard"],
        entry=entry_from_row(charge, domain, query),
        block=block_from_bytes(block["block"], block["completeness"]),
        fresh=False,
        digest=integrity.draw_digest(block),
    )


def _decisions(connection: Connection, query: Row, starts: range) -> dict[int, str]:
    """What became of the windows of a query that start in a range."""
    chosen = sa.select(charges.c.window_start, charges.c.decision)
    rows = connection.execute(chosen.where(_between(charges, query, starts)))
    return {row.window_start: row.decision for row in rows}


def _blocks_between(connection: Connection, query: Row, starts: range) -> set[tuple[int, int]]:
    """The (window start, shard) of the blocks of windows that start in a range."""
    chosen = sa.select(releases.c.window_start, releases.c.shard)
    rows = connection.execute(chosen.where(_between(releases, query, starts)))
    return {(row.window_start, row.shard) for row in rows}


def _between(table: sa.Table, query: Row, starts: range) -> Any:
    return sa.and_(table.c.query_id == query["id"], table.c.window_start.between(starts.start, starts.stop - 1))


def summary(connection: Connection, name: str) -> DomainSummary:
    """What a domain has spent and promised."""
    row = recorded_rows.domain_row(connection, name)
    domain = domain_from_row(row)
    latest = (
        connection.execute(
            sa.select(charges)
            .where(charges.c.domain_id == row["id"], charges.c.decision == "charged")
            .order_by(charges.c.sequence.desc())
            .limit(1)
        )
        .mappings()
        .first()
    )
    loss = 0.0 if latest is None else float(integrity.checked(charges, latest)["loss_after"])
    # entries say what was lost by the beliefs of their time
    loss = max(loss, float(row["changed_loss"] or 0.0))
    queries = tuple(_query_summary(connection, *pair) for pair in recorded_rows.query_rows(connection, name))
    if sum(query.charged + query.refused for query in queries) != row["last_sequence"]:
        raise integrity.broken(name)
    epsilons = [query.epsilon for query in queries if query.charged]
    naive = None
    if None not in epsilons:
        naive = sum(query.charged * (query.epsilon or 0.0) for query in queries)
    reserved = float(row["reserved_loss"])
    decided = recorded_rows.events_of(connection, row)
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
        history_lost=history_lost(decided),
        events=tuple(
            (one["kind"], one["query"], one["old"], _told(one["kind"], one["new"]), one["at_us"]) for one in decided
        ),
        shares=sharings(connection, name),
        queries=queries,
    )


def _told(kind: str, new: str) -> str:
    """What a decision says; of a model that was estimated only what may be published."""
    if kind != "model-estimated":
        return new
    model = json.loads(new)
    told = {"model_id": model.get("model_id"), "method": model.get("provenance", {}).get("method")}
    return canonical_json(told)


def _query_summary(connection: Connection, domain: Row, query: Row) -> QuerySummary:
    decided = sa.select(charges.c.decision, sa.func.count()).where(charges.c.query_id == query["id"])
    counts: dict[str, int] = {row[0]: row[1] for row in connection.execute(decided.group_by(charges.c.decision))}
    published = sa.select(sa.func.count()).select_from(releases).where(releases.c.query_id == query["id"])
    blocks = connection.scalar(published)
    registration = registration_from_rows(connection, domain, query)
    schedule = registration.query.schedule
    epsilon: Any = registration.query.header.get("epsilon")
    return QuerySummary(
        name=query["name"],
        digest=query["digest"],
        epsilon=None if epsilon is None else float(epsilon),
        epsilon_dp=registration.query.losses,
        windows=None if schedule.stop is None else len(schedule),
        charged=counts.get("charged", 0),
        refused=counts.get("refused", 0),
        blocks=int(blocks or 0),
        admitted_stop=registration.admitted_stop,
        given_model=bool(query["given_model"]),
    )


def completeness(connection: Connection, domain: str) -> dict[str, dict[str, int]]:
    """How many windows of each query have rows of each completeness; one with shards of several counts for each."""
    recorded_rows.domain_row(connection, domain)
    windows = sa.func.count(releases.c.window_start.distinct())
    counted = sa.select(releases.c.query_id, releases.c.completeness, windows)
    found: dict[str, dict[str, int]] = {}
    for _, query in recorded_rows.query_rows(connection, domain):
        mine = counted.where(releases.c.query_id == query["id"]).group_by(releases.c.query_id, releases.c.completeness)
        found[query["name"]] = dict.fromkeys(COMPLETENESS, 0) | {row[1]: row[2] for row in connection.execute(mine)}
    return found


def pages(registration: Registration, start: int | None) -> Iterator[list[Window]]:
    """The windows of a query from a slot on, some at a time; endlessly many of an endless schedule."""
    schedule = registration.query.schedule
    if start is not None and start > schedule.first:
        schedule = replace(schedule, start=start)
    windows = iter(schedule.windows())
    while page := list(islice(windows, WINDOWS)):
        yield page


def places(connection: Connection, registration: Registration, windows: list[Window]) -> list[tuple[Window, int]]:
    """The (window, shard) of some consecutive windows that should have a block and do not, in order."""
    rows = _rows_of(connection, registration.domain.name, registration.query.name)
    starts = range(windows[0].start, windows[-1].start + 1)
    decisions = {} if rows is None else _decisions(connection, rows[1], starts)
    blocks = set[tuple[int, int]]() if rows is None else _blocks_between(connection, rows[1], starts)
    found: list[tuple[Window, int]] = []
    for window in windows:
        if registration.query.roster.awaits is not None and window.start not in decisions:
            found.append((window, 0))  # no series was seen yet; one may be before the window is over
        elif decisions.get(window.start) != "refused":
            shards = layout_of(registration, window).occupied
            found += [(window, shard) for shard in shards if (window.start, shard) not in blocks]
    return found


def strike(database: Database, registration: Registration, starts: Sequence[int], wanted: set[str]) -> None:
    """Take the release ids that a query has on record out of some that are looked for, the newest windows first."""
    names = (registration.domain.name, registration.query.name)
    grid = SlotGrid(**registration.domain.grid)
    for at in range(len(starts), 0, -WINDOWS):
        if not wanted:
            return
        page = starts[max(0, at - WINDOWS) : at]
        with database.read() as connection:
            rows = _rows_of(connection, *names)
            blocks = () if rows is None else _blocks_between(connection, rows[1], range(page[0], page[-1] + 1))
        for start, shard in blocks:
            window = registration.query.schedule.window_at(start)
            times = (grid.time_of(window.start), grid.time_of(window.stop))
            layout = layout_of(registration, window)
            if shard not in layout.occupied:
                raise damaged(f"query {names[1]!r}", f"has a block of a shard that window {window} has not")
            wanted.difference_update(release_ids(*names, registration.digest, times, layout.keys(shard)))


class Newest(NamedTuple):
    """The newest charge of a query: its random name, its number in the account, and its window's slots."""

    entry_id: str
    sequence: int
    start: int
    stop: int


class NewestBlock(NamedTuple):
    """The block of a query that was put on record last: the charge that paid for it, its place and its draw."""

    entry_id: str
    shard: int
    stop: int
    digest: str


class BlockName(NamedTuple):
    """A block that was seen: the charge that paid for it, its shard, and the digest of its draw, empty for any draw."""

    entry_id: str
    shard: int
    digest: str = ""


class BlockNumber(NamedTuple):
    """Where a block is on record; ``number`` rises in the order of commits."""

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
    found = (
        connection.execute(
            sa.select(charges.c.entry_id, charges.c.window_stop, releases)
            .select_from(releases.join(charges, charges.c.id == releases.c.charge_id))
            .join(queries, queries.c.id == releases.c.query_id)
            .join(domains, domains.c.id == queries.c.domain_id)
            .where(domains.c.name == domain, queries.c.name == query)
            .order_by(releases.c.id.desc())
            .limit(1)
        )
        .mappings()
        .first()
    )
    if found is None:
        return None
    digest = integrity.draw_digest(integrity.checked(releases, found))
    return NewestBlock(found["entry_id"], found["shard"], found["window_stop"], digest)


def block_numbers(connection: Connection, blocks: Sequence[BlockName]) -> list[BlockNumber | None]:
    """Where blocks are on record that were seen, in their order.

    ``None`` for what is not on record, or was drawn another time: then the ledger is another one or an older copy.
    """
    found: dict[tuple[str, int], tuple[str, BlockNumber]] = {}
    for part in recorded_rows.batched(blocks, recorded_rows.MOST_PARAMETERS):
        asked = {"paid": sorted({one.entry_id for one in part}), "shards": sorted({one.shard for one in part})}
        for row in connection.execute(_DRAWS, asked).mappings():
            digest = integrity.draw_digest(integrity.checked(releases, row))
            found[row["entry_id"], row["shard"]] = digest, BlockNumber(row["query_id"], row["id"])
    held = [(one, found.get((one.entry_id, one.shard))) for one in blocks]
    return [None if draw is None or one.digest not in ("", draw[0]) else draw[1] for one, draw in held]


#: Draws of record with the charges that paid for them.
_DRAWS = (
    sa.select(charges.c.entry_id, releases)
    .select_from(
        releases.join(
            charges,
            sa.and_(
                charges.c.id == releases.c.charge_id,
                # what the index of blocks begins with
                charges.c.query_id == releases.c.query_id,
                charges.c.window_start == releases.c.window_start,
            ),
        )
    )
    .where(
        charges.c.entry_id.in_(sa.bindparam("paid", expanding=True)),
        releases.c.shard.in_(sa.bindparam("shards", expanding=True)),
    )
)


def has_entry(connection: Connection, entry_id: str) -> bool:
    """Whether a charge is on record; if one that was seen is not, the ledger is another one or an older copy."""
    chosen = sa.select(sa.func.count()).select_from(charges).where(charges.c.entry_id == entry_id)
    return bool(connection.scalar(chosen))
