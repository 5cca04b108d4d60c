"""The account by Markov quilts: the largest loss of any slot over all quilts.

loss = max over slots i and secret pairs of min over quilts [ sum of d inside the quilt + influence of the quilt ].

Proof: given the state of the quilt, only the slots inside it can differ between the two secrets, so by group privacy
the density ratio of each release is at most e to the power of its epsilon_dp times the slots of it inside, independent
noise multiplies, and the quilt itself tells at most its influence. Take the best quilt for each pair, then the worst
pair. The theorems of the sources are special cases or weaker ([SWC17] Theorem 4.4, [SC17] Theorems 3.1, 3.3, 3.6 and
3.7, [BHGKM] Theorem 6.2).

Which slots are looked at. None before the first charged slot or behind the last: all outputs are then functions of the
slots on one side, so their law given X_i is a mixture of their laws given the neighbour on that side, and a mixture of
numbers has no larger ratio than the numbers. In a run of equal density the slots further than the reach from both
edges see either an end within the run, the same for all, or none: the sum of both sides is concave and piecewise linear
there, so its maximum is at a kink. All other slots are looked at, those of density 0 between windows included.

The worst slot of one run of equal density, given all that its slots can see.

A ``Place`` is a run with its surroundings. Equal places have equal losses wherever they lie, so what was computed for
one week of a schedule is remembered for every other week, by every account of the same belief in the process.

What is computed, and what is not:

1. A secret pair whose influence is at no lag of neither side above another pair's never decides; such pairs are dropped
   once for a belief.
2. No slot loses more than an endless stream of the largest density in sight (``ceilings``, one number per pair), so
   runs and pairs are taken by falling ceiling, and the rest is left out once the worst so far has reached theirs.
3. The largest influence over the pairs that are left, lag by lag, makes one imaginary pair that loses at least as much
   as each of them at every slot. It costs what one pair costs, and only the slots where it loses more than the worst so
   far are priced by pairs.

One side of a slot: the cheapest end of a quilt, or none, over slots of piecewise constant density.

A node lies ``offset`` slots inside its own run, counted from the run's near edge; beyond the edge follow other runs,
outward. The end of the quilt at lag a costs the density of the a - 1 slots between, plus the influence at lag a; no
end costs all the density on this side.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..models.belief import Belief
from ..models.markov_chain import ChainError, FloatArray
from ..quilts.influence import Bound, Quilt, SidedInfluence, sided_influence
from .charges import Span, outward
from .density import Density, Timeline
from .schedules import Schedule, levelled

IntArray = npt.NDArray[np.intp]


class Neighbour(NamedTuple):
    """A run beyond the near edge."""

    distance: int
    """Slots between the edge and this run."""
    length: int
    density: float
    mass: float
    """Sum of the density over the slots between the edge and this run."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What lies on one side of a run.

    Attributes:
        neighbours: Runs outward from the near edge, without a hole, up to the reach of the tables or to the end.
        total: Sum of the density over everything on this side of the edge; infinite where it has no end, or where it
            never matters.
    """

    neighbours: tuple[Neighbour, ...]
    total: float

    @classmethod
    def of(cls, runs: Iterable[tuple[int, float]], total: float) -> Surroundings:
        """Place runs, given by length and density, outward from the edge.

        Masses are sums of non-negative numbers, compensated for their rounding, so they are right to 2 ulp.
        """
        neighbours: list[Neighbour] = []
        distance, mass, lost = 0, 0.0, 0.0
        for length, density in runs:
            neighbours.append(Neighbour(distance, length, density, mass + lost))
            distance += length
            added = density * length
            larger, smaller = (mass, added) if mass >= added else (added, mass)
            mass = larger + smaller
            lost += (larger - mass) + smaller
        return cls(tuple(neighbours), total)

    def outward(self, lags: int) -> FloatArray:
        """Sum of the density over the first j slots beyond the edge, for j = 0..lags-1."""
        slots = np.arange(lags)
        sums = np.full(lags, self.total)
        sums[0] = 0.0
        # beyond the last neighbour there is nothing more, so the total is exact there
        shown = 1
        parts = [(run, min(lags, run.distance + run.length + 1)) for run in self.neighbours if run.distance + 1 < lags]
        if parts:
            repeats = np.diff([shown, *(stop for _, stop in parts)])
            inner = slots[shown : parts[-1][1]]
            distance, density, mass = (
                np.repeat([value(run) for run, _ in parts], repeats)
                for value in (attrgetter("distance"), attrgetter("density"), attrgetter("mass"))
            )
            sums[inner] = mass + (inner - distance) * density
        return sums


def _masses(density: float, offset: int, outward: FloatArray) -> FloatArray:
    """Sum of the density strictly between a node and the slot at lag a, for a = 1..lags."""
    inside: FloatArray = np.arange(min(offset, len(outward)), dtype=np.float64) * density
    return np.concatenate([inside, offset * density + outward[: len(outward) - len(inside)]])


def _each_node(table: FloatArray, density: float, around: Surroundings, offsets: Iterable[int]) -> FloatArray:
    outward = around.outward(table.shape[1])
    best = [(table + _masses(density, int(offset), outward)).min(axis=1) for offset in offsets]
    return np.stack(best, axis=1)


def _window_argmin(costs: FloatArray, width: int) -> IntArray:
    """Column of the least cost in [j, j + width), clipped to the array, for each column j.

    By doubling; shape as ``costs``.
    """
    where = np.broadcast_to(np.arange(costs.shape[1]), costs.shape).copy()
    best = costs.copy()
    span = 1
    while span < min(width, costs.shape[1]):
        step = min(span, width - span)
        closer = best[:, step:] < best[:, :-step]
        # the right-hand sides are copies of the old values
        where[:, :-step] = np.where(closer, where[:, step:], where[:, :-step])
        best[:, :-step] = np.where(closer, best[:, step:], best[:, :-step])
        span += step
    return where


def _by_runs(table: FloatArray, density: float, around: Surroundings, nodes: int) -> FloatArray:
    pairs, lags = table.shape
    best = np.full((pairs, nodes), np.inf)
    inside = np.arange(nodes - 1) * density + table[:, : nodes - 1]
    best[:, 1:] = np.minimum.accumulate(inside, axis=1)
    own = np.arange(nodes) * density
    for run in around.neighbours:
        reached = min(nodes, lags - run.distance)
        if reached <= 0 or run.mass >= float(best.max()):
            break
        seen = table[:, run.distance : run.distance + reached - 1 + run.length]
        costs = np.arange(seen.shape[1]) * run.density + seen
        ends = _window_argmin(costs, run.length)[:, :reached]
        between = (ends - np.arange(reached)) * run.density
        # summed from small parts: the minimised cost is off by a multiple of the density, which would cancel badly
        cost = own[:reached] + run.mass + between + np.take_along_axis(seen, ends, axis=1)
        best[:, :reached] = np.minimum(best[:, :reached], cost)
    return best


def far(table: FloatArray, density: float) -> FloatArray:
    """Cheapest end of a quilt within a run that is longer than the reach, shape (pairs,)."""
    if not table.shape[1]:
        return np.full(table.shape[0], np.inf)
    return (np.arange(table.shape[1]) * density + table).min(axis=1)


class SideCosts:
    """Cost of one side of the nodes of a run, by offset from the near edge; rows are pairs.

    Args:
        table: Influence on this side, shape (pairs, lags).
        density: Density of the run.
        around: What lies beyond the near edge.
        nodes: How many nodes, at most the lags, see beyond the near edge.
    """

    def __init__(self, table: FloatArray, density: float, around: Surroundings, nodes: int) -> None:
        self._table, self._density, self._around, self._nodes = table, density, around, nodes

    @cached_property
    def _far(self) -> FloatArray:
        return far(self._table, self._density)

    @cached_property
    def _near(self) -> FloatArray:
        return _by_runs(self._table, self._density, self._around, self._nodes)

    def _ends(self, offsets: IntArray) -> FloatArray:
        # few nodes among many runs are priced one by one, many nodes among few runs run by run
        if len(offsets) <= 4 * (1 + len(self._around.neighbours)):
            return _each_node(self._table, self._density, self._around, offsets)
        return self._near[:, offsets]

    def beyond(self, offsets: npt.NDArray[Any]) -> FloatArray:
        """Costs at offsets beyond the reach, one per pair."""
        return np.minimum(self._far, self._around.total + offsets * self._density)

    def at(self, offsets: IntArray) -> FloatArray:
        """Costs at offsets that are the same for all pairs, shape (pairs, offsets)."""
        none = self._around.total + offsets * self._density
        inside = offsets < self._nodes
        if inside.all():
            costs = np.minimum(self._ends(offsets), none)
        else:
            costs = np.minimum(self._far[:, np.newaxis], none)
            if inside.any():
                costs[:, inside] = np.minimum(self._ends(offsets[inside]), none[inside])
        return costs

    def kink(self, low: int, high: int) -> FloatArray:
        """Per pair the offset where "no end" stops being the cheaper choice, clipped to [low, high]."""
        with np.errstate(divide="ignore", invalid="ignore"):
            offsets = (self._far - self._around.total) / self._density
        return np.clip(np.nan_to_num(offsets, nan=low), low, high)


def cheapest_end(row: FloatArray, density: float, offset: int, around: Surroundings) -> tuple[int | None, float]:
    """Lag and cost of the cheapest end for one pair and node; no lag where no end is as cheap."""
    whole_side = offset * density + around.total
    if not len(row):
        return None, whole_side
    costs = _masses(density, offset, around.outward(len(row))) + row
    first = int(np.argmin(costs))
    return (first + 1, float(costs[first])) if costs[first] < whole_side else (None, whole_side)


_REMEMBERED = 2**20
"""So many runs are kept in remembered places, some 100 MB."""
_CEILINGS = 1024
#: More than the rounding of a slot that is priced by itself and with others.
_MARGIN = 2.0**-40
_SAMPLES = 24
_GROWTH = 4


@dataclass(frozen=True, slots=True)
class Place:
    """A run with all that its nodes can see.

    Attributes:
        length: Slots of the run.
        density: Its density.
        left: Length and density of the runs in sight to its left, outward.
        right: The same to its right.
        totals: Sum of the density over everything to the left, and to the right; infinite where it never matters.
    """

    length: int
    density: float
    left: tuple[tuple[int, float], ...]
    right: tuple[tuple[int, float], ...]
    totals: tuple[float, float]

    @property
    def seen(self) -> float:
        """The largest density in sight."""
        return max([self.density, *(density for _, density in (*self.left, *self.right))])


@dataclass(frozen=True, slots=True)
class Found:
    """The worst node of a place: its loss, offset in the run, row of the influence tables and quilt."""

    loss: float
    offset: int
    row: int
    quilt: Quilt


def undominated(left: FloatArray, right: FloatArray) -> IntArray:
    """Rows that no other row is at least as large as at every lag of both sides, in order.

    Dropping the others changes no loss: each cost is a minimum over ends of a mass plus the influence, so a row that is
    nowhere larger costs nowhere more. Of equal rows one is kept.
    """
    rows, lags = left.shape
    if rows <= 1:
        return np.arange(rows)
    tables = np.concatenate([left, right], axis=1)
    picked = np.unique(np.geomspace(1, lags, min(_SAMPLES, lags)).astype(np.intp)) - 1
    sample = np.ascontiguousarray(tables[:, np.concatenate([picked, picked + lags])])
    order = np.argsort(-np.where(np.isfinite(sample), sample, 1e9).sum(axis=1), kind="stable")
    kept: list[int] = []
    while len(order):
        first, order = int(order[0]), order[1:]
        kept.append(first)
        below = np.flatnonzero((sample[order] <= sample[first]).all(axis=1))
        if len(below):
            below = below[(tables[order[below]] <= tables[first]).all(axis=1)]
            order = np.delete(order, below)
    # by falling sum no row lies below a later one, but for rounding of the sums, which costs time and nothing else
    return np.sort(np.array(kept, dtype=np.intp))


_around = lru_cache(maxsize=256)(Surroundings.of)


@lru_cache(maxsize=8)
def pricer_of(tables: SidedInfluence) -> Pricer:
    """The pricer of a belief's tables, shared by all accounts in the process."""
    return Pricer(tables, undominated(tables.left, tables.right))


