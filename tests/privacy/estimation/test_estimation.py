from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quiltstream.privacy.estimation.diagnosis import diagnose, outside
from quiltstream.privacy.estimation.transition_counts import (
    EstimationError,
    TransitionCounts,
    chain_from_counts,
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
        assert a.merge(b) == b.merge(a)
        assert a.merge(b).merge(c) == a.merge(b.merge(c)) == TransitionCounts.merged([c, a, b])
        assert a.merge(TransitionCounts.empty(STATES)) == a
        assert hash(a.merge(b)) == hash(b.merge(a))


class TestChainFromCounts:
    @given(
        counts=hnp.arrays(np.int64, (4, 4), elements=st.integers(0, 50)),
        smoothing=st.sampled_from([0.01, 0.25, 1.0]),
        floor=st.sampled_from([1e-6, 0.01, 0.2]),
    )
    def test_a_floor_bounds_every_transition_and_every_stationary_probability(
        self, counts: np.ndarray, smoothing: float, floor: float
    ) -> None:
        chain = chain_from_counts(counts, smoothing, floor=floor)
        assert chain.transition.min() >= floor * (1 - 1e-12)
        assert chain.pi_min >= floor * (1 - 1e-9)
        assert chain.is_irreducible
        assert chain.gap_multiplicity == 1

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
