"""Periodic schedules of windows, finite or endless, and the density they make."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from ..validation import positive, whole

_MAX_PERIOD = 4096
"""Most density steps in one common period of several endless schedules that are followed exactly."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Windows of equal size at equal distances, finite or endless, in slots.

    They are ``[start + j every, start + j every + size)``, j = 0, 1, ..., that lie inside ``[start, stop)``.

    Attributes:
        size: Slots of a window.
        every: Slots from one window's start to the next.
        start: First slot of the first window.
        stop: The slot no window may pass; None for an endless schedule.
        epsilon_dp: Loss per slot of every window.

    Raises:
        TypeError: If a field is not a number of its kind.
        ValueError: If a field is out of range.
    """

    size: int
    every: int
    start: int
    stop: int | None
    epsilon_dp: float

    def __post_init__(self) -> None:
        advice = "give the schedule in whole slots"
        object.__setattr__(self, "size", whole("size", self.size, advice, least=1))
        object.__setattr__(self, "every", whole("every", self.every, advice, least=1))
        object.__setattr__(self, "start", whole("start", self.start, advice))
        if self.stop is not None:
            object.__setattr__(self, "stop", whole("stop", self.stop, advice, least=self.start))
        number = positive("epsilon_dp", self.epsilon_dp, "give 1 / sigma of the release")
        object.__setattr__(self, "epsilon_dp", number)

    @property
    def windows(self) -> int | None:
        """How many windows there are; None for an endless schedule."""
        if self.stop is None:
            return None
        return max(0, (self.stop - self.start - self.size) // self.every + 1)

    @property
    def overlap(self) -> int:
        """Most windows that share a slot, while the schedule runs."""
        return -(-self.size // self.every)

    @property
    def is_level(self) -> bool:
        """Whether the density is constant once the schedule runs.

        It is where windows adjoin, or overlap a whole number of times.
        """
        return self.size % self.every == 0

    def end_of(self, windows: int) -> int:
        """The slot at which the first so many windows end; the start if there is none."""
        return self.start + (windows - 1) * self.every + self.size if windows > 0 else self.start

    def first(self, windows: int) -> Schedule:
        """The schedule of the first so many windows."""
        return replace(self, stop=self.end_of(windows))

    def steps(self, horizon: int | None = None) -> list[tuple[int, Fraction]]:
        """Rises and falls of the density.

        Args:
            horizon: Where to cut an endless schedule: every window is clipped to it.

        Raises:
            ValueError: If the schedule is endless and no horizon is given.
        """
        rise = Fraction(self.epsilon_dp)
        count = self.windows
        if count is None:
            if horizon is None:
                raise ValueError("an endless schedule has no last step: give a horizon")
            count = max(0, -(-(horizon - self.start) // self.every))
        # one window's fall is another's rise where windows adjoin, so only the ramps at both ends are left
        ramp = min(self.overlap, count) if self.is_level else count
        skipped = count if self.is_level else ramp
        rises = [(self.start + j * self.every, rise) for j in range(ramp)]
        falls = [(self.start + (skipped - ramp + j) * self.every + self.size, -rise) for j in range(ramp)]
        steps = rises + falls
        return (
            steps if self.stop is not None or horizon is None else [(min(slot, horizon), step) for slot, step in steps]
        )


def levelled(schedules: Sequence[Schedule]) -> tuple[list[Schedule], int]:
    """Endless schedules whose common period is short enough to be followed, and that period.

    Where the exact common period would have too many steps, the schedules that are not level are replaced by level
    ones of their largest density, from their start on. The density is then nowhere lower, so a loss computed from it
    is an upper bound.
    """
    period = math.lcm(1, *(schedule.every for schedule in schedules if not schedule.is_level))
    steps = sum(2 * period // schedule.every for schedule in schedules if not schedule.is_level)
    if steps <= _MAX_PERIOD:
        return list(schedules), period
    top = [
        schedule if schedule.is_level else replace(schedule, size=schedule.every * schedule.overlap)
        for schedule in schedules
    ]
    return top, 1
