"""Charges, the density that they sum to, and what refuses one: the budget.

The density of releases is their loss per slot, an exact step function over the slots. Every charge adds its epsilon_dp
to the slots of its window. Sums are kept as exact fractions, so that the order of charges leaves no trace, and adjacent
windows at one density become one run.

>>> Density().with_spans([(0, 10, 0.1), (10, 20, 0.1)]).runs()
(Run(start=0, stop=20, density=0.1),)

``Density`` is a value; a ``Timeline`` is the same step function kept in order as an account grows, so that a charge
touches the runs it overlaps and no others, however long the account is.

>>> line = Timeline()
>>> undo = line.add(0, 10, Fraction(1, 4))
>>> undo = line.add(10, 20, Fraction(1, 4))
>>> line.runs()
(Run(start=0, stop=20, density=0.25),)
>>> undo()
>>> line.runs()
(Run(start=0, stop=10, density=0.25),)
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
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
        cost = f"{asked!r} epsilon" if math.isfinite(asked) else "more epsilon than any bound is known of"
        super().__init__(
            f"{what} would cost {cost}, but {spent!r} of the budget {budget!r} is spent and "
            f"{self.remaining!r} remains: release less often, add noise, or raise the budget by an explicit decision"
        )

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


class Timeline:
    """Runs of equal density in order; outside them the density is 0.

    Attributes:
        slots: Where the runs begin, and at last where the last one ends; strictly rising.
        levels: Exact density of each run; one shorter than ``slots``.
        shown: The same as floats, rounded up.
        mass: Density summed over all slots.
        cuts: Slots at which a run begins even though the density stays.
    """

    def __init__(self, density: Density | None = None, *, cuts: Iterable[int] = ()) -> None:
        """Order a density, split at the cuts inside it."""
        self.cuts = set(cuts)
        steps = {} if density is None else density.steps
        inner = (cut for cut in self.cuts if steps and min(steps) < cut < max(steps))
        self.slots: list[int] = sorted({*steps, *inner})
        self.levels: list[Fraction] = list(accumulate(steps.get(slot, ZERO) for slot in self.slots))[:-1]
        self.shown: list[float] = [float_above(level) for level in self.levels]
        self.mass: Fraction = sum((self._mass(index) for index in range(self.count)), ZERO)

    @property
    def count(self) -> int:
        """Number of runs."""
        return len(self.levels)

    def runs(self) -> tuple[Run, ...]:
        """The runs as values, without those cuts where the density stays."""
        return self.density().runs()

    def density(self) -> Density:
        """The step function as a value."""
        rises: dict[int, Fraction] = {}
        before = ZERO
        for slot, level in zip(self.slots, [*self.levels, ZERO], strict=False):
            if level != before:
                rises[slot] = level - before
            before = level
        return Density(rises)

    def find(self, slot: int) -> int:
        """Index of the run that holds a slot, or of the first run behind it."""
        return max(0, bisect_right(self.slots, slot) - 1)

    def add(self, start: int, stop: int, rise: Fraction) -> Callable[[], None]:
        """Raise the density of the slots ``[start, stop)`` and return what takes that back."""
        low, high = self._around(start, stop)
        old_slots = self.slots[low:high]
        edges = {*old_slots, start, stop}
        first, last = min(edges), max(edges)
        bounds = sorted({*edges, *(cut for cut in self.cuts if first < cut < last)})
        slots: list[int] = []
        levels: list[Fraction] = []
        before = self.levels[low - 1] if low else None  # the first bound is always kept
        for slot in bounds:
            held = self._level(slot) + (rise if start <= slot < stop else 0)
            if held != before or slot in self.cuts:
                slots.append(slot)
                levels.append(held)
            before = held
        undo_runs = self._replace(low, high, slots, levels)
        added = rise * (stop - start)
        self.mass += added

        def undo() -> None:
            undo_runs()
            self.mass -= added

        return undo

    def top(self, start: int, stop: int) -> Fraction:
        """The largest density among the runs that overlap ``[start, stop)``."""
        low, high = self._around(start, stop)
        return max(self.levels[low:high], default=ZERO)

    def mass_before(self, index: int, limit: float) -> Fraction:
        """Density summed over all slots before a run, or a part of it that is no less than the limit."""
        mass = ZERO
        while index > 0 and mass < limit:
            index -= 1
            mass += self._mass(index)
        return mass

    def mass_from(self, index: int, limit: float) -> Fraction:
        """Density summed over all slots from a run on, or a part of it that is no less than the limit."""
        mass = ZERO
        while index < self.count and mass < limit:
            mass += self._mass(index)
            index += 1
        return mass

    def _mass(self, index: int) -> Fraction:
        return self.levels[index] * (self.slots[index + 1] - self.slots[index])

    def _level(self, slot: int) -> Fraction:
        index = bisect_right(self.slots, slot) - 1
        return self.levels[index] if 0 <= index < self.count else ZERO

    def _around(self, start: int, stop: int) -> tuple[int, int]:
        """The bounds from the last at or before a window's start to the first at or behind its end."""
        low = max(0, bisect_right(self.slots, start) - 1)
        return low, min(len(self.slots), bisect_left(self.slots, stop) + 1)

    def _replace(self, low: int, high: int, slots: list[int], levels: list[Fraction]) -> Callable[[], None]:
        last = high == len(self.slots)
        old = self.slots[low:high], self.levels[low:high], self.shown[low:high]
        self.slots[low:high] = slots
        # at the very end there is one bound more than levels, and the level behind it is 0
        self.levels[low:high] = levels[:-1] if last else levels
        self.shown[low:high] = [float_above(level) for level in self.levels[low : low + len(levels) - last]]

        def undo() -> None:
            self.slots[low : low + len(slots)] = old[0]
            self.levels[low : low + len(levels) - last] = old[1]
            self.shown[low : low + len(levels) - last] = old[2]

        return undo
