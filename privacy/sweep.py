"""The worst loss over all slots and secret pairs of a density: the rule of the quilt ledger.

    loss = max over slots i and pairs of min over quilts [ sum of the density inside the quilt + influence of the
    quilt ]

Both sides of a slot separate for a pair, so each is minimised apart (``sides``) and their sum, with the density of
the slot itself, is maximised.

Which slots are looked at. (1) None before the first charged slot or behind the last: from a slot i to i + 1 behind it,
an end at lag a can be kept at lag min(a + 1, reach), with at most d(i) more inside and no more influence, no end costs
d(i) more, and the other side costs nothing at both; so slot i + 1 loses at most what slot i loses, and the last charged
slot is worse than all behind it; likewise at the start. (2) In a run longer than twice the reach, the slots further
than the reach from both edges see either an end within the run, the same for all, or none: the sum of the two sides is
concave and piecewise linear there, so its maximum is at a kink. (3) All other slots are looked at one by one, those of
density 0 between windows included.

Runs are taken in the order of the largest density they can see. The loss at a slot is at most that of an endless
stream with that density everywhere, so the sweep ends as soon as the worst so far reaches this ceiling: for a long
stream of adjacent windows, at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

import numpy as np

from .density import Run
from .influence import SidedInfluence
from .quilts import Quilt
from .sides import SideCosts, Surroundings, cheapest_end, far

_REMEMBERED = 50_000


@dataclass(frozen=True, slots=True)
class Worst:
    """The slot, pair (row of the influence tables) and quilt that decide a loss; no slot where there is no loss."""

    loss: float = 0.0
    slot: int | None = None
    pair: int | None = None
    quilt: Quilt | None = None


@dataclass(frozen=True, slots=True)
class Scene:
    """A density and which of its slots to look at.

    Attributes:
        runs: Adjoining runs in order.
        first: Look at the slots from this one on, where a run must begin; None for all.
        stop: Look at the slots before this one, where a run must end; None for all.
        open_left: Whether the first run is only the horizon of a past without end.
        open_right: Whether the last run is only the horizon of a future without end.
    """

    runs: tuple[Run, ...]
    first: int | None = None
    stop: int | None = None
    open_left: bool = False
    open_right: bool = False


@dataclass(frozen=True, slots=True)
class _Place:
    """A run with all that its nodes can see: equal places have equal losses, wherever they lie.

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

    @property
    def around_left(self) -> Surroundings:
        """The left side, as its costs are computed from it."""
        return Surroundings.of(self.left, self.totals[0])

    @property
    def around_right(self) -> Surroundings:
        """The right side, as its costs are computed from it."""
        return Surroundings.of(self.right, self.totals[1])


class Sweep:
    """Prices densities under one belief; remembers ceilings and places, so that periodic schedules cost one period."""

    def __init__(self, influence: SidedInfluence) -> None:
        """Take the influence tables of the belief."""
        self._influence = influence
        self._ceilings: dict[float, float] = {}
        self._places: dict[_Place, tuple[float, int, int]] = {}

    def ceiling(self, density: float) -> float:
        """A bound on the loss of every slot that sees no density above this within the reach of the tables.

        It is the loss of an endless stream of constant density.
        """
        known = self._ceilings.get(density)
        if known is None:
            tables = self._influence
            sums = far(tables.left, density) + far(tables.right, density) + density
            known = float(sums.max(initial=0.0))
            if len(self._ceilings) >= _REMEMBERED:
                self._ceilings.clear()
            self._ceilings[density] = known
        return known

    def worst(self, scene: Scene, floor: float = -1.0) -> Worst:
        """The worst slot of a density.

        Args:
            scene: The density and which of its slots to look at.
            floor: A loss that is reached elsewhere: slots that cannot exceed it may be passed over.
        """
        tables = self._influence
        if not scene.runs or not len(tables.left):
            return Worst()
        view = _View(scene, tables)
        best, found = floor, None
        for index in view.order:
            if self.ceiling(view.seen[index]) <= best:
                break
            place = view.place(index)
            known = self._places.get(place)
            if known is None:
                known = self._evaluated(place)
                if len(self._places) >= _REMEMBERED:
                    self._places.clear()
                self._places[place] = known
            if known[0] > best:
                best, found = known[0], (index, place, known)
        if found is None:
            return Worst(max(best, 0.0))
        index, place, (_, offset, pair) = found
        return Worst(best, view.runs[index].start + offset, pair, self._quilt(place, offset, pair))

    def _evaluated(self, place: _Place) -> tuple[float, int, int]:
        length, density, reach = place.length, place.density, self._influence.reach
        nodes = min(length, reach)
        left = SideCosts(self._influence.left, density, place.around_left, nodes)
        right = SideCosts(self._influence.right, density, place.around_right, nodes)
        best, offset, pair = -1.0, 0, 0
        if length > 2 * reach:
            best, offset, pair = _between_edges(left, right, place, reach)
            if best >= self.ceiling(place.seen):
                return best, offset, pair
        edges = [np.arange(nodes)]
        if length > reach:
            edges.append(np.arange(max(reach, length - reach), length))
        for offsets in edges:
            sums = left.at(offsets) + right.at(length - 1 - offsets) + density
            row, column = divmod(int(np.argmax(sums)), len(offsets))
            if sums[row, column] > best:
                best, offset, pair = float(sums[row, column]), int(offsets[column]), row
        return best, offset, pair

    def _quilt(self, place: _Place, offset: int, pair: int) -> Quilt:
        return Quilt(
            cheapest_end(self._influence.left[pair], place.density, offset, place.around_left),
            cheapest_end(self._influence.right[pair], place.density, place.length - 1 - offset, place.around_right),
        )


