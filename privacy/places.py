"""The worst slot of one run of equal density, given all that its slots can see.

A ``Place`` is a run with its surroundings. Equal places have equal losses wherever they lie, so what was computed for
one week of a schedule is remembered for every other week, by every account of the same belief in the process.

What is computed, and what is not:

1. A secret pair whose influence is at no lag of neither side above another pair's never decides; such pairs are dropped
   once for a belief.
2. No slot loses more than an endless stream of the largest density in sight (``ceilings``, one number per pair), so
   pairs are taken by falling ceiling, and the rest is left out as soon as the worst so far has reached theirs.
3. The largest influence over the pairs that are left, lag by lag, makes one imaginary pair that loses at least as much
   as each of them at every slot. It costs what one pair costs, and only the slots where it loses more than the worst so
   far are looked at again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from .chains import FloatArray
from .influence import SidedInfluence
from .quilts import Quilt
from .sides import IntArray, SideCosts, Surroundings, cheapest_end, far

_REMEMBERED = 2**20
"""So many runs are kept in remembered places, some 100 MB."""
_CEILINGS = 1024
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
    def _outer(self) -> Pricer | None:
        """The imaginary pair that loses at least as much as every pair; None where there is only one."""
        if len(self.rows) <= 1:
            return None
        left, right = (side.max(axis=0, keepdims=True) for side in (self.left, self.right))
        return Pricer(SidedInfluence(left, right, (), self.tables.basis))

    def ceiling(self, density: float) -> float:
        """A bound on the loss of every slot that sees no density above this within the reach, and no change of belief.

        It is the loss of an endless stream of constant density.
        """
        return self._ceiling(density)[1]

    def bound(self, place: Place) -> float:
        """A number that no slot of a place loses more than, cheaper than the loss itself."""
        if place in self._places:
            return self._places[place].loss
        outer = self._outer
        loss = np.inf if outer is None else outer.found(place).loss
        return min(loss, self.ceiling(place.seen))

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
            for table, runs, total in self._each_side(place)
        )
        return left, right

    def _outermost(self, place: Place, rows: IntArray, offsets: IntArray) -> FloatArray:
        nodes = min(place.length, self.reach)
        left, right = (
            SideCosts(table[rows].max(axis=0, keepdims=True), place.density, _around(runs, total), nodes)
            for table, runs, total in self._each_side(place)
        )
        return _sums(left, right, place, offsets)[0]

    def _each_side(self, place: Place) -> tuple[tuple[FloatArray, tuple[tuple[int, float], ...], float], ...]:
        return (self.left, place.left, place.totals[0]), (self.right, place.right, place.totals[1])

    def _quilt(self, place: Place, offset: int, row: int) -> Quilt:
        ends = [
            cheapest_end(table[row], place.density, at, _around(runs, total))[0]
            for (table, runs, total), at in zip(
                self._each_side(place), (offset, place.length - 1 - offset), strict=True
            )
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
