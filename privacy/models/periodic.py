"""A chain with a kernel for every slot of the day or week, in its periodic steady state.

The kernel out of slot t is the one at t modulo the period n, counted from slot 0 of the slots' clock, which is public.
The marginals are those that repeat after a period, and the kernels back in time follow from them.

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

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..validation import as_list
from . import markov_chain
from .belief import Belief
from .directions import Pair
from .kernels import PeriodicKernel
from .markov_chain import ChainError, FloatArray, MarkovChain, frozen

BoolArray = npt.NDArray[np.bool_]

_DAY_US = 86_400_000_000
_MOST_SLOTS = 100_000


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

    transitions: FloatArray

    def __init__(self, transitions: npt.ArrayLike | Iterable[npt.ArrayLike | MarkovChain]) -> None:
        wanted = "transition matrices, one for each slot of the period: give P[x][y] of each slot"
        given = as_list("transitions", transitions, wanted, ChainError)
        if not 1 <= len(given) <= _MOST_SLOTS:
            raise ChainError(
                f"transitions has {len(given)} matrices, but must have from 1 to {_MOST_SLOTS}: give one for each slot "
                "of the day or week"
            )
        kernels = [chain.transition for chain in markov_chain.chains_of("transitions", given)]
        for slot, kernel in enumerate(kernels):
            if len(kernel) != len(kernels[0]):
                raise ChainError(
                    f"transitions[{slot}] has {len(kernel)} states and transitions[0] has {len(kernels[0])}: give all "
                    "slots the same states"
                )
        object.__setattr__(self, "transitions", frozen(np.stack(kernels)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PeriodicChain):
            return NotImplemented
        return self.transitions.shape == other.transitions.shape and self._key == other._key

    def __hash__(self) -> int:
        return hash((self.transitions.shape, self._key))

    def __repr__(self) -> str:
        return f"PeriodicChain(slots={self.slots}, states={self.states})"

    def __reduce__(self) -> tuple[type[PeriodicChain], tuple[list[FloatArray]]]:
        # rebuilt by the constructor: a pickled array comes back writable
        return PeriodicChain, (list(self.transitions),)

    @cached_property
    def _key(self) -> bytes:
        return self.transitions.tobytes()

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
        period = self.slots * interval_us
        if _DAY_US % period and period != 7 * _DAY_US:
            a_day = _DAY_US / interval_us
            raise ChainError(
                f"transitions has {self.slots} matrices, one a slot, but a day has {a_day:g} slots and a week "
                f"{7 * a_day:g}: the period must divide the day, or be the week"
            )

    @cached_property
    def live(self) -> BoolArray:
        """Which states the steady state may have at each slot, shape (n, k)."""
        edges = self.transitions > 0
        whole = np.eye(self.states, dtype=bool)
        for step in edges:
            whole = whole @ step
        groups = markov_chain.communicating_classes(whole)
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
        """The law of each slot in the steady state, shape (n, k).

        Products and the elimination of Grassmann, Taksar and Heyman never subtract: rare states keep their relative
        accuracy.

        Raises:
            ChainError: There is no unique steady state, or a state is rarer than a float can say.
        """
        kept = np.flatnonzero(self.live[0])
        whole = np.eye(self.states)
        for step in self.transitions:
            whole = whole @ step
        found = np.zeros((self.slots, self.states))
        found[0, kept] = MarkovChain(whole[np.ix_(kept, kept)]).stationary
        for slot in range(1, self.slots):
            found[slot] = found[slot - 1] @ self.transitions[slot - 1]
        if not (found[self.live] >= markov_chain.LEAST_WEIGHT).all():
            raise ChainError("a state is rarer at some slot than double precision can say: merge rare bins")
        return frozen(found)

    @cached_property
    def reversals(self) -> FloatArray:
        """Kernel from slot s back to slot s - 1, shape (n, k, k).

        P*_s(x, y) = m_{s-1}(y) P_{s-1}(y, x) / m_s(x). The row of an impossible state is the law of the slot before.
        """
        marginals, before = self.marginals, np.roll(self.marginals, 1, axis=0)
        flows = (before[:, :, None] * np.roll(self.transitions, 1, axis=0)).transpose(0, 2, 1)
        live = self.live
        rows = flows / np.where(live, marginals, 1.0)[:, :, None]
        return frozen(np.where(live[:, :, None], rows, before[:, None, :]))

    @property
    def both_ways(self) -> tuple[PeriodicKernel, PeriodicKernel]:
        """The kernels of all slots, and those back in time, each with the rounding of its entries.

        Raises:
            ChainError: There is no unique steady state.
        """
        # A product of n kernels errs by n k roundings in each entry, a stationary distribution by 2 k times the error
        # of its kernel and k^3 roundings of its own, a marginal by n k more; a reversal divides two of them.
        error = 2.0**-50 * self.states**2 * (4 * self.slots + 2 * self.states)
        ahead = PeriodicKernel(self.transitions, self.live, 1, 2.0**-50 * self.states)
        return ahead, PeriodicKernel(self.reversals, self.live, -1, error)

    def directions(self) -> tuple[Pair, ...]:
        """The kernels of all slots, and those back in time.

        Raises:
            ChainError: There is no unique steady state, or no slot of it has two possible states.
        """
        if (self.live.sum(axis=1) < 2).all():  # noqa: PLR2004 - a secret is about two states
            raise ChainError("the steady state has one state at every slot: there is no secret to protect")
        return (self.both_ways,)

    def to_dict(self) -> dict[str, Any]:
        """A plain form for JSON; ``from_dict`` gives the same chain back, bit for bit."""
        return {"kind": "periodic-chain", "transitions": self.transitions.tolist()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PeriodicChain:
        """Read the form that ``to_dict`` writes."""
        if "transitions" not in data:
            raise ChainError("a periodic chain needs the field transitions, a matrix for each slot: add it")
        return cls(data["transitions"])
