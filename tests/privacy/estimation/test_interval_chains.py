"""What is said of every chain between two matrices, held against members: random ones, vertices, and a search."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.privacy.estimation.confidence import IntervalChain

from ...depth import examples
from .. import reference

SEEDS = st.integers(0, 2**32 - 1)


def around(rng, states, width, zeros=0.0):
    """An interval chain around a random matrix: ends off by up to the width, relatively."""
    matrix = rng.dirichlet(np.full(states, 0.7), size=states)
    matrix[rng.random((states, states)) < zeros] = 0
    matrix[np.arange(states), (np.arange(states) + 1) % states] += 1e-3
    matrix /= matrix.sum(axis=1, keepdims=True)
    low = matrix * (1 - width * rng.random(matrix.shape))
    high = np.minimum(
        matrix * (1 + width * rng.random(matrix.shape)) + width / 50 * (rng.random(matrix.shape) < 0.2), 1
    )
    return IntervalChain(low, high), matrix


def vertices(both, row):
    """Rows at the corners: the free mass given out in some order."""
    found = set()
    for order in itertools.permutations(range(both.states)):
        entries, free = both.lower[row].copy(), 1 - both.lower[row].sum()
        for state in order:
            more = min(free, both.upper[row, state] - entries[state])
            entries[state] += more
            free -= more
        found.add(tuple(entries))
    return [np.array(entries) for entries in found]


def random_member(rng, both):
    """A mixture of corners in every row, often a corner itself."""
    rows = []
    for state in range(both.states):
        corners = []
        for _ in range(3):
            order = rng.permutation(both.states)
            entries, free = both.lower[state].copy(), 1 - both.lower[state].sum()
            for other in order:
                more = min(free, both.upper[state, other] - entries[other])
                entries[other] += more
                free -= more
            corners.append(entries)
        rows.append(rng.dirichlet([0.3] * 3) @ np.array(corners))
    return np.array(rows)


def gap_of(matrix):
    """1 - the square of the norm of P on mean-zero functions of L2(pi), from the definition."""
    weights = reference.stationary(matrix)
    reversal = matrix.T * weights[np.newaxis, :] / weights[:, np.newaxis]
    return 1 - np.sort(np.linalg.eigvals(matrix @ reversal).real)[-2]


@settings(max_examples=examples(120), deadline=None)
@given(seed=SEEDS, states=st.integers(2, 6), width=st.sampled_from([0.01, 0.1, 0.5]), zeros=st.sampled_from([0.0, 0.4]))
def test_no_member_leaves_the_bounds(seed, states, width, zeros):
    rng = np.random.default_rng(seed)
    both, middle = around(rng, states, width, zeros)
    low, high = both.stationary_bounds()
    gap = both.gap_bound((low, high))
    assert gap == both.gap_bound()
    for matrix in [middle, *(random_member(rng, both) for _ in range(20))]:
        weights = reference.stationary(matrix)
        assert (weights >= low - 1e-10).all()
        assert (weights <= high + 1e-10).all()
        if weights.min() > 1e-9:
            assert gap_of(matrix) >= gap - 1e-9


@settings(max_examples=examples(40), deadline=None)
@given(seed=SEEDS, states=st.integers(2, 3), width=st.sampled_from([0.05, 0.3]))
def test_the_stationary_bounds_are_reached_at_corners(seed, states, width):
    rng = np.random.default_rng(seed)
    both, _ = around(rng, states, width)
    low, high = both.stationary_bounds()
    corners = [vertices(both, row) for row in range(states)]
    every = np.array([reference.stationary(np.array(rows)) for rows in itertools.product(*corners)])
    assert low == pytest.approx(every.min(axis=0), abs=1e-9)
    # the upper ends may be tightened by the lower ends of the other states, never below what is reached
    assert (high >= every.max(axis=0) - 1e-9).all()
    assert (high <= every.max(axis=0) + 1e-9).all()


@settings(max_examples=examples(15), deadline=None)
@given(seed=SEEDS, states=st.integers(2, 5), width=st.sampled_from([0.05, 0.3]))
def test_a_search_for_the_slowest_member_stays_above_the_gap_bound(seed, states, width):
    rng = np.random.default_rng(seed)
    both, matrix = around(rng, states, width)
    gap, (low, _) = both.gap_bound(), both.stationary_bounds()
    best, rarest = gap_of(matrix), reference.stationary(matrix).min()
    for _ in range(150):
        other = matrix.copy()
        row = rng.integers(states)
        other[row] = random_member(rng, both)[row]
        found = gap_of(other)
        if found < best:
            best, matrix = found, other
        rarest = min(rarest, reference.stationary(other).min())
    assert best >= gap - 1e-9
    assert rarest >= low.min() - 1e-10


def test_the_bound_is_not_far_from_the_truth_where_the_ends_are_near():
    # two states, ends within 1 %: the slowest member's gap, found on a grid of corners, is met within 5 %
    both = IntervalChain(np.array([[0.891, 0.099], [0.396, 0.594]]), np.array([[0.909, 0.101], [0.404, 0.606]]))
    corners = [vertices(both, row) for row in range(2)]
    worst = min(gap_of(np.array(rows)) for rows in itertools.product(*corners))
    assert 0.95 * worst <= both.gap_bound() <= worst


def test_a_state_that_some_member_can_do_without_has_no_lower_bound():
    loose = IntervalChain(np.array([[0.8, 0.0], [0.3, 0.5]]), np.array([[1.0, 0.2], [0.5, 0.7]]))
    low, high = loose.stationary_bounds()
    assert low.tolist() == [pytest.approx(0.6), 0.0]
    assert high.tolist() == [pytest.approx(1.0), pytest.approx(0.4)]
    unknown = IntervalChain(np.zeros((3, 3)), np.ones((3, 3)))
    assert unknown.stationary_bounds()[0].tolist() == [0, 0, 0]
    assert unknown.gap_bound() == 0
    apart = IntervalChain(np.eye(2), np.eye(2))
    assert apart.stationary_bounds()[0].tolist() == [0, 0]
    assert apart.stationary_bounds()[1].tolist() == [1, 1]
    assert apart.gap_bound() == 0
