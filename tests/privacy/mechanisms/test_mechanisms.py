from __future__ import annotations

import itertools
import math
import pickle
from fractions import Fraction
from operator import add, sub
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quiltstream.privacy.mechanisms.discrete_laplace import (
    DiscreteLaplace,
    ZeroSumLaplace,
    rational_scale,
)
from quiltstream.privacy.mechanisms.histogram import (
    ExactHistogram,
    FixedTotalHistogram,
    HistogramMechanism,
    LaplaceHistogram,
    noisy_histogram,
)

COUNTS = np.array([[48, 0, 0], [10, 30, 8], [0, 0, 0]])


class ContractOfAMechanism:
    def make(self, bins: int) -> HistogramMechanism:
        raise NotImplementedError

    def test_is_a_mechanism_and_survives_pickling(self) -> None:
        mechanism = self.make(3)
        assert isinstance(mechanism, HistogramMechanism)
        assert pickle.loads(pickle.dumps(mechanism)) == mechanism
        assert mechanism.bins == 3

    def test_keeps_shape_and_type_and_leaves_the_counts_alone(self) -> None:
        before = COUNTS.copy()
        released = self.make(3).randomise(COUNTS)
        assert released.shape == COUNTS.shape
        assert released.dtype == np.int64
        assert not np.shares_memory(released, COUNTS)
        assert np.array_equal(before, COUNTS)

    @pytest.mark.parametrize("counts", [COUNTS.astype(float), COUNTS.astype(bool), [[1.0, 2.0, 3.0]]])
    def test_refuses_counts_of_another_type(self, counts: Any) -> None:
        with pytest.raises(TypeError, match=r"counts: the type is .* whole numbers"):
            self.make(3).randomise(counts)

    @pytest.mark.parametrize("counts", [*map(COUNTS.astype, ("int32", "uint8", "uint64")), COUNTS.tolist()])
    def test_takes_whole_numbers_of_any_type(self, counts: Any) -> None:
        released = self.make(3).randomise(counts)
        assert (released.shape, released.dtype) == (COUNTS.shape, np.int64)
        with pytest.raises(ValueError, match=r"per bin of the mechanism: for one row give \[counts\]"):
            self.make(3).randomise(counts[0])

    @pytest.mark.parametrize("counts", [COUNTS[0], COUNTS[:, :2], COUNTS[None]])
    def test_refuses_another_shape(self, counts: NDArray[np.int64]) -> None:
        with pytest.raises(ValueError, match=r"counts: the shape is .* must be \(rows, 3\)"):
            self.make(3).randomise(counts)

    @pytest.mark.parametrize("bad", [-4711, 2**62 + 4711])
    def test_refuses_impossible_counts_without_naming_them(self, bad: int) -> None:
        with pytest.raises(ValueError, match="counts: a count is negative or above") as caught:
            self.make(3).randomise(np.array([[0, bad, 0]]))
        assert "4711" not in str(caught.value)
        assert str(bad) not in str(caught.value)


class TestLaplaceHistogram(ContractOfAMechanism):
    def make(self, bins: int) -> HistogramMechanism:
        return LaplaceHistogram(bins, Fraction(7, 2))

    def test_charges_two_over_its_scale(self) -> None:
        mechanism = LaplaceHistogram.from_sigma(5, 31.7098)
        assert mechanism.scale == rational_scale(31.7098, 2)
        assert Fraction(mechanism.epsilon_dp) >= 2 / mechanism.scale
        assert mechanism.epsilon_dp == pytest.approx(1 / 31.7098, rel=1e-10)
        assert mechanism.epsilon_dp < 1 / 31.7098

    def test_adds_the_noise_of_its_law_to_each_bin_by_itself(self) -> None:
        mechanism = LaplaceHistogram(3, Fraction(7, 2))
        noise = DiscreteLaplace(Fraction(7, 2)).draw((3, 3), Random(7).randbytes)
        assert len(set(noise.ravel().tolist())) > 3
        assert np.array_equal(mechanism.randomise(COUNTS, Random(7).randbytes), COUNTS + noise)

    def test_reaches_its_sensitivity_so_that_no_smaller_one_is_sound(self) -> None:
        before, after = np.array([0, 1, 1]), np.array([0, 1, 2])
        moved = np.abs(np.bincount(before, minlength=3) - np.bincount(after, minlength=3)).sum()
        assert moved == LaplaceHistogram.sensitivity

    def test_the_largest_count_and_the_largest_noise_fit_together(self) -> None:
        largest = 2**57
        assert 2**62 + largest <= np.iinfo(np.int64).max
        released = LaplaceHistogram(1, Fraction(3)).randomise(np.full((100, 1), 2**62))
        assert (np.abs(released - 2**62) < 1000).all()


