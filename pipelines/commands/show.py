"""``quiltstream show``: released histograms as bars with their bands, and what follows from them. No Beam, no ledger.

All of it is post-processing of published rows: no number here costs anything. What an option adds is plain values
first, which ``--json`` prints as they are, and lines of text from these.
"""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console

from ...privacy.estimation.released_histograms import ReleasedHistogram, change
from ...schemas.calendars import UNITS
from ...schemas.files import FileError, whole_file
from ...schemas.noise_laws import ZERO_SUM
from ...schemas.releases import tidy
from ...schemas.slots import format_duration, format_instant, parse_instant
from ...schemas.states import StateSpace
from ...schemas.table_files import released_rows
from ..console import banded, facts, heading, number, plural, print_json, results
from ..errors import CommandError, ExitCode, writing
from ..released_series import Period, ReleasedSeries, Span, named, series_in

Format = Literal["csv", "parquet", "json"]

#: How a table of each format begins.
_BEGINS: dict[Format, bytes] = {"csv": b'"domain","query","key', "parquet": b"PAR1", "json": b'[{"domain": "'}
_NAMES = ["domain", "query", "key"]

#: Units of power, in watts: a sum over slots times the length of a slot is energy.
_WATTS = {"W": 1.0, "kW": 1e3, "MW": 1e6}

#: So many names are listed.
_LISTED = 8


@dataclass(frozen=True, slots=True)
class View:
    """What to show."""

    domain: str | None = None  # of this domain only
    query: str | None = None  # of this query only
    key: str | None = None  # of this series or group
    window: str | None = None  # an instant in the window; the last window where it is left out
    of_class: str | None = None  # label of a class of slots; all of them where it is left out
    period: Period | None = None  # windows are added up by this period of their calendar
    level: float = 0.95
    duration: bool = False  # the load-duration curve
    quantiles: tuple[float, ...] = ()
    # lower and upper end of the values, for bounds on mean and total; an end that is not known is infinite
    mean: tuple[float, float] | None = None
    change: bool = False  # against the window, or sum of windows, before
    profile: bool = False  # a line for each class of slots
    edge: float | None = None  # from which edge on a profile counts; the middle one where it is left out


#: Options that need bins in an order, and those that choose what a table has whole; each is a field of a view.
_ORDERED = {name: name for name in ("duration", "quantiles", "mean", "profile")}
_OF_ONE = {**_ORDERED, "window": "window", "class": "of_class", "change": "change", "edge": "edge"}


def _refuse(view: View, options: Mapping[str, str], why: str) -> None:
    for option, field in options.items():
        if getattr(view, field) != getattr(View(), field):
            raise CommandError(f"--{option}: {why}; leave it out")


def show(paths: Sequence[Path], view: View, *, as_json: bool) -> None:
    """Print one window, or one sum of windows, of one series or group."""
    table = chosen(paths, view)
    names = table.select(_NAMES).group_by(_NAMES).aggregate([]).num_rows
    for column in _NAMES:  # the first by name
        table = _where(table, column, min(set(table.column(column).to_pylist())))
    (series,) = series_in(table)[:1]
    spans = series.spans(view.period)
    place = _place(spans, view, series.zone)
    if spans[place].space.categories:
        _refuse(view, _ORDERED, "the counts are of labels, which have neither an order nor a size")
    found = _Shown(series, spans, place, view)
    # an option that is refused is so before anything is on the screen
    added = {name: make(found) for name, (make, _, wanted) in _SECTIONS.items() if wanted(view)}
    if as_json:
        print_json(found.to_dict() | added)
        return
    console = results()
    found.print(console, names)
    for name, values in added.items():
        _SECTIONS[name][1](console, found, values)