class Pricer:
    """Prices places under one belief, and remembers what they cost."""

    def __init__(self, tables: SidedInfluence, rows: IntArray | None = None) -> None:
        """Take the influence tables of a belief, and those rows of them that can decide (None for all)."""
        self.tables = tables
        self.rows: IntArray = np.arange(len(tables.left)) if rows is None else rows
        self.left: FloatArray = tables.left if rows is None else tables.left[rows]
        self.right: FloatArray = tables.right if rows is None else tables.right[rows]
        self.reach = tables.reach
        self._ceilings: dict[float, tuple[FloatArray, float]] = {}
        self._places: dict[Place, Found] = {}
        self._held = 0

    @property
    def is_idle(self) -> bool:
        """Whether there is no secret pair, so that nothing is lost."""
        return not len(self.rows) or not self.reach

    @cached_property
    def tails(self) -> tuple[float, float]:
        """The largest influence at the last lag, to the left and to the right: 0 where there is no pair."""
        if self.is_idle:
            return 0.0, 0.0
        return float(self.left[:, -1].max()), float(self.right[:, -1].max())

    @cached_property
    def heaviest(self) -> int:
        """The pair whose influence is largest, summed over all lags."""
        tables = np.concatenate([self.left, self.right], axis=1)
        return int(np.argmax(np.minimum(tables, 1e9).sum(axis=1)))

    def ceiling(self, density: float) -> float:
        """A bound on the loss of every slot that sees no density above this within the reach, and no change of belief.

        It is the loss of an endless stream of constant density.
        """
        return self._ceiling(density)[1]

    def found(self, place: Place) -> Found:
        """The worst node of a place."""
        known = self._places.get(place)
        if known is None:
            known = self._evaluated(place)
            self._held += len(place.left) + len(place.right) + _SAMPLES
            if self._held > _REMEMBERED:
                self._places.clear()
                self._held = 0
            self._places[place] = known
        return known

    def _ceiling(self, density: float) -> tuple[FloatArray, float]:
        known = self._ceilings.get(density)
        if known is None:
            sums = far(self.left, density) + far(self.right, density) + density
            known = sums, float(sums.max(initial=0.0))
            if len(self._ceilings) >= _CEILINGS:
                self._ceilings.clear()
            self._ceilings[density] = known
        return known

    def _evaluated(self, place: Place) -> Found:
        length, reach = place.length, self.reach
        limits = self._ceiling(place.seen)[0]
        best, offset, row = -1.0, 0, 0
        if length > 2 * reach:
            best, offset, row = _between_edges(*self._sides(place, slice(None)), place, reach)
        edges = [np.arange(min(length, reach))]
        if length > reach:
            edges.append(np.arange(max(reach, length - reach), length))
        offsets = np.concatenate(edges)
        order = np.argsort(-limits, kind="stable")
        size, done = 1, 0
        while len(left := order[done:]) and len(left := left[limits[left] > best]):
            if done:
                offsets = offsets[self._outermost(place, left, offsets) > best]
                if not len(offsets):
                    break
            chunk = left[:size]
            sums = _sums(*self._sides(place, chunk), place, offsets)
            at, column = divmod(int(np.argmax(sums)), len(offsets))
            if sums[at, column] > best:
                best, offset, row = float(sums[at, column]), int(offsets[column]), int(chunk[at])
            done, size = done + size, _GROWTH * size
        return Found(best, offset, int(self.rows[row]), self._quilt(place, offset, row))

    def _sides(self, place: Place, rows: IntArray | slice) -> tuple[SideCosts, SideCosts]:
        nodes = min(place.length, self.reach)
        left, right = (
            SideCosts(table[rows], place.density, _around(runs, total), nodes)
            for table, runs, total in self.each_side(place)
        )
        return left, right

    def _outermost(self, place: Place, rows: IntArray, offsets: IntArray) -> FloatArray:
        nodes = min(place.length, self.reach)
        left, right = (
            SideCosts(table[rows].max(axis=0, keepdims=True), place.density, _around(runs, total), nodes)
            for table, runs, total in self.each_side(place)
        )
        return _sums(left, right, place, offsets)[0]

    def each_side(self, place: Place) -> tuple[tuple[FloatArray, tuple[tuple[int, float], ...], float], ...]:
        """Influence, runs and total to the left and to the right."""
        return (self.left, place.left, place.totals[0]), (self.right, place.right, place.totals[1])

    def _quilt(self, place: Place, offset: int, row: int) -> Quilt:
        ends = [
            cheapest_end(table[row], place.density, at, _around(runs, total))[0]
            for (table, runs, total), at in zip(self.each_side(place), (offset, place.length - 1 - offset), strict=True)
        ]
        return Quilt(ends[0], ends[1])


