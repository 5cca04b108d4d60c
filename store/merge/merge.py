"""Uniting ledgers that were kept apart: every charge of all of them, in a new ledger.

Charges carry random ids, so the same charge in two copies of a ledger is one, and two charges of the same window under
different ids are two releases: both cost, both are kept, and one is flagged (see :mod:`.union`). Whatever one ledger
alone could not know is judged again for all of them together: the loss, what is promised, and whether the domain is
closed because more was charged than its budget.

The new ledger is one SQLite file, written whole. The old ones are read in one transaction each and not changed.
"""

from __future__ import annotations

import heapq
import json
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import reduce
from itertools import combinations, groupby
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from .. import tables
from ..accounts import flagged_rows
from ..address import StoreAddress
from ..codec import Row, domain_from_row, names_bytes, names_from_bytes
from ..connection import Database, borrow, give_back
from ..errors import ExportError, ModeError, StoreError
from ..exports import whole_file
from ..integrity import checked, checked_rows, damaged
from ..lookups import domain_rows, events_of, meta_row, reservations_of, versions_of
from ..queries import PAGE, charge_rows, flagged_blocks, page_of_blocks, query_rows, registration_from_rows
from ..shared_series import process_difference
from ..specs import TRANSITIONS
from ..store import Store
from .compatibility import Event, HeldDomain, HeldQuery, HeldRoster, matched_domain, matched_query, segments_of
from .union import Charge, Value, base_of, drawn, with_draws
from .writer import NewLedger

#: Seconds to wait for a ledger that another process has locked.
_WAIT = 60.0

Place = tuple[int, int]
"""A window's start, and a shard."""


@dataclass
class Source:
    """One of the ledgers, inside a reading transaction.

    Attributes:
        name: its address, without a password.
        connection: the transaction.
        mode: whether it holds real rows; ``None`` if none yet.
        domains: by name.
        queries: by domain and name.
        rosters: rows of rosters by digest.
        charges: every charge by its name there, flagged ones included.
    """

    name: str
    connection: Connection
    mode: str | None = None
    domains: dict[str, HeldDomain] = field(default_factory=dict[str, HeldDomain])
    queries: dict[tuple[str, str], HeldQuery] = field(default_factory=dict[tuple[str, str], HeldQuery])
    rosters: dict[str, Row] = field(default_factory=dict[str, Row])
    charges: dict[str, Charge] = field(default_factory=dict[str, Charge])
    _rows: dict[tuple[str, str], Row] = field(default_factory=dict[tuple[str, str], Row], repr=False)

    def read(self) -> None:
        """Read everything but the blocks."""
        connection = self.connection
        self.mode = meta_row(connection)["mode"]
        for row in domain_rows(connection):
            self.domains[row["name"]] = self._domain(row)
        rows = checked_rows(connection, tables.rosters, sa.select(tables.rosters))
        self.rosters = {row["digest"]: row for row in rows}
        rosters: dict[int, str] = {row["id"]: digest for digest, row in self.rosters.items()}
        names: dict[int, tuple[str, str]] = {}
        for domain, query in query_rows(connection):
            names[query["id"]] = (domain["name"], query["name"])
            self.queries[names[query["id"]]] = self._query(domain, query, rosters)
            self._rows[names[query["id"]]] = query
        for domain in domain_rows(connection):
            refused = [row for row in flagged_rows(connection, domain) if row["sequence"] is None]
            for row in [*charge_rows(connection, domain), *refused]:
                roster = rosters.get(row["roster_id"])
                if roster is None:
                    raise damaged(f"ledger {self.name}: a roster", "is missing")
                self.charges[row["entry_id"]] = _charge(row, names[row["query_id"]], roster)
            flagged_blocks(connection, domain)

    def values(self, domain: str, query: str) -> Iterator[tuple[Place, Value]]:
        """Every block of a query by window and shard, those beside the ones of record included.

        Raises:
            StoreDamaged: a block was changed or removed.
        """
        yield from heapq.merge(self._of_record(domain, query), self._flagged(domain, query), key=lambda pair: pair[0])

    def _of_record(self, domain: str, query: str) -> Iterator[tuple[Place, Value]]:
        after: Place | None = None
        while True:
            page = page_of_blocks(self.connection, self._rows[domain, query], after)
            for row, charge in page:
                yield self._value(domain, query, row, row["paid_by"] or charge["entry_id"])
            if len(page) < PAGE:
                return
            after = (page[-1][0]["window_start"], page[-1][0]["shard"])

    def _flagged(self, domain: str, query: str) -> Iterator[tuple[Place, Value]]:
        table = tables.flagged_releases
        chosen = sa.select(table).where(table.c.query_id == self._rows[domain, query]["id"])
        chosen = chosen.order_by(table.c.window_start, table.c.shard)
        for row in self.connection.execute(chosen.execution_options(yield_per=PAGE)).mappings():
            yield self._value(domain, query, checked(table, row), row["entry_id"])

    def _value(self, domain: str, query: str, row: Row, payer: str) -> tuple[Place, Value]:
        charge = self.charges.get(payer)
        if charge is None or charge.window != (domain, query, row["window_start"]):
            raise damaged(f"ledger {self.name}: a block on record", "has no charge")
        return (row["window_start"], row["shard"]), Value(charge, row["completeness"], row["block"], row["created_us"])

    def _domain(self, row: Row) -> HeldDomain:
        events = frozenset[Event](
            (event["at_us"], event["kind"], event["query"], event["old"], event["new"])
            for event in events_of(self.connection, row)
        )
        spec = domain_from_row(row)
        budgets = [float(json.loads(old)) for _, kind, _, old, _ in events if kind == "budget-raised"]
        return HeldDomain(self.name, spec, min([*budgets, spec.budget]), events, row["created_us"])

    def _query(self, domain: Row, query: Row, rosters: dict[int, str]) -> HeldQuery:
        registration = registration_from_rows(self.connection, domain, query)
        reserved = reservations_of(self.connection, query)
        versions = [
            HeldRoster(row["start"], rosters[row["roster_id"]], row["joined"], row["created_us"])
            for row in versions_of(self.connection, query)
        ]
        if not versions:
            roster = registration.query.roster
            start, joined = registration.query.schedule.first, names_bytes(roster.series)
            versions = [HeldRoster(start, roster.digest, joined, query["created_us"])]
        return HeldQuery(
            ledger=self.name,
            domain=registration.domain,
            spec=registration.query,
            digest=registration.digest,
            rosters=tuple(versions),
            promised=segments_of(registration.query.schedule, [(row["start"], row["stop"]) for row in reserved]),
            created_us=query["created_us"],
            belief=registration.belief,
            successor=registration.successor,
        )


