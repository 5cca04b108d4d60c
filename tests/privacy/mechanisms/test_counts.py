from __future__ import annotations

from fractions import Fraction
from random import Random

import numpy as np
import pytest

from quiltstream.privacy.mechanisms.discrete_laplace import DiscreteLaplace, rational_scale
from quiltstream.privacy.mechanisms.histogram import LaplaceCount


def test_a_count_costs_half_of_what_a_histogram_of_the_same_noise_costs() -> None:
    mechanism = LaplaceCount.from_sigma(31.7098)
    assert mechanism.scale == rational_scale(31.7098, 1)
    assert Fraction(mechanism.epsilon_dp) >= 1 / mechanism.scale
    assert mechanism.epsilon_dp == pytest.approx(1 / 31.7098, rel=1e-10)
    assert mechanism.half_width() == DiscreteLaplace(mechanism.scale).half_width(0.95) == 95


@pytest.mark.parametrize("shape", [(4,), (2, 2), (4, 1), (0,)])
def test_every_count_has_independent_noise_and_the_input_is_unchanged(shape: tuple[int, ...]) -> None:
    counts = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
    before = counts.copy()
    noise = DiscreteLaplace(Fraction(7, 2)).draw(shape, Random(7).randbytes)
    assert np.array_equal(LaplaceCount(Fraction(7, 2)).randomise(counts, Random(7).randbytes), counts + noise)
    assert np.array_equal(counts, before)