def _sums(left: SideCosts, right: SideCosts, place: Place, offsets: IntArray) -> FloatArray:
    return left.at(offsets) + right.at(place.length - 1 - offsets) + place.density


def _between_edges(left: SideCosts, right: SideCosts, place: Place, reach: int) -> tuple[float, int, int]:
    """The worst node further than the reach from both edges: at a kink of one of the sides, rounded down or up."""
    last = place.length - 1
    low, high = reach, last - reach
    kinks = (left.kink(low, high), last - right.kink(low, high))
    best, offset, row = -1.0, 0, 0
    for offsets in (np.floor(kinks[0]), np.ceil(kinks[0]), np.floor(kinks[1]), np.ceil(kinks[1])):
        sums: npt.NDArray[np.float64] = left.beyond(offsets) + right.beyond(last - offsets) + place.density
        at = int(np.argmax(sums))
        if sums[at] > best:
            best, offset, row = float(sums[at]), int(offsets[at]), at
    return best, offset, row


def scenes(density: Density, schedules: Iterable[Schedule], sight: int) -> tuple[Scene, ...]:
    """What must be looked at to price schedules on top of a density, the scene that lasts for ever first.

    A node sees ``sight`` slots to each side. Endless schedules are periodic but for the ramp at their start, and
    nowhere above the same schedules with an endless past. So every node that does not see the finite part loses at most
    what one period of nodes loses that has the endless past in sight (the lasting scene), and only the nodes that do
    are looked at besides.

    Args:
        density: What is there already.
        schedules: Finite and endless ones.
        sight: How far a node sees.
    """
    listed = list(schedules)
    finite = density.with_steps(step for schedule in listed if schedule.stop is not None for step in schedule.steps())
    endless, period = levelled([schedule for schedule in listed if schedule.stop is None])
    if not endless:
        return (Scene(finite, View()),)
    marks = [*finite.steps]
    steady = max([*marks, *(schedule.start + schedule.size for schedule in endless)]) + sight
    end = steady + period
    total = finite.with_steps(step for schedule in endless for step in schedule.steps(end + sight + 1))
    lasting = Scene(total, View(steady, end, open_left=True, open_right=True), (steady, end))
    if not marks:
        return (lasting,)
    low, high = min(marks) - sight, max(marks) + sight
    return lasting, Scene(total, View(low, high, open_right=True), (low, high))