def merge(sources: Sequence[StoreAddress], target: Path) -> StoreAddress:
    """Unite ledgers in a new SQLite file.

    Args:
        sources: where they are; the same one twice counts once.
        target: the file to write; it must not exist.

    Returns:
        The address of the new ledger.

    Raises:
        MergeConflict: two of them have other content under the name of one domain or query.
        ModeError: some hold real rows, others the noise-free rows of tests.
        ExportError: the new file exists or cannot be written.
        StoreError: one of them cannot be used, or two domains have series in common over the same state process.
    """
    if os.path.lexists(target):
        raise ExportError(f"{target}: it exists, and a merge never replaces a file; choose another name")
    with ExitStack() as stack:
        opened = [stack.enter_context(_source(address)) for address in dict.fromkeys(sources)]
        for source in opened:
            source.read()
        united = _united(opened)
        with whole_file(target, private=True) as temporary:
            try:
                with _database(StoreAddress(f"sqlite:///{temporary.resolve()}"), create=True) as database:
                    _write(database, united, opened)
            finally:
                for ending in ("-wal", "-shm", "-queue"):
                    with suppress(OSError):
                        Path(f"{temporary}{ending}").unlink()
    return StoreAddress(f"sqlite:///{target.resolve()}")


@contextmanager
def _database(address: StoreAddress, *, create: bool) -> Generator[Database]:
    database = borrow(address, _WAIT)
    try:
        database.open(create=create, over=create)  # over the empty file of that name, which no other process has
        yield database
    finally:
        give_back(database)


