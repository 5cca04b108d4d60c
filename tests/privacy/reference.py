"""The same quantities straight from the papers and from the definition, slow and plain; imports nothing from the
product.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Window = tuple[int, int, float]


def lemma_f(pi_min: float, gap: float, lag: int) -> float:
    decay = math.exp(-gap * lag / 2)
    return math.log((pi_min + decay) / (pi_min - decay)) if decay < pi_min else math.inf


def algorithm_4(pi_min: float, gap: float, epsilon: float, length: int) -> float:
    """[SWC17] Algorithm 4: every node, every two-sided, one-sided and empty quilt."""
    worst = 0.0
    for node in range(1, length + 1):
        best = length / epsilon
        lefts = [(None, 0.0), *((a, 2 * lemma_f(pi_min, gap, a)) for a in range(1, node))]
        rights = [(None, 0.0), *((b, lemma_f(pi_min, gap, b)) for b in range(1, length - node + 1))]
        back = np.array([node - 1 if a is None else a - 1 for a, _ in lefts])
        ahead = np.array([length - node if b is None else b - 1 for b, _ in rights])
        influence = np.add.outer([e for _, e in lefts], [e for _, e in rights])
        card = np.add.outer(back, ahead) + 1
        usable = influence < epsilon
        best = min(best, float((card[usable] / (epsilon - influence[usable])).min()))
        worst = max(worst, best)
    return worst


def stationary(transition: np.ndarray) -> np.ndarray:
    """The stationary distribution as the solution of the linear equations."""
    states = len(transition)
    system = np.vstack([transition.T - np.eye(states), np.ones(states)])
    return np.linalg.lstsq(system, np.append(np.zeros(states), 1.0), rcond=None)[0]


def sequences(initial: np.ndarray, transition: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Every sequence of states, shape (n, length), and its probability."""
    every = np.array(list(itertools.product(range(len(transition)), repeat=length)))
    chance = initial[every[:, 0]]
    for slot in range(1, length):
        chance = chance * transition[every[:, slot - 1], every[:, slot]]
    return every, chance


def worst_ratio(given: np.ndarray, other: np.ndarray) -> float:
    seen = given > 0
    if not seen.any():
        return 0.0
    if (other[seen] <= 0).any():
        return math.inf
    return float(np.log(given[seen] / other[seen]).max())


def joint_influence(
    initial: np.ndarray, transition: np.ndarray, length: int, *, node: int, quilt: Sequence[int], pair: tuple[int, int]
) -> float:
    """max over the states of the quilt's slots of log P(X_Q | x) / P(X_Q | x'), from the joint distribution; slots
    from 0.
    """
    every, chance = sequences(initial, transition, length)
    states = len(transition)
    code = np.zeros(len(every), dtype=int)
    for slot in quilt:
        code = code * states + every[:, slot]

    def law(state: int) -> np.ndarray:
        here = every[:, node] == state
        return np.bincount(code[here], chance[here], minlength=states ** len(quilt)) / chance[here].sum()

    return worst_ratio(law(pair[0]), law(pair[1]))


def _loss_over_outputs(
    every: np.ndarray, chance: np.ndarray, likelihood: np.ndarray, states: int, slots: int = 1
) -> float:
    """max over events of so many slots, pairs of paths and outputs of log P(output | path) / P(output | path');
    likelihood has shape (outputs, sequences).
    """
    worst = 0.0
    for slot in range(every.shape[1] - slots + 1):
        laws = []
        for path in itertools.product(range(states), repeat=slots):
            here = (every[:, slot : slot + slots] == path).all(axis=1)
            weight = chance[here].sum()
            if weight > 0:
                laws.append(likelihood[:, here] @ (chance[here] / weight))
        for given, other in itertools.permutations(laws, 2):
            worst = max(worst, worst_ratio(given, other))
    return worst


def response_loss(
    initial: np.ndarray, transition: np.ndarray, length: int, windows: Sequence[Window], slots: int = 1
) -> float:
    """True loss when every release answers each slot of its window by k-ary randomised response of its epsilon_dp.

    All outputs in which the answers of the overlapping releases to one slot agree are tried: the likelihood is then
    proportional to e to the power of the summed epsilon_dp of the slots answered truly.
    """
    density = np.zeros(length)
    for start, stop, epsilon_dp in windows:
        density[start:stop] += epsilon_dp
    every, chance = sequences(initial, transition, length)
    truly = every[:, np.newaxis, :] == every[np.newaxis, :, :]
    return _loss_over_outputs(every, chance, np.exp(truly @ density), len(transition), slots)


def count_loss(
    initial: np.ndarray, transition: np.ndarray, length: int, windows: Sequence[Window], slots: int = 1
) -> float:
    """True loss when every release is the count of state 1 in its window plus discrete Laplace noise of its epsilon_dp.

    Outputs below 0 and above the window's length have the likelihood ratios of 0 and of the length, so these ends
    stand for all.
    """
    every, chance = sequences(initial, transition, length)
    outputs = itertools.product(*(range(stop - start + 1) for start, stop, _ in windows))
    counts = np.array([(every[:, start:stop] == 1).sum(axis=1) for start, stop, _ in windows])
    rates = np.array([epsilon_dp for _, _, epsilon_dp in windows])
    likelihood = np.array([np.exp(-rates @ np.abs(np.array(output)[:, np.newaxis] - counts)) for output in outputs])
    return _loss_over_outputs(every, chance, likelihood, len(transition), slots)


def true_loss(*release: Any) -> float:
    """The larger of both."""
    return max(response_loss(*release), count_loss(*release))


