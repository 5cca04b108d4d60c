"""What released histograms say: sums, duration curve, quantiles, mean and change, each with the error of its noise.

Everything is computed from published numbers, so it costs no privacy (post-processing). All bands are about the noise
alone, each by itself: they know nothing of missing readings or a wrong unit, and of twenty bands of 95 % one misses on
average.

>>> noise = HistogramNoise("discrete-laplace-zero-sum", 5, Fraction(127, 2))
>>> week = ReleasedHistogram(np.array([6031, 2010, 1215, 700, 124]), (noise,), 10080)
>>> week.half_width()
146
>>> week.quantile(0.5), week.quantile(0.9)  # numbers of edges: between no edge and the first, the second and the third
((None, 0), (1, 2))
>>> tail = week.tails()
>>> tail.counts.tolist(), tail.half_widths.tolist()
([4049, 2039, 824, 124], [146.0, 173.0, 173.0, 146.0])

*The noise of sums.* Sums of released counts, over bins, classes of slots, windows or groups, have a weighted sum over
independent histograms as their noise,

    S = sum over histograms i of  w . Z_i,

and the noise Z_i of one histogram has one of two laws (:mod:`.discrete_laplace`): independent in each of its k counts,
or conditioned on sum zero. Histograms are independent of each other.

>>> half_width([noise], [1, 0, 0, 0, 0]), half_width([noise] * 7, [1, 0, 0, 0, 0])
(146, 364)
>>> half_width([noise] * 7, [1, 1, 1, 1, 1])  # the total is kept
0

*Sums of whole counts* (each weight 0 or 1, m of the k counts of a histogram). With p_m the law of the sum of m
independent discrete Laplace variables, the sum of m counts out of k that sum to zero has P(s) proportional to
p_m(s) p_{k-m}(-s). Both laws are convolved by fast Fourier transform, on a lattice whose step is 1 up to a scale of
512; for wider noise the step is coarser, and a half-width is rounded up by one step.

*Other weights* (a mean, a difference of shares). S is symmetric, so P(|S| > h) = 2 P(S > h), and every weight is known,
hence M(z) = E exp(z S): for independent counts, with r = exp(-1 / scale), each has the factor

    E exp(z w Z) = (1 - r)^2 / ((1 - r e^{zw}) (1 - r e^{-zw})),

and under sum zero M(z) is the mean over u in 0..2 pi of the product of these factors at z w + i u, divided by the mean
at z = 0. Let U be the sum of n uniform variables on [-c/n, c/n], independent of S. Where S > h, S + U > h - c, so

    P(S > h) <= P(S + U > x),   x = h - c,

and for any t > 0 with M(t) finite and any L > 0, with z_m = t + 2 pi i m / L (Abate and Whitt 1992),

    1/L  sum over all whole m of  M(z_m) E exp(z_m U) exp(-z_m x) / z_m
        =  sum over all whole j of  exp(-t j L) P(S + U > x - j L)  >=  P(S + U > x).

Proof: exp(t y) P(S + U > y) has the Fourier transform M(z) E exp(zU) / z, and Poisson's formula says the equality. The
term j = 0 is the one sought, and none is negative. QED. Of the left side the terms beyond |m| = D are at most
M(t) exp(-t x) / (n pi) (cosh(t c / n) / X)^n in sum, X = 2 pi D c / (n L), because |M(z)| <= M(t) and
|sinh(z c / n)| <= cosh(t c / n); they are added. Nothing is said of densities, which discrete noise does not have.
Noise of sum zero and a scale above 16 or so is on a coarser lattice here, too: a half-width has one step of it more.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...schemas.errors import ArgumentError
from ...schemas.noise_laws import INDEPENDENT, NO_NOISE, ZERO_SUM
from ..mechanisms.discrete_laplace import DiscreteLaplace, ZeroSumLaplace
from ..mechanisms.histogram import project_to_total
from ..validation import whole

_TILT = 0.6
"""The largest t of a sum, as a share of the exponents at which moments are finite."""

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class HistogramNoise:
    """The noise of one released histogram, as ``noise_law`` and ``scale_exact`` of its row say."""

    law: str  # one of :mod:`quiltstream.schemas.noise_laws`
    bins: int  # number of counts k
    scale: Fraction  # scale of the noise in each count

    def __post_init__(self) -> None:
        whole("bins", self.bins, "give the number of counts", least=1)
        if self.law not in {INDEPENDENT, ZERO_SUM, NO_NOISE}:
            raise ArgumentError(
                f"noise_law is {self.law!r}, and must be {INDEPENDENT}, {ZERO_SUM} or {NO_NOISE}: a later version may "
                "know it"
            )
        if self.law != NO_NOISE:
            _law(self)  # which checks scale and bins


def _law(noise: HistogramNoise) -> DiscreteLaplace | ZeroSumLaplace:
    return DiscreteLaplace(noise.scale) if noise.law == INDEPENDENT else ZeroSumLaplace(noise.scale, noise.bins)


def _is_noisy(noise: HistogramNoise, weights: Sequence[float]) -> bool:
    """Whether a weighted sum has this noise: that of sum zero is in none of equal weights."""
    return noise.law != NO_NOISE and any(weights) and (noise.law == INDEPENDENT or len(set(weights)) > 1)


def half_width(noises: Sequence[HistogramNoise], weights: Sequence[float], level: float = 0.95) -> float:
    """How far the noise takes the sum over histograms of weighted counts at most, with probability ``level``.

    Args:
        noises: Noise of each histogram, independent of each other.
        weights: One for each count, the same in every histogram.
        level: Probability, strictly between 0 and 1.

    Returns:
        h with P(|S| <= h) >= level: a whole number, the smallest one up to the lattice, where all weights are 0 or 1.
        Of one count it is exact, as in its row. Else by the sum over moments, from 0.95 up some 2 % more than the
        least; noise of sum zero and a scale above 16 or so is on a coarser lattice, and h has one step of it more.
    """
    if not 0 < level < 1:
        raise ArgumentError(f"level: {level} is not strictly between 0 and 1: 0.95 is the usual one")
    if any(len(weights) != noise.bins for noise in noises):
        raise ArgumentError(f"weights: there are {len(weights)}, and a histogram has another number of counts")
    found = frozenset(one for one in Counter(noises).items() if _is_noisy(one[0], weights))
    if not found:
        return 0
    whole_numbers = all(weight in {0, 1} for weight in weights)
    if whole_numbers and len(noises) == 1 and sum(weights) == 1:
        return _law(noises[0]).half_width(level)
    if whole_numbers and 1 - level >= 1e-9:  # rarer, no transform of the law itself tells enough  # noqa: PLR2004
        return _whole_half_width(found, int(sum(weights)), level)
    width = _weighted_half_width(frozenset((*one, tuple(weights)) for one in found), level)
    return math.floor(width) if whole_numbers else width


@lru_cache(maxsize=4096)
def _weighted_half_width(parts: frozenset[tuple[HistogramNoise, int, tuple[float, ...]]], level: float) -> float:
    """The same for any weights, which may differ between so many histograms of each noise."""
    sums = [_Sum.of(*one) for one in parts if _is_noisy(one[0], one[2])]
    if not sums:
        return 0.0
    least = min(one.rate / np.abs(one.weights).max() for one in sums)
    # both sides, and the rounding of the moments
    miss = (1 - level) / 2 * (1 - 1e-6)

    def log_moments(z: NDArray[Any]) -> NDArray[Any]:
        return sum((one.log_moments(z) for one in sums), np.zeros_like(z))

    tilts = least * np.geomspace(1e-4, 0.999, 128)
    chernoff = (log_moments(tilts) - math.log(miss)) / tilts
    high = float(chernoff.min())
    n = 8  # uniform variables that U is the sum of
    t, c = min(_TILT * least, float(tilts[chernoff.argmin()])), high / 150
    period = (6 - math.log(miss)) / t  # exp(-t L) is at most what may go wrong times e^-6
    top = float(log_moments(np.array([t]))[0]) - math.log(n * math.pi)
    # h is some two units of 1 / t below Chernoff's; the terms left out are a thousandth of what may go wrong
    cut_at = math.exp(max(0.0, top - t * high + 2 - math.log(1e-3 * miss)) / n)
    z = t + 2j * np.pi / period * np.arange(math.ceil(cut_at * n * period / (2 * math.pi * c)) + 1)
    piece = z * c / n
    logs = log_moments(z) + n * np.log(np.sinh(piece) / piece) - np.log(z * period)
    logs[1:] += math.log(2)
    rest = top + n * math.log(math.cosh(t * c / n) / cut_at)
    low = 0.0
    while high - low > c / 16:
        middle = (low + high) / 2
        passed = float(np.exp(logs - z * (middle - c)).real.sum()) + math.exp(rest - t * (middle - c))
        low, high = (low, middle) if passed <= miss else (middle, high)
    return high + max(one.step for one in sums)


@dataclass(frozen=True, slots=True, eq=False)
class _Sum:
    """The weighted sum of the noise of equal histograms."""

    weights: Floats  # the distinct ones, in the middle of which 0 is where the noise sums to zero, shape (m,)
    times: Counts  # how often each weight occurs, shape (m,)
    histograms: int  # their number
    rate: float  # one over the scale of the noise, in steps of the lattice
    step: float  # what one step of a coarser lattice may take the sum further; 0 on that of whole numbers
    kept: bool  # whether the noise sums to zero

    @classmethod
    def of(cls, noise: HistogramNoise, histograms: int, weights: Sequence[float]) -> _Sum:
        distinct, times = np.unique(np.asarray(weights, dtype=np.float64), return_counts=True)
        # narrower noise is taken as this wide: its moments are larger, and no exponential overflows
        scale, kept = max(1 / 300, float(noise.scale)), noise.law == ZERO_SUM
        if not kept:
            return cls(distinct, times, histograms, 1 / scale, 0.0, kept)
        # work grows with the fineness and with the number of different weights
        step = max(1, math.ceil(scale / min(16.0, 32 / math.sqrt(len(distinct)))))
        distinct = step * (distinct - (distinct[0] + distinct[-1]) / 2)
        off = 0.0 if step == 1 else float(distinct[-1] - distinct[0])
        return cls(distinct, times, histograms, _coarse_rate(scale, step), off, kept)

    def log_moments(self, z: NDArray[Any]) -> NDArray[Any]:
        """Logarithm of E exp(z S), of any branch where z is complex; the real part of z is in the domain."""
        at = np.multiply.outer(z, self.weights)
        if not self.kept:
            each = 2 * math.log(-math.expm1(-self.rate)) - np.log(-np.expm1(at - self.rate))
            return self.histograms * ((each - np.log(-np.expm1(-at - self.rate))) @ self.times)
        # the mean over so many angles is off by the chance that counts sum to so much instead of zero, some e^-30
        share = min(_TILT, float(np.real(z).max() * np.abs(self.weights).max() / self.rate))
        bins = self.times.sum()
        angles = math.ceil(min(38 + 1.3 * bins, 60 + 0.6 * bins) / ((1 - share) * self.rate))
        rows = max(1, 2**20 // angles)  # exponents at once
        found = np.concatenate([self._mean(at[row : row + rows], angles) for row in range(0, len(at), rows)])
        return self.histograms * np.log(found / self._mean(np.zeros((1, len(self.weights))), angles))

    def _mean(self, at: NDArray[Any], angles: int) -> NDArray[Any]:
        u, r = 2 * np.pi / angles * np.arange(angles), math.exp(-self.rate)
        product = np.ones((len(at), angles), dtype=np.complex128)
        for place, times in enumerate(self.times.tolist()):
            one = np.multiply.outer(np.cosh(at[:, place]), np.cos(u))
            one = one + 1j * np.multiply.outer(np.sinh(at[:, place]), np.sin(u))
            product *= ((1 - r) ** 2 / (1 + r * r - 2 * r * one)) ** times
        found = product.mean(axis=1) + 1e-300  # so that it has a logarithm
        return found if np.iscomplexobj(at) else np.real(found)


@lru_cache(maxsize=4096)
def _whole_half_width(noises: frozenset[tuple[HistogramNoise, int]], chosen: int, level: float) -> int:
    """The same for the sum of ``chosen`` counts of each of so many histograms."""
    widest = max(float(noise.scale) for noise, _ in noises)
    step = max(1, math.ceil(widest / 512))
    terms = sum(n * max(chosen, noise.bins - chosen) for noise, n in noises)
    # beyond so many scales lies less than 1e-10 of any of the laws
    size = 2 ** math.ceil(math.log2(2 * (widest / step * (40 + 9 * math.sqrt(terms)) + 1)))
    angles = 2 * np.pi * np.arange(size // 2 + 1) / size
    product = np.ones(len(angles))
    for noise, n in noises:
        product *= _transform(noise, chosen, step, angles, size) ** n
    law = np.fft.irfft(product, size)[: size // 2]
    within = law[0] + 2 * np.concatenate([[0.0], np.cumsum(law[1:])])
    # the sums of a transform may be off by 1e-9
    h = int(np.searchsorted(within, min(level + 1e-9, (1 + level) / 2)))
    return h if step == 1 else step * (h + 1) - 1


def _transform(
    noise: HistogramNoise, chosen: int, step: int, angles: NDArray[np.float64], size: int
) -> NDArray[np.float64]:
    """The characteristic function of the sum of ``chosen`` counts, in units of ``step``; real, the law is symmetric."""
    rate = _coarse_rate(float(noise.scale), step)
    # (1 - r)^2 / (1 - 2 r cos + r^2) with r = exp(-rate), written so that nothing cancels: it is raised to high powers
    one = 1 / (1 + 4 * math.exp(-rate) * (np.sin(angles / 2) / math.expm1(-rate)) ** 2)
    if noise.law == INDEPENDENT:
        return one**chosen
    joint = np.fft.irfft(one**chosen, size) * np.fft.irfft(one ** (noise.bins - chosen), size)
    return np.fft.rfft(joint / joint.sum()).real


def _coarse_rate(scale: float, step: int) -> float:
    """One over the scale in steps, at which the variance is kept; sinh overflows above 710."""
    return 2 * math.asinh(step * math.sinh(min(700.0, 1 / (2 * scale))))


@dataclass(frozen=True, slots=True, eq=False)
class Tails:
    """How many cells lie at or above each inner edge: the load-duration curve."""

    counts: Counts  # noisy number of cells, shape (edges,)
    half_widths: Floats  # of each, shape (edges,)


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """Differences of shares of all cells."""

    differences: Floats  # later less earlier, shape (k,)
    half_width: float  # of each


@dataclass(frozen=True, slots=True)
class Bounds:
    """An interval; an end that nothing bounds is infinite."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Moments:
    """Bounds on sums of values."""

    total: Bounds  # sum of the values of all cells that have one
    mean: Bounds  # mean value of these cells