@contextmanager
def _source(address: StoreAddress) -> Generator[Source]:
    with Store(address, wait=_WAIT) as store:
        store.check()
    with _database(address, create=False) as database, database.read() as connection:
        yield Source(str(address), connection)


@dataclass(frozen=True)
class United:
    """What all ledgers together hold, but for the blocks.

    Attributes:
        mode: whether the rows are real.
        domains: by name.
        queries: by domain and name.
        rosters: their rows, by digest.
        charges: all of them.
    """

    mode: str | None
    domains: dict[str, HeldDomain]
    queries: dict[tuple[str, str], HeldQuery]
    rosters: dict[str, Row]
    charges: frozenset[Charge]


def _united(sources: Sequence[Source]) -> United:
    modes = {source.mode for source in sources} - {None}
    if len(modes) > 1:
        raise ModeError("ledgers: some hold the noise-free rows of tests and some real rows; they are never united")
    domains: dict[str, list[HeldDomain]] = {}
    queries: dict[tuple[str, str], list[HeldQuery]] = {}
    for source in sources:
        for name, domain in source.domains.items():
            domains.setdefault(name, []).append(domain)
        for key, query in source.queries.items():
            queries.setdefault(key, []).append(query)
    # domains first: where they differ, their queries do as well, and say less
    matched = {name: reduce(matched_domain, held) for name, held in domains.items()}
    united = {key: reduce(matched_query, held) for key, held in queries.items()}
    _check_apart(matched, united)
    draws = drawn(values for key in queries for _, values in _places(sources, key))
    return United(
        mode=next(iter(modes), None),
        domains=matched,
        queries=united,
        rosters=_rosters(sources),
        charges=with_draws((charge for source in sources for charge in source.charges.values()), draws),
    )


def _places(sources: Sequence[Source], key: tuple[str, str]) -> Iterator[tuple[Place, list[Value]]]:
    """The windows and shards of a query, with every block that some ledger has for them."""
    streams = [source.values(*key) for source in sources if key in source.queries]
    merged = heapq.merge(*streams, key=lambda pair: pair[0])
    for place, pairs in groupby(merged, key=lambda pair: pair[0]):
        yield place, [value for _, value in pairs]


def _check_apart(domains: dict[str, HeldDomain], queries: dict[tuple[str, str], HeldQuery]) -> None:
    """See that no two domains of the new ledger have series in common over the same state process.

    Raises:
        StoreError: two have; each has an account of its own, and no account has what both cost a series.
    """
    series: dict[str, set[str]] = {name: set() for name in domains}
    for (name, _), held in queries.items():
        if held.spec.mechanism != TRANSITIONS:  # of those the keys are states
            series[name].update(*(names_from_bytes(roster.joined) for roster in held.rosters))
    for one, other in combinations(sorted(domains), 2):
        shared = len(series[one] & series[other])
        if shared and process_difference(domains[one].spec, domains[other].spec) is None:
            raise StoreError(
                f"domains {one!r} and {other!r}: they have {shared:,} series in common, with the same slots, states "
                "and readings, so they are one domain under two names, and no ledger has two budgets for the same "
                "series; keep the ledgers apart; what the two tell together is in no account"
            )


def _rosters(sources: Sequence[Source]) -> dict[str, Row]:
    found: dict[str, Row] = {}
    for source in sources:
        for digest, row in source.rosters.items():
            if digest not in found or row["created_us"] < found[digest]["created_us"]:
                found[digest] = row
    return found


def _write(database: Database, united: United, sources: Sequence[Source]) -> None:
    with database.write() as connection:
        ledger = NewLedger(connection)
        ledger.begin(united.mode, united.domains, united.rosters, united.queries)
        ledger.put_charges(united.charges)
        for key in united.queries:
            for place, values in _places(sources, key):
                ledger.put_values(key, place, values)
        ledger.finish()


def _charge(row: Row, names: tuple[str, str], roster: str) -> Charge:
    held: dict[str, Any] = {
        name: row[name]
        for name in (
            *("window_start", "window_stop", "decision", "query_digest", "scale", "epsilon_dp"),
            *("loss_before", "loss_after", "budget", "rule", "created_us", "given_model"),
        )
    }
    return Charge(base_id=base_of(row["entry_id"]), domain=names[0], query=names[1], roster=roster, **held)
