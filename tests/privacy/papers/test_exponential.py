"""The exponential mechanism: its law, and its promise from the law."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from quiltstream.privacy.papers.exponential import ExponentialTopK

from ...depth import examples
from ..mechanisms.test_sampling import exp_minus


def ordered_law(counts: list[int], chosen: tuple[int, ...], rate: Fraction) -> Fraction:
    """The probability of drawing these bins in this order, from the definition."""
    left, chance = list(range(len(counts))), Fraction(1)
    for pick in chosen:
        if pick not in left:
            return Fraction(0)
        top = max(counts[other] for other in left)
        weights = {other: exp_minus(rate * (top - counts[other])) for other in left}
        chance *= weights[pick] / sum(weights.values())
        left.remove(pick)
    return chance


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_one_changed_cell_changes_no_selections_probability_by_more_than_epsilon(data: st.DataObject) -> None:
    bins = data.draw(st.integers(2, 4))
    choose = data.draw(st.integers(1, bins))
    epsilon = data.draw(st.fractions(Fraction(1, 10), 4, max_denominator=20))
    before = data.draw(st.lists(st.integers(0, 6), min_size=bins, max_size=bins).filter(any))
    source = data.draw(st.sampled_from([bin_ for bin_ in range(bins) if before[bin_]]))
    target = data.draw(st.integers(0, bins - 1))
    after = before.copy()
    after[source] -= 1
    after[target] += 1
    for chosen in itertools.permutations(range(bins), choose):
        laws = [ordered_law(counts, chosen, epsilon / (2 * choose)) for counts in (before, after)]
        assert abs(math.log(laws[0] / laws[1])) <= float(epsilon) + 1e-12


@pytest.mark.parametrize(
    "epsilon", [Fraction(1, 2**40), Fraction(1), Fraction(10), Fraction(2**40), Fraction(3, 2**40)]
)
def test_count_differences_of_any_size_cost_few_bits_and_never_overflow(epsilon: Fraction) -> None:
    counts = np.array([[0, 2**62, 2**62 - 1, 2**61, 5]] * 3)
    calls: list[int] = []
    generator = Random(7)

    def counted(size: int) -> bytes:
        calls.append(size)
        return generator.randbytes(size)

    selected = ExponentialTopK(5, 5, epsilon).select(counts, counted)
    assert np.array_equal(np.sort(selected, axis=1), np.tile(np.arange(5), (3, 1)))
    assert set(selected[:, :2].ravel().tolist()) == {1, 2}
    assert len(calls) < 1000


@pytest.mark.parametrize(("choose", "epsilon"), [(1, Fraction(1)), (2, Fraction(3)), (3, Fraction(1, 7))])
def test_every_row_has_its_own_law(choose: int, epsilon: Fraction) -> None:
    """Exact binomial tests of each selection at 1e-9 / 12, so the false-alarm rate is at most 1e-9."""
    rows = np.array([[0, 3, 1], [4, 0, 0]])
    mechanism = ExponentialTopK(3, choose, epsilon)
    selected = mechanism.select(np.repeat(rows, 20_000, axis=0)).reshape(2, -1, choose)
    for row, picks in zip(rows.tolist(), selected, strict=True):
        for chosen in itertools.permutations(range(3), choose):
            chance = float(ordered_law(row, chosen, epsilon / (2 * choose)))
            seen = int((picks == chosen).all(axis=1).sum())
            assert stats.binomtest(seen, len(picks), chance).pvalue > 1e-9 / 12
