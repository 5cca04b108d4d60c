"""The 60 London homes as runs of bands of power, half-hours apart: polars and numpy only, nothing of the product."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

EDGES = (250, 500, 1000, 2000)  # W


def _states_of(shared_data: Path) -> pl.DataFrame:
    return pl.read_parquet(shared_data / "lcl2013" / "lcl2013_halfhourly_60hh.parquet").select(
        pl.col("household").cast(pl.String),
        slot=pl.col("ts").dt.epoch("s") // 1800,
        state=pl.sum_horizontal([(pl.col("kwh").cast(pl.Float64) * 2000 >= edge).cast(int) for edge in EDGES]),
    )


def runs_by_home(shared_data: Path) -> dict[str, list[np.ndarray]]:
    frame = _states_of(shared_data)
    found = {}
    for (home,), part in sorted(frame.sort("household", "slot").group_by("household")):
        states, slots = part["state"].to_numpy().astype(np.int64), part["slot"].to_numpy()
        found[home] = np.split(states, np.flatnonzero(np.diff(slots) != 1) + 1)
    return found


def moves(runs: list[np.ndarray], states: int = len(EDGES) + 1) -> np.ndarray:
    table = np.zeros((states, states), dtype=np.int64)
    for run in runs:
        np.add.at(table, (run[:-1], run[1:]), 1)
    return table


def table_by_slot(shared_data: Path, states: int = len(EDGES) + 1) -> dict[str, np.ndarray]:
    """Transitions of every home out of each half-hour of the day, shape (48, k, k), by name."""
    frame = _states_of(shared_data)
    found = {}
    for (home,), part in sorted(frame.sort("household", "slot").group_by("household")):
        seen, slots = part["state"].to_numpy().astype(np.int64), part["slot"].to_numpy()
        next_to = np.diff(slots) == 1
        found[home] = np.zeros((48, states, states), dtype=np.int64)
        np.add.at(found[home], (slots[:-1][next_to] % 48, seen[:-1][next_to], seen[1:][next_to]), 1)
    return found