def _between_edges(left: SideCosts, right: SideCosts, place: _Place, reach: int) -> tuple[float, int, int]:
    """The worst node further than the reach from both edges: at a kink of one of the sides, rounded down or up."""
    last = place.length - 1
    low, high = reach, last - reach
    kinks = (left.kink(low, high), last - right.kink(low, high))
    best, offset, pair = -1.0, 0, 0
    for offsets in (np.floor(kinks[0]), np.ceil(kinks[0]), np.floor(kinks[1]), np.ceil(kinks[1])):
        sums = left.beyond(offsets) + right.beyond(last - offsets) + place.density
        row = int(np.argmax(sums))
        if sums[row] > best:
            best, offset, pair = float(sums[row]), int(offsets[row]), row
    return best, offset, pair


class _View:
    """The runs of a scene, and what each of them sees."""

    def __init__(self, scene: Scene, tables: SidedInfluence) -> None:
        self.runs = scene.runs
        self._scene = scene
        self._shapes = tuple((run.length, run.density) for run in self.runs)
        starts = np.array([run.start for run in self.runs])
        stops = np.array([run.stop for run in self.runs])
        first = np.searchsorted(stops, starts - tables.reach, side="right")
        stop = np.searchsorted(starts, stops + tables.reach, side="left")
        # reduceat takes the maximum from each index to the next: every other one is a range asked for
        densities = np.array([*(run.density for run in self.runs), 0.0])
        ranges = np.stack([first, stop], axis=1)
        self.seen: list[float] = np.maximum.reduceat(densities, ranges.ravel())[::2].tolist()
        self._ranges: list[tuple[int, int]] = [(low, high) for low, high in ranges.tolist()]
        masses = [Fraction(run.density) * run.length for run in self.runs]
        self._before = [float(mass) for mass in accumulate(masses, initial=Fraction(0))]
        self._after = [float(mass) for mass in accumulate(reversed(masses), initial=Fraction(0))][::-1]
        # with more than this beyond the reach, an end at the last lag is cheaper than none
        self._spared = float(tables.left[:, -1].max()), float(tables.right[:, -1].max())

    @property
    def order(self) -> list[int]:
        """The runs to look at, by the largest density in sight.

        Long and dense ones come first: they reach their ceiling.
        """
        low, high = self._scene.first, self._scene.stop
        chosen = (
            index
            for index, run in enumerate(self.runs)
            if (low is None or run.start >= low) and (high is None or run.stop <= high)
        )

        def rank(index: int) -> tuple[float, float, int, int]:
            run = self.runs[index]
            return -self.seen[index], -run.density, -run.length, run.start

        return sorted(chosen, key=rank)

    def place(self, index: int) -> _Place:
        """What the nodes of a run see."""
        low, high = self._ranges[index]
        # a run out of sight means that those in sight fill the reach
        left_idle = self._scene.open_left or (low > 0 and self._before[low] >= self._spared[0])
        right_idle = self._scene.open_right or (high < len(self.runs) and self._after[high] >= self._spared[1])
        return _Place(
            *self._shapes[index],
            self._shapes[low:index][::-1],
            self._shapes[index + 1 : high],
            (
                math.inf if left_idle else self._before[index],
                math.inf if right_idle else self._after[index + 1],
            ),
        )
