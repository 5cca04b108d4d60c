"""The loss of a line of runs in a history of beliefs, as it is charged.

>>> from quiltstream.privacy.models.markov_chain import MarkovChain
>>> week = Density().with_spans([(0, 48, 0.05), (24, 72, 0.05)])
>>> worst = Account(History([(None, MarkovChain([[0.9, 0.1], [0.4, 0.6]]))]), week).worst
>>> round(worst.loss, 4), worst.slot
(0.3119, 35)
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import product
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..models.belief import Belief
from ..models.couplings import FloatArray
from ..models.memory import Remembering
from ..models.serialisation import check_belief
from ..validation import float_above
from .certificates import constant_loss
from .charges import ZERO, Density, Span
from .recursion import USELESS, Side, State, Tails, changed, members_of

IntArray = npt.NDArray[np.intp]

Swept: TypeAlias = tuple[Tails, ...]
"""Tails of a run, by member."""


class History:
    """Beliefs one after the other, each from its slot on.

    A kernel changes at slot c: the transition out of c, and all later ones, follow the new belief, whatever the start.
    So F of slots from c on uses the new kernels and B of slots behind c, both any member of the new belief; across the
    change a block ends at c, where the worst member of the other side counts.
    """

    def __init__(self, segments: Sequence[tuple[int | None, Belief]]) -> None:
        """Take the beliefs in order, each with the slot from which on it holds (None for the first)."""
        self.segments = tuple((start, check_belief(belief)) for start, belief in segments)
        self.changes = tuple(start for start, _ in segments if start is not None)
        self.beliefs = tuple(
            belief if start is None else check_belief(belief.from_any_start()) for start, belief in self.segments
        )
        self.members = tuple(members_of(belief) for belief in self.beliefs)
        # the kernel out of a change is new, and the kernel back from the next slot
        self.cuts = frozenset(slot for change in self.changes for slot in (change, change + 1))

    @property
    def is_idle(self) -> bool:
        """Whether there is no secret pair, so that nothing is lost."""
        return not any(self.members)

    def part(self, slot: int, *, back: bool) -> int:
        """The segment of the kernel out of a slot, or of the one back from it."""
        return (bisect_left if back else bisect_right)(self.changes, slot)

    def sides(self, part: int, *, back: bool) -> list[Side]:
        """The sides of the members of a segment."""
        return [member[back] for member in self.members[part]]

    def empty(self, slot: int, *, back: bool) -> list[State]:
        """Nothing is charged beyond a slot."""
        return [side.empty() for side in self.sides(self.part(slot, back=back), back=back)]

    def swept(
        self, states: Sequence[State], slots: tuple[int, int], beyond: int, density: float, *, back: bool
    ) -> Swept:
        """Tails of a run by member from the states beyond it, the nearest of whose slots is given."""
        part = self.part(slots[0], back=back)
        sides = self.sides(part, back=back)
        if self.part(beyond, back=back) != part:
            states = [changed(states, side, beyond) for side in sides]
        # the slot next to what lies beyond
        near = slots[0] if back else slots[1] - 1
        return tuple(
            side.run(state, density, slots[1] - slots[0], near) for side, state in zip(sides, states, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Worst:
    """The slot that decides a loss."""

    loss: float = 0.0  # epsilon, rounded up
    slot: int | None = None  # None where nothing is lost, and where all slots are bounded together
    density: float | None = None  # the largest density, where it bounds all slots together
    total: bool = False  # whether all density there is is no more than what the recursion found


class Account:
    """What a line loses in one history; a charge is swept from both its ends until a run leaves what it left before."""

    def __init__(
        self,
        history: History,
        line: Density | None = None,
        ends: tuple[Sequence[State] | None, Sequence[State] | None] = (None, None),
    ) -> None:
        """Take what is believed, the line, and what lies before it and behind it by member (None: nothing charged)."""
        self.history, self.ends, self.line = history, ends, Density()
        self._ahead: list[Swept | None] = []
        self._behind: list[Swept | None] = []
        self._most: list[tuple[float, int]] = []
        self.worst = Worst()
        if line is not None and line.count and not history.is_idle:
            self._take(line, line.slots[0], line.slots[-1], self)

    def after(self, line: Density, start: int, stop: int) -> Account:
        """The account of a line of which only the density of ``[start, stop)`` differs."""
        made = Account(self.history, None, self.ends)
        if line.count and not self.history.is_idle:
            made._take(line, start, stop, self)
        return made

    def _take(self, line: Density, start: int, stop: int, before: Account) -> None:
        slots, count, old = line.slots, line.count, before.line.slots
        # runs without charges may begin between what was there and what comes
        start, stop = min(start, old[-1] if old else slots[0]), max(stop, old[0] if old else slots[-1])
        low, high = max(0, bisect_right(slots, start) - 2), min(count, bisect_left(slots, stop) + 1)
        kept = high - (count - len(before._most))
        new: list[None] = [None] * (high - low)
        self.line = line
        self._ahead = before._ahead[:low] + new + before._ahead[kept:]
        self._behind = before._behind[:low] + new + before._behind[kept:]
        self._most = before._most[:low] + [(0.0, 0)] * (high - low) + before._most[kept:]
        first = self._swept(range(high - 1, -1, -1), low, back=False)
        last = self._swept(range(low, count), high - 1, back=True)
        for index in range(first, last + 1):
            self._most[index] = self._worst_of(index)
        worst = max(self._most, key=itemgetter(0))
        loss = worst[0] if worst[0] <= USELESS else math.inf
        total = math.inf if any(self.ends) else float_above(line.mass)
        slot = slots[self._most.index(worst)] + worst[1]
        self.worst = Worst(min(loss, total), slot, total=total < loss)

    def _swept(self, order: range, needed: int, *, back: bool) -> int:
        """Sweep runs in an order, at least up to one; the last whose tails changed."""
        tails, step, slots = (self._behind, 1, self.line.slots) if back else (self._ahead, -1, self.line.slots)
        reached = order[0]
        for index in order:
            beyond = index - step
            if 0 <= beyond < len(tails):
                states = [one.leaving for one in tails[beyond] or ()]
                next_slot = slots[beyond + 1] - 1 if back else slots[beyond]
            else:
                end = self.ends[0 if back else 1]
                next_slot = slots[index] - 1 if back else slots[index + 1]
                states = self.history.empty(next_slot, back=back) if end is None else end
            made = self.history.swept(
                states, (slots[index], slots[index + 1]), next_slot, self.line.shown[index], back=back
            )
            before, tails[index] = tails[index], made
            reached = index
            passed = index > needed if back else index < needed
            if passed and all(one.leaving.key == two.leaving.key for one, two in zip(before or (), made, strict=True)):
                break
        return reached

    def _worst_of(self, index: int) -> tuple[float, int]:
        """The loss of the worst slot of a run, and its place."""
        start, stop = self.line.slots[index : index + 2]
        ahead, behind = self._ahead[index] or (), self._behind[index] or ()
        same = self.history.part(start, back=False) == self.history.part(start, back=True)
        phase = start % max(len(one.far) for one in (*ahead, *behind))
        return _worst(ahead, behind, stop - start, phase, self.line.shown[index], same=same)

    def tails(self, *, back: bool) -> list[float]:
        """The largest tail of any slot behind or ahead, by member; where the belief changes, of all members."""
        runs = [[one.most for one in run or ()] for run in (self._behind if back else self._ahead)]
        if self.history.changes:
            return [max((one for run in runs for one in run), default=0.0)]
        return [max(member) for member in zip(*runs, strict=True)]

    @property
    def leaving(self) -> list[State]:
        """What a run behind the last one would see behind it."""
        return [one.leaving for one in self._behind[-1] or ()]


@lru_cache(maxsize=4096)
def _worst(ahead: Swept, behind: Swept, length: int, phase: int, density: float, *, same: bool) -> tuple[float, int]:
    """The loss of the worst slot of a run with tails on both sides, of different segments for every two members."""
    first, last = max(len(one.near) for one in behind), length - max(len(one.near) for one in ahead)
    offsets = np.arange(length) if first >= last else np.concatenate([np.arange(first), np.arange(last, length)])
    if first < last:
        # between them all slots of a phase have the same bound
        phases = max(len(one.far) for one in (*ahead, *behind))
        inner = np.arange(first, min(last, first + phases))
        offsets = np.append(offsets, inner if phases > 1 else (first + last) // 2)
    both = zip(ahead, behind, strict=True) if same else product(ahead, behind)
    bounds = [
        (_tails(one, length - 1 - offsets, phase + offsets) + _tails(two, offsets, phase + offsets))
        .reshape(len(offsets), -1)
        .max(axis=1)
        for one, two in both
    ]
    losses = (density + np.max(bounds, axis=0)) * (1 + 2.0**-49)
    place = int(np.lexsort((offsets, -losses))[0])
    return float(losses[place]), int(offsets[place])


def _tails(tails: Tails, places: IntArray, slots: IntArray) -> FloatArray:
    """Tails of slots so many places from where the tails begin, shape (slots, k, k) or (slots, 1, 1)."""
    inside = (places < len(tails.near)).reshape(-1, *([1] * (tails.near.ndim - 1)))
    far = tails.far[slots % len(tails.far)]
    values = np.where(inside, tails.near[np.minimum(places, len(tails.near) - 1)], far)
    return values if values.ndim > 1 else values.reshape(len(places), 1, 1)


@dataclass(frozen=True, eq=False)
class Book(Remembering):
    """What is charged, and the account of it in each history; a value."""

    accounts: tuple[Account, ...]
    line: Density
    charges: tuple[Any, Span] | None  # those before, and the last one

    @classmethod
    def of(cls, histories: Iterable[History], density: Density, charges: tuple[Any, Span] | None) -> Book:
        """The book of a density in some histories."""
        histories = tuple(histories)
        line = density.with_cuts(frozenset(cut for history in histories for cut in history.cuts))
        return cls(tuple(Account(history, line) for history in histories), line, charges)

    def charged(self, span: Span) -> Book:
        """The book with one charge more."""
        start, stop, epsilon_dp = span
        line = self.line.with_rise(start, stop, Fraction(epsilon_dp))
        return Book(tuple(one.after(line, start, stop) for one in self.accounts), line, (self.charges, span))

    @property
    def histories(self) -> tuple[History, ...]:
        """What is believed, side by side."""
        return tuple(one.history for one in self.accounts)

    @cached_property
    def density(self) -> Density:
        """The density of all charges."""
        return self.line.with_cuts()

    @cached_property
    def worst(self) -> Worst:
        """The worst slot of all histories, by the least bound of each."""
        top = max(self.line.levels, default=ZERO)
        return max((least_of(one.history, one.worst, top) for one in self.accounts), key=lambda worst: worst.loss)

    def __reduce__(self) -> tuple[Callable[..., Book], tuple[Any, ...]]:
        # what is computed of a belief is computed anew
        return _reopened, (tuple(one.segments for one in self.histories), self.density, self.spans)

    @property
    def spans(self) -> list[Span]:
        """All charges, in the order in which they came."""
        found, left = list[Span](), self.charges
        while left:
            left, span = left
            found.append(span)
        return found[::-1]


def _reopened(segments: Iterable[Any], density: Density, spans: Iterable[Span]) -> Book:
    charges = None
    for span in spans:
        charges = charges, span
    return Book.of(map(History, segments), density, charges)


def least_of(history: History, worst: Worst, top: Fraction) -> Worst:
    """The worst slot, or what an endless stream of the largest density loses where that is less."""
    # no bound by the density is below the density itself
    if worst.loss > top and not history.changes:
        ceiling = constant_loss(history.segments[0][1], float_above(top))
        if ceiling < worst.loss:
            return Worst(ceiling, density=float(top))
    return worst
