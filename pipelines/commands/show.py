"""``quiltstream show``: released histograms as bars with their bands, and what follows from them. No Beam, no ledger.

All of it is post-processing of published rows: no number here costs anything. What an option adds is one
:class:`Section`: plain values for ``--json``, and the lines of the text.
"""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

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
from ..console import banded, facts, finite, heading, number, plural, print_json, results
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


class Section(NamedTuple):
    """What an option adds."""

    values: Any  # for JSON
    title: str
    print: Callable[[Console], None]


def show(paths: Sequence[Path], view: View, *, as_json: bool) -> None:
    """Print one window, or one sum of windows, of one series or group."""
    table = chosen(paths, view)
    names = table.select(_NAMES).group_by(_NAMES).aggregate([]).num_rows
    for column in _NAMES:  # the first by name
        table = _where(table, column, min(set(table.column(column).to_pylist())))
    (series,) = series_in(table)[:1]
    spans = series.spans(view.period)
    found = _Shown(series, spans, _place(spans, view, series.zone), view)
    if found.space.categories:
        _refuse(view, _ORDERED, "the counts are of labels, which have neither an order nor a size")
    # an option that is refused is so before anything is on the screen
    added = {name: make(found) for name, (make, wanted) in _SECTIONS.items() if wanted(view)}
    if as_json:
        print_json(found.to_dict() | {name: section.values for name, section in added.items()})
        return
    console = results()
    found.print(console, names)
    for section in added.values():
        heading(console, section.title)
        section.print(console)


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

    @property
    def unit(self) -> str:
        return f" {self.space.unit}" if self.space.unit else ""

    def print(self, console: Console, names: int) -> None:
        """Print the bars, and what they rest on."""
        span, found, view, row = self.span, self.histogram, self.view, self.span.rows[-1]
        half, level = found.half_width(view.level), f"{100 * view.level:.4g} %"
        zone, counts = self.series.zone, [int(one) for one in found.counts]
        of_class = "" if view.of_class is None else f", class {view.of_class}"
        when = named(span.start, span.stop, zone)
        heading(console, f"{self.series.query}, {self.series.key_kind} {self.series.key}{of_class}: {when}")
        _bars(console, self.space.labels, counts, half, found.total)
        console.print(f"  ┃ is the published count, ░ its band of noise ({level})", style="dim")
        if min(counts) < 0:
            said = "" if found.estimate is None else "; the estimate, which --tidy and --json have, is never below 0"
            console.print(f"  a count below 0 is noise around few cells{said}", style="dim", soft_wrap=True)
        total = "not public" if found.total is None else f"{found.total:,}"
        kept = {noise.law for noise in found.noises} == {ZERO_SUM}
        length = format_duration((row.window_stop - row.window_start) // row.slots)
        gap = ", with time between them that has no released window" if span.gaps else ""
        several = f"{plural(len(span.rows), 'window')} added up{gap}; " if len(span.rows) > 1 else ""
        kind, of = ("sum", "") if view.period else (row.window, "") if row.window in UNITS else ("window", row.window)
        windows = f"{several}{plural(len(self.spans), kind)}{of and f' of {of}'}"
        clock = "" if zone == "UTC" else f", by the clock of {zone}"
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
                ("windows", f"{windows}, {named(self.spans[0].start, self.spans[-1].stop, zone)}{clock}; --window "
                            f"chooses{others}"),
            ],
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """What is shown without an option, as plain values."""
        found, row = self.histogram, self.span.rows[-1]
        return _of_span(self.series, self.span, self.view.level) | {
            "window_start": format_instant(self.span.start),
            "window_stop": format_instant(self.span.stop),
            "window": row.window,
            "class": self.view.of_class,
            "release_ids": [one.release_id for one in self.span.rows],
            "edges": None if self.space.categories else list(self.space.edges),
            "bins": list(self.space.labels),
            "counts": found.counts.tolist(),
            "half_width": found.half_width(self.view.level),
            "estimate": None if found.estimate is None else [round(one, 6) for one in found.estimate.tolist()],
            "total": found.total,
        }

    def duration(self) -> Section:
        """Cells at or above each edge."""
        tails, total, rows = self.histogram.tails(self.view.level), self.histogram.total, list[tuple[str, str]]()
        values = [
            {"edge": edge, "count": int(count), "half_width": float(half)}
            for edge, count, half in zip(self.space.edges, tails.counts, tails.half_widths, strict=True)
        ]
        for one in values:
            count, half = one["count"], one["half_width"]
            share = f"  {_percent(count / total)} ± {_percent(half / total)}" if total else ""
            rows.append((f"{one['edge']:g}{self.unit} and above", f"{count:>9,} ± {half:,.0f}{share}"))
        return Section(values, "Load duration: cells at or above an edge", partial(facts, said=rows))

    def quantile(self, found: ReleasedHistogram, share: float) -> tuple[float | None, float | None, str]:
        """The edges that a quantile of a histogram lies between, and these in words."""
        places = found.quantile(share, self.view.level)
        low, high = (None if place is None else self.space.edges[place] for place in places)
        if low is None:
            return low, high, "anywhere: the noise hides it" if high is None else f"below {high:g}{self.unit}"
        return low, high, f"{low:g}{self.unit} and above" if high is None else f"{low:g} to {high:g}{self.unit}"

    def quantiles(self) -> Section:
        """Bands of edges."""
        values, rows = list[dict[str, Any]](), list[tuple[str, str]]()
        for share in self.view.quantiles:
            try:
                low, high, said = self.quantile(self.histogram, share)
            except ValueError as error:
                raise CommandError(f"--quantiles: {str(error).removeprefix('quantile: ')}") from error
            values.append({"share": share, "low": low, "high": high})
            rows.append(("median" if share == 0.5 else f"{100 * share:.3g}%", said))  # noqa: PLR2004 - the median
        return Section(values, "Quantiles of the values", partial(facts, said=rows))

    def moments(self) -> Section:
        """Bounds on mean and total of the values."""
        (low, high), edges = self.view.mean or (-math.inf, math.inf), self.space.edges
        if edges and not (low <= edges[0] and high >= edges[-1]):
            raise CommandError(
                f"--mean {low:g},{high:g}: all values lie between these, so they must hold the edges {edges[0]:g} to "
                f"{edges[-1]:g}"
            )
        try:
            found = self.histogram.moments((low, *edges), (*edges, high), self.view.level)
        except ValueError as error:
            raise CommandError(f"--mean: {error}") from error
        said = [("mean", found.mean.low, found.mean.high, self.unit)]
        said.append(("total", found.total.low, found.total.high, f"{self.unit} · slots"))
        if self.space.unit in _WATTS:
            factor = _WATTS[self.space.unit] * self.span.slot_hours / 1000
            said.append(("energy", found.total.low * factor, found.total.high * factor, " kWh"))
        values = {name: finite(ends) for name, *ends, _ in said}
        rows = [(name, f"{_interval(*values[name])}{unit}") for name, *_, unit in said]
        title = "Mean and total of the values, between the ends of the bins"
        return Section(values, title, partial(facts, said=rows))

    def change(self) -> Section:
        """The shares against those of the window, or sum of windows, before."""
        if self.place == 0:
            raise CommandError("--change: there is no window before this one; choose a later one with --window")
        before, now = self.spans[self.place - 1], self.histogram
        if before.stop > self.span.start:
            raise CommandError("--change: the window before overlaps this one; both are noisy counts of the same cells")
        try:
            found = change(before.histogram(self.view.of_class), now, self.view.level)
        except ValueError as error:
            raise CommandError(f"--change: {error}") from error
        half, rows, moves = found.half_width, list[tuple[str, str]](), found.differences.tolist()
        for label, share, moved in zip(self.space.labels, (now.counts / (now.total or 1)).tolist(), moves, strict=True):
            beyond = "" if abs(moved) <= half else "  beyond the noise"
            points = f"{100 * moved:+7.2f} ± {100 * half:.2f} points{beyond}"
            rows.append((label, f"{_percent(share - moved):>7} to {_percent(share):>7}  {points}"))
        title = f"Change of shares since {named(before.start, before.stop, self.series.zone)}"
        values = {"since": format_instant(before.start), "differences": moves, "half_width": half}
        return Section(values, title, partial(facts, said=rows))

    def profile(self) -> Section:
        """A line for each class of slots."""
        span, edges, view = self.span, self.space.edges, self.view
        if not span.classes:
            raise CommandError(
                "--profile: the rows are of all slots; publish them by classes (`by: hour`) for a profile"
            )
        if not edges:
            raise CommandError("--profile: there is a single bin, and so no edge to count from")
        edge = edges[len(edges) // 2] if view.edge is None else view.edge
        if edge not in edges:
            raise CommandError(f"--edge {edge:g}: it is none of the edges {', '.join(f'{one:g}' for one in edges)}")
        place, values = edges.index(edge), list[dict[str, Any]]()
        for label in span.classes:
            found = span.histogram(label)
            tails, total = found.tails(view.level), found.total
            count, half = int(tails.counts[place]), float(tails.half_widths[place])
            low, high, median = self.quantile(found, 0.5) if found.noises else (None, None, "no slot")
            values.append({
                "class": label, "cells": total, "edge": edge, "above": count, "half_width": half,
                "share": count / total if total else None, "share_half_width": half / total if total else None,
                "median_low": low, "median_high": high, "median": median,
            })  # fmt: skip
        left = max(map(len, span.classes))
        labels = [f"{one['class']:<{left}}  {one['median']}" for one in values]
        shares, halves = ([one[name] or 0.0 for one in values] for name in ("share", "share_half_width"))
        title = f"Profile: share of cells at or above {edge:g}{self.unit}, and where the median lies"
        bars = partial(_bars, labels=labels, values=shares, half_width=halves, total=None, percent=True)
        return Section(values, title, bars)


def _bars(
    console: Console,
    labels: Sequence[str],
    values: Sequence[float],
    half_width: float | Sequence[float],
    total: float | None,
    *,
    percent: bool = False,
) -> None:
    for line in banded(labels, values, half_width, total, width=console.width - 4, percent=percent):
        console.print("  ", line, sep="", no_wrap=True, overflow="crop")


def _interval(low: float | None, high: float | None) -> str:
    if low is None:
        open_ = "nothing bounds it: give the ends of the values, e.g. --mean 0,10000;"
        return open_ if high is None else f"at most {number(high)}"
    return f"at least {number(low)}" if high is None else f"{number(low)} to {number(high)}"


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


#: What options add, by its name in JSON, and whether it is wanted.
_SECTIONS: dict[str, tuple[Callable[[_Shown], Section], Callable[[View], Any]]] = {
    "duration": (_Shown.duration, lambda view: view.duration),
    "quantiles": (_Shown.quantiles, lambda view: view.quantiles),
    "moments": (_Shown.moments, lambda view: view.mean is not None),
    "change": (_Shown.change, lambda view: view.change),
    "profile": (_Shown.profile, lambda view: view.profile),
}


def _of_span(series: ReleasedSeries, span: Span, level: float) -> dict[str, Any]:
    """What the picture and the table of sums say of a span."""
    return {
        "domain": series.domain, "query": series.query, "key_kind": series.key_kind, "key": series.key,
        "window_start": span.start, "window_stop": span.stop, "timezone": series.zone, "windows": len(span.rows),
        "gaps": span.gaps, "unit": span.space.unit, "level": level, "loss_after": span.rows[-1].loss_after,
    }  # fmt: skip


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
            shared = _of_span(series, span, view.level) | {
                "model_id": " ".join(sorted({row.model_id for row in span.rows})),
                "release_ids": " ".join(row.release_id for row in span.rows),
            }
            for label in span.classes or (None,):
                found = span.histogram(label)
                half, counts = found.half_width(view.level), found.counts.tolist()
                estimates = [None] * len(counts) if found.estimate is None else found.estimate.tolist()
                bins = zip(span.space.labels, span.space.ends, counts, estimates, strict=True)
                shared |= {"class": label or "", "half_width": half, "total": found.total}
                rows += [
                    shared
                    | {"bin": name, "bin_low": low, "bin_high": high, "count": count, "estimate": estimate}
                    | {"low": count - half, "high": count + half}
                    for name, (low, high), count, estimate in bins
                ]
    return pa.Table.from_pylist(rows, schema=_SUMMED)
