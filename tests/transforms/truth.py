"""An independent truth: polars over the raw readings, importing nothing of the software under test."""

from __future__ import annotations

import polars as pl


def cells(readings: pl.DataFrame, *, interval_us: int, origin_us: int, edges: list[float]) -> pl.DataFrame:
    """One row a cell: series, slot, state. The latest reading of a slot counts, ties by the higher state.

    Args:
        readings: columns series (str), time (int, microseconds), value (float, finite).
        interval_us: length of a slot.
        origin_us: start of slot 0.
        edges: inner edges of the bins.
    """
    state = pl.lit(0)
    for edge in edges:
        state = state + (pl.col("value") >= edge).cast(pl.Int32)
    return (
        readings.with_columns(slot=(pl.col("time") - origin_us).floordiv(interval_us), state=state)
        .sort(["series", "slot", "time", "state"])
        .group_by(["series", "slot"], maintain_order=True)
        .agg(pl.col("state").last())
    )


def histograms(
    found: pl.DataFrame, *, windows: list[tuple[int, int]], keys: dict[str, list[str]], bins: int
) -> dict[tuple[int, str], list[int]]:
    """(first slot, key) -> counts, for every window and key, also the empty ones.

    Args:
        found: the cells.
        windows: first slot and first slot after it, of each window.
        keys: key -> its series.
        bins: number of bins.
    """
    truth: dict[tuple[int, str], list[int]] = {}
    rows = found.select("series", "slot", "state").rows()
    by_series: dict[str, list[tuple[int, int]]] = {}
    for series, slot, state in rows:
        by_series.setdefault(series, []).append((slot, state))
    for start, stop in windows:
        for key, members in keys.items():
            counts = [0] * bins
            for series in members:
                for slot, state in by_series.get(series, []):
                    if start <= slot < stop:
                        counts[state] += 1
            truth[start, key] = counts
    return truth
