"""Histogram mechanisms: exact integer noise on counts, and their estimate with a known total.

>>> import numpy as np
>>> mechanism = LaplaceHistogram.from_sigma(bins=3, sigma=31.7098)
>>> mechanism.randomise(np.array([[48, 0, 0], [10, 30, 8]])).shape
(2, 3)
>>> mechanism.half_width(0.95)
190
>>> project_to_total(np.array([[50, -6, 10]]), np.array([48])).tolist()
[[44.0, 0.0, 4.0]]
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...schemas.errors import ArgumentError
from ...schemas.noise_laws import INDEPENDENT, NO_NOISE, ZERO_SUM
from ..validation import as_array, numbers, whole
from .discrete_laplace import DiscreteLaplace, ZeroSumLaplace, epsilon_dp_of, rational_scale
from .sampling import Entropy, Integers


@dataclass(frozen=True, slots=True)
class HistogramMechanism(ABC):
    """Noise on the counts of a histogram of cells, or of a histogram for each class of slots.

    *Sensitivity.* Let one cell of one series change from state x to state x', and let everything else stay. In the
    histogram that counts the cell, bin x falls by one and bin x' rises by one; every other bin, and every histogram
    that does not count the cell, stays. The histogram of a group is the sum of its members' histograms, so it moves by
    the same 2 in L1 whatever the number of members. By the ratio bound of its law the probability of any published row
    then changes by at most exp(2 / scale), so eps_dp = 2 / scale (theory section 1).

    *Classes of slots.* A class is a function of the slot's public number: the hour of its first instant, for example.
    The counts of a row are those of the first class, bin by bin, then those of the second one, and so on. The slot t of
    the cell that changes stays t, so its class c(t) stays, and the cell is in no other class: the histogram of c(t)
    moves by e_x' - e_x, and those of all other classes stay. The noise is independent between classes, so the ratio of
    the probabilities of a row is the product over classes, in which every factor but that of c(t) is 1. Hence
    eps_dp = 2 / scale for each slot, as for one histogram. Seen otherwise: the classes are releases that cover disjoint
    slots, and the density of a slot is that of the one that covers it.
    """

    name: ClassVar[str]
    sensitivity: ClassVar[int] = 2

    bins: int  # number of bins k of each histogram, at least 1
    scale: Fraction  # scale of the noise in each count; see the law for its limits
    classes: int = 1  # number of classes of slots, each with a histogram

    def __post_init__(self) -> None:
        whole("bins", self.bins, "give the number of states", least=1)
        whole("classes", self.classes, "give the number of classes of slots", least=1)
        _ = self._law  # which checks the scale

    @classmethod
    def from_sigma(cls, bins: int, sigma: float) -> Self:
        """Make the mechanism for the sigma of a calibration; its scale is `rational_scale(sigma, 2)`."""
        return cls(bins, rational_scale(sigma, cls.sensitivity))

    @property
    @abstractmethod
    def _law(self) -> DiscreteLaplace | ZeroSumLaplace:
        """The law of the noise."""

    @property
    def epsilon_dp(self) -> float:
        """Loss per slot of one release, sensitivity / scale rounded up: what the ledger is charged."""
        return epsilon_dp_of(self.scale, self.sensitivity)

    @property
    def mean_abs(self) -> float:
        """Mean absolute noise of one count."""
        return self._law.mean_abs

    def half_width(self, level: float = 0.95) -> int:
        """Return the smallest h such that the noise of one count lies within -h..h with probability `level`."""
        return self._law.half_width(level)

    def randomise(self, counts: ArrayLike, entropy: Entropy = None) -> Integers:
        """Return the counts to publish.

        Args:
            counts: whole numbers, shape (n, classes * bins), an array or a list: one row per series or group, no count
                negative or above 2^62.
            entropy: for tests only; the operating system's entropy where it is left out.

        Returns:
            int64, of the same shape; values may be negative.

        Raises:
            ValueError: the shape or the range is wrong. No count is named in the message.
            EntropyError: the system's entropy fails (see `sampling`).
        """
        counts = checked_counts(counts, self.classes * self.bins)
        return self._noise(len(counts) * self.classes, entropy).reshape(counts.shape) + counts

    @abstractmethod
    def _noise(self, histograms: int, entropy: Entropy) -> Integers:
        """Independent noise of so many histograms, shape (histograms, bins)."""


@dataclass(frozen=True, slots=True)
class LaplaceHistogram(HistogramMechanism):
    """Independent discrete Laplace noise on every bin."""

    name: ClassVar[str] = INDEPENDENT

    @property
    def _law(self) -> DiscreteLaplace:
        return DiscreteLaplace(self.scale)

    def _noise(self, histograms: int, entropy: Entropy) -> Integers:
        return self._law.draw((histograms, self.bins), entropy)


@dataclass(frozen=True, slots=True)
class FixedTotalHistogram(HistogramMechanism):
    """Discrete Laplace noise on a histogram whose total is public, conditioned on sum zero: each keeps its total.

    **Only where the total is public**, with classes of slots each class's own. The published row shows the true total.
    Where the total may tell something of the values, use `LaplaceHistogram`.

    A cell that changes keeps the total, and moves the histogram by e_x' - e_x, so by the ratio bound of
    `ZeroSumLaplace` eps_dp = 2 / scale, as with independent noise of the same scale: every account of losses that uses
    eps_dp alone holds unchanged. It is the K-norm mechanism (Hardt and Talwar 2010) of the hull of the e_i - e_j, and
    has less noise: half the band of 95 % for two bins, about three quarters for five. It takes two bins at least: the
    count of a single bin is the total itself.
    """

    name: ClassVar[str] = ZERO_SUM

    @property
    def _law(self) -> ZeroSumLaplace:
        return ZeroSumLaplace(self.scale, self.bins)

    def _noise(self, histograms: int, entropy: Entropy) -> Integers:
        return self._law.draw(histograms, entropy)


@dataclass(frozen=True, slots=True)
class ExactHistogram(HistogramMechanism):
    """No noise at all: a hook for tests that compare a pipeline's counts with the truth.

    Nothing that a user can set makes one: no setting, command, environment variable or pipeline option. A test passes
    it to a constructor. Its rows say `none`, and a store that holds real rows refuses them, as the other way round.
    """

    name: ClassVar[str] = NO_NOISE
    epsilon_dp: ClassVar[float] = math.inf  # pyright: ignore[reportIncompatibleMethodOverride] - a constant
    mean_abs: ClassVar[float] = 0.0  # pyright: ignore[reportIncompatibleMethodOverride] - a constant

    scale: Fraction = Fraction(0)

    @property
    def _law(self) -> DiscreteLaplace:
        return DiscreteLaplace(Fraction(1))  # of nothing

    def half_width(self, level: float = 0.95) -> int:  # noqa: ARG002 - the interface of a mechanism
        """Return 0."""
        return 0

    def _noise(self, histograms: int, entropy: Entropy) -> Integers:  # noqa: ARG002 - likewise
        return np.zeros((histograms, self.bins), dtype=np.int64)


def noisy_histogram(law: str, bins: int, scale: Fraction, classes: int = 1) -> HistogramMechanism:
    """The mechanism of a noise law, by its name in rows and records."""
    for mechanism in (LaplaceHistogram, FixedTotalHistogram):
        if mechanism.name == law:
            return mechanism(bins, scale, classes)
    raise ArgumentError(
        f"noise_law is {law!r}, and must be {LaplaceHistogram.name} or {FixedTotalHistogram.name}: a later version may "
        "know it"
    )


def checked_counts(counts: ArrayLike, bins: int | None = None) -> NDArray[np.int64]:
    """Return counts as int64: whole numbers, none negative or above 2^62, in so many bins where they are given.

    An array of int64 is returned as it is. Counts up to 2^62 plus noise below 2^57 stay within int64.

    Raises:
        ValueError: the shape or the range is wrong. No count is named in a message.
    """
    given = as_array("counts", counts)
    if given.dtype.kind not in "iu":
        raise TypeError(
            f"counts: the type is {given.dtype}, the limit is whole numbers: count cells, do not weigh them"
        )
    if bins is not None and (given.shape != (*given.shape[:1], bins)):
        one_row = ": for one row give [counts]" if given.shape == (bins,) else ""
        raise ArgumentError(
            f"counts: the shape is {given.shape}, and must be (rows, {bins}), one row per series or group, one column "
            f"per bin of the mechanism{one_row}"
        )
    # the values are secret and stay out of the message
    if given.size and (int(given.min()) < 0 or int(given.max()) > 2**62):
        raise ArgumentError("counts: a count is negative or above 2^62: pass counts of cells")
    return given.astype(np.int64, copy=False)


def project_to_total(noisy: ArrayLike, total: ArrayLike) -> NDArray[np.float64]:
    """Project every row onto {c >= 0, sum of c = total}, by least squares: post-processing, which costs no privacy.

    The solution has the form max(noisy - shift, 0); sorting a row gives the number of positive entries, and with it the
    shift, exactly (Held, Wolfe and Crowder 1974; Duchi et al. 2008, Figure 1).

    Args:
        noisy: noisy counts, finite, shape (n, k) with k at least 1; or one row, shape (k,), with one total.
        total: the public number of cells counted in each row, shape (n,), finite and not negative.

    Returns:
        float64, in the shape of noisy; rows sum to their totals up to rounding; a total of 0 gives zeros. The same
        input gives the same bits.
    """
    values, totals = numbers("noisy", noisy), numbers("total", total)
    if values.ndim == 1 and totals.ndim == 0:
        return project_to_total(values[np.newaxis], totals[np.newaxis])[0]
    if values.ndim != 2 or not values.shape[1]:  # noqa: PLR2004 - rows and bins
        raise ArgumentError(
            f"noisy: the shape is {values.shape}, and must be (rows, bins) with at least one bin, or (bins,) with one "
            "total"
        )
    rows, bins = values.shape
    if totals.shape != (rows,):
        raise ArgumentError(f"total: the shape is {totals.shape}, and must be ({rows},): one total per row of noisy")
    budget = totals[:, np.newaxis]
    if not np.isfinite(values).all():
        raise ArgumentError("noisy: a value is not finite: pass the counts of a release")
    if not (np.isfinite(budget) & (budget >= 0)).all():
        raise ArgumentError(
            f"total: {float(budget[~(np.isfinite(budget) & (budget >= 0))][0])} is negative or not finite: "
            "pass the public number of cells that each histogram counts"
        )
    if rows == 0:
        return values
    # differences to the largest entry are what decides, and stay small where the counts are large
    values -= values.max(axis=1, keepdims=True)
    falling = -np.sort(-values, axis=1)
    shifts = (np.cumsum(falling, axis=1) - budget) / np.arange(1, bins + 1)
    # entry j of the sorted row is positive in the solution exactly if it exceeds the shift of the first j entries; the
    # first entry is 0 and exceeds its shift -total unless the total is 0
    positive = np.maximum((falling > shifts).sum(axis=1), 1)
    shift = np.take_along_axis(shifts, positive[:, np.newaxis] - 1, axis=1)
    return np.maximum(values - shift, 0.0)
