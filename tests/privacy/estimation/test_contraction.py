"""The contraction class of a history: published numbers, ranks, and histories that say too little."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import beta

from quiltstream.privacy import MarkovChain, MixingBounds
from quiltstream.privacy.accounting import endless
from quiltstream.privacy.estimation import EstimationError, TransitionCounts
from quiltstream.privacy.estimation.hypothesis_tests import outside
from quiltstream.privacy.estimation.per_series import contractions, rank_of
from quiltstream.privacy.models import ChainError, DobrushinBounds

from ..homes import moves, runs_by_home

pytestmark = pytest.mark.assures("theory", "The contraction class of a share of the series")


def counts_of(tables):
    tables = np.asarray(tables, dtype=np.int64)
    names = tuple(f"s{place:03d}" for place in range(len(tables)))
    return TransitionCounts(names, tables, np.maximum(tables.sum(axis=1), tables.sum(axis=2)))


def sigma(belief):
    return 1 / endless(belief, 1.0).density


@pytest.fixture(scope="module")
def homes(shared_data):
    found = {name: moves(runs) for name, runs in runs_by_home(shared_data).items()}
    return [found[name] for name in sorted(found)]


@pytest.fixture(scope="module")
def history(homes):
    return contractions(counts_of(homes[::2]))


def test_sixty_homes_are_not_one_chain(homes):
    pooled = np.sum(homes, axis=0)
    bounds = MixingBounds.of(MarkovChain(pooled / pooled.sum(axis=1, keepdims=True)))
    assert len(outside(bounds, counts_of(homes))) == 53


def test_the_class_of_28_of_30_homes_needs_the_printed_noise(history):
    rank = history.rank("0.9")
    bounds = history.envelope(rank)
    assert rank == 28
    assert sigma(bounds) == pytest.approx(26.77, abs=6e-3)
    assert sigma(history.envelope(30)) == pytest.approx(46.4, abs=0.05)
    # the two homes that are left out lie outside
    assert history.inside(bounds) == 28
    assert history.inside(history.envelope(30)) == 30
    assert all(
        bounds.covers(history.chains[place]) == (place in np.argsort(history.scores)[:28]) for place in range(30)
    )


def test_own_chains_need_the_printed_noise(history):
    exact = np.sort(history.exact_scores())
    assert exact[27] == pytest.approx(17.3, abs=0.05)
    assert exact[29] == pytest.approx(35.8, abs=0.07)


def test_no_home_of_the_feeder_loses_more_by_its_own_chain(homes, history):
    most = sigma(history.envelope(28))
    pooled = np.sum(homes[::2], axis=0)
    for table in homes[1::2]:
        smoothed = table + 10 * pooled / pooled.sum(axis=1, keepdims=True)
        assert sigma(MarkovChain(smoothed / smoothed.sum(axis=1, keepdims=True))) <= most


def test_the_envelope_holds_for_every_series_up_to_its_rank():
    rng = np.random.default_rng(12)
    history = contractions(counts_of(rng.integers(1, 60, size=(9, 3, 3))))
    order = np.argsort(history.scores, kind="stable")
    for rank in range(1, 10):
        bounds = history.envelope(rank, digits=2)
        assert all(bounds.covers(history.chains[place]) for place in order[:rank])
        assert sigma(bounds) >= history.scores[order[rank - 1]] * (1 - 1e-6)
        assert history.inside(bounds) >= rank


@pytest.mark.parametrize(
    ("cover", "series", "rank"),
    [("0.9", 30, 28), ("0.9", 9, 9), ("0.9", 99, 90), (".5", 1, 1), ("30/31", 30, 30), ("0.01", 5, 1), ("0.1", 9, 1)],
)
def test_the_rank_is_rounded_up_and_exact(cover, series, rank):
    assert rank_of(cover, series) == rank
    assert Fraction(rank, series + 1) >= Fraction(cover)


@pytest.mark.parametrize(
    ("cover", "series", "said"),
    [
        ("0.9", 8, r"8/9 = 0\.889"),
        ("1", 1000, "1000/1001"),
        ("0.97", 30, "cover: 0.97 of a history of 30 series"),
        ("0", 30, "not above 0"),
        ("-0.5", 30, "not above 0"),
        ("most", 30, "'most' is no number"),
        ("1/0", 30, "no number"),
        ("nan", 30, "no number"),
    ],
)
def test_a_cover_unattainable_by_the_history_is_refused(cover, series, said):
    with pytest.raises(EstimationError, match=said):
        rank_of(cover, series)


def test_a_further_series_is_covered_at_the_rate_of_the_rank():
    # 60 histories of 9 series and one more each; a false alarm has probability below 1e-8
    rng = np.random.default_rng(21)
    covered = 0
    for _ in range(60):
        chains = rng.dirichlet([1.0, 1.0], size=(10, 2))
        tables = np.rint(chains * 400).astype(np.int64) + 1
        history = contractions(counts_of(tables[:9]))
        most = np.sort(history.scores)[history.rank("0.8") - 1]
        pooled = tables[:9].sum(axis=0)
        smoothed = tables[9] + 10 * pooled / pooled.sum(axis=1, keepdims=True)
        chain = MarkovChain(smoothed / smoothed.sum(axis=1, keepdims=True))
        covered += sigma(DobrushinBounds.of(chain)) <= most * (1 + 1e-6)
    # mean 48 and standard deviation 3.1 of a binomial law
    assert covered >= 48 - 6 * 3.1


def test_the_range_of_the_share_is_that_of_the_order_statistic(history):
    low, high = history.share_range(28)
    assert (low, high) == pytest.approx((beta.ppf(0.05, 28, 3), beta.ppf(0.95, 28, 3)))
    assert (round(low, 2), round(high, 2)) == (0.80, 0.97)


@pytest.mark.parametrize(
    ("tables", "error", "said"),
    [
        (np.zeros((0, 2, 2)), EstimationError, "no series"),
        ([[[5, 5], [0, 0]]], EstimationError, "visited but never left"),
        ([[[5, 0], [0, 5]]], ChainError, "reducible"),
    ],
)
def test_a_history_with_too_few_transitions_is_refused(tables, error, said):
    with pytest.raises(error, match=said):
        contractions(counts_of(tables))


def test_series_that_never_leave_a_state_get_their_rows_from_all():
    history = contractions(counts_of([[[50, 50], [50, 50]], [[90, 0], [0, 0]]]))
    assert history.chains[1].transition[1] == pytest.approx([0.5, 0.5])
    assert np.isfinite(history.scores).all()


@pytest.mark.parametrize("visits", [0, -1, float("nan")])
def test_visits_that_are_added_are_above_0(visits):
    with pytest.raises(EstimationError, match="pseudo_visits"):
        contractions(counts_of([[[5, 5], [5, 5]]]), visits)
