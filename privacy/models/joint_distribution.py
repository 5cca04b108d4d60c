"""A small finite joint law written out as a table: every database that can occur, and how likely it is.

The distance of two quantile functions jumps when two cumulative sums that ought to be equal differ in the last bit, so
probabilities are fractions here. A float is read as the simple fraction that it stands for: 0.1 in a table means one
tenth, and 0.3333333333333333 one third. Where a row of such numbers misses 1 by rounding, its largest entry takes the
difference.

>>> [str(value) for value in exact_distribution("row", [1 / 3, 2 / 3])]
['1/3', '2/3']
>>> table = JointTable([(0, 0), (0, 1), (1, 1)], [0.5, 0.25, 0.25])
>>> table.records, table.size
(2, 3)
>>> [str(value) for value in table.law_given([10, 11, 12], record=0, state=0)[1]]
['2/3', '1/3']
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import SupportsFloat, SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt

from ..validation import whole
from .markov_chain import SUM_TOLERANCE, MarkovChain

LARGEST_JOINT = 2**17
"""The most databases that a table may list."""

_SIMPLE = 10**6
"""The largest denominator of a fraction that a float is taken to stand for."""

_ROUNDING = Fraction(1, 2**51)
"""How far, relatively, it may be from the float: two roundings, its own and that of a division by a row's sum."""

Row: TypeAlias = tuple[int, ...]
Query: TypeAlias = "Callable[[Row], SupportsFloat | Fraction] | Sequence[SupportsFloat | Fraction]"
"""A number for each database: a function of its row of states, or the numbers in the order of the table."""


@dataclass(frozen=True, init=False)
class JointTable:
    """The joint law of the records of a database, each record in a state.

    Attributes:
        outcomes: The databases, each a row of one state per record, all different.
        weights: Their probabilities as fractions that sum to 1 (see the module for how floats are read).

    Raises:
        TypeError: A value of the wrong type.
        ValueError: A row of another length or twice, a probability that is none, a wrong sum, or too many rows.
    """

    outcomes: tuple[Row, ...]
    weights: tuple[Fraction, ...]

    def __init__(
        self, outcomes: Iterable[Iterable[SupportsIndex]], probabilities: Iterable[SupportsFloat | Fraction]
    ) -> None:
        rows = tuple(tuple(whole("outcomes", state, "give states", least=0) for state in row) for row in outcomes)
        weights = exact_distribution("probabilities", probabilities)
        if len(rows) != len(weights):
            raise ValueError(
                f"probabilities has {len(weights)} entries, but outcomes has {len(rows)} rows: give one for each row"
            )
        if len(rows) > LARGEST_JOINT:
            raise ValueError(
                f"outcomes has {len(rows)} rows, but at most {LARGEST_JOINT} are written out: use fewer records or "
                "states, or a method that needs no table"
            )
        lengths = {len(row) for row in rows}
        if len(lengths) != 1 or 0 in lengths:
            raise ValueError(f"outcomes has rows of {sorted(lengths)} records: give every record a state in every row")
        if len(set(rows)) != len(rows):
            raise ValueError("outcomes has a row twice: add the probabilities up and give it once")
        object.__setattr__(self, "outcomes", rows)
        object.__setattr__(self, "weights", weights)

    def __repr__(self) -> str:
        return f"JointTable(records={self.records}, size={self.size})"

    @classmethod
    def from_array(cls, probabilities: npt.ArrayLike) -> JointTable:
        """Make the table of an array with one axis per record: entry [x1, x2, ...] is the probability of that row."""
        array = np.asarray(probabilities)
        return cls(np.ndindex(array.shape), array.ravel().tolist())

    @classmethod
    def from_chain(cls, chain: MarkovChain, length: int) -> JointTable:
        """Write out every sequence of a chain, one record per slot.

        Raises:
            ChainError: If the chain is meant to be stationary and is reducible.
            ValueError: If the length is out of range or there are too many sequences.
        """
        slots = whole("length", length, "give the slots of a window", least=1)
        if chain.states**slots > LARGEST_JOINT:
            raise ValueError(
                f"length is {slots}: a chain of {chain.states} states has {chain.states**slots} sequences of that "
                f"length, but at most {LARGEST_JOINT} are written out: give a shorter one"
            )
        start, rows = exact_chain(chain)
        outcomes = list(itertools.product(range(chain.states), repeat=slots))
        weights: list[Fraction] = []
        for outcome in outcomes:
            weight = start[outcome[0]]
            for before, after in itertools.pairwise(outcome):
                weight *= rows[before][after]
            weights.append(weight)
        return cls(outcomes, weights)

    @property
    def members(self) -> tuple[JointTable, ...]:
        """The table itself."""
        return (self,)

    @property
    def records(self) -> int:
        """Number of records d."""
        return len(self.outcomes[0])

    @property
    def size(self) -> int:
        """Number of rows n."""
        return len(self.outcomes)

    def states_of(self, record: int) -> tuple[int, ...]:
        """The states of a record that have positive probability, sorted."""
        return tuple(
            sorted({row[record] for row, weight in zip(self.outcomes, self.weights, strict=True) if weight > 0})
        )

    def values_of(self, query: Query) -> tuple[Fraction, ...]:
        """The query's value for each database, exactly.

        Raises:
            TypeError: If a value is not a number.
            ValueError: If a value is not finite, or a sequence has another length than the table.
        """
        values = [query(row) for row in self.outcomes] if callable(query) else list(query)
        if len(values) != self.size:
            raise ValueError(
                f"query has {len(values)} values, but the table has {self.size} rows: give one for each row"
            )
        return tuple(exact_number(f"query[{place}]", value) for place, value in enumerate(values))

    def law_given(
        self, values: Sequence[SupportsFloat | Fraction], record: int, state: int
    ) -> tuple[tuple[Fraction, ...], tuple[Fraction, ...]]:
        """The law of a query given the state of one record: its support in rising order, and the probabilities.

        Args:
            values: The query's value for each database.
            record: Which record, from 0.
            state: Its state; must have positive probability.

        Raises:
            ValueError: If the state has probability 0, or there is no such record.
        """
        if not 0 <= record < self.records:
            raise ValueError(f"record is {record}, but the table has the records 0 to {self.records - 1}")
        masses: dict[Fraction, Fraction] = {}
        for row, weight, value in zip(self.outcomes, self.weights, self.values_of(values), strict=True):
            if row[record] == state and weight > 0:
                masses[value] = masses.get(value, Fraction(0)) + weight
        if not masses:
            raise ValueError(f"state is {state}, but record {record} is never in it: see states_of")
        total = sum(masses.values())
        support = tuple(sorted(masses))
        return support, tuple(masses[value] / total for value in support)


