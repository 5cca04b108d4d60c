"""The law of how often a chain visits one state, given its state in one slot.

P(N = n, X_i = x) is a sum over sequences, but only the slot, the state and the number of visits so far matter: a
dynamic programme over (slot, state, count) carries it forward to slot i, another one carries P(visits after i | X_i)
backward, and the two are convolved ([SWC17] Algorithm 1 needs these laws for every slot and state).

The distance of two such laws is a whole number that jumps where cumulative sums meet, so it is decided exactly. Most
sums are far apart: floats with a bound on their relative error settle those. Where some are too close to tell, the
slot's laws are formed again in whole numbers of any size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .chains import MarkovChain
from .joint import exact_chain
from .transport import quantile_distance

LARGEST_EXACT = 256
"""The longest window whose laws are formed in whole numbers."""

_WORK = np.dtype(np.longdouble)
_LEAST_LOG = 0.9 * math.log(2) * float(np.finfo(_WORK).minexp)
"""Products whose logarithm stays above this keep their relative accuracy."""

Reals: TypeAlias = npt.NDArray[np.floating[Any]]


class StateCounts:
    """The laws of the number N of slots in one state, among the slots 1..T of a chain."""

    def __init__(self, chain: MarkovChain, state: int, length: int) -> None:
        """Prepare; nothing is computed yet.

        Args:
            chain: The chain.
            state: The state that is counted.
            length: Slots T of the window.

        Raises:
            ChainError: If the chain is meant to be stationary and is reducible.
        """
        self._state = state
        self._length = length
        self._start, self._rows = exact_chain(chain)

    def distance(self, node: int, pair: tuple[int, int]) -> int:
        """W_inf between the laws of N given X_node = x and given X_node = x'.

        Raises:
            ValueError: If two cumulative sums cannot be told apart and the window is too long for whole numbers.
        """
        low, high = self.bounds(node)[pair]
        return low if low == high else self.exact_distance(node, pair)

    def possible(self, node: int) -> tuple[int, ...]:
        """The states of positive probability in a slot, from 0."""
        return tuple(int(state) for state in np.flatnonzero(self._reachable[node]))

    def law(self, node: int, state: int) -> npt.NDArray[np.float64]:
        """P(N = n | X_node = state), n = 0..T, as floats; shape (T + 1,)."""
        joint = np.convolve(self._forward[node][state], self._backward[node][state])
        return np.asarray(joint / joint.sum(), dtype=np.float64)

    def bounds(self, node: int) -> dict[tuple[int, int], tuple[int, int]]:
        """Lower and upper bounds on the distance of every pair x < x' of states that the slot can be in.

        The laws are within w when F_p(n) <= F_q(n + w) and F_q(n) <= F_p(n + w) for all n, where F is the cumulative
        sum; equivalently for the upper sums U = 1 - F, which are accurate where F is close to 1. The sums are floats
        with a bound on their relative error; where products could underflow, the bounds say nothing.
        """
        states = self.possible(node)
        pairs = list(itertools.combinations(states, 2))
        if not self._accurate:
            return dict.fromkeys(pairs, (0, self._length))
        sums = {state: self._sums(node, state) for state in states}
        found: dict[tuple[int, int], tuple[int, int]] = {}
        for x, y in pairs:
            there, back = _reach(sums[x], sums[y], self._error), _reach(sums[y], sums[x], self._error)
            found[x, y] = max(there[0], back[0]), max(there[1], back[1])
        return found

    def exact_distance(self, node: int, pair: tuple[int, int]) -> int:
        """The distance in whole numbers.

        Raises:
            ValueError: If the window is too long for that.
        """
        if self._length > LARGEST_EXACT:
            raise ValueError(
                f"length is {self._length}, and the counts of slot {node + 1} have cumulative probabilities that "
                f"doubles cannot tell apart; whole numbers decide that up to a length of {LARGEST_EXACT}: use a "
                "shorter window, or a mechanism that needs no exact law (mqm_approx)"
            )
        laws = [_product(self._forward_exact[node][x], self._backward_exact[node][x]) for x in pair]
        totals = [sum(law) for law in laws]
        counts = range(self._length + 1)
        distance = quantile_distance(
            [mass * totals[1] for mass in laws[0]], counts, [mass * totals[0] for mass in laws[1]], counts
        )
        return int(distance)

    @cached_property
    def _reachable(self) -> npt.NDArray[np.bool_]:
        """Whether a state has positive probability in a slot, shape (T, k)."""
        edges = np.array([[value > 0 for value in row] for row in self._rows])
        found = np.zeros((self._length, len(self._rows)), dtype=np.bool_)
        found[0] = [value > 0 for value in self._start]
        for slot in range(1, self._length):
            found[slot] = edges[found[slot - 1]].any(axis=0)
        return found

    @cached_property
    def _accurate(self) -> bool:
        """Whether no product of the programme can leave the range in which floats keep their relative accuracy."""
        least = min(value for row in (self._start, *self._rows) for value in row if value > 0)
        return self._length * (math.log(least.numerator) - math.log(least.denominator)) > _LEAST_LOG

    @property
    def _error(self) -> float:
        """Relative error of a cumulative sum: each step multiplies and adds k + 1 numbers, all of them positive."""
        return (3 * self._length * (len(self._rows) + 4) + 16) * 2.0**-52

    @cached_property
    def _transition(self) -> Reals:
        return np.array([[float(value) for value in row] for row in self._rows], dtype=_WORK)

    @cached_property
    def _forward(self) -> list[Reals]:
        """[i][x, n] = P(X_i = x, n visits in the slots up to i), shape (k, i + 2)."""
        now = np.zeros((len(self._rows), 2), dtype=_WORK)
        for state, value in enumerate(self._start):
            now[state, int(state == self._state)] = float(value)
        found = [now]
        for _ in range(1, self._length):
            now = self._counted(self._transition.T @ now)
            found.append(now)
        return found

    @cached_property
    def _backward(self) -> list[Reals]:
        """[i][x, n] = P(n visits after slot i | X_i = x), shape (k, T - i)."""
        now: Reals = np.ones((len(self._rows), 1), dtype=_WORK)
        found: list[Reals] = [now]
        for _ in range(1, self._length):
            now = self._transition @ self._counted(now)
            found.append(now)
        return found[::-1]

    def _counted(self, table: Reals) -> Reals:
        """Count the current slot: the row of the counted state moves up by one visit."""
        wider = np.zeros((table.shape[0], table.shape[1] + 1), dtype=table.dtype)
        wider[:, :-1] = table
        wider[self._state] = np.concatenate([[0], table[self._state]])
        return wider

    def _sums(self, node: int, state: int) -> tuple[Reals, Reals]:
        joint = np.convolve(self._forward[node][state], self._backward[node][state])
        joint = joint / joint.sum()
        upper = np.concatenate([joint[::-1].cumsum()[::-1][1:], [0]])
        return joint.cumsum(), upper

    @cached_property
    def _scaled(self) -> tuple[list[int], list[list[int]]]:
        """Start and transitions as whole numbers over one denominator each."""
        below = math.lcm(*(value.denominator for row in self._rows for value in row))
        start = math.lcm(*(value.denominator for value in self._start))
        return [int(value * start) for value in self._start], [[int(value * below) for value in r] for r in self._rows]

    @cached_property
    def _forward_exact(self) -> list[list[list[int]]]:
        start, rows = self._scaled
        now = [[0, value] if state == self._state else [value, 0] for state, value in enumerate(start)]
        found = [now]
        for _ in range(1, self._length):
            columns = [_mix([row[state] for row in rows], now) for state in range(len(rows))]
            now = [[0, *column] if state == self._state else [*column, 0] for state, column in enumerate(columns)]
            found.append(now)
        return found

    @cached_property
    def _backward_exact(self) -> list[list[list[int]]]:
        _, rows = self._scaled
        now = [[1] for _ in rows]
        found = [now]
        for _ in range(1, self._length):
            counted = [[0, *row] if state == self._state else [*row, 0] for state, row in enumerate(now)]
            now = [_mix(row, counted) for row in rows]
            found.append(now)
        return found[::-1]


def _reach(p: tuple[Reals, Reals], q: tuple[Reals, Reals], error: float) -> tuple[int, int]:
    """Bounds on the least w with F_p(n) <= F_q(n + w) for all n, from the lower and upper sums of both laws."""
    (p_below, p_above), (q_below, q_above) = p, q
    loose, tight = (1 + error) / (1 - error), (1 - error) / (1 + error)
    counts = np.arange(p_below.size)
    last = p_below.size - 1
    # first n' at which F_q surely is, or at which it may be, as large; the upper sums fall, hence the minus signs
    sure = np.minimum(np.searchsorted(q_below, p_below * loose), np.searchsorted(-q_above, -p_above * tight))
    possible = np.maximum(np.searchsorted(q_below, p_below * tight), np.searchsorted(-q_above, -p_above * loose))
    # F_p is 0 below the least count of p, and its upper sum is 0 from the largest on, where F_q must have ended as well
    positive = p_below > 0
    high = np.where(positive, np.minimum(sure, last) - counts, 0)
    low = np.where(positive, np.minimum(possible, last) - counts, 0)
    return max(0, int(low.max())), max(0, int(high.max()))


def _mix(weights: Sequence[int], tables: Sequence[Sequence[int]]) -> list[int]:
    used = [(weight, table) for weight, table in zip(weights, tables, strict=True) if weight]
    return [sum(weight * table[place] for weight, table in used) for place in range(len(tables[0]))]


def _product(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Coefficients of the product of two polynomials."""
    found = [0] * (len(first) + len(second) - 1)
    for place, factor in enumerate(first):
        if factor:
            for other, value in enumerate(second):
                found[place + other] += factor * value
    return found
