from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.testing.util import assert_that

from quiltstream.pipelines.data import path as shipped
from quiltstream.schemas.readings import READING_SCHEMA
from quiltstream.schemas.slots import SlotGrid
from quiltstream.schemas.states import StateSpace
from quiltstream.transforms import EstimateTransitions

from .feed import feed

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
    folder: Path, rows: list[tuple[str, int, float]], truth: Any, *, size: int = 1000, missing: bool = False
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
        estimate = pipeline | feed(folder, batches(rows, size)) | EstimateTransitions(grid, space)
        assert_that(estimate, check)


def plain(rows: list[tuple[str, int, float]], *, missing: bool = False) -> Any:
    """The same counts in plain Python."""
    cells: dict[str, dict[int, tuple[int, int]]] = {}
    for series, time, value in rows:
        slot = (time - ORIGIN) // HALF_HOUR
        state = sum(edge <= value for edge in EDGES)
        held = cells.setdefault(series, {})
        held[slot] = max(held.get(slot, (-1, -1)), (time, state))
    states = 6 if missing else 5
    names = sorted(cells)
    counts = np.zeros((len(names), states, states), dtype=int)
    visits = np.zeros((len(names), states), dtype=int)
    for i, name in enumerate(names):
        path = {slot: state for slot, (_, state) in cells[name].items()}
        if missing:
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
    names = sorted(frame["household"].unique())[:8]
    return frame.filter(pl.col("household").is_in(names)).rows()


@pytest.mark.parametrize("missing", [False, True])
def test_transitions_of_shuffled_and_doubled_readings_equal_a_plain_count(rows, tmp_path, capsys, missing):
    seed = random.randrange(2**32)  # noqa: S311 - shuffles, not secrets
    with capsys.disabled():
        print(f"\nseed {seed}")  # noqa: T201 - a random test prints its seed
    shuffler = random.Random(seed)  # noqa: S311 - shuffles, not secrets
    mixed = rows + shuffler.sample(rows, len(rows) // 5)
    # a second, later or earlier reading in the same slot
    mixed += [(s, t + shuffler.choice([1, HALF_HOUR - 1]), v * 3) for s, t, v in shuffler.sample(rows, 500)]
    shuffler.shuffle(mixed)
    counted(tmp_path, mixed, plain(mixed, missing=missing), size=7001, missing=missing)


def test_a_gap_cuts_the_chain(tmp_path):
    rows = [("m", ORIGIN + slot * HALF_HOUR, 100.0) for slot in (0, 1, 2, 5, 6)]
    names, counts, visits = plain(rows)
    assert counts[0, 0, 0] == 3
    counted(tmp_path, rows, (names, counts, visits))


def test_no_reading_gives_no_series(tmp_path):
    rows = [("m", ORIGIN, float("nan"))]
    counted(tmp_path, rows, ([], np.zeros((0, 5, 5)), np.zeros((0, 5))))