def write_table(paths: Sequence[Path], view: View, asked: Format | None, output: Path | None) -> None:
    """Write the chosen rows, or their sums, with one row a count, to a file or to standard output."""
    whole = "a table (--tidy, --format, -o) has all windows and counts, and this is not for it"
    _refuse(view, _OF_ONE, whole)
    if view.period is None:
        _refuse(view, {"level": "level"}, f"{whole} without --sum")
    ending = "" if output is None else output.suffix.removeprefix(".")
    endings: dict[str, Format] = {"csv": "csv", "parquet": "parquet", "json": "json"}
    format_ = asked or endings.get(ending, "csv")
    if ending not in {"", format_}:
        raise CommandError(f"-o {output}: the table is {format_}: end the name with .{format_}, or give --format")
    if output is not None:
        from ..connectors.job_io import check_output  # noqa: PLC0415 - with the settings, which take long to import

        check_output(output, paths, begins=_BEGINS[format_], holds=_is_table if format_ == "parquet" else None)
    table = chosen(paths, view)
    found = as_bytes(rows := tidy(table) if view.period is None else _summed_table(table, view), format_)
    if output is not None:
        with writing(output), whole_file(output) as part:
            part.write_bytes(found)
        results().print(f"{output}: {plural(rows.num_rows, 'row')}", soft_wrap=True)
        return
    if format_ == "parquet" and results().is_terminal:
        raise CommandError("--format parquet: it is not for a terminal; name a file with -o")
    sys.stdout.flush()
    sys.stdout.buffer.write(found)
    sys.stdout.buffer.flush()


def _is_table(path: Path) -> bool:
    """Whether a Parquet file holds such a table: all of them begin alike, those of readings too."""
    try:
        return pq.read_schema(path).names[: len(_NAMES)] == _NAMES
    except (OSError, pa.ArrowException):
        return False


def as_bytes(table: pa.Table, format_: Format) -> bytes:
    """A tidy table as CSV, Parquet or a JSON array; instants are ISO 8601 in text."""
    made = io.BytesIO()
    if format_ == "parquet":
        pq.write_table(table, made, compression="zstd")
        return made.getvalue()
    for name in ("window_start", "window_stop"):
        text = pa.array([format_instant(one) for one in table.column(name).cast(pa.int64()).to_pylist()], pa.utf8())
        table = table.set_column(table.schema.get_field_index(name), name, text)
    if format_ == "json":
        rows = ",\n".join(json.dumps(row, ensure_ascii=False, allow_nan=False) for row in table.to_pylist())
        return f"[{rows}]\n".encode()
    from pyarrow import csv  # noqa: PLC0415 - only this format needs it

    csv.write_csv(table, made, csv.WriteOptions(quoting_style="needed"))
    return made.getvalue()


def chosen(paths: Sequence[Path], view: View) -> pa.Table:
    """The released rows in files that a view is of."""
    try:
        table = released_rows(paths)
    except FileError as error:
        raise CommandError(str(error), ExitCode.SOURCE) from error
    if not table.num_rows:
        raise CommandError("the files hold no row: nothing was released there", ExitCode.SOURCE)
    for option in _NAMES:
        wanted = getattr(view, option)
        if wanted is None:
            continue
        held, table = table, _where(table, option, wanted)
        if not table.num_rows:
            names = sorted(set(held.column(option).to_pylist()))
            more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
            there = ", ".join(map(repr, names[:_LISTED]))
            raise CommandError(f"--{option} {wanted!r}: no row has it; there are {there}{more}")
    return table


def _where(table: pa.Table, column: str, value: str) -> pa.Table:
    return table.filter(pc.equal(table.column(column), value))  # pyright: ignore[reportAttributeAccessIssue] - made at run time


def _place(spans: Sequence[Span], view: View, zone: str) -> int:
    if view.window is None:
        return len(spans) - 1
    try:
        instant = parse_instant(view.window, zone)
    except ValueError as error:
        raise CommandError(f"--window: {error}") from error
    found = [place for place, span in enumerate(spans) if span.start <= instant < span.stop]
    if not found:
        raise CommandError(
            f"--window {view.window}: no released window holds it; they are of "
            f"{named(spans[0].start, spans[-1].stop, zone)}"
        )
    return found[-1]