@dataclass(frozen=True, slots=True, eq=False)
class ReleasedHistogram:
    """A released histogram, or the sum of several of the same bins that count different cells."""

    counts: Counts  # noisy counts of the k states, int64, shape (k,)
    noises: tuple[HistogramNoise, ...]  # noise of each histogram that the counts are the sum of
    total: int | None  # number of cells counted, where it is public
    missing: bool = False  # whether the last state is that of cells without a reading

    @property
    def bins(self) -> int:
        """Number of bins of values, without the missing state."""
        return len(self.counts) - self.missing

    @property
    def estimate(self) -> Floats | None:
        """The counts projected onto non-negative ones with the public total; None where there is none."""
        if self.total is None:
            return None
        return project_to_total(self.counts[np.newaxis], np.array([self.total]))[0]

    def half_width(self, level: float = 0.95) -> float:
        """Half-width of the band of every single count."""
        return half_width(self.noises, _indicator(len(self.counts), 0, 1), level)

    def tails(self, level: float = 0.95) -> Tails:
        """Cells at or above each inner edge.

        Every number has a band of its own. The true numbers fall from edge to edge; the noisy ones need not.
        """
        k, edges = len(self.counts), range(1, self.bins)
        widths = [half_width(self.noises, _indicator(k, edge, self.bins), level) for edge in edges]
        above = np.cumsum(self.counts[: self.bins][::-1])[::-1][1:]
        return Tails(above, np.array(widths, dtype=np.float64))

    def quantile(self, share: float, level: float = 0.95) -> tuple[int | None, int | None]:
        """A band of edges that holds a quantile of the cells' values with probability ``level``.

        The bin of the quantile is the first one at whose upper edge at least ``share`` of the cells that have a value
        lie below. Let j be the inner edges from below, and F(j) the number of cells below edge j less ``share`` of all.
        From the first edge on, an edge is passed as long as F(j) is below zero by more than its half-width; the last
        passed edge is the lower end. It is too high only if an edge with F(j) >= 0 was passed, hence the first such
        edge of the truth, one fixed edge, at which the noise was beyond its half-width on one side: probability
        (1 - level) / 2, without a union over edges. The upper end likewise, from the last edge down.

        Args:
            share: Strictly between 0 and 1, for example 0.5 for the median.
            level: Probability that the band holds the quantile.

        Returns:
            The numbers of the edges (from 0) that bound it from below and above; None where no edge does.
        """
        if not 0 < share < 1:
            raise ArgumentError(f"quantile: {share} is not strictly between 0 and 1: give 0.5 for the median")
        found = [self._below(edge, share, level) for edge in range(1, self.bins)]
        low, high = None, None
        for edge, (excess, width) in enumerate(found):
            if excess + width >= 0:
                break
            low = edge
        for edge, (excess, width) in reversed(list(enumerate(found))):
            if excess - width < 0:
                break
            high = edge
        return low, high

    def _below(self, edge: int, share: float, level: float) -> tuple[float, float]:
        """Cells below an edge less a share of those with a value, and the half-width of that."""
        k = len(self.counts)
        if self.total is not None and not self.missing:
            weights = _indicator(k, 0, edge)
            return float(self.counts[:edge].sum()) - share * self.total, half_width(self.noises, weights, level)
        weights = [1 - share] * edge + [-share] * (self.bins - edge) + [0.0] * self.missing
        return float(self.counts @ np.array(weights)), half_width(self.noises, weights, level)

    def moments(self, lows: Sequence[float], highs: Sequence[float], level: float = 0.95) -> Moments:
        """Bounds on total and mean of the values, from the ends of the bins and the noise.

        Every value of a bin lies between its ends, so the total lies between the sums of counts times lower and upper
        ends; the noise of each sum is allowed for with (1 - level) / 2. How wide the bounds are is mostly the width of
        the bins.

        Args:
            lows: Lower end of each bin, shape (bins,); the first may be -inf.
            highs: Upper end of each, the last may be inf.
            level: Probability that the bounds hold.

        Raises:
            ValueError: There is not one end for each bin, or no total is public.
        """
        if len(lows) != self.bins or len(highs) != self.bins:
            raise ArgumentError(f"bounds of the bins: {len(lows)} and {len(highs)} are given for {self.bins} bins")
        if not self.total:
            raise ArgumentError(
                "the number of cells is not public here, or zero, and so there is no mean to bound: use quantiles"
            )
        if not self.missing:
            total = self._total(lows, highs, level)
            least, most = lows[0] * self.total, highs[-1] * self.total
            found = _within(total, least, most)
            return Moments(found, Bounds(found.low / self.total, found.high / self.total))
        # half of what may go wrong for the total, half for the number of cells that have a value
        level = 1 - (1 - level) / 2
        total = self._total(lows, highs, level)
        off, missing = self.half_width(level), float(self.counts[-1])
        most = min(self.total, max(1.0, self.total - missing + off))
        least = min(most, max(1.0, self.total - missing - off))
        ends = [end * cells for end in (lows[0], highs[-1]) for cells in (least, most)]
        total = _within(total, min(ends), max(ends))
        means = Bounds(min(total.low / most, total.low / least), max(total.high / most, total.high / least))
        return Moments(total, _within(means, lows[0], highs[-1]))

    def _total(self, lows: Sequence[float], highs: Sequence[float], level: float) -> Bounds:
        ends: list[float] = []
        for side, values in ((-1, lows), (1, highs)):
            if not all(map(math.isfinite, values)):
                ends.append(side * math.inf)
                continue
            weights = [*values, *([0.0] * self.missing)]
            ends.append(float(self.counts @ np.array(weights)) + side * half_width(self.noises, weights, level))
        return Bounds(*ends)