@dataclass(frozen=True, slots=True)
class Scene:
    """A density, the slots at which its runs are split, and which of its slots to look at."""

    density: Density
    view: View
    cuts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Worst:
    """The slot, pair (row of the influence tables) and quilt that decide a loss.

    No slot where there is no loss, and where the largest density bounds the loss of all slots together.
    """

    loss: float = 0.0
    slot: int | None = None
    pair: int | None = None
    quilt: Quilt | None = None
    density: float | None = None


@dataclass(slots=True)
class View:
    """Which slots are looked at.

    Attributes:
        first: The slots from this one on, where a run must begin; None for all.
        stop: The slots before this one, where a run must end; None for all.
        open_left: Whether the account goes on before its first run without end.
        open_right: Whether it goes on behind its last run without end.
    """

    first: int | None = None
    stop: int | None = None
    open_left: bool = False
    open_right: bool = False


class Sight:
    """What the slots of a timeline see under one belief."""

    def __init__(self, pricer: Pricer, line: Timeline, view: View | None = None) -> None:
        """Take prices, a timeline that does not change, and the slots that are looked at (None for all)."""
        self._pricer, self._line = pricer, line
        self._view = View() if view is None else view

    def worst(self) -> Worst:
        """The worst slot, the earliest among equals."""
        line, pricer, view = self._line, self._pricer, self._view
        if pricer.is_idle or not line.count:
            return Worst()
        if not closes(pricer):
            return self._total()
        first = 0 if view.first is None else bisect_left(line.slots, view.first)
        stop = line.count if view.stop is None else min(line.count, bisect_left(line.slots, view.stop))
        ceilings = [pricer.ceiling(seen) for seen in self._largest_seen(first, stop)]
        worst = Worst()
        for place in sorted(range(len(ceilings)), key=lambda index: -ceilings[index]):
            if ceilings[place] < worst.loss:
                break
            index = first + place
            found = pricer.found(self._place(index))
            loss, slot = min(ceilings[place], found.loss), line.slots[index] + found.offset
            if loss > worst.loss or (loss == worst.loss and worst.slot is not None and slot < worst.slot):
                worst = Worst(loss, slot, found.row, found.quilt)
        return worst

    def at(self, slot: int) -> float:
        """What one pair loses at a slot, the one of the largest influence: the account is nowhere below it."""
        line, pricer = self._line, self._pricer
        if not closes(pricer):
            return float(line.mass)
        index = line.find(slot)
        place, offset = self._place(index), slot - line.slots[index]
        return place.density + sum(
            cheapest_end(table[pricer.heaviest], place.density, at, _around(runs, total))[1]
            for (table, runs, total), at in zip(
                pricer.each_side(place), (offset, place.length - 1 - offset), strict=True
            )
        )

    def _total(self) -> Worst:
        """All density there is: the loss of the slot at one end, for a pair without a usable end on its other side."""
        line, pricer = self._line, self._pricer
        slot, side = (
            (line.slots[-1] - 1, pricer.left) if math.isfinite(pricer.tails[1]) else (line.slots[0], pricer.right)
        )
        return Worst(float(line.mass), slot, int(pricer.rows[int(np.argmax(side[:, -1]))]), Quilt(None, None))

    def _largest_seen(self, low: int, high: int) -> list[float]:
        """For each run the largest density in its sight."""
        line = self._line
        if low >= high:
            return []
        first, last = self._in_sight(low)[0], self._in_sight(high - 1)[1]
        shown = np.array([*line.shown[first:last], 0.0])
        slots = np.array(line.slots[first : last + 1])
        starts, stops = slots[low - first : high - first], slots[low - first + 1 : high - first + 1]
        ranges = np.stack(
            [
                np.maximum(0, np.searchsorted(slots, starts - self._pricer.reach, side="right") - 1),
                np.minimum(len(shown) - 1, np.searchsorted(slots, stops + self._pricer.reach, side="left")),
            ],
            axis=1,
        )
        # reduceat takes the maximum from each index to the next: every other one is a range asked for
        return np.maximum.reduceat(shown, ranges.ravel())[::2].tolist()

    def _in_sight(self, index: int) -> tuple[int, int]:
        """First run that a run sees, and the first behind the last one."""
        slots, reach = self._line.slots, self._pricer.reach
        low = max(0, bisect_right(slots, slots[index] - reach) - 1)
        return low, min(self._line.count, bisect_left(slots, slots[index + 1] + reach))

    def _place(self, index: int) -> Place:
        """What the nodes of a run see."""
        line, reach, view = self._line, self._pricer.reach, self._view
        start, stop = line.slots[index], line.slots[index + 1]
        low, high = self._in_sight(index)
        left_limit, right_limit = self._pricer.tails
        left_ends = view.open_left or (low > 0 and line.mass_before(low, left_limit) >= left_limit)
        right_ends = view.open_right or (high < line.count and line.mass_from(high, right_limit) >= right_limit)
        # where more may follow out of sight, the slots in sight behind the last charge are known to be empty
        last = stop + reach if view.open_right else min(line.slots[-1], stop + reach)
        return Place(
            stop - start,
            line.shown[index],
            _clipped(line, max(line.slots[0], start - reach), start)[::-1],
            _clipped(line, stop, last),
            (
                math.inf if left_ends else float(line.mass_before(index, math.inf)),
                math.inf if right_ends else float(line.mass_from(index + 1, math.inf)),
            ),
        )