def exact_chain(chain: MarkovChain) -> tuple[tuple[Fraction, ...], list[tuple[Fraction, ...]]]:
    """A chain's start and transition rows as fractions; a stationary start is solved for exactly.

    Raises:
        ChainError: If the chain is meant to be stationary and is reducible.
    """
    rows = [exact_distribution(f"transition row {state}", row.tolist()) for state, row in enumerate(chain.transition)]
    if chain.initial is not None:
        return exact_distribution("initial", chain.initial.tolist()), rows
    chain.stationary  # noqa: B018 - says why where the chain is reducible
    return exact_stationary(rows), rows


def exact_number(name: str, value: SupportsFloat | Fraction) -> Fraction:
    """Read a number as a fraction.

    Whole numbers and fractions stay as they are. A float within a relative 2^-51 of a fraction with a denominator up to
    10^6 is that fraction; any other float is the decimal that it prints as.

    Raises:
        TypeError: If it is not a number.
        ValueError: If it is not finite.
    """
    if isinstance(value, bool | str | bytes):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}: give an int, a float or a Fraction")
    if isinstance(value, int | Fraction):
        return Fraction(value)
    try:
        number = float(value)
    except TypeError:
        raise TypeError(
            f"{name} must be a number, not {type(value).__name__}: give an int, a float or a Fraction"
        ) from None
    if not math.isfinite(number):
        raise ValueError(f"{name} is {number!r}, but must be finite: mend the entry")
    simple = Fraction(number).limit_denominator(_SIMPLE)
    return simple if abs(simple - Fraction(number)) <= _ROUNDING * abs(Fraction(number)) else Fraction(repr(number))


def exact_distribution(name: str, values: Iterable[SupportsFloat | Fraction]) -> tuple[Fraction, ...]:
    """Read probabilities as fractions that sum to exactly 1; the largest of them takes what the sum misses.

    Raises:
        TypeError: If an entry is not a number.
        ValueError: If there is no entry, an entry is no probability, or the sum is off by ``SUM_TOLERANCE``.
    """
    row = [exact_number(f"{name}[{place}]", value) for place, value in enumerate(values)]
    if not row:
        raise ValueError(f"{name} is empty, but must have at least one probability: give one for each outcome")
    for place, value in enumerate(row):
        if value < 0:
            raise ValueError(f"{name}[{place}] is {float(value)!r}, but a probability is not negative: mend the entry")
    missing = 1 - sum(row)
    if abs(missing) > SUM_TOLERANCE:
        raise ValueError(
            f"{name} sums to {float(1 - missing)!r}, but must sum to 1 within {SUM_TOLERANCE:g}: "
            "divide it by its sum if that is what was meant"
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
