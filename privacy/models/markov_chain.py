"""Markov chains over the states 0..k-1: the chain, which states reach which, and the repair of zeros.

>>> chain = MarkovChain([[0.9, 0.1], [0.4, 0.6]])
>>> chain.stationary.round(6).tolist()
[0.8, 0.2]
>>> round(chain.gap, 6)
0.75

A chain may be reducible or periodic when it is made: with a fixed start that can be what is meant. What needs an
irreducible chain (the stationary distribution and all that follows from it) says so when it is asked for. Which states
reach which, and in what period, is read off the positive entries alone, so the answers are exact; no eigenvalue is
compared with 1.

*Zeros* ([BHGKM] appendix D.2). A zero makes the quilts that it touches unusable, and enough of them a chain that does
not mix. The repair gives every zero entry a small tau and takes it off the others of its row in proportion.

>>> smooth_zeros(MarkovChain([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.25, 0.25, 0.5]]), tau=0.01).transition.tolist()
[[0.495, 0.495, 0.01], [0.01, 0.495, 0.495], [0.25, 0.25, 0.5]]
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..validation import PrivacyError, instance, numbers, positive
from .belief import Belief
from .directions import Pair
from .kernels import Kernel

BoolArray = npt.NDArray[np.bool_]


def _closure(edges: BoolArray) -> BoolArray:
    """Which state reaches which in any number of steps, none included, shape (k, k)."""
    reach: BoolArray = edges | np.eye(len(edges), dtype=np.bool_)
    while True:
        further: BoolArray = reach @ reach
        if np.array_equal(further, reach):
            return reach
        reach = further


def communicating_classes(edges: BoolArray) -> tuple[tuple[int, ...], ...]:
    """The classes of states that reach each other, each sorted, ordered by their smallest state."""
    reach = _closure(edges)
    mutual: BoolArray = reach & reach.T
    seen: set[int] = set()
    classes: list[tuple[int, ...]] = []
    for state in range(len(edges)):
        if state not in seen:
            members = tuple(int(other) for other in np.flatnonzero(mutual[state]))
            seen.update(members)
            classes.append(members)
    return tuple(classes)


def period(edges: BoolArray) -> int:
    """The greatest common divisor of the lengths of all cycles of an irreducible chain.

    Every edge u -> v closes, with the breadth-first levels of its ends, a walk of length level(u) + 1 - level(v); these
    generate the same ideal of the integers as the cycles do.
    """
    levels = np.full(len(edges), -1)
    levels[0] = 0
    frontier = np.array([0])
    while frontier.size:
        found = np.flatnonzero(edges[frontier].any(axis=0) & (levels < 0))
        levels[found] = levels[frontier[0]] + 1
        frontier = found
    tails, heads = np.nonzero(edges)
    return math.gcd(*(int(length) for length in levels[tails] + 1 - levels[heads]))


def reachable(start: BoolArray, edges: BoolArray, slots: int) -> BoolArray:
    """Which states are possible at each of the first slots, from those of the first one; shape (slots, k)."""
    found = np.zeros((slots, len(start)), dtype=np.bool_)
    found[0] = start
    for slot in range(1, slots):
        found[slot] = edges[found[slot - 1]].any(axis=0)
    return found


FloatArray = npt.NDArray[np.float64]

SUM_TOLERANCE = 1e-9
"""How far a row, or the initial distribution, may sum from 1 before it is refused."""

EXACT_SUM = 2.0**-50
"""A row this close to 1 is kept bit for bit, so that writing a table down and reading it back changes nothing."""

LEAST_WEIGHT = 1e-290
"""A stationary probability below this may have lost digits on the way."""

_LARGE = 2.0**500
"""Weights from here on are brought near 1 by a power of two, which loses no digit, so that none overflows."""

_REVERSIBLE = 1e-10
"""How far, relatively, the flows of a reversible chain may differ from their transposes."""

_SHOWN = 8

_ROWS_SHOWN = 4
"""A chain of no more states is shown by its rows."""

_TOO_RARE = "a state is rarer than double precision can say: merge rare bins"


class ChainError(PrivacyError):
    """A transition matrix or initial distribution that is not one, or a property the chain does not have."""


def frozen(array: FloatArray) -> FloatArray:
    """The same array, closed to writing."""
    array.setflags(write=False)
    return array


def _named(states: tuple[int, ...]) -> str:
    shown = ", ".join(str(state) for state in states[:_SHOWN])
    return "{" + shown + (f", ... ({len(states)} states)" if len(states) > _SHOWN else "") + "}"


def _labels(labels: list[Any]) -> str:
    return ", ".join(str(one) for one in labels[:_SHOWN]) + (", ..." if len(labels) > _SHOWN else "")


def _numbers(name: str, values: npt.ArrayLike) -> FloatArray:
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
    array += 0.0  # -0.0 and 0.0 are the same probability and must have the same bytes
    return array


def _distribution(name: str, row: FloatArray) -> FloatArray:
    total = math.fsum(row.tolist())
    if abs(total - 1) > SUM_TOLERANCE:
        raise ChainError(
            f"{name} sums to {total!r}, but must sum to 1 within {SUM_TOLERANCE:g}: "
            "divide it by its sum if that is what was meant"
        )
    return row if abs(total - 1) <= EXACT_SUM else row / total


def _transition(values: npt.ArrayLike) -> FloatArray:
    columns, index = (getattr(values, axis, None) for axis in ("columns", "index"))
    if columns is not None and index is not None and not callable(index):
        to, states = list(columns), list(index)
        # other labels are names of the rows alone, such as 0, 1, ...
        if states != to and len(states) == len(to) and set(states) == set(to):
            raise ChainError(
                f"transition has rows {_labels(states)} and columns {_labels(to)}, but entries are taken by position: "
                "give both in one order, as transition.loc[transition.columns] does"
            )
    matrix = _numbers("transition", values)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:  # noqa: PLR2004 - a matrix has two axes
        raise ChainError(
            f"transition has shape {matrix.shape}, but must be square with one row and one column per state: "
            "give P[x][y], the probability of going from x to y"
        )
    return np.stack([_distribution(f"transition row {state}", row) for state, row in enumerate(matrix)])


def _initial(values: npt.ArrayLike, states: int) -> FloatArray:
    start = _numbers("initial", values)
    if start.shape != (states,):
        raise ChainError(
            f"initial has shape {start.shape}, but the chain has {states} states: "
            f"give {states} probabilities, or None for a stationary chain"
        )
    return _distribution("initial", start)


@dataclass(frozen=True, eq=False)
class MarkovChain(Belief):
    """A chain (q, P): initial distribution and transition matrix ([SWC17] section 4.2).

    A row that sums to 1 within 1e-9 is accepted and divided by its sum; a row within 2**-50 of 1 is kept bit for bit.
    A data frame is read by position, and refused where its index has the labels of its columns in another order.

    Attributes:
        transition: P, shape (k, k), rows sum to 1; read-only.
        initial: q, shape (k,); None for a chain that starts in its stationary distribution.

    Raises:
        ChainError: If an array has the wrong shape, an entry that is no probability, or a sum other than 1.
    """

    transition: FloatArray
    initial: FloatArray | None

    def __init__(self, transition: npt.ArrayLike, initial: npt.ArrayLike | None = None) -> None:
        matrix = _transition(transition)
        start = None if initial is None else _initial(initial, len(matrix))
        object.__setattr__(self, "transition", frozen(matrix))
        object.__setattr__(self, "initial", None if start is None else frozen(start))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MarkovChain):
            return NotImplemented
        return self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        if self.states <= _ROWS_SHOWN:
            start = "" if self.initial is None else f", {self.initial.tolist()}"
            return f"MarkovChain({self.transition.tolist()}{start})"
        start = "stationary" if self.initial is None else "fixed"
        try:
            gap = f"{self.gap:.6g}"
        except ChainError:
            gap = "none"
        return f"MarkovChain(states={self.states}, gap={gap}, initial={start})"

    def __reduce__(self) -> tuple[type[MarkovChain], tuple[FloatArray, FloatArray | None]]:
        # rebuilt by the constructor: a pickled array comes back writable
        return MarkovChain, (self.transition, self.initial)

    @cached_property
    def _key(self) -> tuple[bytes, bytes | None]:
        return self.transition.tobytes(), None if self.initial is None else self.initial.tobytes()

    @property
    def states(self) -> int:
        """Number of states k."""
        return len(self.transition)

    @property
    def members(self) -> tuple[MarkovChain, ...]:
        """The chain itself."""
        return (self,)

    @property
    def ahead(self) -> Kernel:
        """The kernel from a slot to the next; rows sum to 1 within 2**-50."""
        return Kernel(self.transition, 2.0**-50 * self.states)

    def directions(self) -> tuple[Pair, ...]:
        """P, and its time reversal.

        Raises:
            ChainError: The chain has a fixed start, or is reducible.
        """
        if self.initial is not None:
            raise ChainError(
                "the chain has a fixed start, which is true at one slot of a stream only: leave initial out for a "
                "stationary chain, or use AnyInitial"
            )
        # the elimination that gives the stationary distribution never subtracts: a relative error of k^3 roundings
        return ((self.ahead, Kernel(self.reversal, 2.0**-50 * self.states**3)),)

    @cached_property
    def classes(self) -> tuple[tuple[int, ...], ...]:
        """Classes of states that reach each other; one class when the chain is irreducible."""
        return communicating_classes(self.transition > 0)

    @property
    def is_irreducible(self) -> bool:
        """Whether every state reaches every other."""
        return len(self.classes) == 1

    @cached_property
    def period(self) -> int:
        """Greatest common divisor of the lengths of the cycles; 1 for an aperiodic chain."""
        self._need_irreducible("a period")
        return period(self.transition > 0)

    @cached_property
    def stationary(self) -> FloatArray:
        """Stationary distribution pi, shape (k,).

        By the elimination of Grassmann, Taksar and Heyman, which never subtracts: rare states keep their relative
        accuracy.

        Raises:
            ChainError: If the chain is reducible, or a ratio of two probabilities is beyond every float.
        """
        self._need_irreducible("a unique stationary distribution")
        try:
            with np.errstate(over="raise", divide="raise", invalid="raise"):
                weights = self._eliminated()
        except FloatingPointError:
            raise ChainError(_TOO_RARE) from None
        if not np.isfinite(weights).all():  # a product of matrices need not raise
            raise ChainError(_TOO_RARE)
        return frozen(weights)

    def _eliminated(self) -> FloatArray:
        work = self.transition.copy()
        for state in range(self.states - 1, 0, -1):
            work[:state, state] /= work[state, :state].sum()
            work[:state, :state] += np.outer(work[:state, state], work[state, :state])
        weights = np.ones(self.states)
        for state in range(1, self.states):
            weights[state] = weights[:state] @ work[:state, state]
            if weights[state] > _LARGE:
                weights = np.ldexp(weights, -np.frexp(weights[state])[1])
        return weights / weights.sum()

    @property
    def pi_min(self) -> float:
        """Smallest stationary probability."""
        return float(self.stationary.min())

    @cached_property
    def reversal(self) -> FloatArray:
        """Time reversal P*(x, y) = pi(y) P(y, x) / pi(x), shape (k, k).

        Raises:
            ChainError: If the chain is reducible, or a state is rarer than a float can say.
        """
        weights = self._held
        return frozen(self.transition.T * weights[np.newaxis, :] / weights[:, np.newaxis])

    @cached_property
    def gap_multiplicity(self) -> int:
        """How often P P* has the eigenvalue 1: the number of its classes.

        Above 1, P P* is reducible though P may not be, and the eigenvalue below 1 is not a mixing rate. Found from
        the zeros of P.
        """
        self._need_irreducible("a spectral gap")
        edges: npt.NDArray[np.bool_] = self.transition > 0
        return len(communicating_classes(edges @ edges.T))

    @cached_property
    def rho(self) -> float:
        """Second singular value of D^1/2 P D^-1/2 with D = diag(pi), counted with multiplicity.

        The factor by which every step shrinks mean-zero functions at least; 1 where P P* is reducible, 0 for one state.
        """
        if self.gap_multiplicity > 1:
            return 1.0
        if self.states == 1:
            return 0.0
        return float(min(1.0, np.linalg.svd(self._scaled, compute_uv=False)[1]))

    @property
    def gap(self) -> float:
        """Spectral gap g of P P*, 1 - rho**2, counted with multiplicity: 0 where P P* is reducible."""
        return (1 - self.rho) * (1 + self.rho)

    @cached_property
    def is_reversible(self) -> bool:
        """Whether pi(x) P(x, y) = pi(y) P(y, x) for all states, to a relative 1e-10."""
        flow = self.stationary[:, np.newaxis] * self.transition
        return bool(np.all(np.abs(flow - flow.T) <= _REVERSIBLE * np.maximum(flow, flow.T)))

    @cached_property
    def reversible_gap(self) -> float:
        """Twice the absolute spectral gap of P, in [0, 2]; only a reversible chain has it.

        Raises:
            ChainError: The chain is not reversible.
        """
        if not self.is_reversible:
            raise ChainError(
                "reversible_gap: the chain is not reversible (its flows differ from their transposes): "
                "use gap, the gap of P P*"
            )
        if self.states == 1:
            return 2.0
        if self.period > 1:
            return 0.0
        values = np.linalg.eigvalsh((self._scaled + self._scaled.T) / 2)
        return float(max(0.0, 2 * (1 - max(abs(values[0]), abs(values[-2])))))

    def to_dict(self) -> dict[str, Any]:
        """A plain form for JSON; ``from_dict`` gives the same chain back, bit for bit."""
        return {
            "kind": "markov-chain",
            "transition": self.transition.tolist(),
            "initial": None if self.initial is None else self.initial.tolist(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MarkovChain:
        """Read the form that ``to_dict`` writes."""
        if "transition" not in data:
            raise ChainError("a chain needs the field transition, the matrix P: add it")
        return cls(data["transition"], data.get("initial"))

    @property
    def _held(self) -> FloatArray:
        """The stationary distribution, of which every probability is held to all digits."""
        weights = self.stationary
        if not (weights >= LEAST_WEIGHT).all():
            raise ChainError(_TOO_RARE)
        return weights

    @cached_property
    def _scaled(self) -> FloatArray:
        root = np.sqrt(self._held)
        return self.transition * root[:, np.newaxis] / root[np.newaxis, :]

    def _need_irreducible(self, what: str) -> None:
        if not self.is_irreducible:
            names = ", ".join(_named(states) for states in self.classes[:_SHOWN])
            more = f" and {len(self.classes) - _SHOWN} more" if len(self.classes) > _SHOWN else ""
            raise ChainError(
                f"the chain is reducible and has not {what}: its states fall into {len(self.classes)} classes that "
                f"do not all reach each other, {names}{more}: leave out states that are never left or never entered, "
                "merge rare bins, or smooth the counts"
            )


def check_chain(name: str, chain: object) -> None:
    """Refuse what is no chain by a TypeError."""
    instance(name, chain, MarkovChain)


def chains_of(name: str, given: Iterable[npt.ArrayLike | MarkovChain]) -> list[MarkovChain]:
    """The members of an argument that lists transition matrices: a chain each; one that is a chain is taken as it is.

    Raises:
        ChainError: If one is neither.
    """

    def chain(place: int, member: npt.ArrayLike | MarkovChain) -> MarkovChain:
        try:
            return member if isinstance(member, MarkovChain) else MarkovChain(member)
        except ChainError as error:
            raise ChainError(f"{name}[{place}]: {error}") from None

    return [chain(place, member) for place, member in enumerate(given)]


TAU = 1e-5
"""The value of [BHGKM] D.2."""


def smooth_zeros(chain: MarkovChain, tau: float = TAU) -> MarkovChain:
    """The chain with tau in the place of every zero: a row with z of them has its other entries times 1 - z tau.

    The initial distribution stays. It is another belief than before, not an estimate: whether so rare transitions are
    possible is an assumption, and the noise depends on it (theory section 5).

    Args:
        chain: Any chain; one without zeros comes back equal.
        tau: Probability of each transition that had none.

    Raises:
        ChainError: If tau times the zeros of some row leaves nothing for the others.
    """
    check_chain("chain", chain)
    tau = positive("tau", tau, "1e-5 is the value of the paper")
    empty = chain.transition == 0
    taken = empty.sum(axis=1) * tau
    if (taken >= 1).any():
        row = int(taken.argmax())
        raise ChainError(
            f"tau is {tau:g}, and row {row} has {int(empty[row].sum())} zeros: together they must stay below 1, "
            "choose a smaller tau"
        )
    return MarkovChain(np.where(empty, tau, chain.transition * (1 - taken)[:, np.newaxis]), chain.initial)
