"""``quiltstream show``: released histograms as bars with their bands, and what follows from them. No Beam, no ledger.

All of it is post-processing of published rows: no number here costs anything.
"""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console

from ...privacy.estimation.released_histograms import Bounds, ReleasedHistogram, change
from ...schemas.files import FileError, whole_file
from ...schemas.noise_laws import ZERO_SUM
from ...schemas.releases import tidy
from ...schemas.slots import format_duration, format_instant, parse_instant, time_zone
from ...schemas.states import StateSpace
from ...schemas.table_files import released_rows
from ..console import banded, facts, heading, number, plural, print_json, results
from ..errors import CommandError, ExitCode, writing
from ..released_series import Period, ReleasedSeries, Span, days_between, series_in

Format = Literal["csv", "parquet", "json"]

#: How a table of each format begins.
_BEGINS: dict[Format, bytes] = {"csv": b'"domain","query","key', "parquet": b"PAR1", "json": b'[{"domain": "'}
_FIRST_COLUMNS = ["domain", "query", "key"]

#: Units of power, in watts: a sum over slots times the length of a slot is energy.
_WATTS = {"W": 1.0, "kW": 1e3, "MW": 1e6}

#: So many names are listed.
_LISTED = 8


#: Of windows that are days by another clock.
_OTHER_DAYS = (
    "windows begin or end off midnight UTC: the zone of the settings (slots.timezone), such as --zone Europe/London, "
    "names windows by its days and adds weeks and months up by its calendar"
)


@dataclass(frozen=True, slots=True)
class View:
    """What to show."""

    domain: str | None = None  # of this domain only
    query: str | None = None  # of this query only
    key: str | None = None  # of this series or group
    window: str | None = None  # an instant in the window; the last window where it is left out
    of_class: str | None = None  # label of a class of slots; all of them where it is left out
    period: Period | None = None  # windows are added up by this period of the calendar
    zone: str | None = None  # time zone of the calendar, and of instants without an offset; UTC where it is left out
    level: float = 0.95
    duration: bool = False  # the load-duration curve
    quantiles: tuple[float, ...] = ()
    # lower and upper end of the values, for bounds on mean and total; an end that is not known is infinite
    ends: tuple[float, float] | None = None
    change: bool = False  # against the window, or sum of windows, before
    profile: bool = False  # a line for each class of slots
    edge: float | None = None  # from which edge on a profile counts; the middle one where it is left out

    @property
    def clock(self) -> str:
        """The zone that instants are shown in."""
        return self.zone or "UTC"

    def spans(self, series: ReleasedSeries) -> list[Span]:
        """The windows, or their sums; no sum by the days of UTC of windows that may be days of another clock.

        Raises:
            CommandError: the rows leave open by which calendar they add up, or do not add up.
        """
        if self.period not in {None, "all"} and self.zone is None and series.off_midnight:
            raise CommandError(
                f"--sum {self.period}: windows begin or end off midnight UTC, and rows do not name a calendar; give "
                "the zone of the settings (slots.timezone), for example --zone Europe/London, or --zone UTC"
            )
        return series.spans(self.period, self.clock)


def show(paths: Sequence[Path], view: View, *, as_json: bool) -> None:
    """Print one window, or one sum of windows, of one series or group."""
    table = chosen(paths, view)
    names = table.select(["domain", "query", "key"]).group_by(["domain", "query", "key"]).aggregate([]).num_rows
    series = series_in(_of_first(table))[0]
    spans = view.spans(series)
    place = _place(spans, view)
    if spans[place].space.categories:
        _check_no_order(view)
    found = _Shown(series, spans, place, names, view)
    if as_json:
        print_json(found.to_dict())
        return
    console = results()
    with console.capture() as printed:  # an option that is refused is so before anything is on the screen
        found.print(console)
    console.file.write(printed.get())


def _check_no_order(view: View) -> None:
    """Refuse what needs bins in an order."""
    given = {"duration": view.duration, "quantiles": view.quantiles, "mean": view.ends is not None,
             "profile": view.profile}  # fmt: skip
    for option in (name for name, is_given in given.items() if is_given):
        raise CommandError(
            f"--{option}: the counts are of labels, which have neither an order nor a size; leave it out"
        )


