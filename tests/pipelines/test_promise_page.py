"""The numbers of docs/promise.md, and of its page on differential privacy, from the shipped data."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from quiltstream.pipelines import data
from quiltstream.pipelines.commands.demo import split_households
from quiltstream.privacy import Ledger, MarkovChain
from quiltstream.privacy.accounting.certificates import constant_loss
from quiltstream.privacy.accounting.forward_backward import forward_backward
from quiltstream.privacy.accounting.habits import habit_loss, least_mixture_loss, lifetime_sigma
from quiltstream.privacy.estimation import belief_checks as checks
from quiltstream.privacy.estimation.per_series import Path as Stretch
from quiltstream.privacy.estimation.per_series import contractions, rank_of, thirds
from quiltstream.privacy.estimation.transition_counts import TransitionCounts
from quiltstream.privacy.mechanisms.histogram import FixedTotalHistogram

DOCS = Path(__file__).resolve().parents[2] / "docs"
STATES, DAY, HALF_HOUR = 5, 48, 1_800_000_000


@pytest.fixture(scope="module")
def paths() -> list[Stretch]:
    """The states of the 30 homes of the demo's history."""
    frame = pl.read_parquet(data.path("lcl2013_halfhourly_60hh.parquet")).select(
        pl.col("household").cast(pl.Utf8),
        slot=pl.col("ts").cast(pl.Datetime("us")).cast(pl.Int64) // HALF_HOUR,
        watts=pl.col("kwh").cast(pl.Float64) * 2000,
    )
    found: list[Stretch] = []
    for name in split_households()[0]:
        mine = frame.filter(pl.col("household") == name)
        slots = mine["slot"].to_numpy()
        states = np.full(slots.max() - slots.min() + 1, -1, dtype=np.int8)
        states[slots - slots.min()] = np.digitize(mine["watts"].to_numpy(), [250, 500, 1000, 2000])
        found.append(Stretch(int(slots.min()), states))
    return found


@pytest.fixture(scope="module")
def counts(paths: list[Stretch]) -> TransitionCounts:
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
    paths: list[Stretch], counts: TransitionCounts
) -> None:
    history = contractions(counts)
    noise = forward_backward(history.envelope(rank_of("0.9", len(history.scores))), 1.0)
    density = 1 / noise.sigma
    own = np.array([constant_loss(chain, density) for chain in history.chains])
    rhythm = checks.rhythm(paths, STATES, DAY, density)
    lines = [
        line("its own chain", own),
        line("its own chain, a kernel for every half-hour of the day", rhythm),
        line("its own chain with a memory of two slots", checks.memory(paths, STATES, density)),
    ]
    kinds = [thirds(path, (path.first + np.arange(len(path.states))) // DAY) for path in paths]
    for name, half in (("25 hours", 25), ("a week", 168)):
        lost = checks.stretches(paths, STATES, density, half, kinds, DAY)
        lines.append(line(f"given the kind of each day, the stretches of {name} it had", lost, "at least "))
    check_lines("promise.md", [f"sigma {noise.sigma:.2f}", *lines])


@pytest.mark.night
def test_the_page_states_what_a_stranger_learns(counts: TransitionCounts) -> None:
    history = contractions(counts)
    chains = [history.chains[home] for home in np.argsort(history.scores)[:28]]
    told = habit_loss(chains)
    lines = [f"Lambda is {told.most:.2f} there", f"{min(told.neighbours):.2f} to {max(told.neighbours):.2f}"]
    for name, slots, said in (("a day", 49, 36), ("a week", 337, 230), ("four weeks", 1345, 900)):
        proved, least = lifetime_sigma(chains, slots, 1.0)
        assert 0.97 * said < proved <= said
        found = least_mixture_loss(chains, 1 / 26.77, slots)
        shown = f"{least:.1f}" if least < 100 else f"{least:.0f}"
        lines.append(f"| {name} | {found:.2f} | {said} | {shown} |")
    proved, least = lifetime_sigma(chains, 17_521, 1.0)
    found = least_mixture_loss(chains, 1 / 26.77, 17_521)
    lines.append(f"| a year | {found:.2f} | {proved:,.0f} | {least:,.0f} |")
    check_lines("promise.md", lines)


@pytest.mark.night
def test_the_page_on_differential_privacy_states_what_the_factor_buys() -> None:
    columns = ["household", "ts", "kwh"]
    frame = pl.read_parquet(data.path("lcl2013_halfhourly_60hh.parquet"), columns=columns).sort("household", "ts")
    states = np.digitize(frame["kwh"].cast(pl.Float64).to_numpy() * 2000, [250, 500, 1000, 2000])
    slots = frame["ts"].cast(pl.Datetime("us")).cast(pl.Int64).to_numpy() // HALF_HOUR
    homes = frame["household"].cast(pl.Utf8).to_numpy()
    follows = (homes[1:] == homes[:-1]) & (slots[1:] == slots[:-1] + 1)
    moves = np.zeros((STATES, STATES))
    np.add.at(moves, (states[:-1][follows], states[1:][follows]), 1)
    london = MarkovChain(moves / moves.sum(axis=1, keepdims=True))
    lines: list[str] = []
    for scale in (2.0, 4.0, 8.0, 16.0, 2 * forward_backward(london, 1.0).sigma):
        ledger = Ledger(london)
        ledger.charge(0, 52 * 336, 2 / scale)
        off = FixedTotalHistogram.from_sigma(STATES, scale / 2).mean_abs / 2016
        odds = 1 / (1 + math.exp(-ledger.loss))
        lines.append(f"| {scale:.1f} | {2 / scale:.2f} | {off:.2%} | {ledger.loss:.2f} | {odds:.2%} |")
    check_lines("explanation/why-dp-fails.md", [line.replace("%", " %") for line in lines])


def check_lines(page: str, lines: list[str]) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    missing = [one for one in lines if one not in text]
    assert not missing, "\n".join(missing)
