from __future__ import annotations

import math
import os
import pickle
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiltstream.privacy.mechanisms.discrete_laplace import (
    LARGEST_SCALE,
    DiscreteLaplace,
    epsilon_dp_of,
    rational_scale,
)

sigmas = st.floats(min_value=2.0**-26, max_value=2.0**43, allow_nan=False)
sensitivities = st.integers(1, 4)
scales = st.fractions(min_value=Fraction(1, 50), max_value=500, max_denominator=997)

WIDE = DiscreteLaplace(Fraction(2**40))
"""Two equal values of this law have probability below 2^-40, so two streams of 64 values never agree by chance."""


class TestTheScale:
    @given(sigma=sigmas, sensitivity=sensitivities)
    def test_is_rounded_up_within_the_stated_bounds(self, sigma: float, sensitivity: int) -> None:
        exact = Fraction(sigma) * sensitivity
        relative = rational_scale(sigma, sensitivity) / exact - 1
        assert Fraction(1, 2**36) < relative <= Fraction(1, 2**34)

    @given(sigma=sigmas, sensitivity=sensitivities)
    def test_is_charged_a_little_less_than_calibrated(self, sigma: float, sensitivity: int) -> None:
        charged = Fraction(epsilon_dp_of(rational_scale(sigma, sensitivity), sensitivity))
        calibrated = 1 / Fraction(sigma)
        assert calibrated * (1 - Fraction(1, 10**10)) < charged < calibrated


class TestTheLaw:
    @pytest.mark.parametrize("scale", [Fraction(0), Fraction(-3, 2)])
    def test_refuses_a_scale_that_is_not_positive(self, scale: Fraction) -> None:
        with pytest.raises(ValueError, match=f"scale: {scale} is not positive"):
            DiscreteLaplace(scale)

    def test_states_its_largest_and_finest_scale(self) -> None:
        assert DiscreteLaplace(Fraction(LARGEST_SCALE)).scale == LARGEST_SCALE
        with pytest.raises(ValueError, match="numerator of 47 bits"):
            DiscreteLaplace(Fraction(LARGEST_SCALE + 1))
        assert DiscreteLaplace(Fraction(1, 2**62)).draw(3).tolist() == [0, 0, 0]
        with pytest.raises(ValueError, match="a denominator of 63"):
            DiscreteLaplace(Fraction(1, 2**62 + 1))

    @given(scale=scales)
    def test_sums_to_one_and_agrees_with_its_moments(self, scale: Fraction) -> None:
        law = DiscreteLaplace(scale)
        reach = math.ceil(50 * scale) + 5
        values = np.arange(-reach, reach + 1)
        masses = np.array([law.pmf(int(value)) for value in values])
        assert masses.sum() == pytest.approx(1, abs=1e-12)
        assert (masses * values**2).sum() == pytest.approx(law.std**2, rel=1e-9, abs=1e-15)
        assert (masses * np.abs(values)).sum() == pytest.approx(law.mean_abs, rel=1e-9, abs=1e-15)

    @given(scale=scales, shift=st.integers(-9, 9), value=st.integers(-99, 99))
    def test_changes_by_at_most_its_epsilon_when_shifted(self, scale: Fraction, shift: int, value: int) -> None:
        law = DiscreteLaplace(scale)
        ours, theirs = law.pmf(value), law.pmf(value + shift)
        if min(ours, theirs) > sys.float_info.min:  # what is smaller has few digits
            assert math.log(ours / theirs) <= abs(shift) / float(scale) + 1e-9

    @given(scale=scales, level=st.floats(0.001, 0.999999))
    def test_has_the_smallest_half_width_that_reaches_the_level(self, scale: Fraction, level: float) -> None:
        law = DiscreteLaplace(scale)
        half = law.half_width(level)
        ratio = (-1 / (Decimal(scale.numerator) / Decimal(scale.denominator))).exp()

        def within(width: int) -> Decimal:
            return 1 - 2 * ratio ** (width + 1) / (1 + ratio)

        assert within(half) >= Decimal(level)
        assert half == 0 or within(half - 1) < Decimal(level)


class TestADraw:
    @pytest.mark.parametrize("shape", [0, 5, (0, 3), (3, 0), (2, 3, 4), ()])
    def test_has_the_requested_shape(self, shape: int | tuple[int, ...]) -> None:
        drawn = WIDE.draw(shape)
        assert drawn.shape == ((shape,) if isinstance(shape, int) else shape)
        assert drawn.dtype == np.int64

    def test_differs_between_two_calls_and_two_unpickled_copies(self) -> None:
        stored = pickle.dumps(WIDE)
        streams = [pickle.loads(stored).draw(64) for _ in range(2)] + [WIDE.draw(64) for _ in range(2)]
        assert_all_different(streams)

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
    @pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of forking a process with threads
    def test_differs_between_two_forked_processes_and_their_parent(self) -> None:
        WIDE.draw(64)
        streams: list[np.ndarray] = []
        for _ in range(2):
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    os.write(writing, WIDE.draw(64).tobytes())
                finally:
                    os._exit(0)  # the child must never go on with the parent's tests
            os.close(writing)
            with os.fdopen(reading, "rb") as stream:
                streams.append(np.frombuffer(stream.read(), dtype=np.int64))
            os.waitpid(child, 0)
        assert_all_different([*streams, WIDE.draw(64)])

    def test_differs_between_two_processes_that_unpickled_it(self) -> None:
        code = "import pickle, sys; sys.stdout.buffer.write(pickle.load(sys.stdin.buffer).draw(64).tobytes())"
        streams: list[np.ndarray] = []
        for _ in range(2):
            done = subprocess.run(
                [sys.executable, "-c", code], input=pickle.dumps(WIDE), capture_output=True, check=True
            )
            streams.append(np.frombuffer(done.stdout, dtype=np.int64))
        assert_all_different([*streams, WIDE.draw(64)])


def assert_all_different(streams: list[np.ndarray]) -> None:
    """No two streams of 64 wide values agree in even two places: by chance below 2^-60."""
    for first in range(len(streams)):
        assert streams[first].shape == (64,)
        for second in range(first):
            assert np.count_nonzero(streams[first] == streams[second]) < 2
