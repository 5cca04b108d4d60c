"""Influence curves a(b) of chains and of Gaussian series ([BHGKM] section 5).

a(b) is the least max-influence of a quilt with b slots inside. Any mechanism that is eps_dp-differentially private in
every entry is (b eps_dp + a(b))-Pufferfish private for every b: take the quilt of b slots, group privacy inside.
Mechanisms at different points of one curve compose ([BHGKM] Theorem 6.2).

>>> curve = binary_curve(0.9, 0.8, size=60)
>>> round(curve.epsilon(0.05), 4)
1.087
>>> round(curve.epsilon_dp(1.0), 6)
0.044846
>>> round(curve.composed([0.05, 0.05]), 4) < 2 * round(curve.epsilon(0.05), 4)
True
>>> curve = gaussian_curve(length=40, scale=2.0, gamma=2.0, delta=0.5, size=12)
>>> curve.values.round(3).tolist()[-4:]
[0.0, 0.0, 0.0, 0.0]

*Chains.* `table_curve` reads the curve of any belief off its influence tables; `binary_curve` has the closed form of a
chain of two states.

*Gaussian series.* X_1 .. X_T has mean 0 and covariance exp(-(j - k)^2 / l). A secret is that X_i lies in one of the
regions of width delta into which [-gamma, gamma] is cut. The b coordinates nearest to i may differ between two secrets;
the others, the farthest, are the set F of low influence. Values are truncated: X_F lies in [-gamma, gamma], and given
X_F = x the secret coordinate has its conditional Gaussian law, of mean m = w.x and variance s^2, restricted to [-gamma,
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
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..models.belief import Belief
from ..models.markov_chain import ChainError, FloatArray, MarkovChain, frozen
from ..quilts.influence import SidedInfluence, sided_influence
from ..validation import number, numbers, positive, whole


@dataclass(frozen=True, eq=False)
class InfluenceCurve:
    """a(b) for b = 1, 2, ..., one entry each.

    Raises:
        ValueError: If the curve is empty, negative, rising or not a number.
    """

    values: FloatArray  # a(1), a(2), ...; not negative, non-increasing, infinite where no quilt of that size is usable
    basis: str  # what the curve assumes, one sentence

    def __post_init__(self) -> None:
        values = numbers("values", self.values)
        if values.ndim != 1 or not len(values) or not (values >= 0).all() or (values[1:] > values[:-1]).any():
            raise ValueError(
                "values must be a(1), a(2), ..., at least 0 and none above the one before: check the curve"
            )
        object.__setattr__(self, "values", frozen(values))

    @property
    def size(self) -> int:
        """The largest b."""
        return len(self.values)

    def at(self, slots: int) -> float:
        """a(b); beyond the curve its last value, from above."""
        return float(self.values[min(slots, self.size) - 1])

    def best(self, epsilon_dp: float, length: int | None = None) -> tuple[int, float]:
        """The b that gives the least loss at a loss per entry, and a(b).

        Args:
            epsilon_dp: Loss per entry.
            length: Entries of the data; then the trivial quilt, b = length and a = 0, counts as well.
        """
        epsilon_dp = positive("epsilon_dp", epsilon_dp, "give the loss per entry")
        sums = np.arange(1, self.size + 1) * epsilon_dp + self.values
        at = int(np.argmin(sums))
        if length is not None and length * epsilon_dp <= sums[at]:
            return length, 0.0
        return at + 1, float(self.values[at])

    def epsilon(self, epsilon_dp: float, length: int | None = None) -> float:
        """Loss of a mechanism that is eps_dp-private in every entry: min over b of b eps_dp + a(b)."""
        slots, influence = self.best(epsilon_dp, length)
        return slots * epsilon_dp + influence

    def epsilon_dp(self, epsilon: float, length: int | None = None) -> float:
        """The largest loss per entry whose loss is at most epsilon: max over b with a(b) < eps of (eps - a(b)) / b.

        Each b alone is sufficient, so the maximum over b is right ([BHGKM] Algorithms 1 and 2 print a minimum). With a
        length it is never less than eps / length, the trivial quilt's.

        Raises:
            ChainError: If a(b) is nowhere below epsilon and no length is given.
        """
        epsilon = positive("epsilon", epsilon, "give the loss you accept, for example 1.0")
        found = (epsilon - self.values) / np.arange(1, self.size + 1)
        best = float(found.max())
        if length is not None:
            best = max(best, epsilon / length)
        if best <= 0:
            raise ChainError(
                f"a(b) is nowhere below epsilon {epsilon!r} up to b = {self.size}: use a longer curve, give the length "
                "of the data, or accept a larger epsilon"
            )
        while self.epsilon(best, length) > epsilon:
            best = math.nextafter(best, 0.0)
        return best

    def composed(self, releases: Iterable[float], length: int | None = None) -> float:
        """[BHGKM] Theorem 6.2: mechanisms of these losses per entry on the same data, each at its own best point b_l.

        The sum of eps_l = b_l eps_dp,l + a(b_l), less the sum of a_l, plus the largest a_l: the influence counts once.
        """
        points = [(self.best(one, length), one) for one in releases]
        inside = math.fsum(slots * loss for (slots, _), loss in points)
        return inside + max((influence for (_, influence), _ in points), default=0.0)


def table_curve(belief: Belief | SidedInfluence, size: int | None = None) -> InfluenceCurve:
    """The curve of any belief from its influence tables: a(b) = min over a + b' - 1 = b of max over pairs R_a + F_b'.

    Long tables are ended early, which only takes quilts away.

    Args:
        belief: A belief, or its tables.
        size: The largest b; None for all that the tables give.

    Raises:
        ChainError: If a stationary chain is reducible.
    """
    tables = belief if isinstance(belief, SidedInfluence) else sided_influence(belief)
    if not len(tables.left) or not tables.reach:
        return InfluenceCurve(np.zeros(size or 1), tables.basis)
    lags = min(tables.reach, max(1, math.isqrt(2**28 // len(tables.left))), size or tables.reach)
    values = np.full(2 * lags - 1, np.inf)
    left, right = tables.left[:, :lags], tables.right[:, :lags]
    for lag in range(lags):
        worst = (left[:, lag : lag + 1] + right).max(axis=0)
        values[lag : lag + lags] = np.minimum(values[lag : lag + lags], worst)
    values = np.minimum.accumulate(values)
    if size is not None:
        values = np.pad(values, (0, max(0, size - len(values))), "edge")[:size]
    return InfluenceCurve(values, tables.basis)


def largest_curve(curves: Sequence[InfluenceCurve]) -> InfluenceCurve:
    """The curve of several beliefs held side by side."""
    size = max(curve.size for curve in curves)
    values = np.max([np.pad(curve.values, (0, size - curve.size), "edge") for curve in curves], axis=0)
    return InfluenceCurve(values, curves[0].basis)


def binary_curve(p: float, q: float, size: int) -> InfluenceCurve:
    """The curve of the stationary chain with two states and P = [[p, 1 - p], [1 - q, q]], in closed form.

    With lambda = p + q - 1 > 0 and s the rarer state the best split of b is even, dL = floor((b + 1) / 2) and
    dR = ceil((b + 1) / 2), and

        a(b) = sum over d in {dL, dR} of log((pi_s + lambda^d (1 - pi_s)) / (pi_s - lambda^d pi_s)),

    as P^d(s, s) = pi_s + lambda^d (1 - pi_s) and P^d(s', s) = pi_s - lambda^d pi_s. For lambda < 0 an odd distance is
    told most by the other pair of states, and the even split need not be the best: there the curve is `table_curve`.

    Args:
        p: Probability to stay in state 0.
        q: Probability to stay in state 1.
        size: The largest b.

    Raises:
        ChainError: If p or q is no probability, or the chain is reducible or periodic (p = 1, q = 1, or p = q = 0).
    """
    for name, value in (("p", p), ("q", q)):
        if not 0 <= number(name, value, "give the probability to stay") < 1:
            raise ChainError(f"{name} is {value!r}, but must be in [0, 1): a state that is never left does not mix")
    size = whole("size", size, "give the largest b", least=1, most=2**28)
    factor = p + q - 1
    if factor == -1:
        raise ChainError("p and q are 0: the chain is periodic and never mixes; make a state keep some weight")
    if factor < 0:
        return table_curve(MarkovChain([[p, 1 - p], [1 - q, q]]), size)
    rare = min(1 - p, 1 - q) / (2 - p - q)
    power = factor ** np.arange(1, size // 2 + 3)
    one = np.log1p(power * (1 - rare) / rare) - np.log1p(-power)
    slots = np.arange(1, size + 1)
    basis = f"the stationary chain of two states with p = {p!r} and q = {q!r}"
    return InfluenceCurve(one[(slots + 1) // 2 - 1] + one[(slots + 2) // 2 - 1], basis)


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
        ValueError: If an argument is out of range, the regions do not tile the range, or the kernel matrix is too ill
            conditioned for double precision.
    """
    # the kernel matrix of 2^14 coordinates takes 2 GB
    length = whole("length", length, "give the number of coordinates", least=1, most=2**14)
    scale = positive("scale", scale, "give l of the kernel")
    gamma = positive("gamma", gamma, "give the largest absolute value")
    delta = positive("delta", delta, "give the width of a region")
    count = round(2 * gamma / delta)
    if not 1 <= count <= 2**14 or abs(count * delta - 2 * gamma) > 1e-9 * gamma:
        raise ValueError(
            f"delta is {delta!r}, but 2 gamma = {2 * gamma!r} must be a whole number of regions, at most 2^14"
        )
    size = length if size is None else whole("size", size, "give the largest b", least=1, most=2**28)
    edges = np.linspace(-gamma, gamma, count + 1)
    positions = np.arange(length)
    matrix = np.exp(-(np.subtract.outer(positions, positions) ** 2) / scale)
    # the eigenvalues of a part lie between those of the whole, so no part is conditioned worse
    if np.linalg.cond(matrix) > 1e10:  # noqa: PLR2004 - what double precision carries
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
    variance = max(1 - float(column @ weights), 1e-10)
    return gamma * float(np.abs(weights).sum()), math.sqrt(variance)


def _log_shares(edges: FloatArray, mean: float, deviation: float) -> FloatArray:
    """Log of the weight that a Gaussian law gives to each region, up to a common term."""
    from scipy.special import log_ndtr  # noqa: PLC0415 - a quarter of a second that only this one needs

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
        priors.append(np.logaddexp.reduce(both, axis=0))
    upper, lower = np.tril_indices(len(shares), -1)
    if not len(upper):
        return 0.0
    least = np.minimum(*(prior[upper] - prior[lower] for prior in priors))
    return max(0.0, float((shares[upper] - shares[lower] - least).max()))
