"""Figures as SVG: elements in the page that take its colours, or files. Every text is escaped where a tree is written.

A figure is a tree of elements, so a name can never be markup. Colours are those of the page in light and dark; a line
has a dash or a label of its own beside its colour.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.etree import ElementTree as ET

import numpy as np

from ...privacy.estimation.released_histograms import ReleasedHistogram
from ..console import number, plural
from ..released_series import Period, ReleasedSeries, Span, day_of, named
from . import DomainFacts

#: Width of a figure, and of its margins left and right; at 1 to 1.4 CSS pixels for each.
_WIDTH, _LEFT, _RIGHT = 420, 44, 8

#: Height of one panel, and of the label above it.
_PANEL, _LABEL = 64, 26

#: More windows than these are added up by the calendar.
_MOST_WINDOWS = 400

COLOURS = (
    ":root { --ink: #1a1a1a; --paper: #fff; --soft: #5b6470; --line: #0b5394; --band: #8fb8e6; --grid: #dde1e6; "
    "--warn: #a84300; } "
    "@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --paper: #15181d; --soft: #a7b0bc; "
    "--line: #8fc1f5; --band: #2c4f75; --grid: #343b45; --warn: #f0a35e; } }"
)
STYLE = (
    "svg { font: 12px system-ui, 'DejaVu Sans', sans-serif; background: var(--paper); } svg text { fill: var(--ink); } "
    ".soft { fill: var(--soft) !important; } .bar { fill: var(--band); } .band { fill: var(--band); } "
    ".line, .budget, .whisker, .grid, .refused { fill: none; stroke: var(--line); stroke-width: 1.5; } "
    ".grid { stroke: var(--grid); stroke-width: 1; } .whisker { stroke: var(--ink); } "
    ".thin { stroke-width: 0.8; } .budget { stroke: var(--ink); stroke-dasharray: 5 4; } "
    ".refused { stroke: var(--warn); stroke-width: 2; }"
)


def element(tag: str, *children: ET.Element | str | None, **attributes: object) -> ET.Element:
    """An element with its texts and children; ``class_`` is the attribute class, and ``_`` in a name a hyphen."""
    made = ET.Element(tag, {name.strip("_").replace("_", "-"): _text(value) for name, value in attributes.items()})
    last: ET.Element | None = None
    for child in children:
        if isinstance(child, ET.Element):
            made.append(child)
            last = child
        elif child is not None and last is None:
            made.text = (made.text or "") + child
        elif child is not None and last is not None:
            last.tail = (last.tail or "") + child
    return made


def _text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Picture:
    """A figure, and the sentence that says the same."""

    title: str  # what it shows
    words: str  # its numbers in a sentence
    drawn: ET.Element

    def file(self) -> str:
        """The figure as a file of its own."""
        style = element("style", f"{COLOURS} {STYLE}")
        return ET.tostring(element("svg", style, *self.drawn, **self.drawn.attrib), encoding="unicode") + "\n"


@dataclass(frozen=True)
class _Axis:
    """Values to places of a drawing."""

    low: float
    high: float
    first: float  # place of ``low``
    last: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return round(self.first + (self.last - self.first) * share, 1)

    def ticks(self, most: int) -> list[float]:
        """Round values, at most so many."""
        rough = (self.high - self.low) / most or 1.0
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * digit for digit in (1, 2, 5, 10) if power * digit >= rough)
        return [step * one for one in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]


def _canvas(title: str, height: float, parts: Sequence[ET.Element]) -> ET.Element:
    box = f"0 0 {_WIDTH} {math.ceil(height)}"
    return element("svg", *parts, xmlns="http://www.w3.org/2000/svg", viewBox=box, role="img", aria_label=title)


def _at(x: float, y: float, text: str, anchor: str = "start", class_: str = "soft") -> ET.Element:
    return element("text", text, x=x, y=y, text_anchor=anchor, class_=class_)


def _levels(axis: _Axis, unit: str = "") -> list[ET.Element]:
    """Grid lines of an upright axis with their numbers."""
    found: list[ET.Element] = []
    for tick in axis.ticks(3):
        found.append(element("path", d=f"M{_LEFT} {axis(tick)}H{_WIDTH - _RIGHT}", class_="grid"))
        found.append(_at(_LEFT - 4, axis(tick) + 4, f"{number(tick)}{unit}", "end"))
    return found


def _names(names: Sequence[str], places: Sequence[float], y: float) -> list[ET.Element]:
    """The first, the middle and the last name below an axis."""
    shown = sorted({0, len(names) // 2, len(names) - 1} if len(names) > 2 else {0, len(names) - 1})  # noqa: PLR2004
    return [
        _at(places[place], y, names[place], "start" if place == 0 else "end" if place == shown[-1] else "middle")
        for place in shown
    ]


def last_window(series: ReleasedSeries) -> Picture:
    """The newest histogram as bars, each with the band of its noise."""
    span = series.spans()[-1]
    found = span.histogram()
    counts, half = found.counts.tolist(), found.half_width()
    low, high = min(0.0, min(counts) - half), max(1.0, max(counts) + half)
    x = _Axis(low, high, 4, _WIDTH - 8)
    parts: list[ET.Element] = []
    for row, (label, count) in enumerate(zip(span.space.labels, counts, strict=True)):
        y = 36 * row + 14
        share = f" = {100 * count / found.total:.1f} %" if found.total else ""
        left, right = sorted((x(0), x(count)))
        parts += [
            _at(4, y, label, class_="ink"),
            _at(_WIDTH - 8, y, f"{count:,}{share}", "end", "ink"),
            element("rect", x=left, y=y + 5, width=round(right - left, 1), height=11, class_="bar"),
            element("path", d=f"M{x(count - half)} {y + 6}v9m0 -4.5H{x(count + half)}m0 -4.5v9", class_="whisker"),
        ]
    total = "" if found.total is None else f" of {found.total:,}"
    shared = f", {100 * half / found.total:.1f} % of the total" if found.total else ""
    listed = ", ".join(f"{label} {count:,}" for label, count in zip(span.space.labels, counts, strict=True))
    title = f"The last window: {named(span.start, span.stop, series.zone)}"
    words = (
        f"So many slots{total} were in each bin: {listed}. With probability 95 % a count is within "
        f"{number(half)}{shared}, of the true one."
    )
    return Picture(title, words, _canvas(title, 36 * len(counts) + 2, parts))


def course(series: ReleasedSeries) -> Picture:
    """Every bin over the windows."""
    spans, added = _few(series)
    x = _Axis(spans[0].start, spans[-1].stop, _LEFT, _WIDTH - _RIGHT)
    stops = [min(one.stop, other.start) for one, other in pairwise(spans)] + [spans[-1].stop]
    sides = [(x(one.start), x(stop)) for one, stop in zip(spans, stops, strict=True)]
    ends = named(spans[0].start, spans[-1].stop, series.zone)
    return _panels(
        f"Window by window: {ends}",
        f"{plural(len(spans), 'point')}{added}",
        [span.histogram() for span in spans],
        spans[-1].space.labels,
        sides,
        [day_of(one, series.zone)[:16] for one in (*(span.start for span in spans[:-1]), spans[-1].stop)],
    )


def profile(series: ReleasedSeries) -> Picture | None:
    """Every bin over the classes of slots, of all windows that add up: by hour, the profile of the day."""
    span = Span(series.rows if not series.overlap and series.forms == 1 else series.rows[-1:])
    found = [(label, span.histogram(label)) for label in span.classes]
    found = [(label, one) for label, one in found if one.counts.any()]
    if len(found) < 2:  # noqa: PLR2004 - a profile has two classes
        return None
    x = _Axis(0, len(found), _LEFT, _WIDTH - _RIGHT)
    sides = [(x(place), x(place + 1)) for place in range(len(found))]
    names = [label for label, _ in found]
    by = series.rows[-1].by
    title = "The profile of the day" if by == ("hour",) else f"By {' and '.join(by or ('class of slots',))}"
    words = f"{plural(len(span.rows), 'window')} added up, {names[0]} to {names[-1]}"
    return _panels(title, words, [one for _, one in found], span.space.labels, sides, names)


def _panels(
    title: str, words: str, found: Sequence[ReleasedHistogram], labels: Sequence[str],
    sides: Sequence[tuple[float, float]], names: Sequence[str],
) -> Picture:  # fmt: skip
    """A panel for each bin above each other, all on one scale: shares, or counts where totals are not public."""
    shared = all(one.total for one in found)
    wholes = np.array([one.total / 100 if shared and one.total else 1 for one in found])
    values = np.array([one.counts for one in found]) / wholes[:, None]
    halves = np.array([one.half_width() for one in found]) / wholes
    unit = " %" if shared else ""
    low, high = min(0.0, float((values - halves[:, None]).min())), float((values + halves[:, None]).max())
    parts: list[ET.Element] = []
    top = 0.0
    for label, column in zip(labels, values.T, strict=True):
        y = _Axis(low, high, top + _LABEL + _PANEL, top + _LABEL)
        band = "".join(
            f"M{left} {y(value + half)}H{right}V{y(value - half)}H{left}Z"
            for (left, right), value, half in zip(sides, column, halves, strict=True)
        )
        line = "".join(f"M{left} {y(value)}H{right}" for (left, right), value in zip(sides, column, strict=True))
        parts += [
            _at(_LEFT, top + 19, label, class_="ink"),
            *_levels(y, unit),
            element("path", d=band, class_="band"),
            element("path", d=line, class_="line thin"),
        ]
        top += _LABEL + _PANEL
    places = [right if place == len(sides) - 1 else left for place, (left, right) in enumerate(sides)]
    parts += _names(names, places, top + 18)
    ends = [f"{label} {least:.1f} to {most:.1f}{unit}"
            for label, least, most in zip(labels, values.min(axis=0), values.max(axis=0), strict=True)]  # fmt: skip
    points = "points" if shared else "cells"
    said = (
        f"{words}: {', '.join(ends)}. The band, {number(float(halves.max()), 2)} {points} up and down at most, holds "
        "the true value with probability 95 %."
    )
    return Picture(title, said, _canvas(title, top + 24, parts))


def cost(facts: DomainFacts) -> Picture | None:
    """What everything charged so far has lost, after each window, against the budget."""
    if not facts.entries:
        return None
    charged = [(one.stop_us, one.loss_after) for one in facts.entries if one.charged]
    refused = [(one.stop_us, one.loss_before) for one in facts.entries if not one.charged]
    times = [one.stop_us for one in facts.entries]
    x = _Axis(min(one.start_us for one in facts.entries), max(times), _LEFT, _WIDTH - _RIGHT)
    budget = facts.account.budget
    y = _Axis(0.0, 1.05 * max(budget, facts.account.loss), 130, 8)
    way = f"M{x(x.low)} {y(0)}" + "".join(f"H{x(time)}V{y(loss)}" for time, loss in charged)
    parts = [
        *_levels(y),
        element("path", d=f"M{_LEFT} {y(budget)}H{_WIDTH - _RIGHT}", class_="budget"),
        _at(_WIDTH - _RIGHT, y(budget) + 15, f"budget {budget:g}", "end", "ink"),
        element("path", d=way + f"H{x(x.high)}", class_="line"),
        *(element("path", d=f"M{x(time) - 3} {y(loss) - 3}l6 6m0 -6l-6 6", class_="refused") for time, loss in refused),
        *_names([day_of(int(one), facts.timezone)[:10] for one in (x.low, x.high)], [x.first, x.last], 148),
    ]
    said = f"The line ends at {facts.account.loss:.4g}; the budget, dashed, is {budget:g}."
    if refused:
        said += f" Crosses are the {plural(len(refused), 'window')} that the budget refused."
    title = "Epsilon of everything published, window by window"
    return Picture(title, said, _canvas(title, 154, parts))


def _few(series: ReleasedSeries) -> tuple[list[Span], str]:
    """The windows of a series, added up by their calendar where there are very many; and what was done in words."""
    spans, periods = series.spans(), list[Period](["day", "week", "month", "year"])
    if len(spans) <= _MOST_WINDOWS:
        return spans, ""
    if series.overlap or series.forms > 1:
        step = math.ceil(len(spans) / _MOST_WINDOWS)
        return spans[::step], f", every {step}th of {len(spans):,} windows"
    for period in periods:
        added = series.spans(period)
        if len(added) <= _MOST_WINDOWS:
            return added, f", {len(spans):,} windows added up by the {period}"
    return series.spans("all"), f", {len(spans):,} windows added up"
