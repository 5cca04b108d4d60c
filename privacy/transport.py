"""The infinite Wasserstein distance of two laws on the line.

W_inf(p, q) is the least w such that p can be turned into q without moving any mass further than w. On the line the
monotone coupling is optimal, so W_inf is the largest distance between the two quantile functions ([SWC17] section 3).

>>> wasserstein_infinity([0.2, 0.225, 0.5, 0.075, 0], [0, 0.075, 0.5, 0.225, 0.2], range(5))
2.0
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import SupportsFloat, TypeAlias

from .checks import float_above
from .exact import exact_distribution, exact_number

Number: TypeAlias = int | Fraction


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

    Raises:
        TypeError: A value that is not a number.
        ValueError: A probability that is none, a wrong sum, or arrays of different lengths.
    """
    first, second = exact_distribution("p", p), exact_distribution("q", q)
    values = [exact_number(f"support[{place}]", value) for place, value in enumerate(support)]
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
    """The largest distance between two quantile functions, by moving mass in rising order.

    Args:
        p: Masses, exact numbers with a positive sum.
        p_support: Their values, rising.
        q: Masses with the same sum.
        q_support: Their values, rising.
    """
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
