"""The endless account: published numbers, the definition on small chains, and certificates that do not hold."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import laplace

from quiltstream.privacy import (
    AnyInitial,
    FiniteClass,
    MarkovChain,
    MixingBounds,
    forward_backward,
    mqm_exact,
    pairwise,
)
from quiltstream.privacy.accounting import endless, lower_bound
from quiltstream.privacy.accounting.certificates import constant_loss
from quiltstream.privacy.accounting.forward_backward import grid_density
from quiltstream.privacy.models import AnyStart, ChainError, NotContracting, certify

from ...depth import examples
from .. import reference
from ..homes import moves, runs_by_home
from ..strategies import distributions, transitions, windows

THETA1 = [[0.9, 0.1], [0.4, 0.6]]
THETA2 = [[0.8, 0.2], [0.3, 0.7]]

# slots enumerated: 2^8 sequences of two states, 3^5 of three
LENGTH = {2: 8, 3: 5}
TINY = 1e-9


def sigma(belief, epsilon=1.0):
    found = endless(belief, epsilon)
    # proven once more by couplings that are found anew, which are optimal to 1e-10: [[.5, .5], [4/9, 5/9]] at 2
    anew = [replace(one, density=one.density * (1 - 1e-9)) for one in found.certificates]
    assert all(certify(pair, one) for pair, one in zip(belief.pairs, anew, strict=True))
    assert all(one.loss <= epsilon for one in found.certificates)
    return 1 / found.density


@pytest.fixture(scope="module")
def homes(shared_data):
    return {name: moves(runs) for name, runs in runs_by_home(shared_data).items()}


def pooled(counts):
    total = np.sum(list(counts), axis=0)
    return MarkovChain(total / total.sum(axis=1, keepdims=True))


@pytest.mark.parametrize(
    ("transition", "printed"), [(THETA1, 3.336), (THETA2, 3.024), ([[0.1, 0.9], [0.6, 0.4]], 3.037)]
)
def test_two_states_need_the_noise_that_was_computed_by_hand(transition, printed):
    assert sigma(MarkovChain(transition)) == pytest.approx(printed, abs=6e-4)


@pytest.mark.night
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("transition", [THETA1, THETA2, [[0.999, 0.001], [0.3, 0.7]]])
def test_two_states_that_last_attain_the_lower_bound_of_the_noise(transition, epsilon):
    chain = MarkovChain(transition)
    assert sigma(chain, epsilon) == pytest.approx(lower_bound(chain, epsilon), rel=1e-6)


def counted_loss(chain, sigma, slots):
    """Loss at the middle of 2 slots + 1 slots, each with its counts, by enumeration of counts far below or above them.

    The noise has the scale 2 sigma; counts more extreme have the same ratios of likelihoods.
    """
    k = chain.states
    outputs = np.array(list(itertools.product((-1.0, 2.0), repeat=k)))
    likelihood = laplace.pdf(outputs[:, None, :] - np.eye(k), scale=2 * sigma).prod(axis=2)
    loss = np.log(likelihood[:, :, None] / likelihood[:, None, :]).max(axis=0)
    rare = reference.stationary(chain.transition)
    for kernel in (chain.transition, chain.transition.T * rare / rare[:, None]):
        given = np.ones((1, k))
        for _ in range(slots):
            given = (likelihood[:, None] * given).reshape(-1, k) @ kernel.T
        loss = loss + np.log(given[:, :, None] / given[:, None, :]).max(axis=0)
    return loss.max()


@settings(max_examples=examples(30), deadline=None)
@given(transitions(least=0.1), st.floats(0.3, 3.0))
def test_noise_below_the_lower_bound_loses_more_by_enumeration(matrix, epsilon):
    chain = MarkovChain(matrix)
    # then slots further away than those enumerated tell less than the 3 % that the noise is lowered by
    assume(np.sort(np.abs(np.linalg.eigvals(matrix)))[-2] < 0.4)
    slots = {2: 8, 3: 5}[chain.states]
    least = lower_bound(chain, epsilon)
    assert counted_loss(chain, least * 0.97, slots) > epsilon
    assert counted_loss(chain, sigma(chain, epsilon) * (1 + 1e-6), slots) <= epsilon


def test_the_lower_bound_is_near_the_noise_of_random_chains_whose_states_last():
    rng = np.random.default_rng(3)
    chains = [MarkovChain((np.eye(3) + rng.dirichlet(np.ones(3), size=3)) / 2) for _ in range(12)]
    over = [sigma(chain) / lower_bound(chain, 1.0) for chain in chains]
    assert np.median(over) < 1.03
    assert max(over) < 1.35
    # of one that alternates the same outputs in every slot tell no more than the slot itself
    assert lower_bound(MarkovChain([[0.1, 0.9], [0.8, 0.2]]), 1.0) == 1


def test_the_pooled_london_homes_need_a_quarter_of_the_quilts_noise(homes):
    chain = pooled(homes.values())
    assert sigma(chain) == pytest.approx(10.65676, abs=6e-6)
    assert lower_bound(chain, 1.0) == pytest.approx(10.51177, abs=1e-5)
    assert mqm_exact(chain, 1.0).sigma > 4 * 10.65676


@pytest.mark.night
def test_each_home_by_its_own_chain_needs_little_above_the_least(homes):
    whole = pooled(homes.values())
    found, least = [], []
    for counts in homes.values():
        smoothed = counts + whole.transition
        chain = MarkovChain(smoothed / smoothed.sum(axis=1, keepdims=True))
        found.append(sigma(chain))
        least.append(lower_bound(chain, 1.0))
    over = np.array(found) / np.array(least)
    assert np.median(found) == pytest.approx(7.944, abs=6e-4)
    assert max(found) == pytest.approx(35.99, abs=6e-3)
    assert np.median(over) == pytest.approx(1.002, abs=6e-4)
    assert over.max() <= 1.095


@pytest.mark.parametrize(
    ("bounds", "printed"),
    [
        (MixingBounds(0.2, 0.75, "multiplicative"), 8.517),
        (MixingBounds(0.2, 0.75), 12.958),
        (MixingBounds(0.03349, 0.4002), 45.507),
    ],
)
def test_mixing_bounds_follow_their_closed_form(bounds, printed):
    assert sigma(bounds) == pytest.approx(printed, abs=6e-4)


def test_a_class_needs_the_noise_of_its_worst_member():
    both = FiniteClass([MarkovChain(THETA1), MarkovChain(THETA2)])
    assert sigma(both) == pytest.approx(max(sigma(one) for one in both.chains), rel=1e-9)


@settings(max_examples=examples(20), deadline=None)
@given(st.data())
def test_the_certificate_bounds_the_loss_of_every_stationary_chain(data):
    matrix = data.draw(transitions(zeros=data.draw(st.booleans()), least=1e-3))
    chain = MarkovChain(matrix)
    assume(chain.is_irreducible and chain.period == 1 and chain.gap > 1e-3)
    charges = data.draw(windows(LENGTH[len(matrix)], epsilon=(0.001, 1.0)))
    # the density is at most the sum of all, and is made to fit under the certificate
    density = endless(chain, data.draw(st.floats(0.1, 4.0)))
    scale = density.density / sum(one for _, _, one in charges)
    charges = [(start, stop, one * scale) for start, stop, one in charges]
    start = reference.stationary(matrix)
    truth = reference.true_loss(start, matrix, LENGTH[len(matrix)], charges)
    assert truth <= density.certificates[0].loss + TINY


@settings(max_examples=examples(20), deadline=None)
@given(st.data())
def test_no_chain_of_any_start_loses_more_than_its_class(data):
    matrix = data.draw(transitions(least=1e-2))
    start = data.draw(distributions(len(matrix)))
    charges = [(0, LENGTH[len(matrix)], 1.0)]
    chain = MarkovChain(matrix)
    assume(chain.gap > 1e-3)
    for belief in (AnyInitial([matrix]), MixingBounds.of(chain)):
        found = endless(belief, data.draw(st.floats(0.1, 4.0)))
        scaled = [(first, last, found.density) for first, last, _ in charges]
        truth = reference.response_loss(start, matrix, LENGTH[len(matrix)], scaled)
        assert truth <= max(one.loss for one in found.certificates) + TINY


@settings(max_examples=examples(15), deadline=None)
@given(transitions(least=1e-2), st.floats(0.2, 3.0))
def test_the_account_is_never_above_the_quilts_nor_below_the_least(matrix, epsilon):
    chain = MarkovChain(matrix)
    assume(chain.gap > 1e-3)
    found = sigma(chain, epsilon)
    assert found <= pairwise(chain, epsilon).sigma * (1 + 1e-6)
    assert found >= lower_bound(chain, epsilon) * (1 - 1e-6)


def test_a_certificate_with_an_entry_too_small_does_not_hold(homes):
    chain = pooled(homes.values())
    (pair,), (good,) = chain.pairs, endless(chain, 1.0).certificates
    for name in ("forward", "backward"):
        matrix = getattr(good, name).copy()
        matrix[3, 1] *= 1 - 1e-4
        assert not certify(pair, replace(good, **{name: matrix}))
    assert not certify(pair, replace(good, density=good.density * (1 + 1e-6)))
    assert not certify(pair, replace(good, forward=good.backward.T, backward=good.forward.T))
    assert not certify(pair, replace(good, forward=good.forward * np.nan))
    assert certify(pair, replace(good, density=good.density / 2))


def test_a_certificate_of_another_chain_does_not_hold():
    (good,) = endless(MarkovChain(THETA2), 1.0).certificates
    (other,) = MarkovChain(THETA1).pairs
    assert not certify(other, good)
    assert not certify(MixingBounds(0.2, 0.75).pairs[0], good)


@pytest.mark.parametrize(
    ("belief", "error", "said"),
    [
        (MarkovChain(THETA1, [1, 0]), ChainError, "AnyInitial"),
        (MarkovChain([[0.0, 1.0], [1.0, 0.0]]), NotContracting, "group privacy"),
        (MarkovChain([[1.0, 0.0], [0.5, 0.5]]), ChainError, "reducible"),
    ],
)
def test_a_belief_without_an_endless_account_is_refused_with_the_reason(belief, error, said):
    with pytest.raises(error, match=said):
        endless(belief, 1.0)


def test_the_odds_of_any_start_are_not_below_those_of_exact_arithmetic():
    # chances of one and three times the least float: products of them are rounded to whole multiples of it
    faint = [[0.6, 0.4, 5e-324], [0.4, 0.6, 1.5e-323], [0.6, 0.4, 5e-324]]
    walk = [[0.5, 0.25, 0.0, 0.25], [0.25, 0.5, 0.25, 0.0], [0.0, 0.25, 0.5, 0.25], [0.25, 0.0, 0.25, 0.5]]
    for matrix in (faint, walk, [[0.9, 0.1], [0.4, 0.6]]):
        kernel = [[Fraction(one) for one in row] for row in matrix]
        power, done, states = kernel, 1, range(len(kernel))
        for steps, odds in [one for one in AnyStart.of(np.array(matrix)).odds if one[0] <= 8]:
            while done < steps:
                power = [[sum(row[z] * kernel[z][y] for z in states) for y in states] for row in power]
                done += 1
            pairs = [(x, other) for x in states for other in states if x != other]
            ratios = (
                power[y][x] * power[z][other] / (power[z][x] * power[y][other])
                for x, other in pairs
                for y in states
                for z in states
            )
            assert odds >= math.log(max(ratios))


def test_a_walk_that_takes_more_than_64_slots_has_a_bound_from_any_start():
    states = 70
    walk = np.zeros((states, states))
    for state in range(states):
        for step, weight in ((0, 0.5), (1, 0.25), (-1, 0.25)):
            walk[state, min(max(state + step, 0), states - 1)] += weight
    found = AnyStart.of(walk)
    steps, odds = found.odds[0]
    assert steps > 64
    logs = np.log(np.linalg.matrix_power(walk, steps))
    shifts = logs[:, :, None] - logs[:, None, :]
    assert odds >= np.ptp(shifts, axis=0).max() * (1 - TINY)
    assert math.isfinite(found.value(1e-6))
    # 64 slots tell the two ends of the walk apart, and the longest blocks do not
    for belief in (AnyInitial([walk]), MarkovChain(walk)):
        density = grid_density(belief, 1.0)
        assert density > 0
        assert constant_loss(belief, density) <= 1
    # where 64 slots tell everything no further ones are looked at
    assert AnyStart.of(np.array(THETA1)).odds[-1][0] == 64


@pytest.mark.parametrize("epsilon", [40.0, 1e-9])
def test_a_window_has_group_privacy_where_a_density_is_of_no_use(epsilon):
    found = forward_backward(MarkovChain([[1 - 1e-100, 1e-100], [0.5, 0.5]], [0.5, 0.5]), epsilon, 3)
    assert found.sigma == pytest.approx(3 / epsilon, rel=1e-9)