def _check_whole(view: View) -> None:
    """Refuse what a table, which has all windows and classes, would leave out."""
    fields = {"window": "window", "class": "of_class", "duration": "duration", "quantiles": "quantiles",
              "mean": "ends", "change": "change", "profile": "profile", "edge": "edge"}  # fmt: skip
    if view.period is None:
        fields["level"] = "level"
    for option in (name for name, field in fields.items() if getattr(view, field) != getattr(View(), field)):
        raise CommandError(
            f"--{option}: a table (--tidy, --format, -o) has all windows and counts, and this is not for it"
            f"{' without --sum' if option == 'level' else ''}; leave it out"
        )


def write_table(paths: Sequence[Path], view: View, asked: Format | None, output: Path | None) -> None:
    """Write the chosen rows, or their sums, with one row a count, to a file or to standard output."""
    _check_whole(view)
    ending = "" if output is None else output.suffix.removeprefix(".")
    endings: dict[str, Format] = {"csv": "csv", "parquet": "parquet", "json": "json"}
    format_ = asked or endings.get(ending, "csv")
    if ending not in {"", format_}:
        raise CommandError(f"-o {output}: the table is {format_}: end the name with .{format_}, or give --format")
    if output is not None:
        from ..connectors.job_io import check_output  # noqa: PLC0415 - with the settings, which take long to import

        check_output(output, paths, begins=_BEGINS[format_], holds=_is_table if format_ == "parquet" else None)
    table = chosen(paths, view)
    found = tidy(table) if view.period is None else _summed_table(table, view)
    if output is None:
        if format_ == "parquet" and results().is_terminal:
            raise CommandError("--format parquet: it is not for a terminal; name a file with -o")
        sys.stdout.flush()
        sys.stdout.buffer.write(as_bytes(found, format_))
        sys.stdout.buffer.flush()
        return
    with writing(output), whole_file(output) as part:
        part.write_bytes(as_bytes(found, format_))
    results().print(f"{output}: {plural(found.num_rows, 'row')}", soft_wrap=True)


def _is_table(path: Path) -> bool:
    """Whether a Parquet file holds such a table: all of them begin alike, those of readings too."""
    try:
        return pq.read_schema(path).names[: len(_FIRST_COLUMNS)] == _FIRST_COLUMNS
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
        time_zone(view.clock)
    except ValueError as error:
        raise CommandError(f"--zone: {error}") from error
    try:
        table = released_rows(paths)
    except FileError as error:
        raise CommandError(str(error), ExitCode.SOURCE) from error
    if not table.num_rows:
        raise CommandError("the files hold no row: nothing was released there", ExitCode.SOURCE)
    for option, wanted in (("domain", view.domain), ("query", view.query), ("key", view.key)):
        if wanted is None:
            continue
        held, table = table, _where(table, option, wanted)
        if not table.num_rows:
            raise CommandError(f"--{option} {wanted!r}: no row has it; there are {_names(held, option)}")
    return table


def _where(table: pa.Table, column: str, value: str) -> pa.Table:
    return table.filter(pc.equal(table.column(column), value))  # pyright: ignore[reportAttributeAccessIssue] - made at run time


def _names(table: pa.Table, column: str) -> str:
    names = sorted(set(table.column(column).to_pylist()))
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(map(repr, names[:_LISTED])) + more


def _of_first(table: pa.Table) -> pa.Table:
    """The rows of the first series or group by name."""
    for column in ("domain", "query", "key"):
        table = _where(table, column, min(set(table.column(column).to_pylist())))
    return table


def _place(spans: Sequence[Span], view: View) -> int:
    if view.window is None:
        return len(spans) - 1
    try:
        instant = parse_instant(view.window, view.clock)
    except ValueError as error:
        raise CommandError(f"--window: {error}") from error
    found = [place for place, span in enumerate(spans) if span.start <= instant < span.stop]
    if not found:
        raise CommandError(
            f"--window {view.window}: no released window holds it; they go from "
            f"{days_between(spans[0].start, spans[-1].stop, view.clock)}"
        )
    return found[-1]


