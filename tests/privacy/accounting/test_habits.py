"""What a habit tells: the lemma's bound and the finite life, against mixtures that are followed from the definition."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from quiltstream.privacy.accounting.certificates import constant_loss
from quiltstream.privacy.accounting.habits import (
    habit_loss,
    least_mixture_loss,
    lifetime_sigma,
    mixture_loss,
)
from quiltstream.privacy.estimation.per_series import Contractions, contractions
from quiltstream.privacy.estimation.transition_counts import TransitionCounts
from quiltstream.privacy.models.belief import ChainError
from quiltstream.privacy.models.classes import FiniteClass
from quiltstream.privacy.models.markov_chain import MarkovChain
from quiltstream.privacy.models.periodic import PeriodicChain

from ...depth import NIGHT
from ..homes import moves, runs_by_home

IID = [MarkovChain([[0.9, 0.1], [0.9, 0.1]]), MarkovChain([[0.1, 0.9], [0.1, 0.9]])]
STICKY = [MarkovChain([[0.9, 0.1], [0.4, 0.6]]), MarkovChain([[0.6, 0.4], [0.1, 0.9]])]
WITH_MEMORY = [MarkovChain([[0.8, 0.2], [0.6, 0.4]]), MarkovChain([[0.5, 0.5], [0.3, 0.7]])]


def exact_loss(
    laws: list[tuple[np.ndarray, np.ndarray]], weights: np.ndarray, density: float, slots: int
) -> tuple[float, float]:
    """The largest loss of a mixture over all outputs that favour a set of states in each slot, and of its members.

    A law is the marginals of the slots, shape (slots, k), and the kernel out of each, shape (slots, k, k). The largest
    ratio is at such outputs: in the likelihood of each slot both expectations are linear.
    """
    k = laws[0][0].shape[1]
    sets = np.array(list(itertools.product((0.0, 1.0), repeat=k * slots))).reshape(-1, slots, k)
    gains = np.exp(density * sets)
    joint = np.zeros((len(laws), slots, len(sets), k))  # P(x_t, r) E[h | x_t, r]
    for marginals, kernels, held, found in zip(*zip(*laws, strict=True), weights, joint, strict=True):
        before, after = [np.broadcast_to(marginals[0], (len(sets), k))], [np.ones((len(sets), k))]
        for slot in range(slots - 1):
            before.append((before[-1] * gains[:, slot]) @ kernels[slot])
        for slot in range(slots - 1, 0, -1):
            after.insert(0, (after[0] * gains[:, slot]) @ kernels[slot - 1].T)
        for slot in range(slots):
            found[slot] = held * before[slot] * gains[:, slot] * after[slot]
    chances = np.array([held * law[0] for held, law in zip(weights, laws, strict=True)])[:, :, np.newaxis]
    mixture = np.log(joint.sum(axis=0) / chances.sum(axis=0))
    return float(np.ptp(mixture, axis=2).max()), float(np.ptp(np.log(joint / chances), axis=3).max())


def test_two_independent_habits_lose_what_the_lemma_says() -> None:
    told = habit_loss(IID)
    assert told.most == pytest.approx(math.log(9))
    assert told.pair == (0, 1)
    bound = 0.05 + told.most
    assert round(bound, 4) == 2.2472
    assert [round(least_mixture_loss(IID, 0.05, slots), 3) for slots in (48, 200, 2000)] == [1.4, 2.244, 2.247]
    assert bound * (1 - 1e-4) < least_mixture_loss(IID, 0.05, 2000) <= bound
    # of a finite life, too
    for slots in (2, 48, 200):
        exact = least_mixture_loss(IID, 0.05, slots)
        assert exact * (1 - 1e-9) <= mixture_loss(IID, 0.05, slots) <= exact * 1.02
    # the account of each habit alone is as small as before
    assert constant_loss(FiniteClass(IID), 0.05) == pytest.approx(0.05, rel=1e-3)


def test_two_habits_with_a_memory_lose_nearly_what_the_lemma_says() -> None:
    bound = constant_loss(FiniteClass(WITH_MEMORY), 0.05) + habit_loss(WITH_MEMORY).most
    reached = least_mixture_loss(WITH_MEMORY, 0.05, 2000)
    assert (round(reached, 4), round(bound, 4)) == (0.9219, 0.9227)


def test_a_likelihood_that_is_known_to_be_bounded_sharpens_the_lemma() -> None:
    told = habit_loss(IID)
    apart = 47 * math.log((0.9 * math.exp(0.05) + 0.1) / (0.1 * math.exp(0.05) + 0.9))
    divergence = np.array([[0, apart], [apart, 0]])
    assert 0.05 + told.sharper(divergence) == pytest.approx(least_mixture_loss(IID, 0.05, 48), rel=1e-6)
    assert told.sharper(1e3 * divergence) <= told.most
    assert told.sharper(np.zeros((2, 2))) == pytest.approx(0, abs=1e-9)


def drawn_law(random: np.random.Generator, k: int, slots: int) -> MarkovChain | PeriodicChain:
    """A chain, one whose season changes in the middle, or one with kinds of days in an order of its own."""
    kernels = random.dirichlet(np.full(k, random.choice([0.5, 1.0, 3.0])), (2, k)) + 0.02
    kernels /= kernels.sum(axis=2, keepdims=True)
    what = random.integers(3)
    if what == 0:
        return MarkovChain(kernels[0])
    labels = np.arange(slots) >= slots // 2 if what == 1 else random.integers(2, size=slots)
    return PeriodicChain([kernels[int(one)] for one in labels])


@pytest.mark.parametrize("part", range(10))
def test_no_drawn_mixture_loses_more_than_the_bounds(part: int) -> None:
    random = np.random.default_rng(4300 + part)
    close = []
    for _ in range(100 if NIGHT else 3):
        k, slots, habits = int(random.integers(2, 4)), int(random.integers(2, 5)), int(random.integers(2, 5))
        chains = [drawn_law(random, k, slots) for _ in range(habits)]
        weights = random.dirichlet(np.ones(habits))
        density = float(random.choice([0.02, 0.2, 1.0]))
        laws = [
            (np.tile(one.stationary, (slots, 1)), np.tile(one.transition, (slots, 1, 1)))
            if isinstance(one, MarkovChain)
            else (one.marginals, np.array(one.transitions))
            for one in chains
        ]
        exact, given = exact_loss(laws, weights, density, slots)
        told = habit_loss(chains, weights)
        eps = max(constant_loss(one, density) for one in chains)
        assert given <= eps * (1 + 1e-9)
        assert exact <= (eps + told.most) * (1 + 1e-9)
        assert exact <= (given + told.most) * (1 + 1e-9)
        stationary = [one for one in chains if isinstance(one, MarkovChain)]
        if len(stationary) == len(chains):
            finite = mixture_loss(stationary, density, slots, weights)
            assert least_mixture_loss(stationary, density, slots, weights) <= exact * (1 + 1e-9)
            assert exact * (1 - 1e-9) <= finite
            close.append(finite / exact)
    assert np.median(close or [1.0]) < 1.2


@pytest.fixture(scope="module")
def homes(shared_data: Path) -> tuple[Contractions, Contractions, list[int]]:
    """The demo's history in five bands, in two (below and above 500 W), and the 28 homes that its belief covers."""
    runs = runs_by_home(shared_data)
    names = sorted(runs)[::2]
    counts = np.stack([moves(runs[name]) for name in names])
    visits = np.stack([sum(np.bincount(run, minlength=5) for run in runs[name]) for name in names])
    two = np.repeat(np.eye(2, dtype=np.int64), [2, 3], axis=0)
    five = contractions(TransitionCounts(tuple(names), counts, visits))
    both = contractions(TransitionCounts(tuple(names), two.T @ counts @ two, visits @ two))
    return five, both, np.argsort(five.scores, kind="stable")[:28].tolist()


