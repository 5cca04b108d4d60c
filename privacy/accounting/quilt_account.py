"""The account by Markov quilts: the largest loss of any slot over all quilts.

loss = max over slots i and secret pairs of min over quilts [ sum of d inside the quilt + influence of the quilt ].

``docs/mathematics.md`` has the proof. The theorems of the sources are special cases or weaker ([SWC17] Theorem
4.4, [SC17] Theorems 3.1, 3.3, 3.6 and 3.7, [BHGKM] Theorem 6.2; see :mod:`.theorems`).

The sides of a slot are apart: the end of the quilt at lag a costs the density of the a - 1 slots between, plus the
influence at lag a; no end costs all the density on this side.

Which slots are priced. None before the first charged slot or behind the last: all outputs are then functions of the
slots on one side, so their law given X_i is a mixture of their laws given the neighbour on that side, and a mixture of
numbers has no larger ratio than the numbers. In a run of equal density the slots further than the reach from both
edges see either an end within the run, the same for all, or none: the sum of both sides is concave and piecewise linear
there, so its maximum is at a kink. All other slots are priced, those of density 0 between windows included.

What is not computed:

1. A secret pair whose influence is at no lag of neither side above another pair's never decides; such pairs are dropped
   once for a belief.
2. No slot loses more than an endless stream of the largest density in sight (``ceilings``, one number per pair), so
   runs and pairs are taken by falling ceiling, and the rest is left out once the worst so far has reached theirs.
3. The largest influence over the pairs that are left, lag by lag, makes one imaginary pair that loses at least as much
   as each of them at every slot; only the slots where it loses more than the worst so far are priced by pairs.
4. Equal runs with equal surroundings have equal losses wherever they lie: one week of a schedule is priced for all.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from ..models.belief import Belief
from ..models.markov_chain import ChainError, FloatArray
from ..quilts.influence import Quilt, SidedInfluence, sided_influence
from .charges import Density, Span, Timeline, outward
from .schedules import Schedule, separated

IntArray = npt.NDArray[np.intp]

#: Runs in sight whose worst slot is remembered: each may be some hundred kilobytes.
_REMEMBERED = 2**9
_CEILINGS = 1024
#: Costs that are computed at once, 2 MB, which stay in the processor's cache.
_AT_ONCE = 2**18
#: The part of a loss by which quilts are below it, or do not count: more than the rounding of a slot that is priced by
#: itself and with others. Where a chain forgets slowly both are the density of all slots, and no slot is priced then.
MARGIN = 2.0**-40
_SAMPLES = 24
_GROWTH = 4


# the slots of a run ask for the same two again and again; each is as long as the reach
@lru_cache(maxsize=8)
def _outward(runs: tuple[tuple[int, float], ...], total: float, lags: int) -> FloatArray:
    """Sum of the density over the first j slots beyond the edge of a run, for j = 0..lags-1, right to 2 ulp.

    Of the runs in sight, outward and without a hole, and behind them the total of all slots on this side.
    """
    sums = np.full(lags, total)
    sums[0] = 0.0
    distance, mass, lost = 0, 0.0, 0.0
    for length, density in runs:
        slots = min(length, lags - 1 - distance)
        if slots <= 0:
            break
        sums[distance + 1 : distance + slots + 1] = (mass + lost) + np.arange(1, slots + 1) * density
        distance += length
        added = density * length
        larger, smaller = (mass, added) if mass >= added else (added, mass)
        mass = larger + smaller
        lost += (larger - mass) + smaller
    return sums


def _stream(table: FloatArray, density: float) -> FloatArray:
    """Cheapest end of a quilt within a run that is longer than the reach, shape (pairs,)."""
    return (np.arange(table.shape[1]) * density + table).min(axis=1, initial=np.inf)


@dataclass(frozen=True, slots=True)
class Side:
    """What lies on one side of a run."""

    runs: tuple[tuple[int, float], ...]  # length and density of the runs in sight, outward
    total: float  # sum of the density over everything on this side; infinite where it never matters

    def costs(self, table: FloatArray, density: float, offsets: IntArray) -> FloatArray:
        """Cost of the end at each lag for slots of that density, so many slots within the run.

        Args:
            table: Influence, shape (pairs, lags).
            density: Of the run.
            offsets: Of the slots, shape (n,).

        Returns:
            Shape (pairs, n, lags).
        """
        lags = table.shape[1]
        inside = np.minimum(offsets, lags)
        most = int(inside.max())
        beyond = np.concatenate([np.zeros(most), _outward(self.runs, self.total, lags)])
        costs = np.minimum(np.arange(lags) * density, inside[:, np.newaxis] * density)
        # row i of this view is beyond[i : i + lags]
        costs += np.ndarray((most + 1, lags), np.float64, beyond, 0, 2 * beyond.strides)[most - inside]
        return costs + table[:, np.newaxis]

    def cheapest(self, table: FloatArray, density: float, offsets: IntArray) -> FloatArray:
        """Cost of the cheapest end, or of none, shape (pairs, offsets)."""
        seen, places = np.unique(np.minimum(offsets, table.shape[1]), return_inverse=True)
        parts = np.array_split(seen, min(len(seen), math.ceil(table.size * len(seen) / _AT_ONCE)))
        ends = np.concatenate([self.costs(table, density, part).min(axis=2) for part in parts], axis=1)
        return np.minimum(ends[:, places], self.total + offsets * density)

    def end(self, row: FloatArray, density: float, offset: int) -> tuple[int | None, float]:
        """Lag and cost of the cheapest end for one pair; no lag where no end is as cheap."""
        costs, whole_side = (
            self.costs(row[np.newaxis], density, np.array([offset]))[0, 0],
            offset * density + self.total,
        )
        first = int(np.argmin(costs))
        return (first + 1, float(costs[first])) if costs[first] < whole_side else (None, whole_side)


@dataclass(frozen=True, slots=True)
class RunInSight:
    """A run of equal density with all that its slots can see."""

    length: int
    density: float
    left: Side
    right: Side

    @property
    def seen(self) -> float:
        """The largest density in sight."""
        return max([self.density, *(density for _, density in (*self.left.runs, *self.right.runs))])


@dataclass(frozen=True, slots=True)
class WorstQuilt:
    """The slot, pair (row of the influence tables) and quilt that decide a loss; no slot where there is no loss.

    Of a run in sight the slot is counted from its start.
    """

    loss: float = 0.0
    slot: int | None = None
    pair: int | None = None
    quilt: Quilt | None = None


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


class Pricer:
    """Prices runs in sight under one belief, and remembers what they cost."""

    def __init__(self, tables: SidedInfluence, rows: IntArray | None = None) -> None:
        """Take the influence tables of a belief, and those rows of them that can decide (None for all)."""
        self.tables = tables
        self.rows: IntArray = np.arange(len(tables.left)) if rows is None else rows
        self.left: FloatArray = tables.left if rows is None else tables.left[rows]
        self.right: FloatArray = tables.right if rows is None else tables.right[rows]
        self.reach = tables.reach
        self.worst_of = lru_cache(maxsize=_REMEMBERED)(self._worst_of)
        self.ceilings = lru_cache(maxsize=_CEILINGS)(self._ceilings_of)
        self._within = lru_cache(maxsize=2)(self._first)

    def nearby(self, density: Density, schedules: Sequence[Schedule]) -> Pricer:
        """The prices of the lags at which the cheapest end of a quilt may lie, in what schedules make of a density.

        Behind more slots an end is no cheaper: their density alone costs as much as the best end in an endless stream
        of the largest density. What lies before the first slot or behind the last costs nothing more than no end.
        """
        finite, endless, period = separated(density, schedules)
        stop = max([*finite.steps, *(one.start + one.size for one in endless)], default=0) + self.reach + period
        line = Timeline(finite.with_steps(step for one in endless for step in one.steps(stop)))
        top = max(line.shown, default=0.0)
        enough = max(float(_stream(side, top).max()) for side in (self.left, self.right)) * (1 + 2.0**-30)
        slots = np.array(line.slots)
        sums = np.concatenate([[0.0], np.cumsum(np.diff(slots) * line.shown)])
        ends = np.minimum(np.searchsorted(sums, sums[1:] + enough), line.count)
        return self._within(int((slots[ends] - slots[:-1]).max(initial=0)) + 1)

    def _first(self, lags: int) -> Pricer:
        if lags >= self.reach:
            return self
        left, right = (np.ascontiguousarray(side[:, :lags]) for side in (self.left, self.right))
        return Pricer(SidedInfluence(left, right, (), self.tables.basis))

    def __reduce__(self) -> tuple[type[Pricer], tuple[SidedInfluence, IntArray]]:
        return Pricer, (self.tables, self.rows)

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

    @property
    def closes(self) -> bool:
        """Whether every influence falls to something finite within the reach.

        Where one never does, the slot at one end of the account has no cheaper quilt than none, and loses all the
        density there is: that is the loss.
        """
        return all(map(math.isfinite, self.tails))

    @cached_property
    def heaviest(self) -> int:
        """The pair whose influence is largest, summed over all lags."""
        tables = np.concatenate([self.left, self.right], axis=1)
        return int(np.argmax(np.minimum(tables, 1e9).sum(axis=1)))

    def ceiling(self, density: float) -> float:
        """A bound on the loss of every slot that sees no density above this within the reach, and no change of belief.

        It is the loss of an endless stream of constant density.
        """
        return float(self.ceilings(density).max(initial=0.0))

    def _ceilings_of(self, density: float) -> FloatArray:
        return _stream(self.left, density) + _stream(self.right, density) + density

    def _worst_of(self, run: RunInSight) -> WorstQuilt:
        length, reach = run.length, self.reach
        limits = self.ceilings(run.seen)
        best, offset, row = self._between_edges(run) if length > 2 * reach else (-1.0, 0, 0)
        edges = [np.arange(min(length, reach)), np.arange(max(reach, length - reach), length)]
        offsets = np.concatenate(edges)
        order = np.argsort(-limits, kind="stable")
        size, done = 1, 0
        while len(left := order[done:]) and len(left := left[limits[left] > best]):
            if done:
                sides = (side[left].max(axis=0, keepdims=True) for side in (self.left, self.right))
                offsets = offsets[_losses(run, *sides, offsets)[0] > best]
                if not len(offsets):
                    break
            chunk = left[:size]
            losses = _losses(run, self.left[chunk], self.right[chunk], offsets)
            at, column = divmod(int(np.argmax(losses)), len(offsets))
            if losses[at, column] > best:
                best, offset, row = float(losses[at, column]), int(offsets[column]), int(chunk[at])
            done, size = done + size, _GROWTH * size
        back, _ = run.left.end(self.left[row], run.density, offset)
        ahead, _ = run.right.end(self.right[row], run.density, length - 1 - offset)
        return WorstQuilt(best, offset, int(self.rows[row]), Quilt(back, ahead))

    def _between_edges(self, run: RunInSight) -> tuple[float, int, int]:
        """The worst slot further than the reach from both edges: at a kink of one of the sides, rounded down or up."""
        last, density, (left, right) = run.length - 1, run.density, (run.left.total, run.right.total)
        behind, ahead = _stream(self.left, density), _stream(self.right, density)
        with np.errstate(divide="ignore", invalid="ignore"):
            # where "no end" stops being the cheaper choice
            kinks = (behind - left) / density, last - (ahead - right) / density
        best, offset, row = -1.0, 0, 0
        for kink in kinks:
            inner = np.clip(np.nan_to_num(kink, nan=self.reach), self.reach, last - self.reach)
            for offsets in (np.floor(inner), np.ceil(inner)):
                losses = np.minimum(behind, left + offsets * density) + density
                losses += np.minimum(ahead, right + (last - offsets) * density)
                at = int(np.argmax(losses))
                if losses[at] > best:
                    best, offset, row = float(losses[at]), int(offsets[at]), at
        return best, offset, row


def _losses(run: RunInSight, left: FloatArray, right: FloatArray, offsets: IntArray) -> FloatArray:
    """Losses of slots of a run by its best quilts, shape (pairs, offsets)."""
    behind = run.left.cheapest(left, run.density, offsets)
    return behind + run.right.cheapest(right, run.density, run.length - 1 - offsets) + run.density


@dataclass(frozen=True, slots=True)
class View:
    """Which slots are priced."""

    first: int | None = None  # the slots from this one on, where a run must begin; None for all
    stop: int | None = None  # the slots before this one, where a run must end; None for all
    open_left: bool = False  # whether the account goes on before its first run without end
    open_right: bool = False  # whether it goes on behind its last run without end


def _views(density: Density, schedules: Sequence[Schedule], sight: int) -> list[tuple[Timeline, View]]:
    """What must be priced to account for schedules on top of a density, what lasts for ever first.

    A slot sees ``sight`` slots to each side. Endless schedules are periodic but for the ramp at their start, and
    nowhere above the same schedules with an endless past. So every slot that does not see the finite part loses at most
    what one period of slots loses that has the endless past in sight, and only the slots that do are priced besides.
    """
    finite, endless, period = separated(density, schedules)
    if not endless:
        return [(Timeline(finite), View())]
    marks = finite.steps
    steady = max([*marks, *(schedule.start + schedule.size for schedule in endless)]) + sight
    end = steady + period
    total = finite.with_steps(step for schedule in endless for step in schedule.steps(end + sight + 1))
    views = [View(steady, end, open_left=True, open_right=True)]
    if marks:
        views.append(View(min(marks) - sight, max(marks) + sight, open_right=True))
    return [(Timeline(total, cuts=[cut for cut in (view.first, view.stop) if cut is not None]), view) for view in views]


class QuiltAccount:
    """The account of a timeline under one belief."""

    def __init__(self, pricer: Pricer, line: Timeline, view: View | None = None) -> None:
        """Take prices, a timeline that does not change, and the slots that are priced (None for all)."""
        self._pricer, self._line = pricer, line
        self._view = View() if view is None else view

    def worst(self) -> WorstQuilt:
        """The worst slot, the earliest among equals."""
        line, pricer, view = self._line, self._pricer, self._view
        if pricer.is_idle or not line.count:
            return WorstQuilt()
        if not pricer.closes:
            return self._total()
        first = 0 if view.first is None else bisect_left(line.slots, view.first)
        stop = line.count if view.stop is None else min(line.count, bisect_left(line.slots, view.stop))
        ceilings = [pricer.ceiling(seen) for seen in self._largest_seen(first, stop)]
        worst = WorstQuilt()
        for place in sorted(range(len(ceilings)), key=lambda index: -ceilings[index]):
            if ceilings[place] < worst.loss:
                break
            index = first + place
            found = pricer.worst_of(self._run(index))
            loss, slot = min(ceilings[place], found.loss), line.slots[index] + (found.slot or 0)
            if loss > worst.loss or (loss == worst.loss and worst.slot is not None and slot < worst.slot):
                worst = replace(found, loss=loss, slot=slot)
        return worst

    def rounded(self) -> WorstQuilt:
        """The worst slot, its loss rounded outward."""
        worst = self.worst()
        return replace(worst, loss=outward(worst.loss))

    def at(self, slot: int) -> float:
        """What one pair loses at a slot, the one of the largest influence: the account is nowhere below it."""
        line, pricer = self._line, self._pricer
        if not pricer.closes:
            return float(line.mass)
        index = line.find(slot)
        run, offset = self._run(index), slot - line.slots[index]
        _, behind = run.left.end(pricer.left[pricer.heaviest], run.density, offset)
        _, ahead = run.right.end(pricer.right[pricer.heaviest], run.density, run.length - 1 - offset)
        return run.density + behind + ahead

    def _total(self) -> WorstQuilt:
        """All density there is: the loss of the slot at one end, for a pair without a usable end on its other side."""
        line, pricer = self._line, self._pricer
        slot, side = (
            (line.slots[-1] - 1, pricer.left) if math.isfinite(pricer.tails[1]) else (line.slots[0], pricer.right)
        )
        return WorstQuilt(float(line.mass), slot, int(pricer.rows[int(np.argmax(side[:, -1]))]), Quilt(None, None))

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

    def _run(self, index: int) -> RunInSight:
        """A run with what its slots see."""
        line, reach, view = self._line, self._pricer.reach, self._view
        start, stop = line.slots[index], line.slots[index + 1]
        low, high = self._in_sight(index)
        left_limit, right_limit = self._pricer.tails
        left_ends = view.open_left or (low > 0 and line.mass_before(low, left_limit) >= left_limit)
        right_ends = view.open_right or (high < line.count and line.mass_from(high, right_limit) >= right_limit)
        # where more may follow out of sight, the slots in sight behind the last charge are known to be empty
        last = stop + reach if view.open_right else min(line.slots[-1], stop + reach)
        left_total = math.inf if left_ends else float(line.mass_before(index, math.inf))
        right_total = math.inf if right_ends else float(line.mass_from(index + 1, math.inf))
        return RunInSight(
            stop - start,
            line.shown[index],
            Side(_clipped(line, max(line.slots[0], start - reach), start)[::-1], left_total),
            Side(_clipped(line, stop, last), right_total),
        )


def _clipped(line: Timeline, start: int, stop: int) -> tuple[tuple[int, float], ...]:
    """Length and density of the runs in ``[start, stop)``, in order, slots behind the account with density 0."""
    slots = line.slots
    low, high = bisect_right(slots, start), bisect_left(slots, stop)
    edges = [start, *slots[low:high], stop] if start < stop else [start]
    return tuple(
        (edges[place + 1] - edges[place], line.shown[low - 1 + place] if low - 1 + place < line.count else 0.0)
        for place in range(len(edges) - 1)
    )


@lru_cache(maxsize=8)
def prices_of(belief: Belief) -> Pricer:
    """The prices of a belief's quilts; under mixing bounds those of Lemma 4.8."""
    tables = sided_influence(belief)
    return Pricer(tables, undominated(tables.left, tables.right))


