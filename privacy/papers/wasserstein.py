"""The Wasserstein Mechanism ([SWC17] Algorithm 1), with the distances and laws that it needs, in whole numbers.

>>> worst = wasserstein_of_table(clique_of_four(), query=sum)
>>> worst.value  # [SWC17] section 3: group privacy would say 4
2.0
>>> round(float(WassersteinMechanism(worst.value, epsilon=1.0).scale), 6)
2.0

*The distance.* W_inf(p, q) is the least w such that p can be turned into q without moving any mass further than w. On
the line the monotone coupling is optimal, so W_inf is the largest distance between the two quantile functions ([SWC17]
section 3). It jumps where cumulative sums meet, so nothing here is rounded.

>>> wasserstein_infinity([0.2, 0.225, 0.5, 0.075, 0], [0, 0.075, 0.5, 0.225, 0.2], range(5))
2.0

*The laws* of how often a chain visits one state, given its state in one slot. With D a denominator of all rows, the
polynomial f_i[x] = sum over n of D^i P(n visits in the slots up to i, X_i = x) z^n follows from those of slot i - 1,
b_i[x], of the visits after slot i, from those of slot i + 1, and f_i[x] b_i[x] has the law's masses as coefficients. A
polynomial is kept as its value at a power of 2 above every coefficient: one whole number, multiplied and added as such.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, NoReturn, TypeAlias

import numpy.typing as npt

from ..mechanisms.discrete_laplace import DiscreteLaplace, rational_scale
from ..mechanisms.histogram import checked_counts
from ..mechanisms.sampling import Entropy, Integers
from ..models.classes import FiniteClass, stated_chains
from ..models.markov_chain import MarkovChain
from ..validation import PrivacyError, accepted_loss, float_above, number, positive, whole
from .joint import JointTable, Number, Query, exact_chain, exact_distribution, exact_number

Masses: TypeAlias = Sequence[int] | Sequence[Fraction]


def wasserstein_infinity(p: Iterable[Number], q: Iterable[Number], support: Iterable[Number]) -> float:
    """W_inf of two laws on a finite support, in the unit of the support, rounded up to a float.

    Floats are read as the fractions that they stand for, so that 0.1 + 0.2 and 0.3 meet.

    Args:
        p: probabilities, shape (n,).
        q: probabilities, shape (n,).
        support: the values they belong to, shape (n,), in any order.
    """
    values = [exact_number(f"support[{place}]", value) for place, value in enumerate(support)]
    first, second = exact_distribution("p", p), exact_distribution("q", q)
    if not len(first) == len(second) == len(values):
        raise ValueError("p, q and support must have as many entries: give both laws on one support, with zeros")
    order = sorted(range(len(values)), key=values.__getitem__)
    laws = ([law[place] for place in order] for law in (first, second))
    ordered = [values[place] for place in order]
    return float_above(_distance(*itertools.chain.from_iterable((law, ordered) for law in laws)))


def _distance(p: Masses, p_support: Masses, q: Masses, q_support: Masses) -> Fraction | int:
    """The largest distance between two quantile functions, of masses with one positive sum at rising values."""
    here, there, supply, demand, largest = 0, 0, p[0], q[0], 0
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


@dataclass(frozen=True, slots=True)
class WassersteinDistance:
    """W of [SWC17] Algorithm 1, and where it is reached; where no pair matters it is 0, and there is no place."""

    value: float  # largest W_inf(P(F | X_i = x), P(F | X_i = x')) over theta, records and pairs, in the query's unit
    member: int | None = None  # which theta, from 0
    node: int | None = None  # which record, or slot of a chain, from 1
    pair: tuple[int, int] | None = None  # the two states, x < x'


def wasserstein_of_table(belief: JointTable | Iterable[JointTable], query: Query) -> WassersteinDistance:
    """W for a query on a small database whose joint law is written out ([SWC17] Algorithm 1).

    Secrets are the states of every record; a pair counts under theta where both its states have positive probability.

    Args:
        belief: one table, or the tables of a class Theta.
        query: the answer for each database, a function of its row of states, or numbers in the order of the table.
    """
    worst, largest = WassersteinDistance(0.0), Fraction(0)
    for member, table in enumerate([belief] if isinstance(belief, JointTable) else belief):
        values = table.values_of(query)
        for record in range(table.records):
            laws = {state: table.law_given(values, record, state) for state in table.states_of(record)}
            for x, y in itertools.combinations(laws, 2):
                distance = _distance(laws[x][1], laws[x][0], laws[y][1], laws[y][0])
                if distance > largest:
                    largest = Fraction(distance)
                    worst = WassersteinDistance(float_above(distance), member, record + 1, (x, y))
    return worst


def wasserstein_of_count(belief: MarkovChain | FiniteClass, state: int, length: int) -> WassersteinDistance:
    """W for the number of slots in one state, in a window of a chain ([SWC17] Algorithm 1).

    Args:
        belief: a chain with a fixed or stationary start, or a finite class of them.
        state: the state that is counted.
        length: slots of the window, at most 1024 / states.

    Raises:
        ChainError: a chain is meant to be stationary and is reducible.
        TypeError: the belief is no chain or class of chains: bounds on mixing have no law of their own.
        ValueError: state or length is out of range.
    """
    chains = stated_chains(belief, "the law of a count")
    states = chains[0].states
    counted = whole("state", state, "give the state that is counted", least=0, most=states - 1)
    most = 1024 // states
    slots = whole("length", length, "use a shorter window, or a quilt mechanism", least=1, most=most)
    worst = WassersteinDistance(0.0)
    for member, chain in enumerate(chains):
        for node, laws in enumerate(laws_of_count(chain, counted, slots), 1):
            for x, y in itertools.combinations(laws, 2):
                # each is multiplied by the other's sum, so that both have one sum
                one, other = ([mass * sum(laws[b]) for mass in laws[a]] for a, b in ((x, y), (y, x)))
                distance = _distance(one, range(slots + 1), other, range(slots + 1))
                if distance > worst.value:
                    worst = WassersteinDistance(float(distance), member, node, (x, y))
    return worst


def laws_of_count(chain: MarkovChain, state: int, length: int) -> Iterator[dict[int, list[int]]]:
    """For each slot and each state that it can be in, masses proportional to P(N = n | X_slot), n = 0..length."""
    start, rows = exact_chain(chain)
    own, below = (math.lcm(*(one.denominator for one in of)) for of in (start, itertools.chain.from_iterable(rows)))
    first, steps = [int(one * own) for one in start], [[int(one * below) for one in row] for row in rows]
    size = (own * below ** (length - 1)).bit_length() // 8 + 1  # bytes of a coefficient
    visits = [8 * size if x == state else 0 for x in range(len(rows))]
    ahead, behind = [[one << shift for one, shift in zip(first, visits, strict=True)]], [[1] * len(rows)]
    for _ in range(length - 1):
        sums = (sum(mass * step[y] for mass, step in zip(ahead[-1], steps, strict=True)) for y in range(len(rows)))
        ahead.append([mass << shift for mass, shift in zip(sums, visits, strict=True)])
        counted = [mass << shift for mass, shift in zip(behind[-1], visits, strict=True)]
        behind.append([sum(map(int.__mul__, step, counted)) for step in steps])
    for forward, backward in zip(ahead, reversed(behind), strict=True):
        yield {x: _coefficients(mass * backward[x], size, length + 1) for x, mass in enumerate(forward) if mass}


def _coefficients(value: int, size: int, count: int) -> list[int]:
    packed = value.to_bytes(size * count, "little")
    return [int.from_bytes(packed[at : at + size], "little") for at in range(0, size * count, size)]


class NotComposable(PrivacyError):  # noqa: N818 - the name says what the mechanism is
    """A release that has no composition theorem was brought to a ledger."""


@dataclass(frozen=True, slots=True)
class WassersteinMechanism:
    """Discrete Laplace noise of scale W / epsilon on an integer answer ([SWC17] Algorithm 1, Theorem 3.2).

    Given a secret pair, the answer's two laws can be coupled so that the answers differ by at most W; integer answers
    differ by whole numbers, over which the noise's law changes by at most exp(W / scale) = exp(epsilon).

    This is a statement about one release of one query. It has no composition theorem: the coupling of a second answer
    need not agree with that of the first. So there is no loss per slot to charge, and `epsilon_dp` raises.
    """

    name: ClassVar[str] = "wasserstein"

    distance: float  # W, in whole counts or any unit in which the answers are integers; 0 or more
    epsilon: float  # the target, finite and above 0

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
        raise NotComposable(
            f"mechanism {self.name}: it has no composition theorem and no loss per slot, so no ledger can account for "
            "it: publish one such release of these data and nothing else, or use a quilt mechanism"
        )

    def randomise(self, counts: npt.ArrayLike, entropy: Entropy = None) -> Integers:
        """Add independent noise to counts of independent databases, an array of any shape."""
        given = checked_counts(counts)
        return DiscreteLaplace(self.scale).draw(given.shape, entropy) + given if self.distance else given.copy()


def clique_of_four() -> JointTable:
    """The example of [SWC17] section 3: who of a clique of four has the flu, a table of four records of two states.

    The number N of infected has P(N = 0..4) = 0.1, 0.15, 0.5, 0.15, 0.1, and who they are is exchangeable. Then W = 2
    for the query N, while group privacy over the clique needs 4.
    """
    law = [Fraction(percent, 100) for percent in (10, 15, 50, 15, 10)]
    rows = list(itertools.product(range(2), repeat=4))
    return JointTable(rows, [law[sum(row)] / math.comb(4, sum(row)) for row in rows])
