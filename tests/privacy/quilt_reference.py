"""MQMExact and pairwise quilts straight from [SWC17], slow and plain; imports nothing from the product.

A start is a distribution of the first slot, or None for every initial distribution (App. C.4).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np

from .reference import joint_influence

Pair = tuple[int, int]
Influence = Callable[[int, int | None, int | None, Pair], float]


def log_ratio(above: np.ndarray, below: np.ndarray) -> float:
    """max log(above / below) where one of them is positive; -inf where there is none."""
    worst = -math.inf
    for one, other in zip(above, below, strict=True):
        if one > 0:
            worst = max(worst, math.inf if other <= 0 else math.log(one / other))
    return worst


def quilts(node: int, length: int) -> Iterator[tuple[int | None, int | None, int]]:
    """Every two-sided, one-sided and empty quilt of a slot, from 1, with its card ([SWC17] Lemma 4.6)."""
    for left, right in itertools.product([None, *range(1, node)], [None, *range(1, length - node + 1)]):
        before = node - 1 if left is None else left - 1
        after = length - node if right is None else right - 1
        yield left, right, before + after + 1


def worst_sigma(
    influence: Influence, pairs: Callable[[int], list[Pair]], epsilon: float, length: int, *, pairwise: bool = False
) -> float:
    """[SWC17] Algorithm 2 on a chain: max over slots of min over quilts of card / (epsilon - max-influence).

    Pairwise: the max over the secret pairs is taken outside, too.
    """
    worst = 0.0
    for node in range(1, length + 1):
        secret = pairs(node)
        for group in [[pair] for pair in secret] if pairwise else [secret] if secret else []:
            best = length / epsilon
            for left, right, card in quilts(node, length):
                told = max(influence(node, left, right, pair) for pair in group)
                if told < epsilon:
                    best = min(best, card / (epsilon - told))
            worst = max(worst, best)
    return worst


def by_enumeration(
    start: np.ndarray, transition: np.ndarray, epsilon: float, length: int, *, pairwise: bool = False
) -> float:
    """With the influence of every quilt from the joint distribution of all slots."""

    def influence(node: int, left: int | None, right: int | None, pair: Pair) -> float:
        ends = [] if left is None else [node - 1 - left]
        ends += [] if right is None else [node - 1 + right]
        return joint_influence(start, transition, length, node=node - 1, quilt=ends, pair=pair) if ends else 0.0

    def pairs(node: int) -> list[Pair]:
        marginal = start @ np.linalg.matrix_power(transition, node - 1)
        return [pair for pair in itertools.permutations(range(len(start)), 2) if min(marginal[list(pair)]) > 0]

    return worst_sigma(influence, pairs, epsilon, length, pairwise=pairwise)


def by_formula(
    start: np.ndarray | None,
    transition: np.ndarray,
    epsilon: float,
    length: int,
    *,
    pairwise: bool = False,
    literal: bool = True,
) -> float:
    """With the influence of both sides from matrix powers, as printed: Eq. 5 for a start, App. C.4 for every start."""
    states = len(transition)
    powers = [np.linalg.matrix_power(transition, n) for n in range(length)]
    possible = [np.ones(states) if start is None else start]
    possible += [possible[0] @ power for power in powers[1:]]

    def left_of(node: int, lag: int, pair: Pair) -> float:
        given, other = pair
        seen = np.arange(states) if literal else np.flatnonzero(possible[node - lag - 1] > 0)
        told = log_ratio(powers[lag][seen, given], powers[lag][seen, other])
        if start is None:
            return told + log_ratio(powers[node - 1][:, other], powers[node - 1][:, given])
        return told + math.log(possible[node - 1][other] / possible[node - 1][given])

    right_of = [
        {pair: log_ratio(power[pair[0]], power[pair[1]]) for pair in itertools.permutations(range(states), 2)}
        for power in powers
    ]
    known: dict[tuple[int, int, Pair], float] = {}

    def influence(node: int, left: int | None, right: int | None, pair: Pair) -> float:
        told = 0.0 if right is None else right_of[right][pair]
        if left is not None:
            if (node, left, pair) not in known:
                known[node, left, pair] = left_of(node, left, pair)
            told += known[node, left, pair]
        return told

    def pairs(node: int) -> list[Pair]:
        return [pair for pair in itertools.permutations(range(states), 2) if min(possible[node - 1][list(pair)]) > 0]

    return worst_sigma(influence, pairs, epsilon, length, pairwise=pairwise)
