from __future__ import annotations

import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to

from quiltstream.pipelines.data import path as shipped
from quiltstream.privacy.estimation import EstimationError, release_counts
from quiltstream.schemas.readings import READING_SCHEMA
from quiltstream.schemas.slots import SlotGrid
from quiltstream.schemas.states import StateSpace
from quiltstream.transforms import EstimateTransitions
from quiltstream.transforms.aggregate import transitions
from quiltstream.transforms.aggregate.transitions import SeriesPaths

from ...depth import NIGHT
from ..sources.feed import feed

EDGES = (250.0, 500.0, 1000.0, 2000.0)
HALF_HOUR = 1_800_000_000
ORIGIN = 1_356_998_400_000_000


def batches(rows: list[tuple[str, int, float]], size: int) -> list[pa.RecordBatch]:
    series, times, values = zip(*rows, strict=True)
    table = pa.Table.from_arrays(
        [
            pa.array(series).dictionary_encode(),
            pa.array(times, pa.timestamp("us", tz="UTC")),
            pa.array(values, pa.float64()),
        ],
        schema=READING_SCHEMA,
    )
    return table.to_batches(max_chunksize=size)


def counted(
    folder: Path,
    rows: list[tuple[str, int, float]],
    truth: Any,
    *,
    size: int = 1000,
    missing: bool = False,
    **scope: Any,
) -> None:
    """Runs the estimate and compares it with a truth of (names, counts, visits)."""
    names, counts, visits = truth

    def check(found: list[Any]) -> None:
        assert len(found) == 1
        assert list(found[0].series) == names
        assert np.array_equal(found[0].counts, counts)
        assert np.array_equal(found[0].visits, visits)

    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        grid, space = SlotGrid(HALF_HOUR, ORIGIN), StateSpace(EDGES, "W", missing_state=missing)
        estimate = pipeline | feed(folder, batches(rows, size)) | EstimateTransitions(grid, space, **scope)
        assert_that(estimate, check)


def plain(
    rows: list[tuple[str, int, float]],
    *,
    missing: bool = False,
    start: int | None = None,
    stop: int | None = None,
    series: list[str] | None = None,
) -> Any:
    cells: dict[str, dict[int, tuple[int, int]]] = {}
    for name, time, value in rows:
        slot = (time - ORIGIN) // HALF_HOUR
        if (start is not None and slot < start) or (stop is not None and slot >= stop):
            continue
        state = sum(edge <= value for edge in EDGES)
        held = cells.setdefault(name, {})
        held[slot] = max(held.get(slot, (-1, -1)), (time, state))
    states = 6 if missing else 5
    names = sorted(cells) if series is None else sorted(set(series))
    counts = np.zeros((len(names), states, states), dtype=int)
    visits = np.zeros((len(names), states), dtype=int)
    for i, name in enumerate(names):
        path = {slot: state for slot, (_, state) in cells.get(name, {}).items()}
        if missing and None not in (start, stop, series):
            path = {slot: path.get(slot, 5) for slot in range(start, stop)}  # pyright: ignore[reportArgumentType] - checked
        elif missing and path:
            path = {slot: path.get(slot, 5) for slot in range(min(path), max(path) + 1)}
        for slot, state in path.items():
            visits[i, state] += 1
            if slot + 1 in path:
                counts[i, state, path[slot + 1]] += 1
    return names, counts, visits


@pytest.fixture(scope="module")
def rows() -> list[tuple[str, int, float]]:
    frame = pl.read_parquet(shipped("lcl2013_halfhourly_60hh.parquet")).select(
        pl.col("household").cast(pl.Utf8),
        pl.col("ts").cast(pl.Datetime("us")).cast(pl.Int64),
        pl.col("kwh").cast(pl.Float64) * 2000.0,
    )
    names = sorted(frame["household"].unique())[: 8 if NIGHT else 3]
    return frame.filter(pl.col("household").is_in(names)).rows()


def test_a_reading_stamped_far_away_takes_no_memory_where_gaps_are_a_state(tmp_path):
    far = 3_000_000  # in the year 2184: later times are rejects
    rows = [("m", ORIGIN + slot * HALF_HOUR, 100.0) for slot in (0, 1, far)]
    counts, visits = np.zeros((1, 6, 6)), np.zeros((1, 6))
    gap = far - 2
    counts[0, 0, 0], counts[0, 0, 5], counts[0, 5, 0], counts[0, 5, 5] = 1, 1, 1, gap - 1
    visits[0, 0], visits[0, 5] = 3, gap
    counted(tmp_path, rows, (["m"], counts, visits), missing=True)
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        grid, space = SlotGrid(HALF_HOUR, ORIGIN), StateSpace(EDGES, "W", missing_state=True)
        paths = pipeline | feed(tmp_path, batches(rows, 1000)) | SeriesPaths(grid, space)
        assert_that(paths, equal_to([None]))


FIRST, AFTER = 100, 400
"""A window of the shipped readings, in slots: a series may begin, end or pause within it."""


