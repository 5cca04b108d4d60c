"""The sources' composition theorems: their numbers, their refusals, and the truth by enumeration below them."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.privacy import MarkovChain, MixingBounds, Quilt, mqm_approx
from quiltstream.privacy.accounting.theorems import (
    QuiltRelease,
    TheoremDoesNotApply,
    distant_segments,
    joint_divergence,
    nearly_independent,
    same_quilts,
    sequential,
    two_segments,
)
from quiltstream.privacy.quilts import sided_influence

from ...depth import examples
from .. import reference
from ..strategies import transitions

TINY = 1e-9
# nearly independent states: quilts of short windows are two-sided
QUICK = np.array([[0.55, 0.45], [0.48, 0.52]])
QUICK_BOUNDS = MixingBounds(pi_min=0.45, gap=1.86, kind="reversible")


def released(start, stop, epsilon, *quilts, method="mqm-approx"):
    return QuiltRelease(start, stop, epsilon, quilts or (Quilt(2, 2),), method)


def loss_in(slots, matrix, length, windows):
    """True loss of the secrets at some slots alone."""
    every, chance = reference.sequences(reference.stationary(matrix), matrix, length)
    density = np.zeros(length)
    for start, stop, epsilon_dp in windows:
        density[start:stop] += epsilon_dp
    likelihood = np.exp((every[:, np.newaxis, :] == every[np.newaxis, :, :]) @ density)
    worst = 0.0
    for slot in slots:
        held = [every[:, slot] == state for state in range(len(matrix))]
        laws = [likelihood[:, here] @ chance[here] / chance[here].sum() for here in held]
        worst = max(worst, *(reference.worst_ratio(one, other) for one, other in itertools.permutations(laws, 2)))
    return worst


def test_two_answers_without_loss_may_reveal_a_secret_together_and_are_refused():
    """Three fair coins; whether the first two agree, and the parity of all."""
    coins = list(itertools.product((0, 1), repeat=3))

    def loss(answer):
        worst = 0.0
        for slot in range(3):
            laws = [Counter(answer(coin) for coin in coins if coin[slot] == side) for side in (0, 1)]
            for one, other in (laws, laws[::-1]):
                worst = max(worst, *(math.log(one[y] / other[y]) if other[y] else math.inf for y in one))
        return worst

    assert loss(lambda coin: coin[0] ^ coin[1]) == loss(lambda coin: coin[0] ^ coin[1] ^ coin[2]) == 0
    assert loss(lambda coin: (coin[0] ^ coin[1], coin[0] ^ coin[1] ^ coin[2])) == math.inf
    exact = QuiltRelease(0, 3, TINY, (), method="exact answer")
    with pytest.raises(TheoremDoesNotApply, match="exact answer"):
        sequential([exact, exact])


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.floats(0.5, 12.0), min_size=1, max_size=3), st.integers(3, 7))
def test_quilt_releases_cost_at_most_their_sum_and_k_times_the_largest_on_one_quilt(epsilons, length):
    calibrations = [mqm_approx(QUICK_BOUNDS, epsilon, length) for epsilon in epsilons]
    truth = reference.response_loss(
        reference.stationary(QUICK), QUICK, length, [(0, length, one.epsilon_dp) for one in calibrations]
    )
    releases = [QuiltRelease.of(one) for one in calibrations]
    assert sequential(releases) == pytest.approx(sum(epsilons))
    assert truth <= sequential(releases) + TINY
    alike = [QuiltRelease.of(calibrations[0])] * len(releases)
    repeated = reference.response_loss(
        reference.stationary(QUICK), QUICK, length, [(0, length, calibrations[0].epsilon_dp)] * len(releases)
    )
    assert repeated <= same_quilts(alike) + TINY
    assert same_quilts(alike) == pytest.approx(len(releases) * epsilons[0])


@settings(max_examples=examples(30), deadline=None)
@given(st.data())
def test_theorem_3_1_bounds_the_loss_of_two_segments_of_any_mechanism(data):
    matrix = data.draw(transitions(st.just(2), least=0.05))
    first = data.draw(st.integers(1, 4))
    start = data.draw(st.integers(first, 6))
    stop = data.draw(st.integers(start + 1, 7))
    rates = data.draw(st.tuples(st.floats(0.1, 3.0), st.floats(0.1, 3.0)))
    windows = [(0, first, rates[0]), (start, stop, rates[1])]
    alone = [loss_in(range(7), matrix, 7, [window]) for window in windows]
    tables = sided_influence(MarkovChain(matrix))
    lag = min(start - first + 1, tables.reach)
    ahead, back = float(tables.right[:, lag - 1].max()), float(tables.left[:, lag - 1].max())
    # without the sum, which needs more than "any mechanism"
    inside_first = loss_in(range(first), matrix, 7, windows)
    inside_second = loss_in(range(start, stop), matrix, 7, windows)
    assert inside_first <= alone[0] + ahead + TINY
    assert inside_second <= alone[1] + back + TINY
    bound = two_segments((0, first, alone[0]), (start, stop, alone[1]), tables)
    both = sum(alone)
    assert bound == pytest.approx(max(min(both, alone[0] + ahead), min(both, alone[1] + back)))


@settings(max_examples=examples(8), deadline=None)
@given(st.floats(14.0, 20.0), st.floats(14.0, 20.0))
def test_two_distant_segments_with_two_sided_quilts_lose_no_more_than_one(one, other):
    calibrations = [mqm_approx(QUICK_BOUNDS, epsilon, 3) for epsilon in (one, other)]
    releases = [QuiltRelease.of(calibrations[0]), QuiltRelease.of(calibrations[1], start=6)]
    windows = [(0, 3, calibrations[0].epsilon_dp), (6, 9, calibrations[1].epsilon_dp)]
    truth = reference.response_loss(reference.stationary(QUICK), QUICK, 9, windows)
    assert all(calibration.quilt.card is not None for calibration in calibrations)
    assert truth <= distant_segments(*releases) + TINY
    assert distant_segments(*releases[::-1]) == max(one, other)


@settings(max_examples=examples(25), deadline=None)
@given(st.data())
def test_nearly_independent_segments_lose_at_most_the_sum_and_twice_the_divergence(data):
    matrix = data.draw(transitions(st.just(2), least=0.05))
    gap = data.draw(st.integers(1, 4))
    rates = data.draw(st.tuples(st.floats(0.1, 3.0), st.floats(0.1, 3.0)))
    windows = [(0, 2, rates[0]), (1 + gap, 3 + gap, rates[1])]
    alone = [loss_in(range(3 + gap), matrix, 3 + gap, [window]) for window in windows]
    divergence = joint_divergence(MarkovChain(matrix), gap)
    truth = loss_in([0, 1, 1 + gap, 2 + gap], matrix, 3 + gap, windows)
    assert truth <= nearly_independent(alone[0], alone[1], divergence) + TINY
    # the divergence from the definition, in both directions
    weights, power = reference.stationary(matrix), np.linalg.matrix_power(matrix, gap)
    joint, product = weights[:, np.newaxis] * power, np.outer(weights, weights)
    assert divergence == pytest.approx(
        max(reference.worst_ratio(joint, product), reference.worst_ratio(product, joint)), rel=1e-9
    )


TABLES = sided_influence(MarkovChain(QUICK))


@pytest.mark.parametrize(
    "call",
    [
        lambda: sequential([]),
        lambda: sequential([released(0, 9, 1.0, method="wasserstein")]),
        lambda: same_quilts([released(0, 9, 1.0), released(0, 8, 1.0)]),
        lambda: same_quilts([released(0, 9, 1.0), released(0, 9, 1.0, Quilt(2, None))]),
        lambda: distant_segments(released(0, 9, 1.0), released(17, 22, 1.0)),
        lambda: distant_segments(released(0, 9, 1.0), released(20, None, 1.0)),
        lambda: distant_segments(released(0, 9, 1.0, method="mqm-exact"), released(20, 29, 1.0)),
        lambda: distant_segments(released(0, 9, 1.0, Quilt(None, 2)), released(20, 29, 1.0)),
        lambda: distant_segments(released(0, 3, 1.0, Quilt(2, 2)), released(20, 29, 1.0)),
        lambda: two_segments((0, 5, 1.0), (4, 9, 1.0), TABLES),
        lambda: two_segments((0, 5, math.nan), (6, 9, 1.0), TABLES),
        lambda: nearly_independent(1.0, 1.0, math.inf),
        lambda: nearly_independent(0.0, 1.0, 0.1),
    ],
)
def test_a_theorem_with_an_unmet_condition_is_refused(call):
    with pytest.raises(TheoremDoesNotApply):
        call()


def test_theorem_3_1_uses_the_influence_across_the_gap_in_both_directions():
    matrix = [[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.3, 0.1, 0.6]]
    tables = sided_influence(MarkovChain(matrix))
    ahead, back = float(tables.right[:, 2].max()), float(tables.left[:, 2].max())
    assert ahead != pytest.approx(back, rel=1e-3)
    assert two_segments((0, 10, 5.0), (12, 20, 0.1), tables) == pytest.approx(5.1)
    assert two_segments((0, 10, 5.0), (12, 20, 4.9), tables) == pytest.approx(max(5 + ahead, 4.9 + back))
    assert two_segments((0, 10, 5.0), (10**9, 10**9 + 5, 4.9), tables) == pytest.approx(5.0, rel=1e-9)
    assert two_segments((0, 10, 5.0), (12, 20, 4.9), sided_influence(MarkovChain([[1.0]]))) == 5.0
