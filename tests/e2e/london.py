"""Readings of London homes: in which order meters send them, and what a plain computation makes of them.

Nothing here knows of the software under test.
"""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path

import polars as pl

from ..transforms.truth import cells, histograms

#: One sends its last reading within the days, four miss a half-hour, one is zero nearly always.
HOMES = tuple(f"MAC{number:06}" for number in (2, 8, 34, 35, 37, 49, 50, 53, 66, 126))
ORIGIN = dt.datetime(2013, 1, 1)
START = dt.datetime(2013, 4, 14)
DAYS = 4
SLOT = dt.timedelta(minutes=30)
#: Slots of a day and of a window, and the first one.
DAY, SIZE, FIRST = 48, 12, (START - ORIGIN) // SLOT
#: First slot, and first slot after it.
WINDOWS = tuple((start, start + SIZE) for start in range(FIRST, FIRST + DAYS * DAY, SIZE))
EDGES = [250.0, 500.0, 1000.0, 2000.0]

#: Readings come out of their order by less than this.
SHUFFLED = dt.timedelta(hours=3)


def to_be_sent(file: Path) -> pl.DataFrame:
    """The homes' rows of the days, and of half a day more so that the last window closes, in the order of sending.

    Columns ``household``, ``ts`` (milliseconds since 1970), ``kwh`` and ``day``, the time of sending in days.
    """
    stop = START + dt.timedelta(days=DAYS, hours=12)
    found = (
        pl.read_parquet(file)
        .with_columns(pl.col("household").cast(pl.Utf8))
        .filter(pl.col("household").is_in(HOMES), pl.col("ts").is_between(START, stop, closed="left"))
        .sort("ts", "household")
    )
    source = random.Random(5)
    late = pl.Series("late", [SHUFFLED * source.random() for _ in range(len(found))])
    day = ((pl.col("ts") + late - START).dt.total_milliseconds() / 86_400_000).alias("day")
    return found.with_columns(day).sort("day").with_columns(ts=pl.col("ts").dt.epoch("ms"))


def plain_counts(file: Path) -> dict[tuple[int, str], list[int]]:
    """Counts by first slot and home."""
    readings = pl.read_parquet(file).select(
        series=pl.col("household").cast(pl.Utf8),
        time=(pl.col("ts") - ORIGIN).dt.total_microseconds(),
        value=pl.col("kwh").cast(pl.Float64) * 2000,
    )
    slot = SLOT // dt.timedelta(microseconds=1)
    found = cells(readings.filter(pl.col("series").is_in(HOMES)), interval_us=slot, origin_us=0, edges=EDGES)
    return histograms(found, windows=list(WINDOWS), keys={home: [home] for home in HOMES}, bins=len(EDGES) + 1)
