"""The Wasserstein Mechanism ([SWC17] Algorithm 1), with the distances and laws that it needs.

>>> worst = wasserstein_of_table(clique_of_four(), query=sum)
>>> worst.value  # [SWC17] section 3: group privacy would say 4
2.0
>>> mechanism = WassersteinMechanism(worst.value, epsilon=1.0)
>>> round(float(mechanism.scale), 6)
2.0

*The distance.* W_inf(p, q) is the least w such that p can be turned into q without moving any mass further than w. On
the line the monotone coupling is optimal, so W_inf is the largest distance between the two quantile functions ([SWC17]
section 3).

>>> wasserstein_infinity([0.2, 0.225, 0.5, 0.075, 0], [0, 0.075, 0.5, 0.225, 0.2], range(5))
2.0

*The laws* of how often a chain visits one state, given its state in one slot. P(N = n, X_i = x) is a sum over
sequences, but only the slot, the state and the number of visits so far matter: a dynamic programme over (slot, state,
count) carries it forward to slot i, another one carries P(visits after i | X_i) backward, and the two are convolved
([SWC17] Algorithm 1 needs these laws for every slot and state).

The distance of two such laws is a whole number that jumps where cumulative sums meet, so it is decided exactly. Most
sums are far apart: floats with a bound on their relative error settle those. Where some are too close to tell, the
slot's laws are formed again in whole numbers of any size.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, NoReturn, SupportsFloat, TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from ..models.classes import FiniteClass, stated_chains
from ..models.joint_distribution import JointTable, Query, check_table, exact_chain, exact_distribution, exact_number
from ..models.markov_chain import MarkovChain, reachable
from ..validation import PrivacyError, accepted_loss, as_list, float_above, number, positive, whole
from .discrete_laplace import DiscreteLaplace, checked_level, rational_scale
from .histogram import checked_counts
from .sampling import Entropy

Number: TypeAlias = int | Fraction

#: The longest window whose laws are formed in whole numbers.
LARGEST_EXACT = 256

_WORK = np.dtype(np.longdouble)

#: Products whose logarithm stays above this keep their relative accuracy.
_LEAST_LOG = 0.9 * math.log(2) * float(np.finfo(_WORK).minexp)

Reals: TypeAlias = npt.NDArray[np.floating[Any]]

#: The largest product of states and slots for which the laws of a count are formed.
LARGEST_PROGRAMME = 4096


def wasserstein_infinity(
    p: Iterable[SupportsFloat | Fraction],
    q: Iterable[SupportsFloat | Fraction],
    support: Iterable[SupportsFloat | Fraction],
) -> float:
    """W_inf of two laws on a finite support.

    The comparison is exact: floats are read as the fractions that they stand for, so that 0.1 + 0.2 and 0.3 meet.

    Args:
        p: Probabilities, shape (n,).
        q: Probabilities, shape (n,).
        support: The values they belong to, shape (n,), in any order.

    Returns:
        The distance in the unit of the support, rounded up to a float.
    """
    first, second = exact_distribution("p", p), exact_distribution("q", q)
    given = as_list("support", support, "the values of the probabilities")
    values = [exact_number(f"support[{place}]", value) for place, value in enumerate(given)]
    if not len(first) == len(second) == len(values):
        raise ValueError(
            f"p, q and support have {len(first)}, {len(second)} and {len(values)} entries, but must have as many: "
            "give both laws on one support, with zeros where one of them has no mass"
        )
    order = sorted(range(len(values)), key=values.__getitem__)
    ordered = [values[place] for place in order]
    return float_above(
        quantile_distance([first[place] for place in order], ordered, [second[place] for place in order], ordered)
    )


def quantile_distance(
    p: Sequence[Number], p_support: Sequence[Number], q: Sequence[Number], q_support: Sequence[Number]
) -> Number:
    """The largest distance between two quantile functions, of masses with one positive sum at rising values."""
    here, there = 0, 0
    supply, demand = p[0], q[0]
    largest = abs(p_support[0] - p_support[0])
    while True:
        while not supply and here < len(p) - 1:
            here += 1
            supply = p[here]
        while not demand and there < len(q) - 1:
            there += 1
            demand = q[there]
        moved = min(supply, demand)
        if not moved:
            return largest
        largest = max(largest, abs(p_support[here] - q_support[there]))
        supply -= moved
        demand -= moved


class StateCounts:
    """The laws of the number N of slots in one state, among the slots 1..T of a chain."""

    def __init__(self, chain: MarkovChain, state: int, length: int) -> None:
        """Take a chain, the state that is counted and the slots T of the window; nothing is computed yet."""
        self._state = state
        self._length = length
        self._start, self._rows = exact_chain(chain)

    def law(self, node: int, state: int) -> npt.NDArray[np.float64]:
        """P(N = n | X_node = state), n = 0..T, as floats; shape (T + 1,)."""
        return np.asarray(self._law(node, state), dtype=np.float64)

    def bounds(self, node: int) -> dict[tuple[int, int], tuple[int, int]]:
        """Lower and upper bounds on the distance of every pair x < x' of states that the slot can be in.

        The laws are within w when F_p(n) <= F_q(n + w) and F_q(n) <= F_p(n + w) for all n, where F is the cumulative
        sum; equivalently for the upper sums U = 1 - F, which are accurate where F is close to 1. The sums are floats
        with a bound on their relative error; where products could underflow, the bounds say nothing.
        """
        states = np.flatnonzero(self._reachable[node]).tolist()
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
        forward, backward = self._whole
        laws = [np.convolve(forward[node][x], backward[node][x]) for x in pair]
        counts = range(self._length + 1)
        # each is multiplied by the other's sum, so that both have one sum
        masses = [(laws[0] * laws[1].sum()).tolist(), (laws[1] * laws[0].sum()).tolist()]
        return int(quantile_distance(masses[0], counts, masses[1], counts))

    @cached_property
    def _reachable(self) -> npt.NDArray[np.bool_]:
        """Whether a state has positive probability in a slot, shape (T, k)."""
        start, *edges = (np.array([value > 0 for value in row]) for row in (self._start, *self._rows))
        return reachable(start, np.array(edges), self._length)

    @cached_property
    def _accurate(self) -> bool:
        """Whether no number of the programme can leave the range in which floats keep their relative accuracy."""
        least = min(value for row in (self._start, *self._rows) for value in row if value > 0)
        if least < sys.float_info.min:  # a stationary start may be rarer than any entry of the matrix
            return False
        return self._length * (math.log(least.numerator) - math.log(least.denominator)) > _LEAST_LOG

    @property
    def _error(self) -> float:
        """Relative error of a cumulative sum: each step multiplies and adds k + 1 numbers, all of them positive."""
        return (3 * self._length * (len(self._rows) + 4) + 16) * 2.0**-52

    def _law(self, node: int, state: int) -> Reals:
        forward, backward = self._floats
        joint = np.convolve(forward[node][state], backward[node][state])
        return joint / joint.sum()

    def _sums(self, node: int, state: int) -> tuple[Reals, Reals]:
        law = self._law(node, state)
        upper = np.concatenate([law[::-1].cumsum()[::-1][1:], [0]])
        return law.cumsum(), upper

    @cached_property
    def _floats(self) -> tuple[list[Reals], list[Reals]]:
        start = np.array([float(value) for value in self._start], dtype=_WORK)
        return self._programme(start, np.array([[float(value) for value in row] for row in self._rows], dtype=_WORK))

    @cached_property
    def _whole(self) -> tuple[list[Reals], list[Reals]]:
        """In whole numbers of any size, over one denominator for the start and one for the rows."""
        start = math.lcm(*(value.denominator for value in self._start))
        below = math.lcm(*(value.denominator for row in self._rows for value in row))
        return self._programme(
            np.array([int(value * start) for value in self._start], dtype=object),
            np.array([[int(value * below) for value in row] for row in self._rows], dtype=object),
        )

    def _programme(self, start: Reals, transition: Reals) -> tuple[list[Reals], list[Reals]]:
        """Forward and backward tables of every slot i, in the numbers of the arguments.

        Returns:
            [i][x, n] = P(X_i = x, n visits in the slots up to i), shape (k, i + 2); and
            [i][x, n] = P(n visits after slot i | X_i = x), shape (k, T - i).
        """
        forward, backward = [self._counted(start[:, np.newaxis])], [np.ones_like(start[:, np.newaxis])]
        for _ in range(1, self._length):
            forward.append(self._counted(transition.T @ forward[-1]))
            backward.append(transition @ self._counted(backward[-1]))
        return forward, backward[::-1]

    def _counted(self, table: Reals) -> Reals:
        """Count the current slot: the row of the counted state moves up by one visit."""
        wider = np.zeros((table.shape[0], table.shape[1] + 1), dtype=table.dtype)
        wider[:, :-1] = table
        wider[self._state] = np.concatenate([[0], table[self._state]])
        return wider


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


class NotComposable(PrivacyError):  # noqa: N818 - the name says what the mechanism is
    """A release that has no composition theorem was brought to a ledger."""


@dataclass(frozen=True, slots=True)
class WassersteinDistance:
    """W of [SWC17] Algorithm 1, and where it is reached.

    Attributes:
        value: max over theta, records and secret pairs of W_inf(P(F | X_i = x), P(F | X_i = x')), in the unit of the
            query; 0 where no secret pair exists or none matters.
        member: Which theta, from 0; None where the value is 0.
        node: Which record, or slot of a chain, from 1; None where the value is 0.
        pair: The two states, x < x'; None where the value is 0.
    """

    value: float
    member: int | None
    node: int | None
    pair: tuple[int, int] | None


def wasserstein_of_table(belief: JointTable | Iterable[JointTable], query: Query) -> WassersteinDistance:
    """W for a query on a small database whose joint law is written out ([SWC17] Algorithm 1).

    Exact: the laws are fractions. Secrets are the states of every record; a pair counts under theta where both its
    states have positive probability.

    Args:
        belief: One table, or the tables of a class Theta.
        query: The answer for each database, a function of its row of states, or numbers in the order of the table (for
            several tables a function is needed, unless they list the same rows).

    Raises:
        ValueError: If the class is empty, or the query does not fit a table.
    """
    tables = as_list("belief", belief, "tables") if isinstance(belief, Iterable) else [belief]
    if not tables:
        raise ValueError("belief has no table: give at least one joint law")
    for table in tables:
        check_table("belief", table)
    worst = WassersteinDistance(0.0, None, None, None)
    largest = Fraction(0)
    for member, table in enumerate(tables):
        values = table.values_of(query)
        for record in range(table.records):
            laws = {state: table.law_given(values, record, state) for state in table.states_of(record)}
            for x, y in itertools.combinations(laws, 2):
                distance = quantile_distance(laws[x][1], laws[x][0], laws[y][1], laws[y][0])
                if distance > largest:
                    largest = distance
                    worst = WassersteinDistance(float_above(distance), member, record + 1, (x, y))
    return worst


def wasserstein_of_count(belief: MarkovChain | FiniteClass, state: int, length: int) -> WassersteinDistance:
    """W for the number of slots in one state, in a window of a chain ([SWC17] Algorithm 1).

    By dynamic programmes over (slot, state, count) for every slot, pair of states and member of the class; the result
    is a whole number and exact (see `StateCounts`). Time grows with length cubed.

    Args:
        belief: A chain with a fixed or stationary start, or a finite class of them.
        state: The state that is counted.
        length: Slots of the window, at most `LARGEST_PROGRAMME` / states.

    Raises:
        ChainError: If a chain is meant to be stationary and is reducible.
        TypeError: If the belief is no chain or class of chains: bounds on mixing have no law of their own.
        ValueError: If state or length is out of range, or cumulative probabilities of a long window cannot be told
            apart (see `StateCounts.exact_distance`).
    """
    chains = stated_chains(belief, "the law of a count")
    counted = whole("state", state, "give the state that is counted", least=0)
    if counted >= belief.states:
        raise ValueError(f"state is {counted}, but the chain has the states 0 to {belief.states - 1}")
    slots = whole("length", length, "give the slots of a window", least=1)
    if slots * belief.states > LARGEST_PROGRAMME:
        raise ValueError(
            f"length is {slots}, but with {belief.states} states at most {LARGEST_PROGRAMME // belief.states} slots "
            "are worked through: use a shorter window, or a quilt mechanism"
        )
    worst = WassersteinDistance(0.0, None, None, None)
    for member, chain in enumerate(chains):
        laws = StateCounts(chain, counted, slots)
        bounds = [(low, high, node, pair) for node in range(slots) for pair, (low, high) in laws.bounds(node).items()]
        # the largest certain value first: it spares most of the exact comparisons
        for low, high, node, pair in sorted(bounds, key=lambda entry: -entry[0]):
            if high > worst.value:
                found = low if low == high else laws.exact_distance(node, pair)
                if found > worst.value:
                    worst = WassersteinDistance(float(found), member, node + 1, pair)
    return worst


@dataclass(frozen=True, slots=True)
class WassersteinMechanism:
    """Discrete Laplace noise of scale W / epsilon on an integer answer ([SWC17] Algorithm 1, Theorem 3.2).

    Given a secret pair, the answer's two laws can be coupled so that the answers differ by at most W; integer answers
    differ by whole numbers, over which the noise's law changes by at most exp(W / scale) = exp(epsilon).

    This is a statement about one release of one query. It has no composition theorem: the coupling of a second answer
    need not agree with that of the first. So there is no loss per slot, and a ledger must refuse the release:
    `epsilon_dp` raises, and `require_composable` is the check to make before a charge.

    Attributes:
        distance: W, in whole counts or any unit in which the answers are integers; 0 or more.
        epsilon: The target, finite and above 0.
    """

    name: ClassVar[str] = "wasserstein"
    composes: ClassVar[bool] = False

    distance: float
    epsilon: float

    def __post_init__(self) -> None:
        accepted_loss(self.epsilon)
        # 0 is the one value that leaves the noise out: nothing that is merely false may
        if number("distance", self.distance, "pass the value of wasserstein_of_count or wasserstein_of_table"):
            positive("distance", self.distance, "pass the value of wasserstein_of_count or wasserstein_of_table")
            self.scale  # noqa: B018 - refuses a scale that the noise refuses

    @property
    def scale(self) -> Fraction:
        """Scale of the noise, W / epsilon rounded up; 0 where the answer tells nothing about any secret."""
        return rational_scale(self.distance / self.epsilon, 1) if self.distance else Fraction(0)

    @property
    def epsilon_dp(self) -> NoReturn:
        """There is none: raises `NotComposable`."""
        require_composable(self)
        raise AssertionError  # pragma: no cover - the line above raises

    def randomise(self, counts: npt.ArrayLike, entropy: Entropy | None = None) -> NDArray[np.int64]:
        """Add independent noise to counts of independent databases: whole numbers of any shape, which the result has.

        Raises:
            ValueError: A count is negative or too large. No count is named in the message.
            EntropyError: The bit source is defective.
        """
        counts = checked_counts(counts)
        if not self.distance:
            return counts.copy()
        return DiscreteLaplace(self.scale).draw(counts.shape, entropy) + counts

    def half_width(self, level: float = 0.95) -> int:
        """Return the smallest h such that the noise lies within -h..h with probability `level`."""
        level = checked_level(level)
        return DiscreteLaplace(self.scale).half_width(level) if self.distance else 0


def require_composable(mechanism: Any) -> None:
    """Refuse a mechanism that declares `composes = False`.

    Raises:
        NotComposable: If it does.
    """
    if not getattr(mechanism, "composes", True):
        raise NotComposable(
            f"mechanism {getattr(mechanism, 'name', type(mechanism).__name__)}: it has no composition theorem and no "
            "loss per slot, so no ledger can account for it: publish one such release of these data and nothing else, "
            "or use a quilt mechanism"
        )


def clique_of_four() -> JointTable:
    """The example of [SWC17] section 3: who of a clique of four has the flu, a table of four records of two states.

    The number N of infected has P(N = 0..4) = 0.1, 0.15, 0.5, 0.15, 0.1, and who they are is exchangeable. Then W = 2
    for the query N, while group privacy over the clique needs 4.
    """
    law = [Fraction(percent, 100) for percent in (10, 15, 50, 15, 10)]
    rows = list(itertools.product(range(2), repeat=4))
    return JointTable(rows, [law[sum(row)] / math.comb(4, sum(row)) for row in rows])