def closes(pricer: Pricer) -> bool:
    """Whether every influence falls to something finite within the reach.

    Where one never does, the slot at one end of the account has no cheaper quilt than none, and loses all the density
    there is: that is the loss.
    """
    return all(map(math.isfinite, pricer.tails))


def _clipped(line: Timeline, start: int, stop: int) -> tuple[tuple[int, float], ...]:
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


def largest_density(tables: SidedInfluence, epsilon: float, ceiling: Callable[[float], float]) -> float:
    """Find the density that an endless stream may have at a target loss.

    It is the min over pairs of the max over quilts of (epsilon - influence) / card, lowered until ``ceiling`` agrees.

    Per pair the loss is concave in the density (a minimum of lines, one per quilt), so the line of the best quilt at
    one density meets epsilon at or below the true root: Dinkelbach's iteration climbs to it from below, for all pairs
    at once.

    Args:
        tables: Influence of the belief.
        epsilon: Target.
        ceiling: The loss of an endless stream by density, non-decreasing.

    Returns:
        A density; infinite where there is no secret pair.

    Raises:
        ChainError: If some pair has no quilt of influence below epsilon.
    """
    if not len(tables.left):
        return np.inf
    rows, between = np.arange(len(tables.left)), np.arange(tables.reach)
    least = tables.left[:, -1] + tables.right[:, -1]
    if float(least.max()) >= epsilon:
        raise ChainError(
            f"no quilt within {tables.reach} slots has an influence below epsilon {epsilon!r}; "
            f"the least is {float(least.max())!r}: "
            "use a belief that mixes (irreducible, aperiodic, rare bins merged), or a larger epsilon"
        )
    density = np.zeros(len(rows))
    while True:
        slopes = np.multiply.outer(density, between)
        back, ahead = np.argmin(slopes + tables.left, axis=1), np.argmin(slopes + tables.right, axis=1)
        raised = (epsilon - tables.left[rows, back] - tables.right[rows, ahead]) / (back + ahead + 1)
        if not np.any(raised > density):
            break
        density = np.maximum(density, raised)
    found, lower = float(density.min()), 2.0**-52
    while ceiling(found) > epsilon:
        found, lower = found * (1 - lower), 2 * lower
    return found


