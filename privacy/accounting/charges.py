"""Charges, the density that they sum to, and what refuses one: the budget.

The density of releases is their loss per slot, an exact step function over the slots. Every charge adds its epsilon_dp
to the slots of its window. Sums are kept as exact fractions, so that the order of charges leaves no trace, and adjacent
windows at one density become one run; a charge computes the runs that it overlaps and no others.

>>> Density().with_spans([(0, 10, 0.1), (10, 20, 0.1)]).runs()
(Run(start=0, stop=20, density=0.1),)
>>> Density().with_rise(0, 10, Fraction(1, 4)).with_rise(10, 20, Fraction(1, 4)).slots
[0, 20]
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TypeAlias

from ...schemas.errors import ExitCode
from ..validation import PrivacyError, float_above

Span: TypeAlias = tuple[int, int, float]
"""A charge to come: first slot, slot after the last, loss per slot."""

ZERO = Fraction(0)


@dataclass(frozen=True, slots=True)
class Charge:
    """One charge as it was made.

    Attributes:
        start: First slot.
        stop: Slot after the last.
        epsilon_dp: Loss per slot.
        loss_before: Loss of the ledger without it.
        loss_after: Loss of the ledger with it.
        rule: What decided the loss, one sentence.
        slot: The worst slot; None where there is no loss, and where the largest density bounds the loss of all slots.
    """

    start: int
    stop: int
    epsilon_dp: float
    loss_before: float
    loss_after: float
    rule: str
    slot: int | None


#: What rounding leaves of a budget that is used up is nothing.
_NOTHING = 1e-9


def refusal(what: str, spent: float, asked: float, budget: float, how: str, advice: str) -> str:
    """That something would cost more than a budget has left, of which so much is spent or reserved; epsilon."""
    left = budget - spent
    cost = f"{asked:.9g} epsilon" if math.isfinite(asked) else "more epsilon than any bound is known of"
    return (
        f"{what} would cost {cost}, but {spent:.9g} of the budget {budget:.9g} is {how} and "
        f"{left if left > _NOTHING * budget else 0:.9g} remains: {advice}"
    )


class BudgetExceeded(PrivacyError):  # noqa: N818 - the public name says what happened
    """A charge that the budget does not allow; the ledger is as it was.

    Attributes:
        spent: Loss before.
        asked: What the charge would have added; infinite where no bound is known.
        remaining: Budget less spent, at least 0.
        budget: The limit.
        what: What was asked for.
    """

    exit_code = ExitCode.REFUSED

    def __init__(self, spent: float, asked: float, budget: float, what: str = "the charge") -> None:
        """Make the message from the numbers."""
        self.spent, self.asked, self.budget, self.what = spent, asked, budget, what
        self.remaining = max(0.0, budget - spent)
        advice = "release less often, add noise, or raise the budget by an explicit decision"
        super().__init__(refusal(what, spent, asked, budget, "spent", advice))

    def __reduce__(self) -> tuple[type[BudgetExceeded], tuple[float, float, float, str]]:
        return BudgetExceeded, (self.spent, self.asked, self.budget, self.what)


def outward(loss: float) -> float:
    """A loss, raised by a relative 1.4e-14, more than the rounding of the few sums that make it."""
    return loss * (1 + 2.0**-46)


@dataclass(frozen=True, slots=True)
class Run:
    """Slots ``[start, stop)`` of equal density (epsilon per slot)."""

    start: int
    stop: int
    density: float


@dataclass(frozen=True, eq=False)
class Density:
    """An exact step function that is 0 outside finitely many slots, as runs of equal density in order; a value.

    Attributes:
        slots: Where the runs begin, and at last where the last one ends; strictly rising.
        levels: Exact density of each run; one shorter than ``slots``.
        cuts: Slots at which a run begins even though the density stays.
        shown: The densities as floats, rounded up.
    """

    slots: list[int] = field(default_factory=list[int])
    levels: list[Fraction] = field(default_factory=list[Fraction])
    cuts: frozenset[int] = frozenset()
    shown: list[float] = field(default_factory=list[float])

    def __post_init__(self) -> None:
        if len(self.shown) < len(self.levels):
            object.__setattr__(self, "shown", [float_above(level) for level in self.levels])

    @classmethod
    def of(cls, steps: Iterable[tuple[int, Fraction]], cuts: frozenset[int] = frozenset()) -> Density:
        """The density that rises at some slots by so much each; falls are negative, and all come to 0 in total."""
        rises: dict[int, Fraction] = {}
        for slot, rise in steps:
            rises[slot] = rises.get(slot, ZERO) + rise
        slots = sorted(slot for slot, rise in rises.items() if rise)
        if slots and cuts:
            slots = sorted({*slots, *(cut for cut in cuts if slots[0] < cut < slots[-1])})
        return cls(slots, list(accumulate(rises.get(slot, ZERO) for slot in slots))[:-1], cuts)

    def steps(self) -> list[tuple[int, Fraction]]:
        """At which slot the density rises by how much, in order."""
        return [(slot, b - a) for slot, (a, b) in zip(self.slots, pairwise([ZERO, *self.levels, ZERO]), strict=False)]

    def with_steps(self, steps: Iterable[tuple[int, Fraction]]) -> Density:
        """The density with more rises and falls."""
        return Density.of([*self.steps(), *steps], self.cuts)

    def with_spans(self, spans: Iterable[Span]) -> Density:
        """The density with more windows.

        Rises and falls of one density are counted before they are added: where a window ends another one mostly begins,
        and nothing is left of both.
        """
        counted = Counter[tuple[float, int]]()
        for start, stop, epsilon_dp in spans:
            counted[epsilon_dp, start] += 1
            counted[epsilon_dp, stop] -= 1
        return self.with_steps((slot, number * Fraction(one)) for (one, slot), number in counted.items() if number)

    def with_cuts(self, cuts: frozenset[int] = frozenset()) -> Density:
        """The density with other cuts."""
        return Density.of(self.steps(), cuts)

    @property
    def count(self) -> int:
        """Number of runs."""
        return len(self.levels)

    @cached_property
    def mass(self) -> Fraction:
        """The density summed over all slots."""
        return sum((level * (b - a) for level, (a, b) in zip(self.levels, pairwise(self.slots), strict=True)), ZERO)

    def before(self, slot: int) -> Fraction:
        """The density of all slots before one summed."""
        return self.between(None, slot).mass

    def runs(self) -> tuple[Run, ...]:
        """From the first slot charged to the last; runs of density 0 between them are included."""
        return tuple(Run(a, b, float(one)) for one, (a, b) in zip(self.levels, pairwise(self.slots), strict=False))

    def between(self, first: int | None, stop: int) -> Density:
        """The runs between two slots, of density 0 where there are none; from the first run on where none is given."""
        first = min([*self.slots, stop]) if first is None else first
        slots = sorted({first, *(slot for slot in self.slots if first < slot < stop), stop}) if first < stop else [stop]
        return Density(slots, [self._level(slot) for slot in slots[:-1]], self.cuts)

    def followed_by(self, other: Density, times: int) -> Density:
        """The density with another one behind it, so many times."""
        slots = [*self.slots]
        for _ in range(times):
            start = slots[-1] - other.slots[0]
            slots += [start + slot for slot in other.slots[1:]]
        return Density(slots, self.levels + other.levels * times, self.cuts)

    def with_rise(self, start: int, stop: int, rise: Fraction) -> Density:
        """The density that is higher in the slots ``[start, stop)``; only runs that these overlap are made anew."""
        # the bounds from the last at or before the start to the first at or behind the end
        low = max(0, bisect_right(self.slots, start) - 1)
        high = min(len(self.slots), bisect_left(self.slots, stop) + 1)
        edges = {*self.slots[low:high], start, stop}
        bounds = sorted({*edges, *(cut for cut in self.cuts if min(edges) < cut < max(edges))})
        slots: list[int] = []
        levels: list[Fraction] = []
        before = self.levels[low - 1] if low else None  # the first bound is always kept
        for slot in bounds:
            held = self._level(slot) + (rise if start <= slot < stop else 0)
            if held != before or slot in self.cuts:
                slots.append(slot)
                levels.append(held)
            before = held
        # at the very end there is one bound more than levels, and the level behind it is 0
        levels = levels[: len(levels) - (high == len(self.slots))]
        made = Density(
            self.slots[:low] + slots + self.slots[high:],
            self.levels[:low] + levels + self.levels[high:],
            self.cuts,
            self.shown[:low] + [float_above(level) for level in levels] + self.shown[high:],
        )
        made.__dict__["mass"] = self.mass + rise * (stop - start)
        return made

    def _level(self, slot: int) -> Fraction:
        index = bisect_right(self.slots, slot) - 1
        return self.levels[index] if 0 <= index < self.count else ZERO
