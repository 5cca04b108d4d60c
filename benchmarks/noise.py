"""Draws of exact integer noise per second, beside OpenDP's sampler where it is installed, and numpy's inexact floats.

Run: python benchmarks/noise.py
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from quiltstream.privacy.mechanisms.discrete_laplace import DiscreteLaplace, ZeroSumLaplace, rational_scale
from quiltstream.privacy.mechanisms.histogram import LaplaceHistogram, project_to_total

DRAWS = 3_000_000
ROWS = 200_000


def seconds(work: Callable[[], Any], rounds: int = 5) -> float:
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def row(what: str, number: int, taken: float) -> None:
    print(f"{what:<58} {number / taken / 1e6:>10.3f} {taken / number * 1e9:>12.0f}")


def opendp_draws(scale: Fraction, number: int) -> Callable[[], Any] | None:
    try:
        dp = importlib.import_module("opendp.prelude")
    except ImportError:
        return None
    dp.enable_features("contrib")
    measurement = dp.m.make_laplace(dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64"), float(scale))
    zeros = [0] * number
    return lambda: measurement(zeros)


def main() -> None:
    print(f"{'draws':<58} {'million/s':>10} {'ns each':>12}")
    for sigma in (31.7098, 84.4445, 2033.7827, 2.0**20 * 1.0001):
        law = DiscreteLaplace(rational_scale(sigma, 2))
        row(f"discrete Laplace, sigma {sigma:.6g}, {DRAWS:,} at once", DRAWS, seconds(lambda law=law: law.draw(DRAWS)))
    law = DiscreteLaplace(rational_scale(31.7098, 2))
    row("discrete Laplace, 5 at once", 5, seconds(lambda: law.draw(5), 200))
    row("discrete Laplace, 5,000 at once", 5_000, seconds(lambda: law.draw(5_000), 50))
    theirs = opendp_draws(law.scale, 100_000)
    if theirs is not None:
        row("OpenDP make_laplace on i64, 100,000 at once", 100_000, seconds(theirs, 3))
    generator = np.random.default_rng()
    row("numpy Laplace, floats: fast and not private", DRAWS, seconds(lambda: generator.laplace(0, 63.42, DRAWS)))
    for bins, sigma in ((2, 10.0), (5, 10.6568), (5, 84.4445), (51, 142.13)):
        kept = ZeroSumLaplace(rational_scale(sigma, 2), bins)
        row(
            f"quiltstream, sum zero over {bins} bins, sigma {sigma}",
            DRAWS // bins * bins,
            seconds(lambda kept=kept: kept.draw(DRAWS // kept.bins), 3),
        )
    mechanism = LaplaceHistogram.from_sigma(5, 84.4445)
    counts = np.full((ROWS, 5), 2016, dtype=np.int64)
    total = counts.sum(axis=1)
    noisy = mechanism.randomise(counts)
    row(f"histogram of 5 bins, {ROWS:,} rows (rows)", ROWS, seconds(lambda: mechanism.randomise(counts), 3))
    row("projection of 5 bins (rows)", ROWS, seconds(lambda: project_to_total(noisy, total), 3))


if __name__ == "__main__":
    main()