def worst_unless_above(pricer: Pricer, line: Timeline, slot: int, loss: float) -> WorstQuilt | None:
    """What decides the account of a timeline; None where one pair loses as much at the slot as the loss, or more.

    What decides is then below the loss by less than the part ``MARGIN`` of it. The loss is rounded outward.
    """
    account = QuiltAccount(pricer, line)
    if not pricer.is_idle and account.at(slot) > loss * (1 - MARGIN / 2):
        return None
    return account.rounded()


def worst_by_quilts(belief: Belief, charges: Iterable[Span]) -> WorstQuilt:
    """The slot, pair and quilt that decide what charges lose together, the loss rounded outward."""
    return QuiltAccount(prices_of(belief), Timeline(Density().with_spans(charges))).rounded()


def loss_by_quilts(belief: Belief, charges: Iterable[Span] = (), schedules: Sequence[Schedule] = ()) -> float:
    """What charges and schedules, endless ones included, lose together; epsilon, rounded outward."""
    return priced(prices_of(belief), Density().with_spans(charges), schedules)


def priced(pricer: Pricer, density: Density, schedules: Sequence[Schedule] = ()) -> float:
    """What a density and schedules lose together at a belief's prices; epsilon, rounded outward.

    An endless schedule is followed until what a slot sees repeats, and one period stands for all that come.
    """
    found = priced_unless_above(pricer, density, schedules, None, math.inf)
    return math.inf if found is None else found


