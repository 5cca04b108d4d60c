"""Probabilities as exact fractions, for quantities that rounding would change by more than rounding.

The distance of two quantile functions jumps when two cumulative sums that ought to be equal differ in the last bit.
Where such a distance decides about noise, probabilities are therefore fractions. A float is read as the simple fraction
that it stands for: 0.1 in a table means one tenth, and 0.3333333333333333 one third. Where a row of such numbers misses
1 by rounding, its largest entry takes the difference.

>>> [str(value) for value in exact_distribution("row", [0.1, 0.2, 0.7])]
['1/10', '1/5', '7/10']
>>> [str(value) for value in exact_distribution("row", [1 / 3, 2 / 3])]
['1/3', '2/3']
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import SupportsFloat

from .models.markov_chain import SUM_TOLERANCE

_SIMPLE = 10**6
"""The largest denominator of a fraction that a float is taken to stand for."""

_ROUNDING = Fraction(1, 2**51)
"""How far, relatively, it may be from the float: two roundings, its own and that of a division by a row's sum."""


def exact_number(name: str, value: SupportsFloat | Fraction) -> Fraction:
    """Read a number as a fraction.

    Whole numbers and fractions stay as they are. A float within a relative 2^-51 of a fraction with a denominator up to
    10^6 is that fraction; any other float is the decimal that it prints as.

    Args:
        name: What the message calls the number.
        value: The number.

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
    """Read probabilities as fractions that sum to exactly 1.

    Args:
        name: What the message calls the row.
        values: The probabilities; their sum may miss 1 by ``SUM_TOLERANCE``, which the largest of them takes.

    Raises:
        TypeError: If an entry is not a number.
        ValueError: If there is no entry, an entry is no probability, or the sum is not 1.
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
    """The stationary distribution of an irreducible chain as fractions (elimination of Grassmann, Taksar and Heyman).

    Args:
        transition: Rows that sum to exactly 1, shape (k, k); irreducible.
    """
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
