"""``quiltstream demo``: a year of London's smart meters through the same code as ``fit`` and ``run``.

Only the comparison with the truth is the demo's own: plain pyarrow and numpy over the shipped file, for the picture.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console

from ...privacy.accounting.certificates import constant_loss
from ...privacy.accounting.habits import PROMISE
from ...privacy.estimation.per_series import contractions
from ...privacy.estimation.transition_counts import TransitionCounts
from ...schemas.files import begin_of, write_whole
from ...schemas.releases import Release, releases_from_batch
from ...schemas.settings.job import Settings, read_settings
from ...transforms.plan import Plan, make_plan
from ...transforms.sinks import read_release_rows
from .. import data
from ..connectors.job_io import sink_of
from ..console import comparison, facts, heading, odds, paragraph, plural, results, working
from ..errors import CommandError, writing
from ..forecast import Table
from .fit import Choice, fit_settings
from .fit_text import habits_told, of_a_new_series, show_belief
from .run import run_job

_FILE = "lcl2013_halfhourly_60hh.parquet"
_FEEDER = "feeder-1"

#: The week whose histogram is shown: an ordinary one in winter, chosen before anything was looked at.
_WEEK = 4

_SETTINGS = """\
# Written by `quiltstream demo`. Run it as it is: quiltstream run {name}
source:   {{parquet: {path}}}
readings: {{series: household, time: ts, value: kwh, unit: kWh, scale: 2000}}
slots:    {{interval: 30min, origin: 2013-01-01, timezone: UTC}}
states:   {{edges: [250, 500, 1000, 2000], unit: W}}
missing:  public
model:    model.json
roster:   {{file: roster.csv, series: household}}
group_by: feeder
windows:  {{size: 7d, start: 2013-01-01, stop: 2013-12-31}}
privacy:  {{epsilon: 1.0, mechanism: forward-backward, guarantee: stream, budget: 1.0}}
sink:     {{parquet: releases.parquet}}
query:    weekly-load
domain:   london-feeder
ledger:   sqlite:///ledger.db
"""


#: How files begin that a demo replaces.
_BEGINS = {
    "settings.yaml": b"# Written by `quiltstream demo`",
    "roster.csv": b"household,feeder\n",
}


@dataclass(frozen=True, slots=True)
class Errors:
    """How far the published counts are from the truth; only a demo can know this."""

    covered: float  # share of the counts within their 95 % half-width
    # absolute errors of a row's estimates added up, over the row's total; the mean of all windows
    share: float


def split_households() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The households of the history and of the feeder: every other one by name, fixed and public."""
    column = pq.read_table(data.path(_FILE), columns=["household"])["household"]
    names = sorted(pc.unique(column).to_pylist())  # pyright: ignore[reportAttributeAccessIssue] - made at run time
    return tuple(names[0::2]), tuple(names[1::2])


Ints: TypeAlias = npt.NDArray[np.int64]


def _cells(settings: Settings, members: Sequence[str]) -> tuple[Ints, Ints, Ints]:
    """Home, slot and state of each reading of some homes, in this order, by plain numpy over the shipped file."""
    table, names = pq.read_table(data.path(_FILE)), {name: at for at, name in enumerate(sorted(members))}
    home = np.array([names.get(name, -1) for name in table["household"].cast("string").to_pylist()])
    slots = settings.grid.slots_of(table["ts"].cast("timestamp[us]").cast("int64").to_numpy())
    states = np.digitize(table["kwh"].to_numpy().astype(np.float64) * 2000, settings.states.edges)
    order = np.lexsort((slots, home))[int((home < 0).sum()) :]
    return home[order], slots[order], states[order]


def true_histograms(settings: Settings, members: Sequence[str]) -> Ints:
    """The true counts of every week, shape (weeks, bins)."""
    _, slots, states = _cells(settings, members)
    k, n = settings.space.size, len(settings.schedule)
    weeks = (slots - settings.schedule.first) // settings.schedule.size
    inside = (weeks >= 0) & (weeks < n)
    return np.bincount(weeks[inside] * k + states[inside], minlength=n * k).reshape(n, k)


def beyond(settings: Settings, members: Sequence[str], sigma: float) -> int:
    """How many homes lose more than epsilon 1 by their own chains, fitted as those of a history are."""
    home, slots, states = _cells(settings, members)
    k, n = settings.space.size, len(members)
    follows = (home[1:] == home[:-1]) & (slots[1:] == slots[:-1] + 1)
    pairs = (home[:-1][follows] * k + states[:-1][follows]) * k + states[1:][follows]
    counts = np.bincount(pairs, minlength=n * k * k).reshape(n, k, k)
    visits = np.bincount(home * k + states, minlength=n * k).reshape(n, k)
    found = contractions(TransitionCounts(tuple(sorted(members)), counts, visits))
    return sum(constant_loss(chain, 1 / sigma) > 1 for chain in found.chains)


def errors_of(rows: list[Release], truth: Ints) -> Errors:
    """Compare published rows with the truth."""
    counts = np.array([row.counts for row in rows], dtype=np.float64)
    estimates = np.array([row.estimate for row in rows], dtype=np.float64)
    return Errors(
        covered=float(np.mean(np.abs(counts - truth) <= rows[0].half_width_95)),
        share=float(np.mean(np.abs(estimates - truth).sum(axis=1) / truth.sum(axis=1))),
    )


