"""Noisy transition counts: their sensitivity from the definition, their noise, and what is made of them."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.privacy import Ledger, MarkovChain
from quiltstream.privacy.estimation.confidence import SENSITIVITY, confidence_class, noise_half_width, noisy_class
from quiltstream.privacy.papers.audit import AuditRelease, exact_loss

from ...depth import examples

FALSE_ALARM = 1e-9


def moves(path: tuple[int | None, ...]) -> Counter[tuple[int | None, int | None]]:
    """Transitions between adjacent present cells; None is a missing cell."""
    return Counter(pair for pair in itertools.pairwise(path) if None not in pair)


def test_one_changed_cell_moves_the_table_by_at_most_four():
    largest = 0
    for path in itertools.product((0, 1, 2, None), repeat=4):
        for slot, state in itertools.product(range(4), range(3)):
            if path[slot] is None:
                continue  # which cells are present does not change
            other = (*path[:slot], state, *path[slot + 1 :])
            one, two = moves(path), moves(other)
            largest = max(largest, sum(abs(one[pair] - two[pair]) for pair in one | two))
    assert largest == SENSITIVITY


def with_missing(path: tuple[int | None, ...], state: int) -> Counter[tuple[int, int]]:
    """Transitions of all slots, where a missing cell is in a state of its own."""
    return Counter(itertools.pairwise(state if cell is None else cell for cell in path))


def trimmed(path: tuple[int | None, ...]) -> tuple[int | None, ...]:
    there = [slot for slot, cell in enumerate(path) if cell is not None]
    return path[there[0] : there[-1] + 1] if there else ()


def test_the_sensitivity_with_a_missing_state_requires_the_whole_window():
    """There a cell may come or go; from the first present one to the last, one cell moves the table without limit."""
    fixed, floating = 0, 0
    for path in itertools.product((0, 1, None), repeat=6):
        for slot, cell in itertools.product(range(6), (0, 1, None)):
            other = (*path[:slot], cell, *path[slot + 1 :])
            for whole in (True, False):
                one, two = (with_missing(cells if whole else trimmed(cells), 2) for cells in (path, other))
                moved = sum(abs(one[pair] - two[pair]) for pair in one | two)
                fixed, floating = (max(fixed, moved), floating) if whole else (fixed, max(floating, moved))
    assert fixed == SENSITIVITY
    assert floating > SENSITIVITY


@pytest.mark.night
@settings(max_examples=examples(40), deadline=None)
@given(
    first=st.floats(0.05, 0.95), second=st.floats(0.05, 0.95), epsilon_dp=st.floats(0.05, 3), length=st.integers(2, 5)
)
def test_the_charge_covers_the_true_loss_of_the_table(first, second, epsilon_dp, length):
    chain = MarkovChain([[first, 1 - first], [1 - second, second]])
    audited = AuditRelease(0, length, SENSITIVITY / epsilon_dp, "transitions")
    assert exact_loss(chain, length, [audited]).loss <= Ledger(chain).loss_of([(0, length, epsilon_dp)]) + 1e-9


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 2**32 - 1), states=st.integers(2, 5), level=st.sampled_from([0.5, 0.9, 0.99]))
def test_the_class_holds_the_class_of_the_exact_counts_when_the_noise_is_as_usual(seed, states, level):
    rng = np.random.default_rng(seed)
    exact = rng.integers(0, 100_000, (states, states)) * (rng.random((states, states)) < 0.8)
    share = (1 - level) / 2 / (2 * states * states)
    own = noise_half_width(Fraction(20), 1, share)
    noise = rng.integers(-own, own + 1, (states, states))
    rest = np.abs(noise.sum(axis=1, keepdims=True) - noise)
    noise[rest.max(axis=1) > noise_half_width(Fraction(20), states - 1, share)] = 0
    known = noisy_class(exact + noise, Fraction(20), level)
    alone = confidence_class(exact, (1 + level) / 2)
    assert (known.lower <= alone.lower + 1e-12).all()
    assert (known.upper >= alone.upper - 1e-12).all()
    assert known.level == level


@pytest.mark.parametrize("terms", [1, 2, 5, 50])
@pytest.mark.parametrize("error", [0.1, 1e-3, 1e-6])
def test_sums_of_noise_exceed_their_half_width_at_the_stated_rate(terms, error):
    scale = Fraction(7, 2)
    values = np.arange(-400, 401)
    single = math.tanh(0.5 / float(scale)) * np.exp(-np.abs(values) / float(scale))
    law = single
    for _ in range(terms - 1):
        law = np.convolve(law, single, mode="same")
    width = noise_half_width(scale, terms, error)
    assert law[np.abs(values) > width].sum() <= error
    # not far too wide either: Chernoff's bound loses a factor, not an order
    assert law[np.abs(values) > width / 2].sum() > error
