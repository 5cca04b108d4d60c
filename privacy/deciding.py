"""Which slot of a window, or of an endless stream, decides, and how many lags must be looked at to know.

*Lags.* A quilt with at least sigma epsilon slots inside scores no better than sigma, so once tables reach that far no
more lags can matter. They are made 64, 128, ... at a time until they do.

*A stationary chain.* All slots are alike but for their distance to the ends, and of two slots the one with more room
on both sides needs no less noise (``ChainNodes.between``). So one solution bounds a whole range of slots; a range whose
bound is above the largest noise so far is halved.

*Any other start.* The first slots are looked at one by one, all behind them are bounded together, and there are more
first slots until the bound no longer decides, or is close to what the slots behind really need.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from .chains import MarkovChain
from .nodes import ChainNodes, Nodes
from .worst import Found

Search: TypeAlias = Callable[[Nodes, float, int], Found | None]

_FIRST_LAGS = 64
_REACHED = 1e-12
"""A bound this close, relatively, to what is reached counts as reached."""

_CLOSE = 1e-9
"""The same for the slots behind the first ones of a chain that is not stationary."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What decides the noise of one chain.

    Attributes:
        found: The quilt, with its score; None if no slot has a secret pair.
        node: The slot, from 1; None for a stream.
        lags: How far quilts were tried.
        slack: Why less noise may do, one sentence; None where it may not.
    """

    found: Found | None
    node: int | None
    lags: int
    slack: str | None = None


def decide(
    chain: MarkovChain, epsilon: float, length: int | None, search: Search, *, any_initial: bool, literal: bool
) -> Decision:
    """Find the slot, pair and quilt that decide.

    Args:
        chain: The chain.
        epsilon: Target.
        length: Slots of the window; None for a stream.
        search: The search over slots, set-wise or pairwise.
        any_initial: Whether every initial distribution is meant.
        literal: Whether states that are impossible at an earlier slot count.

    Raises:
        ChainError: If the chain is to start stationary and is reducible.
    """
    if chain.states == 1:
        return Decision(None, None if length is None else (length + 1) // 2, 0)
    source = ChainNodes(chain, length, any_initial=any_initial, literal=literal)
    if length is None:
        return _every_slot(source, epsilon, search)
    return (_homogeneous if source.is_homogeneous else _from_the_start)(source, epsilon, length, search)


def _wider(found: Found | None, epsilon: float, lags: int, most: float) -> int:
    """How many lags to try next; no more than there are if wider quilts cannot matter."""
    needed = 0.0 if found is None else found.sigma * epsilon
    return int(min(most, max(lags, min(needed + 1, 2 * lags))))


def _every_slot(source: ChainNodes, epsilon: float, search: Search, most: float = np.inf) -> Decision:
    lags = int(min(_FIRST_LAGS, most))
    while True:
        more = source.extend(lags)
        found = search(source.between(), epsilon, 0)
        further = _wider(found, epsilon, lags, most)
        if further == lags or not more:
            return Decision(found, None, source.tables.lags, _cut(source) if further > lags else None)
        lags = further


def _homogeneous(source: ChainNodes, epsilon: float, length: int, search: Search) -> Decision:
    endless = _every_slot(source, epsilon, search, length - 1)

    def solved(first: int, last: int) -> Found | None:
        # slots from 1; all of them have at most so many before and behind them
        return search(source.between(last - 1, length - first), epsilon, 0)

    node = (length + 1) // 2
    best = solved(node, node)
    if best is None:
        return Decision(None, node, endless.lags, endless.slack)
    ranges: list[tuple[float, int, int]] = [(-np.inf, 1, length)]
    reached = best.sigma
    while ranges:
        bound, first, last = heapq.heappop(ranges)
        if -bound <= best.sigma * (1 + _REACHED):
            reached = max(reached, -bound)
            break
        middle = (first + last) // 2
        for low, high in ((first, middle), (middle + 1, last)) if first < last else ((first, last),):
            part = solved(low, high)
            if part is None or part.sigma <= best.sigma:
                continue
            if low == high:
                best, node = part, low
            else:
                heapq.heappush(ranges, (-part.sigma, low, high))
    return Decision(replace(best, sigma=max(best.sigma, reached)), node, endless.lags, endless.slack)


def _from_the_start(source: ChainNodes, epsilon: float, length: int, search: Search) -> Decision:
    start = _Start(source, epsilon, length, search)
    lags = min(_FIRST_LAGS, length - 1)
    while True:
        more = source.extend(lags)
        near, behind = start.first_slots(), start.behind_them()
        further = max(_wider(found, epsilon, lags, length - 1) for found in (near, behind))
        if further == lags or not more:
            break
        lags = further
    slack, looked_at = _cut(source) if further > lags else None, start.count
    if further == lags:
        source.narrow(max(1, lags))
    while more and start.is_open(near, behind, lags):
        more = source.extend(min(2 * (start.count - 1), length - 1))
        behind = start.behind_them()
    if start.count > looked_at:
        near = start.first_slots()
    if behind is None or behind.sigma <= _sigma(near):
        return Decision(near, (length + 1) // 2 if near is None else near.node + 1, source.tables.lags, slack)
    if start.is_open(near, behind, lags):
        slack = f"the slots behind the first {start.count} were bounded together: less noise may do"
    return Decision(behind, (length + 1) // 2, source.tables.lags, slack)


@dataclass(frozen=True, slots=True)
class _Start:
    """The slots of a window of a chain that does not start stationary: the first ones, and all behind them."""

    source: ChainNodes
    epsilon: float
    length: int
    search: Search

    @property
    def count(self) -> int:
        """How many slots are looked at one by one: as many as the lags allow."""
        return min(self.length, self.source.tables.lags + 1)

    def first_slots(self) -> Found | None:
        """What decides among the first slots; the one in their middle among equals."""
        return self.search(self.source.window(self.length, self.count), self.epsilon, (self.count - 1) // 2)

    def behind_them(self) -> Found | None:
        """What decides for the slots behind the first, bounded together."""
        if self.count == self.length:
            return None
        beyond = self.source.between(self.length - 1, self.length - 1 - self.count, self.count)
        return self.search(beyond, self.epsilon, 0)

    def is_open(self, near: Found | None, behind: Found | None, reach: int) -> bool:
        """Whether the bound on the slots behind decides, and is not known to be close to what they need.

        It is close where the start terms can hardly differ any more, and where the states that cannot come back are
        out of the quilts' sight: they are gone after k^2 steps.
        """
        if _sigma(behind) <= _sigma(near) * (1 + _CLOSE):
            return False
        return self.source.spread > _CLOSE or self.count <= reach + self.source.states**2


def _sigma(found: Found | None) -> float:
    return 0.0 if found is None else found.sigma


def _cut(source: ChainNodes) -> str | None:
    """That the longest table was too short to know that no wider quilt is better."""
    if source.is_settled:
        return None
    return f"quilts wider than {source.tables.lags} slots to a side were not tried: less noise may do"