def demonstrate(out: Path, *, every: bool = False) -> None:
    """Run the demo and print it, or with every number."""
    began = perf_counter()
    _, feeder = split_households()
    with working("reading 60 households, fitting on 30 of them"):
        settings = _prepare(out, feeder)
    with working("publishing 52 weeks of the other 30"):
        summary = run_job(settings)
    released = read_release_rows(settings.path(sink_of(settings, live=False).path))
    rows = sorted(releases_from_batch(released), key=lambda row: row.window_start)
    truth = true_histograms(settings, feeder)
    errors = errors_of(rows, truth)
    plan = make_plan(settings)
    lost = beyond(settings, feeder, plan.calibration.sigma)
    console = results()
    _show_belief(console, plan, rows[0])
    _show_picture(console, settings, rows, truth)
    _show_cost(console, summary, len(rows), errors, lost)
    if every:
        show_belief(console, plan.model, every=True)
        summary.show(console, every=True)
    _files(console, out, perf_counter() - began)


def _prepare(out: Path, feeder: tuple[str, ...]) -> Settings:
    path = out / "settings.yaml"
    with writing(out, "choose a folder with --out"):
        _check_own(out)
        write_whole(path, _SETTINGS.format(name=path, path=json.dumps(str(data.path(_FILE).resolve()))))
        lines = ["household,feeder", *(f"{name},{_FEEDER}" for name in feeder)]
        write_whole(out / "roster.csv", "\n".join(lines) + "\n")
    settings = read_settings(path)
    if not (out / "model.json").exists():
        source = "London households 2013, the 30 that are not on the feeder"
        fit_settings(settings, Choice(exclude=out / "roster.csv", quick=True), source=source).save(out / "model.json")
    return settings


def _check_own(out: Path) -> None:
    """Check that the demo replaces nothing, and uses nothing, that no demo has written."""
    foreign = [name for name, begin in _BEGINS.items() if begin_of(out / name, len(begin)) not in (b"", begin)]
    if not os.path.lexists(out / "settings.yaml"):
        names = ("roster.csv", "model.json", "releases.parquet", "ledger.db")
        foreign = [name for name in names if os.path.lexists(out / name)]
    if foreign:
        raise CommandError(
            f"--out {out}: {', '.join(foreign)} there was not written by a demo, which would replace or use it; choose "
            "another folder"
        )


def _show_belief(console: Console, plan: Plan, row: Release) -> None:
    cover, total = plan.model.diagnostics["cover"], row.total or 1
    heading(console, "52 weekly load histograms of 30 London homes, at epsilon 1 for the year")
    facts(
        console,
        {
            "data": "60 households, half-hourly, 2013 (Low Carbon London): every second one by name is published, the "
            "others are the history that says what is believed",
            "promise": PROMISE,
            "epsilon 1": f"{odds(1.0)} about one half-hour",
            "habits": habits_told(cover, plan.space),
            "a new home": of_a_new_series(cover),
            "noise": f"each count within {row.half_width_95:,} (95 %), {row.half_width_95 / total:.1%} of a week",
        },
    )


def _show_picture(console: Console, settings: Settings, rows: list[Release], truth: Ints) -> None:
    row = rows[_WEEK]
    week = str(np.datetime64(row.window_start, "us").astype("datetime64[D]"))
    heading(console, f"Half-hours of 30 homes in each band, week of {week}")
    labels, exact = settings.space.labels, truth[_WEEK].tolist()
    for line in comparison(labels, exact, row.counts, row.half_width_95, width=console.width - 4):
        console.print("  ", line, sep="", no_wrap=True, overflow="crop")
    console.print("  ┃ is the published count, ░ its 95 % band of noise", style="dim")


def _show_cost(console: Console, summary: Table, releases: int, errors: Errors, lost: int) -> None:
    run = f"nothing was charged: all {summary['windows_on_record']} windows were on record, and the same rows came out"
    if summary["windows_published"]:
        run = f"{plural(summary['windows_published'], 'window')} published and charged"
    heading(console, "How good, which only this demo may print, and what it cost")
    facts(
        console,
        {
            "a week": f"is off by {errors.share:.1%}, all bands added up; {errors.covered:.0%} of the counts are in "
            "their band",
            "beyond": f"{lost} of the 30 homes lose more than 1 by their own chains",
            "this run": run,
            "loss": f"{summary['loss_after']:.6f} of the budget 1, after {plural(releases, 'release')}, to someone who "
            f"knows a home's habits; naive adding says {summary['naive_loss']:g}",
        },
    )


def _files(console: Console, out: Path, seconds: float) -> None:
    heading(console, f"Files in {out} ({seconds:.1f} s)")
    facts(
        console,
        {
            "the job": "settings.yaml, model.json (the belief) and roster.csv (the homes)",
            "rows": f"quiltstream show {out}/releases.parquet",
            "ledger": f"quiltstream ledger show {out}/ledger.db",
        },
    )
    paragraph(console, "Run it again: the same rows, and nothing is charged.")
