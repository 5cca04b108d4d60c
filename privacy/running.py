"""The worst loss of an account as it grows, at a cost that does not grow with it.

Every run of the timeline has a value: the loss of its worst slot, or the bound that is smaller. The worst of all is
found from above: runs wait in a heap under an upper bound, and only the one on top is looked at more closely, first by
a cheaper bound and then exactly. A long stream of adjacent windows never gets beyond its first bound, a repeated week
is recognised as a place known already.

A charge changes the values of the runs that see it, and of those for which "no end" was still the cheapest choice on
the side of the charge, because less density than the last influence lay out of sight there. They are found by walking
outward from the charge until a run is met that has enough density beyond its sight already; all runs further out have
at least as much. So a charge costs what its neighbourhood holds, however long the account is. The value of a run is a
function of the density alone, and so is the maximum: the order of charges leaves no trace.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

import numpy as np

from .places import Found, Place, Pricer
from .quilts import Quilt
from .timeline import Timeline


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


@dataclass(eq=False, slots=True)
class _Item:
    """A run's value, known as far as it had to be."""

    start: int
    bound: float
    stage: Literal["ceiling", "bound", "exact"] = "ceiling"
    place: Place | None = None
    found: Found | None = None


@dataclass(slots=True)
class Patch:
    """What a charge changes: the starts of the runs that go, the runs that come, and the worst loss with them."""

    low: int
    high: int
    items: dict[int, _Item] = field(default_factory=dict[int, _Item])
    worst: Worst = field(default_factory=Worst)


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


class Running:
    """The worst loss of a timeline under one belief."""

    def __init__(self, pricer: Pricer, line: Timeline, view: View | None = None) -> None:
        """Take prices and a timeline, which only the owner changes, and only around ``patch``.

        Args:
            pricer: The prices of the belief's quilts.
            line: The account.
            view: Which slots to look at.
        """
        self._pricer, self._line = pricer, line
        self._view = View() if view is None else view
        self._starts: list[int] = []
        self._items: dict[int, _Item] = {}
        self._heap: list[tuple[float, int, int, _Item]] = []
        self._minted = 0
        self._worst = Worst()
        if line.count:
            patch = Patch(0, 0)
            self._price_all(patch)
            self.commit(patch)

    @property
    def worst(self) -> Worst:
        """The worst slot of what is committed."""
        return self._worst

    def patch(self, start: int, stop: int, mass: Fraction) -> Patch:
        """Price the timeline after a charge has been added to it; nothing is changed before ``commit``.

        Args:
            start: First slot charged.
            stop: Slot after the last.
            mass: Density summed over the slots charged.
        """
        line = self._line
        if self._pricer.is_idle:
            return Patch(0, 0)
        if not closes(self._pricer):
            return Patch(0, 0, worst=self._total())
        sight = self._pricer.reach
        low = line.find(start - sight)
        high = min(line.count, bisect_left(line.slots, stop + sight))
        # those that see the charge now; then those that did not have enough density beyond their sight before it
        while low > 0 and not self._is_settled(low - 1, mass, right=True):
            low -= 1
        while high < line.count and not self._is_settled(high, mass, right=False):
            high += 1
        patch = Patch(
            bisect_left(self._starts, line.slots[low]),
            bisect_left(self._starts, line.slots[high]),
            self._made(low, high),
        )
        self._decide(patch)
        return patch

    def commit(self, patch: Patch) -> None:
        """Let a patch be the truth."""
        self._worst = patch.worst
        for start in self._starts[patch.low : patch.high]:
            self._items.pop(start, None)
        self._starts[patch.low : patch.high] = sorted(patch.items)
        for start, item in patch.items.items():
            self._items[start] = item
            self._push(item)
        if len(self._heap) > 4 * len(self._items) + 64:
            self._heap = [entry for entry in self._heap if self._items.get(entry[1]) is entry[3]]
            heapq.heapify(self._heap)

    def _total(self) -> Worst:
        """All density there is: the loss of the slot at one end, for a pair without a usable end on its other side."""
        line, pricer = self._line, self._pricer
        if not line.count:
            return Worst(float(line.mass))
        slot, side = (
            (line.slots[-1] - 1, pricer.left) if math.isfinite(pricer.tails[1]) else (line.slots[0], pricer.right)
        )
        return Worst(float(line.mass), slot, int(pricer.rows[int(np.argmax(side[:, -1]))]), Quilt(None, None))

    def _price_all(self, patch: Patch) -> None:
        if self._pricer.is_idle:
            return
        if not closes(self._pricer):
            patch.worst = self._total()
            return
        patch.items = self._made(0, self._line.count)
        self._decide(patch)

    def _is_settled(self, index: int, mass: Fraction, *, right: bool) -> bool:
        low, high = self._in_sight(index)
        left_limit, right_limit = self._pricer.tails
        if right:
            return self._line.mass_from(high, float(mass) + right_limit + 1) - mass >= right_limit
        return self._line.mass_before(low, float(mass) + left_limit + 1) - mass >= left_limit

    def _made(self, low: int, high: int) -> dict[int, _Item]:
        line, view = self._line, self._view
        made: dict[int, _Item] = {}
        seen = self._largest_seen(low, high)
        for index in range(low, high):
            start = line.slots[index]
            if (view.first is not None and start < view.first) or (view.stop is not None and start >= view.stop):
                continue
            made[start] = _Item(start, self._pricer.ceiling(seen[index - low]))
        return made

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

    def _push(self, item: _Item) -> None:
        self._minted += 1
        heapq.heappush(self._heap, (-item.bound, item.start, self._minted, item))

    def _decide(self, patch: Patch) -> None:
        """Find the worst of the runs that stay and those that come, the earliest among equals."""
        gone = set(self._starts[patch.low : patch.high])
        coming = [(-item.bound, item.start, index, item) for index, item in enumerate(patch.items.values())]
        heapq.heapify(coming)
        aside: list[tuple[float, int, int, _Item]] = []
        try:
            while True:
                self._clear_top(gone, aside)
                new = bool(coming) and (not self._heap or coming[0][:2] < self._heap[0][:2])
                queue = coming if new else self._heap
                if not queue:
                    return
                item = queue[0][3]
                if item.stage == "exact":
                    patch.worst = self._named(item)
                    return
                self._refine(item)
                heapq.heapreplace(queue, (-item.bound, item.start, queue[0][2], item))
        finally:
            for entry in aside:
                heapq.heappush(self._heap, entry)

    def _clear_top(self, gone: set[int], aside: list[tuple[float, int, int, _Item]]) -> None:
        """Take runs off the top of the heap that are no more, or would go with a patch; the latter are put aside."""
        heap, items = self._heap, self._items
        while heap and (heap[0][1] in gone or items.get(heap[0][1]) is not heap[0][3]):
            entry = heapq.heappop(heap)
            if items.get(entry[1]) is entry[3]:
                aside.append(entry)

    def _refine(self, item: _Item) -> None:
        if item.place is None:
            item.place = self._place(self._line.find(item.start))
        if item.stage == "ceiling":
            item.stage = "bound"
            item.bound = min(item.bound, self._pricer.bound(item.place))
        else:
            item.stage = "exact"
            item.found = self._pricer.found(item.place)
            item.bound = min(item.bound, item.found.loss)

    @staticmethod
    def _named(item: _Item) -> Worst:
        found = item.found
        if found is None or found.loss < 0:
            return Worst(max(item.bound, 0.0))
        return Worst(item.bound, item.start + found.offset, found.row, found.quilt)

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
