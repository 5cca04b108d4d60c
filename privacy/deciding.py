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
_CLOSE = 1e-12
"""Bounds this close, relatively, to what is reached count as reached."""

_CLOSE_BEHIND = 1e-9
"""The same for the slots behind the first ones of a chain that is not stationary."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What decides the noise of one chain.

    Attributes:
        found: The quilt, with its score; None if no slot has a secret pair.
        node: The slot, from 1; None for a stream.
        lags: How far quilts were tried.
        is_cut: Whether the longest table was too short to know that no wider quilt is better.
    """

    found: Found | None
    node: int | None
    lags: int
    is_cut: bool


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
        return Decision(None, None if length is None else (length + 1) // 2, 0, is_cut=False)
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
            return Decision(found, None, source.tables.lags, is_cut=further > lags and not source.is_settled)
        lags = further


def _homogeneous(source: ChainNodes, epsilon: float, length: int, search: Search) -> Decision:
    endless = _every_slot(source, epsilon, search, length - 1)

    def solved(first: int, last: int) -> Found | None:
        # slots from 1; all of them have at most so many before and behind them
        return search(source.between(last - 1, length - first), epsilon, 0)

    node = (length + 1) // 2
    best = solved(node, node)
    if best is None:
        return Decision(None, node, endless.lags, endless.is_cut)
    ranges: list[tuple[float, int, int]] = [(-np.inf, 1, length)]
    reached = best.sigma
    while ranges:
        bound, first, last = heapq.heappop(ranges)
        if -bound <= best.sigma * (1 + _CLOSE):
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
    return Decision(replace(best, sigma=max(best.sigma, reached)), node, endless.lags, endless.is_cut)


def _from_the_start(source: ChainNodes, epsilon: float, length: int, search: Search) -> Decision:
    def first_slots() -> Found | None:
        return search(source.window(length, count), epsilon, (count - 1) // 2)

    def behind_them() -> Found | None:
        return search(source.between(length - 1, length - 1 - count), epsilon, 0) if count < length else None

    lags = min(_FIRST_LAGS, length - 1)
    while True:
        more = source.extend(lags)
        count = min(length, source.tables.lags + 1)
        near, behind = first_slots(), behind_them()
        further = max(_wider(found, epsilon, lags, length - 1) for found in (near, behind))
        if further == lags or not more:
            break
        lags = further
    is_cut, looked_at = further > lags and not source.is_settled, count
    if further == lags:
        source.narrow(max(1, lags))
    while more and _sigma(behind) > _sigma(near) * (1 + _CLOSE_BEHIND) and source.spread > _CLOSE_BEHIND:
        lags = min(2 * lags, length - 1)
        more = source.extend(lags)
        count = min(length, source.tables.lags + 1)
        behind = behind_them()
    if count > looked_at:
        near = first_slots()
    if _sigma(behind) > _sigma(near):
        return Decision(behind, (length + 1) // 2, source.tables.lags, is_cut)
    return Decision(near, (length + 1) // 2 if near is None else near.node + 1, source.tables.lags, is_cut)


def _sigma(found: Found | None) -> float:
    return 0.0 if found is None else found.sigma