def rule(
    lefts: Sequence[Callable[[int], float]],
    rights: Sequence[Callable[[int], float]],
    windows: Sequence[Window],
    lags: int,
    margin: int = 3,
) -> float:
    """The ledger's rule, slot by slot and quilt by quilt: max over slots and pairs of the min over quilts of mass
    plus influence.

    Args:
        lefts: Influence on the slot a earlier, one function per pair.
        rights: Influence on the slot b later, in the same order.
        windows: Start, stop and epsilon_dp of each release.
        lags: How far the ends of a quilt may lie.
        margin: How many slots outside all windows are tried as well.
    """
    low = min(start for start, _, _ in windows) - margin
    high = max(stop for _, stop, _ in windows) + margin
    density = {slot: sum(e for start, stop, e in windows if start <= slot < stop) for slot in range(low, high)}
    slots = range(low, high)
    worst = 0.0
    for left, right in zip(lefts, rights, strict=True):
        back = [left(a) for a in range(1, lags + 1)]
        ahead = [right(b) for b in range(1, lags + 1)]
        for slot in slots:
            before = [density.get(slot - a, 0.0) for a in range(1, max(lags, slot - low) + 1)]
            after = [density.get(slot + b, 0.0) for b in range(1, max(lags, high - slot) + 1)]
            one = min(sum(before), *(sum(before[:a]) + influence for a, influence in enumerate(back)))
            other = min(sum(after), *(sum(after[:b]) + influence for b, influence in enumerate(ahead)))
            worst = max(worst, one + density[slot] + other)
    return worst


def chain_influences(transition: np.ndarray) -> tuple[list[Callable[[int], float]], list[Callable[[int], float]]]:
    """Left and right influence by pair of a stationary chain, from matrix powers."""
    weights = stationary(transition)
    reversal = transition.T * weights[np.newaxis, :] / weights[:, np.newaxis]

    def influence(matrix: np.ndarray, pair: tuple[int, int]) -> Callable[[int], float]:
        def at(lag: int) -> float:
            power = np.linalg.matrix_power(matrix, lag)
            return worst_ratio(power[pair[0]], power[pair[1]])

        return at

    pairs = list(itertools.permutations(range(len(transition)), 2))
    return [influence(reversal, pair) for pair in pairs], [influence(transition, pair) for pair in pairs]


def changing_loss(
    initial: np.ndarray, steps: Sequence[np.ndarray], windows: Sequence[Window], *, counts: bool = False, slots: int = 1
) -> float:
    """True loss of a chain whose step from slot t to t + 1 follows ``steps[t]``, slots from 0.

    By randomised response of each slot, as ``response_loss``, or by noisy counts, as ``count_loss``; of an event of so
    many slots.
    """
    length, states = len(steps) + 1, len(initial)
    every = np.array(list(itertools.product(range(states), repeat=length)))
    chance = np.asarray(initial, dtype=float)[every[:, 0]]
    for slot, matrix in enumerate(steps):
        chance = chance * matrix[every[:, slot], every[:, slot + 1]]
    if counts:
        outputs = itertools.product(*(range(stop - start + 1) for start, stop, _ in windows))
        found = np.array([(every[:, start:stop] == 1).sum(axis=1) for start, stop, _ in windows])
        rates = np.array([epsilon_dp for _, _, epsilon_dp in windows])
        likelihood = np.array([np.exp(-rates @ np.abs(np.array(output)[:, np.newaxis] - found)) for output in outputs])
    else:
        density = np.zeros(length)
        for start, stop, epsilon_dp in windows:
            density[start:stop] += epsilon_dp
        truly = every[:, np.newaxis, :] == every[np.newaxis, :, :]
        likelihood = np.exp(truly @ density)
    return _loss_over_outputs(every, chance, likelihood, states, slots)


def changing_rule(before: np.ndarray, after: np.ndarray, change: int, windows: Sequence[Window], lags: int) -> float:
    """The ledger's rule when the steps out of a slot ``change`` and later ones follow another matrix.

    Influence from the product of the two powers; stationary before the change, for any initial law from it on.
    """
    low, high = min(start for start, _, _ in windows), max(stop for _, stop, _ in windows)
    density = {slot: sum(e for start, stop, e in windows if start <= slot < stop) for slot in range(low, high)}
    weights = stationary(before)
    reversal = before.T * weights[np.newaxis, :] / weights[:, np.newaxis]

    def steps(start: int, stop: int) -> np.ndarray:
        first = max(0, min(stop, change) - start)
        return np.linalg.matrix_power(before, first) @ np.linalg.matrix_power(after, stop - start - first)

    worst = 0.0
    for slot in range(low, high):
        mass_back = [sum(density.get(slot - j, 0.0) for j in range(1, a)) for a in range(1, lags + 1)]
        mass_ahead = [sum(density.get(slot + j, 0.0) for j in range(1, b)) for b in range(1, lags + 1)]
        for x, other in itertools.permutations(range(len(before)), 2):
            back = [sum(value for at, value in density.items() if at < slot)]
            ahead = [sum(value for at, value in density.items() if at > slot)]
            for lag in range(1, lags + 1):
                if slot < change:
                    power = np.linalg.matrix_power(reversal, lag)
                    told = worst_ratio(power[x], power[other])
                else:
                    power = steps(slot - lag, slot)
                    told = worst_ratio(power[:, other], power[:, x]) + worst_ratio(power[:, x], power[:, other])
                back.append(mass_back[lag - 1] + told)
                power = steps(slot, slot + lag)
                ahead.append(mass_ahead[lag - 1] + worst_ratio(power[x], power[other]))
            worst = max(worst, min(back) + density[slot] + min(ahead))
    return worst
