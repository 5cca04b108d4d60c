"""Exponential moments and variances of counts, against sums over every path."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from quiltstream.privacy import MarkovChain
from quiltstream.privacy.estimation.drift import (
    log_growth,
    log_start,
    noise_log_tails,
)
from quiltstream.privacy.mechanisms import DiscreteLaplace
from quiltstream.privacy.mechanisms.discrete_laplace import ZeroSumLaplace

from ...depth import examples
from ..strategies import transitions

TILTS = st.floats(-3, 3)


def stationary(matrix):
    """By powers of the lazy chain; nothing of the product."""
    return np.linalg.matrix_power((matrix + np.eye(len(matrix))) / 2, 2**14)[0]


def laws(matrix, start, counted, state):
    """Distribution of the number of counted slots in a state: every path, one by one."""
    law = np.zeros(len(counted) + 1)
    for path in itertools.product(range(len(matrix)), repeat=len(counted)):
        chance = start[path[0]] * math.prod(matrix[one, two] for one, two in itertools.pairwise(path))
        law[sum(here == state for here, used in zip(path, counted, strict=True) if used)] += chance
    return law


def log_moment(law, t):
    return math.log(float(law @ np.exp(t * np.arange(len(law)))))


@pytest.mark.night
@settings(max_examples=examples(150), deadline=None)
@given(
    matrix=transitions(zeros=True),
    counted=st.lists(st.booleans(), min_size=1, max_size=6).filter(any),
    t=TILTS,
    before=st.integers(0, 4),
    data=st.data(),
)
def test_no_pattern_of_missing_cells_and_no_start_passes_the_bounds(matrix, counted, t, before, data):
    chain = MarkovChain(matrix)
    assume(chain.is_irreducible)
    state = data.draw(st.integers(0, len(matrix) - 1))
    t, share = np.array([t]), float(chain.stationary[state])
    growth = log_growth(share, chain.rho, t)
    bound = float(sum(counted) * growth[0])
    assert log_moment(laws(matrix, chain.stationary, counted, state), t[0]) <= bound + 1e-9
    excess = chain.rho**before * math.sqrt(1 / chain.pi_min - 1)
    bound += float(log_start(growth, excess, t)[0])
    for start in np.linalg.matrix_power(matrix, before):
        assert log_moment(laws(matrix, start, counted, state), t[0]) <= bound + 1e-9


@pytest.mark.parametrize("scale", [Fraction(1, 3), Fraction(2), Fraction(35, 2)])
@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("bins", [None, 2, 5])
def test_tails_with_public_totals_are_below_their_bound_under_either_law(bins, draws, scale):
    reach = int(40 * scale) + 5
    one = DiscreteLaplace(scale) if bins is None else ZeroSumLaplace(scale, bins)
    single = np.array([one.pmf(value) for value in range(-reach, reach + 1)])
    law = np.array([1.0])
    for _ in range(draws):
        law = np.convolve(law, single)
    upper = np.cumsum(law[::-1])[::-1]
    m = np.arange(len(law)) - draws * reach
    for share in (0.01, 0.3, 0.95, *([1.0] if draws == 1 else [])):
        t = share / float(scale)
        bound = float(noise_log_tails(scale, np.array([t]), draws)[0])
        assert noise_log_tails(scale, np.array([-t]), draws)[0] == bound
        assert (np.log(np.maximum(upper, 1e-300)) + t * m - bound).max() <= 1e-9
    assert np.isinf(noise_log_tails(scale, np.array([1.01, -2]) / float(scale), draws)).all()
