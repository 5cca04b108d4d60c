"""The exponential mechanism: the names of the K fullest bins, drawn with exactly the stated probabilities.

>>> from fractions import Fraction
>>> import numpy as np
>>> mechanism = ExponentialTopK(bins=4, choose=2, epsilon=Fraction(1, 2))
>>> mechanism.select(np.array([[30, 900, 5, 400]])).tolist()  # 900 and 400 stand out by far: certain up to 1e-20
[[1, 3]]
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..mechanisms.discrete_laplace import LARGEST_SCALE
from ..mechanisms.histogram import checked_counts
from ..mechanisms.sampling import Entropy, laplace_tables, words
from ..validation import float_above, whole


@dataclass(frozen=True, slots=True)
class ExponentialTopK:
    """K different bins of a histogram, each draw an exponential mechanism on the counts (theory section 5).

    One draw takes bin r of those left with probability proportional to exp(epsilon c_r / (2 K)), where c_r is its
    count. When one cell changes its state no count moves by more than Delta_u = 1, so numerator and normaliser move by
    a factor of at most exp(epsilon / (2 K)) each: a draw has eps_dp = epsilon / K, and the K draws without replacement
    ("peeling"), each made in the light of the ones before, have eps_dp = epsilon together. Counts summed over a group
    move by the same 1.

    The draws are exact: a bin is proposed uniformly and kept with probability exp(-rate (max - c_r)), rate = epsilon /
    (2 K) a fraction, which is the probability that a geometric number of scale 1 / rate is at least max - c_r (see
    `sampling`). The fullest bin is always kept, so a draw from m bins takes m proposals on average at most, whatever
    the counts. The number of proposals depends on the counts: who can time a draw learns about them, so draws belong
    inside the trust boundary.
    """

    name: ClassVar[str] = "exponential-top-k"

    bins: int  # number of bins k, at least 1
    choose: int  # number of bins to name K, 1 to k
    epsilon: Fraction  # loss per slot of one selection; epsilon / (2 K) has numerator and denominator at most 2^46

    def __post_init__(self) -> None:
        whole("bins", self.bins, "give the number of states", least=1)
        whole("choose", self.choose, "give the number of bins to name", least=1)
        if self.choose > self.bins:
            raise ValueError(f"choose is {self.choose}, but there are {self.bins} bins: name at most that many")
        if not isinstance(self.epsilon, Fraction):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            raise TypeError(f"epsilon: {self.epsilon!r} is not a Fraction: give for example Fraction(1, 2)")
        if self.epsilon <= 0:
            raise ValueError(f"epsilon is {self.epsilon}, but must be above 0: give the loss you accept")
        if max(self._rate.numerator, self._rate.denominator) > LARGEST_SCALE:
            raise ValueError(
                f"epsilon: epsilon / (2 choose) has parts of {self._rate.numerator.bit_length()} and "
                f"{self._rate.denominator.bit_length()} bits, the limit of exact draws is 2^46: "
                "give a rounder fraction"
            )

    @property
    def epsilon_dp(self) -> float:
        """Loss per slot of one selection, rounded up: what the ledger is charged."""
        return float_above(self.epsilon)

    @property
    def _rate(self) -> Fraction:
        return self.epsilon / (2 * self.choose)

    def select(self, counts: ArrayLike, entropy: Entropy = None) -> NDArray[np.int64]:
        """Draw the bins to publish.

        Args:
            counts: whole numbers, shape (n, k), an array or a list: one row per series or group, no count negative or
                above 2^62.
            entropy: For tests only; the operating system's entropy where it is left out.

        Returns:
            int64, shape (n, K): bins in the order in which they were drawn. The counts are not part of it.

        Raises:
            ValueError: The shape or the range is wrong. No count is named in the message.
            EntropyError: The bit source is defective.
        """
        counts = checked_counts(counts, self.bins)
        rows = np.arange(len(counts))
        left = np.tile(np.arange(self.bins), (len(counts), 1))
        chosen = np.empty((len(counts), self.choose), dtype=np.int64)
        for place in range(self.choose):
            values = np.take_along_axis(counts, left, axis=1)
            picked = _pick(values.max(axis=1, keepdims=True) - values, self._rate, entropy)
            chosen[:, place] = left[rows, picked]
            keep = np.arange(left.shape[1]) != picked[:, np.newaxis]
            left = left[keep].reshape(len(counts), left.shape[1] - 1)
        return chosen

    def probabilities(self, counts: ArrayLike) -> NDArray[np.float64]:
        """The law of the first draw, as floats that describe it, shape (n, k); rows sum to 1."""
        counts = checked_counts(counts, self.bins)
        weights = np.exp(-float(self._rate) * (counts.max(axis=1, keepdims=True) - counts))
        return weights / weights.sum(axis=1, keepdims=True)


def _pick(gaps: NDArray[np.int64], rate: Fraction, entropy: Entropy) -> NDArray[np.int64]:
    """Draw one column per row with probability proportional to exp(-rate gap), by rejection from the uniform law.

    The gaps, shape (n, m), are how far each value is below the row's largest; at least one 0 in each row.
    """
    picked = np.zeros(len(gaps), dtype=np.int64)
    tables, columns, waiting = laplace_tables(1 / rate), gaps.shape[1], np.arange(len(gaps))
    while waiting.size:
        word = words(entropy, 64, waiting.size)
        # the words below the largest multiple of the columns, so that each column has equally many
        fair = word <= np.uint64(2**64 - 1 - 2**64 % columns)
        proposed = (word % np.uint64(columns)).astype(np.int64)
        magnitude = tables.magnitudes(tables.top.draw(waiting.size, entropy), entropy)
        kept = fair & (magnitude >= gaps[waiting, proposed])
        picked[waiting[kept]] = proposed[kept]
        waiting = waiting[~kept]
    return picked
