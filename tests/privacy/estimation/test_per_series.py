"""Beliefs for series that differ, and the repair of zeros."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.privacy import FiniteClass, MarkovChain, MixingBounds, mqm_approx
from quiltstream.privacy.estimation.hypothesis_tests import outside
from quiltstream.privacy.estimation.per_series import covering_class, series_class
from quiltstream.privacy.estimation.transition_counts import EstimationError, TransitionCounts
from quiltstream.privacy.models import ChainError
from quiltstream.privacy.models.markov_chain import TAU, smooth_zeros

from ..homes import moves, runs_by_home
from ..strategies import transitions

pytestmark = [
    pytest.mark.assures("theory", "[BHGKM] D.2, transition matrices with zeros"),
    pytest.mark.assures("theory", "A class that covers a share of the series"),
]


def series(tables):
    counts = np.array(tables, dtype=np.int64)
    names = tuple(f"s{number:03}" for number in range(len(counts)))
    return TransitionCounts(names, counts, np.maximum(counts.sum(axis=1), counts.sum(axis=2)))


TABLES = st.lists(
    st.lists(st.lists(st.integers(0, 30), min_size=2, max_size=2), min_size=2, max_size=2), min_size=1, max_size=12
)


@settings(max_examples=150, deadline=None)
@given(tables=TABLES, share=st.floats(0.05, 1.0))
def test_the_class_covers_the_share_with_the_least_reach_of_all_pairs(tables, share):
    counts = series(tables)
    plug_in = []
    for table in np.array(tables, dtype=float):
        left = table.sum(axis=1)
        if (left > 0).all():
            away, back = table[0, 1] / left[0], table[1, 0] / left[1]
            slow = abs(1 - away - back)  # the second eigenvalue; a chain of two states is reversible
            if away > 0 and back > 0 and 1 - slow**2 > 1e-12:
                plug_in.append((min(away, back) / (away + back), 1 - slow**2))
    needed = math.ceil(share * len(tables))
    if len(plug_in) < needed:
        with pytest.raises(EstimationError, match=rf"only {len(plug_in)} visit all 2 states and mix"):
            covering_class(counts, share)
        return
    found = covering_class(counts, share)
    assert len(tables) - len(outside(found, counts)) >= needed

    def reach(pi_min, gap):
        return -math.log(math.tanh(1 / 12) * pi_min) / gap

    best = min(
        reach(pi_min, gap)
        for pi_min, gap in itertools.product([p for p, _ in plug_in], [g for _, g in plug_in])
        if sum(p >= pi_min * (1 - 1e-9) and g >= gap * (1 - 1e-9) for p, g in plug_in) >= needed
    )
    assert reach(found.pi_min, found.gap) == pytest.approx(best, rel=1e-6)


def test_a_smaller_share_needs_less_noise():
    slow, middle, quick = [[99, 1], [1, 99]], [[60, 40], [40, 60]], [[50, 50], [50, 50]]
    counts = series([slow, middle, quick, quick])
    gaps = [covering_class(counts, share).gap for share in (1.0, 0.75, 0.5)]
    assert gaps == pytest.approx([1 - 0.98**2, 0.96, 1.0])
    assert covering_class(counts, 0.75).kind == "multiplicative"


def test_the_target_weighs_rare_states_against_slow_mixing():
    # at a small epsilon the reach is long anyway and the gap decides; at a large one pi_min counts for more
    counts = series([[[500, 500], [500, 500]], [[9000, 1000], [2000, 8000]], [[9990, 10], [9990, 10]]])
    assert covering_class(counts, 2 / 3, epsilon=1e-6) != covering_class(counts, 2 / 3, epsilon=100.0)


def test_sixty_homes_are_not_one_chain(shared_data):
    tables = np.array([moves(runs) for runs in runs_by_home(shared_data).values()])
    counts = series(tables)
    pooled = MixingBounds.of(MarkovChain(tables.sum(axis=0) / tables.sum(axis=(0, 2))[:, np.newaxis]))
    assert len(outside(pooled, counts)) == 53
    most = covering_class(counts, 0.9)
    assert len(outside(most, counts)) <= 6
    assert mqm_approx(most, 1.0).sigma == pytest.approx(258.7, abs=0.1)
    with pytest.raises(EstimationError, match="of 60 series are 60, but only 57 visit all 5 states"):
        covering_class(counts, 1.0)


class TestSeriesClass:
    def test_holds_each_chain_once(self):
        found = series_class(series([[[9, 1], [4, 6]], [[5, 5], [5, 5]], [[9, 1], [4, 6]]]))
        assert found == FiniteClass([MarkovChain([[0.9, 0.1], [0.4, 0.6]]), MarkovChain([[0.5, 0.5], [0.5, 0.5]])])

    def test_smooths_where_asked(self):
        found = series_class(series([[[9, 0], [0, 0]]]), smoothing=0.5, floor=0.01)
        assert found.chains[0].transition.min() >= 0.01

    def test_reports_the_number_of_series_without_a_chain(self):
        with pytest.raises(EstimationError, match="1 of 2 series never leave some of the 2 states"):
            series_class(series([[[9, 0], [0, 0]], [[9, 1], [4, 6]]]))


@settings(max_examples=80, deadline=None)
@given(matrix=transitions(zeros=True), tau=st.floats(1e-8, 0.2))
def test_zeros_are_filled_and_the_rest_keeps_its_proportions(matrix, tau):
    chain = MarkovChain(matrix)
    found = smooth_zeros(chain, tau)
    for before, after in zip(chain.transition, found.transition, strict=True):
        zeros = before == 0
        assert after[zeros] == pytest.approx(tau, rel=1e-12)
        assert after[~zeros] == pytest.approx(before[~zeros] * (1 - tau * zeros.sum()), rel=1e-12)
    assert found.is_irreducible
    if (matrix > 0).all():
        assert found == chain


def test_the_value_of_the_paper_is_the_default_and_the_start_is_kept():
    chain = MarkovChain([[0.5, 0.5, 0], [0, 1, 0], [0.2, 0.3, 0.5]], [0.2, 0.3, 0.5])
    found = smooth_zeros(chain)
    assert TAU == 1e-5
    assert found.transition[1].tolist() == pytest.approx([1e-5, 1 - 2e-5, 1e-5])
    assert found.initial is not None
    assert found.initial.tolist() == [0.2, 0.3, 0.5]


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda: covering_class(series([[[1, 1], [1, 1]]]), 0), EstimationError, r"share: 0 is outside 0 to 1"),
        (lambda: covering_class(series([[[1, 1], [1, 1]]]), math.nan), EstimationError, r"share: nan"),
        (lambda: covering_class(TransitionCounts.empty(2), 0.5), EstimationError, r"there is no series"),
        (lambda: covering_class(series([[[1, 1], [1, 1]]]), 1, epsilon=0), ValueError, r"epsilon is 0\.0"),
        (lambda: series_class(TransitionCounts.empty(2)), EstimationError, r"there is no series"),
        (lambda: smooth_zeros(MarkovChain(np.eye(3)), 0.0), ValueError, r"tau is 0\.0"),
        (lambda: smooth_zeros(MarkovChain(np.eye(3)), 0.5), ChainError, r"tau is 0\.5, and row 0 has 2 zeros"),
    ],
)
def test_bad_input_is_refused_with_argument_value_and_limit(wrong, error, message):
    with pytest.raises(error, match=message):
        wrong()


def test_a_share_is_read_as_it_is_written():
    """0.9 as a float is above nine tenths: its exact value would take all ten series of ten."""
    moving, still = np.array([[800, 200], [200, 800]]), np.array([[2_000, 0], [0, 0]])
    counts = np.array([moving] * 9 + [still], dtype=np.int64)
    visits = counts.sum(axis=2) + np.array([1, 0])
    history = TransitionCounts(tuple("abcdefghij"), counts, visits)
    for share in (0.9, np.float64(0.9), 0.1):
        assert covering_class(history, share).gap == pytest.approx(0.64)
    for share in (0.9000001, 1):
        with pytest.raises(EstimationError, match="of 10 series are 10, but only 9 visit"):
            covering_class(history, share)
