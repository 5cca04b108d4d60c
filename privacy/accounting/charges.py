"""Charges, the density that they sum to, and what refuses one: the budget.

The density of releases is their loss per slot, an exact step function over the slots. Every charge adds its epsilon_dp
to the slots of its window. Sums are kept as exact fractions, so that the order of charges leaves no trace, and adjacent
windows at one density become one run.

>>> Density().with_spans([(0, 10, 0.1), (10, 20, 0.1)]).runs()
(Run(start=0, stop=20, density=0.1),)

``Density`` is kept by its steps, a ``Line`` is the same step function as runs in order, so that a charge computes those
that it overlaps and no others.

>>> Line().with_rise(0, 10, Fraction(1, 4)).with_rise(10, 20, Fraction(1, 4)).slots
[0, 20]
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ..validation import PrivacyError, float_above

OUTWARD = 2.0**-46
"""Every loss is raised by this relative amount (1.4e-14), more than the rounding of the few sums that make it."""

Span: TypeAlias = tuple[int, int, float]
"""A charge to come: first slot, slot after the last, loss per slot."""


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

    def __init__(self, spent: float, asked: float, budget: float, what: str = "the charge") -> None:
        """Make the message from the numbers."""
        self.spent, self.asked, self.budget, self.what = spent, asked, budget, what
        self.remaining = max(0.0, budget - spent)
        advice = "release less often, add noise, or raise the budget by an explicit decision"
        super().__init__(refusal(what, spent, asked, budget, "spent", advice))

    def __reduce__(self) -> tuple[type[BudgetExceeded], tuple[float, float, float, str]]:
        return BudgetExceeded, (self.spent, self.asked, self.budget, self.what)


def outward(loss: float) -> float:
    """A loss, raised by ``OUTWARD``."""
    return loss * (1 + OUTWARD)


@dataclass(frozen=True, slots=True)
class Run:
    """Slots ``[start, stop)`` of equal density (epsilon per slot)."""

    start: int
    stop: int
    density: float

    @property
    def length(self) -> int:
        """Number of slots."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Density:
    """An exact step function that is 0 outside finitely many slots.

    Attributes:
        steps: At which slot the density rises by how much; falls are negative.
    """

    steps: Mapping[int, Fraction] = field(default_factory=dict[int, Fraction])

    def with_steps(self, steps: Iterable[tuple[int, Fraction]]) -> Density:
        """The density with more rises and falls; they must come to 0 in total."""
        added = dict(self.steps)
        for slot, rise in steps:
            total = added.get(slot, Fraction(0)) + rise
            if total:
                added[slot] = total
            else:
                added.pop(slot, None)
        return Density(added)

    def with_spans(self, spans: Iterable[tuple[int, int, float]]) -> Density:
        """The density with more windows: first slot, the slot behind the last, and density of each.

        Rises and falls of one density are counted before they are added: where a window ends another one mostly begins,
        and nothing is left of both.
        """
        counted: dict[float, dict[int, int]] = {}
        for start, stop, epsilon_dp in spans:
            found = counted.setdefault(epsilon_dp, {})
            found[start] = found.get(start, 0) + 1
            found[stop] = found.get(stop, 0) - 1
        return self.with_steps(
            (slot, number * Fraction(epsilon_dp))
            for epsilon_dp, found in counted.items()
            for slot, number in found.items()
            if number
        )

    def before(self, slot: int) -> Fraction:
        """The density of all slots before one summed."""
        level, mass, at = Fraction(0), Fraction(0), slot
        for step in sorted(step for step in self.steps if step < slot):
            mass += level * (step - at)
            level, at = level + self.steps[step], step
        return mass + level * (slot - at)

    def runs(self) -> tuple[Run, ...]:
        """Runs of equal density from the first slot charged to the last, those of density 0 between them included."""
        level, runs = Fraction(0), list[Run]()
        for start, stop in pairwise(sorted(self.steps)):
            level += self.steps[start]
            runs.append(Run(start, stop, float(level)))
        return tuple(runs)


ZERO = Fraction(0)


def densest_of(density: Density) -> Callable[[int], Fraction]:
    """The largest density summed over so many slots in a row, exactly, as a function of their number.

    The sum rises and falls evenly as the slots move until the first or the last of them passes a step, so it is largest
    where one of them lies at a step.
    """
    if not density.steps:
        return lambda _: ZERO
    edges = sorted(density.steps)
    scale = math.lcm(*(rise.denominator for rise in density.steps.values()))
    # whole numbers, as objects: they may be larger than a machine's
    levels = list(accumulate(int(density.steps[edge] * scale) for edge in edges))
    runs = (level * (stop - start) for level, (start, stop) in zip(levels, pairwise(edges), strict=False))
    places, heights = np.array(edges, dtype=np.int64), np.array([0, *levels], dtype=object)
    before = np.array([0, *accumulate(runs, initial=0)], dtype=object)
    starts = np.array([edges[0], *edges], dtype=np.int64)

    def until(slots: npt.NDArray[np.int64]) -> npt.NDArray[np.object_]:
        at = np.searchsorted(places, slots, side="right")
        return before[at] + heights[at] * (slots - starts[at]).astype(object)

    def largest(slots: int) -> Fraction:
        # all slots are no more than all of them
        slots = min(slots, edges[-1] - edges[0])
        first = np.concatenate([places, places - slots])
        return Fraction(int((until(first + slots) - until(first)).max()), scale)

    return largest


@dataclass(frozen=True, eq=False)
class Line:
    """Runs of equal density in order, a value; outside them the density is 0.

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
    def of(cls, density: Density, cuts: frozenset[int] = frozenset()) -> Line:
        """The runs of a density, split at the cuts inside it."""
        steps = density.steps
        inner = (cut for cut in cuts if steps and min(steps) < cut < max(steps))
        slots = sorted({*steps, *inner})
        return cls(slots, list(accumulate(steps.get(slot, ZERO) for slot in slots))[:-1], cuts)

    @property
    def count(self) -> int:
        """Number of runs."""
        return len(self.levels)

    @cached_property
    def mass(self) -> Fraction:
        """Density summed over all slots."""
        return sum((level * (b - a) for level, (a, b) in zip(self.levels, pairwise(self.slots), strict=True)), ZERO)

    def density(self) -> Density:
        """The step function as a value."""
        levels = zip(self.slots, pairwise([ZERO, *self.levels, ZERO]), strict=False)
        return Density({slot: after - before for slot, (before, after) in levels if after != before})

    def between(self, first: int | None, stop: int) -> Line:
        """The runs between two slots, of density 0 where there are none; from the first run on where none is given."""
        first = min([*self.slots, stop]) if first is None else first
        slots = sorted({first, *(slot for slot in self.slots if first < slot < stop), stop}) if first < stop else [stop]
        return Line(slots, [self._level(slot) for slot in slots[:-1]], self.cuts)

    def followed_by(self, other: Line, times: int) -> Line:
        """The line with another one behind it, so many times."""
        slots = [*self.slots]
        for _ in range(times):
            start = slots[-1] - other.slots[0]
            slots += [start + slot for slot in other.slots[1:]]
        return Line(slots, self.levels + other.levels * times, self.cuts)

    def with_rise(self, start: int, stop: int, rise: Fraction) -> Line:
        """The line with a higher density of the slots ``[start, stop)``."""
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
        made = Line(
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
