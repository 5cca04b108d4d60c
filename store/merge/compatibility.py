"""What two ledgers must have in common before they are united, and what becomes of the rest.

Everything that is frozen must be equal. Of what an operator may change on record the larger holds: a budget that was
raised, a schedule that was extended, and budget that was reserved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from ...schemas.roster import Roster
from ...schemas.slots import Schedule, SlotGrid, format_instant
from ..codec import plain
from ..errors import MergeConflict
from ..lookups import end_of
from ..specs import BeliefChange, DomainSpec, QuerySpec, first_difference
from .union import Segment, join_segments

Event = tuple[int, str, str | None, str, str]
"""What an operator decided: microseconds, kind, query, and both values."""


@dataclass(frozen=True, slots=True)
class HeldDomain:
    """A domain as a ledger holds it.

    Attributes:
        ledger: the ledger, without a password.
        spec: what is on record, with the budget in force.
        first_budget: the budget before it was ever raised.
        events: what an operator decided.
        created_us: when it was registered.
    """

    ledger: str
    spec: DomainSpec
    first_budget: float
    events: frozenset[Event]
    created_us: int


@dataclass(frozen=True, slots=True)
class HeldRoster:
    """A version of a query's roster.

    Attributes:
        start: first slot of the first window it is for.
        digest: digest of the roster.
        joined: the series that no earlier version has, as recorded.
        created_us: when it was put on record.
    """

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
    """A query as a ledger holds it.

    Attributes:
        ledger: the ledger, without a password.
        domain: the domain of record.
        spec: what is on record.
        digest: digest of what determines its numbers.
        rosters: versions of its roster, in their order; one where it was never changed.
        promised: windows that budget is reserved for, by their numbers in the schedule.
        created_us: when it was registered.
        belief: for which of the domain's beliefs its noise was calibrated.
        successor: the query that goes on where this one was ended.
    """

    ledger: str
    domain: DomainSpec
    spec: QuerySpec
    digest: str
    rosters: tuple[HeldRoster, ...]
    promised: tuple[Segment, ...]
    created_us: int
    belief: int = 0
    successor: str | None = None


def matched_domain(first: HeldDomain, second: HeldDomain) -> HeldDomain:
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


def matched_query(first: HeldQuery, second: HeldQuery) -> HeldQuery:
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
    if found is None and [one.content for one in more.rosters[: len(fewer.rosters)]] != [
        one.content for one in fewer.rosters
    ]:
        found = ("roster", _counted(first.spec.roster), _counted(second.spec.roster))
    if found is not None:
        name = f"query {first.spec.name!r} of domain {first.domain.name!r}"
        raise MergeConflict(name, found[0], found[1:], (first.ledger, second.ledger))
    common = [
        replace(one, created_us=min(one.created_us, other.created_us))
        for one, other in zip(fewer.rosters, more.rosters, strict=False)
    ]
    return replace(
        first,
        spec=replace(more.spec, schedule=_longer(first.spec.schedule, second.spec.schedule)),
        rosters=(*common, *more.rosters[len(common) :]),
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
    grid = SlotGrid(**held.domain.grid)
    return plain(
        {
            **spec.frozen_fields(held.domain.under(held.belief)),
            "windows.start": format_instant(grid.time_of(spec.schedule.first)),
            "release_epsilon_dp": spec.release_epsilon_dp,
            "roster.multiplicity": spec.most,
            "shards": spec.shards,
            "successor": held.successor,
            "given_model": spec.given_model,
            "header": spec.header,
        }
    )


def _listed(changes: tuple[BeliefChange, ...]) -> str:
    """Changes of a belief in a message."""
    return ", ".join(f"{change.kind} {change.model_id[:8]}" for change in changes)


def _counted(roster: Roster) -> str:
    """A roster in a message: names of series are data."""
    return f"{len(roster.series)} series in {len(roster.keys)} {roster.kind} histograms, digest {roster.digest}"


def _longer(first: Schedule, second: Schedule) -> Schedule:
    """The schedule that ends later; of two that end with the same window the one written with the later end."""

    def rank(schedule: Schedule) -> tuple[float, float]:
        ends = (end_of(schedule), schedule.stop)
        return (
            math.inf if ends[0] is None else ends[0],
            math.inf if ends[1] is None else ends[1],
        )

    longer = max(first, second, key=rank)
    starts = [schedule.start for schedule in (first, second) if schedule.start is not None]
    anchor = min(first.anchor, second.anchor)
    return replace(longer, start=min(starts), anchor=anchor)
