"""Ratios of matrix powers against exact rational arithmetic, where floats underflow and where they do not."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.privacy import MarkovChain
from quiltstream.privacy.models.classes import AnyInitial
from quiltstream.privacy.quilts import sided_influence
from quiltstream.privacy.quilts.calibration import mqm_exact, pairwise

from ...depth import examples
from ..strategies import transitions


def logarithm(number):
    shift = number.numerator.bit_length() - number.denominator.bit_length()
    return math.log(number / Fraction(2) ** shift) + shift * math.log(2)


def largest(above, below):
    """max log(above / below); zero over zero is passed over."""
    worst = -math.inf
    for one, other in zip(above, below, strict=True):
        if one > 0:
            worst = max(worst, logarithm(one / other) if other > 0 else math.inf)
    return worst


def exact_right(matrix, lags):
    """The table of slots ahead by rational arithmetic, in the order of the ordered pairs."""
    step = [[Fraction(float(entry)) for entry in row] for row in matrix]
    states = range(len(step))
    power = [[Fraction(int(x == y)) for y in states] for x in states]
    right = []
    for _ in range(lags):
        power = [[sum(power[x][z] * step[z][y] for z in states) for y in states] for x in states]
        pairs = [(x, other) for x in states for other in states if x != other]
        right.append([largest(power[x], power[other]) for x, other in pairs])
    return np.array(right)


def assert_just_above(found, truth, room=1e-11):
    infinite = ~np.isfinite(truth)
    assert np.array_equal(found[infinite], truth[infinite])
    assert np.all(found[~infinite] >= truth[~infinite])
    assert found[~infinite] == pytest.approx(truth[~infinite], abs=room)


@settings(max_examples=examples(40), deadline=None)
@given(transitions(zeros=True), st.integers(1, 9))
def test_the_tables_are_the_ratios_rounded_up(matrix, lags):
    tables = sided_influence(AnyInitial([matrix]))
    lags = min(lags, tables.reach)
    assert_just_above(tables.right[:, :lags].T, np.maximum(exact_right(matrix, lags), 0))


def ladder(states, up):
    """A chain that climbs with a tiny probability and falls back at once."""
    matrix = np.zeros((states, states))
    for state in range(states):
        matrix[state, max(state - 1, 0)] += 0.5
        matrix[state, min(state + 1, states - 1)] += up
        matrix[state, state] += 1 - matrix[state].sum()
    return matrix


@pytest.mark.night
@pytest.mark.parametrize(("states", "up"), [(4, 1e-120), (5, 1e-90), (8, 1e-60), (3, 1e-200), (6, 1e-300)])
def test_powers_that_underflow_keep_their_ratios(states, up):
    matrix = ladder(states, up)
    lags = 2 * states
    right = sided_influence(AnyInitial([matrix])).right[:, :lags].T
    assert_just_above(right, np.maximum(exact_right(matrix / matrix.sum(axis=1, keepdims=True), lags), 0), room=1e-9)
    assert np.isfinite(right[states:]).all()


def test_states_too_rare_for_floats_keep_a_usable_quilt_and_the_others_noise():
    # the rarest state has a stationary probability of about 1e-360, which no float holds
    chain = MarkovChain(ladder(4, 1e-120))
    assert chain.pi_min == 0
    for method in (mqm_exact, pairwise):
        window = method(chain, 2000.0, 50)
        assert window.influence < 2000
        assert window.sigma < 50 / 2000
        assert method(AnyInitial([chain.transition]), 5000.0, 50).sigma < 50 / 5000
    tables = sided_influence(chain)
    assert not np.isnan(tables.left).any()
