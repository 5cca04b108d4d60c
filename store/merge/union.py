"""Which charge and which block are of record when ledgers are united: functions of the sets alone.

Everything that any of the ledgers holds is kept. Of the charges of one window one is of record, the others are flagged
and count as well; of the blocks of one window and shard likewise. The choice depends on what there is and on nothing
else, so ledgers may be united in any order, in any grouping, and again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any, Literal

from ...schemas.digests import digest

Reason = Literal["second", "conflict"]
"""Why something is flagged: the same window was charged again elsewhere, or one id has several contents."""

MARK = "~"

Segment = tuple[int, int | None]
"""Numbers of windows, the last one included; ``None`` for all that come."""


@dataclass(frozen=True, slots=True)
class Charge:
    """A charge or refusal with all that was recorded of it, but for its place in the account.

    Attributes:
        base_id: the random id it was made under.
        domain: name of the domain.
        query: name of the query.
        window_start: first slot.
        window_stop: slot after the last.
        decision: charged or refused.
        query_digest: digest of what determines the query's numbers.
        roster: digest of the roster.
        scale: exact scale of the noise.
        epsilon_dp: loss per slot.
        loss_before: what the account in which it was made had lost before.
        loss_after: and after it.
        budget: the budget in force then.
        rule: what decided the loss.
        created_us: when it was made.
        given_model: whether its loss holds only given a model estimated from the protected series.
        draw: which of the draws of noise that were made under it, from 0; each costs as much as the first.
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
    """A charge in its place in the united ledger.

    Attributes:
        name: its id there, unique: with a digest of the content where one id has several.
        reason: why it is flagged; ``None`` for the charge of record of its window.
    """

    name: str
    reason: Reason | None


@dataclass(frozen=True, slots=True)
class Value:
    """A block that some ledger holds for a window and shard.

    Attributes:
        charge: what paid for it.
        completeness: as published.
        block: the noisy histograms.
        created_us: when it was drawn.
    """

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

    Args:
        places: the values of each window and shard.
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

    Args:
        charges: all of them, equal ones in any number.
        fits: whether a charge is what its query says.

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

    ordered = sorted(set(values), key=rank)
    record = ordered[0]
    found: list[tuple[Value, Reason | None]] = [(record, None)]
    found.extend((one, "conflict" if one.charge == record.charge else "second") for one in ordered[1:])
    return found


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
