"""Ratios of matrix powers against exact rational arithmetic, where floats underflow and where they do not."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from quiltstream.privacy import MarkovChain
from quiltstream.privacy.models.classes import AnyInitial
from quiltstream.privacy.quilts import sided_influence
from quiltstream.privacy.quilts.calibration import mqm_exact, pairwise


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


def ladder(states, up):
    """A chain that climbs with a tiny probability and falls back at once."""
    matrix = np.zeros((states, states))
    for state in range(states):
        matrix[state, max(state - 1, 0)] += 0.5
        matrix[state, min(state + 1, states - 1)] += up
        matrix[state, state] += 1 - matrix[state].sum()
    return matrix


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
