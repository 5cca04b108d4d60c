"""The count mechanism: exact integer noise on how often one state, or one set of states, occurs.

>>> import numpy as np
>>> mechanism = LaplaceCount.from_sigma(31.7098)
>>> mechanism.randomise(np.array([48, 10, 0])).shape
(3,)
>>> mechanism.half_width(0.95)
95
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from .entropy import Entropy
from .mechanisms import LARGEST_COUNT
from .noise import DiscreteLaplace, epsilon_dp_of, rational_scale


def check_counts(counts: NDArray[np.int64], bins: int | None = None) -> None:
    """Refuse what is not an array of counts; no count is named in a message.

    Args:
        counts: int64, no entry negative or above 2^62.
        bins: Where given, the shape must be (rows, bins).

    Raises:
        TypeError: If the type is not int64.
        ValueError: If the shape or the range is wrong.
    """
    if not isinstance(counts, np.ndarray):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        raise TypeError(f"counts: the type is {type(counts).__name__}, the limit is a numpy array of int64")
    if counts.dtype != np.int64:
        raise TypeError(f"counts: the type is {counts.dtype}, the limit is int64: count cells, do not weigh them")
    if bins is not None and (counts.ndim != 2 or counts.shape[1] != bins):  # noqa: PLR2004 - rows and bins
        raise ValueError(
            f"counts: the shape is {counts.shape}, and must be (rows, {bins}): one row per series or group, one column "
            "per bin of the mechanism"
        )
    if counts.size and (int(counts.min()) < 0 or int(counts.max()) > LARGEST_COUNT):
        raise ValueError("counts: a count is negative or above 2^62: pass counts of cells")


@dataclass(frozen=True, slots=True)
class LaplaceCount:
    """Discrete Laplace noise on the count of one state, or of one fixed set of states, in the cells of a window.

    The L1 sensitivity is 1: when one cell of one series changes its state, the number of cells in the counted set
    moves by at most one, and the count of a group, being the sum of its members' counts, moves by the same. By the
    ratio bound of `DiscreteLaplace` the probability of any published number changes by at most exp(1 / scale), so
    eps_dp = 1 / scale (theory section 1). The counts of several states together are a histogram: use
    `LaplaceHistogram`, whose sensitivity is 2.

    Attributes:
        scale: Scale of the noise; see `DiscreteLaplace` for its limits.

    Raises:
        TypeError: A value of the wrong type.
        ValueError: A value out of range.
    """

    sensitivity: ClassVar[int] = 1
    name: ClassVar[str] = "discrete-laplace-count"

    scale: Fraction

    def __post_init__(self) -> None:
        DiscreteLaplace(self.scale)

    @classmethod
    def from_sigma(cls, sigma: float) -> LaplaceCount:
        """Make the mechanism for the sigma of a calibration; its scale is `rational_scale(sigma, 1)`."""
        return cls(rational_scale(sigma, cls.sensitivity))

    @property
    def bins(self) -> int:
        """One: a column of counts is a histogram of one bin."""
        return 1

    @property
    def epsilon_dp(self) -> float:
        """Loss per slot of one release, 1 / scale rounded up: what the ledger is charged."""
        return epsilon_dp_of(self.scale, self.sensitivity)

    def randomise(self, counts: NDArray[np.int64], entropy: Entropy | None = None) -> NDArray[np.int64]:
        """Add independent noise to every count.

        Args:
            counts: int64 of any shape, one count per series or group, none negative or above 2^62.
            entropy: For tests only; the operating system's entropy where it is left out.

        Returns:
            int64 of the same shape; values may be negative.

        Raises:
            TypeError: The counts are not int64.
            ValueError: The range is wrong. No count is named in the message.
            EntropyError: The bit source is defective (see `DiscreteLaplace`).
        """
        check_counts(counts)
        noise = DiscreteLaplace(self.scale).draw(counts.shape, entropy)
        noise += counts
        return noise

    @property
    def mean_abs(self) -> float:
        """Mean absolute noise of a count."""
        return DiscreteLaplace(self.scale).mean_abs

    def half_width(self, level: float = 0.95) -> int:
        """Return the smallest h such that the noise lies within -h..h with probability `level`."""
        return DiscreteLaplace(self.scale).half_width(level)
