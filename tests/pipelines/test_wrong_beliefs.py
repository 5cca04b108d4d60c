"""The numbers of docs/wrong-beliefs.md, from the shipped data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from quiltstream.pipelines import data
from quiltstream.pipelines.commands.demo import split_households
from quiltstream.privacy.accounting.forward_backward import constant_loss, forward_backward
from quiltstream.privacy.estimation import belief_checks as checks
from quiltstream.privacy.estimation.per_series import contractions
from quiltstream.privacy.estimation.transition_counts import TransitionCounts

PAGE = Path(__file__).resolve().parents[2] / "docs" / "wrong-beliefs.md"
STATES, DAY, HALF_HOUR = 5, 48, 1_800_000_000


@pytest.fixture(scope="module")
def paths() -> list[checks.Path]:
    """The states of the 30 homes of the demo's history."""
    frame = pl.read_parquet(data.path("lcl2013_halfhourly_60hh.parquet")).select(
        pl.col("household").cast(pl.Utf8),
        slot=pl.col("ts").cast(pl.Datetime("us")).cast(pl.Int64) // HALF_HOUR,
        watts=pl.col("kwh").cast(pl.Float64) * 2000,
    )
    found: list[checks.Path] = []
    for name in split_households()[0]:
        mine = frame.filter(pl.col("household") == name)
        slots = mine["slot"].to_numpy()
        states = np.full(slots.max() - slots.min() + 1, -1, dtype=np.int8)
        states[slots - slots.min()] = np.digitize(mine["watts"].to_numpy(), [250, 500, 1000, 2000])
        found.append(checks.Path(int(slots.min()), states))
    return found


@pytest.fixture(scope="module")
def counts(paths: list[checks.Path]) -> TransitionCounts:
    tables = np.zeros((len(paths), STATES, STATES), dtype=np.int64)
    visits = np.zeros((len(paths), STATES), dtype=np.int64)
    for table, visit, path in zip(tables, visits, paths, strict=True):
        seen = (path.states[:-1] >= 0) & (path.states[1:] >= 0)
        np.add.at(table, (path.states[:-1][seen], path.states[1:][seen]), 1)
        visit[:] = np.bincount(path.states[path.states >= 0], minlength=STATES)
    return TransitionCounts(tuple(f"{at:02}" for at in range(len(paths))), tables, visits)


def line(name: str, losses: np.ndarray, sign: str = "") -> str:
    return f"| {name} | {sign}{np.median(losses):.2f} | {sign}{losses.max():.2f} | {(losses > 1).sum()} |"


@pytest.mark.night
def test_the_page_states_the_loss_of_the_schedule_under_richer_beliefs(
    paths: list[checks.Path], counts: TransitionCounts
) -> None:
    history = contractions(counts)
    noise = forward_backward(history.envelope(history.rank("0.9")), 1.0)
    density = 1 / noise.sigma
    own = np.array([constant_loss(chain, density) for chain in history.chains])
    # bounds near 1 are made sharper, so that the count of those above it is right
    rhythm = np.minimum(*(checks.rhythm(paths, STATES, DAY, density, enough) for enough in (0.0, 1.0)))
    lines = [
        line("its own chain", own),
        line("its own chain, a kernel for every half-hour of the day", rhythm),
        line("its own chain with a memory of two slots", checks.memory(paths, STATES, density)),
        line("the stretches of 25 hours it had", checks.stretches(paths, STATES, density, 25), "at least "),
        line("the stretches of a week it had", checks.stretches(paths, STATES, density, 168), "at least "),
    ]
    beyond = (checks.stretches(paths, STATES, 1 / 200, 168) > 1).sum()
    lines.append(f"Even sigma 200 leaves {beyond} of the 30 homes above 1")
    page = PAGE.read_text(encoding="utf-8")
    assert f"sigma {noise.sigma:.2f}" in page
    missing = [one for one in lines if one not in page]
    assert not missing, "\n".join(missing)
