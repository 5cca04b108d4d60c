"""Histogram and count mechanisms: exact integer noise on counts, and their estimate with a known total.

>>> import numpy as np
>>> mechanism = LaplaceHistogram.from_sigma(bins=3, sigma=31.7098)
>>> mechanism.randomise(np.array([[48, 0, 0], [10, 30, 8]])).shape
(2, 3)
>>> mechanism.half_width(0.95), LaplaceCount.from_sigma(31.7098).half_width(0.95)
(190, 95)
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

from ...schemas.noise_laws import INDEPENDENT, NO_NOISE, ZERO_SUM
from ..validation import as_array, numbers, whole
from .discrete_laplace import DiscreteLaplace, ZeroSumLaplace, epsilon_dp_of, rational_scale
from .sampling import Entropy, Integers

LARGEST_COUNT = 2**62
"""Counts up to this plus noise below 2^62 in absolute value stay within int64."""

_COUNT_AXES = 2  # rows are series or groups, columns are bins


class HistogramMechanism(ABC):
    """What the release step needs of a mechanism for histograms of `bins` counts, with noise of a `scale` in each."""

    __slots__ = ()

    name: ClassVar[str]
    bins: int
    scale: Fraction

    @property
    @abstractmethod
    def epsilon_dp(self) -> float:
        """Loss per slot of one release: what the ledger is charged."""

    @property
    @abstractmethod
    def mean_abs(self) -> float:
        """Mean of |published - true| for each count."""

    @abstractmethod
    def half_width(self, level: float = 0.95) -> int:
        """Return the smallest h with P(|published - true| <= h) >= level for each count."""

    @abstractmethod
    def randomise(self, counts: ArrayLike, entropy: Entropy = None) -> Integers:
        """Return the counts to publish.

        Args:
            counts: whole numbers, shape (n, bins), an array or a list: one row per series or group, no count negative
                or above 2^62.
            entropy: for tests only; the operating system's entropy where it is left out.

        Returns:
            int64, shape (n, bins); values may be negative.

        Raises:
            ValueError: the shape or the range is wrong. No count is named in the message.
            EntropyError: the system's entropy fails (see `sampling`).
        """


class _Noisy(HistogramMechanism):
    """What follows from the law of the noise in a count and the L1 sensitivity."""

    __slots__ = ()

    sensitivity: ClassVar[int] = 2

    @property
    @abstractmethod
    def _law(self) -> DiscreteLaplace | ZeroSumLaplace:
        """The law of the noise."""

    def __post_init__(self) -> None:
        _check_bins(self.bins)
        _ = self._law  # which checks the scale

    @property
    def epsilon_dp(self) -> float:
        """Loss per slot of one release, sensitivity / scale rounded up."""
        return epsilon_dp_of(self.scale, self.sensitivity)

    @property
    def mean_abs(self) -> float:
        """Mean absolute noise of one count."""
        return self._law.mean_abs

    def half_width(self, level: float = 0.95) -> int:
        """Return the smallest h such that the noise of one count lies within -h..h with probability `level`."""
        return self._law.half_width(level)


@dataclass(frozen=True, slots=True)
class LaplaceHistogram(_Noisy):
    """Independent discrete Laplace noise on every bin of a histogram of cells.

    The L1 sensitivity is 2. Let one cell of one series change from state x to state x', and let everything else stay.
    In the histogram that counts the cell, bin x falls by one and bin x' rises by one; every other bin, and every
    histogram that does not count the cell, stays. The histogram of a group is the sum of its members' histograms, so it
    moves by the same 2 whatever the number of members. By the ratio bound of `DiscreteLaplace` the probability of any
    published row then changes by at most exp(2 / scale), so eps_dp = 2 / scale (theory section 1).
    """

    name: ClassVar[str] = INDEPENDENT

    bins: int  # number of bins k, at least 1
    scale: Fraction  # scale of the noise; see `DiscreteLaplace` for its limits

    @classmethod
    def from_sigma(cls, bins: int, sigma: float) -> Self:
        """Make the mechanism for the sigma of a calibration; its scale is `rational_scale(sigma, 2)`."""
        return cls(bins, rational_scale(sigma, cls.sensitivity))

    @property
    def _law(self) -> DiscreteLaplace:
        return DiscreteLaplace(self.scale)

    def randomise(self, counts: ArrayLike, entropy: Entropy = None) -> Integers:
        """Add independent noise to every count."""
        counts = checked_counts(counts, self.bins)
        return self._law.draw(counts.shape, entropy) + counts


@dataclass(frozen=True, slots=True)
class FixedTotalHistogram(_Noisy):
    """Discrete Laplace noise on a histogram whose total is public, conditioned on sum zero: each row keeps its total.

    **Only where the total is public.** The published row shows the true total. Where the total may tell something of
    the values, use `LaplaceHistogram`.

    The promise compares a cell in state x with the same cell in state x', and everything else stays: the histogram that
    counts the cell moves by e_x' - e_x. So its total stays, and it moves by 2 in L1, for a series and for the sum over
    a group alike. By the ratio bound of `ZeroSumLaplace` the probability of any published row changes by at most
    exp(2 / scale), so eps_dp = 2 / scale, as with independent noise of the same scale: every account of losses that
    uses eps_dp alone holds unchanged. It is the K-norm mechanism (Hardt and Talwar 2010) of the hull of the e_i - e_j,
    and has less noise: half the band of 95 % for two bins, about three quarters for five.
    """

    name: ClassVar[str] = ZERO_SUM

    bins: int  # number of bins k, at least 2: the count of a single bin is the total itself
    scale: Fraction  # scale of the noise; see `ZeroSumLaplace` for its limits

    @classmethod
    def from_sigma(cls, bins: int, sigma: float) -> Self:
        """Make the mechanism for the sigma of a calibration; its scale is `rational_scale(sigma, 2)`."""
        return cls(bins, rational_scale(sigma, cls.sensitivity))

    @property
    def _law(self) -> ZeroSumLaplace:
        return ZeroSumLaplace(self.scale, self.bins)

    def randomise(self, counts: ArrayLike, entropy: Entropy = None) -> Integers:
        """Add noise to every count, and keep the sum of each row."""
        counts = checked_counts(counts, self.bins)
        return self._law.draw(len(counts), entropy) + counts


@dataclass(frozen=True, slots=True)
class LaplaceCount(_Noisy):
    """Discrete Laplace noise on the count of one state, or of one fixed set of states, in the cells of a window.

    The L1 sensitivity is 1: when one cell of one series changes its state, the number of cells in the counted set moves
    by at most one, and the count of a group by the same. So eps_dp = 1 / scale (theory section 1). The counts of
    several states together are a histogram, whose sensitivity is 2.
    """

    name: ClassVar[str] = "discrete-laplace-count"
    sensitivity: ClassVar[int] = 1
    bins: ClassVar[int] = 1  # pyright: ignore[reportIncompatibleVariableOverride] - a constant

    scale: Fraction  # scale of the noise; see `DiscreteLaplace` for its limits

    @classmethod
    def from_sigma(cls, sigma: float) -> Self:
        """Make the mechanism for the sigma of a calibration; its scale is `rational_scale(sigma, 1)`."""
        return cls(rational_scale(sigma, cls.sensitivity))

    @property
    def _law(self) -> DiscreteLaplace:
        return DiscreteLaplace(self.scale)

    def randomise(self, counts: ArrayLike, entropy: Entropy = None) -> Integers:
        """Add independent noise to every count, in an array of any shape."""
        counts = checked_counts(counts)
        return self._law.draw(counts.shape, entropy) + counts


@dataclass(frozen=True, slots=True)
class ExactHistogram(HistogramMechanism):
    """No noise at all: a hook for tests that compare a pipeline's counts with the truth.

    Nothing that a user can set makes one: no setting, command, environment variable or pipeline option. A test passes
    it to a constructor. Its rows say `none`, and a store that holds real rows refuses them, as the other way round.
    """

    name: ClassVar[str] = NO_NOISE
    scale: ClassVar[Fraction] = Fraction(0)  # pyright: ignore[reportIncompatibleVariableOverride] - a constant
    epsilon_dp: ClassVar[float] = math.inf  # pyright: ignore[reportIncompatibleMethodOverride] - a constant
    mean_abs: ClassVar[float] = 0.0  # pyright: ignore[reportIncompatibleMethodOverride] - a constant

    bins: int  # number of bins k, at least 1

    def __post_init__(self) -> None:
        _check_bins(self.bins)

    def half_width(self, level: float = 0.95) -> int:  # noqa: ARG002 - the interface of a mechanism
        """Return 0."""
        return 0

    def randomise(self, counts: ArrayLike, entropy: Entropy = None) -> Integers:  # noqa: ARG002 - likewise
        """Return a copy of the counts."""
        return checked_counts(counts, self.bins).copy()


@dataclass(frozen=True, slots=True)
class ClassHistogram(HistogramMechanism):
    """A histogram for each class of slots, all with the noise of one mechanism, and independent of each other.

    A class is a function of the slot's public number: the hour of its first instant, for example. The counts of a row
    are those of the first class, bin by bin, then those of the second one, and so on.

    *It loses what the mechanism loses for one histogram.* Let one cell of one series, in slot t, change from state x to
    state x', and let everything else stay. Its slot stays t, so its class c(t) stays, and the cell is in no other
    class: the histogram of c(t) moves by e_x' - e_x, and the histograms of all other classes stay. So the L1
    sensitivity of all counts together is 2, as of one histogram, and each class keeps its total. The noise is
    independent between classes, so the ratio of the probabilities of a row is the product over classes, in which every
    factor but that of c(t) is 1, and that one is at most exp(2 / scale). Hence eps_dp = 2 / scale for each slot; with
    noise conditioned on sum zero, each class's own total must be public (`FixedTotalHistogram`). Seen otherwise: the
    classes are releases that cover disjoint slots, and the density of a slot is that of the one that covers it.
    """

    each: HistogramMechanism  # the mechanism of each class
    classes: int  # number of classes, at least 1

    def __post_init__(self) -> None:
        whole("classes", self.classes, "give the number of classes of slots", least=1)

    @property
    def bins(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride] - it follows from the two
        """Number of counts in a row: classes times bins."""
        return self.each.bins * self.classes

    @property
    def scale(self) -> Fraction:  # pyright: ignore[reportIncompatibleVariableOverride] - that of each
        """Scale of the noise in each count."""
        return self.each.scale

    @property
    def epsilon_dp(self) -> float:
        """Loss per slot of one release: that of the one class that counts the slot."""
        return self.each.epsilon_dp

    @property
    def mean_abs(self) -> float:
        """Mean absolute noise of one count."""
        return self.each.mean_abs

    def half_width(self, level: float = 0.95) -> int:
        """Return the h with P(|published - true| <= h) >= level for each count."""
        return self.each.half_width(level)

    def randomise(self, counts: ArrayLike, entropy: Entropy = None) -> Integers:
        """Add noise to the histogram of every class; counts are class after class."""
        counts = checked_counts(counts, self.bins)
        return self.each.randomise(counts.reshape(-1, self.each.bins), entropy).reshape(counts.shape)


def noisy_histogram(law: str, bins: int, scale: Fraction) -> LaplaceHistogram | FixedTotalHistogram:
    """The mechanism of a noise law, by its name in rows and records."""
    for mechanism in (LaplaceHistogram, FixedTotalHistogram):
        if mechanism.name == law:
            return mechanism(bins, scale)
    raise ValueError(
        f"noise_law is {law!r}, and must be {LaplaceHistogram.name} or {FixedTotalHistogram.name}: a later version may "
        "know it"
    )


def by_class(mechanism: HistogramMechanism, classes: int) -> HistogramMechanism:
    """The mechanism for histograms of that many classes of slots; itself where there is one class."""
    return mechanism if classes == 1 else ClassHistogram(mechanism, classes)


def _check_bins(bins: int) -> None:
    whole("bins", bins, "give the number of states", least=1)


def checked_counts(counts: ArrayLike, bins: int | None = None) -> NDArray[np.int64]:
    """Return counts as int64: whole numbers, none negative or above 2^62, in so many bins where they are given.

    An array of int64 is returned as it is.

    Raises:
        ValueError: the shape or the range is wrong. No count is named in a message.
    """
    given = as_array("counts", counts)
    if given.dtype.kind not in "iu":
        raise TypeError(
            f"counts: the type is {given.dtype}, the limit is whole numbers: count cells, do not weigh them"
        )
    if bins is not None and (given.ndim != _COUNT_AXES or given.shape[1] != bins):
        one_row = ": for one row give [counts]" if given.shape == (bins,) else ""
        raise ValueError(
            f"counts: the shape is {given.shape}, and must be (rows, {bins}), one row per series or group, one column "
            f"per bin of the mechanism{one_row}"
        )
    # the values are secret and stay out of the message
    if given.size and (int(given.min()) < 0 or int(given.max()) > LARGEST_COUNT):
        raise ValueError("counts: a count is negative or above 2^62: pass counts of cells")
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
    if values.ndim != _COUNT_AXES or values.shape[1] == 0:
        raise ValueError(
            f"noisy: the shape is {values.shape}, and must be (rows, bins) with at least one bin, or (bins,) with one "
            "total"
        )
    rows, bins = values.shape
    if totals.shape != (rows,):
        raise ValueError(f"total: the shape is {totals.shape}, and must be ({rows},): one total per row of noisy")
    budget = totals[:, np.newaxis]
    if not np.isfinite(values).all():
        raise ValueError("noisy: a value is not finite: pass the counts of a release")
    if not (np.isfinite(budget) & (budget >= 0)).all():
        raise ValueError(
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
