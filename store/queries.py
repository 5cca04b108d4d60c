"""Queries of the record: what was charged and published, what is missing, and what is newest."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ..privacy.accounting.charges import Span
from ..schemas.digests import canonical_json
from ..schemas.ledger import LedgerEntry
from ..schemas.releases import release_ids
from ..schemas.slots import SlotGrid, Window
from . import lookups, tables
from .accounts import Link, broken, flagged_rows
from .codec import Row, block_from_bytes, domain_from_row, entry_from_row, entry_reader, query_from_row
from .connection import Database
from .domain_changes import history_lost
from .integrity import (
    LINK,
    Chain,
    check_drawn,
    checked,
    checked_rows,
    checked_stream,
    damaged,
    draw_digest,
    drawn_of,
    link_of,
    named,
)
from .lookups import (
    domain_row,
    domain_rows,
    events_of,
    find_domain,
    is_closed,
    payers_of,
    queries_of,
    read_roster,
    registration_of,
)
from .registration import Sharing, sharings
from .specs import Record, Registration, layout_of
from .tables import charges, domains, flagged_charges, flagged_releases, queries, releases
from .union import MARK, base_of

__all__ = [
    "BlockName",
    "BlockNumber",
    "Newest",
    "NewestBlock",
    "block_numbers",
    "has_entry",
    "newest_block",
    "newest_of",
]


#: Blocks read in one short transaction: a slow reader blocks no writer.
PAGE = 64

Place = tuple[int, int]
"""A window's start, and a shard."""

#: Windows looked at in one short transaction.
WINDOWS = 4_096


