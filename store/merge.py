"""Merging ledgers that were kept apart: every charge of all of them, in a new ledger.

Everything that is frozen must be equal in two ledgers. Of what an operator may change on record the larger holds: a
budget that was raised, a schedule that was extended, and budget that was reserved.

Charges carry random ids, so the same charge in two copies of a ledger is one, and two charges of the same window under
different ids are two releases: both cost, both are kept. Of the charges of one window one is of record and the others
are flagged; of the blocks of one window and shard likewise. The choice is a function of the sets alone, so ledgers may
be merged in any order, in any grouping, and again. What no ledger alone could know is judged anew for all of them
together: the loss, what is promised, and whether the domain is closed because more was charged than its budget.

The new ledger is one SQLite file, written whole. The old ones are read in one transaction each and not changed.
"""

from __future__ import annotations

import heapq
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import astuple, dataclass, field, replace
from functools import reduce
from itertools import accumulate, combinations, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, get_args

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ..schemas.digests import digest
from ..schemas.roster import KeyKind, Roster
from ..schemas.slots import Schedule
from . import recorded_rows, tables
from .accounts import ledger_of, loss_of, promised
from .address import StoreAddress
from .codec import (
    MARK,
    Row,
    base_of,
    domain_from_row,
    domain_values,
    names_bytes,
    names_from_bytes,
    plain,
    query_values,
    scale_text,
)
from .connection import Database, borrow, give_back
from .errors import MergeConflict, ModeError, StoreError
from .exports import check_free, whole_file
from .integrity import Chain, alter, checked, checked_rows, damaged, drawn_bytes, link_of, put, with_digest
from .registration import process_difference, protect_all, registration_from_rows
from .specs import TRANSITIONS, BeliefChange, BlockKey, DomainSpec, QuerySpec, first_difference, roster_text
from .sqlite_file import BESIDE
from .store import Store

Reason = Literal["second", "conflict"]
"""Why something is flagged: the same window was charged again elsewhere, or one id has several contents."""

Segment = tuple[int, int | None]
"""Numbers of windows, the last one included; ``None`` for all that come."""


@dataclass(frozen=True, slots=True)
class Charge:
    """A charge or refusal with all that was recorded of it, but for its place in the account.

    ``draw`` tells apart the draws of noise that were made under it; each costs as much as the first.
    """

    base_id: str
    domain: str
    query: str
    window_start: int
    window_stop: int
    decision: str
    query_digest: str
    roster: str
    scale: str
    epsilon_dp: float
    loss_before: float
    loss_after: float
    budget: float
    rule: str
    created_us: int
    given_model: bool
    draw: int = 0

    @property
    def window(self) -> tuple[str, str, int]:
        """What it is a charge for: (domain, query, first slot)."""
        return self.domain, self.query, self.window_start


@dataclass(frozen=True, slots=True)
class Kept:
    """A charge in the merged ledger: its unique id there, and why it is flagged, ``None`` for one of record."""

    name: str
    reason: Reason | None


@dataclass(frozen=True, slots=True)
class Value:
    """A block that some ledger holds for a window and shard, with the charge that paid for it."""

    charge: Charge
    completeness: str
    block: bytes
    created_us: int


def drawn(places: Iterable[Iterable[Value]]) -> dict[Charge, int]:
    """The charges under which noise was drawn more than once, and how often: so many blocks of one place differ.

    A copy of a ledger that was made between a charge and its blocks draws its own under the same charge.
    """
    found: dict[Charge, int] = {}
    for values in places:
        blocks: dict[Charge, set[bytes]] = {}
        for value in values:
            blocks.setdefault(value.charge, set()).add(value.block)
        for charge, of_charge in blocks.items():
            found[charge] = max(len(of_charge), found.get(charge, 1))
    return {charge: draws for charge, draws in found.items() if draws > 1}


def with_draws(charges: Iterable[Charge], draws: Mapping[Charge, int]) -> frozenset[Charge]:
    """The charges, one for each draw that was made under them."""
    return frozenset(replace(charge, draw=number) for charge in charges for number in range(draws.get(charge, 1)))


