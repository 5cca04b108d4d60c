"""Influence curves: per-entry differential privacy translated into Pufferfish privacy ([BHGKM] section 5).

a(b) is the least max-influence of a quilt with b slots inside. Any mechanism that is eps_dp-differentially private in
every entry is (b eps_dp + a(b))-Pufferfish private for every b: take the quilt of b slots, group privacy inside.

>>> curve = binary_curve(0.9, 0.8, size=60)
>>> round(curve.epsilon(0.05), 4)
1.087
>>> round(curve.epsilon_dp(1.0), 6)
0.044846

Mechanisms at different points of one curve compose ([BHGKM] Theorem 6.2):

>>> round(curve.composed([0.05, 0.05]), 4) < 2 * round(curve.epsilon(0.05), 4)
True
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from .chains import ChainError, FloatArray, frozen
from .checks import positive, whole
from .classes import Belief
from .influence import SidedInfluence, sided_influence

_MAX_WORK = 2**28


@dataclass(frozen=True, eq=False)
class InfluenceCurve:
    """a(b) for b = 1, 2, ..., one entry each.

    Attributes:
        values: a(1), a(2), ...; not negative, non-increasing, infinite where no quilt of that size is usable.
        basis: What the curve assumes, one sentence.

    Raises:
        ValueError: If the curve is empty, negative, rising or not a number.
    """

    values: FloatArray
    basis: str

    def __post_init__(self) -> None:
        values = np.array(self.values, dtype=np.float64)
        if values.ndim != 1 or not len(values) or np.isnan(values).any() or (values < 0).any():
            raise ValueError(
                "values must be a(1), a(2), ..., each at least 0 and at least one of them: check the curve"
            )
        if (values[1:] > values[:-1]).any():
            at = int(np.flatnonzero(values[1:] > values[:-1])[0]) + 1
            raise ValueError(f"a({at + 1}) is above a({at}), but more slots inside tell no more: take running minima")
        object.__setattr__(self, "values", frozen(values))

    @property
    def size(self) -> int:
        """The largest b."""
        return len(self.values)

    def at(self, slots: int) -> float:
        """a(b); beyond the curve its last value, from above.

        Raises:
            ValueError: If b is not at least 1.
        """
        slots = whole("slots", slots, "give b, the slots inside the quilt", least=1)
        return float(self.values[min(slots, self.size) - 1])

    def best(self, epsilon_dp: float, length: int | None = None) -> tuple[int, float]:
        """The b that gives the least loss at a loss per entry, and a(b).

        Args:
            epsilon_dp: Loss per entry.
            length: Entries of the data; then the trivial quilt, b = length and a = 0, counts as well.

        Raises:
            ValueError: If epsilon_dp or length is out of range.
        """
        epsilon_dp = positive("epsilon_dp", epsilon_dp, "give the loss per entry")
        sums = np.arange(1, self.size + 1) * epsilon_dp + self.values
        at = int(np.argmin(sums))
        if length is not None:
            length = whole("length", length, "give the number of entries, or None", least=1)
            if length * epsilon_dp <= sums[at]:
                return length, 0.0
        return at + 1, float(self.values[at])

    def epsilon(self, epsilon_dp: float, length: int | None = None) -> float:
        """Loss of a mechanism that is eps_dp-private in every entry: min over b of b eps_dp + a(b).

        Raises:
            ValueError: If epsilon_dp or length is out of range.
        """
        slots, influence = self.best(epsilon_dp, length)
        return slots * epsilon_dp + influence

    def epsilon_dp(self, epsilon: float, length: int | None = None) -> float:
        """The largest loss per entry whose loss is at most epsilon: max over b with a(b) < eps of (eps - a(b)) / b.

        Each b alone is sufficient, so the maximum over b is right ([BHGKM] Algorithms 1 and 2 print a minimum). With a
        length it is never less than eps / length, the trivial quilt's.

        Raises:
            ChainError: If a(b) is nowhere below epsilon and no length is given.
            ValueError: If epsilon or length is out of range.
        """
        epsilon = positive("epsilon", epsilon, "give the loss you accept, for example 1.0")
        found = (epsilon - self.values) / np.arange(1, self.size + 1)
        best = float(found.max())
        if length is not None:
            best = max(best, epsilon / whole("length", length, "give the number of entries, or None", least=1))
        if best <= 0:
            raise ChainError(
                f"a(b) is nowhere below epsilon {epsilon!r} up to b = {self.size}; the least is {self.values[-1]!r}: "
                "use a longer curve, give the length of the data, or accept a larger epsilon"
            )
        while self.epsilon(best, length) > epsilon:
            best = math.nextafter(best, 0.0)
        return best

    def composed(self, releases: Iterable[float], length: int | None = None) -> float:
        """[BHGKM] Theorem 6.2: mechanisms of these losses per entry on the same data, each at its own best point b_l.

        The sum of eps_l = b_l eps_dp,l + a(b_l), less the sum of a_l, plus the largest a_l: the influence counts once.

        Raises:
            ValueError: If there is no release, or one is out of range.
        """
        return composed_points([(self.best(one, length), one) for one in releases])


def composed_points(points: Sequence[tuple[tuple[int, float], float]]) -> float:
    """[BHGKM] Theorem 6.2 for points ((b_l, a(b_l)), eps_dp,l) of one curve.

    Raises:
        ValueError: If there is no point.
    """
    if not points:
        raise ValueError("there is no release to compose: give at least one")
    return math.fsum(slots * loss for (slots, _), loss in points) + max(influence for (_, influence), _ in points)


def table_curve(belief: Belief | SidedInfluence, size: int | None = None) -> InfluenceCurve:
    """The curve of any belief from its influence tables: a(b) = min over a + b' - 1 = b of max over pairs R_a + F_b'.

    Long tables are ended early, which only takes quilts away.

    Args:
        belief: A belief, or its tables.
        size: The largest b; None for all that the tables give.

    Raises:
        ChainError: If a stationary chain is reducible.
        ValueError: If the size is not at least 1.
    """
    tables = belief if isinstance(belief, SidedInfluence) else sided_influence(belief)
    size = None if size is None else whole("size", size, "give the largest b", least=1)
    if not len(tables.left) or not tables.reach:
        return InfluenceCurve(np.zeros(size or 1), tables.basis)
    lags = min(tables.reach, max(1, math.isqrt(_MAX_WORK // len(tables.left))), size or tables.reach)
    values = np.full(2 * lags - 1, np.inf)
    left, right = tables.left[:, :lags], tables.right[:, :lags]
    for lag in range(lags):
        worst = (left[:, lag : lag + 1] + right).max(axis=0)
        values[lag : lag + lags] = np.minimum(values[lag : lag + lags], worst)
    values = np.minimum.accumulate(values)
    if size is not None:
        values = np.pad(values, (0, max(0, size - len(values))), "edge")[:size]
    return InfluenceCurve(values, tables.basis)


def binary_curve(p: float, q: float, size: int) -> InfluenceCurve:
    """The curve of the stationary chain with two states and P = [[p, 1 - p], [1 - q, q]], in closed form.

    With lambda = p + q - 1 > 0 and s the rarer state the best split of b is even, dL = floor((b + 1) / 2) and
    dR = ceil((b + 1) / 2), and

        a(b) = sum over d in {dL, dR} of log((pi_s + lambda^d (1 - pi_s)) / (pi_s - lambda^d pi_s)),

    as P^d(s, s) = pi_s + lambda^d (1 - pi_s) and P^d(s', s) = pi_s - lambda^d pi_s. For lambda < 0 an odd distance is
    told most by the other pair of states: both pairs are carried and every split is tried, as the even one need not be
    the best.

    Args:
        p: Probability to stay in state 0.
        q: Probability to stay in state 1.
        size: The largest b.

    Raises:
        ChainError: If p or q is no probability, or the chain is reducible or periodic (p = 1, q = 1, or p = q = 0).
        ValueError: If the size is not at least 1.
    """
    for name, value in (("p", p), ("q", q)):
        if not 0 <= value < 1:
            raise ChainError(f"{name} is {value!r}, but must be in [0, 1): a state that is never left does not mix")
    size = whole("size", size, "give the largest b", least=1)
    factor = p + q - 1
    if factor == -1:
        raise ChainError("p and q are 0: the chain is periodic and never mixes; make a state keep some weight")
    rare = min(1 - p, 1 - q) / (2 - p - q)
    slots = np.arange(1, size + 1)
    basis = f"the stationary chain of two states with p = {p!r} and q = {q!r}"
    if factor >= 0:
        one = _binary_influence(rare, factor, (size + 2) // 2 + 1)[0]
        return InfluenceCurve(one[(slots + 1) // 2 - 1] + one[(slots + 2) // 2 - 1], basis)
    pairs = np.stack(_binary_influence(rare, factor, size))
    values = [
        min(float((pairs[:, lag] + pairs[:, slot - 1 - lag]).max()) for lag in range((slot + 1) // 2)) for slot in slots
    ]
    return InfluenceCurve(np.minimum.accumulate(values), basis)


def _binary_influence(rare: float, factor: float, lags: int) -> tuple[FloatArray, FloatArray]:
    """Influence at distances 1..lags for the pairs (rare, common) and (common, rare).

    From a state x to y = x or not: P^d(x, x) / P^d(x', x) = (1 + m c / r) / (1 - m) with m = lambda^d, r = pi_x and
    c = 1 - r; where m is below 0 the other output y = x' tells more.
    """
    power = factor ** np.arange(1, lags + 1, dtype=np.float64)
    found: list[FloatArray] = []
    with np.errstate(divide="ignore"):
        for share in (rare, 1 - rare):
            # a state that never follows itself: the difference is exactly 0, up to rounding
            stays, leaves = (np.maximum(power * odds, -1.0) for odds in ((1 - share) / share, share / (1 - share)))
            up = np.log1p(stays) - np.log1p(-power)
            down = np.log1p(-power) - np.log1p(leaves)
            found.append(np.maximum(up, down))
    return found[0], found[1]