def prices_of(belief: Belief, bound: Bound = "lemma-4.8") -> Pricer:
    """The prices of a belief's quilts, with the closed form of the influence under mixing bounds.

    Raises:
        ChainError: If a stationary chain is reducible.
    """
    return pricer_of(sided_influence(belief, bound))


def worst_by_quilts(belief: Belief, charges: Iterable[Span], bound: Bound = "lemma-4.8") -> Worst:
    """The slot, pair and quilt that decide what charges lose together, the loss rounded outward.

    Raises:
        ChainError: If a stationary chain is reducible.
    """
    density = Density().with_spans(charges)
    return worst_of(prices_of(belief, bound), Timeline(density))


def loss_by_quilts(
    belief: Belief, charges: Iterable[Span] = (), schedules: Sequence[Schedule] = (), bound: Bound = "lemma-4.8"
) -> float:
    """What charges and schedules, endless ones included, lose together; epsilon, rounded outward.

    Raises:
        ChainError: If a stationary chain is reducible.
    """
    density = Density().with_spans(charges)
    return priced(prices_of(belief, bound), density, schedules)


def worst_of(pricer: Pricer, line: Timeline) -> Worst:
    """The slot, pair and quilt that decide what a timeline loses at a belief's prices, the loss rounded outward."""
    worst = Sight(pricer, line).worst()
    return replace(worst, loss=outward(worst.loss))


