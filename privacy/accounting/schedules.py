"""Schedules of windows, periodic or of a calendar, finite or endless, and the density they make."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

from ...schemas.errors import ArgumentError
from ..validation import a_slot, as_list, positive, whole
from .charges import ZERO, Density


@dataclass(frozen=True, slots=True)
class Schedule:
    """Windows of equal size at equal distances, or ones that adjoin, finite or endless, in slots.

    They are ``[start + j every, start + j every + size)``, j = 0, 1, ..., that lie inside ``[start, stop)``. With
    ``ends`` each begins where the one before ends, whatever its length. The account knows charges by their density
    alone, and windows of one loss per slot that adjoin have that density in every slot: the loss is that of one window
    over all of them, and an endless schedule is level. Only where a schedule may be cut depends on the ends.

    With ``densities`` each of these windows has a loss per slot of its own, and a finite schedule the density of each
    in its slots. An endless one is priced at the largest in every slot: no density is above it, and a loss never falls
    when a charge is added, so that is an upper bound.

    Attributes:
        size: Slots of a window; 1 with ends.
        every: Slots from one window's start to the next; 1 with ends.
        start: First slot of the first window.
        stop: The slot no window may pass; None for an endless schedule.
        epsilon_dp: Loss per slot of every window; with densities the largest of them.
        ends: Where windows end that have no one length, rising; of an endless schedule those that may be cut at.
        densities: Loss per slot of each window with an end of its own; empty where all have the same.
    """

    size: int
    every: int
    start: int
    stop: int | None
    epsilon_dp: float
    ends: tuple[int, ...] = ()
    densities: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        advice = "give the schedule in whole slots"
        object.__setattr__(self, "size", whole("size", self.size, advice, least=1))
        object.__setattr__(self, "every", whole("every", self.every, advice, least=1))
        object.__setattr__(self, "start", a_slot("start", self.start, advice))
        if self.stop is not None:
            object.__setattr__(self, "stop", whole("stop", self.stop, advice, least=self.start))
        number = positive("epsilon_dp", self.epsilon_dp, "give 1 / sigma of the release")
        object.__setattr__(self, "epsilon_dp", number)
        object.__setattr__(self, "ends", tuple(as_list("ends", self.ends, "slots")))
        object.__setattr__(self, "densities", tuple(as_list("densities", self.densities, "losses per slot")))
        if self.ends:
            object.__setattr__(self, "ends", tuple(whole("ends", end, advice) for end in self.ends))
            self._check_ends()
        if self.densities:
            self._check_densities()

    def _check_ends(self) -> None:
        if (self.size, self.every) != (1, 1):
            raise ArgumentError(
                f"size is {self.size} and every {self.every}, but windows with ends of their own have 1"
            )
        if any(stop <= start for start, stop in pairwise((self.start, *self.ends))):
            raise ArgumentError(f"ends must rise from the start, slot {self.start}: give each window a slot or more")

    def _check_densities(self) -> None:
        if len(self.densities) != len(self.ends):
            raise ArgumentError(
                f"densities are {len(self.densities)}, but {len(self.ends)} windows have ends: give each one density"
            )
        found = {positive("densities", density, "give 1 / sigma of each release") for density in self.densities}
        if max(found) != self.epsilon_dp:
            raise ArgumentError(
                f"epsilon_dp is {self.epsilon_dp:g}, but must be the largest of densities, {max(found):g}: give that"
            )

    @property
    def windows(self) -> int | None:
        """How many windows there are; None for an endless schedule."""
        if self.stop is None:
            return None
        if self.ends:
            return bisect_right(self.ends, self.stop)
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
        """The slot at which the first so many windows end; the start if there is none.

        Of windows with ends of their own there are no more than these.
        """
        windows = whole("windows", windows, "give how many windows")
        if self.ends and windows > 0:
            return self.ends[min(windows, len(self.ends)) - 1]
        return self.start + (windows - 1) * self.every + self.size if windows > 0 else self.start

    @property
    def mass(self) -> float:
        """Loss per slot of all windows, summed over their slots; infinite for an endless schedule."""
        count = self.windows
        if count is None:
            return math.inf
        if self.densities:
            bounds = pairwise((self.start, *self.ends[:count]))
            return math.fsum((stop - start) * each for (start, stop), each in zip(bounds, self.densities, strict=False))
        slots = self.end_of(count) - self.start if self.ends else count * self.size
        return slots * self.epsilon_dp

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
        if horizon is not None:
            horizon = a_slot("horizon", horizon, "give the slot at which an endless schedule is cut")
        rise = Fraction(self.epsilon_dp)
        count = self.windows
        if self.ends and count is not None:
            return self._steps_of_ends(count)
        if count is None:
            if horizon is None:
                raise ArgumentError("an endless schedule has no last step: give a horizon")
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

    def _steps_of_ends(self, count: int) -> list[tuple[int, Fraction]]:
        """Rises and falls of the first windows with ends of their own; none where the density stays."""
        levels = [Fraction(each) for each in self.densities[:count] or (self.epsilon_dp,) * count]
        around = pairwise((ZERO, *levels, ZERO))
        found = zip((self.start, *self.ends), around, strict=False)
        return [(slot, after - before) for slot, (before, after) in found if after != before]


def levelled(schedules: Sequence[Schedule]) -> tuple[list[Schedule], int]:
    """Endless schedules whose common period is short enough to be followed, and that period.

    Where the exact common period would have too many steps, the schedules that are not level are replaced by level
    ones of their largest density, from their start on. The density is then nowhere lower, so a loss computed from it
    is an upper bound.
    """
    period = math.lcm(1, *(schedule.every for schedule in schedules if not schedule.is_level))
    steps = sum(2 * period // schedule.every for schedule in schedules if not schedule.is_level)
    if steps <= 4096:
        return list(schedules), period
    top = [
        schedule if schedule.is_level else replace(schedule, size=schedule.every * schedule.overlap)
        for schedule in schedules
    ]
    return top, 1


def separated(density: Density, schedules: Sequence[Schedule]) -> tuple[Density, list[Schedule], int]:
    """A density together with the finite schedules, the endless ones as ``levelled`` has them, and their period."""
    endless, period = levelled([one for one in schedules if one.stop is None])
    finite = (one for one in schedules if one.stop is not None)
    return density.with_steps(step for one in finite for step in one.steps()), endless, period


def extended(
    density: Density, schedules: Sequence[Schedule], marks: Iterable[int] = ()
) -> tuple[Density, int | None, int]:
    """A density together with schedules, the endless ones for two periods behind the slot where they repeat themselves.

    Returns:
        The density; that slot, at or behind the marks, None where no schedule is endless; and the period.
    """
    finite, endless, period = separated(density, schedules)
    if not endless:
        return finite, None, period
    begin = max([*finite.slots, *marks, *(one.start + one.size for one in endless)])
    return finite.with_steps(step for one in endless for step in one.steps(begin + 2 * period + 1)), begin, period


def largest(density: Density, schedules: Sequence[Schedule]) -> Fraction:
    """The largest density that schedules make on top of another, or one above it."""
    return max(extended(density, schedules)[0].levels, default=ZERO)
