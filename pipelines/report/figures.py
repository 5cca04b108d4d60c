"""Figures by matplotlib: the report's as SVG, each with its text alternative, and the picture of a plan.

Every line has a label and a marker or a dash of its own beside its colour, and every figure of the report comes with
the numbers in words. They go into the page as images, so that nothing in them can run; names in them are plain.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import cycle
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from ...privacy.analysis.utility import ErrorTable
from ...schemas.slots import HOUR_US, said_duration
from ..console import number, plural
from ..released_series import Period, ReleasedSeries, Span, days_between
from . import DomainFacts

#: Inches; narrow, so that a phone shows the text of a figure in a size that can be read.
_WIDTH = 4.6

#: How years, months, days, hours, minutes and seconds are written at an axis; the second for the first of each.
_DATES = ["%Y", "%Y-%m", "%m-%d", "%H:%M", "%H:%M", "%S.%f"]
_ROUND_DATES = ["", "%Y", "%m-%d", "%m-%d", "%H:%M", "%H:%M"]

#: More windows than these are added up by the calendar.
_MOST_WINDOWS = 400

_BLUE, _ORANGE, _GREY = "#0b5394", "#b45f06", "#555555"

_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "quiltstream",  # the same report makes the same bytes
    "font.size": 10,
    "font.family": ["DejaVu Sans", "sans-serif"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.formatter.useoffset": False,
    "text.parse_math": False,  # a name may hold a $
    "path.simplify": True,
}


@dataclass(frozen=True)
class Picture:
    """A figure for the page."""

    title: str  # what it shows
    alternative: str  # the same in words, with its numbers
    source: str  # the SVG as a data URL
    columns: tuple[str, ...] = ()  # headings of its table
    rows: tuple[tuple[str, ...], ...] = ()  # the numbers it draws; none where the page has them elsewhere


def epsilon_over_time(facts: DomainFacts) -> Picture | None:
    """The loss after each charge as a step line, against what adding up says, with the budget and the refusals."""
    if not facts.entries:
        return None
    times = [_when(entry.stop_us) for entry in facts.entries]
    losses = [entry.loss_after if entry.decision == "charged" else entry.loss_before for entry in facts.entries]
    with drawing(2.6) as (figure, (axes,)):
        axes.step(times, losses, where="post", color=_BLUE, linewidth=2, label="the ledger")
        if facts.naive is not None:
            axes.step(times, facts.naive, where="post", color=_ORANGE, linestyle="--", label="adding up")
            if max(facts.naive) > 10 * max(losses):
                axes.set_yscale("log")
        axes.axhline(facts.said.budget, color=_GREY, linestyle=":", label="budget")
        refused = [(when, loss) for when, loss, entry in zip(times, losses, facts.entries, strict=True)
                   if entry.decision == "refused"]  # fmt: skip
        if refused:
            axes.plot(*zip(*refused, strict=True), "x", color="black", label="refused")
        axes.set_ylabel("epsilon")
        axes.legend(frameon=False, loc="best")
        source = _source(figure, dates=True)
    naive = "" if facts.naive is None else f" Adding up says {number(facts.naive[-1])}."
    return Picture(
        "Epsilon over time",
        f"The ledger's loss is {losses[0]:.4g} after the first window and {losses[-1]:.4g} after "
        f"{plural(facts.said.charged, 'window')}, of a budget of {facts.said.budget:g}.{naive} "
        f"{plural(facts.said.refused, 'window')} refused.",
        source,
    )


def event_curve(facts: DomainFacts) -> Picture | None:
    """What an event of a given length loses at most."""
    if not facts.events:
        return None
    hours = [slots * facts.slot_us / HOUR_US for slots, _ in facts.events]
    losses = [loss for _, loss in facts.events]
    with drawing(2.4) as (figure, (axes,)):
        axes.plot(hours, losses, marker="o", markersize=3, color=_BLUE)
        axes.set_xscale("log")
        axes.set_yscale("log")
        for accepted, _ in facts.longest:
            axes.axhline(accepted, color=_GREY, linestyle=":", linewidth=0.8)
            axes.annotate(f"{accepted:g}", (hours[-1], accepted), fontsize=8, color=_GREY, ha="right", va="bottom")
        axes.set_xlabel("length of the event, hours")
        axes.set_ylabel("epsilon at most")
        source = _source(figure)
    longest = [(loss, slots) for loss, slots in facts.longest if slots != 0]
    said = [
        f"{'any event' if slots is None else f'events up to {said_duration(slots * facts.slot_us)}'} within {loss:g}"
        for loss, slots in longest
    ]
    return Picture(
        "What an event of several slots loses at most",
        f"One slot of {facts.slot} loses at most {losses[0]:.4g}; {', '.join(said) or 'no longer event within 4'}.",
        source,
        ("slots", "hours", "epsilon at most"),
        tuple((f"{slots:,}", number(slots * facts.slot_us / HOUR_US), f"{loss:.4g}") for slots, loss in facts.events),
    )


def bins_over_time(series: ReleasedSeries, zone: str = "UTC") -> Picture:
    """The share, or count, of each bin over time, named by a zone's clock, with its band: a panel for each bin."""
    spans, added = _few(series, zone)
    labels, found = spans[-1].space.labels, [span.histogram() for span in spans]
    shared = all(one.total for one in found)
    wholes = np.array([one.total / 100 if shared and one.total else 1 for one in found])
    counts = np.array([one.counts for one in found]) / wholes[:, None]
    widths = np.array([one.half_width() for one in found]) / wholes
    times = [_when((span.start + span.stop) // 2) for span in spans]
    with drawing(0.45 + 0.62 * len(labels), panels=len(labels)) as (figure, panels):
        for axes, label, values in zip(panels, labels, counts.T, strict=True):
            if len(spans) == 1:
                axes.errorbar(times, values, yerr=widths, fmt="o", color=_BLUE, capsize=3)
            else:
                axes.fill_between(times, values - widths, values + widths, color=_BLUE, alpha=0.25, linewidth=0)
                axes.plot(times, values, color=_BLUE, linewidth=1)
            axes.set_title(label, fontsize=9, loc="left", pad=2)
            axes.set_ylim(bottom=min(0.0, (values - widths).min()))
            axes.yaxis.set_major_locator(MaxNLocator(2))
        panels[-1].set_xlabel(f"middle of the window; {'per cent of cells' if shared else 'cells'}", fontsize=8)
        source = _source(figure, dates=True)
    last = spans[-1]
    unit = " %" if shared else ""
    said = ", ".join(f"{label} {count:.1f}{unit}" for label, count in zip(labels, counts[-1].tolist(), strict=True))
    return Picture(
        f"{series.query}, {series.key_kind} {series.key}: each bin over time",
        f"{plural(len(spans), 'point')} from {days_between(spans[0].start, last.stop, zone)}{added}; the last: {said}, "
        f"each within {number(float(widths[-1]), 2)}{' points' if shared else ' cells'} with probability 95 %.",
        source,
    )


def profile(series: ReleasedSeries) -> Picture | None:
    """The share of cells at or above the middle edge by class of slots, over all windows that add up."""
    rows = series.rows if not series.overlap else series.rows[-1:]
    span = Span(rows)
    edges = span.space.edges
    if not span.classes or not edges:
        return None
    place = len(edges) // 2
    found = [(label, span.histogram(label)) for label in span.classes]
    drawn = [(label, one.tails(), one.total) for label, one in found if one.total]
    if not drawn:
        return None
    shares = np.array([100 * tails.counts[place] / total for _, tails, total in drawn])
    widths = np.array([100 * tails.half_widths[place] / total for _, tails, total in drawn])
    labels = [label for label, _, _ in drawn]
    with drawing(2.4) as (figure, (axes,)):
        at = range(len(labels))
        axes.errorbar(at, shares, yerr=widths, fmt="o", markersize=3, color=_BLUE, capsize=2)
        step = max(1, math.ceil(len(labels) / 8))
        axes.set_xticks(list(at)[::step], labels[::step], fontsize=7)
        axes.set_ylim(bottom=min(0.0, (shares - widths).min()))
        axes.set_ylabel("per cent of cells")
        source = _source(figure)
    unit = f" {span.space.unit}" if span.space.unit else ""
    largest = int(shares.argmax())
    return Picture(
        f"{series.query}, {series.key_kind} {series.key}: share at or above {edges[place]:g}{unit} by class of slots",
        f"{plural(len(rows), 'window')} added up; the largest share is {shares[largest]:.1f} % at {labels[largest]}, "
        f"each within {number(float(widths.max()), 2)} points with probability 95 %.",
        source,
        ("class", "share, %", "within, points"),
        tuple(
            (label, f"{share:.2f}", f"{width:.2f}") for label, share, width in zip(labels, shares, widths, strict=True)
        ),
    )


def wrong_beliefs(facts: DomainFacts) -> Picture | None:
    """The losses of wrong beliefs as bars, in a logarithm."""
    known = [(one.what, one.loss) for one in facts.wrong if one.loss is not None and math.isfinite(one.loss)]
    if len(known) < 2:  # noqa: PLR2004 - nothing to compare
        return None
    names = [str(place + 1) for place in range(len(known))]
    with drawing(0.6 + 0.24 * len(known)) as (figure, (axes,)):
        bars = axes.barh(range(len(names)), [loss for _, loss in known], color="white", edgecolor=_BLUE)
        for bar, hatch in zip(bars, cycle(["///", "...", "xxx", "---"]), strict=False):
            bar.set_hatch(hatch)
        axes.bar_label(bars, [f"{loss:.3g}" for _, loss in known], padding=3, fontsize=8)
        axes.set_yticks(range(len(names)), names)
        axes.set_xscale("log")
        axes.margins(x=0.15)
        axes.invert_yaxis()
        axes.set_xlabel("epsilon of everything charged; numbers are the rows of the table", fontsize=8)
        source = _source(figure)
    return Picture("What if the belief is wrong", "; ".join(f"{what}: {loss:.3g}" for what, loss in known), source)


def _few(series: ReleasedSeries, zone: str) -> tuple[list[Span], str]:
    """The windows of a series, added up by a zone's calendar where there are very many; and what was done in words."""
    spans, periods = series.spans(), list[Period](["day", "week", "month", "year"])
    if len(spans) <= _MOST_WINDOWS:
        return spans, ""
    if series.overlap or series.forms > 1:
        step = math.ceil(len(spans) / _MOST_WINDOWS)
        return spans[::step], f", every {step}th of {len(spans):,} windows"
    for period in periods:
        added = series.spans(period, zone)
        if len(added) <= _MOST_WINDOWS:
            return added, f", {len(spans):,} windows added up by the {period}"
    return series.spans("all"), f", {len(spans):,} windows added up"


@contextmanager
def drawing(height: float, panels: int = 1) -> Generator[tuple[Figure, list[Any]]]:
    """A figure of so many inches with panels above each other, in the style of all of them."""
    with mpl.rc_context(_STYLE):  # pyright: ignore[reportArgumentType] - its keys are listed as literals
        figure = Figure((_WIDTH, height))
        axes = figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0]
        figure.subplots_adjust(
            left=0.14, right=0.97, top=1 - 0.22 / height, bottom=0.48 / height, hspace=0.62 if panels > 1 else 0
        )
        yield figure, list(axes)


def plain_axes(figure: Figure) -> None:
    """Write the numbers of all axes out, also those of logarithmic ones."""
    for axes in figure.axes:
        axes.tick_params(labelsize=9)
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_scale() == "log":  # the formatter of its own writes powers as mathematics
                axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
                axis.set_minor_formatter(NullFormatter())


def _source(figure: Figure, *, dates: bool = False) -> str:
    plain_axes(figure)
    if dates:
        locator = AutoDateLocator(minticks=2, maxticks=6)
        figure.axes[-1].xaxis.set_major_locator(locator)
        figure.axes[-1].xaxis.set_major_formatter(
            ConciseDateFormatter(locator, formats=_DATES, zero_formats=_ROUND_DATES, show_offset=False)
        )
    made = io.StringIO()
    figure.savefig(made, format="svg", metadata={"Date": None, "Creator": None})
    return "data:image/svg+xml;base64," + base64.b64encode(made.getvalue().encode()).decode()


def _when(time_us: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)


def draw_errors(table: ErrorTable, windows: Sequence[str], wanted: float, form: str) -> bytes:
    """Draw a table of errors."""
    made = io.BytesIO()
    height = 1.2 + 1.2 * len(table.groups)
    with drawing(height, panels=len(table.groups)) as (figure, panels):
        for place, (axes, group) in enumerate(zip(panels, table.groups, strict=True)):
            for epsilon, rows, mark in zip(table.epsilons, table.errors, cycle("osv^Dx"), strict=False):
                known = [(slots, 100 * share) for slots, row in zip(table.windows, rows, strict=True)
                         if (share := row[place]) is not None and share > 0]  # fmt: skip
                if known:
                    axes.plot(*zip(*known, strict=True), marker=mark, markersize=4, label=f"epsilon {epsilon:g}")
            axes.axhline(100 * wanted, color="#555555", linestyle=":", linewidth=1)
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_title(f"groups of {group:,} series", fontsize=9, loc="left", pad=2)
        figure.suptitle(f"Expected error of a count, % of an evenly filled bin; {table.mechanism}", fontsize=9, y=0.995)
        panels[-1].legend(frameon=False, fontsize=8, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.3))
        plain_axes(figure)
        panels[-1].set_xticks(table.windows, windows)
        panels[-1].minorticks_off()
        figure.subplots_adjust(top=1 - 0.5 / height, bottom=0.8 / height)
        figure.savefig(made, format=form, dpi=150, metadata={"Date": None} if form == "svg" else {"Software": None})
    return made.getvalue()
