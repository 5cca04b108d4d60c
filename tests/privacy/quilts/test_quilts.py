"""MQMApprox against Algorithm 4 as printed, with Lemma 4.8 and with the spectral bound."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.privacy import FiniteClass, MarkovChain, MixingBounds, Quilt, mqm_approx
from quiltstream.privacy.models import ChainError
from quiltstream.privacy.quilts import lemma_4_9_reach

from ...depth import examples
from .. import reference
from ..models.test_chains import CYCLE, THETA1, primitive_with_reducible_product
from ..models.test_classes import THETA2

BOUNDS = MixingBounds(pi_min=0.2, gap=0.75)


@pytest.mark.parametrize("length", [96, 97, 300, 100_000, None])
def test_from_eight_reaches_on_the_shortcut_equals_the_search(length):
    calibration = mqm_approx(BOUNDS, 1.0, length)
    assert calibration.sigma == pytest.approx(reference.algorithm_4(0.2, 0.75, 1.0, 96), rel=1e-12)
    assert not any("Algorithm 4" in note for note in calibration.assumptions)


@settings(max_examples=examples(60), deadline=None)
@given(st.floats(0.01, 0.5), st.floats(0.05, 2.0), st.floats(1e-3, 20.0), st.integers(1, 40))
def test_the_search_is_algorithm_4_for_any_bounds_epsilon_and_length(pi_min, gap, epsilon, length):
    calibration = mqm_approx(MixingBounds(pi_min, gap), epsilon, length)
    assert calibration.sigma == pytest.approx(reference.algorithm_4(pi_min, gap, epsilon, length), rel=1e-9)


@settings(max_examples=examples(30), deadline=None)
@given(st.floats(0.05, 0.5), st.floats(0.5, 2.0), st.floats(0.2, 20.0))
def test_the_shortcut_is_algorithm_4_for_any_bounds_and_epsilon(pi_min, gap, epsilon):
    bounds = MixingBounds(pi_min, gap)
    length = 8 * lemma_4_9_reach(bounds, epsilon)
    assert mqm_approx(bounds, epsilon, length).sigma == pytest.approx(
        reference.algorithm_4(pi_min, gap, epsilon, length), rel=1e-9
    )
    assert mqm_approx(bounds, epsilon, length).sigma == mqm_approx(bounds, epsilon).sigma


def test_the_class_of_the_paper_gives_the_papers_numbers():
    belief = FiniteClass([MarkovChain(THETA1, [1, 0]), MarkovChain(THETA2, [0.9, 0.1])])
    calibration = mqm_approx(belief, 1.0, length=100)
    assert lemma_4_9_reach(MixingBounds.of(belief.chains), 1.0) == 12
    assert calibration.sigma == pytest.approx(31.7098, abs=5e-5)
    assert (calibration.quilt, calibration.node, calibration.length) == (Quilt(15, 13), 50, 100)
    assert calibration.quilt.card == 27
    assert calibration.influence == pytest.approx(
        2 * reference.lemma_f(0.2, 0.75, 15) + reference.lemma_f(0.2, 0.75, 13)
    )
    assert calibration.epsilon_dp == 1 / calibration.sigma
    assert (calibration.method, calibration.pair) == ("mqm-approx", None)


def test_a_window_too_short_for_any_quilt_states_its_group_privacy():
    calibration = mqm_approx(BOUNDS, 1.0, 10)
    assert (calibration.sigma, calibration.quilt, calibration.influence) == (10.0, Quilt(None, None), 0.0)
    assert calibration.assumptions[-1].startswith(
        "epsilon 1.0 needs windows of at least 96 slots for the Lemma 4.9 shortcut; this window has 10: "
    )
    assert calibration.quilt.card is None
    assert str(calibration.quilt) == "to the start, to the end"


def test_a_tiny_gap_leaves_group_privacy_for_a_window_and_an_error_for_a_stream():
    crawling = MixingBounds(0.1, 1e-9)
    assert mqm_approx(crawling, 2.0, 1000).sigma == 500.0
    with pytest.raises(ChainError, match=r"gap 1e-09 .*at most 4194304 are tried: use a belief that mixes faster"):
        mqm_approx(crawling, 2.0)


def test_chains_that_do_not_mix_are_refused():
    with pytest.raises(ChainError, match=r"P P\* is reducible"):
        mqm_approx(primitive_with_reducible_product(), 1.0)
    with pytest.raises(ChainError, match="periodic"):
        mqm_approx(MarkovChain(CYCLE), 1.0)


@pytest.mark.parametrize("stationary", [True, False])
@pytest.mark.parametrize("length", [1, 2, 3, 10, 50, 95, 96, 300, None])
def test_the_spectral_bound_is_used_by_the_same_search(stationary, length):
    belief = MarkovChain(THETA1, None if stationary else [1, 0])

    def told(lag):
        share = 0.5**lag * (1 / 0.2 - 1)
        return math.log((1 + share) / (1 - share)) if share < 1 else math.inf

    best = 0.0
    for node in range(1, (96 if length is None else min(length, 96)) + 1):
        lefts, rights = node - 1, (96 if length is None else min(length, 96)) - node
        options = [(lefts, 0.0)] + [(a - 1, (1 if stationary else 2) * told(a)) for a in range(1, min(lefts, 60) + 1)]
        others = [(rights, 0.0)] + [(b - 1, told(b)) for b in range(1, min(rights, 60) + 1)]
        scores = [(x + y + 1) / (1 - d - e) for x, d in options for y, e in others if d + e < 1]
        best = max(best, min(scores))
    found = mqm_approx(belief, 1.0, length, bound="spectral")
    assert found.sigma == pytest.approx(best, rel=1e-9)
    assert found.sigma <= mqm_approx(belief, 1.0, length).sigma
    assert found.method == "mqm-approx-spectral"
    assert ("a stationary start" if stationary else "any initial distribution") in found.assumptions[0]