@dataclass(frozen=True, slots=True)
class QuerySummary:
    """What one query of a domain did.

    Attributes:
        name: the query.
        digest: digest of what determines its numbers.
        epsilon: what one run of it was to cost, as set; ``None`` if the header does not say.
        epsilon_dp: loss per slot charged for a window: one number, or by the slots of a window.
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
    epsilon_dp: float | dict[int, float]
    windows: int | None
    charged: int
    refused: int
    blocks: int
    admitted_stop: int | None
    given_model: bool

    @property
    def charged_text(self) -> str:
        """What a window is charged, in words."""
        if not isinstance(self.epsilon_dp, dict):
            return f"{self.epsilon_dp:.6g} a slot"
        least, most = min(self.epsilon_dp.values()), max(self.epsilon_dp.values())
        return f"{least:.6g} to {most:.6g} a slot, by the length of a window"


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
        shares: other domains of the ledger that have some of its series; what they tell together is in no account.
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
    shares: tuple[Sharing, ...]
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
    """The rows of all queries, each with its domain's, by domain and order of registration.

    Raises:
        StoreDamaged: a row was changed or removed.
    """
    if domain is None:
        chosen = domain_rows(connection)
    else:
        found = find_domain(connection, domain)
        # one that is not found may have been removed
        chosen = [found] if found is not None else [row for row in domain_rows(connection) if row["name"] == domain]
    return [(row, query) for row in chosen for query in queries_of(connection, row)]


def registration_from_rows(connection: Connection, domain: Row, query: Row) -> Registration:
    """The registration that two rows make."""
    spec = query_from_row(query, domain["name"], read_roster(connection, query["roster_id"]))
    return registration_of(connection, domain, query, spec)


def entries(connection: Connection, domain: str | None = None) -> list[LedgerEntry]:
    """Every charge and refusal, by domain and sequence.

    Charges that a merge flagged are part of the account and stand between those of record; refusals that it flagged,
    of windows charged elsewhere, are not.
    """
    found = query_rows(connection, domain)
    of_domains = {row["id"]: row for row, _ in found}
    readers = {query["id"]: entry_reader(domain_from_row(row), query) for row, query in found}
    return [
        readers[charge["query_id"]](charge, head)
        for row in of_domains.values()
        for charge, head in chained_rows(connection, row)
    ]


@dataclass(frozen=True, slots=True)
class Charged:
    """A domain's account as its charges have it.

    Attributes:
        spans: everything charged, by the query's name, in the order of the account.
        entries: its last charges and refusals, or all of them.
        total: how many of these there are.
    """

    spans: dict[str, list[Span]]
    entries: list[LedgerEntry]
    total: int


def charged(connection: Connection, domain: str, last: int | None) -> Charged:
    """What a domain was charged, each row held against its digest and all of them against the chain.

    Args:
        connection: a transaction.
        domain: its name.
        last: how many of the last charges and refusals are given in full; ``None`` for all.

    Raises:
        UnknownNameError: there is no such domain.
        StoreDamaged: a charge was changed or removed.
    """
    row = domain_row(connection, domain)
    held = {query["id"]: query for query in queries_of(connection, row)}
    flagged = [one for one in flagged_rows(connection, row) if one["sequence"] is not None]
    if flagged or last is None:
        rows = chained_rows(connection, row)
        links = [link_of(charge) for charge, _ in rows]
        ending = rows if last is None else rows[max(0, len(rows) - last) :]
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
    links: list[Link] = list(checked_stream(connection, table, chosen, LINK))
    before = max(0, len(links) - last)
    chain, heads = Chain(domain["name"]), list[bytes]()
    chain.add(links[:before])
    for link in links[before:]:
        chain.add([link])
        heads.append(chain.head)
    if (len(links), chain.head) != (domain["last_sequence"], domain["head"]):
        raise broken(domain)
    ending = (
        checked_rows(connection, table, chosen.offset(before)) if before else checked_rows(connection, table, chosen)
    )
    return links, list(zip(ending, heads, strict=True))


def charge_rows(connection: Connection, domain: Row) -> list[Row]:
    """The rows of a domain's charges and refusals, those included that a merge flagged, by sequence.

    Raises:
        StoreDamaged: one was changed or removed.
    """
    return [row for row, _ in chained_rows(connection, domain)]


def chained_rows(connection: Connection, domain: Row) -> list[tuple[Row, bytes]]:
    """The same, each with the head of the chain up to it.

    Raises:
        StoreDamaged: one was changed or removed.
    """
    table = tables.charges
    chosen = sa.select(table).where(table.c.domain_id == domain["id"]).order_by(table.c.sequence)
    rows = checked_rows(connection, table, chosen)
    flagged = [row for row in flagged_rows(connection, domain) if row["sequence"] is not None]
    if flagged:
        rows = sorted([*rows, *flagged], key=lambda row: row["sequence"])
    chain, heads = Chain(domain["name"]), list[bytes]()
    for row in rows:
        chain.add([link_of(row)])
        heads.append(chain.head)
    if (len(rows), chain.head) != (domain["last_sequence"], domain["head"]):
        raise broken(domain)
    return list(zip(rows, heads, strict=True))


def page_of_records(connection: Connection, domain: str, query: str, after: tuple[int, int] | None) -> list[Record]:
    """The next blocks of a query by window and shard, after a place.

    Raises:
        StoreDamaged: a block or its charge was changed or removed.
    """
    found = _rows_of(connection, domain, query)
    if found is None:
        return []
    spec, query_of = domain_from_row(found[0]), found[1]
    page = page_of_blocks(connection, query_of, after)
    payers = payers_of(connection, (block["paid_by"] for block, _ in page))
    return [
        Record(
            window=Window(charge["window_start"], charge["window_stop"]),
            shard=block["shard"],
            entry=entry_from_row(payers.get(block["paid_by"], charge), spec, query_of),
            block=block_from_bytes(block["block"], block["completeness"]),
            fresh=False,
            digest=draw_digest(block),
        )
        for block, charge in page
    ]


def page_of_blocks(connection: Connection, query: Row, after: Place | None) -> list[tuple[Row, Row]]:
    """The rows of the next blocks of a query by window and shard, after a place, each with its window's charge.

    Raises:
        StoreDamaged: one of them was changed or removed.
    """
    releases = tables.releases
    chosen = (
        sa.select(releases)
        .where(releases.c.query_id == query["id"])
        .order_by(releases.c.window_start, releases.c.shard)
        .limit(PAGE)
    )
    if after is not None:
        chosen = chosen.where(sa.tuple_(releases.c.window_start, releases.c.shard) > sa.tuple_(*after))
    rows = checked_rows(connection, releases, chosen)
    last = None if len(rows) < PAGE else (rows[-1]["window_start"], rows[-1]["shard"])
    paid = charged_between(connection, query, after, last)
    check_blocks(paid, rows, after, last)
    return [(row, paid[row["window_start"]]) for row in rows]


def check_all_blocks(connection: Connection, domain: Row) -> None:
    """Read all blocks of a domain and hold them against what its charges say.

    Raises:
        StoreDamaged: a block was changed or removed.
    """
    charges, releases, queries = tables.charges, tables.releases, tables.queries
    names = ("id", "entry_id", "sequence", "window_start", "query_id", "drawn")
    paid = connection.execute(
        sa.select(*(charges.c[name] for name in names)).where(charges.c.domain_id == domain["id"])
    )
    waiting = {row["id"]: (row["window_start"], row, drawn_of(row)) for row in paid.mappings()}
    of_domain = sa.select(queries.c.id).where(queries.c.domain_id == domain["id"])
    chosen = sa.select(releases).where(releases.c.query_id.in_(of_domain))
    asked = ("id", "charge_id", "window_start", "shard", "row_digest")
    for number, charge_id, window, shard, digest in checked_stream(connection, releases, chosen, asked):
        start, _, drawn = waiting.get(charge_id, (None, None, None))
        problem = None
        if drawn is None or start != window:
            problem = "has no charge"
        elif drawn.pop(shard, None) != digest:
            problem = "is not the one that was drawn"
        if problem is not None:
            raise damaged(named(releases, {"id": number, "window_start": window, "shard": shard}), problem)
    for _, charge, drawn in waiting.values():
        for shard in drawn:
            check_drawn(charge, shard, None)


def charged_between(connection: Connection, query: Row, after: Place | None, last: Place | None) -> dict[int, Row]:
    """The charges and refusals of a query by window, from that of one place to that of another; ``None`` is no end.

    Raises:
        StoreDamaged: one of them was changed.
    """
    charges = tables.charges
    chosen = sa.select(charges).where(charges.c.query_id == query["id"])
    if after is not None:
        chosen = chosen.where(charges.c.window_start >= after[0])
    if last is not None:
        chosen = chosen.where(charges.c.window_start <= last[0])
    return {row["window_start"]: row for row in checked_rows(connection, charges, chosen)}


def check_blocks(charges: Mapping[int, Row], blocks: Iterable[Row], after: Place | None, last: Place | None) -> None:
    """Hold all blocks of a query that lie behind one place and not behind another against what their charges say.

    Raises:
        StoreDamaged: a block that was drawn is missing, or one is there that no charge paid for.
    """
    held = {(block["window_start"], block["shard"]): block for block in blocks}
    for place, block in held.items():
        charge = charges.get(place[0])
        if charge is None or block["charge_id"] != charge["id"]:
            raise damaged(named(tables.releases, block), "has no charge")
        check_drawn(charge, place[1], block)
    for start, charge in charges.items():
        for shard in drawn_of(charge):
            place = (start, shard)
            if place not in held and (after is None or place > after) and (last is None or place <= last):
                check_drawn(charge, shard, None)


def flagged_blocks(connection: Connection, domain: Row) -> int:
    """How many blocks a domain has beside those of record.

    Raises:
        StoreDamaged: some were removed.
    """
    if not domain["flagged_release_rows"]:
        return 0
    releases, queries = tables.flagged_releases, tables.queries
    of_domain = sa.select(queries.c.id).where(queries.c.domain_id == domain["id"])
    found = connection.scalar(
        sa.select(sa.func.count()).select_from(releases).where(releases.c.query_id.in_(of_domain))
    )
    if found is None or found != domain["flagged_release_rows"]:
        raise damaged(f"flagged blocks of domain {domain['name']!r}", "were removed")
    return found


def flagged_records(connection: Connection, domain: str, query: str) -> list[Record]:
    """The blocks that a merge found beside those of record, by window and shard, each with the charge that paid.

    Raises:
        StoreDamaged: one of them was changed or removed.
    """
    charges = tables.charges
    found = _rows_of(connection, domain, query)
    if found is None:
        return []
    spec, query_of = domain_from_row(found[0]), found[1]
    flagged_blocks(connection, found[0])
    releases = tables.flagged_releases
    chosen = sa.select(releases).where(releases.c.query_id == query_of["id"])
    chosen = chosen.order_by(releases.c.window_start, releases.c.shard, releases.c.id)
    rows = checked_rows(connection, releases, chosen)
    payers = {row["entry_id"]: row for row in flagged_rows(connection, found[0])}
    paid = sorted({row["entry_id"] for row in rows} - payers.keys())
    for at in range(0, len(paid), PAGE):
        chosen = sa.select(charges).where(charges.c.entry_id.in_(paid[at : at + PAGE]))
        payers |= {row["entry_id"]: row for row in checked_rows(connection, charges, chosen)}
    for row in rows:
        if row["entry_id"] not in payers:
            raise damaged(named(tables.flagged_releases, row), "has no charge")
    return [
        Record(
            window=Window(payers[row["entry_id"]]["window_start"], payers[row["entry_id"]]["window_stop"]),
            shard=row["shard"],
            entry=entry_from_row(payers[row["entry_id"]], spec, query_of),
            block=block_from_bytes(row["block"], row["completeness"]),
            fresh=False,
            digest=draw_digest(row),
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
    loss = 0.0 if latest is None else float(checked(charges, latest)["loss_after"])
    # entries of a united ledger say what was lost in the ledgers they were made in
    loss = max(loss, float(row["merged_loss"] or 0.0))
    queries = tuple(_query_summary(connection, *pair) for pair in query_rows(connection, name))
    flagged = flagged_rows(connection, row)
    entries = sum(query.charged + query.refused for query in queries)
    if entries + sum(one["sequence"] is not None for one in flagged) != row["last_sequence"]:
        raise broken(row)
    epsilons = [query.epsilon for query in queries if query.charged]
    naive = None
    if None not in epsilons:
        names: dict[int, str] = {query["id"]: query["name"] for query in queries_of(connection, row)}
        again = Counter(names[one["query_id"]] for one in flagged if one["decision"] == "charged")
        naive = sum((query.charged + again[query.name]) * (query.epsilon or 0.0) for query in queries)
    reserved = float(row["reserved_loss"])
    decided = events_of(connection, row)
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
        closed=is_closed(row),
        flagged_charges=len(flagged),
        flagged_blocks=flagged_blocks(connection, row),
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
        epsilon_dp=registration.query.losses,
        windows=None if schedule.stop is None else len(schedule),
        charged=counts.get("charged", 0),
        refused=counts.get("refused", 0),
        blocks=int(blocks or 0),
        admitted_stop=registration.admitted_stop,
        given_model=bool(query["given_model"]),
    )


def pages(registration: Registration, start: int | None) -> Iterator[list[Window]]:
    """The windows of a query, some at a time; endlessly many of an endless schedule.

    Args:
        registration: the query.
        start: leave out windows that start before this slot.
    """
    schedule = registration.query.schedule
    if start is not None and start > schedule.first:
        schedule = replace(schedule, start=start)
    page: list[Window] = []
    for window in schedule.windows():
        page.append(window)
        if len(page) == WINDOWS:
            yield page
            page = []
    if page:
        yield page


def places(connection: Connection, registration: Registration, windows: list[Window]) -> list[tuple[Window, int]]:
    """The (window, shard) of some windows that should have a block and do not, in order.

    Args:
        connection: sees one state of the ledger.
        registration: the query, as it is on record now.
        windows: consecutive windows of it, at least one.
    """
    names = (registration.domain.name, registration.query.name)
    awaited = registration.query.roster.awaits is not None
    refused, blocks = finished(connection, *names, range(windows[0].start, windows[-1].start + 1))
    held = lookups.frozen_windows(connection, *names, [window.start for window in windows]) if awaited else {}
    found: list[tuple[Window, int]] = []
    for window in windows:
        if awaited and window.start not in held:
            found.append((window, 0))  # no series was seen yet; one may be before the window is over
        elif window.start not in refused:
            shards = layout_of(registration, window).occupied
            found += [(window, shard) for shard in shards if (window.start, shard) not in blocks]
    return found


def strike(database: Database, registration: Registration, starts: Sequence[int], wanted: set[str]) -> None:
    """Take the release ids that a query has on record out of some that are looked for, the newest windows first.

    Args:
        database: the ledger.
        registration: the query.
        starts: first slots of its windows, rising.
        wanted: the ids; changed in place.
    """
    names = (registration.domain.name, registration.query.name)
    grid = SlotGrid(**registration.domain.grid)
    schedule = registration.query.schedule
    for at in range(len(starts), 0, -WINDOWS):
        if not wanted:
            return
        page = starts[max(0, at - WINDOWS) : at]
        with database.read() as connection:
            _, blocks = finished(connection, *names, range(page[0], page[-1] + 1))
        for start, shard in blocks:
            window = schedule.window_at(start)
            times = (grid.time_of(window.start), grid.time_of(window.stop))
            keys = layout_of(registration, window).keys(shard)
            wanted.difference_update(release_ids(*names, registration.digest, times, keys))


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
        digest: of its draw.
    """

    entry_id: str
    shard: int
    stop: int
    digest: str


