"""Losses of drawn schedules, against those that were recorded from the account before this one.

``recorded_losses.json`` has a loss for each number of ``drawn``, by the sweeps of 2026 that held couplings at one
density: valid bounds, which a sharper account may fall below and must not rise above.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from quiltstream.privacy import AnyInitial, FiniteClass, Ledger, MarkovChain, MixingBounds
from quiltstream.privacy.models import PeriodicChain
from quiltstream.privacy.models.dobrushin import DobrushinBounds

from ...depth import NIGHT

CIRCLING = [[0.5, 0.4, 0.1], [0.1, 0.5, 0.4], [0.5, 0.2, 0.3]]
# bands of power, half-hours apart
HOMES = [
    [0.86, 0.11, 0.02, 0.009, 0.001],
    [0.16, 0.69, 0.12, 0.02, 0.01],
    [0.05, 0.25, 0.54, 0.13, 0.03],
    [0.05, 0.12, 0.28, 0.46, 0.09],
    [0.03, 0.1, 0.17, 0.3, 0.4],
]
CURVE = {1: 0.98, 2: 0.88, 4: 0.67, 8: 0.38, 16: 0.12, 32: 0.013}


def neighbours(states: int) -> MarkovChain:
    steps = np.exp(-np.abs(np.subtract.outer(np.arange(states), np.arange(states))) / 1.5) + 0.002
    matrix = steps + np.eye(states) * 3
    return MarkovChain(matrix / matrix.sum(axis=1, keepdims=True))


# each with a density whose endless stream loses about 1
BELIEFS = [
    (MarkovChain([[0.9, 0.1], [0.4, 0.6]]), 0.3),
    (MarkovChain([[0.1, 0.9], [0.8, 0.2]]), 0.18),
    (MarkovChain(CIRCLING), 0.5),
    (MarkovChain(HOMES), 0.15),
    (MarkovChain(CIRCLING, [1, 0, 0]), 0.3),
    (AnyInitial([CIRCLING]), 0.3),
    (FiniteClass([MarkovChain(CIRCLING), MarkovChain([[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.1, 0.3, 0.6]])]), 0.25),
    (PeriodicChain([[[0.9, 0.1], [0.4, 0.6]], [[0.7, 0.3], [0.1, 0.9]], [[0.5, 0.5], [0.3, 0.7]]]), 0.35),
    (MixingBounds(0.2, 0.75), 0.077),
    (MixingBounds(0.02, 0.1), 0.003),
    (DobrushinBounds(CURVE, CURVE), 0.06),
    (neighbours(8), 0.04),
    (neighbours(51), 0.006),
]
KINDS = ["adjacent", "overlapping", "sliding", "gaps", "months", "random", "dense"]


def drawn(number: int) -> tuple[int, str, list[tuple[int, int, float]]]:
    """Which belief, the kind of schedule, and its windows."""
    generator = np.random.default_rng(number)
    belief, kind = number % len(BELIEFS), KINDS[number // len(BELIEFS) % len(KINDS)]
    density, size = BELIEFS[belief][1], int(generator.choice([4, 24, 48, 336]))
    starts, rates = generator.integers(0, 6 * size, 8).tolist(), generator.uniform(0.05, 0.6, 8).tolist()
    lengths = generator.integers(1, 3 * size, 8).tolist()
    found = {
        "adjacent": [(size * j, size * (j + 1), density) for j in range(4)],
        "overlapping": [(a // 2, a // 2 + size, density * rate) for a, rate in zip(starts, rates, strict=True)][:4],
        "sliding": [(size // 4 * j, size // 4 * (j + 4), density / 4) for j in range(12)],
        "gaps": [(size * j, size * j + size // 2, density) for j in range(5)],
        "months": [(4 * size * j, 4 * size * (j + 1), density * rates[j]) for j in range(4)],
        "random": [(a, a + n, density * rate) for a, n, rate in zip(starts, lengths, rates, strict=True)],
        "dense": [(a % 12, a % 12 + n % 3 + 1, rate) for a, n, rate in zip(starts, lengths, rates, strict=True)],
    }
    return belief, kind, found[kind]


RECORDED: list[float] = json.loads((Path(__file__).parent / "recorded_losses.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("part", range(5))  # for several workers
def test_the_loss_of_drawn_schedules_is_at_most_the_one_on_record(part):
    numbers = range(part, len(RECORDED) if NIGHT else 40, 5)
    assert len(numbers) >= 8
    for number in numbers:
        belief, kind, windows = drawn(number)
        loss = Ledger(BELIEFS[belief][0]).loss_of(windows)
        most = 1.01 if kind == "dense" and belief in {2, 3, 4, 6, 11} else 1.001
        assert 0 < loss <= most * RECORDED[number], (number, kind)