def place_charges(charges: Iterable[Charge], fits: Callable[[Charge], bool]) -> dict[Charge, Kept]:
    """Choose the charge of record of every window and flag the others.

    A charge comes before a refusal, because what was paid for may have been published; one that is what its query says
    before one that is not; then the earliest, and then the one with the smallest id.

    Returns:
        The charges in the order of their windows, that of record first, with their place.
    """

    def rank(charge: Charge) -> tuple[Any, ...]:
        return (charge.decision != "charged", not fits(charge), charge.created_us, charge.base_id, astuple(charge))

    ordered = sorted(
        set(charges), key=lambda one: (one.domain, one.window_start, one.window_stop, one.query, rank(one))
    )
    versions: dict[str, list[Charge]] = defaultdict(list)
    first: dict[tuple[str, str, int], Charge] = {}
    for charge in ordered:
        versions[charge.base_id].append(charge)
        held = first.setdefault(charge.window, charge)
        if rank(charge) < rank(held):
            # windows of one start and other lengths: only a damaged ledger has them
            first[charge.window] = charge
    kept: dict[Charge, Kept] = {}
    for charge in ordered:
        same = versions[charge.base_id]
        plain = min(same, key=rank) if len(same) > 1 else charge
        name = charge.base_id if charge is plain else f"{charge.base_id}{MARK}{digest(list(astuple(charge)))}"
        reason: Reason | None = None
        if first[charge.window] is not charge:
            reason = "conflict" if len(same) > 1 else "second"
        kept[charge] = Kept(name, reason)
    return kept


def place_values(values: Iterable[Value], kept: Mapping[Charge, Kept]) -> list[tuple[Value, Reason | None]]:
    """Choose the block of record of a window and shard and flag the others.

    One that the charge of record paid for comes first; then the earliest.
    """

    def rank(value: Value) -> tuple[Any, ...]:
        of_record = kept[value.charge].reason is None
        return not of_record, value.created_us, kept[value.charge].name, value.completeness, value.block

    record, *others = sorted(set(values), key=rank)
    return [(record, None), *((one, "conflict" if one.charge == record.charge else "second") for one in others)]


def join_segments(segments: Iterable[Segment]) -> list[Segment]:
    """The fewest segments that hold the same windows, in order; what is promised twice is promised once.

    >>> join_segments([(5, 7), (0, 2), (3, 3), (6, None)])
    [(0, 3), (5, None)]
    """
    joined: list[Segment] = []
    for start, last in sorted(segments, key=lambda one: one[0]):
        if joined and (joined[-1][1] is None or joined[-1][1] >= start - 1):
            before = joined[-1][1]
            joined[-1] = (joined[-1][0], None if before is None or last is None else max(before, last))
        else:
            joined.append((start, last))
    return joined


Event = tuple[int, str, str | None, str, str]
"""What an operator decided: microseconds, kind, query, and both values."""


@dataclass(frozen=True, slots=True)
class HeldDomain:
    """A domain as a ledger holds it: with the budget in force, and the one before it was ever raised."""

    ledger: str
    spec: DomainSpec
    first_budget: float
    events: tuple[Event, ...]
    created_us: int


#: What a version names that was replaced before a window was charged with it.
_EMPTY = frozenset(Roster((), kind).digest for kind in get_args(KeyKind))


@dataclass(frozen=True, slots=True)
class HeldRoster:
    """A version of a query's roster; ``joined`` are the series that no earlier version has, as recorded."""

    start: int
    digest: str
    joined: bytes
    created_us: int

    def agrees(self, other: HeldRoster, *, replaced: bool) -> bool:
        """Whether another ledger has the same version; one that is replaced may have lost its roster in one of them."""
        lost = replaced and not _EMPTY.isdisjoint((self.digest, other.digest))
        return (self.start, self.joined) == (other.start, other.joined) and (lost or self.digest == other.digest)


@dataclass(frozen=True, slots=True)
class HeldQuery:
    """A query as a ledger holds it; ``promised`` are windows that budget is reserved for, by their numbers."""

    ledger: str
    domain: DomainSpec
    spec: QuerySpec
    digest: str
    rosters: tuple[HeldRoster, ...]
    promised: tuple[Segment, ...]
    created_us: int
    belief: int = 0
    successor: str | None = None


