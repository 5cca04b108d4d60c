"""Randomised response: each cell's state is answered truly or by another state, with rational probabilities.

>>> from fractions import Fraction
>>> response = RandomisedResponse(states=3, odds=Fraction(3))
>>> [str(value) for value in response.matrix[0]]
['3/5', '1/5', '1/5']
>>> round(response.epsilon_dp, 6)  # log 3
1.098612
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..validation import as_array, float_above, positive, whole
from .histogram import checked_counts
from .sampling import LARGEST_DENOMINATOR, Entropy, SystemEntropy, uniform_below

_DIGITS = Context(prec=60)
_GRID = 2**30
_LANES = 2**20


@dataclass(frozen=True, slots=True)
class RandomisedResponse:
    """k-ary randomised response (theory section 5).

    A cell in state x is answered by x with probability odds / (odds + k - 1) and by every other state with probability
    1 / (odds + k - 1), independently of all else. Two states give any answer with probabilities whose ratio is at most
    odds, so eps_dp = log(odds) for every slot that is answered: a release of a window of answers, or of anything
    computed from them, is charged like a histogram of that eps_dp. With odds a fraction m / n the probabilities are
    rational, and an answer is one exact uniform integer below m + n (k - 1).

    Attributes:
        states: Number of states k, at least 2.
        odds: How much likelier the true state is than any other one, above 1; m + n (k - 1) is at most 2^46.
    """

    name: ClassVar[str] = "randomised-response"

    states: int
    odds: Fraction

    def __post_init__(self) -> None:
        whole("states", self.states, "give the number of states", least=2, most=LARGEST_DENOMINATOR)
        if not isinstance(self.odds, Fraction):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            raise TypeError(f"odds: {self.odds!r} is not a Fraction: use from_epsilon, or give Fraction(3)")
        if self.odds <= 1:
            raise ValueError(f"odds is {self.odds}, but must be above 1: equal odds say nothing about the state")
        if self._total > LARGEST_DENOMINATOR:
            raise ValueError(
                f"odds: the probabilities have a denominator of {self._total.bit_length()} bits, the limit of exact "
                "draws is 2^46: give a rounder fraction, or use from_epsilon"
            )

    @classmethod
    def from_epsilon(cls, states: int, epsilon: float) -> RandomisedResponse:
        """Make the response of the largest odds on a grid of 2^-30 that lose at most epsilon per slot.

        Args:
            states: Number of states k, at least 2.
            epsilon: Loss per slot, for example 1 / sigma of a calibration.

        Raises:
            ValueError: A value out of range, or an epsilon too small or too large for exact draws.
        """
        k = whole("states", states, "give the number of states", least=2)
        target = positive("epsilon", epsilon, "give the loss per slot you accept")
        largest = LARGEST_DENOMINATOR - (k - 1)
        if target > math.log(max(largest, 2)) - 1:
            raise ValueError(
                f"epsilon is {target!r}, but exact draws with {k} states allow at most "
                f"{math.log(max(largest, 2)) - 1:.4g}: give a smaller one, such odds are hardly private"
            )
        with localcontext(_DIGITS):
            # 60 digits, cut by one part in 10^50: never above exp(epsilon)
            odds = Fraction(Decimal(target).exp()) * (1 - Fraction(1, 10**50))
        grid = _GRID
        while math.floor(odds * grid) + grid * (k - 1) > LARGEST_DENOMINATOR:
            grid //= 2
        rounded = Fraction(math.floor(odds * grid), grid) if grid else Fraction(0)
        if rounded <= 1:
            raise ValueError(
                f"epsilon is {target!r}, but with {k} states its odds cannot be told from 1 on the grid of exact "
                "draws: give a larger epsilon, or merge states"
            )
        return cls(k, rounded)

    @property
    def epsilon_dp(self) -> float:
        """Loss per slot, log(odds) rounded up: what the ledger is charged."""
        with localcontext(_DIGITS):
            value = (Decimal(self.odds.numerator) / Decimal(self.odds.denominator)).ln()
        return float_above(Fraction(value) * (1 + Fraction(1, 10**25)))

    @property
    def matrix(self) -> tuple[tuple[Fraction, ...], ...]:
        """P(answer = column | state = row), shape (k, k); rows sum to exactly 1."""
        true = Fraction(self.odds.numerator, self._total)
        other = Fraction(self.odds.denominator, self._total)
        return tuple(
            tuple(true if row == column else other for column in range(self.states)) for row in range(self.states)
        )

    @property
    def _total(self) -> int:
        return self.odds.numerator + self.odds.denominator * (self.states - 1)

    def respond(self, states: NDArray[np.int64], entropy: Entropy | None = None) -> NDArray[np.int64]:
        """Answer every cell, each by an independent exact draw.

        Args:
            states: int64 of any shape, each 0 to k - 1; cells without a reading are left out by the caller.
            entropy: For tests only; the operating system's entropy where it is left out.

        Returns:
            int64 of the same shape.

        Raises:
            ValueError: A state is out of range. No state is named in the message.
        """
        states = as_array("states", states)
        if states.dtype != np.int64:
            raise TypeError(f"states: the type is {states.dtype}, the limit is int64: pass state numbers")
        # the values are secret and stay out of the message
        if states.size and (int(states.min()) < 0 or int(states.max()) >= self.states):
            raise ValueError(f"states: a state is outside 0 to {self.states - 1}: pass the states of the mechanism")
        source = SystemEntropy() if entropy is None else entropy
        answers = states.copy()
        flat = answers.reshape(-1)
        for start in range(0, flat.size, _LANES):
            part = flat[start : start + _LANES]
            # below m: the truth; each n numbers behind it: the next state round the circle
            drawn = uniform_below(self._total, part.size, source) - self.odds.numerator
            steps = np.where(drawn < 0, 0, drawn // self.odds.denominator + 1)
            flat[start : start + _LANES] = (part + steps) % self.states
        return answers

    def estimate(self, answered: ArrayLike) -> NDArray[np.float64]:
        """The unbiased estimate of the true histogram: the inverse of the matrix applied to the answers' histogram.

        With N answers, of which a_x are x: ((odds + k - 1) a_x - N) / (odds - 1). Entries may be negative or above N;
        each row sums to N.

        Args:
            answered: whole numbers, shape (n, k), an array or a list: histograms of answers.

        Returns:
            float64, shape (n, k).
        """
        answered = checked_counts(answered, self.states)
        spread, total = float(self.odds - 1), answered.sum(axis=1, keepdims=True, dtype=np.float64)
        return (float(self.odds + self.states - 1) * answered - total) / spread

    def variance(self, counts: ArrayLike) -> NDArray[np.float64]:
        """Variance of `estimate` in each bin for the given true histogram, float64, shape (n, k).

        The answers of the c_x cells in x are x with probability t, those of the N - c_x others with probability o:
        (c_x t (1 - t) + (N - c_x) o (1 - o)) / (t - o)^2. For planning with histograms that are not secret.
        """
        counts = checked_counts(counts, self.states)
        true, other = float(self.matrix[0][0]), float(self.matrix[0][1])
        others = counts.sum(axis=1, keepdims=True, dtype=np.float64) - counts
        return (counts * true * (1 - true) + others * other * (1 - other)) / (true - other) ** 2