def _within(bounds: Bounds, least: float, most: float) -> Bounds:
    """Bounds on what is known to lie between two numbers; in order where the noise has crossed them."""
    low, high = sorted(min(max(end, least), most) for end in (bounds.low, bounds.high))
    return Bounds(low, high)


def united(histograms: Sequence[ReleasedHistogram]) -> ReleasedHistogram:
    """The sum of histograms that count different cells: other windows, classes of slots or groups.

    Raises:
        ValueError: There is none, or the bins are not the same.
    """
    if len({(len(one.counts), one.missing) for one in histograms}) != 1:
        raise ArgumentError("histograms can be added up only where all have the same bins, and there is at least one")
    totals = [one.total for one in histograms]
    return ReleasedHistogram(
        np.sum([one.counts for one in histograms], axis=0),
        tuple(noise for one in histograms for noise in one.noises),
        None if any(total is None for total in totals) else sum(total for total in totals if total is not None),
        histograms[0].missing,
    )


def change(before: ReleasedHistogram, after: ReleasedHistogram, level: float = 0.95) -> Shares:
    """How the share of each state in all cells changed between two histograms that count different cells.

    Raises:
        ValueError: The bins differ, or the number of cells is not public or zero.
    """
    if len(before.counts) != len(after.counts) or not before.total or not after.total:
        raise ArgumentError("a change of shares needs the same bins, and public numbers of cells above zero")
    differences = after.counts / after.total - before.counts / before.total
    one = _indicator(len(before.counts), 0, 1)
    if before.total == after.total:
        return Shares(differences, half_width((*before.noises, *after.noises), one, level) / after.total)
    parts = (
        (noise, n, tuple(weight / total for weight in one))
        for noises, total in ((before.noises, before.total), (after.noises, after.total))
        for noise, n in Counter(noises).items()
    )
    return Shares(differences, _weighted_half_width(frozenset(parts), level))


def _indicator(k: int, start: int, stop: int) -> list[int]:
    return [int(start <= place < stop) for place in range(k)]