def merged_domain(first: HeldDomain, second: HeldDomain) -> HeldDomain:
    """A domain of two ledgers.

    Raises:
        MergeConflict: they differ in what is frozen, or in the budget it began with.
    """
    old = {**first.spec.frozen_fields(), "privacy.budget": first.first_budget}
    new = {**second.spec.frozen_fields(), "privacy.budget": second.first_budget}
    found = first_difference(plain(old), plain(new))
    if found is not None:
        found = first_difference(first.spec.as_set, second.spec.as_set) or found
    # one may know of changes that the other has not seen yet
    fewer, more = sorted((first.spec.changes, second.spec.changes), key=len)
    if found is None and more[: len(fewer)] != fewer:
        found = ("belief", _listed(fewer), _listed(more))
    if found is not None:
        raise MergeConflict.of(f"domain {first.spec.name!r}", found[0], found[1:], (first.ledger, second.ledger))
    changes = (*(one.agreed(other) for one, other in zip(more, fewer, strict=False)), *more[len(fewer) :])
    return replace(
        first,
        spec=replace(first.spec, budget=max(first.spec.budget, second.spec.budget), changes=changes),
        events=tuple(sorted({*first.events, *second.events}, key=_when)),
        created_us=min(first.created_us, second.created_us),
    )


def _when(event: Event) -> tuple[int, str, str, str, str]:
    at_us, kind, query, old, new = event
    return at_us, kind, query or "", old, new


def merged_query(first: HeldQuery, second: HeldQuery) -> HeldQuery:
    """A query of two ledgers, whose domain is the same.

    Raises:
        MergeConflict: they differ in what their rows depend on.
    """
    # the digest last: it differs wherever something else does, and says less
    found = first_difference(_frozen(first), _frozen(second)) or first_difference(first.digest, second.digest, "digest")
    if found is not None:
        found = first_difference(first.spec.as_set(first.domain), second.spec.as_set(second.domain)) or found
    old, new = first.spec.schedule, second.spec.schedule
    if found is None and (window := old.difference(new) or new.difference(old)) is not None:
        found = ("windows.size", "bounds", f"others from {window} on, by other zone data")
    # one may know of changes that the other has not seen yet
    fewer, more = sorted((first, second), key=lambda held: len(held.rosters))
    common = list(zip(fewer.rosters, more.rosters, strict=False))
    lowest = [*accumulate((one.start for one in reversed(more.rosters)), min)][::-1]
    replaced = [later <= one.start for one, later in zip(more.rosters, lowest[1:], strict=False)] + [False]
    if found is None and not all(
        one.agrees(other, replaced=gone) for (one, other), gone in zip(common, replaced, strict=False)
    ):
        found = ("roster", roster_text(first.spec.roster), roster_text(second.spec.roster))
    if found is not None:
        name = f"query {first.spec.name!r} of domain {first.domain.name!r}"
        raise MergeConflict.of(name, found[0], found[1:], (first.ledger, second.ledger))
    rosters = [replace(other, created_us=min(one.created_us, other.created_us)) for one, other in common]
    return replace(
        first,
        spec=replace(more.spec, schedule=_longer(first.spec.schedule, second.spec.schedule)),
        rosters=(*rosters, *more.rosters[len(common) :]),
        promised=tuple(join_segments([*first.promised, *second.promised])),
        created_us=min(first.created_us, second.created_us),
    )


def segments_of(schedule: Schedule, reserved: list[tuple[int, int | None]]) -> tuple[Segment, ...]:
    """Reservations in slots as numbers of windows."""
    found: list[Segment] = []
    for start, stop in reserved:
        number = schedule.number_of(start) - schedule.number_of(schedule.first)
        last = None if stop is None else schedule.ended_by(stop) - 1
        if last is None or last >= number:
            found.append((number, last))
    return tuple(join_segments(found))


def reservations_of(schedule: Schedule, promised: tuple[Segment, ...]) -> list[tuple[int, int | None]]:
    """The inverse of :func:`segments_of`."""
    first = schedule.number_of(schedule.first)
    return [
        (schedule.start_of(first + number), None if last is None else schedule.over_at(first + last))
        for number, last in promised
    ]


def _frozen(held: HeldQuery) -> dict[str, Any]:
    """What must be equal; what decides how rows look is part of it, for they come out as they were published."""
    spec = held.spec
    others = {
        "windows.start": held.domain.instant(spec.schedule.first),
        "release_epsilon_dp": spec.release_epsilon_dp,
        "roster.multiplicity": spec.most,
        "shards": spec.shards,
        "successor": held.successor,
        "given_model": spec.given_model,
        "header": spec.header,
    }
    return plain(spec.frozen_fields(held.domain.under(held.belief)) | others)


