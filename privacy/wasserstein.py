"""The Wasserstein Mechanism ([SWC17] Algorithm 1): noise for one release, from how far the answer's law can move.

>>> worst = wasserstein_of_table(clique_of_four(), query=sum)
>>> worst.value  # [SWC17] section 3: group privacy would say 4
2.0
>>> mechanism = WassersteinMechanism(worst.value, epsilon=1.0)
>>> round(float(mechanism.scale), 6)
2.0
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, NoReturn

import numpy as np
from numpy.typing import NDArray

from .chains import MarkovChain
from .checks import float_above, positive, whole
from .classes import FiniteClass
from .counts import check_counts
from .entropy import Entropy
from .joint import JointTable, Query
from .noise import DiscreteLaplace, rational_scale
from .state_counts import StateCounts
from .transport import quantile_distance, wasserstein_infinity

__all__ = [
    "NotComposable",
    "WassersteinDistance",
    "WassersteinMechanism",
    "clique_of_four",
    "require_composable",
    "wasserstein_infinity",
    "wasserstein_of_count",
    "wasserstein_of_table",
]

LARGEST_PROGRAMME = 4096
"""The largest product of states and slots for which the laws of a count are formed."""


class NotComposable(ValueError):  # noqa: N818 - the name says what the mechanism is
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
        TypeError: If a value of the query is not a number.
        ValueError: If the class is empty, or the query does not fit a table.
    """
    tables = [belief] if isinstance(belief, JointTable) else list(belief)
    if not tables:
        raise ValueError("belief has no table: give at least one joint law")
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
    is a whole number and exact (see the module `state_counts`). Time grows with length cubed.

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
    if not isinstance(belief, MarkovChain | FiniteClass):  # pyright: ignore[reportUnnecessaryIsInstance] - see Raises
        raise TypeError(
            f"belief is a {type(belief).__name__}, but the law of a count needs chains: give a MarkovChain or a "
            "FiniteClass, or use mqm_approx, which needs bounds only"
        )
    chains = belief.chains if isinstance(belief, FiniteClass) else (belief,)
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

    Raises:
        TypeError: A value of the wrong type.
        ValueError: A value out of range.
    """

    name: ClassVar[str] = "wasserstein"
    composes: ClassVar[bool] = False

    distance: float
    epsilon: float

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon, "give the loss you accept")
        if self.distance:
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

    def randomise(self, counts: NDArray[np.int64], entropy: Entropy | None = None) -> NDArray[np.int64]:
        """Add independent noise to the answers of independent databases.

        Args:
            counts: int64 of any shape, one answer per database, none negative or above 2^62.
            entropy: For tests only; the operating system's entropy where it is left out.

        Returns:
            int64 of the same shape.

        Raises:
            TypeError: The answers are not int64.
            ValueError: The range is wrong. No answer is named in the message.
            EntropyError: The bit source is defective.
        """
        check_counts(counts)
        if not self.distance:
            return counts.copy()
        return DiscreteLaplace(self.scale).draw(counts.shape, entropy) + counts

    def half_width(self, level: float = 0.95) -> int:
        """Return the smallest h such that the noise lies within -h..h with probability `level`."""
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
