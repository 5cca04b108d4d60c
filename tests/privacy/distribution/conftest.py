"""The statistical tests' one place for their sample size, their false-alarm rate, and the tests of fit.

Every check here turns a right sampler red with probability at most FALSE_ALARM, and none is ever repeated. They use the
operating system's entropy, so there is no seed to print.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

FALSE_ALARM = 1e-9
SAMPLES = 1_000_000
LEAST_EXPECTED = 1000.0
"""Cells of a chi-square test are merged until each expects this many, so that its tail is right at FALSE_ALARM."""


@dataclass(frozen=True)
class Checks:
    """Tests of fit, each with false-alarm probability at most `false_alarm`."""

    false_alarm: float = FALSE_ALARM
    samples: int = SAMPLES

    def chi_square(self, observed: NDArray[Any], expected: NDArray[np.float64]) -> None:
        assert (expected >= LEAST_EXPECTED).all()
        wanted = expected * (observed.sum() / expected.sum())
        statistic = float(((observed - wanted) ** 2 / wanted).sum())
        assert float(stats.chi2.sf(statistic, observed.size - 1)) > self.false_alarm

    def independence(self, first: NDArray[Any], second: NDArray[Any]) -> None:
        """Two sequences of classes 0, 1, ... are independent (chi-square of their contingency table)."""
        rows, columns = int(first.max()) + 1, int(second.max()) + 1
        table = np.bincount(first * columns + second, minlength=rows * columns).reshape(rows, columns)
        assert table.min() >= LEAST_EXPECTED / 2
        wanted = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
        statistic = float(((table - wanted) ** 2 / wanted).sum())
        assert float(stats.chi2.sf(statistic, (rows - 1) * (columns - 1))) > self.false_alarm

    def kolmogorov(self, drawn: NDArray[np.int64], cdf: Callable[[NDArray[np.int64]], NDArray[np.float64]]) -> None:
        """The Dvoretzky-Kiefer-Wolfowitz bound with Massart's constant, which holds for every law and sample size."""
        values, counts = np.unique(drawn, return_counts=True)
        distance = float(np.abs(np.cumsum(counts) / drawn.size - cdf(values)).max())
        assert distance <= math.sqrt(math.log(2 / self.false_alarm) / (2 * drawn.size))

    def same_law(self, first: NDArray[np.int64], second: NDArray[np.int64]) -> None:
        """The two-sample form: each sample may stray by the bound at half the false-alarm rate."""
        values = np.unique(np.concatenate([first, second]))
        distance = float(
            np.abs(
                np.searchsorted(np.sort(first), values, side="right") / first.size
                - np.searchsorted(np.sort(second), values, side="right") / second.size
            ).max()
        )
        allowance = sum(math.sqrt(math.log(4 / self.false_alarm) / (2 * sample.size)) for sample in (first, second))
        assert distance <= allowance

    def frequency(self, events: NDArray[np.bool_], probability: float) -> None:
        """The number of events fits the probability (exact binomial test)."""
        p_value = stats.binomtest(int(events.sum()), events.size, probability).pvalue
        assert float(p_value) > self.false_alarm


@pytest.fixture(scope="session")
def checks() -> Checks:
    return Checks()
