"""The search for the best quilt, by Dinkelbach's iteration on separable sides.

The score of a quilt is card / (epsilon - influence). With influence L(a) + R(b) and card (a - 1/2) + (b - 1/2), the
sign of ``card - sigma * (epsilon - influence)`` is decided by two minimisations apart, one per side; the least sigma
that some quilt reaches is the root of their sum. Every step costs one pass over the lags, never one over all pairs of
lags.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .chains import FloatArray


@dataclass(frozen=True, slots=True)
class Choice:
    """The best quilt of a node.

    Its sides (None for one that is absent), number of slots inside, influence, and score.
    """

    left: int | None
    right: int | None
    card: int
    influence: float
    sigma: float


@dataclass(frozen=True, slots=True)
class _Side:
    """What one side offers: lags 1..lags, or nothing, which leaves ``absent`` slots on this side inside."""

    table: FloatArray
    lags: int
    absent: int | None

    def best(self, sigma: float) -> tuple[int | None, int, float]:
        """Lag, twice the card's share (a - 1/2), and influence of the best end of this side at a given sigma."""
        lag, half, influence = None, 0, 0.0
        cost = float("inf")
        if self.absent is not None:
            half, cost = 2 * self.absent + 1, self.absent + 0.5
        if self.lags:
            costs = _halves(self.lags) + sigma * self.table[: self.lags]
            first = int(np.argmin(costs))
            if costs[first] < cost:
                lag, half, influence = first + 1, 2 * first + 1, float(self.table[first])
        return lag, half, influence


def _halves(lags: int) -> FloatArray:
    return np.arange(lags, dtype=np.float64) + 0.5


def _refine(left: _Side, right: _Side, epsilon: float, choice: Choice) -> Choice:
    """Dinkelbach's iteration from a usable quilt down to the best one."""
    while True:
        back, back_half, back_influence = left.best(choice.sigma)
        ahead, ahead_half, ahead_influence = right.best(choice.sigma)
        card = (back_half + ahead_half) // 2
        influence = back_influence + ahead_influence
        if influence >= epsilon:
            return choice
        better = Choice(back, ahead, card, influence, card / (epsilon - influence))
        if better.sigma >= choice.sigma:
            return choice
        choice = better


def endless(left: FloatArray, right: FloatArray, epsilon: float, usable: int) -> Choice:
    """The best two-sided quilt of a slot far from both ends.

    Args:
        left: Influence by lag, shape (lags,).
        right: The same for the other side.
        epsilon: Target.
        usable: A lag with ``left + right < epsilon`` to start from.
    """
    influence = float(left[usable - 1] + right[usable - 1])
    card = 2 * usable - 1
    start = Choice(usable, usable, card, influence, card / (epsilon - influence))
    return _refine(_Side(left, len(left), None), _Side(right, len(right), None), epsilon, start)


def every_node(left: FloatArray, right: FloatArray, epsilon: float, length: int) -> tuple[int, Choice]:
    """Algorithm 4 of [SWC17]: the node whose best quilt needs most noise, from 1, and that quilt.

    The middle node among equals.

    Every quilt of every node counts: two-sided, one-sided and empty. The largest sigma so far is tried on all nodes
    at once, in one pass of prefix minima: no node needs more, or the one that misses most is solved and raises it.

    Args:
        left: Influence by lag, shape (length - 1,).
        right: The same for the other side.
        epsilon: Target.
        length: Number of slots T.
    """
    nodes = np.arange(1, length + 1)

    def solve(node: int) -> Choice:
        trivial = Choice(None, None, length, 0.0, length / epsilon)
        before, after = node - 1, length - node
        return _refine(_Side(left, before, before), _Side(right, after, after), epsilon, trivial)

    def cheapest(table: FloatArray, sigma: float) -> FloatArray:
        """Cost of one side with n slots on it, for n = 0..length-1."""
        costs = np.minimum.accumulate(_halves(length - 1) + sigma * table)
        return np.minimum(np.concatenate([[np.inf], costs]), _halves(length))

    worst = (length + 1) // 2
    choice = solve(worst)
    while True:
        missing = cheapest(left, choice.sigma)[nodes - 1] + cheapest(right, choice.sigma)[length - nodes]
        node = int(np.argmax(missing)) + 1
        candidate = solve(node)
        if candidate.sigma <= choice.sigma:
            return worst, choice
        worst, choice = node, candidate
