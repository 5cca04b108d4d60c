"""Histograms by classes of slots: what they lose, worked out from the definition."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction
from random import Random

import numpy as np
import pytest

from quiltstream.privacy import Ledger, MarkovChain
from quiltstream.privacy.mechanisms.histogram import FixedTotalHistogram, HistogramMechanism, LaplaceHistogram

SCALE = Fraction(4)
PARTS = [LaplaceHistogram(2, SCALE), FixedTotalHistogram(2, SCALE)]

#: Slots of a window -> the class of each, all there are for four slots and two classes.
CLASSES = list(itertools.product((0, 1), repeat=4))


def counted(path: tuple[int, ...], classes: tuple[int, ...]) -> tuple[int, ...]:
    """Class after class, how many slots are in each of two states."""
    return tuple(sum(pair == (x, c) for pair in zip(path, classes, strict=True)) for c in (0, 1) for x in (0, 1))


def log_weight(each: HistogramMechanism, output: tuple[int, ...], true: tuple[int, ...]) -> float | None:
    """Log-probability of an output, up to a constant that all histories share; ``None`` for an impossible output."""
    noise = [a - b for a, b in zip(output, true, strict=True)]
    if isinstance(each, FixedTotalHistogram) and (sum(noise[:2]) or sum(noise[2:])):
        return None
    return -sum(map(abs, noise)) / float(each.scale)


@pytest.mark.parametrize("each", PARTS)
def test_two_histories_that_differ_in_one_slot_differ_by_two_over_the_scale(each: HistogramMechanism) -> None:
    """Every window of four slots in two classes, every pair of histories, every output near the counts."""
    most = 0.0
    for classes in CLASSES:
        for path, slot in itertools.product(itertools.product((0, 1), repeat=4), range(4)):
            other = (*path[:slot], 1 - path[slot], *path[slot + 1 :])
            ours, theirs = counted(path, classes), counted(other, classes)
            for moves in itertools.product((-2, 0, 1), repeat=4):
                output = tuple(a + b for a, b in zip(ours, moves, strict=True))
                first, second = (log_weight(each, output, true) for true in (ours, theirs))
                assert (first is None) == (second is None)  # each class keeps its total
                if first is not None and second is not None:
                    most = max(most, first - second)
    mechanism = replace(each, classes=2)
    assert most == pytest.approx(2 / float(SCALE))
    assert most <= mechanism.epsilon_dp * (1 + 1e-12)
    assert mechanism.epsilon_dp == each.epsilon_dp
    counts = np.arange(8).reshape(2, 4)
    apart = each.randomise(counts.reshape(4, 2), Random(3).randbytes)
    assert np.array_equal(mechanism.randomise(counts, Random(3).randbytes), apart.reshape(2, 4))


@pytest.mark.night
@pytest.mark.parametrize("classes", CLASSES)
def test_the_loss_on_a_chain_by_enumeration_is_at_most_that_of_one_histogram(classes: tuple[int, ...]) -> None:
    """[SWC17] Definition 2.1 over all histories of a chain and all outputs in a box, against the ledger's account."""
    chain = MarkovChain([[0.9, 0.1], [0.4, 0.6]])
    each = FixedTotalHistogram(2, SCALE)
    ledger = Ledger(chain)
    ledger.charge(0, 4, replace(each, classes=2).epsilon_dp)
    start, step = (0.8, 0.2), ((0.9, 0.1), (0.4, 0.6))
    paths = list(itertools.product((0, 1), repeat=4))
    prior = {p: start[p[0]] * math.prod(step[a][b] for a, b in itertools.pairwise(p)) for p in paths}
    sizes = classes.count(0), classes.count(1)
    worst = 0.0
    for low in itertools.product(range(-12, 13), repeat=2):
        output = (low[0], sizes[0] - low[0], low[1], sizes[1] - low[1])
        of = {p: math.exp(log_weight(each, output, counted(p, classes)) or 0.0) for p in paths}
        for slot in range(4):
            given = [
                sum(prior[p] * of[p] for p in paths if p[slot] == x) / sum(prior[p] for p in paths if p[slot] == x)
                for x in (0, 1)
            ]
            worst = max(worst, abs(math.log(given[0] / given[1])))
    assert 0 < worst <= ledger.loss