def priced_unless_above(
    pricer: Pricer, density: Density, schedules: Sequence[Schedule], slot: int | None, loss: float
) -> float | None:
    """The same; None where one pair loses as much as a loss at a slot, or at the one like it of the last period.

    Where a chain forgets slowly a slot has many quilts, and all slots take some 10,000 times as long as one.
    """
    if pricer.is_idle:
        return 0.0
    if not pricer.closes and any(schedule.stop is None for schedule in schedules):
        return math.inf
    views = _views(density, schedules, pricer.reach)
    if slot is not None:
        for line, view in views:
            place = _like(slot, line, view)
            if place is not None and QuiltAccount(pricer, line, view).at(place) > loss * (1 - MARGIN / 2):
                return None
    nearby = pricer.nearby(density, schedules)
    if nearby is not pricer:
        views = _views(density, schedules, nearby.reach)
    return outward(max(QuiltAccount(nearby, line, view).worst().loss for line, view in views))


def _like(slot: int, line: Timeline, view: View) -> int | None:
    """A slot, or the one like it of the period that a view is about; None where the view or its line has none.

    The line of a period ends with its last charge, and a gap that is longer than what a slot sees comes after it.
    """
    if view.open_left and view.first is not None and view.stop is not None:
        slot = view.first + (slot - view.first) % (view.stop - view.first)
    within = bool(line.count) and line.slots[0] <= slot < line.slots[-1]
    within &= (view.first is None or view.first <= slot) and (view.stop is None or slot < view.stop)
    return slot if within else None


