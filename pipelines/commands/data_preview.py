"""Preview of a data file for ``init``: columns, interval and unit, guessed from the first rows.

The guesses go into a settings file that its author reads; nothing else uses them.
"""

from __future__ import annotations

import csv
import datetime as dt
import glob
import json
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...schemas.files import is_file, is_folder, open_regular, reason
from ...schemas.readings import RejectReason
from ...schemas.settings.connectors import FileFormat
from ...schemas.slots import DAY_US, HOUR_US, format_instant
from ...transforms.common.batches import HIGHEST_US, is_text_type
from ...transforms.formats.avro import whole_records
from ...transforms.formats.paths import SourceFileError, open_text, present, unlisted
from ...transforms.formats.rows import MISSING, clock_columns, clock_times, read_values
from ...transforms.formats.times import Stamps, TimePattern, TimeReader
from ..errors import CommandError, ExitCode
from .csv_preview import FEWEST_SERIES, HOUR, TIME, Layout, batches_of, layout_of

#: Formats by the endings of files, and endings of packed files of text.
FORMATS: dict[str, FileFormat] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".txt": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".avro": "avro",
}
PACKED = (".gz", ".bz2", ".zip")

#: Rows that are looked at, enough for a year of hourly readings of twenty series; those of a wide table whose values
#: are, at least; how many times as many cells that may be; and texts of a column that formats are tried on.
ROWS = 200_000
_FEWEST_WIDE_ROWS, _CELLS_A_ROW = 200, 5
_TRIED = 2_000

#: Names of columns: of series; both ends of an interval; of values and labels.
SERIES = re.compile(
    r"household|meter|house|^home$|person|customer|series|device|sensor|wearer|subject|participant|patient|^user|^id$|_id$"
    r"|^lclid$|z(ä|ae)hler(?!stand)|z(ä|ae)hlpunkt|messstelle|kunde"
    r"|(?<![^\W_])(prm|pdl|ean\d{0,18}|(?-i:CUPS))(?![^\W_])|aansluiting|compteur|contador",
    re.IGNORECASE,
)
#: A time that is, where there is another one, not that of the reading.
_UPDATE = re.compile(r"update", re.IGNORECASE)
#: Names of times of UTC and of a local clock; and what pairs of them differ by.
_UTC, _LOCAL = re.compile(r"(?<!o)utc|gmt", re.IGNORECASE), re.compile(r"lo[ck]al", re.IGNORECASE)
_CLOCK = re.compile(rf"{_UTC.pattern}|{_LOCAL.pattern}|stamp|[\W_]", re.IGNORECASE)
_BEGIN = re.compile(r"start|begin|from|onset", re.IGNORECASE)
_END = re.compile(r"end|stop|until|finish|(^|_)to$", re.IGNORECASE)
#: A time that is, most likely, the end of the interval whose value stands beside it.
STAMPS_END = re.compile(r"(?<![^\W_])(bis|ends?|ende|to|until|fin|tot)(?![^\W_])|end_?time|zeit_?ende", re.IGNORECASE)
VALUE = re.compile(
    r"kwh|_wh$|^wh$|kw$|power|watt|load|energy|consum|value(?!r)|reading|(?<!ac)(?<!dis)count(?!y|ry)"
    r"|(?<![^\W_])m[3³](?![^\W_])|verbrauch|[eé]nergie|leistung|wert|valeur|puissance|consommation|valor(?![ai])|verbruik",
    re.IGNORECASE,
)
_LABEL = re.compile(
    r"label|activit|aktivit|status|stage|stadium|zustand|class|mode|annotation|behavio|posture|event|action|phase",
    re.IGNORECASE,
)
_DIGITS = re.compile(r"\d+")
#: Units of columns, by their names, the first that fits; of mW and MW the latter alone, as it is written.
_HOURS = r"s?[ _-]?(hour|hr|stunde|heure|uur|h(?![^\W_]))"
_UNITS = tuple(
    (re.compile(name, re.IGNORECASE), unit)
    for name, unit in (
        (r"(nano|micro|milli|giga|tera)[ _-]?watt|watts?[ _-]?se[ck]", ""),
        (r"kwh[ _]?(/|per)[ _]?h(our)?(?![^\W_])", "kW"),
        (rf"kwh|kilo[ _-]?watt{_HOURS}", "kWh"),
        (rf"(?<![^\s_(\[])(?-i:MWh|MWH)(?![^\s)\]])|mega[ _-]?watt{_HOURS}", "MWh"),
        (rf"(?<![^\s_(\[])wh(?![^\s)\]])|watt{_HOURS}", "Wh"),
        (r"(?<![^\s_(\[])(?-i:MW)(?![^\s)\]])|mega[ _-]?watt", "MW"),
        (r"(?<![^\s_(\[])kw(?![^\s)\]])|kilo[ _-]?watt", "kW"),
        (r"(?<![^\s_(\[])w(?![^\s)\]])|watt", "W"),
        (r"(?<![^\s_(\[])m[3³](?![^\s)\]])", "m3"),
    )
)
#: What makes another unit of one before it, but for a reading's own interval, as in KWH/hh.
_PER = re.compile(
    r"[^\W_]*[\s_()\[\]-]*(/|(?<![^\W_])(per|pro|je|par)(?![^\W_]))(?![\s_]*(hh|half|interval|slot|\d+ ?min))",
    re.IGNORECASE,
)
_UNITS_OF_POWER = frozenset({"W", "kW", "MW"})
#: Names that a message shows.
_SHOWN = 10

