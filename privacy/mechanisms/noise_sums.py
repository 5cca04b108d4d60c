"""The noise of sums of released counts: its exact variance, and how far a sum is off with a given probability.

Sums of released counts, over bins, classes of slots, windows or groups, are functions of published numbers and cost no
privacy. Their noise is a weighted sum over independent histograms,

    S = sum over histograms i of  w . Z_i,

and the noise Z_i of one histogram has one of two laws (:mod:`.discrete_laplace`): independent in each
of its k counts, or conditioned on sum zero. With v the variance of one count,

    Var(w . Z) = v |w|^2                                   independent counts,
    Var(w . Z) = v k / (k - 1) (|w|^2 - (sum of w)^2 / k)  sum zero: pairs of counts have covariance -v / (k - 1),

the second because the law is the same for every order of the counts. Histograms are independent of each other, so
variances add up.

>>> noise = HistogramNoise("discrete-laplace-zero-sum", 5, Fraction(127, 2))
>>> week = [noise] * 7
>>> half_width([noise], [1, 0, 0, 0, 0]), half_width(week, [1, 0, 0, 0, 0])
(146, 364)
>>> half_width(week, [1, 1, 1, 1, 1])  # the total is kept
0

*Sums of whole counts* (each weight 0 or 1, m of the k counts of a histogram). With p_m the law of the sum of m
independent discrete Laplace variables, the sum of m counts out of k that sum to zero has P(s) proportional to
p_m(s) p_{k-m}(-s). Both laws are convolved by fast Fourier transform, on a lattice whose step is 1 up to a scale of
512; for wider noise the step is coarser, and a half-width is rounded up by one step.

*Other weights* (a mean, a difference of shares). The law of S is symmetric and, up to the rounding to whole numbers,
log-concave: that of Z_i is, on the hyperplane of sum zero, too; marginals and sums of log-concave laws are log-concave
(Prekopa 1973). So X = |S| has a survival function G with log G concave, G(0) = 1, and (Barlow and Marshall 1964)

    P(X >= t) <= exp(-u)   for   t = std u / sqrt(2 (1 - exp(-u) (1 + u))).

Proof: let w = u / t. If G(t) > exp(-u), then log G(x) >= (x / t) log G(t) > -w x for 0 < x < t, so E X^2 is at least
the integral of 2 x G(x) over 0..t, hence above 2 (1 - exp(-u) (1 + u)) / w^2 = std^2, a contradiction. For 95 % that
is 2.37 standard deviations, where a normal law has 1.96 and a single Laplace variable 2.12.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ...schemas.noise_laws import INDEPENDENT, NO_NOISE, ZERO_SUM
from ..validation import whole
from .discrete_laplace import DiscreteLaplace, ZeroSumLaplace

_FINE = 512
"""Scales up to this keep a lattice of whole numbers."""

_ROUNDING = 1e-9
"""By how much the sums of a transform may be off; a half-width covers so much more than it must."""


@dataclass(frozen=True, slots=True)
class HistogramNoise:
    """The noise of one released histogram, as ``noise_law`` and ``scale_exact`` of its row say.

    Attributes:
        law: One of :mod:`quiltstream.schemas.noise_laws`.
        bins: Number of counts k.
        scale: Scale of the noise in each count.

    Raises:
        ValueError: The law is none that there is, or a value is out of range.
    """

    law: str
    bins: int
    scale: Fraction

    def __post_init__(self) -> None:
        whole("bins", self.bins, "give the number of counts", least=1)
        if self.law not in {INDEPENDENT, ZERO_SUM, NO_NOISE}:
            raise ValueError(
                f"noise_law is {self.law!r}, and must be {INDEPENDENT}, {ZERO_SUM} or {NO_NOISE}: a later version may "
                "know it"
            )
        if self.law == INDEPENDENT:
            DiscreteLaplace(self.scale)
        if self.law == ZERO_SUM:
            ZeroSumLaplace(self.scale, self.bins)

    def variance(self, weights: Sequence[float]) -> float:
        """Variance of the weighted sum of this noise; one weight for each count."""
        w = np.asarray(weights, dtype=np.float64)
        if w.shape != (self.bins,):
            raise ValueError(
                f"weights: there are {w.size}, and the histogram has {self.bins} counts: give one for each"
            )
        if self.law == NO_NOISE:
            return 0.0
        if self.law == INDEPENDENT:
            return _variance(self) * float(w @ w)
        centred = w - w.mean()
        return _variance(self) * self.bins / (self.bins - 1) * float(centred @ centred)


@lru_cache(maxsize=256)
def _variance(noise: HistogramNoise) -> float:
    """Variance of one count."""
    law = DiscreteLaplace(noise.scale) if noise.law == INDEPENDENT else ZeroSumLaplace(noise.scale, noise.bins)
    return law.std**2


def std(noises: Sequence[HistogramNoise], weights: Sequence[float]) -> float:
    """Standard deviation of the noise in the sum over histograms of weighted counts.

    Args:
        noises: Noise of each histogram, independent of each other.
        weights: One for each count, the same in every histogram.
    """
    return math.sqrt(math.fsum(n * noise.variance(weights) for noise, n in Counter(noises).items()))


def half_width(noises: Sequence[HistogramNoise], weights: Sequence[float], level: float = 0.95) -> float:
    """How far the noise takes the sum over histograms of weighted counts at most, with probability ``level``.

    Args:
        noises: Noise of each histogram, independent of each other.
        weights: One for each count, the same in every histogram.
        level: Probability, strictly between 0 and 1.

    Returns:
        h with P(|S| <= h) >= level: a whole number, the smallest one up to the lattice, where all weights are 0 or 1.

    Raises:
        ValueError: The level is out of range, or the weights do not fit.
    """
    if not 0 < level < 1:
        raise ValueError(f"level: {level} is not strictly between 0 and 1: 0.95 is the usual one")
    spread = std(noises, weights)
    if spread == 0:
        return 0
    if all(weight in {0, 1} for weight in weights):
        return _whole_half_width(frozenset(Counter(noises).items()), int(sum(weights)), level)
    return spread_factor(level) * spread


def spread_factor(level: float) -> float:
    """How many standard deviations hold a symmetric log-concave variable with probability ``level``.

    >>> round(spread_factor(0.95), 3)
    2.368
    """
    u = -math.log1p(-level)
    return u / math.sqrt(2 * (1 - (1 - level) * (1 + u)))


@lru_cache(maxsize=4096)
def _whole_half_width(noises: frozenset[tuple[HistogramNoise, int]], chosen: int, level: float) -> int:
    """The same for the sum of ``chosen`` counts of each of so many histograms."""
    found = {
        noise: n for noise, n in noises if noise.law == INDEPENDENT or (noise.law == ZERO_SUM and chosen < noise.bins)
    }
    widest = max(float(noise.scale) for noise in found)
    step = max(1, math.ceil(widest / _FINE))
    terms = sum(n * max(chosen, noise.bins - chosen) for noise, n in found.items())
    # beyond so many scales lies less than 1e-10 of any of the laws
    size = 2 ** math.ceil(math.log2(2 * (widest / step * (40 + 9 * math.sqrt(terms)) + 1)))
    angles = 2 * np.pi * np.arange(size // 2 + 1) / size
    product = np.ones(len(angles))
    for noise, n in found.items():
        product *= _transform(noise, chosen, step, angles, size) ** n
    law = np.fft.irfft(product, size)[: size // 2]
    within = law[0] + 2 * np.concatenate([[0.0], np.cumsum(law[1:])])
    h = int(np.searchsorted(within, min(level + _ROUNDING, (1 + level) / 2)))
    return h if step == 1 else step * (h + 1) - 1


def _transform(
    noise: HistogramNoise, chosen: int, step: int, angles: NDArray[np.float64], size: int
) -> NDArray[np.float64]:
    """The characteristic function of the sum of ``chosen`` counts, in units of ``step``; real, the law is symmetric."""
    r = math.exp(-step / float(noise.scale))
    one = (1 - r) ** 2 / (1 - 2 * r * np.cos(angles) + r * r)
    if noise.law == INDEPENDENT:
        return one**chosen
    joint = np.fft.irfft(one**chosen, size) * np.fft.irfft(one ** (noise.bins - chosen), size)
    return np.fft.rfft(joint / joint.sum()).real
