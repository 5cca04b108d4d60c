"""The influence curve of a Gaussian series with secrets that are regions ([BHGKM] section 5).

X_1 .. X_T is Gaussian with mean 0 and covariance exp(-(j - k)^2 / l). A secret is that X_i lies in one of the regions
of width delta into which [-gamma, gamma] is cut. The b coordinates nearest to i may differ between two secrets; the
others, the farthest, are the set F of low influence. Values are truncated: X_F lies in [-gamma, gamma], and given X_F =
x the secret coordinate has its conditional Gaussian law, of mean m = w.x and variance s^2, restricted to [-gamma,
gamma]; the coordinates in between may follow any law given these.

By Bayes the influence of a pair of regions A, B is the largest

    log P(x | A) / P(x | B) = rho(m) - log P(A) / P(B),   rho(m) = log P(A | m) / P(B | m),

so only the conditional mean matters, and it lies in [-M, M], M = gamma * sum |w|: a sweep over one dimension. Its ends
decide. (1) A restricted Gaussian has a monotone likelihood ratio in its mean, so rho rises in m where A lies above B:
its largest value is rho(M). (2) The law of X_F is symmetric about 0, so P(A) / P(B) is a mean over m of P(A | m) +
P(A | -m) divided by one of P(B | m) + P(B | -m), and lies between the extremes of the ratio of the two. The density of
the symmetrised law is proportional to exp(-x^2 / 2 s^2) cosh(m x / s^2), whose likelihood ratio in m is monotone in
|x|; so this ratio is monotone in m, and its extremes are at m = 0 and m = M. Thus

    a(b) = max over A above B of rho(M) - min over m in {0, M} of log (P(A|m) + P(A|-m)) / (P(B|m) + P(B|-m)),

an upper bound for every symmetric law of X_F on the box, and exact for a pair of mirrored regions.

>>> curve = gaussian_curve(length=40, scale=2.0, gamma=2.0, delta=0.5, size=12)
>>> curve.values.round(3).tolist()[-4:]
[0.0, 0.0, 0.0, 0.0]
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import log_ndtr, logsumexp

from .chains import FloatArray
from .checks import positive, whole
from .curves import InfluenceCurve

_WORST_CONDITION = 1e10
_WHOLE = 1e-9


def gaussian_curve(length: int, scale: float, gamma: float, delta: float, size: int | None = None) -> InfluenceCurve:
    """a(b) of a truncated Gaussian series: the worst coordinate, each with the range of b around it that tells least.

    In most cases the middle coordinate decides; near the ends, or for an even b, another one may, so all are tried.

    Args:
        length: Number of coordinates T.
        scale: l of the kernel exp(-(j - k)^2 / l), in squared slots.
        gamma: Values lie in [-gamma, gamma].
        delta: Width of a region; 2 gamma must be a whole number of regions, so that they mirror each other.
        size: The largest b; None for T, where the influence is 0.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range, the regions do not tile the range, or the kernel matrix is too ill
            conditioned for double precision.
    """
    length = whole("length", length, "give the number of coordinates", least=1)
    scale = positive("scale", scale, "give l of the kernel")
    gamma = positive("gamma", gamma, "give the largest absolute value")
    delta = positive("delta", delta, "give the width of a region")
    count = round(2 * gamma / delta)
    if count < 1 or abs(count * delta - 2 * gamma) > _WHOLE * gamma:
        raise ValueError(
            f"delta is {delta!r}, but 2 gamma = {2 * gamma!r} must be a whole number of regions: "
            f"use for example {2 * gamma / max(1, count)!r}"
        )
    size = length if size is None else whole("size", size, "give the largest b", least=1)
    edges = np.linspace(-gamma, gamma, count + 1)
    positions = np.arange(length)
    matrix = np.exp(-(np.subtract.outer(positions, positions) ** 2) / scale)
    # the eigenvalues of a part lie between those of the whole, so no part is conditioned worse
    if np.linalg.cond(matrix) > _WORST_CONDITION:
        raise ValueError(
            f"scale is {scale!r}: the kernel matrix of {length} coordinates is too ill conditioned for double "
            "precision: use a smaller scale, or fewer coordinates further apart"
        )
    values = np.zeros(size)
    for slots in range(1, min(size, length - 1) + 1):
        # by symmetry the first half stands for all
        for node in range((length + 1) // 2):
            found = min(
                _influence(edges, *_conditional(matrix, node, first, slots, gamma))
                for first in _around(node, slots, length)
            )
            values[slots - 1] = max(values[slots - 1], found)
    return InfluenceCurve(
        # more slots inside leave less to be told, but for rounding
        np.minimum.accumulate(values),
        f"a Gaussian series with kernel exp(-(j - k)^2 / {scale!r}), values in [-{gamma!r}, {gamma!r}], "
        f"regions of width {delta!r}",
    )


def _around(node: int, slots: int, length: int) -> set[int]:
    """First coordinates of the ranges of so many coordinates that lie around one as evenly as the ends allow."""
    return {min(max(node - before, 0), length - slots) for before in ((slots - 1) // 2, slots // 2)}


def _conditional(matrix: FloatArray, node: int, first: int, slots: int, gamma: float) -> tuple[float, float]:
    """Largest conditional mean of a coordinate given those outside a range, and its standard deviation."""
    far = np.delete(np.arange(len(matrix)), np.s_[first : first + slots])
    column = matrix[far, node]
    weights = np.linalg.solve(matrix[np.ix_(far, far)], column)
    variance = max(1 - float(column @ weights), 1 / _WORST_CONDITION)
    return gamma * float(np.abs(weights).sum()), math.sqrt(variance)


def _log_shares(edges: FloatArray, mean: float, deviation: float) -> FloatArray:
    """Log of the weight that a Gaussian law gives to each region, up to a common term."""
    low, high = (edges[:-1] - mean) / deviation, (edges[1:] - mean) / deviation
    # the upper tail of a positive interval is the lower tail of its mirror image, which does not cancel
    flip = low > 0
    low, high = np.where(flip, -high, low), np.where(flip, -low, high)
    upper, lower = log_ndtr(high), log_ndtr(low)
    return upper + np.log(-np.expm1(lower - upper))


def _influence(edges: FloatArray, mean: float, deviation: float) -> float:
    shares = _log_shares(edges, mean, deviation)
    priors: list[FloatArray] = []
    for at in (0.0, mean):
        both = np.stack([_log_shares(edges, at, deviation), _log_shares(edges, -at, deviation)])
        priors.append(np.asarray(logsumexp(both, axis=0)))
    upper, lower = np.tril_indices(len(shares), -1)
    if not len(upper):
        return 0.0
    least = np.minimum(*(prior[upper] - prior[lower] for prior in priors))
    return max(0.0, float((shares[upper] - shares[lower] - least).max()))
