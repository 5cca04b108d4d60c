from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiltstream.privacy.mechanisms.histogram import project_to_total

rows = st.integers(1, 8).flatmap(
    lambda bins: st.lists(
        st.tuples(st.lists(st.integers(-5000, 5000), min_size=bins, max_size=bins), st.integers(0, 20_000)),
        min_size=1,
        max_size=6,
    )
)


def by_trying_every_support(noisy: list[int], total: int) -> list[Fraction]:
    """The least-squares solution in exact arithmetic: the best feasible one over all numbers of positive entries."""
    order = sorted(range(len(noisy)), key=lambda index: -noisy[index])
    best: tuple[Fraction, list[Fraction]] | None = None
    for kept in range(1, len(noisy) + 1):
        support = order[:kept]
        shift = Fraction(sum(noisy[index] for index in support) - total, kept)
        solution = [Fraction(0)] * len(noisy)
        for index in support:
            solution[index] = noisy[index] - shift
        if min(solution) >= 0:
            distance = sum(((ours - theirs) ** 2 for ours, theirs in zip(solution, noisy, strict=True)), Fraction(0))
            if best is None or distance < best[0]:
                best = distance, solution
    assert best is not None
    return best[1]


@given(cases=rows)
def test_agrees_with_exact_arithmetic(cases: list[tuple[list[int], int]]) -> None:
    projected = project_to_total(np.array([noisy for noisy, _ in cases]), np.array([total for _, total in cases]))
    for ours, (noisy, total) in zip(projected, cases, strict=True):
        exact = [float(value) for value in by_trying_every_support(noisy, total)]
        assert ours == pytest.approx(exact, abs=1e-8)


@given(cases=rows)
def test_is_feasible_keeps_the_order_and_changes_nothing_twice(cases: list[tuple[list[int], int]]) -> None:
    noisy = np.array([row for row, _ in cases])
    total = np.array([row_total for _, row_total in cases])
    projected = project_to_total(noisy, total)
    assert (projected >= 0).all()
    assert projected.sum(axis=1) == pytest.approx(total, abs=1e-8)
    assert project_to_total(projected, total) == pytest.approx(projected, abs=1e-8)
    for ours, row in zip(projected, noisy, strict=True):
        assert (np.diff(ours[np.argsort(row, kind="stable")]) >= 0).all()


def test_large_counts_keep_their_differences() -> None:
    base = 2**52
    assert project_to_total(np.array([[base + 3, base + 1]]), np.array([10])).tolist() == [[6.0, 4.0]]
