"""The contraction class of a history: published numbers, ranks, and histories that say too little."""

from __future__ import annotations

import numpy as np
import pytest

from quiltstream.privacy import MarkovChain
from quiltstream.privacy.accounting import endless
from quiltstream.privacy.estimation import EstimationError, TransitionCounts
from quiltstream.privacy.estimation.per_series import contractions, rank_of
from quiltstream.privacy.models import DobrushinBounds

from ..homes import moves, runs_by_home


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


def test_the_class_of_28_of_30_homes_needs_the_printed_noise(history):
    rank = rank_of("0.9", len(history.scores))
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


@pytest.mark.night
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
    ("cover", "series", "said"),
    [
        ("0.9", 8, r"8/9 = 0\.889"),
        ("1", 1000, "1000/1001"),
        ("0.97", 30, "cover: 0.97 of a history of 30 series"),
        ("0", 30, "not above 0"),
        ("most", 30, "'most' is no number"),
        ("1/0", 30, "no number"),
        ("nan", 30, "no number"),
    ],
)
def test_a_cover_unattainable_by_the_history_is_refused(cover, series, said):
    with pytest.raises(EstimationError, match=said):
        rank_of(cover, series)


@pytest.mark.night
def test_a_further_series_is_covered_at_the_rate_of_the_rank():
    # 60 histories of 9 series and one more each; a false alarm has probability below 1e-8
    rng = np.random.default_rng(21)
    covered = 0
    for _ in range(60):
        chains = rng.dirichlet([1.0, 1.0], size=(10, 2))
        tables = np.rint(chains * 400).astype(np.int64) + 1
        history = contractions(counts_of(tables[:9]))
        most = np.sort(history.scores)[rank_of("0.8", len(history.scores)) - 1]
        pooled = tables[:9].sum(axis=0)
        smoothed = tables[9] + 10 * pooled / pooled.sum(axis=1, keepdims=True)
        chain = MarkovChain(smoothed / smoothed.sum(axis=1, keepdims=True))
        covered += sigma(DobrushinBounds.of(chain)) <= most * (1 + 1e-6)
    # mean 48 and standard deviation 3.1 of a binomial law
    assert covered >= 48 - 6 * 3.1
