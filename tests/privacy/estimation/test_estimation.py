from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiltstream.privacy.estimation.transition_counts import (
    EstimationError,
    TransitionCounts,
    chain_from_counts,
    diagnose,
    outside,
)
from quiltstream.privacy.models.classes import MixingBounds
from quiltstream.privacy.quilts.calibration import mqm_approx

STATES = 3

histories = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=2), st.lists(st.integers(0, STATES - 1), min_size=1, max_size=12), max_size=5
)


def count(histories: dict[str, list[int]], states: int = STATES) -> TransitionCounts:
    """Counts of whole histories without gaps, one plain loop."""
    counts = np.zeros((len(histories), states, states), dtype=np.int64)
    visits = np.zeros((len(histories), states), dtype=np.int64)
    for row, path in enumerate(histories.values()):
        for state in path:
            visits[row, state] += 1
        for before, after in pairwise(path):
            counts[row, before, after] += 1
    return TransitionCounts(tuple(histories), counts, visits)


class TestTransitionCounts:
    @pytest.mark.night
    @given(first=histories, second=histories, third=histories)
    def test_add_up_in_any_order(
        self, first: dict[str, list[int]], second: dict[str, list[int]], third: dict[str, list[int]]
    ) -> None:
        a, b, c = count(first), count(second), count(third)
        merged = TransitionCounts.merged
        assert merged([a, b]) == merged([b, a])
        assert merged([merged([a, b]), c]) == merged([a, merged([b, c])]) == merged([c, a, b])
        assert merged([a, TransitionCounts.empty(STATES)]) == a


class TestChainFromCounts:
    @pytest.mark.parametrize(
        ("counts", "message"),
        [
            ([[5, 1, 0], [1, 1, 0], [0, 0, 0]], r"3 states lead \(never visited: 2\): merge these bins"),
            ([[5, 1, 1], [1, 1, 0], [0, 0, 0]], r"\(visited but never left: 2\): merge these bins"),
            ([[0, 0, 0], [0, 3, 1], [0, 0, 0]], r"\(never visited: 0; visited but never left: 2\)"),
        ],
    )
    def test_an_unknown_row_is_an_error_that_names_the_states(self, counts: list[list[int]], message: str) -> None:
        with pytest.raises(EstimationError, match=message):
            chain_from_counts(np.array(counts))


