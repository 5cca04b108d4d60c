"""The shape of a transition matrix: which states reach which, in what period.

Everything here reads only which entries are positive, so the answers are exact; no eigenvalue is compared with 1.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

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
    """The classes of states that reach each other, each sorted, ordered by their smallest state.

    Args:
        edges: Where the transition matrix is positive, shape (k, k).
    """
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