class BlockName(NamedTuple):
    """A block that was seen.

    Attributes:
        entry_id: the charge that paid for it, also by a name from before a merge.
        shard: which part of the window.
        digest: of its draw; empty where any will do.
    """

    entry_id: str
    shard: int
    digest: str = ""


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
    """The block of a query that was put on record last; ``None`` if it has none.

    Raises:
        StoreDamaged: it is not what was written.
    """
    found = (
        connection.execute(
            sa.select(_PAYER.label("payer"), charges.c.window_stop, releases)
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
    return NewestBlock(found["payer"], found["shard"], found["window_stop"], draw_digest(checked(releases, found)))


def block_numbers(connection: Connection, blocks: Sequence[BlockName]) -> list[BlockNumber | None]:
    """Where blocks are on record; ``None`` for each that is not, or is as it was drawn another time.

    Args:
        connection: a transaction.
        blocks: what was seen.

    Raises:
        StoreDamaged: one of them is not what was written.
    """
    wanted = [one._replace(entry_id=base_of(one.entry_id)) for one in blocks]
    found = _Found()
    for begin in range(0, len(wanted), _NAMES):
        part = wanted[begin : begin + _NAMES]
        asked = {"paid": sorted({one.entry_id for one in part}), "shards": sorted({one.shard for one in part})}
        found.add(releases, connection.execute(_OWN_DRAWS, asked))
    for one in sorted(dict.fromkeys(one for one in wanted if found.number(one) is None)):
        # a merge names a second charge, or a second draw, by the name of the first with a mark
        for paid in (_is_of(charges.c.entry_id, one.entry_id), _is_of(releases.c.paid_by, one.entry_id)):
            found.add(releases, connection.execute(_DRAWS.where(paid, releases.c.shard == one.shard)))
        flagged = sa.select(flagged_releases.c.entry_id.label("payer"), flagged_releases)
        paid = _is_of(flagged_releases.c.entry_id, one.entry_id)
        found.add(flagged_releases, connection.execute(flagged.where(paid, flagged_releases.c.shard == one.shard)))
    return [found.number(one) for one in wanted]


class _Found:
    """Draws on record."""

    def __init__(self) -> None:
        self._draws: dict[tuple[str, int], dict[str, BlockNumber]] = {}

    def add(self, table: sa.Table, rows: sa.CursorResult[Any]) -> None:
        """Note draws, each by the charge that paid for it.

        Raises:
            StoreDamaged: one of them is not what was written.
        """
        for row in rows.mappings():
            draws = self._draws.setdefault((base_of(row["payer"]), row["shard"]), {})
            number = BlockNumber(row["query_id"], row["id"] if table is releases else 0)
            draws.setdefault(draw_digest(checked(table, row)), number)

    def number(self, name: BlockName) -> BlockNumber | None:
        """Where it is on record."""
        draws = self._draws.get((name.entry_id, name.shard), {})
        return draws.get(name.digest) if name.digest else next(iter(draws.values()), None)


#: Draws of record with the charges that paid for them.
_DRAWS = sa.select(_PAYER.label("payer"), releases).select_from(
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

_OWN_DRAWS = _DRAWS.where(
    charges.c.entry_id.in_(sa.bindparam("paid", expanding=True)),
    releases.c.paid_by.is_(None),
    releases.c.shard.in_(sa.bindparam("shards", expanding=True)),
)


def _is_of(column: Any, base: str) -> Any:
    """Whether a column holds a name from before a merge, or one that a merge made of it."""
    return sa.or_(column == base, column.startswith(f"{base}{MARK}"))


def has_entry(connection: Connection, entry_id: str) -> bool:
    """Whether a charge is on record, also under the name that a merge gave it."""
    base = base_of(entry_id)
    for table in (charges, flagged_charges):
        named = sa.or_(table.c.entry_id == base, table.c.entry_id.startswith(f"{base}{MARK}"))
        if connection.scalar(sa.select(sa.func.count()).select_from(table).where(named)):
            return True
    return False