def london_counts(watts_to_state: pl.Expr, states: int, file: Path) -> TransitionCounts:
    """Counts of adjacent half hours per home, by polars alone."""
    frame = (
        pl.read_parquet(file)
        .with_columns(
            pl.col("household").cast(pl.String),
            watts_to_state.cast(pl.Int64).alias("state"),
            (pl.col("ts").dt.epoch("s") // 1800).alias("slot"),
        )
        .sort("household", "slot")
        .with_columns(
            pl.col("state").shift(-1).over("household").alias("next"),
            (pl.col("slot").shift(-1).over("household") == pl.col("slot") + 1).alias("adjacent"),
        )
    )
    names = frame["household"].unique().sort().to_list()
    row = {name: index for index, name in enumerate(names)}
    counts = np.zeros((len(names), states, states), dtype=np.int64)
    visits = np.zeros((len(names), states), dtype=np.int64)
    for name, before, after, times in (
        frame.filter(pl.col("adjacent")).group_by("household", "state", "next").len().iter_rows()
    ):
        counts[row[name], before, after] = times
    for name, state, times in frame.group_by("household", "state").len().iter_rows():
        visits[row[name], state] = times
    return TransitionCounts(tuple(names), counts, visits)


@pytest.fixture(scope="module")
def london(shared_data: Path) -> TransitionCounts:
    """60 homes, five bands; a mean power on an edge belongs to the band above it."""
    watts = pl.col("kwh").cast(pl.Float64) * 2000
    state = sum((watts >= edge).cast(pl.Int64) for edge in (250, 500, 1000, 2000))
    assert isinstance(state, pl.Expr)
    return london_counts(state, 5, shared_data / "lcl2013" / "lcl2013_halfhourly_60hh.parquet")


def test_the_pooled_london_homes_need_the_known_noise(london: TransitionCounts) -> None:
    assert len(london.series) == 60
    assert london.pooled().sum() == 1_018_230
    assert london.pooled_visits().sum() == 1_018_416
    bounds = MixingBounds.of(chain_from_counts(london.pooled()))
    assert mqm_approx(bounds, epsilon=1.0).sigma == pytest.approx(84.4445, abs=5e-5)


def test_53_of_the_60_london_homes_lie_outside_their_pooled_chain(london: TransitionCounts) -> None:
    bounds = MixingBounds.of(chain_from_counts(london.pooled()))
    strays = outside(bounds, london)
    assert len(strays) == 53
    assert set(strays) < set(london.series)
    # three homes miss a band altogether, and count as outside
    incomplete = {name for name, table in zip(london.series, london.counts, strict=True) if not table.sum(axis=1).all()}
    assert len(incomplete) == 3
    assert incomplete < set(strays)


@pytest.mark.night
@pytest.mark.parametrize(
    ("width", "states", "facts"), [(1000, 11, (202, 0.000198, 0.3471)), (200, 51, (29, 2.85e-05, 0.3190))]
)
def test_the_pooled_london_homes_have_the_published_facts(
    shared_data: Path, width: int, states: int, facts: tuple[int, float, float]
) -> None:
    visits, pi_min, gap = facts
    # the facts file beside the data: visits there are of the rarest state, over equal bins with an open last one
    watts = pl.col("kwh").cast(pl.Float64) * 2000
    state = (watts / width).floor().clip(0, states - 1)
    counts = london_counts(state, states, shared_data / "lcl2013" / "lcl2013_halfhourly_60hh.parquet")
    found = diagnose(counts.pooled(), counts.pooled_visits())
    assert found.transitions == 1_018_230
    assert found.rarest_visits == visits
    assert (found.irreducible, found.period, found.multiplicity) == (True, 1, 1)
    assert found.pi_min == pytest.approx(pi_min, rel=5e-3)
    assert found.gap == pytest.approx(gap, abs=5e-5)


SOUND = np.array([[900, 100], [90, 410]])


def test_a_sound_history_has_facts_and_no_warning() -> None:
    found = diagnose(SOUND)
    assert found.warnings() == ()
    assert (found.states, found.transitions, found.rarest_visits) == (2, 1500, 510)
    assert (found.never_visited, found.never_left) == ((), ())
    assert (found.irreducible, found.period, found.multiplicity) == (True, 1, 1)
    # P = [[.9, .1], [.18, .82]]: pi = (9, 5) / 14, eigenvalue .72
    assert found.pi_min == pytest.approx(5 / 14)
    assert found.gap == pytest.approx(1 - 0.72**2)


def test_a_rare_state_is_warned_of_with_its_visits_and_the_limit() -> None:
    counts = np.array([[900, 1], [1, 0]])
    (warning,) = diagnose(counts).warnings()
    assert "visited 1 times" in warning
    assert "about 100" in warning
    assert "give more history" in warning


def test_a_reducible_product_is_found_though_the_chain_is_irreducible_and_aperiodic() -> None:
    found = diagnose(np.array([[0, 500, 0], [0, 0, 800], [500, 300, 0]]))
    assert (found.irreducible, found.period, found.multiplicity, found.gap) == (True, 1, 2, 0.0)
    (warning,) = found.warnings()
    assert "P P* is reducible though P is not" in warning
    assert "Lemma 4.8 is void" in warning


def test_a_state_never_visited_is_named_and_the_rest_described() -> None:
    counts = np.zeros((4, 4), dtype=np.int64)
    counts[np.ix_([0, 2], [0, 2])] = SOUND
    found = diagnose(counts)
    assert found.never_visited == (1, 3)
    assert found.pi_min == pytest.approx(5 / 14)
    (warning,) = found.warnings()
    assert "never visited: state 1, 3" in warning


def test_a_series_is_outside_if_it_mixes_worse_or_visits_too_little() -> None:
    tables = {
        "inside": SOUND,
        "rarer": np.array([[990, 10], [10, 1]]),
        "slower": np.array([[990, 10], [10, 990]]),
        "one state": np.array([[900, 0], [0, 0]]),
        "never left": np.array([[900, 1], [0, 0]]),
        "reducible": np.array([[900, 1], [0, 900]]),
    }
    counts = np.stack(list(tables.values()))
    visits = np.maximum(counts.sum(axis=1), counts.sum(axis=2))
    strays = outside(MixingBounds(pi_min=0.3, gap=0.4), TransitionCounts(tuple(tables), counts, visits))
    assert strays == ("never left", "one state", "rarer", "reducible", "slower")