def test_the_habits_of_28_homes(homes: tuple[Contractions, Contractions, list[int]]) -> None:
    five, two, covered = homes
    chains = [five.chains[home] for home in covered]
    told = habit_loss(chains)
    assert (round(told.most, 2), told.pair) == (7.14, (0, 4))
    # above the lowest band, in which some homes never are
    ahead = [told.table[low, low + 1] for low in (1, 2, 3)]
    assert (round(min(ahead), 2), round(max(ahead), 2)) == (1.22, 3.15)
    assert round(habit_loss([two.chains[home] for home in covered]).most, 2) == 4.80
    # 24 hours on both sides of a half-hour, and so on: a day, a week, four weeks
    reached = [least_mixture_loss(chains, 1 / 26.77, slots) for slots in (49, 337, 1345)]
    assert [round(one, 2) for one in reached] == [0.95, 4.73, 7.37]


@pytest.mark.night
def test_a_year_and_a_lifetime_of_28_homes(homes: tuple[Contractions, Contractions, list[int]]) -> None:
    five, _, covered = homes
    chains = [five.chains[home] for home in covered]
    assert round(least_mixture_loss(chains, 1 / 26.77, 17521), 2) == 7.38
    assert round(least_mixture_loss(chains, 1 / 46.4, 17521), 2) == 7.28
    assert round(least_mixture_loss(chains, 1 / 1000, 17521), 2) == 5.13
    proved, least = lifetime_sigma(chains, 49, 1.0)
    assert 25.5 < least < 25.8 < proved < 36


def test_a_lifetime_is_between_its_bounds() -> None:
    for slots in (1, 2, 30):
        proved, least = lifetime_sigma(STICKY, slots, 1.0)
        assert least <= proved <= slots * (1 + 1e-9)
        assert mixture_loss(STICKY, 1 / proved, slots) <= 1 + 1e-9
        assert least_mixture_loss(STICKY, 1 / least, slots) >= 1 - 1e-3
        assert proved <= 1.35 * least


def test_bad_habits_are_refused() -> None:
    three = MarkovChain(np.full((3, 3), 1 / 3))
    for chains, weights, said in (
        ([], None, "chains is empty"),
        (IID, [0.5, 0.4], "add to 0.9"),
        (IID, [1.0], "2 numbers above 0"),
        (IID, [1.5, -0.5], "above 0"),
        ([IID[0], three], None, "same states"),
        ([MarkovChain([[0.9, 0.1], [0.4, 0.6]], [1, 0])], None, "fixed start"),
    ):
        with pytest.raises(ChainError, match=said):
            habit_loss(chains, weights)