def _listed(changes: tuple[BeliefChange, ...]) -> str:
    """Changes of a belief in a message."""
    return ", ".join(f"{change.kind} {change.model_id[:8]}" for change in changes)


def _longer(first: Schedule, second: Schedule) -> Schedule:
    """The schedule that ends later; of two that end with the same window the one written with the later end."""

    def rank(schedule: Schedule) -> tuple[float, ...]:
        return tuple(math.inf if end is None else end for end in (schedule.end, schedule.stop))

    starts = [schedule.start for schedule in (first, second) if schedule.start is not None]
    return replace(max(first, second, key=rank), start=min(starts), anchor=min(first.anchor, second.anchor))


#: Seconds to wait for a ledger that another process has locked.
_WAIT = 60.0


@dataclass
class Source:
    """One of the ledgers, inside a reading transaction."""

    name: str  # its address, without a password
    connection: Connection  # the transaction
    mode: str | None = None  # whether it holds real rows; ``None`` if none yet
    domains: dict[str, HeldDomain] = field(default_factory=dict[str, HeldDomain])  # by name
    # by domain and name
    queries: dict[tuple[str, str], HeldQuery] = field(default_factory=dict[tuple[str, str], HeldQuery])
    rosters: dict[str, Row] = field(default_factory=dict[str, Row])  # rows of rosters by digest
    # every charge by its name there, flagged ones included
    charges: dict[str, Charge] = field(default_factory=dict[str, Charge])
    _rows: dict[tuple[str, str], Row] = field(default_factory=dict[tuple[str, str], Row], repr=False)

    def read(self) -> None:
        """Read everything but the blocks."""
        connection = self.connection
        self.mode = recorded_rows.meta_row(connection)["mode"]
        for row in recorded_rows.domain_rows(connection):
            self.domains[row["name"]] = self._domain(row)
        rows = checked_rows(connection, tables.rosters, sa.select(tables.rosters))
        self.rosters = {row["digest"]: row for row in rows}
        rosters: dict[int, str] = {row["id"]: digest for digest, row in self.rosters.items()}
        names: dict[int, tuple[str, str]] = {}
        for domain, query in recorded_rows.query_rows(connection):
            names[query["id"]] = (domain["name"], query["name"])
            self.queries[names[query["id"]]] = self._query(domain, query, rosters)
            self._rows[names[query["id"]]] = query
        for domain in recorded_rows.domain_rows(connection):
            refused = [row for row in recorded_rows.flagged_rows(connection, domain) if row["sequence"] is None]
            for row in [*(row for row, _ in recorded_rows.chained_rows(connection, domain)), *refused]:
                roster = rosters.get(row["roster_id"])
                if roster is None:
                    raise damaged(f"ledger {self.name}: a roster", "is missing")
                self.charges[row["entry_id"]] = _charge(row, names[row["query_id"]], roster)
            recorded_rows.flagged_blocks(connection, domain)

    def values(self, domain: str, query: str) -> Iterator[tuple[BlockKey, Value]]:
        """Every block of a query by window and shard, those beside the ones of record included."""
        yield from heapq.merge(self._of_record(domain, query), self._flagged(domain, query), key=lambda pair: pair[0])

    def _of_record(self, domain: str, query: str) -> Iterator[tuple[BlockKey, Value]]:
        after: BlockKey | None = None
        while True:
            page = recorded_rows.page_of_blocks(self.connection, self._rows[domain, query], after)
            for row, charge in page:
                yield self._value(domain, query, row, row["paid_by"] or charge["entry_id"])
            if len(page) < recorded_rows.PAGE:
                return
            after = (page[-1][0]["window_start"], page[-1][0]["shard"])

    def _flagged(self, domain: str, query: str) -> Iterator[tuple[BlockKey, Value]]:
        table = tables.flagged_releases
        chosen = sa.select(table).where(table.c.query_id == self._rows[domain, query]["id"])
        chosen = chosen.order_by(table.c.window_start, table.c.shard)
        for row in self.connection.execute(chosen.execution_options(yield_per=recorded_rows.PAGE)).mappings():
            yield self._value(domain, query, checked(table, row), row["entry_id"])

    def _value(self, domain: str, query: str, row: Row, payer: str) -> tuple[BlockKey, Value]:
        charge = self.charges.get(payer)
        if charge is None or charge.window != (domain, query, row["window_start"]):
            raise damaged(f"ledger {self.name}: a block on record", "has no charge")
        return (row["window_start"], row["shard"]), Value(charge, row["completeness"], row["block"], row["created_us"])

    def _domain(self, row: Row) -> HeldDomain:
        rows = recorded_rows.events_of(self.connection, row)
        events = tuple(dict.fromkeys((one["at_us"], one["kind"], one["query"], one["old"], one["new"]) for one in rows))
        spec = domain_from_row(row)
        budgets = [float(json.loads(old)) for _, kind, _, old, _ in events if kind == "budget-raised"]
        return HeldDomain(self.name, spec, min([*budgets, spec.budget]), events, row["created_us"])

    def _query(self, domain: Row, query: Row, rosters: dict[int, str]) -> HeldQuery:
        registration = registration_from_rows(self.connection, domain, query)
        reserved = recorded_rows.reservations_of(self.connection, query)
        versions = [
            HeldRoster(row["start"], rosters[row["roster_id"]], row["joined"], row["created_us"])
            for row in recorded_rows.versions_of(self.connection, query)
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
    """Merge ledgers, the same one twice counted once, in a new SQLite file, and say the address of this.

    Raises:
        MergeConflict: two of them have other content under the name of one domain or query.
        ModeError: some hold real rows, others the noise-free rows of tests.
        ExportError: the new file exists or cannot be written.
        StoreError: one of them cannot be used, or two domains have series in common over the same state process.
    """
    check_free(target, "a merge")
    with ExitStack() as stack:
        opened = [stack.enter_context(_source(address)) for address in dict.fromkeys(sources)]
        for source in opened:
            source.read()
        united = _united(opened)
        with whole_file(target, private=True) as temporary:
            address = StoreAddress(f"sqlite:///{temporary.resolve()}")
            try:
                with _database(address, create=True) as database, database.write() as connection:
                    ledger = NewLedger(connection, united)
                    for key in united.queries:
                        for place, values in _places(opened, key):
                            ledger.put_values(key, place, values)
                    ledger.finish()
            finally:
                for ending in BESIDE:
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
    """What all ledgers together hold, but for the blocks."""

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
    rosters: dict[str, Row] = {}
    for source in sources:
        for name, domain in source.domains.items():
            domains.setdefault(name, []).append(domain)
        for key, query in source.queries.items():
            queries.setdefault(key, []).append(query)
        for roster, row in source.rosters.items():
            rosters[roster] = min(rosters.get(roster, row), row, key=itemgetter("created_us"))
    # domains first: where they differ, their queries do as well, and say less
    merged = {name: reduce(merged_domain, held) for name, held in domains.items()}
    united = {key: reduce(merged_query, held) for key, held in queries.items()}
    _check_apart(merged, united)
    draws = drawn(values for key in queries for _, values in _places(sources, key))
    charges = with_draws((charge for source in sources for charge in source.charges.values()), draws)
    return United(next(iter(modes), None), merged, united, rosters, charges)


def _places(sources: Sequence[Source], key: tuple[str, str]) -> Iterator[tuple[BlockKey, list[Value]]]:
    """The windows and shards of a query, with every block that some ledger has for them."""
    streams = [source.values(*key) for source in sources if key in source.queries]
    merged = heapq.merge(*streams, key=lambda pair: pair[0])
    for place, pairs in groupby(merged, key=lambda pair: pair[0]):
        yield place, [value for _, value in pairs]


def _check_apart(domains: dict[str, HeldDomain], queries: dict[tuple[str, str], HeldQuery]) -> None:
    """See that no two domains of the new ledger have series in common over the same state process."""
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


#: Columns of a charge that are on record afterwards as they were.
_CONTENT = (
    *("window_start", "window_stop", "decision", "query_digest", "scale", "epsilon_dp"),
    *("loss_before", "loss_after", "budget", "rule", "created_us", "given_model"),
)


def _charge(row: Row, names: tuple[str, str], roster: str) -> Charge:
    held: dict[str, Any] = {name: row[name] for name in _CONTENT}
    return Charge(base_id=base_of(row["entry_id"]), domain=names[0], query=names[1], roster=roster, **held)


#: Rows written by one statement.
_BATCH = 256


class NewLedger:
    """A ledger that is filled inside one transaction: at once but for the blocks, and then with these."""

    def __init__(self, connection: Connection, united: United) -> None:
        self._connection = connection
        self._domains: dict[str, tuple[int, HeldDomain]] = {}
        self._queries: dict[tuple[str, str], tuple[int, HeldQuery]] = {}
        self._rosters: dict[str, int] = {}
        self._kept: dict[Charge, Kept] = {}
        self._records: dict[tuple[str, str, int], tuple[int, Charge]] = {}
        self._waiting: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        self._drawn: dict[int, tuple[str, dict[int, bytes]]] = {}
        self._flagged: Counter[str] = Counter()
        self._begin(united)
        self._put_charges(united.charges)

    def _begin(self, united: United) -> None:
        """Write domains, what was decided about them, and queries with their rosters and reservations."""
        held = recorded_rows.meta_row(self._connection)
        alter(self._connection, tables.meta, held["id"], mode=united.mode, domain_rows=len(united.domains))
        for number, (roster, row) in enumerate(sorted(united.rosters.items()), start=1):
            self._rosters[roster] = number
            put(self._connection, tables.rosters, {**row, "id": number})
        for number, name in enumerate(sorted(united.domains), start=1):
            self._put_domain(number, united.domains[name])
        # in the order of their registration
        ordered = sorted(united.queries.items(), key=lambda pair: (pair[1].created_us, pair[0]))
        for number, (key, query) in enumerate(ordered, start=1):
            self._put_query(number, key, query)

    def _put_charges(self, charges: Iterable[Charge]) -> None:
        """Write all charges, numbered in the order of their windows."""
        self._kept = place_charges(charges, self._fits)
        sequences, beside = dict.fromkeys(self._domains, 0), Counter[str]()
        chains = {name: Chain(name) for name in self._domains}
        of_record, flagged = list[dict[str, Any]](), list[dict[str, Any]]()
        for number, (charge, kept) in enumerate(self._kept.items(), start=1):
            sequence = None
            if kept.reason is None or charge.decision == "charged":
                sequence = sequences[charge.domain] = sequences[charge.domain] + 1
            values = {name: getattr(charge, name) for name in _CONTENT} | {
                "id": number,
                "entry_id": kept.name,
                "domain_id": self._domains[charge.domain][0],
                "sequence": sequence,
                "query_id": self._queries[charge.domain, charge.query][0],
                "roster_id": self._rosters[charge.roster],
            }
            if kept.reason is None:
                self._check_roster(charge)
                self._records[charge.window] = (number, charge)
                of_record.append(made := with_digest(tables.charges, values))
            else:
                beside[charge.domain] += 1
                flagged.append(made := with_digest(tables.flagged_charges, values | {"reason": kept.reason}))
            if sequence is not None:
                chains[charge.domain].add([link_of(made)])
        for table, rows in ((tables.charges, of_record), (tables.flagged_charges, flagged)):
            for part in recorded_rows.batched(rows, _BATCH):
                self._connection.execute(table.insert(), part)
        for name, sequence in sequences.items():
            values: dict[str, Any] = {
                "last_sequence": sequence,
                "head": chains[name].head,
                "flagged_charge_rows": beside[name],
            }
            alter(self._connection, tables.domains, self._domains[name][0], **values)

    def put_values(self, key: tuple[str, str], place: BlockKey, values: Sequence[Value]) -> None:
        """Write all blocks of one window and shard."""
        start, shard = place
        record_id, record = self._records[(*key, start)]
        for value, reason in place_values(values, self._kept):
            row = {
                "query_id": self._queries[key][0],
                "window_start": start,
                "shard": shard,
                "completeness": value.completeness,
                "block": value.block,
                "created_us": value.created_us,
            }
            payer = self._kept[value.charge].name
            if reason is None:
                paid_by = None if value.charge == record else payer
                made = self._put(tables.releases, row | {"charge_id": record_id, "paid_by": paid_by})
                self._drawn.setdefault(record_id, (self._kept[record].name, {}))[1][shard] = made["row_digest"]
            else:
                self._flagged[key[0]] += 1
                self._put(tables.flagged_releases, row | {"entry_id": payer, "reason": reason})

    def finish(self) -> None:
        """Write what waits, and price every domain: what was lost, and what is lost when all promises are kept."""
        for table in (tables.releases, tables.flagged_releases):
            self._flush(table)
        drawn = [{"charge": number, "drawn_there": drawn_bytes(*named)} for number, named in self._drawn.items()]
        changed = tables.charges.update().where(tables.charges.c.id == sa.bindparam("charge"))
        for part in recorded_rows.batched(drawn, _BATCH):
            self._connection.execute(changed.values(drawn=sa.bindparam("drawn_there")), part)
        for number, held in self._domains.values():
            name = held.spec.name
            # a series of one ledger may be what a belief in the other rests on
            row = protect_all(self._connection, recorded_rows.domain_row(self._connection, name))
            lost = ledger_of(held.spec).replay(
                (charge.window_start, charge.window_stop, charge.epsilon_dp)
                for charge in self._kept
                if charge.domain == name and charge.decision == "charged"
            )
            alter(
                self._connection,
                tables.domains,
                number,
                merged_loss=lost,
                merged_sequence=row["last_sequence"],
                reserved_loss=loss_of(held.spec, promised(self._connection, row)),
                flagged_release_rows=self._flagged[name],
            )

    def _put_domain(self, number: int, held: HeldDomain) -> None:
        self._domains[held.spec.name] = (number, held)
        values = {"id": number, "created_us": held.created_us, "event_rows": len(held.events)}
        put(self._connection, tables.domains, domain_values(held.spec) | values)
        for at_us, kind, query, old, new in held.events:
            values = {"domain_id": number, "kind": kind, "query": query, "old": old, "new": new, "at_us": at_us}
            put(self._connection, tables.domain_events, values)

    def _put_query(self, number: int, key: tuple[str, str], held: HeldQuery) -> None:
        self._queries[key] = (number, held)
        versions = held.rosters if len(held.rosters) > 1 else ()
        reserved = reservations_of(held.spec.schedule, held.promised)
        values = query_values(held.spec) | {
            "id": number,
            "domain_id": self._domains[key[0]][0],
            "digest": held.digest,
            "roster_id": self._rosters[held.spec.roster.digest],
            "created_us": held.created_us,
            "belief": held.belief,
            "successor": held.successor,
            "reservation_rows": len(reserved),
            "version_rows": len(versions),
        }
        put(self._connection, tables.queries, values)
        alter(self._connection, tables.domains, self._domains[key[0]][0], more="query_rows")
        for one in versions:
            values = {"start": one.start, "joined": one.joined, "created_us": one.created_us}
            values |= {"query_id": number, "roster_id": self._rosters[one.digest]}
            put(self._connection, tables.roster_versions, values)
        for start, stop in reserved:
            values = {"query_id": number, "start": start, "stop": stop, "created_us": held.created_us}
            put(self._connection, tables.reservations, values)

    def _fits(self, charge: Charge) -> bool:
        """Whether a charge is what its query says."""
        held = self._queries[charge.domain, charge.query][1]
        window = held.spec.schedule.window_at(charge.window_start)
        spec = held.spec.of_length(len(window))
        found = (charge.query_digest, charge.scale, charge.epsilon_dp, charge.roster, charge.window_stop)
        return found == (held.digest, scale_text(spec.scale), spec.epsilon_dp, self._roster_of(charge), window.stop)

    def _roster_of(self, charge: Charge) -> str | None:
        """Digest of the roster that a charge's window has as far as its query knows."""
        held = self._queries[charge.domain, charge.query][1]
        return next((one.digest for one in reversed(held.rosters) if one.start <= charge.window_start), None)

    def _check_roster(self, charge: Charge) -> None:
        if charge.roster != self._roster_of(charge):
            raise StoreError(
                f"query {charge.query!r} of domain {charge.domain!r}: window [{charge.window_start}, "
                f"{charge.window_stop}) was charged in one ledger with a roster that another had changed before it; "
                f"its rows would not be those of the query: keep the ledgers apart; what they tell together of a "
                f"series that is in both is in no account"
            )

    def _put(self, table: sa.Table, values: dict[str, Any]) -> dict[str, Any]:
        row = with_digest(table, values)
        waiting = self._waiting[table.name]
        waiting.append(row)
        if len(waiting) >= _BATCH:
            self._flush(table)
        return row

    def _flush(self, table: sa.Table) -> None:
        waiting = self._waiting.pop(table.name, [])
        if waiting:
            self._connection.execute(table.insert(), waiting)