@dataclass(frozen=True, slots=True)
class _Shown:
    """One span of a series, and what the options show of it."""

    series: ReleasedSeries
    spans: list[Span]
    place: int
    names: int
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

    def print(self, console: Console) -> None:
        """Print the bars, and what the options add."""
        self._print_bars(console)
        if self.view.duration:
            self._print_duration(console)
        if self.view.quantiles:
            heading(console, "Quantiles of the values")
            facts(console, [(_quantile(share), _between(self.space, *band)) for share, band in self._quantiles()])
        if self.view.ends is not None:
            self._print_moments(console)
        if self.view.change:
            self._print_change(console)
        if self.view.profile:
            self._print_profile(console)

    def _print_bars(self, console: Console) -> None:
        span, found = self.span, self.histogram
        half = found.half_width(self.view.level)
        of_class = "" if self.view.of_class is None else f", class {self.view.of_class}"
        when = days_between(span.start, span.stop, self.view.clock)
        heading(console, f"{self.series.query}, {self.series.key_kind} {self.series.key}{of_class}: {when}")
        labels, counts = self.space.labels, [int(one) for one in found.counts]
        for line in banded(labels, counts, half, found.total, width=console.width - 4):
            console.print("  ", line, sep="", no_wrap=True, overflow="crop")
        console.print(f"  ┃ is the published count, ░ its band of noise ({_level(self.view.level)})", style="dim")
        if min(counts) < 0:
            said = "" if found.estimate is None else "; the estimate, which --tidy and --json have, is never below 0"
            console.print(f"  a count below 0 is noise around few cells{said}", style="dim", soft_wrap=True)
        self._print_facts(console, half, found)

    def _print_facts(self, console: Console, half: float, found: ReleasedHistogram) -> None:
        span, row = self.span, self.span.rows[-1]
        total = "not public" if found.total is None else f"{found.total:,}"
        laws = {noise.law for noise in found.noises}
        law = "that keeps the total" if laws == {ZERO_SUM} else "independent in each count"
        length = format_duration((row.window_stop - row.window_start) // row.slots)
        others = f"; {self.names} series or groups are in the files, --key and --query choose"
        gap = ", with time between them that has no released window" if span.gaps else ""
        several = "" if len(span.rows) == 1 else f"{plural(len(span.rows), 'window')} added up{gap}; "
        facts(
            console,
            [
                ("cells", f"{total} of {row.members:,} series, each of {length}"),
                ("band", f"each count is within {number(half)} of the true one with probability "
                         f"{_level(self.view.level)}; noise {law}, nothing else"),
                ("noise", f"{row.mechanism}, scale {row.scale:.6g}, model {row.model_id}"
                          + (", holds only given the model" if row.given_model else "")),
                ("cost", f"the domain {row.domain} has lost {row.loss_after:.6g} with this; looking costs nothing"),
                ("windows", f"{several}{plural(len(self.spans), 'window' if self.view.period is None else 'sum')} from "
                            f"{days_between(self.spans[0].start, self.spans[-1].stop, self.view.clock)}, --window "
                            f"chooses{others if self.names > 1 else ''}"),
                *([("days", _OTHER_DAYS)] if self.view.zone is None and self.series.other_days else []),
            ],
        )  # fmt: skip

    def _edge(self, at: int | None) -> float | None:
        return None if at is None else self.space.edges[at]

    def _print_duration(self, console: Console) -> None:
        found = self.histogram
        tails = found.tails(self.view.level)
        heading(console, "Load duration: cells at or above an edge")
        edges = [f"{edge:g}{_unit(self.space)} and above" for edge in self.space.edges]
        pairs = zip(edges, tails.counts.tolist(), tails.half_widths.tolist(), strict=True)
        for label, count, half in pairs:
            share = "" if not found.total else f"  {_percent(count / found.total)} ± {_percent(half / found.total)}"
            console.print(f"  {label:<{max(map(len, edges))}}  {count:>9,} ± {half:,.0f}{share}", soft_wrap=True)

    def _quantiles(self) -> list[tuple[float, tuple[int | None, int | None]]]:
        """Each quantile of the options, and the edges that it lies between."""
        found = self.histogram
        try:
            return [(share, found.quantile(share, self.view.level)) for share in self.view.quantiles]
        except ValueError as error:
            raise CommandError(f"--quantiles: {str(error).removeprefix('quantile: ')}") from error

    def _print_moments(self, console: Console) -> None:
        unit = _unit(self.space)
        units = {"mean": unit, "total": f"{unit} · slots", "energy": " kWh"}
        heading(console, "Mean and total of the values, between the ends of the bins")
        facts(console, [(name, f"{_interval(one)}{units[name]}") for name, one in self._moments().items()])

    def _moments(self) -> dict[str, Bounds]:
        low, high = self.view.ends or (-math.inf, math.inf)
        edges = self.space.edges
        if edges and not (low <= edges[0] and high >= edges[-1]):
            raise CommandError(
                f"--mean {low:g},{high:g}: all values lie between these, so they must hold the edges {edges[0]:g} to "
                f"{edges[-1]:g}"
            )
        try:
            found = self.histogram.moments((low, *edges), (*edges, high), self.view.level)
        except ValueError as error:
            raise CommandError(f"--mean: {error}") from error
        said = {"mean": found.mean, "total": found.total}
        if self.space.unit in _WATTS:
            factor = _WATTS[self.space.unit] * self.span.slot_hours / 1000
            said["energy"] = Bounds(found.total.low * factor, found.total.high * factor)
        return said

    def _print_change(self, console: Console) -> None:
        found = self._change()
        if found is None:
            raise CommandError("--change: there is no window before this one; choose a later one with --window")
        before, rows, half = found
        heading(console, f"Change of shares since {days_between(before.start, before.stop, self.view.clock)}")
        left = max(map(len, self.space.labels))
        for label, was, now, difference in rows:
            beyond = "" if abs(difference) <= half else "  beyond the noise"
            console.print(
                f"  {label:<{left}}  {_percent(was):>7} to {_percent(now):>7}  {100 * difference:+7.2f} ± "
                f"{100 * half:.2f} points{beyond}",
                soft_wrap=True,
            )

    def _change(self) -> tuple[Span, list[tuple[str, float, float, float]], float] | None:
        if self.place == 0:
            return None
        before = self.spans[self.place - 1]
        if before.stop > self.span.start:
            raise CommandError("--change: the window before overlaps this one; both are noisy counts of the same cells")
        was, now = before.histogram(self.view.of_class), self.histogram
        try:
            found = change(was, now, self.view.level)
        except ValueError as error:
            raise CommandError(f"--change: {error}") from error
        shares = zip((was.counts / (was.total or 1)).tolist(), (now.counts / (now.total or 1)).tolist(), strict=True)
        rows = [
            (label, *pair, difference)
            for label, pair, difference in zip(self.space.labels, shares, found.differences.tolist(), strict=True)
        ]
        return before, rows, found.half_width

    def _profile(self) -> list[dict[str, Any]]:
        span, edges = self.span, self.space.edges
        if not span.classes:
            raise CommandError(
                "--profile: the rows are of all slots; publish them by classes (`by: hour`) for a profile"
            )
        if not edges:
            raise CommandError("--profile: there is a single bin, and so no edge to count from")
        edge = edges[len(edges) // 2] if self.view.edge is None else self.view.edge
        if edge not in edges:
            raise CommandError(f"--edge {edge:g}: it is none of the edges {', '.join(f'{one:g}' for one in edges)}")
        place, lines = edges.index(edge), list[dict[str, Any]]()
        for label in span.classes:
            found = span.histogram(label)
            tails = found.tails(self.view.level)
            low, high = found.quantile(0.5, self.view.level) if found.noises else (None, None)
            count, half = int(tails.counts[place]), float(tails.half_widths[place])
            share = None if not found.total else count / found.total
            lines.append(
                {
                    "class": label,
                    "cells": found.total,
                    "edge": edge,
                    "above": count,
                    "half_width": half,
                    "share": share,
                    "share_half_width": None if not found.total else half / found.total,
                    "median_low": self._edge(low),
                    "median_high": self._edge(high),
                    "median": _between(self.space, low, high) if found.noises else "no slot",
                }
            )
        return lines

    def _print_profile(self, console: Console) -> None:
        lines = self._profile()
        edge = f"{lines[0]['edge']:g}{_unit(self.space)}"
        heading(console, f"Profile: share of cells at or above {edge}, and where the median lies")
        shares = [line["share"] or 0.0 for line in lines]
        halves = [line["share_half_width"] or 0.0 for line in lines]
        left = max(len(line["class"]) for line in lines)
        labels = [f"{line['class']:<{left}}  {line['median']}" for line in lines]
        for line in banded(labels, shares, halves, None, width=console.width - 4, percent=True):
            console.print("  ", line, sep="", no_wrap=True, overflow="crop")

    def to_dict(self) -> dict[str, Any]:
        """Everything that the options show, as plain values."""
        span, found, view = self.span, self.histogram, self.view
        half = found.half_width(view.level)
        estimate = found.estimate
        said: dict[str, Any] = {
            "domain": self.series.domain,
            "query": self.series.query,
            "key_kind": self.series.key_kind,
            "key": self.series.key,
            "class": view.of_class,
            "window_start": format_instant(span.start),
            "window_stop": format_instant(span.stop),
            "windows": len(span.rows),
            "gaps": span.gaps,
            "release_ids": [row.release_id for row in span.rows],
            "unit": self.space.unit,
            "edges": None if self.space.categories else list(self.space.edges),
            "bins": list(self.space.labels),
            "counts": found.counts.tolist(),
            "half_width": half,
            "level": view.level,
            "estimate": None if estimate is None else [round(one, 6) for one in estimate.tolist()],
            "total": found.total,
            "loss_after": span.rows[-1].loss_after,
        }
        if view.duration:
            tails = found.tails(view.level)
            said["duration"] = [
                {"edge": edge, "count": int(count), "half_width": float(width)}
                for edge, count, width in zip(self.space.edges, tails.counts, tails.half_widths, strict=True)
            ]
        if view.quantiles:
            said["quantiles"] = [
                {"share": share, "low": self._edge(low), "high": self._edge(high)}
                for share, (low, high) in self._quantiles()
            ]
        if view.ends is not None:
            said["moments"] = {
                name: [None if math.isinf(end) else end for end in (one.low, one.high)]
                for name, one in self._moments().items()
            }
        if view.change:
            since, rows, half = self._change() or (None, [], 0.0)
            said["change"] = None if since is None else {
                "since": format_instant(since.start), "differences": [row[3] for row in rows], "half_width": half
            }  # fmt: skip
        if view.profile:
            said["profile"] = self._profile()
        return said


_SUMMED = pa.schema(
    [
        pa.field(name, kind, nullable=name in {"bin_low", "bin_high", "estimate", "total"})
        for names, kind in (
            (("domain", "query", "key_kind", "key"), pa.utf8()),
            (("window_start", "window_stop"), pa.timestamp("us", tz="UTC")),
            (("windows",), pa.int64()),
            (("gaps",), pa.bool_()),
            (("class", "bin"), pa.utf8()),
            (("bin_low", "bin_high"), pa.float64()),
            (("unit",), pa.utf8()),
            (("count",), pa.int64()),
            (("low", "high", "half_width", "level", "estimate"), pa.float64()),
            (("total",), pa.int64()),
            (("loss_after",), pa.float64()),
            (("model_id", "release_ids"), pa.utf8()),
        )
        for name in names
    ]
)


def _summed_table(table: pa.Table, view: View) -> pa.Table:
    """Sums of windows with one row a count; the release ids are separated by spaces."""
    rows: list[dict[str, Any]] = []
    for series in series_in(table):
        for span in view.spans(series):
            for label in span.classes or (None,):
                found = span.histogram(label)
                half, estimate = found.half_width(view.level), found.estimate
                shared = {
                    "domain": series.domain, "query": series.query, "key_kind": series.key_kind, "key": series.key,
                    "window_start": span.start, "window_stop": span.stop, "windows": len(span.rows), "gaps": span.gaps,
                    "class": label or "", "unit": span.space.unit, "half_width": half, "level": view.level,
                    "total": found.total, "loss_after": span.rows[-1].loss_after,
                    "model_id": " ".join(sorted({row.model_id for row in span.rows})),
                    "release_ids": " ".join(row.release_id for row in span.rows),
                }  # fmt: skip
                bins = zip(span.space.labels, span.space.ends, found.counts.tolist(), strict=True)
                for place, (name, (low, high), count) in enumerate(bins):
                    own = {"bin": name, "bin_low": low, "bin_high": high, "count": count,
                           "low": count - half, "high": count + half,
                           "estimate": None if estimate is None else float(estimate[place])}  # fmt: skip
                    rows.append(shared | own)
    return pa.Table.from_pylist(rows, schema=_SUMMED)


def _between(space: StateSpace, low: int | None, high: int | None) -> str:
    unit, edges = _unit(space), space.edges
    if low is None and high is None:
        return "anywhere: the noise hides it"
    if low is None:
        return f"below {edges[high or 0]:g}{unit}"
    if high is None:
        return f"{edges[low]:g}{unit} and above"
    return f"{edges[low]:g} to {edges[high]:g}{unit}"


def _quantile(share: float) -> str:
    name = f"{share:.0%}" if share * 100 == round(share * 100) else f"{share:.1%}"
    return "median" if name == "50%" else name


def _interval(bounds: Bounds) -> str:
    if math.isinf(bounds.low) and math.isinf(bounds.high):
        return "nothing bounds it: give the ends of the values, e.g. --mean 0,10000;"
    if math.isinf(bounds.high):
        return f"at least {number(bounds.low)}"
    if math.isinf(bounds.low):
        return f"at most {number(bounds.high)}"
    return f"{number(bounds.low)} to {number(bounds.high)}"


def _level(level: float) -> str:
    return f"{100 * level:.4g} %"


def _unit(space: StateSpace) -> str:
    return f" {space.unit}" if space.unit else ""


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"
