"""Joint laws of a few records, written out: a table of every database and its probability, in exact fractions.

The distance of two quantile functions jumps when two cumulative sums that ought to be equal differ in the last bit. So
a float is read as the simple fraction that it stands for: 0.1 means one tenth, 0.3333333333333333 one third. Where a
row of such numbers misses 1 by rounding, its largest entry takes the difference.

>>> table = JointTable([(0, 0), (0, 1), (1, 1)], [0.5, 0.25, 0.25])
>>> [str(value) for value in table.law_given([10, 11, 12], record=0, state=0)[1]]
['2/3', '1/3']
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import SupportsFloat, TypeAlias

from ..models.markov_chain import MarkovChain, check_chain
from ..models.periodic import SUM_TOLERANCE
from ..validation import number, whole

LARGEST_JOINT = 2**17
"""The most databases that a table may list."""

Row: TypeAlias = tuple[int, ...]
Number: TypeAlias = "SupportsFloat | Fraction"
Query: TypeAlias = "Callable[[Row], Number] | Sequence[Number]"
"""A number for each database: a function of its row of states, or the numbers in the order of the table."""


@dataclass(frozen=True, init=False)
class JointTable:
    """The joint law of the records of a database, each record in a state.

    Attributes:
        outcomes: the databases, each a row of one state per record, all different.
        weights: their probabilities as fractions that sum to 1.

    Raises:
        ValueError: a row of another length or twice, a probability that is none, a wrong sum, or too many rows.
    """

    outcomes: tuple[Row, ...]
    weights: tuple[Fraction, ...]

    def __init__(self, outcomes: Iterable[Iterable[int]], probabilities: Iterable[Number]) -> None:
        rows, weights = tuple(map(tuple, outcomes)), exact_distribution("probabilities", probabilities)
        lengths = {len(row) for row in rows}
        if not len(set(rows)) == len(rows) == len(weights) <= LARGEST_JOINT or len(lengths) != 1 or 0 in lengths:
            raise ValueError(
                f"outcomes has {len(rows)} rows of {sorted(lengths)} records and {len(weights)} probabilities: give "
                f"each of at most {LARGEST_JOINT} different rows of one length one probability"
            )
        object.__setattr__(self, "outcomes", rows)
        object.__setattr__(self, "weights", weights)

    def __repr__(self) -> str:
        return f"JointTable(records={self.records}, size={len(self.outcomes)})"

    @classmethod
    def from_chain(cls, chain: MarkovChain, length: int) -> JointTable:
        """Write out every sequence of a chain, one record per slot.

        Raises:
            ChainError: the chain is meant to be stationary and is reducible.
            ValueError: there are too many sequences.
        """
        check_chain("chain", chain)
        slots = whole("length", length, "give the slots of a window", least=1, most=LARGEST_JOINT)
        if chain.states**slots > LARGEST_JOINT:
            raise ValueError(f"length is {slots}: there are more than {LARGEST_JOINT} sequences: give a shorter one")
        start, rows = exact_chain(chain)
        outcomes = list(itertools.product(range(chain.states), repeat=slots))
        moves = (math.prod((rows[x][y] for x, y in itertools.pairwise(row)), start=start[row[0]]) for row in outcomes)
        return cls(outcomes, moves)

    @property
    def members(self) -> tuple[JointTable, ...]:
        """The table itself."""
        return (self,)

    @property
    def records(self) -> int:
        """Number of records."""
        return len(self.outcomes[0])

    def states_of(self, record: int) -> tuple[int, ...]:
        """The states of a record that have positive probability, sorted."""
        possible = zip(self.outcomes, self.weights, strict=True)
        return tuple(sorted({row[record] for row, weight in possible if weight}))

    def values_of(self, query: Query) -> tuple[Fraction, ...]:
        """The query's value for each database, exactly."""
        values = [query(row) for row in self.outcomes] if callable(query) else list(query)
        if len(values) != len(self.outcomes):
            raise ValueError(f"query has {len(values)} values, but the table has {len(self.outcomes)} rows")
        return tuple(exact_number(f"query[{place}]", value) for place, value in enumerate(values))

    def law_given(
        self, values: Sequence[Number], record: int, state: int
    ) -> tuple[tuple[Fraction, ...], tuple[Fraction, ...]]:
        """The law of a query's values given the state of one record: its support in rising order, and probabilities."""
        masses: dict[Fraction, Fraction] = {}
        for row, weight, value in zip(self.outcomes, self.weights, self.values_of(values), strict=True):
            if row[record] == state and weight:
                masses[value] = masses.get(value, Fraction(0)) + weight
        if not masses:
            raise ValueError(f"state is {state}, but record {record} is never in it: see states_of")
        total = sum(masses.values())
        support = tuple(sorted(masses))
        return support, tuple(masses[value] / total for value in support)


def exact_chain(chain: MarkovChain) -> tuple[tuple[Fraction, ...], list[tuple[Fraction, ...]]]:
    """A chain's start and transition rows as fractions; a stationary start is solved for exactly."""
    rows = [exact_distribution(f"transition row {state}", row.tolist()) for state, row in enumerate(chain.transition)]
    if chain.initial is not None:
        return exact_distribution("initial", chain.initial.tolist()), rows
    chain.stationary  # noqa: B018 - says why where the chain is reducible
    return exact_stationary(rows), rows


def exact_number(name: str, value: Number) -> Fraction:
    """Read a number as a fraction.

    A float within a relative 2^-51 of a fraction with a denominator up to 10^6 is that fraction; any other float is the
    decimal that it prints as.
    """
    if isinstance(value, int | Fraction) and not isinstance(value, bool):
        return Fraction(value)
    found = number(name, value, "give an int, a float or a Fraction")
    if not math.isfinite(found):
        raise ValueError(f"{name} is {found!r}, but must be finite: mend the entry")
    simple = Fraction(found).limit_denominator(10**6)
    # its own rounding, and that of a division
    return simple if abs(simple - Fraction(found)) <= abs(Fraction(found)) / 2**51 else Fraction(repr(found))


def exact_distribution(name: str, values: Iterable[Number]) -> tuple[Fraction, ...]:
    """Read probabilities as fractions that sum to exactly 1; the largest of them takes what the sum misses."""
    row = [exact_number(f"{name}[{place}]", value) for place, value in enumerate(values)]
    missing = 1 - sum(row)
    if not row or min(row) < 0 or abs(missing) > SUM_TOLERANCE:
        raise ValueError(
            f"{name} sums to {float(1 - missing)!r}, and must be probabilities, none negative, that sum to 1"
        )
    row[max(range(len(row)), key=row.__getitem__)] += missing
    return tuple(row)


def exact_stationary(transition: list[tuple[Fraction, ...]]) -> tuple[Fraction, ...]:
    """The stationary distribution of an irreducible chain, by the elimination of Grassmann, Taksar and Heyman."""
    work = [list(row) for row in transition]
    for state in range(len(work) - 1, 0, -1):
        leave = sum(work[state][:state], Fraction(0))
        for row in work[:state]:
            row[state] /= leave
            for other in range(state):
                row[other] += row[state] * work[state][other]
    weights = [Fraction(1)]
    for state in range(1, len(work)):
        weights.append(sum((weights[other] * work[other][state] for other in range(state)), Fraction(0)))
    total = sum(weights)
    return tuple(weight / total for weight in weights)
