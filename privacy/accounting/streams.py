"""What schedules without an end cost: sweeps that begin in a state which repeats itself.

From some slot on the density of endless schedules is periodic. Sweep one period back from nothing charged ahead, again
and again, until the state changes little, and raise it: if one more period takes the raised state to a state that is
nowhere above it, it bounds what lies ahead of every period, for every horizon, by induction. The same against the clock
bounds what lies behind a period, once what was there before lies below it. So the slots up to such a period, and those
of one period between two such states, are all slots there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import TypeAlias

import numpy as np

from ..checks import float_above
from ..density import Density
from ..schedules import Schedule, levelled
from .sweep import Lane, State, Sweeper, World, Worst

#: Slots that stand for a run without end.
_FAR = 2**40

#: Periods that are swept at most until the state repeats.
_MOST_PERIODS = 512

_STILL = 2.0**-22
_RAISES = (2.0**-17, 2.0**-12, 2.0**-8, 2.0**-4)
_FLOOR = 2.0**-30

#: Times that a raised state is brought in line with what a period makes of it.
_MOST_TRIES = 4

Line: TypeAlias = tuple[list[int], list[float]]
"""Where runs begin, and at last where the last one ends; and their densities."""


@dataclass(frozen=True, eq=False)
class Behind:
    """What lies behind the first slot that is kept.

    Attributes:
        slot: That slot.
        states: What its sweep from behind begins with, by member.
    """

    slot: int
    states: Sequence[State]


def endless_loss(
    world: World, density: Density, schedules: Sequence[Schedule], behind: Behind | None = None
) -> tuple[Worst, Fraction]:
    """The loss of a density together with schedules, the endless ones included, and the largest density there is.

    Several endless schedules whose common period is too long are priced at their largest density, an upper bound.
    """
    finite = density.with_steps(step for one in schedules if one.stop is not None for step in one.steps())
    endless, period = levelled([one for one in schedules if one.stop is None])
    first, states = (None, None) if behind is None else (behind.slot, behind.states)
    if not endless:
        return _laned(world, _runs(finite, first, None, world.cuts), (states, None)), _largest(finite)
    marks = [*finite.steps, *(cut + 1 for cut in world.cuts), *(one.start + one.size for one in endless)]
    begin = max([*marks, *(() if first is None else (first + 1,))])
    total = finite.with_steps(step for one in endless for step in one.steps(begin + 2 * period + 1))
    before = _runs(total, first, begin, world.cuts)
    repeated = _runs(total, begin, begin + period, frozenset())
    if len(repeated[1]) == 1:
        repeated = ([begin, begin + _FAR], repeated[1])
    return _periodic(world, before, repeated, states), _largest(total)


def settled(
    world: World, density: Density, behind: Behind | None, horizon: int, *, ceiling: float, limit: float
) -> tuple[int, float]:
    """The slots behind a horizon that lose little, whatever comes.

    Args:
        world: What is believed.
        density: Of all slots that are kept.
        behind: What lies behind the first of them.
        horizon: Where all that comes begins, or behind it.
        ceiling: Above F of every slot from the horizon on.
        limit: How much is little.

    Returns:
        The first slot that loses more under the ceiling, or the horizon, and the largest loss before it.
    """
    first, states = (None, None) if behind is None else (behind.slot, behind.states)
    slots, densities = _runs(density, first, horizon, world.cuts)
    if not densities or world.is_idle:
        return horizon, 0.0
    part = world.parts(horizon - 1)[0]
    ahead = [State.within(sweeper.way, ceiling) for sweeper in world.sweepers(part, ahead=True)]
    lane = Lane(world, ends=(states, ahead))
    lane.update(slots, densities, np.inf, slots[0], slots[-1])
    slot, most = lane.within(limit)
    # right behind a change the sweep from behind begins anew
    return (slot - 1 if slot - 1 in world.changes else slot), most


def passed(world: World, density: Density, behind: Behind | None, slot: int) -> Behind:
    """What lies behind a slot."""
    first, states = (None, None) if behind is None else (behind.slot, behind.states)
    slots, densities = _runs(density, first, slot, world.cuts)
    if densities and not world.is_idle:
        lane = Lane(world, ends=(states, None))
        lane.update(slots, densities, np.inf, slots[0], slots[-1])
        return Behind(slot, lane.leaving(ahead=False))
    return Behind(slot, world.empty(world.parts(slot)[1], ahead=False) if states is None else states)


def largest(density: Density, schedules: Sequence[Schedule]) -> Fraction:
    """The largest density that schedules make on top of another, or one above it."""
    finite = density.with_steps(step for one in schedules if one.stop is not None for step in one.steps())
    endless, period = levelled([one for one in schedules if one.stop is None])
    if endless:
        begin = max([*finite.steps, *(one.start + one.size for one in endless)])
        finite = finite.with_steps(step for one in endless for step in one.steps(begin + 2 * period + 1))
    return _largest(finite)


def _largest(density: Density) -> Fraction:
    return max(accumulate(rise for _, rise in sorted(density.steps.items())), default=Fraction(0))


def constant_stream(world: World, density: float) -> Worst:
    """The loss of a stream that has a density in every slot, without beginning or end."""
    if world.is_idle:
        return Worst()
    low, high = min(world.cuts, default=0), max(world.cuts, default=0)
    cuts = sorted({low - _FAR, *world.cuts, high + _FAR})
    shape = ([0, _FAR], [density])
    behind = _repeating(world, 0, shape, ahead=False)
    ahead = _repeating(world, len(world.changes), shape, ahead=True)
    return _laned(world, (cuts, [density] * (len(cuts) - 1)), (behind, ahead))


def _laned(
    world: World,
    line: Line,
    ends: tuple[Sequence[State] | None, Sequence[State] | None],
    view: tuple[int | None, int | None] = (None, None),
) -> Worst:
    slots, densities = line
    if world.is_idle or not densities:
        return Worst()
    total = np.inf
    if ends == (None, None):
        lengths = (stop - start for start, stop in pairwise(slots))
        total = float_above(sum((Fraction(d) * n for d, n in zip(densities, lengths, strict=True)), Fraction(0)))
    lane = Lane(world, ends=ends, view=view)
    lane.update(slots, densities, total, slots[0], slots[-1])
    return lane.worst


def _periodic(world: World, before: Line, repeated: Line, states: Sequence[State] | None) -> Worst:
    """The worst slot of a line that goes on with what is repeated.

    Args:
        world: What is believed.
        before: What comes before the periods.
        repeated: One period.
        states: What lies behind the first run; None for nothing.
    """
    if world.is_idle:
        return Worst()
    last = len(world.changes)
    ahead = _repeating(world, last, repeated, ahead=True)
    behind = _repeating(world, last, repeated, ahead=False)
    worst = _laned(world, repeated, (behind, ahead))
    # periods come to the line until what lies behind one is nowhere above what repeats itself
    count = 0
    while count <= _MOST_PERIODS and before[1]:
        line = _appended(before, repeated, count)
        lane = Lane(world, ends=(states, None))
        lane.update(*line, np.inf, line[0][0], line[0][-1])
        if world.parts(line[0][-2])[1] == last and _below(lane.leaving(ahead=False), behind):
            return max(worst, _laned(world, line, (states, ahead)), key=lambda one: one.loss)
        count = 2 * count + 1
    return Worst(np.inf) if before[1] else worst


def _appended(line: Line, repeated: Line, times: int) -> Line:
    slots, densities = [*line[0]], [*line[1]]
    for _ in range(times):
        start = slots[-1] - repeated[0][0]
        slots += [start + slot for slot in repeated[0][1:]]
        densities += repeated[1]
    return slots, densities


def _repeating(world: World, part: int, repeated: Line, *, ahead: bool) -> list[State]:
    """A state of each member of a segment that a period takes to one nowhere above it."""
    slots, densities = repeated
    lengths = [stop - start for start, stop in pairwise(slots)]
    order = list(zip(lengths, densities, strict=True))[:: -1 if ahead else 1]
    found: list[State] = []
    for sweeper in world.sweepers(part, ahead=ahead):
        state = State.empty(sweeper.way)

        def swept(state: State, sweeper: Sweeper = sweeper) -> State:
            for length, density in order:
                state = sweeper.tails(state, density, length).leaving
            return state

        # the blocks reach back over several periods
        least = sweeper.way.blocks.longest // (slots[-1] - slots[0]) + 1
        for turn in range(max(_MOST_PERIODS, least)):
            before, state = state, swept(state)
            if not np.isfinite(state.matrix).all():
                break
            change = float(np.abs(state.matrix - before.matrix).max())
            if turn >= least and change <= _STILL * float(state.matrix.max()):
                break
        found.append(_proved(state, swept, slots[-1] - slots[0]))
    return found


def _proved(state: State, swept: Callable[[State], State], period: int) -> State:
    """A state a little above one, that a period takes to one nowhere above it; infinite where none is found."""
    for excess in _RAISES:
        raised = replace(state, matrix=_raised(state.matrix, excess), largest=_raised(state.largest, excess))
        for _ in range(_MOST_TRIES):
            after = swept(raised)
            if _below([after], [raised]):
                return raised
            # the largest entries within the period follow from its last matrix
            largest = np.maximum(raised.largest, after.largest)
            for at in range(len(largest) - period - 1, -1, -1):
                # what lies a period further back counts as no less than what is nearer
                largest[at] = max(largest[at], largest[at + period])
            raised = replace(raised, largest=largest)
    return replace(state, matrix=_raised(state.matrix, np.inf), largest=_raised(state.largest, np.inf))


def _raised(values: np.ndarray, excess: float) -> np.ndarray:
    made = values * (1 + excess) + _FLOOR if np.isfinite(excess) else np.full(values.shape, np.inf)
    if made.ndim == 2:  # noqa: PLR2004 - a matrix
        np.fill_diagonal(made, 0.0)
    return made


def _below(states: Sequence[State], others: Sequence[State]) -> bool:
    return all(
        bool((one.matrix <= other.matrix).all() and (one.largest <= other.largest).all())
        and bool((one.densities <= other.densities).all())
        for one, other in zip(states, others, strict=True)
    )


def _runs(density: Density, first: int | None, stop: int | None, cuts: frozenset[int]) -> Line:
    """The runs of a density between two slots, split at cuts."""
    steps = density.steps
    if not steps and (first is None or stop is None):
        return [], []
    low = min(steps) if first is None else first
    high = max(steps) if stop is None else stop
    if low >= high:
        return [], []
    slots = sorted({low, high, *(slot for slot in (*steps, *cuts) if low < slot < high)})
    ordered = sorted(steps)
    levels = list(accumulate((steps[slot] for slot in ordered), initial=Fraction(0)))
    places = np.searchsorted(np.array(ordered, dtype=np.int64), np.array(slots[:-1], dtype=np.int64), side="right")
    return slots, [float_above(levels[place]) for place in places]
