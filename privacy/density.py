"""The density of what was released: loss per slot, an exact step function over the slots.

Every charge adds its epsilon_dp to the slots of its window. Sums are kept as exact fractions, so that the order of
charges leaves no trace, and adjacent windows at one density become one run.

>>> Density().plus(0, 10, 0.1).plus(10, 20, 0.1).runs()
(Run(start=0, stop=20, density=0.1),)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise


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


def steps_of(start: int, stop: int, epsilon_dp: float) -> tuple[tuple[int, Fraction], tuple[int, Fraction]]:
    """The rise and the fall of one window."""
    return (start, Fraction(epsilon_dp)), (stop, -Fraction(epsilon_dp))


@dataclass(frozen=True, slots=True)
class Density:
    """An exact step function that is 0 outside finitely many slots.

    Attributes:
        steps: At which slot the density rises by how much; falls are negative.
    """

    steps: Mapping[int, Fraction] = field(default_factory=dict[int, Fraction])

    def plus(self, start: int, stop: int, epsilon_dp: float) -> Density:
        """The density with one window more."""
        return self.with_steps(steps_of(start, stop, epsilon_dp))

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

    def split(self, slot: int) -> tuple[Density, Fraction]:
        """The density of the slots from one on, and the density of all slots before it summed."""
        level, before, at = Fraction(0), Fraction(0), slot
        for step in sorted(step for step in self.steps if step < slot):
            before += level * (step - at)
            level, at = level + self.steps[step], step
        kept = {step: rise for step, rise in self.steps.items() if step >= slot}
        before += level * (slot - at)
        rise = kept.pop(slot, Fraction(0)) + level
        return Density({**({slot: rise} if rise else {}), **kept}), before

    def runs(self, cuts: Iterable[int] = ()) -> tuple[Run, ...]:
        """Runs of equal density from the first slot charged to the last, those of density 0 between them included.

        Args:
            cuts: Slots at which a run is to be split even though the density stays.
        """
        if not self.steps:
            return ()
        first, last = min(self.steps), max(self.steps)
        slots = sorted({*self.steps, *(cut for cut in cuts if first < cut < last)})
        level, runs = Fraction(0), list[Run]()
        for start, stop in pairwise(slots):
            level += self.steps.get(start, 0)
            runs.append(Run(start, stop, float(level)))
        return tuple(runs)
