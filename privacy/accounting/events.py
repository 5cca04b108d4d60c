"""What an event loses at most: a secret of several slots in a row.

The one-slot case is Cao, Yoshikawa, Xiao, Xiong (TKDE 2018), extended to any windows. Two paths a and b that are both
possible over the slots s..t differ in some of them; d is the density of a slot, F and B are the forward and backward
loss. Everything published is at most e^loss times as likely under a as under b, with

    loss = sum of d over the slots where the paths differ + (F_t - d_t)[a_t, b_t] + (B_s - d_s)[a_s, b_s].

Proof. h is the likelihood of everything published, V(past, path) its mean given all slots up to t. Given the path,
what follows depends on its last state alone, so V(past, a) = sum over y of P_t(a_t, y) V(past, a, y). Changing the
path costs e^d a slot where it differs, for every y; and G(y) = V(past, b, y) obeys F_{t+1}, so the mean over row a_t
is at most e^{L(P_t rows; F_{t+1})} = e^{F_t - d_t} times the mean over row b_t. What lies before depends on the first
state alone, and past -> V(past, b) obeys the backward recursion in the same way. QED.

F - d is at most the largest of any slot, and so is B - d, of the same member where one belief holds all along. Slots
before the first and behind the last charge need not be looked at: B of one behind them all is at most B of the last one
charged, and so no more than what is counted for the n slots that begin there; F alike. At a certificate of the largest
density D no F_t - d_t is above F - D, nor any B_s - d_s above B - D, and F and B are those of one member. So no event
of m slots loses more than m D + max(F - D) + max(B - D), the largest over the members.

>>> from quiltstream.privacy.accounting.certificates import constant_loss
>>> from quiltstream.privacy.models.classes import MixingBounds
>>> bounds, density = MixingBounds(pi_min=0.2, gap=0.75), 2.0**-5
>>> round(constant_loss(bounds, density), 4), round(around(bounds, density) + 10 * density, 4)
(0.3805, 0.6618)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from ..models.belief import Belief
from ..models.certificates import on_grid
from ..models.memory import remembered
from ..validation import float_above
from .account import Account, Book
from .certificates import certificates_at
from .charges import ZERO, Density, outward
from .schedules import Schedule, largest, separated
from .streams import priced


@remembered
def around(belief: Belief, density: float) -> float:
    """What the slots before and after an event reveal of it at most, where no slot has more than a density on the grid.

    Epsilon, on top of the density of the event's own slots; infinite where no bound was found.
    """
    if density <= 0:
        return 0.0
    sides = [
        float(one.forward.max()) + float(one.backward.max()) - 2 * one.density
        for one in certificates_at(belief, density)
    ]
    return math.nextafter(max(sides, default=math.inf), math.inf)


def event_losses(book: Book, schedules: Sequence[Schedule]) -> Callable[[int], float]:
    """What an event loses by a book and schedules, as a function of its slots; the rest is computed once."""
    found, density = priced(book, tuple(schedules)), book.density
    top, most_of = largest(density, schedules), _densest(density, schedules)
    beside = [
        (math.inf if history.changes else around(history.beliefs[0], on_grid(top)), _beside(accounts))
        for history, accounts in zip(book.histories, found.accounts, strict=True)
        if not history.is_idle and top
    ]
    most = _mass(density, schedules) if beside else 0.0

    def loss_of(slots: int) -> float:
        if slots == 1:
            return found.loss
        within, of_all = float_above(most_of(slots)), slots * float_above(top)
        each = max((min(of_all + one, within + other) for one, other in beside), default=0.0)
        # the sum of all density is rounded, and must not come out below the loss of a slot
        return max(found.loss, min(outward(each), most))

    return loss_of


def longest_event(book: Book, schedules: Sequence[Schedule], epsilon: float) -> int | None:
    """How many slots an event may have to lose at most epsilon; None where any number does."""
    if all(history.is_idle for history in book.histories) or _mass(book.density, schedules) <= epsilon:
        return None
    return last_within(event_losses(book, schedules), epsilon, 0, None)


def last_within(loss_of: Callable[[int], float], limit: float, low: int, high: int | None) -> int:
    """The largest number whose loss, which grows with it, is within a limit; the lowest counts as within.

    The highest, None for one that is to be found, counts as beyond.
    """
    step = 1
    while high is None or high - low > 1:
        # by twice the step until it is beyond, and then by halves
        middle = low + step if high is None or low + step < high else (low + high) // 2
        if loss_of(middle) <= limit:
            low, step = middle, 2 * step
        else:
            high, step = middle, middle
    return low


def _mass(density: Density, schedules: Sequence[Schedule]) -> float:
    """The sum of all density, charged and scheduled: group privacy."""
    return outward(sum((schedule.mass for schedule in schedules), float(density.mass)))


def _beside(accounts: tuple[Account, ...] | None) -> float:
    """What reveals of an event what lies before and behind it at most, wherever it lies, on top of its own density."""
    if accounts is None:
        return math.inf
    sides = ([one.tails(back=back) for one in accounts if one.line.count] for back in (False, True))
    ahead, behind = (np.max(side, axis=0) if side else np.zeros(1) for side in sides)
    return outward(float(np.max(ahead + behind, initial=0.0)))


def _densest(density: Density, schedules: Sequence[Schedule]) -> Callable[[int], Fraction]:
    """The largest density summed over so many slots in a row, of a density together with schedules, or one above it.

    From a slot on the density is periodic. Slots that end there have as much, for every period more of them, as a
    period has; so no more of them are looked at than begin before it, and one period. Where these are too many, the sum
    is that of what is largest of each alone.
    """
    finite, endless, period = separated(density, schedules)
    if not endless:
        return _densest_of(finite)
    begin = max([*finite.slots, *(one.start + one.size for one in endless)])
    first = min([*finite.slots, *(one.start for one in endless)])
    most = begin - first + period
    windows = sum((begin + period + most - one.start) // one.every for one in endless if not one.is_level)
    if windows > 2**16 and (finite.count or len(endless) > 1):
        alone = [_densest_of(finite), *(_densest(Density(), [one]) for one in endless)]
        return lambda slots: sum((each(slots) for each in alone), ZERO)

    def total(slots: int) -> Density:
        stop = begin + period + slots
        return finite.with_steps(step for one in endless for step in one.steps(stop))

    whole, found = total(most), _densest_of(total(most))
    mass = whole.before(begin + period) - whole.before(begin)

    def largest_of(slots: int) -> Fraction:
        periods = max(0, -(-(slots - most) // period))
        return found(slots - periods * period) + periods * mass

    return largest_of


def _densest_of(density: Density) -> Callable[[int], Fraction]:
    """The same of a density alone, exactly.

    The sum rises and falls evenly as the slots move until the first or the last of them passes a step, so it is largest
    where one of them lies at a step.
    """
    if not density.count:
        return lambda _: ZERO
    edges = density.slots
    scale = math.lcm(*(level.denominator for level in density.levels))
    # whole numbers, as objects: they may be larger than a machine's
    levels = [int(level * scale) for level in density.levels]
    runs = (level * (stop - start) for level, (start, stop) in zip(levels, pairwise(edges), strict=True))
    places, heights = np.array(edges, dtype=np.int64), np.array([0, *levels, 0], dtype=object)
    before = np.array([0, *accumulate(runs, initial=0)], dtype=object)
    starts = np.array([edges[0], *edges], dtype=np.int64)

    def until(slots: npt.NDArray[np.int64]) -> npt.NDArray[np.object_]:
        at = np.searchsorted(places, slots, side="right")
        return before[at] + heights[at] * (slots - starts[at]).astype(object)

    def largest_of(slots: int) -> Fraction:
        # more slots than are charged have no more
        slots = min(slots, edges[-1] - edges[0])
        first = np.concatenate([places, places - slots])
        return Fraction(int((until(first + slots) - until(first)).max()), scale)

    return largest_of