@dataclass(frozen=True, slots=True)
class _Shown:
    """One span of a series, and what the options show of it."""

    series: ReleasedSeries
    spans: list[Span]
    place: int
    view: View

    @property
    def span(self) -> Span:
        return self.spans[self.place]

    @property
    def histogram(self) -> ReleasedHistogram:
        return self.span.histogram(self.view.of_class)

    @property
    def space(self) -> StateSpace:
        return self.span.space

    def at(self, edge: float) -> str:
        """An edge with its unit."""
        return f"{edge:g}{_unit(self.space)}"

    def print(self, console: Console, names: int) -> None:
        """Print the bars, and what they rest on."""
        span, found, view, row = self.span, self.histogram, self.view, self.span.rows[-1]
        half, level = found.half_width(view.level), f"{100 * view.level:.4g} %"
        of_class = "" if view.of_class is None else f", class {view.of_class}"
        when = named(span.start, span.stop, self.series.zone)
        heading(console, f"{self.series.query}, {self.series.key_kind} {self.series.key}{of_class}: {when}")
        labels, counts = self.space.labels, [int(one) for one in found.counts]
        _bars(console, banded(labels, counts, half, found.total, width=console.width - 4))
        console.print(f"  ┃ is the published count, ░ its band of noise ({level})", style="dim")
        if min(counts) < 0:
            said = "" if found.estimate is None else "; the estimate, which --tidy and --json have, is never below 0"
            console.print(f"  a count below 0 is noise around few cells{said}", style="dim", soft_wrap=True)
        total = "not public" if found.total is None else f"{found.total:,}"
        kept = {noise.law for noise in found.noises} == {ZERO_SUM}
        length = format_duration((row.window_stop - row.window_start) // row.slots)
        gap = ", with time between them that has no released window" if span.gaps else ""
        several = f"{plural(len(span.rows), 'window')} added up{gap}; " if len(span.rows) > 1 else ""
        all_of_them = named(self.spans[0].start, self.spans[-1].stop, self.series.zone)
        count, is_of_calendar = len(self.spans), row.window in UNITS
        kinds = plural(count, row.window) if is_of_calendar else f"{plural(count, 'window')} of {row.window}"
        kinds = kinds if view.period is None else plural(count, "sum")
        clock = "" if self.series.zone == "UTC" else f", by the clock of {self.series.zone}"
        others = f"; {names} series or groups are in the files, --key and --query choose" if names > 1 else ""
        facts(
            console,
            [
                ("cells", f"{total} of {row.members:,} series, each of {length}"),
                ("band", f"each count is within {number(half)} of the true one with probability {level}; noise "
                         f"{'that keeps the total' if kept else 'independent in each count'}, nothing else"),
                ("noise", f"{row.mechanism}, scale {row.scale:.6g} (2 sigma), model {row.model_id}"
                          + (", holds only given the model" if row.given_model else "")),
                ("cost", f"the domain {row.domain} has lost {row.loss_after:.6g} with this; looking costs nothing"),
                ("windows", f"{several}{kinds}, {all_of_them}"
                            f"{clock}; --window chooses{others}"),
            ],
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """What is shown without an option, as plain values."""
        span, found, view = self.span, self.histogram, self.view
        estimate = found.estimate
        return {
            "domain": self.series.domain,
            "query": self.series.query,
            "key_kind": self.series.key_kind,
            "key": self.series.key,
            "class": view.of_class,
            "window_start": format_instant(span.start),
            "window_stop": format_instant(span.stop),
            "window": span.rows[-1].window,
            "timezone": self.series.zone,
            "windows": len(span.rows),
            "gaps": span.gaps,
            "release_ids": [row.release_id for row in span.rows],
            "unit": self.space.unit,
            "edges": None if self.space.categories else list(self.space.edges),
            "bins": list(self.space.labels),
            "counts": found.counts.tolist(),
            "half_width": found.half_width(view.level),
            "level": view.level,
            "estimate": None if estimate is None else [round(one, 6) for one in estimate.tolist()],
            "total": found.total,
            "loss_after": span.rows[-1].loss_after,
        }


def _bars(console: Console, lines: Sequence[Any]) -> None:
    for line in lines:
        console.print("  ", line, sep="", no_wrap=True, overflow="crop")


def _duration(shown: _Shown) -> list[dict[str, Any]]:
    tails = shown.histogram.tails(shown.view.level)
    return [
        {"edge": edge, "count": int(count), "half_width": float(half)}
        for edge, count, half in zip(shown.space.edges, tails.counts, tails.half_widths, strict=True)
    ]


def _print_duration(console: Console, shown: _Shown, found: list[dict[str, Any]]) -> None:
    heading(console, "Load duration: cells at or above an edge")
    total = shown.histogram.total
    labels = [f"{shown.at(one['edge'])} and above" for one in found]
    for label, one in zip(labels, found, strict=True):
        count, half = one["count"], one["half_width"]
        share = f"  {_percent(count / total)} ± {_percent(half / total)}" if total else ""
        console.print(f"  {label:<{max(map(len, labels))}}  {count:>9,} ± {half:,.0f}{share}", soft_wrap=True)


def _edges(shown: _Shown, *places: int | None) -> tuple[float | None, ...]:
    return tuple(None if place is None else shown.space.edges[place] for place in places)


def _quantiles(shown: _Shown) -> list[dict[str, Any]]:
    """Each quantile of the options, and the edges that it lies between."""
    found, level = shown.histogram, shown.view.level
    try:
        bands = [(share, *_edges(shown, *found.quantile(share, level))) for share in shown.view.quantiles]
    except ValueError as error:
        raise CommandError(f"--quantiles: {str(error).removeprefix('quantile: ')}") from error
    return [{"share": share, "low": low, "high": high} for share, low, high in bands]


def _print_quantiles(console: Console, shown: _Shown, found: list[dict[str, Any]]) -> None:
    heading(console, "Quantiles of the values")
    names = ["median" if one["share"] == 0.5 else f"{100 * one['share']:.3g}%" for one in found]  # noqa: PLR2004 - the median
    facts(console, [(name, _between(shown, one["low"], one["high"])) for name, one in zip(names, found, strict=True)])


def _between(shown: _Shown, low: float | None, high: float | None) -> str:
    if low is None:
        return "anywhere: the noise hides it" if high is None else f"below {shown.at(high)}"
    return f"{shown.at(low)} and above" if high is None else f"{low:g} to {shown.at(high)}"


def _moments(shown: _Shown) -> dict[str, list[float | None]]:
    low, high = shown.view.mean or (-math.inf, math.inf)
    edges = shown.space.edges
    if edges and not (low <= edges[0] and high >= edges[-1]):
        raise CommandError(
            f"--mean {low:g},{high:g}: all values lie between these, so they must hold the edges {edges[0]:g} to "
            f"{edges[-1]:g}"
        )
    try:
        found = shown.histogram.moments((low, *edges), (*edges, high), shown.view.level)
    except ValueError as error:
        raise CommandError(f"--mean: {error}") from error
    said = {"mean": (found.mean.low, found.mean.high), "total": (found.total.low, found.total.high)}
    if shown.space.unit in _WATTS:
        factor = _WATTS[shown.space.unit] * shown.span.slot_hours / 1000
        said["energy"] = (found.total.low * factor, found.total.high * factor)
    return {name: [None if math.isinf(end) else end for end in ends] for name, ends in said.items()}


def _print_moments(console: Console, shown: _Shown, found: dict[str, list[float | None]]) -> None:
    unit = _unit(shown.space)
    units = {"mean": unit, "total": f"{unit} · slots", "energy": " kWh"}
    heading(console, "Mean and total of the values, between the ends of the bins")
    facts(console, [(name, f"{_interval(*ends)}{units[name]}") for name, ends in found.items()])


def _interval(low: float | None, high: float | None) -> str:
    if low is None:
        open_ = "nothing bounds it: give the ends of the values, e.g. --mean 0,10000;"
        return open_ if high is None else f"at most {number(high)}"
    return f"at least {number(low)}" if high is None else f"{number(low)} to {number(high)}"


def _change(shown: _Shown) -> dict[str, Any]:
    if shown.place == 0:
        raise CommandError("--change: there is no window before this one; choose a later one with --window")
    before = shown.spans[shown.place - 1]
    if before.stop > shown.span.start:
        raise CommandError("--change: the window before overlaps this one; both are noisy counts of the same cells")
    try:
        found = change(before.histogram(shown.view.of_class), shown.histogram, shown.view.level)
    except ValueError as error:
        raise CommandError(f"--change: {error}") from error
    return {
        "since": format_instant(before.start),
        "differences": found.differences.tolist(),
        "half_width": found.half_width,
    }


def _print_change(console: Console, shown: _Shown, found: dict[str, Any]) -> None:
    before, now, half = shown.spans[shown.place - 1], shown.histogram, found["half_width"]
    heading(console, f"Change of shares since {named(before.start, before.stop, shown.series.zone)}")
    left = max(map(len, shown.space.labels))
    shares = (now.counts / (now.total or 1)).tolist()
    for label, share, moved in zip(shown.space.labels, shares, found["differences"], strict=True):
        beyond = "" if abs(moved) <= half else "  beyond the noise"
        console.print(
            f"  {label:<{left}}  {_percent(share - moved):>7} to {_percent(share):>7}  {100 * moved:+7.2f} ± "
            f"{100 * half:.2f} points{beyond}",
            soft_wrap=True,
        )


def _profile(shown: _Shown) -> list[dict[str, Any]]:
    span, edges, view = shown.span, shown.space.edges, shown.view
    if not span.classes:
        raise CommandError("--profile: the rows are of all slots; publish them by classes (`by: hour`) for a profile")
    if not edges:
        raise CommandError("--profile: there is a single bin, and so no edge to count from")
    edge = edges[len(edges) // 2] if view.edge is None else view.edge
    if edge not in edges:
        raise CommandError(f"--edge {edge:g}: it is none of the edges {', '.join(f'{one:g}' for one in edges)}")
    place, lines = edges.index(edge), list[dict[str, Any]]()
    for label in span.classes:
        found = span.histogram(label)
        tails = found.tails(view.level)
        low, high = _edges(shown, *found.quantile(0.5, view.level)) if found.noises else (None, None)
        count, half = int(tails.counts[place]), float(tails.half_widths[place])
        lines.append(
            {
                "class": label,
                "cells": found.total,
                "edge": edge,
                "above": count,
                "half_width": half,
                "share": count / found.total if found.total else None,
                "share_half_width": half / found.total if found.total else None,
                "median_low": low,
                "median_high": high,
                "median": _between(shown, low, high) if found.noises else "no slot",
            }
        )
    return lines


def _print_profile(console: Console, shown: _Shown, found: list[dict[str, Any]]) -> None:
    edge = shown.at(found[0]["edge"])
    heading(console, f"Profile: share of cells at or above {edge}, and where the median lies")
    left = max(len(line["class"]) for line in found)
    labels = [f"{line['class']:<{left}}  {line['median']}" for line in found]
    shares, halves = ([line[name] or 0.0 for line in found] for name in ("share", "share_half_width"))
    _bars(console, banded(labels, shares, halves, None, width=console.width - 4, percent=True))


#: What options add: by its name in JSON its values, its text, and whether it is wanted.
_SECTIONS: dict[str, tuple[Callable[[_Shown], Any], Callable[[Console, _Shown, Any], None], Callable[[View], Any]]] = {
    "duration": (_duration, _print_duration, lambda view: view.duration),
    "quantiles": (_quantiles, _print_quantiles, lambda view: view.quantiles),
    "moments": (_moments, _print_moments, lambda view: view.mean is not None),
    "change": (_change, _print_change, lambda view: view.change),
    "profile": (_profile, _print_profile, lambda view: view.profile),
}

_TEXT, _NUMBER = pa.utf8(), pa.float64()
_STAMP = pa.timestamp("us", tz="UTC")

#: Columns of a table of sums.
_SUMMED = pa.schema(
    {
        **dict.fromkeys(("domain", "query", "key_kind", "key"), _TEXT),
        **dict.fromkeys(("window_start", "window_stop"), _STAMP),
        "timezone": _TEXT, "windows": pa.int64(), "gaps": pa.bool_(), "class": _TEXT, "bin": _TEXT,
        "bin_low": _NUMBER, "bin_high": _NUMBER, "unit": _TEXT, "count": pa.int64(),
        **dict.fromkeys(("low", "high", "half_width", "level", "estimate"), _NUMBER),
        "total": pa.int64(), "loss_after": _NUMBER, "model_id": _TEXT, "release_ids": _TEXT,
    }
)  # fmt: skip


def _summed_table(table: pa.Table, view: View) -> pa.Table:
    """Sums of windows with one row a count; the release ids are separated by spaces."""
    rows: list[dict[str, Any]] = []
    for series in series_in(table):
        for span in series.spans(view.period):
            shared = {
                "domain": series.domain, "query": series.query, "key_kind": series.key_kind, "key": series.key,
                "window_start": span.start, "window_stop": span.stop, "timezone": series.zone,
                "windows": len(span.rows), "gaps": span.gaps, "unit": span.space.unit, "level": view.level,
                "loss_after": span.rows[-1].loss_after,
                "model_id": " ".join(sorted({row.model_id for row in span.rows})),
                "release_ids": " ".join(row.release_id for row in span.rows),
            }  # fmt: skip
            for label in span.classes or (None,):
                found = span.histogram(label)
                half, estimate = found.half_width(view.level), found.estimate
                for place, (name, (low, high)) in enumerate(zip(span.space.labels, span.space.ends, strict=True)):
                    count = int(found.counts[place])
                    rows.append(
                        shared
                        | {
                            "class": label or "", "bin": name, "bin_low": low, "bin_high": high, "count": count,
                            "low": count - half, "high": count + half, "half_width": half, "total": found.total,
                            "estimate": None if estimate is None else float(estimate[place]),
                        }
                    )  # fmt: skip
    return pa.Table.from_pylist(rows, schema=_SUMMED)


def _unit(space: StateSpace) -> str:
    return f" {space.unit}" if space.unit else ""


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"
