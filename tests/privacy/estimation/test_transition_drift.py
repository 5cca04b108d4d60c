"""Drift from released tables of transitions: what the class excludes, and how often it is wrong."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from quiltstream.privacy import AnyInitial, BinaryInterval, FiniteClass, MarkovChain, MixingBounds
from quiltstream.privacy.estimation import NoisyCounts, confidence_class, transition_drift_test

from .test_drift import FALSE_ALARM, laplace

TRUE = [[0.9, 0.1], [0.2, 0.8]]  # shares 2/3 and 1/3, autocorrelation 0.7
WIDE = [[0.5, 0.5, 0], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]]


def table(matrix, transitions=300_000, scale=80):
    """The expected counts of a long history, with no noise but as if with it."""
    pi = np.linalg.matrix_power((np.array(matrix) + np.eye(len(matrix))) / 2, 2**14)[0]
    counts = np.round(transitions * pi[:, np.newaxis] * np.array(matrix)).astype(np.int64)
    return NoisyCounts(counts, Fraction(scale), 0, transitions + 1)


SAME = MarkovChain(TRUE)
OTHER = MarkovChain([[0.8, 0.2], [0.4, 0.6]])  # the same shares


@pytest.mark.parametrize(
    ("belief", "drifted"),
    [
        (SAME, False),
        (OTHER, True),
        (FiniteClass([OTHER, SAME]), False),
        (FiniteClass([OTHER, MarkovChain([[0.7, 0.3], [0.6, 0.4]])]), True),
        (AnyInitial([TRUE]), False),
        (AnyInitial([OTHER.transition]), True),
        (BinaryInterval((0.85, 0.95), (0.7, 0.9)), False),
        (BinaryInterval((0.85, 0.95), (0.3, 0.7)), True),
        (MixingBounds(0.3, 0.6, "reversible"), False),
        (MixingBounds(0.3, 0.8, "reversible"), True),
        (MixingBounds(0.42, 0.6, "reversible"), True),
        (confidence_class(np.array([[9000, 1000], [1000, 4000]])), False),
        (confidence_class(np.array([[8000, 2000], [2000, 3000]])), True),
    ],
)
def test_a_belief_has_drifted_if_none_of_its_chains_is_compatible(belief, drifted):
    found = transition_drift_test(belief, table(TRUE))
    assert found.judged
    assert found.drifted == drifted
    assert found.state in (0, 1)
    assert found.alpha == 0.001


@pytest.mark.parametrize("alpha", [0.3, 1e-3, 1e-6])
@pytest.mark.parametrize("end", ["lower", "upper"])
def test_the_limit_is_the_end_of_the_confidence_class(alpha, end):
    released = table(TRUE, 30_000, 20)
    known = released.confidence_class(1 - alpha)
    stay, step = float(getattr(known, end)[0, 0]), 1e-5 * (1 if end == "upper" else -1)
    for moved, drifted in ((stay - step, False), (stay + step, True)):
        belief = MarkovChain([[moved, 1 - moved], [0.2, 0.8]])
        assert transition_drift_test(belief, released, alpha=alpha).drifted == drifted


@pytest.mark.parametrize("sign", [1, -1])
def test_one_transition_is_enough(sign):
    """One entry is off by more than its interval, the other three of its row, which share the difference, are not."""
    matrix = np.full((4, 4), 0.25)
    released = table(matrix, 80_000, 10)
    known = released.confidence_class(0.999)
    off = 1.2 * float((known.upper - known.lower)[0, 0]) / 2 * sign
    believed = matrix.copy()
    believed[0] += np.array([off, -off / 3, -off / 3, -off / 3])
    inside = (believed >= known.lower) & (believed <= known.upper)
    assert np.argwhere(~inside).tolist() == [[0, 0]]
    found = transition_drift_test(MarkovChain(believed), released)
    assert (found.drifted, found.state) == (True, 0)
    assert found.expected == pytest.approx(0.25 + off)


def test_the_transition_with_the_largest_deviation_is_named():
    moved = [[0.5, 0.5, 0], [0.1, 0.8, 0.1], [0.3, 0.2, 0.5]]
    found = transition_drift_test(MarkovChain(WIDE), table(moved))
    assert (found.state, found.drifted) == (2, True)
    assert found.reason.startswith("transitions from state 2 to state")
    assert found.share in (pytest.approx(0.2, abs=1e-3), pytest.approx(0.5, abs=1e-3))
    assert abs(found.share - found.expected) == pytest.approx(0.1, abs=1e-3)
    assert math.copysign(1, found.z) == math.copysign(1, found.share - found.expected)


def test_z_is_the_distance_in_standard_deviations_of_noise_and_sampling():
    released = NoisyCounts(np.array([[8900, 1100], [1000, 4000]]), Fraction(9), 0, 20_000)
    found = transition_drift_test(SAME, released)
    ratio = math.exp(-1 / 9)
    noise = 2 * ratio / (1 - ratio) ** 2
    truth = (8900 - 9000) / math.sqrt(10_000 * 0.9 * 0.1 + noise * (0.1**2 + 0.9**2))
    assert (found.state, found.drifted) == (0, False)
    assert abs(found.z) == pytest.approx(abs(truth), rel=1e-9)


def test_the_violated_side_of_mixing_bounds_is_named():
    rare = transition_drift_test(MixingBounds(0.42, 0.6, "reversible"), table(TRUE))
    assert (rare.state, rare.expected) == (1, 0.42)
    assert rare.share == pytest.approx(1 / 3, abs=1e-4)
    slow = transition_drift_test(MixingBounds(0.3, 0.8, "multiplicative"), table(TRUE))
    assert slow.share == pytest.approx(0.7, abs=1e-3)
    assert slow.expected == pytest.approx(math.sqrt(0.2))
    assert "longer than the gap allows" in slow.reason


def test_a_table_dominated_by_noise_shows_no_drift():
    drowned = NoisyCounts(np.array([[-900, 40], [300, -200]]), Fraction(10**5), 0, 50)
    for belief in (SAME, OTHER, MixingBounds(0.5, 2.0)):
        assert not transition_drift_test(belief, drowned).drifted


def test_false_alarms_are_no_more_frequent_than_stated():
    """300 histories of 2,000 transitions and their noise at a level of 0.3; the seed is fixed.

    More alarms than the 1e-9 quantile of a binomial law with 0.3 would refute the level; false-alarm rate 1e-9.
    """
    rng, repeats, slots = np.random.default_rng(17), 300, 2000
    steps, state = np.cumsum(WIDE, axis=1), np.zeros(repeats, dtype=np.int64)
    counts = np.zeros((repeats, 3, 3), dtype=np.int64)
    for _ in range(slots):
        moved = np.minimum((rng.random(repeats)[:, np.newaxis] > steps[state]).sum(axis=1), 2)
        counts[np.arange(repeats), state, moved] += 1
        state = moved
    noisy = counts + laplace(rng, 4, counts.shape)
    chain = MarkovChain(WIDE)
    for belief in (chain, MixingBounds.of(chain)):
        found = [transition_drift_test(belief, NoisyCounts(one, Fraction(4), 0, slots + 1), alpha=0.3) for one in noisy]
        assert sum(one.drifted for one in found) <= stats.binom.isf(FALSE_ALARM, repeats, 0.3)


def test_a_belief_over_other_states_is_refused_and_tests_spend_alpha():
    with pytest.raises(ValueError, match="they have 2 states, and the belief has 3"):
        transition_drift_test(MarkovChain(WIDE), table(TRUE))
    with pytest.raises(TypeError, match="belief is a str"):
        transition_drift_test("chain", table(TRUE))  # pyright: ignore[reportArgumentType]
    assert transition_drift_test(SAME, table(TRUE), look=2).alpha == pytest.approx(0.001 / 6)