def is_above(pricer: Pricer, line: Timeline, slot: int, loss: float) -> bool:
    """Whether the account by quilts is above a loss for what one pair loses at a slot."""
    return pricer.is_idle is False and Sight(pricer, line).at(slot) > loss * (1 + _MARGIN)


def priced(pricer: Pricer, density: Density, schedules: Sequence[Schedule] = ()) -> float:
    """What a density and schedules lose together at a belief's prices; epsilon, rounded outward.

    An endless schedule is followed until what a slot sees repeats, and one period stands for all that come.
    """
    if pricer.is_idle:
        return 0.0
    if not closes(pricer) and any(schedule.stop is None for schedule in schedules):
        return math.inf
    found = (
        Sight(pricer, Timeline(scene.density, cuts=scene.cuts), scene.view).worst().loss
        for scene in scenes(density, schedules, pricer.reach)
    )
    return outward(max(found, default=0.0))


def density_by_quilts(belief: Belief, epsilon: float, bound: Bound = "lemma-4.8") -> float:
    """The largest density whose endless stream loses at most epsilon: the pairwise calibration.

    Raises:
        ChainError: If no quilt within the reach has an influence below epsilon, as for a chain that does not mix.
        ValueError: If epsilon is not finite and above 0.
    """
    pricer = prices_of(belief, bound)
    return largest_density(pricer.tables, epsilon, lambda density: outward(pricer.ceiling(density)))
