"""A world: which belief holds from which slot on, and what each run of a timeline sees in it."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import numpy as np

from .chains import FloatArray, MarkovChain
from .classes import AnyInitial, FiniteClass
from .crossings import Crossing, tolls
from .influence import Bound, sided_influence
from .models.belief import AnyBelief
from .places import Place, Pricer, pricer_of
from .sides import IntArray, Surroundings
from .timeline import Timeline

_WALL = 1e300
"""A density that no end lies behind."""

Shapes = tuple[tuple[int, float], ...]


@dataclass(frozen=True, eq=False)
class Segment:
    """The belief from a slot on (None: from the beginning), and its prices."""

    start: int | None
    belief: AnyBelief
    pricer: Pricer


@dataclass(frozen=True, slots=True)
class _Through:
    """Ends beyond a change, for the nodes of one run.

    Attributes:
        crossing: Number of the change, and the side: distinguishes the tables.
        table: Tables of the crossing, shape (pairs, m, n); None where only the bound is used.
        first: First index into m: that of the node at the near edge.
        mass: Density summed from the near edge to the change, the slot of the change included.
        beyond: Runs behind it, outward, up to the next change.
        reach: How far ends may lie behind it.
        toll: Least cost of an end behind it by the bound, or behind the next change.
        lag: Lag of that end, counted from the change.
        blocked: Whether no end before the change is left.
    """

    crossing: tuple[int, bool]
    table: FloatArray | None = field(compare=False)
    first: int
    mass: float
    beyond: Shapes
    reach: int
    toll: float
    lag: int
    blocked: bool

    def ends(self, nodes: int, density: float) -> tuple[FloatArray, IntArray]:
        """Cost and lag of the cheapest end beyond the change."""
        offsets = np.arange(nodes)
        base = self.mass + offsets * density
        best = np.full((1, nodes), self.toll)
        ends = np.full((1, nodes), self.lag, dtype=np.intp)
        if self.table is not None and self.reach > 0:
            masses = Surroundings.of(self.beyond, _WALL).outward(self.reach)
            rows = self.table[:, self.first : self.first + nodes, : self.reach] + masses
            at = rows.argmin(axis=2)
            cost: FloatArray = np.take_along_axis(rows, at[:, :, np.newaxis], axis=2)[:, :, 0]
            ends = np.where(cost <= best, at + 1, ends)
            best = np.minimum(best, cost)
        to_change = self.first + offsets + (0 if self.crossing[1] else 1)
        costs: FloatArray = np.asarray(base + best, dtype=np.float64)
        lags: IntArray = ends + to_change
        return costs, lags


def any_start(belief: AnyBelief) -> AnyBelief:
    """The same chains with any initial distribution: what is known from a change on."""
    if isinstance(belief, MarkovChain):
        return AnyInitial([belief.transition])
    if isinstance(belief, FiniteClass):
        return AnyInitial(chain.transition for chain in belief.chains)
    return belief


class World:
    """Beliefs one after the other, each from its slot on.

    Attributes:
        segments: In order; the first has no start.
        crossings: Tables between each segment and the next; None where the bound is used.
        shortened: Lags of the first tables, where they were ended early; else None.
    """

    def __init__(
        self,
        segments: tuple[Segment, ...],
        crossings: tuple[Crossing | None, ...] = (),
        shortened: int | None = None,
    ) -> None:
        """Take segments, the tables between them, and at which lag the first tables were ended early, if they were."""
        self.segments, self.crossings, self.shortened = segments, crossings, shortened

    @classmethod
    def of(cls, belief: AnyBelief, bound: Bound = "lemma-4.8") -> World:
        """One belief for all time; ``bound`` is the closed form under mixing bounds.

        Raises:
            ChainError: If a stationary chain is reducible.
        """
        return cls((Segment(None, belief, pricer_of(sided_influence(belief, bound))),))

    def switched(self, slot: int, belief: AnyBelief, bound: Bound = "lemma-4.8") -> World:
        """The world whose transitions out of a slot, and all later ones, follow another belief."""
        last = self.segments[-1]
        tables = sided_influence(any_start(belief), bound)
        crossing = Crossing.between((last.belief, last.pricer.tables), (belief, tables))
        segments = [*self.segments, Segment(slot, belief, pricer_of(tables))]
        crossings = (*self.crossings, crossing)
        # a pair that never decides within one belief may decide across a change
        for index, held in enumerate(crossings):
            if held is not None:
                for at in (index, index + 1):
                    part = segments[at]
                    segments[at] = Segment(part.start, part.belief, Pricer(part.pricer.tables))
        return World(tuple(segments), crossings, self.shortened)

    @property
    def changes(self) -> tuple[int, ...]:
        """The slots at which the belief changes."""
        return tuple(segment.start for segment in self.segments if segment.start is not None)

    @cached_property
    def sight(self) -> int:
        """How many slots to each side a slot's loss can depend on, but for the sum of all density beyond."""
        longest = max(segment.pricer.reach for segment in self.segments)
        return longest if len(self.segments) == 1 else len(self.segments) * longest + 1

    @cached_property
    def spared(self) -> tuple[float, float]:
        """With more density than this out of sight on the left, or right, the last lag is a cheaper end than none."""
        if len(self.segments) == 1:
            return self.segments[0].pricer.tails
        tails = [segment.pricer.tails for segment in self.segments]
        return max(max(left, 2 * right) for left, right in tails), max(right for _, right in tails)

    @property
    def closes(self) -> bool:
        """Whether every influence falls to something finite within the reach.

        Where one never does, the slot at one end of the account has no cheaper quilt than none, and loses all the
        density there is: that is the loss.
        """
        return all(map(math.isfinite, self.spared))

    @property
    def is_idle(self) -> bool:
        """Whether there is no secret pair, so that nothing is lost."""
        return all(segment.pricer.is_idle for segment in self.segments)

    @cached_property
    def cuts(self) -> frozenset[int]:
        """Slots at which a run must begin, so that each run lies in one segment and sees each change or does not."""
        found: set[int] = set()
        for before, after in zip(self.segments, self.segments[1:], strict=False):
            if after.start is not None:
                found |= {
                    after.start - before.pricer.reach,
                    after.start,
                    after.start + 1,
                    after.start + after.pricer.reach,
                }
        return frozenset(found)

    def pricer_at(self, slot: int) -> Pricer:
        """The prices at a slot."""
        return self.segments[self._index(slot)].pricer

    def _index(self, slot: int) -> int:
        return bisect_right(self.changes, slot)

    def in_sight(self, line: Timeline, index: int) -> tuple[int, int]:
        """First run that the run ``index`` sees, and the first behind the last one."""
        start, stop = line.slots[index], line.slots[index + 1]
        sight = self.sight
        low = max(0, bisect_right(line.slots, start - sight) - 1)
        return low, min(line.count, bisect_left(line.slots, stop + sight))

    def is_plain(self, line: Timeline, index: int) -> bool:
        """Whether a run sees no change."""
        return self._lines(line.slots[index], line.slots[index + 1]) == (None, None)

    def place(self, line: Timeline, index: int, *, is_open: tuple[bool, bool]) -> Place:
        """What the nodes of a run see.

        Args:
            line: The account.
            index: Which run.
            is_open: Whether the account goes on without end before its first run, and behind its last.
        """
        start, stop = line.slots[index], line.slots[index + 1]
        part = self._index(start)
        reach = self.segments[part].pricer.reach
        low, high = self.in_sight(line, index)
        totals = (
            self._left_total(line, index, low, is_open=is_open[0]),
            self._right_total(line, index, high, is_open=is_open[1]),
        )
        back, ahead = self._lines(start, stop)
        gates: list[_Through | None] = [None, None]
        if back is None:
            left = _clipped(line, max(line.slots[0], start - reach), start)[::-1]
        else:
            left = _clipped(line, back, start)[::-1]
            gates[0] = self._through(line, part - 1, start, left, backward=True)
            left = _walled(left)
        if ahead is None:
            # where more may follow out of sight, the slots in sight behind the last charge are known to be empty
            right = _clipped(line, stop, stop + reach if is_open[1] else min(line.slots[-1], stop + reach))
        else:
            right = _clipped(line, stop, ahead + 1)
            gates[1] = self._through(line, part, stop, right, backward=False)
            right = _walled(right)
        return Place(stop - start, line.shown[index], left, right, totals, (gates[0], gates[1]))

    def _lines(self, start: int, stop: int) -> tuple[int | None, int | None]:
        """The changes that a run sees to its left and to its right."""
        part = self._index(start)
        reach = self.segments[part].pricer.reach
        back = self.segments[part].start
        ahead = self.segments[part + 1].start if part + 1 < len(self.segments) else None
        if back is not None and start >= back + reach:
            back = None
        if ahead is not None and stop + reach <= ahead:
            ahead = None
        return back, ahead

    def _left_total(self, line: Timeline, index: int, low: int, *, is_open: bool) -> float:
        limit = self.spared[0]
        if is_open or ((low > 0 or line.folded > 0) and line.mass_before(low, limit) >= limit):
            return math.inf
        return float(line.mass_before(index, math.inf))

    def _right_total(self, line: Timeline, index: int, high: int, *, is_open: bool) -> float:
        limit = self.spared[1]
        if is_open or (high < line.count and line.mass_from(high, limit) >= limit):
            return math.inf
        return float(line.mass_from(index + 1, math.inf))

    def _through(self, line: Timeline, change: int, edge: int, between: Shapes, *, backward: bool) -> _Through:
        at = self.changes[change]
        crossing = self.crossings[change]
        far = self.segments[change if backward else change + 1]
        beyond, room = self._beyond(line, change, backward=backward)
        toll, lag = self._toll(line, change, backward=backward)
        table = None if crossing is None else crossing.left if backward else crossing.right
        return _Through(
            crossing=(change, backward),
            table=table,
            first=edge - at if backward else at - edge,
            mass=float(sum((Fraction(density) * length for length, density in between), Fraction(0))),
            beyond=beyond,
            reach=min(far.pricer.reach, room),
            toll=toll,
            lag=lag,
            blocked=backward and edge == at,
        )

    def _beyond(self, line: Timeline, change: int, *, backward: bool) -> tuple[Shapes, int]:
        """Runs behind a change, outward, and how far ends may lie there: to the next change."""
        at = self.changes[change]
        if backward:
            reach = self.segments[change].pricer.reach
            start = self.segments[change].start
            room = reach if start is None else min(reach, at - start)
            return _clipped(line, at - room, at)[::-1], room
        reach = self.segments[change + 1].pricer.reach
        stop = self.changes[change + 1] if change + 1 < len(self.changes) else None
        room = reach if stop is None else min(reach, stop - at)
        return _clipped(line, at + 1, at + 1 + room), room

    def _toll(self, line: Timeline, change: int, *, backward: bool) -> tuple[float, int]:
        """Cost and lag, counted from a change, of the cheapest end behind it by the bound that holds for all pairs."""
        far = self.segments[change if backward else change + 1]
        beyond, room = self._beyond(line, change, backward=backward)
        best, lag = math.inf, 1
        if room:
            costs = Surroundings.of(beyond, _WALL).outward(room) + tolls(far.pricer.tables, backward=backward)[:room]
            lag = int(np.argmin(costs)) + 1
            best = float(costs[lag - 1])
        following = change - 1 if backward else change + 1
        at = self.changes[change]
        if 0 <= following < len(self.changes) and abs(self.changes[following] - at) <= far.pricer.reach:
            # ends behind the next change matter only if the part before it is shorter than its reach
            then = self.changes[following]
            passed = _clipped(line, then, at) if backward else _clipped(line, at + 1, then + 1)
            mass = float(sum((Fraction(density) * length for length, density in passed), Fraction(0)))
            if mass < best:
                further, more = self._toll(line, following, backward=backward)
                if mass + further < best:
                    best, lag = mass + further, abs(at - then) + more
        return best, lag


def _walled(shapes: Shapes) -> Shapes:
    """Runs up to a change, the last slot split off: it may be an end, and no end lies behind it."""
    if not shapes:
        return ()
    *inner, (length, density) = shapes
    return (*inner, *(((length - 1, density),) if length > 1 else ()), (1, _WALL))


def _clipped(line: Timeline, start: int, stop: int) -> Shapes:
    """Length and density of the runs in ``[start, stop)``, in order, slots outside the account with density 0."""
    if start >= stop:
        return ()
    slots, shown = line.slots, line.shown
    found: list[tuple[int, float]] = []
    at = start
    if not slots or stop <= slots[0] or start >= slots[-1]:
        return ((stop - start, 0.0),)
    if at < slots[0]:
        found.append((slots[0] - at, 0.0))
        at = slots[0]
    index = bisect_right(slots, at) - 1
    while at < stop and index < len(shown):
        end = min(stop, slots[index + 1])
        found.append((end - at, shown[index]))
        at, index = end, index + 1
    if at < stop:
        found.append((stop - at, 0.0))
    return tuple(found)