@pytest.mark.night
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("listed", [False, True])
def test_transitions_of_shuffled_and_doubled_readings_equal_a_plain_count(rows, tmp_path, missing, listed):
    """Of all series, or of a list within a window: in any order, one heard for a while only, and one silent."""
    shuffler = random.Random(seed := random.randrange(2**32))
    print("seed", seed)  # noqa: T201 - a random test says its seed
    origin = min(time for _, time, _ in rows) - ORIGIN
    near = [(name, time - origin, value) for name, time, value in rows if time - origin < ORIGIN + 600 * HALF_HOUR]
    names = sorted({name for name, _, _ in near})
    near = [row for row in near if row[0] != names[1] or 150 <= (row[1] - ORIGIN) // HALF_HOUR < 300]
    # a second, later or earlier reading in the same slot
    near += [(s, t + shuffler.choice([1, HALF_HOUR - 1]), v * 3) for s, t, v in shuffler.sample(near, 300)]
    scope: dict[str, Any] = {"start": FIRST, "stop": AFTER, "series": [names[1], "silent", names[0]]} if listed else {}
    truth = plain(near, missing=missing, **scope)
    assert truth[0] == sorted(scope.get("series", names))
    assert truth[1].any()
    mixed = near + shuffler.sample(near, len(near) // 4)
    shuffler.shuffle(mixed)
    counted(tmp_path, mixed, truth, size=701, missing=missing, **scope)


def test_only_counts_that_cover_their_window_can_be_released(tmp_path):
    """The releases take the first counts, and refuse the second, of the same readings."""
    rows = [("m", ORIGIN + slot * HALF_HOUR, 100.0 + 200 * slot) for slot in (3, 4, 7)]
    series = ["m", "silent"]

    def release(found: list[Any]) -> None:
        assert release_counts(found[0], Fraction(8), slots=10, missing_state=True).shape == (6, 6)
        assert list(found[0].series) == series
        assert found[0].visits.sum(axis=1).tolist() == [10, 10]

    def refuse(found: list[Any]) -> None:
        with pytest.raises(EstimationError, match="not counted in each of the 10 slots"):
            release_counts(found[0], Fraction(8), slots=10, missing_state=True)

    grid, space = SlotGrid(HALF_HOUR, ORIGIN), StateSpace(EDGES, "W", missing_state=True)
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        readings = pipeline | feed(tmp_path, batches(rows, 2))
        listed = readings | "Listed" >> EstimateTransitions(grid, space, start=2, stop=12, series=series)
        heard = readings | "Heard" >> EstimateTransitions(grid, space, start=2, stop=12)
        assert_that(listed, release, label="Release")
        assert_that(heard, refuse, label="Refuse")


def paths_of(folder: Path, rows: list[tuple[str, int, float]], check: Any, *, missing: bool = False) -> None:
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        grid, space = SlotGrid(HALF_HOUR, ORIGIN), StateSpace(EDGES, "W", missing_state=missing)
        assert_that(pipeline | feed(folder, batches(rows, 5003)) | SeriesPaths(grid, space), check)


@pytest.mark.night
@pytest.mark.parametrize("missing", [False, True])
def test_the_states_of_every_series_have_the_transitions_that_are_counted(rows, tmp_path, missing):
    some = [row for at, row in enumerate(rows) if at % 7]
    names, counts, visits = plain(some, missing=missing)

    def check(found: list[Any]) -> None:
        assert sorted(found[0]) == names
        for at, name in enumerate(names):
            path = found[0][name].states
            seen = (path[:-1] >= 0) & (path[1:] >= 0)
            table = np.zeros_like(counts[at])
            np.add.at(table, (path[:-1][seen], path[1:][seen]), 1)
            assert np.array_equal(table, counts[at])
            assert np.array_equal(np.bincount(path[path >= 0], minlength=len(table)), visits[at])
            first = min(t for s, t, _ in some if s == name)
            assert found[0][name].first == (first - ORIGIN) // HALF_HOUR

    paths_of(tmp_path, some, check, missing=missing)


@pytest.mark.night
@pytest.mark.parametrize(("limit", "most"), [("MOST_PATHS", 2), ("MOST_SLOTS", 100)])
def test_states_of_too_many_or_too_long_series_are_not_kept(rows, tmp_path, monkeypatch, limit, most):
    monkeypatch.setattr(transitions, limit, most)

    def check(found: list[Any]) -> None:
        assert found == [None]

    paths_of(tmp_path, rows, check)


def test_a_name_that_stands_twice_in_a_dictionary_is_one_series(tmp_path: Path) -> None:
    names = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int32()), pa.array(["a", "a"]))
    times = pa.array([ORIGIN, ORIGIN + HALF_HOUR, ORIGIN + 2 * HALF_HOUR], pa.timestamp("us", tz="UTC"))
    batch = pa.RecordBatch.from_arrays([names, times, pa.array([1.0, 300.0, 1.0])], schema=READING_SCHEMA)

    def check(found: list[Any]) -> None:
        (one,) = found
        assert (one.series, int(one.visits.sum()), int(one.counts.sum())) == (("a",), 3, 2)

    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        grid, space = SlotGrid(HALF_HOUR, ORIGIN), StateSpace(EDGES, "W")
        assert_that(pipeline | feed(tmp_path, [batch]) | EstimateTransitions(grid, space), check)