class TestFixedTotalHistogram(ContractOfAMechanism):
    def make(self, bins: int) -> HistogramMechanism:
        return FixedTotalHistogram(bins, Fraction(7, 2))

    def test_has_the_loss_of_independent_noise_of_its_scale(self) -> None:
        mechanism = FixedTotalHistogram.from_sigma(5, 31.7098)
        plain = LaplaceHistogram.from_sigma(5, 31.7098)
        assert (mechanism.scale, mechanism.epsilon_dp) == (plain.scale, plain.epsilon_dp)

    def test_keeps_every_total_and_has_less_noise(self) -> None:
        mechanism = FixedTotalHistogram.from_sigma(5, 31.7098)
        counts = np.arange(500, dtype=np.int64).reshape(100, 5)
        released = mechanism.randomise(counts)
        assert np.array_equal(released.sum(axis=1), counts.sum(axis=1))
        assert (released != counts).any()
        plain = LaplaceHistogram.from_sigma(5, 31.7098)
        assert (mechanism.half_width(), plain.half_width()) == (146, 190)
        assert mechanism.mean_abs < plain.mean_abs

    def test_adds_the_noise_of_its_law_to_each_row_by_itself(self) -> None:
        mechanism = FixedTotalHistogram(3, Fraction(7, 2))
        noise = ZeroSumLaplace(Fraction(7, 2), 3).draw(3, Random(7).randbytes)
        assert len(set(noise.ravel().tolist())) > 3
        assert np.array_equal(mechanism.randomise(COUNTS, Random(7).randbytes), COUNTS + noise)

    @pytest.mark.parametrize(("bins", "scale"), [(2, Fraction(3)), (3, Fraction(3, 2)), (4, Fraction(5, 4))])
    def test_loses_exactly_two_over_its_scale_for_a_cell_that_changes(self, bins: int, scale: Fraction) -> None:
        """All outputs in a box, histograms of neighbours and every pair of states: the definition, written out."""
        reach = 8
        noise = [z for z in itertools.product(range(-reach, reach + 1), repeat=bins) if sum(z) == 0]
        weight = {z: math.exp(-sum(map(abs, z)) / float(scale)) for z in noise}
        histogram = (3, *[1] * (bins - 1))
        losses: list[float] = []
        for x, y in itertools.permutations(range(bins), 2):
            other = list(histogram)
            other[x], other[y] = other[x] - 1, other[y] + 1
            for z in noise:
                output = tuple(map(add, histogram, z))
                neighbour = weight.get(tuple(map(sub, output, other)))
                if neighbour is not None:  # the normaliser is that of both
                    losses.append(math.log(weight[z] / neighbour))
        assert max(losses) == pytest.approx(2 / float(scale), rel=1e-12)
        assert max(losses) <= FixedTotalHistogram(bins, scale).epsilon_dp * (1 + 1e-12)

    def test_is_found_by_the_name_in_rows_and_records(self) -> None:
        for mechanism in (LaplaceHistogram(3, Fraction(2)), FixedTotalHistogram(3, Fraction(2))):
            assert noisy_histogram(mechanism.name, 3, Fraction(2)) == mechanism
        with pytest.raises(ValueError, match="noise_law is 'none'"):
            noisy_histogram("none", 3, Fraction(2))


class TestExactHistogram(ContractOfAMechanism):
    def make(self, bins: int) -> HistogramMechanism:
        return ExactHistogram(bins)

    def test_publishes_the_exact_counts_with_infinite_loss(self) -> None:
        mechanism = ExactHistogram(3)
        assert np.array_equal(mechanism.randomise(COUNTS), COUNTS)
        assert mechanism.name == "none"
        assert mechanism.epsilon_dp == math.inf
        assert mechanism.scale == 0
        assert mechanism.half_width() == 0