#: Formats of texts: of digits alone by how many there are, of times, of days, and of times of the day.
_DIGIT_FORMATS = {12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
_SLASHED = ("%d/%m/%Y", "%m/%d/%Y")
_TIME_FORMATS = (
    *(f"{day} {clock}" for clock in ("%H:%M:%S", "%H:%M") for day in _SLASHED),
    *(f"%d.%m.%Y {clock}" for clock in ("%H:%M", "%H:%M:%S")),
    *(f"{day} {clock} %p" for clock in ("%I:%M:%S", "%I:%M") for day in _SLASHED),
    "%Y-%m-%d %I:%M:%S %p",
    *(f"%d-%m-%Y {clock}" for clock in ("%H:%M", "%H:%M:%S")),
    *(f"%Y/%m/%d {clock}" for clock in ("%H:%M:%S", "%H:%M")),
    *(f"{day} %H" for day in ("%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%d-%m-%Y", "%Y-%m-%d")),
    *_DIGIT_FORMATS.values(),
    *(f"%Y%m%dT%H%M{end}" for end in ("", "%z", "%S", "%S%z", "%S.%f", "%S.%f%z")),
)
_DAY_FORMATS = (*_SLASHED, "%d.%m.%Y", "%d-%m-%Y", "%Y/%m/%d", "%d-%b-%Y", "%d-%b-%y", "%d %b %Y", "%Y%m%d")
_CLOCK_FORMATS = ("%H", "%H:%M", "%H:%M:%S", "%H:%M:%S.%f")
#: A day, or its midnight, as ISO 8601 has it.
_MIDNIGHT = re.compile(r"\d{4}-\d{2}-\d{2}([ T]00:00:00(\.0+)?(Z|[-+]\d{2}:?\d{2})?)?")
#: Units of times that are counted since 1970, by the least that they are.
EPOCHS = ((1e17, "ns"), (1e14, "us"), (1e11, "ms"), (1e8, "s"))

#: Rises from which a value that does not fall is said to be a counter; rises of a series that may be by chance; the
#: part of the series that may fall; and what part of its value may be left of a counter that was cleared.
COUNTER_RISES, _CHANCE_RISES, _MAY_FALL, _CLEARED = 24, 2, 0.1, 100
#: Series that are looked at for that.
_SERIES_TRIED = 1_000

#: Microseconds of a week; when the first Sunday since 1970 begins; and how long after that clocks are set.
_WEEK, _SUNDAY, _NIGHT = 7 * DAY_US, 3 * DAY_US, 4 * HOUR_US
#: Months in which they are, north and south of the equator.
_SET_IN = (3, 4, 9, 10, 11)

#: Times of the day from which a table is said to be wide.
_FEWEST_TIMES = 4
#: Rows go back in time so rarely where a clock is set back: at most once in so many times.
_RARE_FALLS = 10
#: Labels that a column has at most, and rows for each of them at least.
_MOST_LABELS, _ROWS_A_LABEL = 40, 5
#: Shares of a column of texts that must be numbers: where its name is that of a value, and elsewhere.
_HALF, _NEARLY_ALL = 0.5, 0.9

#: Lengths of slots that people use: 1 s to 1 h. All divide the day, as do the further ones that devices send at.
_USUAL_SLOTS = tuple(1_000_000 * seconds for seconds in (1, 5, 10, 30, 60, 300, 600, 900, 1800, 3600))
_DEVICE_SLOTS = tuple(
    1_000_000 * seconds for seconds in (2, 15, 20, 120, 180, 1200, 7200, 10800, 14400, 21600, 28800, 43200, 86400)
)
#: Stamps that vary make intervals shorter by no more than that.
_VARIED = 1.05

#: What to do about values that are no number.
NO_NUMBER = (
    "where a mark stands between their thousands, as in 1.503,5 or 1'503, write them without it; where it stands "
    "before decimals, set readings.decimal"
)

#: What to do with columns of objects or lists.
NESTED = "are not looked into: make each of their fields a column of its own"

#: Numbers with a mark between thousands, with another mark before decimals than the others, or with a unit behind them.
_MARKED = re.compile(
    r"[-+]?(\d{1,3}([.,'\u2019 \u00a0\u202f]\d{3})+([.,]\d+)?|\d+[.,]\d+"
    r"|\d+([.,]\d+)*\s*([kKMm]?[wW]([hH])?|m[3³]|[kKMG]?[jJ]))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRoles:
    """Which columns hold what."""

    series: str | None = None  # column of the series; ``None`` if there is only one series, or a column for each
    names: int = 1  # distinct series seen
    time: tuple[str, ...]
    time_format: str | None  # strptime format of text times that are not ISO 8601
    time_unit: str | None  # unit of times given as numbers
    value: str  # column of the value; of a wide table the first of them
    wide: Literal["series", "times"] | None = None  # what the columns of values are named by, in a wide table
    columns: tuple[str, ...] = ()  # the columns of values of a wide table
    labels: tuple[str, ...] = ()  # where the value is a label: all of them, in their order
    until: str | None = None  # column with the end of each interval

    @property
    def measured(self) -> tuple[str, ...]:
        """The columns of values that are no labels."""
        return () if self.labels else self.columns or (self.value,)


@dataclass(frozen=True, slots=True)
class Measured:
    """The readings of the first rows."""

    times_us: npt.NDArray[np.int64]  # instants of the rows, naive ones read as UTC, sorted
    interval_us: int  # usual distance between two readings of a series
    rises: bool  # whether the value of nearly every series rises and never falls: a meter's counter
    values: npt.NDArray[np.float64]  # the finite values; of a counter how much it rises from one reading to the next
    # pairs of times of a series of which the second stands in the row after the first and is not later, shape (2, n)
    falls_us: npt.NDArray[np.int64]
    local: tuple[str, ...]  # what shows that times which are read as UTC are those of a clock that is set
    again: float  # share of the readings at a time that their series has already, of which a run counts one


@dataclass(frozen=True, slots=True)
class Beside:
    """Columns that are not read, and those of a wide table that are none of its values."""

    numbers: tuple[str, ...]
    times: tuple[str, ...]
    labels: tuple[str, ...]  # of few texts
    unread: tuple[str, ...]  # of numbers that a run does not read for the marks or units in them
    without: tuple[str, ...]  # all of a wide table
    nested: tuple[str, ...]  # of objects or lists


@dataclass(frozen=True, slots=True)
class Lost:
    """What a run does not read as it may be meant."""

    no_time: float  # share of the rows whose time cannot be read; 0 of a wide table
    no_number: float  # share of the values that are there and no number; 0 of labels


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What the first rows of a file suggest."""

    path: Path  # the file; of a folder or a pattern the first
    files: Path  # what was given: the file, or a pattern
    format: FileFormat
    layout: Layout
    complete: bool  # whether every row was looked at
    columns: ColumnRoles
    ambiguous: str | None  # the format with day and month exchanged, where it reads the times too
    naive: bool  # whether the times have no offset and are no counts since 1970, so that a zone is to be named
    unit: str  # unit that the value's name suggests
    measured: Measured
    beside: Beside
    lost: Lost


@dataclass(frozen=True, slots=True)
class _FirstRows:
    """What is looked at of a file."""

    path: Path
    format: FileFormat
    written: pa.Table  # the rows as they are written
    complete: bool  # whether these are all rows
    layout: Layout
    table: pa.Table  # the rows, their numbers of a type of numbers


@dataclass(frozen=True, slots=True)
class _Times:
    """The times of a table, and how to read them."""

    columns: tuple[str, ...]  # those of the time, which are joined with a blank
    instants: npt.NDArray[np.int64]  # microseconds since 1970, -1 where there is none, shape (n,)
    format: str | None = None  # strptime format of texts that are not ISO 8601
    unit: str | None = None  # unit of numbers

    @classmethod
    def read(
        cls, table: pa.Table, columns: tuple[str, ...], format_: str | None = None, unit: str | None = None
    ) -> _Times:
        """Read columns as a run does, times without an offset as UTC."""
        is_typed = not format_ and not columns[1:]
        column = table[columns[0]].combine_chunks() if is_typed else pa.array(_joined(table, columns), pa.utf8())
        instants, problems = TimeReader(time_format=format_ or None, time_unit=unit or "s").read([column])
        for problem in problems:
            instants = np.where(problem.rows, -1, instants)
        return cls(columns, instants, format_ or None, unit)

    def beside(self, **others: Any) -> ColumnRoles:
        """The columns of the time beside others."""
        return ColumnRoles(time=self.columns, time_format=self.format, time_unit=self.unit, **others)


@dataclass(frozen=True, slots=True)
class _Seen:
    """The readings of the first rows; series and instants are -1 where there is none, shape (n,) each."""

    columns: ColumnRoles
    codes: npt.NDArray[np.int64]  # the series of each reading
    instants: npt.NDArray[np.int64]  # microseconds since 1970
    numbers: npt.NDArray[np.float64]  # the values
    ends: npt.NDArray[np.int64] | None = None  # microseconds since 1970 of the end of each interval


def format_of(path: Path) -> FileFormat:
    """The format that a file's name says it has; of a ``.zip`` without another ending that of the file in it."""
    unpacked = without_packing(path)
    if path.suffix.lower() == ".zip" and unpacked.suffix.lower() not in FORMATS and is_file(path):
        with suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
            unpacked = Path(next((member.filename for member in archive.infolist() if not member.is_dir()), ""))
    file_format = FORMATS.get(unpacked.suffix.lower())
    if file_format is None:
        raise CommandError(
            f"{path}: its name does not say what it is; name it with one of the endings {', '.join(FORMATS)}, and "
            f"behind it, where text is packed, one of {', '.join(PACKED)}"
        )
    return file_format


def look_at(path: Path, value: str | None = None, zone: str = "UTC") -> Look:
    """Look at a data file, or at the first of a folder or a pattern; the column of the value is guessed if left out.

    Of two columns of times that differ by their clocks alone it takes that of the zone.
    """
    given, path = path, _first_file(path)
    files, inside = given, path.relative_to(given).parts[:-1] if is_folder(given) else ()
    if is_folder(given):
        files = given / _like(path, given)
    found = _with_numbers(_first_rows(path, format_of(path), value), value)
    found = replace(found, table=_by_clock(found.table, zone))
    may_be_wide = value is None and found.format in ("csv", "parquet")
    seen = (_wide_times(found.table) or _wide_series(found.table)) if may_be_wide else None
    seen = seen or _long(found, value)
    columns, lost = seen.columns, _lost(found, seen)
    _check(found, columns)
    _check_folders(given, inside, columns)
    named = columns.value if columns.wide is None else f"{columns.value} {path.stem}"
    return Look(
        path=path,
        files=files,
        format=found.format,
        layout=found.layout,
        complete=found.complete and files == path,
        columns=columns,
        ambiguous=_exchanged(found.table, columns.time, columns.time_format),
        naive=_is_naive(found.table, columns),
        unit="" if columns.labels else unit_of(named),
        measured=_measured(path, seen),
        beside=_beside(found, columns),
        lost=lost,
    )


def _lost(found: _FirstRows, seen: _Seen) -> Lost:
    columns = seen.columns
    return Lost(
        no_time=0.0 if columns.wide is not None else float((seen.instants == -1).mean()),
        no_number=_no_number(found.written, columns.measured, found.layout.decimal),
    )


def _check(found: _FirstRows, columns: ColumnRoles) -> None:
    """Check that times of digits are text, as a run reads them."""
    path, table = found.path, found.table
    is_formatted = found.format != "csv" and columns.time_format is not None and len(columns.time) == 1
    if is_formatted and _is_number(table[columns.time[0]].type):
        raise CommandError(
            f"{path}: the times in {columns.time[0]} are digits of a date in a column of numbers, and numbers are read "
            "as counts since 1970; convert the column to text"
        )


def _check_folders(given: Path, inside: Sequence[str], columns: ColumnRoles) -> None:
    """Check that the series are in the files, not in names of folders such as meter=m1."""
    names = [name for name, mark, _ in (one.partition("=") for one in inside) if mark and SERIES.search(name)]
    if names and columns.series is None and columns.wide is None:
        raise CommandError(
            f"{given}: {names[0]} is in names of folders alone, which are not read, so that all files would be one "
            f"series; write the files with a column {names[0]}",
            ExitCode.SOURCE,
        )


def _measured(path: Path, seen: _Seen) -> Measured:
    known = (seen.instants >= 0) & (seen.instants <= HIGHEST_US)
    if seen.columns.wide is None and not known.any():
        raise CommandError(
            f"{path}: no time in {' and '.join(seen.columns.time)} is of the years 1970 to 2200, of which alone `init` "
            "sees the interval; correct the times, or, as a run reads those from 1900 on, write the settings by hand"
        )
    if seen.ends is not None:
        known &= seen.ends > seen.instants
    codes, instants = seen.codes[known], seen.instants[known]
    falls = _falls(codes, instants)
    may_rise = unit_of(seen.columns.value) not in _UNITS_OF_POWER  # power falls
    runs = runs_of(codes, instants, seen.numbers[known])
    rises = may_rise and are_counters(runs)
    few = 0 < _RARE_FALLS * falls.shape[1] <= len(np.unique(instants))  # else the rows are in another order of time
    if may_rise and not rises and few and (falls[0] - falls[1] < HOUR_US).all():
        # a clock set back has an hour twice, and the rows alone tell which of two counts is the later one
        by_rows = runs_of(codes, np.arange(len(codes)), seen.numbers[known])
        if rises := are_counters(by_rows):
            runs = by_rows
    steps = np.concatenate([np.diff(run) for run in runs])
    values = steps[steps >= 0] if rises else seen.numbers
    if seen.ends is None:
        times, interval = instants, _interval(path, codes, instants)
    else:
        ends = seen.ends[known]
        times, interval = np.concatenate([instants, ends - 1]), slot_of(ends - instants)
    local = clock_changes(codes, instants, len(np.unique(codes)))
    again = _again(codes, instants) if seen.ends is None else 0.0
    return Measured(np.sort(times), interval, rises, values[np.isfinite(values)], falls, tuple(local), again)


def _falls(codes: npt.NDArray[np.int64], instants: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Distinct pairs of times of a series, in the order of its rows, that do not rise."""
    order = np.argsort(codes, kind="stable")
    codes, instants = codes[order], instants[order]
    at = np.flatnonzero((np.diff(codes) == 0) & (np.diff(instants) <= 0))
    return np.unique(np.stack([instants[at], instants[at + 1]]), axis=1)


def _again(codes: npt.NDArray[np.int64], instants: npt.NDArray[np.int64]) -> float:
    """The share of the readings at a time that their series has already."""
    order = np.lexsort((instants, codes))
    repeats = (np.diff(codes[order]) == 0) & (np.diff(instants[order]) == 0)
    return float(repeats.sum()) / max(len(codes), 1)


def clock_changes(codes: npt.NDArray[np.int64], instants: npt.NDArray[np.int64], count: int) -> Iterator[str]:
    """An hour of a Sunday night that most of ``count`` series have twice, or not, as of a clock that is set."""
    order = np.lexsort((instants, codes))
    codes, instants = codes[order], instants[order]
    mine, steps = np.diff(codes) == 0, np.diff(instants)
    usual = most_frequent(steps[mine & (steps > 0)]) or 0
    for longer, behind, what in (
        (0, 0, "has times twice, as where a clock is set back"),
        (usual + HOUR_US, usual, "has no times, as where a clock is set forward"),
    ):
        # of stamps that are further apart, as of days, none is doubled
        at = np.flatnonzero(mine & (steps == longer) & (longer > 0 or 0 < usual <= HOUR_US))
        pairs = np.unique(np.stack([(instants[at] + behind) // HOUR_US * HOUR_US, codes[at]]), axis=1)
        hours, counts = np.unique(pairs[0], return_counts=True)
        hours, counts = hours[2 * counts > count], counts[2 * counts > count]
        months = hours.astype("datetime64[us]").astype("datetime64[M]").astype(np.int64) % 12 + 1
        is_night = ((hours - _SUNDAY) % _WEEK < _NIGHT) & np.isin(months, _SET_IN)
        # one hour in a hundred is of such a night: where few of these are, any hour is so
        if is_night.any() and 10 * is_night.sum() > len(hours):
            most = np.argmax(np.where(is_night, counts, 0))
            hour = format_instant(int(hours[most]))
            yield f"the hour from {hour} of a Sunday {what}, in {counts[most]:,} of {count:,} series"


def local_times(evidence: str, setting: str) -> str:
    """What to do where a clock that is set shows in times that are read as UTC."""
    return f"{evidence}: if the data have local times, set {setting} to their zone, such as Europe/Berlin"


def is_doubled(shown: dt.datetime) -> bool:
    """Whether the clock of a zone shows a time twice, because it is set back."""
    first, second = (shown.replace(fold=fold).utcoffset() for fold in (0, 1))
    return first is not None and second is not None and first > second


def _beside(found: _FirstRows, columns: ColumnRoles) -> Beside:
    table, is_wide = found.table, columns.wide is not None
    taken = {*columns.time, columns.value, *columns.columns, columns.series, columns.until}
    others = [name for name in table.column_names if name not in taken]
    labels = [] if is_wide else [name for name in _label_columns(table, columns.time) if name in others]
    times = [name for name in others if TIME.search(name) and _times_of(table.select([name])) is not None]
    return Beside(
        numbers=tuple(name for name in others if _is_number(table[name].type) and name not in times),
        times=tuple(times),
        labels=tuple(name for name in labels if _times_of(table.select([name])) is None),
        unread=tuple(name for name in others if _is_marked(table, name)),
        without=tuple(others) if is_wide else (),
        nested=tuple(name for name in others if pa.types.is_nested(table[name].type)),
    )


def _by_clock(table: pa.Table, zone: str) -> pa.Table:
    """The table with the times of the clock of a zone before those that have their name but for another clock's."""
    names = table.column_names
    stems = {name: _CLOCK.sub("", name).lower() if TIME.search(name) else name for name in names}
    first = {stems[name]: -at for at, name in enumerate(reversed(names))}

    def place(name: str) -> tuple[int, bool, bool]:
        is_utc = _UTC.search(name) is not None
        return first[stems[name]], is_utc != (zone == "UTC"), is_other_clock(name, zone)

    return table.select(sorted(names, key=place))


def is_other_clock(name: str, zone: str) -> bool:
    """Whether the name of a column of times contradicts the zone that they are read by."""
    return (_LOCAL if zone == "UTC" else _UTC).search(name) is not None


def unit_of(name: str) -> str:
    """The unit that is in the name of a column: at its end, in brackets or between blanks; empty if there is none."""
    found = next(((unit, match) for pattern, unit in _UNITS if (match := pattern.search(name))), None)
    return "" if found is None or _PER.match(name, found[1].end()) else found[0]


def without_packing(path: Path) -> Path:
    """The name of a file without the ending of its packing."""
    return Path(path.stem) if path.suffix.lower() in PACKED else path


def _first_file(path: Path) -> Path:
    """The file, or the first of a folder or a pattern, of what a run would find."""
    if is_folder(path):
        files = [file for file in _found(path, str(Path(glob.escape(str(path)), "**"))) if _is_known(file)]
        kinds = sorted({_like(file, path) for file in files})
        if len(kinds) != 1:
            what = f"files of {len(kinds)} kinds, {_listed(kinds)}" if kinds else "no file of a known ending"
            example = path / (kinds or ["*.csv"])[0]
            raise CommandError(f"{path}: the folder has {what}; name those to read with a pattern such as '{example}'")
        return files[0]
    if not is_file(path) and glob.has_magic(str(path)):
        files = _found(path, str(path))
        if not files:
            raise CommandError(f"{path}: no file matches; check the path", ExitCode.SOURCE)
        return files[0]
    return path


def _found(given: Path, pattern: str) -> list[Path]:
    """The files that a run finds by a pattern; ``given`` is what the command line has."""
    found = present([pattern])
    closed = [unlisted(folder, error) for folder, error in sorted(found.closed.items())]
    if closed:
        raise CommandError(
            f"{given}: {closed[0]}; give this user the right to list it, or name the files with a pattern that leaves "
            "it out",
            ExitCode.SOURCE,
        )
    return [Path(file) for file in found.paths]


def _is_known(file: Path) -> bool:
    """Whether a file has a known ending, or is an archive, in which such a file may be."""
    return file.suffix.lower() == ".zip" or without_packing(file).suffix.lower() in FORMATS


def _like(file: Path, folder: Path) -> str:
    """The pattern, below a folder, of the files that are as deep in it and end as one."""
    *inside, name = file.relative_to(folder).parts
    unpacked = without_packing(Path(name)).suffix if Path(name).suffix.lower() in PACKED else ""
    ending = (unpacked if unpacked.lower() in FORMATS else "") + Path(name).suffix
    return str(Path(*("*" for _ in inside), f"*{ending}"))


def _first_rows(path: Path, file_format: FileFormat, value: str | None) -> _FirstRows:
    try:
        open_regular(path).close()
        layout = layout_of(path, value) if file_format == "csv" else Layout()
        has_own_packing = file_format in ("parquet", "avro")
        with open_regular(path) if has_own_packing else open_text(str(path), layout.encoding) as file:
            rows_of = {"csv": partial(batches_of, layout), "jsonl": _jsonl, "avro": _avro}.get(file_format)
            batches = pq.ParquetFile(file).iter_batches() if rows_of is None else rows_of(file)
            taken: list[pa.RecordBatch] = []
            rows = 0
            for batch in batches:
                taken.append(batch)
                rows += batch.num_rows
                if rows >= ROWS:
                    break
            is_complete = next(iter(batches), None) is None
            table = _plain(pa.Table.from_batches(taken)) if taken else pa.table({})
    except FileNotFoundError as error:
        raise CommandError(f"{path}: there is no such file; check the path", ExitCode.SOURCE) from error
    except SourceFileError as error:
        raise CommandError(str(error), ExitCode.SOURCE) from error
    except (OSError, pa.ArrowException, ValueError, EOFError, csv.Error) as error:
        raise CommandError(
            f"{path}: cannot be read as {file_format} ({reason(error)}); check the file and its ending", ExitCode.SOURCE
        ) from error
    if not table.num_rows:
        raise CommandError(
            f"{path}: it has no rows to look at; give a file with a row for each reading"
            + (", below the names of its columns, with every quote closed" if file_format == "csv" else ""),
            ExitCode.SOURCE,
        )
    table = _without_index(_with_single_names(path, table))
    return _FirstRows(path, file_format, table, is_complete, layout, table)


def _plain(table: pa.Table) -> pa.Table:
    """The table with each value in its row, and every text of one type: as a run takes them."""
    kinds = [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in table.schema.types]
    kinds = [pa.utf8() if pa.types.is_string_view(kind) else kind for kind in kinds]
    return table.cast(pa.schema(list(zip(table.column_names, kinds, strict=True))))


def _jsonl(file: Any) -> Iterator[pa.RecordBatch]:
    """The lines that are objects."""
    rows: list[dict[str, Any]] = []
    for line in islice(file, ROWS):
        with suppress(ValueError, RecursionError):
            if isinstance(row := json.loads(line), dict):
                rows.append(row)
    if not rows:
        raise ValueError("no line is an object")
    yield _of_rows(rows)
    if next(file, None) is not None:
        yield pa.record_batch([pa.array([None])], names=["more"])


def _of_rows(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Rows of any types; a column whose values are of several types as text."""
    columns: dict[str, pa.Array] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows]
        try:
            columns[name] = pa.array(values)
        except (pa.ArrowException, OverflowError):
            columns[name] = pa.array([None if value is None else str(value) for value in values])
    return pa.RecordBatch.from_pydict(columns)


def _avro(file: Any) -> Iterator[pa.RecordBatch]:
    rows = whole_records(file)
    while part := list(islice(rows, ROWS)):
        yield _of_rows(part)


def _with_single_names(path: Path, table: pa.Table) -> pa.Table:
    """The table without empty columns that share a name, as those after delimiters at the ends of lines."""
    twice = {name: count for name, count in Counter(table.column_names).items() if count > 1}
    names = table.column_names
    kept = [at for at, name in enumerate(names) if name not in twice or table.column(at).null_count < len(table)]
    table = table.select(kept)
    for name, count in twice.items():
        if name in table.column_names:
            raise CommandError(
                f"{path}: it has {count} columns {name!r}; rename all but one, or take away lines above the names of "
                "the columns",
                ExitCode.SOURCE,
            )
    return table


def _without_index(table: pa.Table) -> pa.Table:
    """The table without the number of each row, which pandas writes first; a column without a name gets a blank one."""
    if "" not in table.column_names:
        return table
    at = table.column_names.index("")
    column = table.column(at)
    if pa.types.is_integer(column.type):
        numbers = column.combine_chunks().fill_null(-1).to_numpy(zero_copy_only=False)
        if np.array_equal(numbers, np.arange(len(numbers)) + (numbers[0] if len(numbers) else 0)):
            return table.remove_column(at)
    return table.rename_columns([name or " " for name in table.column_names])


def _with_numbers(first: _FirstRows, value: str | None) -> _FirstRows:
    """The same with numbers for values that are mostly numbers, beside marks of a missing one or of an error.

    What has digits and is none stays text: names of rooms and contracts, stages of sleep. A name of a measured value
    tells one from the other. Where none has, or for the column that is asked for, nearly all must be numbers and the
    marks without a digit; in a file whose columns have types, a text without marks and fractions is one on purpose.
    """
    table = first.table
    texts = [
        name
        for name in table.column_names
        if is_text_type(table.column(name).type) and not any(names.search(name) for names in (SERIES, TIME, _LABEL))
    ]
    for name in sorted(texts, key=lambda name: not VALUE.search(name)):
        is_named = VALUE.search(name) is not None
        if not is_named and name != value and any(map(VALUE.search, _number_columns(table))):
            continue
        numbers = _as_numbers(table[name].combine_chunks(), first, is_named=is_named)
        if numbers is not None:
            table = table.set_column(table.column_names.index(name), name, numbers)
    return replace(first, table=table)


def _as_numbers(column: pa.Array, first: _FirstRows, *, is_named: bool) -> pa.Array | None:
    """A column as numbers; ``None`` if it is text."""
    numbers, problems = read_values(column, decimal=first.layout.decimal)
    known = ~np.logical_or.reduce([np.zeros(len(numbers), dtype=bool), *(problem.rows for problem in problems)])
    missing = sum(problem.rows.sum() for problem in problems if problem.reason is RejectReason.MISSING_VALUE)
    if not known.any() or known.sum() < (_HALF if is_named else _NEARLY_ALL) * (len(numbers) - missing):
        return None
    if not is_named:
        marks = column.filter(pa.array(~known)).drop_null().to_pylist()
        on_purpose = first.format != "csv" and not marks and not (numbers[known] % 1).any()
        if on_purpose or any(map(_DIGITS.search, marks)):
            return None
    return pa.array(numbers, mask=~known)


def _wide_times(table: pa.Table) -> _Seen | None:
    """A table with a column for each time of the day, evenly apart, and a row for each series and day."""
    numbers = _number_columns(table, or_empty=True)
    columns = tuple(numbers[at] for at in clock_columns(numbers))
    clock = clock_times(columns)
    if len(columns) < _FEWEST_TIMES or len(set(np.diff(clock).tolist())) > 1 or clock[1] <= clock[0]:
        return None
    others = table.drop_columns(list(columns))
    days = _days_of(others)
    if days is None:
        return None
    series = _series(others, days.columns)
    codes, names = _codes(others, series)
    rows = slice(0, max(_FEWEST_WIDE_ROWS, ROWS * _CELLS_A_ROW // len(columns)))
    midnights = days.instants[rows]
    instants = np.where(midnights >= 0, midnights + clock[:, None], -1)
    values = np.stack([_numbers(table, name, rows) for name in columns])
    seen = np.where(np.isfinite(values), instants, -1).ravel()  # an empty cell is no reading
    roles = days.beside(series=series, names=names, value=columns[0], wide="times", columns=columns)
    return _Seen(roles, np.tile(codes[rows], len(columns)), seen, values.ravel())


def _wide_series(table: pa.Table) -> _Seen | None:
    """A table with a column for each series: columns of numbers that have one name but for its digits.

    Beside three of them, which may be phases, a value is that of one series; beside more it is a sum of them, or
    another quantity.
    """
    times = _times_of(table)
    if times is None:
        return None
    others = table.drop_columns(list(times.columns))
    if any(map(is_text_type, others.schema.types)):
        return None  # of a name, most likely
    numbers = _number_columns(others, or_empty=True)
    stems = Counter(_DIGITS.sub("#", name.strip()) for name in numbers)
    stem, count = max(stems.items(), key=lambda pair: pair[1], default=("", 0))
    columns = tuple(name for name in numbers if _DIGITS.sub("#", name.strip()) == stem)
    beside = [name for name in numbers if name not in columns]
    fewest = max(FEWEST_SERIES, len(beside) + 1, FEWEST_SERIES + any(map(VALUE.search, beside)))
    if "#" not in stem or count < fewest:
        return None
    rows = slice(0, max(_FEWEST_WIDE_ROWS, ROWS * _CELLS_A_ROW // count))
    values = np.stack([_numbers(table, name, rows) for name in columns])
    seen = np.where(np.isfinite(values), times.instants[rows], -1).ravel()
    roles = times.beside(names=count, value=columns[0], wide="series", columns=columns)
    return _Seen(roles, np.repeat(np.arange(count), values.shape[1]), seen, values.ravel())


def _long(found: _FirstRows, value: str | None) -> _Seen:
    """A table with a row for each reading."""
    table = found.table
    times = _times_of(table)
    if times is None:
        way = "convert the file, or build the readings in a pipeline of your own (docs/guides/own-pipeline.md)"
        way = f"take away lines above the names of the columns, {way}" if found.format == "csv" else way
        counted = [name for name in _number_columns(table) if TIME.search(name)]
        if counted:  # one of seconds since 1970 would be a time
            way = f"write the numbers in {_listed(counted)}, such as days of a spreadsheet, as 2024-03-01 00:15"
        raise CommandError(
            f"{found.path}: none of its columns, {_listed(table.column_names)}, looks like a time; "
            f"{_flatten(table)}{way}"
        )
    label = _label(found, times.columns, value)
    if label is not None:
        return _labelled(found, times, label)
    series = _series(table, times.columns)
    series = series or _series_of_floats(found, times.instants, value)
    numbers = [name for name in _number_columns(table) if name not in {*times.columns, series}]
    value = _value(found, numbers, value)
    codes, names = _codes(table, series)
    roles = times.beside(series=series, names=names, value=value)
    return _Seen(roles, codes, times.instants, _numbers(table, value))


def _value(found: _FirstRows, numbers: list[str], wanted: str | None) -> str:
    """Of some columns of numbers that of the value: the one that is asked for, or the likeliest."""
    path, table = found.path, found.table
    if wanted in numbers or (wanted is None and numbers):
        return wanted or min(numbers, key=lambda name: not VALUE.search(name))
    marked = [name for name in table.column_names if wanted in (name, None) and _is_marked(table, name)]
    if marked:
        raise CommandError(
            f"{path}: numbers in {_listed(marked)} have marks between thousands, two marks before decimals or units "
            "behind them, as 1.503,5 or 0.5 kWh, and a run does not read them: write them as 1503.5"
        )
    if wanted is None:
        raise CommandError(
            f"{path}: none of its columns, {_listed(table.column_names)}, holds numbers to measure; {_flatten(table)}"
            "convert the file"
        )
    there, what = "no column of numbers", "name a column of labels"
    if numbers:
        there, what = f"the columns of numbers {_listed(numbers)}", "name one, or one of labels"
    raise CommandError(f"--value {wanted!r}: {path} has {there}; {_flatten(table)}{what}")


def _is_marked(table: pa.Table, name: str) -> bool:
    """Whether a column has texts that are numbers with marks or units, nearly all beside plain ones."""
    if not is_text_type(table[name].type):
        return False
    tried = _tried([str(text).strip() for text in table[name].drop_null().to_pylist()])
    others = [one for one in tried if not one.isdecimal()]
    return bool(others) and sum(bool(_MARKED.fullmatch(one)) for one in others) >= _NEARLY_ALL * len(others)


def _labelled(found: _FirstRows, times: _Times, label: str) -> _Seen:
    """A table with a row for each label: of an instant, or of an interval where there is an end."""
    table = found.table
    begin = _first_times(table, filter(_BEGIN.search, table.column_names))
    others = [] if begin is None else [name for name in table.column_names if name not in {*begin.columns, label}]
    end = _first_times(table, filter(_END.search, others))
    if begin is not None and end is not None:
        times = begin
    until = None if end is None else end.columns[0]
    series = _series(table.drop_columns([label, *([] if until is None else [until])]), times.columns)
    codes, names = _codes(table, series)
    roles = times.beside(series=series, names=names, value=label, labels=_texts(table, label), until=until)
    numbers = np.full(len(times.instants), np.nan)
    return _Seen(roles, codes, times.instants, numbers, None if end is None else end.instants)


def _first_times(table: pa.Table, names: Iterable[str]) -> _Times | None:
    """The first of some columns that is one of times."""
    tried = (_times_of(table.select([name])) for name in names)
    return next((times for times in tried if times is not None), None)


def _label(found: _FirstRows, time: tuple[str, ...], value: str | None) -> str | None:
    """The column of labels: texts of few values, by its name, or because nothing is measured that can be read."""
    table = found.table
    if value is not None:
        is_text = value in table.column_names and is_text_type(table[value].type)
        return value if is_text and value not in time and not _is_marked(table, value) else None
    labels = _label_columns(table, time)
    numbers = {*_number_columns(table)} - {*time}
    if any(VALUE.search(name) and not SERIES.search(name) for name in numbers):
        return None
    likely = [name for name in labels if _LABEL.search(name)]
    if not likely and all(map(SERIES.search, numbers)):
        likely = labels[-1:]
    return likely[0] if likely else None


def _label_columns(table: pa.Table, without: tuple[str, ...]) -> list[str]:
    """Columns of texts of few values, but those that name series or the time of the day."""
    texts = [name for name in table.column_names if name not in without and is_text_type(table[name].type)]
    counts = {name: len(_texts(table, name)) for name in texts if not SERIES.search(name) and not HOUR.search(name)}
    most = min(_MOST_LABELS, table.num_rows // _ROWS_A_LABEL)
    few = [name for name, count in counts.items() if 2 <= count <= most]  # noqa: PLR2004 - one label tells nothing
    return [name for name in few if not _is_marked(table, name)]


def _texts(table: pa.Table, name: str) -> tuple[str, ...]:
    """The distinct texts of a column, without blanks around them, but for those of a missing value."""
    texts = {str(text).strip() for text in table[name].unique().to_pylist() if text is not None}
    return tuple(sorted(texts - set(MISSING)))


def _series(table: pa.Table, time: tuple[str, ...]) -> str | None:
    others = [name for name in table.column_names if name not in time]
    texts = [name for name in others if is_text_type(table[name].type) and not HOUR.search(name)]
    texts = [name for name in texts if SERIES.search(name) or not _is_marked(table, name)]
    whole = [name for name in others if pa.types.is_integer(table[name].type) and SERIES.search(name)]
    numbered = [name for name in whole if not any(unit.search(name) for unit, _ in _UNITS)]
    return min([*texts, *numbered], key=lambda name: not SERIES.search(name), default=None)


def _series_of_floats(found: _FirstRows, instants: npt.NDArray[np.int64], value: str | None) -> str | None:
    """A column of floats that by its name and values tells the rows of one time apart, as text in a file does.

    Raises:
        CommandError: there is one, and its type is no text or integer.
    """
    table = found.table
    floats = [name for name in table.column_names if pa.types.is_floating(table[name].type) and name != value]
    named = (name for name in floats if SERIES.search(name) and not VALUE.search(name))
    whole = (name for name in named if not (_numbers(table, name) % 1).any())
    name = next((name for name in whole if _tells_apart(table, name, instants)), None)
    if name is not None and found.format != "csv":
        raise CommandError(
            f"{found.path}: the column {name} is of type {table[name].type}, and names of series are text or "
            "integers; convert it to text"
        )
    return name


def _tells_apart(table: pa.Table, name: str, instants: npt.NDArray[np.int64]) -> bool:
    """Whether numbers and times come often, and never the same two together."""
    rows = np.stack([_numbers(table, name), instants])
    come_often = max(len(np.unique(numbers)) for numbers in rows) <= len(instants) / 2
    return come_often and np.unique(rows, axis=1).shape[1] == len(instants)


def _codes(table: pa.Table, series: str | None) -> tuple[npt.NDArray[np.int64], int]:
    """The number of each row's series, -1 where there is none, and how many there are."""
    if series is None:
        return np.zeros(table.num_rows, dtype=np.int64), 1
    encoded = pc.dictionary_encode(table[series].combine_chunks())  # pyright: ignore[reportAttributeAccessIssue] - made at run time
    return np.asarray(encoded.indices.fill_null(-1)).astype(np.int64), len(encoded.dictionary)


def _numbers(table: pa.Table, name: str, rows: slice = slice(None)) -> npt.NDArray[np.float64]:
    """A column as floats, to which integers beyond 2**53 such as nanoseconds since 1970 are rounded."""
    return np.asarray(table[name].combine_chunks().cast(pa.float64(), safe=False).fill_null(np.nan))[rows]


def _number_columns(table: pa.Table, *, or_empty: bool = False) -> list[str]:
    """Columns of numbers, or also those without any value."""
    kinds = zip(table.column_names, table.schema.types, strict=True)
    return [name for name, kind in kinds if _is_number(kind) or (or_empty and pa.types.is_null(kind))]


def _no_number(table: pa.Table, names: Sequence[str], decimal: str) -> float:
    """The share of the cells of columns that are neither missing nor a number."""
    texts = [table[name].combine_chunks() for name in names if is_text_type(table[name].type)]
    problems = [problem for column in texts for problem in read_values(column, decimal=decimal)[1]]
    lost = sum(int(problem.rows.sum()) for problem in problems if problem.reason is RejectReason.NOT_A_NUMBER)
    return lost / max(len(names) * table.num_rows, 1)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _is_time(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) or pa.types.is_date(kind)


def _listed(names: list[str]) -> str:
    """Names of columns, the first of many."""
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN:,} others" if len(names) > _SHOWN else "")


def _flatten(table: pa.Table) -> str:
    """What to do with columns of objects or lists, as the begin of a next step; empty where there are none."""
    nested = [name for name in table.column_names if pa.types.is_nested(table[name].type)]
    if not nested:
        return ""
    return (
        f"objects and lists, as in {_listed(nested)}, {NESTED}, read messages from the Avro files of a gateway "
        "(docs/mappings.md), or "
    )


def _times_of(table: pa.Table) -> _Times | None:
    """The columns of the time, and how to read them; ``None`` if none looks like one."""
    names = sorted(table.column_names, key=partial(_preference, table))
    tried = (read(table, name) for name in names for read in (_of_day, _of_texts, _of_counts))
    return next((times for times in tried if times is not None), None)


def _of_texts(table: pa.Table, name: str) -> _Times | None:
    """A column of a type of times or days, or of texts that are times, or days beside a time of the day."""
    if not is_text_type(table[name].type):
        return _Times.read(table, (name,)) if _is_time(table[name].type) else None
    hours = _hours(table, name)
    days = ("%Y%m%d",) if TIME.search(name) and not hours else ()
    for columns in ((name,), *((name, hour) for hour in hours)):
        format_ = text_format(_joined(table, columns), ("", *_TIME_FORMATS, *days))
        if format_ or (format_ is not None and len(columns) == 1):
            return _Times.read(table, columns, format_)
    return None


def _of_counts(table: pa.Table, name: str) -> _Times | None:
    """A column of numbers that are digits of a time, or a count since 1970."""
    kind = table[name].type
    if not _is_number(kind) or not TIME.search(name):
        return None
    if pa.types.is_integer(kind) and (format_ := _digit_format(_joined(table, (name,)))):
        return _Times.read(table, (name,), format_)
    numbers = _numbers(table, name)
    typical = np.nanmedian(numbers) if np.isfinite(numbers).any() else 0.0
    unit = next((unit for least, unit in EPOCHS if typical >= least), None)
    return None if unit is None else _Times.read(table, (name,), unit=unit)


def _preference(table: pa.Table, name: str) -> tuple[bool, ...]:
    """What speaks against a column as the time, the worst first: its name; days, updates, or ends alone."""
    is_part = _is_part(table, name)
    are_updates, are_ends = (names.search(name) is not None for names in (_UPDATE, STAMPS_END))
    return not TIME.search(name), is_part and not _hours(table, name), are_updates, is_part, are_ends


def _days_of(table: pa.Table) -> _Times | None:
    """The column of the day, and how to read it; ``None`` if none looks like one."""
    for name in sorted(table.column_names, key=lambda name: not TIME.search(name)):
        kind = table[name].type
        if _is_time(kind):
            return _Times.read(table, (name,))
        is_number = pa.types.is_integer(kind) and TIME.search(name)
        if is_text_type(kind) or is_number:
            formats = ("%Y%m%d",) if is_number else ("", *_DAY_FORMATS, *_TIME_FORMATS)
            format_ = text_format(_joined(table, (name,)), formats)
            if format_ is not None:
                return _Times.read(table, (name,), format_)
    return None


def _is_part(table: pa.Table, name: str) -> bool:
    """Whether a column has days, and series have several rows on a day: so it is not all of the time."""
    if not _has_days(table, name):
        return False
    series = _series(table, (name,))
    days = table.select([name] if series is None else [name, series])
    return days.group_by(days.column_names).aggregate([]).num_rows < _NEARLY_ALL * len(table)


def _has_days(table: pa.Table, name: str) -> bool:
    """Whether a column has days, or midnights, alone."""
    if not (_is_time(table[name].type) or is_text_type(table[name].type)):
        return False
    some = table.select([name]).take(np.arange(0, len(table), max(1, len(table) // _TRIED)))
    texts = _tried(_joined(some, (name,)))
    return bool(texts) and all(map(_MIDNIGHT.fullmatch, texts))


def _of_day(table: pa.Table, day: str) -> _Times | None:
    """A column of days with one of the time of the day; ``None`` if there is none, and none is needed.

    Raises:
        CommandError: series have several rows on a day, and the time of the day cannot be read.
    """
    if not _has_days(table, day):
        return None
    ends = {text[10:] for text in _joined(table, (day,)) if text}
    is_local = getattr(table[day].type, "tz", None) is None
    for hour in _hours(table, day) if len(ends) == 1 and is_local else ():
        formats = tuple(f"%Y-%m-%d{end} {clock}" for end in ends for clock in _CLOCK_FORMATS)
        format_ = text_format(_joined(table, (day, hour)), formats)
        if format_ is not None:
            return _Times.read(table, (day, hour), format_)
    hour = next((name for name in table.column_names if _is_hour(name, day)), None)
    if hour is not None and _is_part(table, day):
        raise CommandError(
            f"the column {day} has days, and {hour} of type {table[hour].type} is no time of the day that can be "
            "joined with them: write whole hours from 0 to 23, or HH:MM, or one column with day and time",
            ExitCode.SOURCE,
        )
    return None


def _hours(table: pa.Table, day: str) -> list[str]:
    """Columns beside that of a day that may be the time of the day, by their names and types."""
    kinds = {name: table[name].type for name in table.column_names if _is_hour(name, day)}
    may_be = (pa.types.is_integer, pa.types.is_time, is_text_type)
    return [name for name, kind in kinds.items() if any(is_kind(kind) for is_kind in may_be)]


def _is_hour(name: str, day: str) -> bool:
    return name != day and HOUR.search(name) is not None


def _is_naive(table: pa.Table, columns: ColumnRoles) -> bool:
    """Whether the times have no offset, and are no counts since 1970."""
    if columns.time_unit is not None:
        return False
    kind = table[columns.time[0]].type
    if not is_text_type(kind):
        return getattr(kind, "tz", None) is None
    stamps = _stamps(_tried(_joined(table, columns.time)), columns.time_format)
    return not stamps.zoned[stamps.good].any()


def _joined(table: pa.Table, names: tuple[str, ...]) -> list[str]:
    """The texts of columns, with a blank between them: as a run joins them."""
    read = [table[name].cast(pa.utf8()) if pa.types.is_temporal(table[name].type) else table[name] for name in names]
    columns = [["" if v is None else str(v) for v in column.to_pylist()] for column in read]
    return [" ".join(parts) for parts in zip(*columns, strict=True)]


def text_format(texts: list[str], formats: tuple[str, ...] = ("", *_TIME_FORMATS)) -> str | None:
    """The first format that reads most of the texts; an empty one is ISO 8601.

    Where day and month may be exchanged, it is the order by which the times lie closer together: the days of two weeks,
    taken for months, are spread over the year.
    """
    tried = _tried(texts)
    first = next((format_ for format_ in formats if _reads(tried, format_)), None)
    other = None if first is None else _other_order(first)
    if first is None or other not in formats or not _reads(tried, other):
        return first
    spans = [np.ptp(stamps.stamp_us[stamps.good]) for stamps in (_stamps(tried, first), _stamps(tried, other))]
    return other if spans[1] < spans[0] else first


def _digit_format(texts: list[str]) -> str | None:
    """The format of times of digits alone; ``None`` if they are not of its length, or it does not read them."""
    tried = _tried(texts)
    format_ = _DIGIT_FORMATS.get(len(tried[0])) if tried and len({*map(len, tried)}) == 1 else None
    return format_ if format_ is not None and _reads(tried, format_) else None


def _exchanged(table: pa.Table, time: tuple[str, ...], format_: str | None) -> str | None:
    """The format with day and month exchanged, if no row tells which is which."""
    if format_ is None:
        return None
    other = _other_order(format_)
    is_known = other != format_ and other in (*_TIME_FORMATS, *_DAY_FORMATS)
    return other if is_known and _reads(_tried(_joined(table, time)), other) else None


def _other_order(format_: str) -> str:
    """A format with day and month exchanged."""
    return "".join({"%d": "%m", "%m": "%d"}.get(part, part) for part in re.split(r"(%[dm])", format_))


def _tried(texts: list[str]) -> list[str]:
    return [text for text in texts[:: max(1, len(texts) // _TRIED)] if text]


def _reads(texts: list[str], format_: str) -> bool:
    stamps = _stamps(texts, format_)
    return bool(texts) and int((stamps.good & (stamps.stamp_us >= 0)).sum()) * 10 >= len(texts) * 9


def _stamps(texts: list[str], format_: str | None) -> Stamps:
    """What a run reads in texts by a format; ISO 8601 where there is none."""
    return (TimePattern.compile(format_) if format_ else TimePattern.iso()).read(pa.array(texts, pa.utf8()))


def runs_of(
    codes: npt.NDArray[Any], instants: npt.NDArray[np.int64], numbers: npt.NDArray[np.float64]
) -> list[npt.NDArray[np.float64]]:
    """The values of each series in the order of their times."""
    are_known = np.isfinite(numbers)
    codes, instants, numbers = codes[are_known], instants[are_known], numbers[are_known]
    order = np.lexsort((instants, codes))
    return np.split(numbers[order], np.flatnonzero(np.diff(codes[order])) + 1)


def rises_in(values: npt.NDArray[np.float64]) -> int:
    """How often the values of a series rise, which is 0 where they fall.

    One fall among many rises, to less than half the value, is that of a counter that was cleared, where no more is left
    than the largest rise or a small part.
    """
    steps = np.diff(values)
    rises, falls = steps[steps > 0], np.flatnonzero(steps < 0)
    if len(falls) == 1 and len(rises) >= COUNTER_RISES:
        before, after = values[falls[0] : falls[0] + 2].tolist()
        return len(rises) if 0 <= after < before / 2 and after <= max(rises.max(), before / _CLEARED) else 0
    return 0 if len(falls) else len(rises)


def are_counters(runs: Sequence[npt.NDArray[np.float64]], fewest: int = COUNTER_RISES) -> bool:
    """Whether nearly all series that change are a meter's counter, not what it counts, by so many rises of all.

    A series that rises a few times alone, in less than half of its steps, says nothing. Of very many series some are
    looked at.
    """
    tried = runs[:: max(1, len(runs) // _SERIES_TRIED)]
    rises = [(rises_in(run), len(run) - 1) for run in tried if len(run) and np.ptp(run) > 0]
    counters = [count for count, steps in rises if count > min(_CHANCE_RISES, steps / 2)]
    falling = sum(count == 0 for count, _ in rises)
    return sum(counters) >= fewest and falling <= _MAY_FALL * len(rises)


def _interval(path: Path, codes: npt.NDArray[Any], instants: npt.NDArray[np.int64]) -> int:
    order = np.lexsort((instants, codes))
    steps = np.diff(instants[order])[np.diff(codes[order]) == 0]
    step = usual_step(steps[steps > 0])
    if step is None:
        raise CommandError(
            f"{path}: no series has two readings at different times, so the interval cannot be seen; give a file that "
            "has more of them, and check that a column with the name of the meter or wearer is called so"
        )
    return step


def usual_step(steps: npt.NDArray[np.int64], *lengths: int) -> int | None:
    """The most frequent of some distances; where they vary, the usual length, or that of ``lengths``, nearest to them.

    Distances vary where most are no multiple of the most frequent one, as of stamps that are late by some seconds.
    """
    step = most_frequent(steps)
    # stamps that are rounded to a microsecond are apart by one more or less
    if step is None or ((steps + 1) % step <= 2).mean() >= 1 / 2:  # noqa: PLR2004 - as said above
        return step
    middle = float(np.median(steps))
    return min((*lengths, *_USUAL_SLOTS, *_DEVICE_SLOTS), key=lambda length: abs(np.log(length / middle)))


def most_frequent(steps: npt.NDArray[np.int64]) -> int | None:
    """The most frequent of some distances; ``None`` where there is none."""
    lengths, counts = np.unique(steps, return_counts=True)
    return int(lengths[np.argmax(counts)]) if len(lengths) else None


def slot_of(lengths: npt.NDArray[np.int64]) -> int:
    """A usual length of a slot that most intervals fill, but for what stamps vary by."""
    short = float(np.quantile(lengths, 0.25)) * _VARIED if len(lengths) else 0.0
    return max((slot for slot in _USUAL_SLOTS if slot <= short), default=_USUAL_SLOTS[0])
