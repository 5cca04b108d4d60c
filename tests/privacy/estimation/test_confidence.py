"""The confidence class: its ends from the formula, its coverage by simulation, its bounds by members and a search."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from quiltstream.privacy import MarkovChain, mqm_approx
from quiltstream.privacy.estimation.confidence import confidence_class, mixture_ends
from quiltstream.privacy.estimation.transition_counts import EstimationError

from ...depth import examples
from .. import reference
from ..homes import moves, runs_by_home

FALSE_ALARM = 1e-9
COUNTS = st.integers(0, 10**7)


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


def contains(known, chain):
    return bool(((known.lower <= chain.transition) & (chain.transition <= known.upper)).all())


def gap_of(matrix):
    """1 - the square of the norm of P on mean-zero functions of L2(pi), from the definition."""
    weights = reference.stationary(matrix)
    reversal = matrix.T * weights[np.newaxis, :] / weights[:, np.newaxis]
    return 1 - np.sort(np.linalg.eigvals(matrix @ reversal).real)[-2]


def simulate(rng, matrix, repeats, length):
    """Paths of a chain started in state 0, shape (repeats, length)."""
    steps = np.cumsum(matrix, axis=1)
    state = np.zeros(repeats, dtype=np.int64)
    found = np.empty((repeats, length), dtype=np.int64)
    for slot in range(length):
        found[:, slot] = state
        state = (rng.random(repeats)[:, np.newaxis] > steps[state][:, :-1]).sum(axis=1)
    return found


@pytest.mark.night
@pytest.mark.parametrize("matrix", [[[0.9, 0.1], [0.4, 0.6]], [[0.5, 0.5, 0], [0.01, 0.9, 0.09], [0.3, 0.3, 0.4]]])
def test_the_level_holds_under_optional_stopping(matrix):
    """Every path is looked at 25 times, and counted as a failure if the class misses the chain at any of them.

    The failures of a right class are at most binomial with probability 0.3, so the false-alarm rate is 1e-9 (the seed
    is fixed).
    """
    matrix, level, repeats = np.array(matrix), 0.7, 1000
    paths = simulate(np.random.default_rng(11), matrix, repeats, 1500)
    k, chain = len(matrix), MarkovChain(matrix)
    moves = paths[:, :-1] * k + paths[:, 1:] + k * k * np.arange(repeats)[:, np.newaxis]
    looks = np.unique(np.geomspace(2, 1500, 25).astype(int))
    tables = np.array(
        [np.bincount(moves[:, : look - 1].ravel(), minlength=repeats * k * k).reshape(-1, k, k) for look in looks]
    )
    cells = k if k == 2 else k * k
    low, high = mixture_ends(tables, tables.sum(axis=-1, keepdims=True) - tables, math.log(cells / (1 - level)))
    missed = np.any((matrix < low) | (matrix > high), axis=(-2, -1))
    # the class is these intervals, and the tightening by the sums of the rows takes no true chain away
    some = np.array([[contains(confidence_class(table, level), chain) for table in row[:40]] for row in tables[::6]])
    assert (some == ~missed[::6, :40]).all()
    failed = missed.any(axis=0)
    assert failed.sum() <= stats.binom.isf(FALSE_ALARM, repeats, 1 - level)
    assert failed.sum() > 0  # a class that is never wrong at this level would be far too wide


@settings(max_examples=examples(40), deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    states=st.integers(2, 5),
    length=st.sampled_from([10**4, 10**6]),
    level=st.sampled_from([0.5, 0.95, 0.999]),
)
def test_the_bounds_hold_for_every_member(seed, states, length, level):
    rng = np.random.default_rng(seed)
    matrix = rng.dirichlet(np.ones(states), size=states)
    counts = np.array([rng.multinomial(length, row) for row in matrix])
    known = confidence_class(counts, level)
    plug_in = MarkovChain(counts / counts.sum(axis=1, keepdims=True))
    assert contains(known, plug_in)
    assert (known.lower < known.upper).all()
    try:
        bounds = known.bounds()
    except EstimationError:
        return  # says that nothing holds for all
    assert bounds.pi_min <= plug_in.pi_min
    assert bounds.gap <= plug_in.gap
    worst = plug_in.transition
    for _ in range(30):
        for member in (random_member(rng, known), np.array(worst)):
            one = MarkovChain(member / member.sum(axis=1, keepdims=True))
            # a search: rows of the slower chain are kept
            if gap_of(one.transition) <= gap_of(worst):
                worst = one.transition
            assert one.pi_min >= bounds.pi_min - 1e-12
            assert gap_of(one.transition) >= bounds.gap - 1e-9
            row = int(rng.integers(states))
            mixed = np.array(worst)
            mixed[row] = member[row] / member[row].sum()
            assert gap_of(mixed) >= bounds.gap - 1e-9


def test_sixty_pooled_homes_have_the_stated_confidence_bounds(shared_data):
    counts = sum(moves(runs) for runs in runs_by_home(shared_data).values())
    bounds = confidence_class(np.asarray(counts), 0.95).bounds()
    assert bounds.pi_min == pytest.approx(0.02556, abs=1e-4)
    assert bounds.gap == pytest.approx(0.3176, abs=1e-3)
    plug_in = MarkovChain(counts / np.sum(counts, axis=1, keepdims=True))
    known, guessed = mqm_approx(bounds, 1.0).sigma, mqm_approx(plug_in, 1.0).sigma
    assert guessed == pytest.approx(84.4445, abs=1e-3)
    assert known == pytest.approx(106.5, abs=0.1)