def density_by_quilts(belief: Belief, epsilon: float) -> float:
    """The largest density whose endless stream loses at most epsilon: the pairwise calibration.

    It is the min over pairs of the max over quilts of (epsilon - influence) / card, lowered until the ceiling agrees.
    Per pair the loss is concave in the density (a minimum of lines, one per quilt), so the line of the best quilt at
    one density meets epsilon at or below the true root: Dinkelbach's iteration climbs to it from below, for all pairs
    at once.

    Returns:
        A density; infinite where there is no secret pair.

    Raises:
        ChainError: If no quilt within the reach has an influence below epsilon, as for a chain that does not mix.
    """
    pricer = prices_of(belief)
    tables = pricer.tables
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
    while outward(pricer.ceiling(found)) > epsilon:
        found, lower = found * (1 - lower), 2 * lower
    return found


def quilt_of_stream(belief: Belief, density: float) -> tuple[Quilt, float]:
    """The best quilt of the pair that loses most on an endless stream of a density, and its influence.

    For a belief of which ``density_by_quilts`` is finite.
    """
    pricer = prices_of(belief)
    row, inside = int(np.argmax(pricer.ceilings(density))), density * np.arange(pricer.reach)
    left, right = pricer.left[row], pricer.right[row]
    back, ahead = int(np.argmin(inside + left)), int(np.argmin(inside + right))
    return Quilt(back + 1, ahead + 1), float(left[back] + right[ahead])
