"""The likelihood of an output written out sequence by sequence; imports nothing from the product."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple


class Query(NamedTuple):
    start: int
    stop: int
    scale: float
    statistic: str
    state: int | None


def answer(path: Sequence[int], query: Query, states: int) -> tuple[int, ...]:
    cells = path[query.start : query.stop]
    if query.statistic == "count":
        return (sum(cell == query.state for cell in cells),)
    if query.statistic == "histogram":
        return tuple(sum(cell == x for cell in cells) for x in range(states))
    moves = Counter(itertools.pairwise(cells))
    return tuple(moves[x, y] for x in range(states) for y in range(states))


def paths(
    initial: Sequence[float], transition: Sequence[Sequence[float]], length: int
) -> Iterator[tuple[tuple[int, ...], float]]:
    for path in itertools.product(range(len(initial)), repeat=length):
        chance = initial[path[0]]
        for before, after in itertools.pairwise(path):
            chance *= transition[before][after]
        if chance > 0:
            yield path, chance


def continuous(distance: float, scale: float) -> float:
    return math.exp(-abs(distance) / scale) / (2 * scale)


def discrete(distance: float, scale: float) -> float:
    return math.tanh(0.5 / scale) * math.exp(-abs(distance) / scale)


def ratio(
    initial: Sequence[float],
    transition: Sequence[Sequence[float]],
    queries: Sequence[Query],
    output: Sequence[Sequence[float]],
    *,
    length: int,
    law: Callable[[float, float], float],
) -> dict[tuple[int, int, int], float]:
    """log P(output | X_slot = x) / P(output | X_slot = y) for every slot, x and y that are possible there."""
    states = len(initial)
    here: defaultdict[tuple[int, int], float] = defaultdict(float)
    likely: defaultdict[tuple[int, int], float] = defaultdict(float)
    for path, chance in paths(initial, transition, length):
        likelihood = chance
        for query, noisy in zip(queries, output, strict=True):
            for truth, value in zip(answer(path, query, states), noisy, strict=True):
                likelihood *= law(value - truth, query.scale)
        for slot, state in enumerate(path):
            here[slot, state] += chance
            likely[slot, state] += likelihood
    return {
        (slot, x, y): math.log(likely[slot, x] / here[slot, x] * here[slot, y] / likely[slot, y])
        for slot in range(length)
        for x, y in itertools.permutations(range(states), 2)
        if here[slot, x] > 0 and here[slot, y] > 0
    }
