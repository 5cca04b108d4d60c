"""A chain with a kernel for every slot of the day or week, in its periodic steady state.

The kernel out of slot t is the one at t modulo the period n, counted from slot 0 of the slots' clock, which is public.
The marginals are those that repeat after a period, and the kernels back in time follow from them. Which states reach
which is read off the positive entries alone, so these answers are exact; no eigenvalue is compared with 1.

A chain with one kernel (:class:`.MarkovChain`) is the chain of period 1.

>>> import numpy as np
>>> from quiltstream.privacy.accounting import endless
>>> night, day = [[0.9, 0.1], [0.4, 0.6]], [[0.7, 0.3], [0.1, 0.9]]
>>> chain = PeriodicChain([night, day])
>>> chain.marginals.round(4).tolist()
[[0.4857, 0.5143], [0.6429, 0.3571]]
>>> round(1 / endless(chain, 1.0).density, 3)
3.46
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..validation import as_list, numbers
from .belief import Belief, ChainError
from .couplings import FloatArray
from .directions import Pair
from .kernels import Kernel

BoolArray = npt.NDArray[np.bool_]

SUM_TOLERANCE = 1e-9
"""How far a row, or the initial distribution, may sum from 1 before it is refused."""

_TOO_RARE = "a state is rarer than double precision can say: merge rare bins"


def frozen(array: FloatArray) -> FloatArray:
    """The same array, closed to writing."""
    array.setflags(write=False)
    return array


def communicating_classes(edges: BoolArray) -> tuple[tuple[int, ...], ...]:
    """The classes of states that reach each other, each sorted, ordered by their smallest state."""
    reach: BoolArray = edges | np.eye(len(edges), dtype=np.bool_)
    while not np.array_equal(further := reach @ reach, reach):
        reach = further
    mutual: BoolArray = reach & reach.T
    return tuple(dict.fromkeys(tuple(np.flatnonzero(row).tolist()) for row in mutual))


def reachable(start: BoolArray, edges: BoolArray, slots: int) -> BoolArray:
    """Which states are possible at each of the first slots, from those of the first one; shape (slots, k)."""
    found = np.zeros((slots, len(start)), dtype=np.bool_)
    found[0] = start
    for slot in range(1, slots):
        found[slot] = edges[found[slot - 1]].any(axis=0)
    return found


def steady_state(transition: FloatArray) -> FloatArray:
    """The stationary distribution of an irreducible kernel, shape (k,).

    By the elimination of Grassmann, Taksar and Heyman, which never subtracts: rare states keep their relative accuracy.

    Raises:
        ChainError: A ratio of two probabilities is beyond every float.
    """
    try:
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            work = transition.copy()
            for state in range(len(work) - 1, 0, -1):
                work[:state, state] /= work[state, :state].sum()
                work[:state, :state] += np.outer(work[:state, state], work[state, :state])
            weights = np.ones(len(work))
            for state in range(1, len(work)):
                weights[state] = weights[:state] @ work[:state, state]
                # brought near 1 by a power of two, which loses no digit, so that none overflows
                if weights[state] > 2.0**500:
                    weights = np.ldexp(weights, -np.frexp(weights[state])[1])
            weights /= weights.sum()
    except FloatingPointError:
        weights = np.full(1, np.nan)
    if not np.isfinite(weights).all():  # a product of matrices need not raise
        raise ChainError(_TOO_RARE)
    return frozen(weights)


def probabilities(name: str, values: npt.ArrayLike) -> FloatArray:
    """An array of probabilities of its own.

    Raises:
        ChainError: One is none.
    """
    try:
        array = numbers(name, values)
    except TypeError as error:
        raise ChainError(str(error)) from None
    bad = np.argwhere(~np.isfinite(array) | (array < 0))
    if bad.size:
        where = tuple(int(index) for index in bad[0])
        raise ChainError(
            f"{name}{list(where)} is {float(array[where])!r}, but a probability is finite and not negative: "
            "mend the entry, or fit the chain anew"
        )
    return array + 0.0  # -0.0 and 0.0 are the same probability and must have the same bytes


def distribution(name: str, row: FloatArray) -> FloatArray:
    """A row that sums to 1: divided by its sum, but for one within 2**-50, which a file gives back bit for bit."""
    total = math.fsum(row.tolist())
    if abs(total - 1) > SUM_TOLERANCE:
        raise ChainError(
            f"{name} sums to {total!r}, but must sum to 1 within {SUM_TOLERANCE:g}: "
            "divide it by its sum if that is what was meant"
        )
    return row if abs(total - 1) <= 2.0**-50 else row / total


def kernel_of(values: npt.ArrayLike) -> FloatArray:
    """A transition matrix, shape (k, k), of an array, a list of rows, or a data frame, which is read by position.

    Raises:
        ChainError: It is none, or a data frame whose index has the labels of its columns in another order.
    """
    columns, index = (getattr(values, axis, None) for axis in ("columns", "index"))
    if columns is not None and index is not None and not callable(index):
        to, states = list(columns), list(index)
        # other labels are names of the rows alone, such as 0, 1, ...
        if states != to and len(states) == len(to) and set(states) == set(to):
            raise ChainError(
                f"transition has rows {_labels(states)} and columns {_labels(to)}, but entries are taken by position: "
                "give both in one order, as transition.loc[transition.columns] does"
            )
    matrix = probabilities("transition", values)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        raise ChainError(
            f"transition has shape {matrix.shape}, but must be square with one row and one column per state: "
            "give P[x][y], the probability of going from x to y"
        )
    return np.stack([distribution(f"transition row {state}", row) for state, row in enumerate(matrix)])


def _labels(labels: list[Any]) -> str:
    return ", ".join(str(one) for one in labels[:8]) + (", ..." if len(labels) > 8 else "")


@dataclass(frozen=True, eq=False)
class PeriodicChain(Belief):
    """A kernel for each slot of a period, and the marginals that repeat with it.

    A slot may be given as a chain, of which the matrix is taken; its start is not used.

    States that the steady state never has at a slot are impossible there: no secret is about them.

    Attributes:
        transitions: Kernel from slot s to s + 1, shape (n, k, k), rows sum to 1; read-only.

    Raises:
        ChainError: The kernels are none, or differ in their number of states.
    """

    named = "periodic-chain"
    written: ClassVar[tuple[str, ...]] = ("transitions",)

    transitions: FloatArray

    def __init__(self, transitions: npt.ArrayLike | Iterable[npt.ArrayLike | PeriodicChain]) -> None:
        wanted = "transition matrices, one for each slot of the period: give P[x][y] of each slot"
        given = as_list("transitions", transitions, wanted, ChainError)
        if not 1 <= len(given) <= 100_000:
            raise ChainError(
                f"transitions has {len(given)} matrices, but must have from 1 to 100000: give one for each slot "
                "of the day or week"
            )
        kernels = list[FloatArray]()
        for slot, one in enumerate(given):
            try:
                kernels.append(kernel_of(getattr(one, "transition", one)))
            except ChainError as error:
                raise ChainError(f"transitions[{slot}]: {error}") from None
            if len(kernels[-1]) != len(kernels[0]):
                raise ChainError(
                    f"transitions[{slot}] has {len(kernels[-1])} states and transitions[0] has {len(kernels[0])}: give "
                    "all slots the same states"
                )
        object.__setattr__(self, "transitions", frozen(np.stack(kernels)))

    def __repr__(self) -> str:
        return f"PeriodicChain(slots={self.slots}, states={self.states})"

    @property
    def slots(self) -> int:
        """Slots n of a period."""
        return len(self.transitions)

    @property
    def states(self) -> int:
        """Number of states k."""
        return self.transitions.shape[1]

    def check_interval(self, interval_us: int) -> None:
        """Refuse a period that is neither a week nor a part of a day in whole numbers of slots.

        Raises:
            ChainError: The slots of the period times ``interval_us`` are neither.
        """
        day, period = 86_400_000_000, self.slots * interval_us
        if day % period and period != 7 * day:
            a_day = day / interval_us
            raise ChainError(
                f"transitions has {self.slots} matrices, one a slot, but a day has {a_day:g} slots and a week "
                f"{7 * a_day:g}: the period must divide the day, or be the week"
            )

    @cached_property
    def live(self) -> BoolArray:
        """Which states the steady state may have at each slot, shape (n, k).

        Raises:
            ChainError: There is no unique steady state.
        """
        edges = self.transitions > 0
        whole = np.eye(self.states, dtype=bool)
        for step in edges:
            whole = whole @ step
        groups = communicating_classes(whole)
        closed = [group for group in groups if not np.delete(whole[list(group)], group, axis=1).any()]
        if len(closed) != 1:
            raise ChainError(
                f"the chain is reducible over its period: {len(closed)} classes of states are never left, so it has no "
                "unique steady state: merge rare bins, or smooth the counts"
            )
        found = np.zeros((self.slots, self.states), dtype=bool)
        here = np.zeros(self.states, dtype=bool)
        here[list(closed[0])] = True
        for slot, step in enumerate(edges):
            found[slot] = here
            here = step[here].any(axis=0)
        found.setflags(write=False)
        return found

    @cached_property
    def marginals(self) -> FloatArray:
        """The law of each slot in the steady state, shape (n, k); by sums and products alone.

        Raises:
            ChainError: There is no unique steady state, or a state is rarer than a float can say.
        """
        kept = np.flatnonzero(self.live[0])
        whole = self.transitions[0]
        for step in self.transitions[1:]:
            whole = whole @ step
        found = np.zeros((self.slots, self.states))
        found[0, kept] = steady_state(whole[np.ix_(kept, kept)])
        for slot in range(1, self.slots):
            found[slot] = found[slot - 1] @ self.transitions[slot - 1]
        if not (found[self.live] >= 1e-290).all():  # below it digits may have been lost on the way
            raise ChainError(_TOO_RARE)
        return frozen(found)

    @cached_property
    def reversals(self) -> FloatArray:
        """Kernel from slot s back to slot s - 1, shape (n, k, k).

        P*_s(x, y) = m_{s-1}(y) P_{s-1}(y, x) / m_s(x). The row of an impossible state is the law of the slot before.
        """
        marginals, before = self.marginals, np.roll(self.marginals, 1, axis=0)
        flows = np.roll(self.transitions, 1, axis=0).transpose(0, 2, 1) * before[:, None, :]
        live = self.live[:, :, None]
        return frozen(np.where(live, flows / np.where(live, marginals[:, :, None], 1.0), before[:, None, :]))

    @property
    def both_ways(self) -> tuple[Kernel, Kernel]:
        """The kernels of all slots, and those back in time, each with the rounding of its entries.

        Raises:
            ChainError: There is no unique steady state.
        """
        # A product of n kernels errs by (n - 1) k roundings in each entry, a stationary distribution by 2 k times the
        # error of its kernel and k^3 roundings of its own, a marginal by n k more; a reversal divides two of them.
        error = 2.0**-50 * self.states**2 * (4 * (self.slots - 1) + self.states)
        return (
            Kernel(self.transitions, 2.0**-50 * self.states, self.live, 1),
            Kernel(self.reversals, error, self.live, -1),
        )

    def directions(self) -> tuple[Pair, ...]:
        """The kernels of all slots, and those back in time.

        Raises:
            ChainError: There is no unique steady state, or no slot of it has two possible states.
        """
        if (self.live.sum(axis=1) < 2).all():
            raise ChainError("the steady state has one state at every slot: there is no secret to protect")
        return (self.both_ways,)
