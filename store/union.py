"""What is of record when ledgers are merged: functions of the sets alone.

Everything that is frozen must be equal in two ledgers. Of what an operator may change on record the larger holds: a
budget that was raised, a schedule that was extended, and budget that was reserved.

Everything that any of the ledgers holds is kept. Of the charges of one window one is of record, the others are flagged
and count as well; of the blocks of one window and shard likewise. The choice depends on what there is and on nothing
else, so ledgers may be merged in any order, in any grouping, and again.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any, Literal

from ..schemas.digests import digest
from ..schemas.slots import Schedule
from .codec import plain
from .errors import MergeConflict
from .lookups import end_of
from .specs import BeliefChange, DomainSpec, QuerySpec, first_difference, roster_text

Reason = Literal["second", "conflict"]
"""Why something is flagged: the same window was charged again elsewhere, or one id has several contents."""

MARK = "~"

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


def base_of(name: str) -> str:
    """The random id that a name in a ledger comes from."""
    return name.split(MARK, 1)[0]


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
    events: frozenset[Event]
    created_us: int


@dataclass(frozen=True, slots=True)
class HeldRoster:
    """A version of a query's roster; ``joined`` are the series that no earlier version has, as recorded."""

    start: int
    digest: str
    joined: bytes
    created_us: int

    @property
    def content(self) -> tuple[int, str, bytes]:
        """All but the time."""
        return self.start, self.digest, self.joined


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
    # one may know of changes that the other has not seen yet
    fewer, more = sorted((first.spec.changes, second.spec.changes), key=len)
    if found is None and more[: len(fewer)] != fewer:
        found = ("belief", _listed(fewer), _listed(more))
    if found is not None:
        raise MergeConflict(f"domain {first.spec.name!r}", found[0], found[1:], (first.ledger, second.ledger))
    changes = (*(one.agreed(other) for one, other in zip(more, fewer, strict=False)), *more[len(fewer) :])
    return replace(
        first,
        spec=replace(first.spec, budget=max(first.spec.budget, second.spec.budget), changes=changes),
        events=first.events | second.events,
        created_us=min(first.created_us, second.created_us),
    )


def merged_query(first: HeldQuery, second: HeldQuery) -> HeldQuery:
    """A query of two ledgers, whose domain is the same.

    Raises:
        MergeConflict: they differ in what their rows depend on.
    """
    # the digest last: it differs wherever something else does, and says less
    found = first_difference(_frozen(first), _frozen(second)) or first_difference(first.digest, second.digest, "digest")
    old, new = first.spec.schedule, second.spec.schedule
    if found is None and (window := old.difference(new) or new.difference(old)) is not None:
        found = ("windows.size", "bounds", f"others from {window} on, by other zone data")
    # one may know of changes that the other has not seen yet
    fewer, more = sorted((first, second), key=lambda held: len(held.rosters))
    common = list(zip(fewer.rosters, more.rosters, strict=False))
    if found is None and any(one.content != other.content for one, other in common):
        found = ("roster", roster_text(first.spec.roster), roster_text(second.spec.roster))
    if found is not None:
        name = f"query {first.spec.name!r} of domain {first.domain.name!r}"
        raise MergeConflict(name, found[0], found[1:], (first.ledger, second.ledger))
    rosters = [replace(one, created_us=min(one.created_us, other.created_us)) for one, other in common]
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
        return tuple(math.inf if end is None else end for end in (end_of(schedule), schedule.stop))

    starts = [schedule.start for schedule in (first, second) if schedule.start is not None]
    return replace(max(first, second, key=rank), start=min(starts), anchor=min(first.anchor, second.anchor))
