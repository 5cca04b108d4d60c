"""Preview of a data file for ``init``: columns, interval and unit, from the first rows.

The guesses come from the first rows only. They go into a settings file that its author reads; nothing else uses them.

The first line of a CSV file that is looked at: what it tells before Arrow takes the file apart.

Arrow's own texts quote what they could not read, and its callbacks print theirs, so nothing reaches it that it cannot
decode.
"""

from __future__ import annotations

import codecs
import csv
import glob
import json
import re
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq

from ...schemas.files import is_file, is_folder, open_regular, reason
from ...schemas.readings import RejectReason
from ...schemas.settings.connectors import Encoding, FileFormat
from ...schemas.slots import DAY_US
from ...transforms.formats.avro import whole_records
from ...transforms.formats.paths import SourceFileError, is_utf8, open_text
from ...transforms.formats.rows import MISSING, clock_columns, clock_times, read_values
from ...transforms.formats.times import HIGHEST_US, Stamps, TimePattern, TimeReader
from ..errors import CommandError, ExitCode

_MOST = 1 << 20
_DELIMITERS = (",", ";", "\t", "|")

#: Lines that are looked at for the layout of a file, and a part of its lines that may be damaged.
_SAMPLED, _FEW_BROKEN = 200, 20
_COMMA = re.compile(r"[-+]?\d+(,\d+)?")
_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+")
_POINT, _BELOW = re.compile(r"[-+]?[1-9]\d{0,2}(\.\d{3})+"), re.compile(r"[-+]?\d{1,3}")
_DATA = re.compile(
    r"[-+]?[\d.]*\d([eE][-+]?\d+)?|(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})([T ]\d.*)?"
)
_OF_DAY = re.compile(r"\d{1,2}:\d{2}(:\d{2})?")
_LONGEST_INTEGER = 19
_MARK = "quiltstream-mark"


@dataclass(frozen=True, slots=True)
class Layout:
    """How a CSV file is written."""

    encoding: Encoding = "utf-8"
    delimiter: str = ","  # between its columns
    decimal: Literal[".", ","] = "."  # mark before the decimals of its numbers
    grouped: tuple[str, ...] = ()  # columns whose points may separate thousands
    texts: tuple[str, ...] = ()  # columns that are text, though Arrow would take them for times or numbers


def layout_of(path: Path) -> Layout:
    """Look at the beginning of a CSV file."""
    with open_text(str(path)) as file:
        sample = file.read(_MOST)
    encoding = _encoding(sample)
    text = sample.decode("utf-8-sig" if encoding == "utf-8" else encoding, "replace")
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise CommandError(f"{path}: it is empty; give a file that holds readings", ExitCode.SOURCE)
    if any(unicodedata.category(one) == "Cc" for one in lines[0] if one != "\t"):
        raise CommandError(
            f"{path}: its first line is not a line of text; save it as UTF-8, or check that it is a CSV file",
            ExitCode.SOURCE,
        )
    rows = lines[1 : 1 + _SAMPLED]
    delimiter = max(_DELIMITERS, key=lambda one: _columns(lines[0], rows, one))
    names, *fields = csv.reader([lines[0], *rows], delimiter=delimiter)
    if any(_DATA.fullmatch(name.strip()) for name in names) and not _are_numbered(names):
        raise CommandError(
            f"{path}: its first line looks like data, not like the names of columns; put a line of names above it, "
            "for example meter,time,kwh",
            ExitCode.SOURCE,
        )
    decimal = "," if _has_commas(fields, len(names), delimiter) else "."
    columns = ({row[at].strip() for row in fields if len(row) == len(names)} - {*MISSING} for at in range(len(names)))
    given = {name: found for name, found in zip(names, columns, strict=True) if found}
    grouped = tuple(name for name, found in given.items() if decimal == "." and _may_be_grouped(found))
    return Layout(encoding, delimiter, decimal, grouped, tuple(name for name in given if _are_texts(name, given[name])))


def _may_be_grouped(found: set[str]) -> bool:
    """Whether all numbers with a point are as thousands are written, and all others whole and smaller."""
    points = {text for text in found if _POINT.fullmatch(text)}
    return 0 < len(points) < len(found) and all(map(_BELOW.fullmatch, found - points))


def _are_texts(name: str, found: set[str]) -> bool:
    """Whether a column has times of the day, whose format matters, or whole numbers that no integer can hold."""
    if _HOUR.search(name):
        return all(map(_OF_DAY.fullmatch, found))
    return all(map(str.isdecimal, found)) and max(map(len, found)) > _LONGEST_INTEGER


def _are_numbered(names: list[str]) -> bool:
    """Whether the names of columns are whole numbers, as of meters or times of the day, beside that of a time."""
    whole = [name.strip() for name in names if name.strip().isdecimal()]
    others = [name for name in names if not name.strip().isdecimal()]
    plain = not any(_DATA.fullmatch(name.strip()) for name in others)
    return len(whole) >= _FEWEST_SERIES and len(set(whole)) == len(whole) and plain and any(map(TIME.search, others))


def _encoding(sample: bytes) -> Encoding:
    """UTF-16 by its mark; else UTF-8, unless many lines or the first one are none."""
    if sample.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    lines = sample.splitlines()[:-1] or [sample]
    broken = [at for at, line in enumerate(lines) if not is_utf8(line)]
    # a damaged line here and there is a reject; bytes of zero are no text in any of these
    if b"\0" in lines[0] or not broken or (broken[0] > 0 and len(broken) * _FEW_BROKEN < len(lines)):
        return "utf-8"
    try:
        sample.decode("windows-1252")
    except UnicodeDecodeError:
        return "latin-1"
    return "windows-1252"


def _columns(header: str, rows: list[str], delimiter: str) -> int:
    """Columns that a delimiter makes of a file; 0 where its lines disagree, or where it makes one."""
    names, *fields = (len(row) for row in csv.reader([header, *rows], delimiter=delimiter))
    same = sum(found == names for found in fields)
    return names if names > 1 and same * 2 >= len(fields) else 0


def _has_commas(fields: list[list[str]], width: int, delimiter: str) -> bool:
    """Whether some column has numbers with decimal commas.

    Groups of three digits may as well be thousands, but not between semicolons, which are there because the comma
    is the decimal mark. Texts without a digit are marks of a missing value or an error.
    """
    for at in range(width):
        found = [row[at].strip() for row in fields if len(row) == width and _DIGITS.search(row[at])]
        commas = [text for text in found if "," in text]
        thousands = delimiter != ";" and all(map(_THOUSANDS.fullmatch, commas))
        if commas and all(map(_COMMA.fullmatch, found)) and not thousands:
            return True
    return False


def _marked(error: UnicodeError) -> tuple[str, int]:
    """A question mark for every byte that is no text, so that nothing becomes longer."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "?" * (error.end - error.start), error.end


codecs.register_error(_MARK, _marked)


class Readable:
    """A file whose bytes are UTF-8 text throughout; those that are not are question marks."""

    def __init__(self, file: BinaryIO) -> None:
        """Read from where the file is."""
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8")(_MARK)
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        """At most so many bytes; what was begun before comes on top of what is read now, and is at most three."""
        data = self._file.read(size - 3 if size > 3 else size)  # noqa: PLR2004 - as said above
        return self._decoder.decode(data, final=not data).encode("utf-8")

    def close(self) -> None:
        """Leave the file to its owner."""
        self.closed = True


#: Rows looked at; enough for a year of hourly readings of twenty series.
ROWS = 200_000

#: Endings of packed files of text.
PACKED = (".gz", ".bz2", ".zip")

#: Rises from which a value that does not fall is said to be a counter; rises of a series that may be by chance; and the
#: part of the series that may fall.
MANY, _FEW, _FALLING = 24, 2, 0.1

#: Series of which so many are looked at; and what part of its value may be left of a counter that was cleared.
_LOOKED, _CLEARED = 1_000, 100

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

SERIES = re.compile(
    r"household|meter|house|person|customer|series|device|sensor|wearer|subject|participant|patient|^user|^id$|_id$"
    r"|^lclid$|z(ä|ae)hler(?!stand)|z(ä|ae)hlpunkt|messstelle|kunde",
    re.IGNORECASE,
)
TIME = re.compile(r"time|^ts$|date|stamp|epoch|when|zeit|datum", re.IGNORECASE)
_HOUR = re.compile(r"^hour$|^time$|time_?of_?day", re.IGNORECASE)
VALUE = re.compile(
    r"kwh|_wh$|^wh$|kw$|power|watt|load|energy|consum|value|reading|(?<!ac)(?<!dis)count(?!y|ry)"
    r"|verbrauch|energie|leistung|wert",
    re.IGNORECASE,
)
UNITS = (
    (re.compile(r"kwh", re.IGNORECASE), "kWh"),
    (re.compile(r"(^|_)wh$", re.IGNORECASE), "Wh"),
    (re.compile(r"(^|_)kw$", re.IGNORECASE), "kW"),
    (re.compile(r"(^|_)w$|watt", re.IGNORECASE), "W"),
)
#: Formats of digits alone, by how many there are.
_COMPACT = {12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
_TEXT_TIMES = (
    "%d/%m/%Y %H:%M:%S",
    "%m/%d/%Y %H:%M:%S",
    "%d/%m/%Y %H:%M",
    "%m/%d/%Y %H:%M",
    "%d.%m.%Y %H:%M",
    "%d.%m.%Y %H:%M:%S",
    "%d/%m/%Y %I:%M:%S %p",
    "%m/%d/%Y %I:%M:%S %p",
    "%d/%m/%Y %I:%M %p",
    "%m/%d/%Y %I:%M %p",
    "%Y-%m-%d %I:%M:%S %p",
    "%d-%m-%Y %H:%M",
    "%d-%m-%Y %H:%M:%S",
    "%Y/%m/%d %H:%M:%S",
    "%Y/%m/%d %H:%M",
    "%m/%d/%Y %H",
    "%d/%m/%Y %H",
    "%Y-%m-%d %H",
    *_COMPACT.values(),
    *(f"%Y%m%dT%H%M{end}" for end in ("", "%z", "%S", "%S%z", "%S.%f", "%S.%f%z")),
)
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}([ T]00:00:00(\.0+)?(Z|[-+]\d{2}:?\d{2})?)?")
_CLOCKS = ("%H", "%H:%M", "%H:%M:%S", "%H:%M:%S.%f")
_DATES = ("%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y", "%Y/%m/%d", "%d-%b-%Y", "%d-%b-%y", "%d %b %Y", "%Y%m%d")
EPOCHS = ((1e17, "ns"), (1e14, "us"), (1e11, "ms"), (1e8, "s"))
_TRIED = 2_000

#: Columns of series, and of times of the day, from which a table is said to be wide; rows that are looked at for its
#: values at least; and how many times the rows of another table its cells may be.
_FEWEST_SERIES, _FEWEST_TIMES, _FEWEST_ROWS, _WIDER = 3, 4, 200, 5
#: Labels that a column has at most, and rows for each of them at least; names of such columns, and of intervals.
_MOST_LABELS, _ROWS_A_LABEL = 40, 5
_LABEL = re.compile(
    r"label|activit|aktivit|status|stage|stadium|zustand|class|mode|annotation|behavio|posture|event|action|phase",
    re.IGNORECASE,
)
_BEGIN = re.compile(r"start|begin|from|onset", re.IGNORECASE)
_END = re.compile(r"end|stop|until|finish|(^|_)to$", re.IGNORECASE)

#: Lengths of slots that people use: 1 s to 1 h. All divide the day, as do the further ones that devices send at.
_USUAL_SLOTS = tuple(1_000_000 * seconds for seconds in (1, 5, 10, 30, 60, 300, 600, 900, 1800, 3600))
_DEVICE_SLOTS = tuple(
    1_000_000 * seconds for seconds in (2, 15, 20, 120, 180, 1200, 7200, 10800, 14400, 21600, 28800, 43200, 86400)
)
#: Stamps that vary make intervals shorter by no more than that.
_VARIED = 1.05
_DIGITS = re.compile(r"\d+")

#: Shares of a column of texts that must be numbers: where its name is that of a value, and elsewhere.
_HALF, _NEARLY_ALL = 0.5, 0.9

#: What to do about values that are no number.
NO_NUMBER = "where a mark stands between their thousands, as in 1,503 or 1'503, write them without it"

#: Names of columns that a message shows.
_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen(_Columns):
    """The readings of the first rows; series and instants are -1 where there is none, shape (n,) each."""

    codes: npt.NDArray[np.int64]  # the series of each reading
    instants: npt.NDArray[np.int64]  # microseconds since 1970
    numbers: npt.NDArray[np.float64]  # the values
    ends: npt.NDArray[np.int64] | None = None  # microseconds since 1970 of the end of each interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Look(_Columns):
    """What the first rows of a file suggest."""

    path: Path  # the file; of a folder or a pattern the first
    files: Path  # what was given: the file, or a pattern
    format: FileFormat
    layout: Layout
    complete: bool  # whether every row was looked at
    ambiguous: str | None  # the format with day and month exchanged, where it reads the times too
    unit: str  # unit that the value's name suggests
    times_us: npt.NDArray[np.int64]  # instants of the rows, naive ones read as UTC, sorted
    interval_us: int  # usual distance between two readings of a series
    values: npt.NDArray[np.float64]  # the finite values; of a counter how much it rises from one reading to the next
    others: tuple[str, ...]  # further columns of numbers
    rises: bool  # whether the value of nearly every series rises and never falls: a meter's counter
    without: tuple[str, ...]  # columns of a wide table that are none of its values
    naive: bool  # whether the times have no offset and are no counts since 1970, so that a zone is to be named
    other_labels: tuple[str, ...]  # further columns of few texts
    no_time: float  # share of the rows whose time cannot be read; 0 of a wide table
    no_number: float  # share of the rows whose value is there and no number; 0 of labels and of a wide table


def _unpacked(path: Path) -> Path:
    """The name of a file without the ending of its packing."""
    return Path(path.stem) if path.suffix.lower() in PACKED else path


def format_of(path: Path) -> FileFormat:
    """The format that a file's name says it has; of a ``.zip`` without another ending that of the file in it."""
    named = _unpacked(path)
    if path.suffix.lower() == ".zip" and named.suffix.lower() not in FORMATS and is_file(path):
        with suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
            named = Path(next((one.filename for one in archive.infolist() if not one.is_dir()), ""))
    found = FORMATS.get(named.suffix.lower())
    if found is None:
        raise CommandError(
            f"{path}: its name does not say what it is; name it with one of the endings {', '.join(FORMATS)}"
        )
    return found


def look_at(path: Path, value: str | None = None) -> Look:
    """Look at a data file, or at the first of a folder or a pattern; the column of the value is guessed if left out."""
    given, path = path, _first_file(path)
    ends = path.suffixes[-2:] if path.suffix.lower() in PACKED else [path.suffix]
    files = given / f"*{''.join(ends)}" if is_folder(given) else given
    kind = format_of(path)
    table, complete, layout = _first_rows(path, kind)
    if not table.num_rows:
        raise CommandError(
            f"{path}: it has no rows to look at; give a file with a row for each reading"
            + (", below the names of its columns, with every quote closed" if kind == "csv" else ""),
            ExitCode.SOURCE,
        )
    written = _without_index(_with_single_names(path, table))
    table = _with_numbers(written, layout.decimal, value, has_types=kind != "csv")
    is_wide = value is None and kind in ("csv", "parquet")
    seen = is_wide and (_wide_times(table) or _wide_series(table))
    seen = seen or _long(path, table, value, has_types=kind != "csv")
    if kind != "csv" and seen.time_format is not None and len(seen.time) == 1:
        _check_times(path, table, seen.time[0])
    known = (seen.instants >= 0) & (seen.instants <= HIGHEST_US)
    if seen.ends is not None:
        known &= seen.ends > seen.instants
    codes, instants, numbers = seen.codes[known], seen.instants[known], seen.numbers[known]
    taken = {*seen.time, seen.value, *seen.columns, seen.series, seen.until}
    rest = tuple(name for name in table.column_names if name not in taken)
    few = () if seen.wide is not None else _few_texts(table, seen.time)
    runs = runs_of(codes, instants, numbers)
    # power falls
    rises = are_counters(runs, cleared=not any(unit in ("W", "kW") and one.search(seen.value) for one, unit in UNITS))
    steps = np.concatenate([np.diff(one) for one in runs])
    values = steps[steps >= 0] if rises else seen.numbers
    named = "" if seen.labels else seen.value if seen.wide is None else f"{seen.value} {path.stem}"
    is_long = seen.wide is None and not seen.labels
    return Look(
        **{one.name: getattr(seen, one.name) for one in fields(_Columns)},
        path=path,
        files=files,
        format=kind,
        layout=layout,
        complete=complete and files == path,
        ambiguous=_exchanged(table, seen.time, seen.time_format),
        unit=next((unit for pattern, unit in UNITS if any(map(pattern.search, named.split()))), ""),
        times_us=np.sort(instants if seen.ends is None else np.concatenate([instants, seen.ends[known] - 1])),
        interval_us=_interval(path, codes, instants) if seen.ends is None else slot_of(seen.ends[known] - instants),
        values=values[np.isfinite(values)],
        others=tuple(name for name in rest if _is_number(table[name].type)),
        rises=rises,
        without=() if seen.wide is None else rest,
        naive=_is_naive(table, seen),
        other_labels=tuple(name for name in few if name in rest and _times(table.select([name])) is None),
        no_time=0.0 if seen.wide is not None else float((seen.instants == -1).mean()),
        no_number=_no_number(written[seen.value].combine_chunks(), layout.decimal) if is_long else 0.0,
    )


def _no_number(column: pa.Array, decimal: str) -> float:
    """The share of a column that is neither missing nor a number."""
    _, problems = read_values(column, decimal=decimal)
    return sum(float(one.rows.mean()) for one in problems if one.reason is RejectReason.NOT_A_NUMBER)


def _check_times(path: Path, table: pa.Table, name: str) -> None:
    """Check that times of digits are text."""
    if _is_number(table[name].type):
        raise CommandError(
            f"{path}: the times in {name} are digits of a date in a column of numbers, and numbers are read as counts "
            "since 1970; convert the column to text"
        )


def _long(path: Path, table: pa.Table, value: str | None, *, has_types: bool) -> _Seen:
    """A table with a row for each reading."""
    found = _times(table)
    if found is None:
        raise CommandError(
            f"{path}: none of its columns, {_listed(table.column_names)}, looks like a time; {_flatten(table)}"
            "convert the file, or build the readings in a pipeline of your own (docs/guides/own-pipeline.md)"
        )
    time, time_format, time_unit, instants = found
    label = _label(table, time, value)
    if label is not None:
        return _labelled(table, found, label)
    series = _series(table, time) or _series_of_floats(path, table, instants, value, has_types=has_types)
    numbers = [one for one in _number_columns(table) if one not in {*time, series}]
    if value is None and not numbers:
        raise CommandError(
            f"{path}: none of its columns, {_listed(table.column_names)}, holds numbers to measure; {_flatten(table)}"
            "convert the file"
        )
    if value is not None and value not in numbers:
        there, what = "no column of numbers", "name a column of labels"
        if numbers:
            there, what = f"the columns of numbers {_listed(numbers)}", "name one, or one of labels"
        raise CommandError(f"--value {value!r}: {path} has {there}; {_flatten(table)}{what}")
    value = value or min(numbers, key=lambda name: not VALUE.search(name))
    codes, names = _codes(table, series)
    return _Seen(
        series=series, names=names, time=time, time_format=time_format, time_unit=time_unit, value=value,
        codes=codes, instants=instants, numbers=_numbers(table, value),
    )  # fmt: skip


def _flatten(table: pa.Table) -> str:
    """What to do with columns of objects or lists, as the begin of a next step; empty where there are none."""
    nested = [name for name in table.column_names if pa.types.is_nested(table[name].type)]
    if not nested:
        return ""
    return (
        f"objects and lists, as in {_listed(nested)}, are not looked into: make each of their fields a column of its "
        "own, read messages from the Avro files of a gateway (docs/mappings.md), or "
    )


def _labelled(table: pa.Table, found: _Times, label: str) -> _Seen:
    """A table with a row for each label: of an instant, or of an interval where there is an end."""
    starts = (_times(table.select([name])) for name in table.column_names if _BEGIN.search(name))
    begin = next((one for one in starts if one is not None), None)
    stops = (name for name in table.column_names if begin and _END.search(name) and name not in {*begin[0], label})
    end = next((one for name in stops if (one := _times(table.select([name]))) is not None), None)
    time, form, unit, instants = found if begin is None or end is None else begin
    until = None if end is None else end[0][0]
    series = _series(table.drop_columns([label, *([] if until is None else [until])]), time)
    codes, names = _codes(table, series)
    return _Seen(
        series=series, names=names, time=time, time_format=form, time_unit=unit, value=label, codes=codes,
        instants=instants, numbers=np.full(len(instants), np.nan), labels=_texts(table, label), until=until,
        ends=None if end is None else end[3],
    )  # fmt: skip


def _texts(table: pa.Table, name: str) -> tuple[str, ...]:
    """The distinct texts of a column, without blanks around them, but for those of a missing value."""
    found = {str(text).strip() for text in table[name].unique().to_pylist() if text is not None}
    return tuple(sorted(found - set(MISSING)))


def _label(table: pa.Table, time: tuple[str, ...], value: str | None) -> str | None:
    """The column of labels: texts of few values, by its name, or because nothing is measured."""
    if value is not None:
        return value if value in table.column_names and _is_text(table[value].type) and value not in time else None
    few = _few_texts(table, time)
    numbers = [name for name in _number_columns(table) if name not in time]
    if any(VALUE.search(name) and not SERIES.search(name) for name in numbers):
        return None
    named = [name for name in few if _LABEL.search(name)]
    return named[0] if named else few[-1] if few and not any(not SERIES.search(one) for one in numbers) else None


def _few_texts(table: pa.Table, without: tuple[str, ...]) -> list[str]:
    """Columns of texts of few values, but those that name series or the time of the day."""
    texts = [name for name in table.column_names if name not in without and _is_text(table[name].type)]
    named = [name for name in texts if SERIES.search(name) or _HOUR.search(name)]
    few = [name for name in texts if name not in named and 2 <= len(_texts(table, name)) <= _MOST_LABELS]  # noqa: PLR2004 - one label tells nothing
    return [name for name in few if table.num_rows >= _ROWS_A_LABEL * len(_texts(table, name))]


def _is_naive(table: pa.Table, seen: _Seen) -> bool:
    """Whether the times have no offset, and are no counts since 1970."""
    if seen.time_unit is not None or not seen.time or seen.time[0] not in table.column_names:
        return seen.time_unit is None
    kind = table[seen.time[0]].type
    if not _is_text(kind):
        return not (pa.types.is_timestamp(kind) and kind.tz is not None)
    stamps = _stamps(_tried(_joined(table, seen.time)), seen.time_format)
    return not stamps.zoned[stamps.good].any()


def slot_of(lengths: npt.NDArray[np.int64]) -> int:
    """A usual length of a slot that most intervals fill, but for what stamps vary by."""
    short = float(np.quantile(lengths, 0.25)) * _VARIED if len(lengths) else 0.0
    return max((one for one in _USUAL_SLOTS if one <= short), default=_USUAL_SLOTS[0])


def _codes(table: pa.Table, series: str | None) -> tuple[npt.NDArray[np.int64], int]:
    """The number of each row's series, -1 where there is none, and how many there are."""
    if series is None:
        return np.zeros(table.num_rows, dtype=np.int64), 1
    encoded = pc.dictionary_encode(table[series].combine_chunks())  # pyright: ignore[reportAttributeAccessIssue] - made at run time
    return np.asarray(encoded.indices.fill_null(-1)).astype(np.int64), len(encoded.dictionary)


def _numbers(table: pa.Table, name: str, rows: slice = slice(None)) -> npt.NDArray[np.float64]:
    return np.asarray(table[name].combine_chunks().cast(pa.float64()).fill_null(np.nan))[rows]


def _number_columns(table: pa.Table, *, or_empty: bool = False) -> list[str]:
    """Columns of numbers, or also those without any value."""
    kinds = zip(table.column_names, table.schema.types, strict=True)
    return [name for name, kind in kinds if _is_number(kind) or (or_empty and pa.types.is_null(kind))]


def _wide_times(table: pa.Table) -> _Seen | None:
    """A table with a column for each time of the day, evenly apart, and a row for each series and day."""
    numbers = _number_columns(table, or_empty=True)
    columns = tuple(numbers[at] for at in clock_columns(numbers))
    clock = clock_times(columns)
    if len(columns) < _FEWEST_TIMES or len(set(np.diff(clock).tolist())) > 1 or clock[1] <= clock[0]:
        return None
    rest = table.drop_columns(list(columns))
    found = _dates(rest)
    if found is None:
        return None
    date, form, days = found
    series = _series(rest, (date,))
    codes, names = _codes(rest, series)
    rows = slice(0, max(_FEWEST_ROWS, ROWS * _WIDER // len(columns)))
    instants = np.where(days[rows] >= 0, days[rows] + clock[:, None], -1)
    values = np.stack([_numbers(table, name, rows) for name in columns])
    seen = np.where(np.isfinite(values), instants, -1).ravel()  # an empty cell is no reading
    return _Seen(
        series=series, names=names, time=(date,), time_format=form, time_unit=None, value=columns[0], wide="times",
        columns=columns, codes=np.tile(codes[rows], len(columns)), instants=seen, numbers=values.ravel(),
    )  # fmt: skip


def _wide_series(table: pa.Table) -> _Seen | None:
    """A table with a column for each series: columns of numbers that have one name but for its digits."""
    found = _times(table)
    if found is None:
        return None
    time, form, unit, instants = found
    rest = table.drop_columns(list(time))
    if any(map(_is_text, rest.schema.types)):
        return None  # of a name, most likely
    numbers = _number_columns(rest, or_empty=True)
    stems = Counter(_DIGITS.sub("#", name.strip()) for name in numbers)
    stem, many = max(stems.items(), key=lambda pair: pair[1], default=("", 0))
    columns = tuple(name for name in numbers if _DIGITS.sub("#", name.strip()) == stem)
    others = [name for name in numbers if name not in columns]
    if "#" not in stem or many < _FEWEST_SERIES or many <= len(others) or any(map(VALUE.search, others)):
        return None
    rows = slice(0, max(_FEWEST_ROWS, ROWS * _WIDER // many))
    values = np.stack([_numbers(table, name, rows) for name in columns])
    seen = np.where(np.isfinite(values), instants[rows], -1).ravel()
    codes = np.repeat(np.arange(many), values.shape[1])
    return _Seen(
        names=many, time=time, time_format=form, time_unit=unit, value=columns[0], wide="series", columns=columns,
        codes=codes, instants=seen, numbers=values.ravel(),
    )  # fmt: skip


def _dates(table: pa.Table) -> tuple[str, str | None, npt.NDArray[np.int64]] | None:
    """The column of the day, its format, and its midnights; -1 where there is none."""
    for name in sorted(table.column_names, key=lambda name: not TIME.search(name)):
        column = table[name].combine_chunks()
        if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
            return name, None, _instants(table, (name,))
        is_number = pa.types.is_integer(column.type) and TIME.search(name)
        if _is_text(column.type) or is_number:
            forms = ("%Y%m%d",) if is_number else ("", *_DATES, *_TEXT_TIMES)
            form = text_format(_joined(table, (name,)), forms)
            if form is not None:
                return name, form or None, _instants(table, (name,), form)
    return None


def _first_file(path: Path) -> Path:
    """The file, or the first of a folder or a pattern."""
    if is_folder(path):
        found = sorted(one for one in path.iterdir() if one.is_file() and _unpacked(one).suffix.lower() in FORMATS)
        kinds = {one.suffixes[-1].lower() if one.suffixes else "" for one in found}
        if len(kinds) != 1:
            many = f"files of {len(kinds)} endings" if kinds else "no file of a known ending"
            raise CommandError(f"{path}: the folder has {many}; name the files with a pattern such as '{path}/*.csv'")
        return found[0]
    if not is_file(path) and glob.has_magic(str(path)):
        matching = sorted(one for one in glob.glob(str(path)) if Path(one).is_file())  # noqa: PTH207 - of any folder
        if not matching:
            raise CommandError(f"{path}: no file matches; check the path", ExitCode.SOURCE)
        return Path(matching[0])
    return path


def _with_single_names(path: Path, table: pa.Table) -> pa.Table:
    """The table without empty columns that share a name, as those after delimiters at the ends of lines."""
    twice = {name: count for name, count in Counter(table.column_names).items() if count > 1}
    kept = [
        at
        for at, name in enumerate(table.column_names)
        if name not in twice or table.column(at).null_count < len(table)
    ]
    table = table.select(kept)
    for name, count in twice.items():
        if name in table.column_names:
            raise CommandError(f"{path}: it has {count} columns {name!r}; rename all but one", ExitCode.SOURCE)
    return table


def _with_numbers(table: pa.Table, decimal: str, value: str | None, *, has_types: bool) -> pa.Table:
    """The table with numbers for values that are mostly numbers, beside marks of a missing one or of an error.

    What has digits and is none stays text: names of rooms and contracts, stages of sleep. A name of a measured value
    tells one from the other. Where none has, or for the column that is asked for, nearly all must be numbers and the
    marks without a digit; in a file whose columns have types, a text without marks and fractions is one on purpose.
    """
    texts = [
        name
        for name in table.column_names
        if _is_text(table.column(name).type) and not any(one.search(name) for one in (SERIES, TIME, _LABEL))
    ]
    for name in sorted(texts, key=lambda name: not VALUE.search(name)):
        is_named = VALUE.search(name) is not None
        if not is_named and name != value and any(map(VALUE.search, _number_columns(table))):
            continue
        column = table.column(name).combine_chunks()
        numbers, problems = read_values(column, decimal=decimal)
        known = ~np.logical_or.reduce([one.rows for one in problems] or [np.zeros(len(numbers), dtype=bool)])
        given = len(numbers) - sum(one.rows.sum() for one in problems if one.reason is RejectReason.MISSING_VALUE)
        is_measured = known.any() and known.sum() >= (_HALF if is_named else _NEARLY_ALL) * given
        if is_measured and not is_named:
            marks = column.filter(pa.array(~known)).drop_null().to_pylist()
            on_purpose = has_types and not marks and not (numbers[known] % 1).any()
            is_measured = not on_purpose and not any(map(_DIGITS.search, marks))
        if is_measured:
            table = table.set_column(table.column_names.index(name), name, pa.array(numbers, mask=~known))
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


def runs_of(
    codes: npt.NDArray[Any], instants: npt.NDArray[np.int64], numbers: npt.NDArray[np.float64]
) -> list[npt.NDArray[np.float64]]:
    """The values of each series in the order of their times."""
    there = np.isfinite(numbers)
    codes, instants, numbers = codes[there], instants[there], numbers[there]
    order = np.lexsort((instants, codes))
    return np.split(numbers[order], np.flatnonzero(np.diff(codes[order])) + 1)


def rises_in(values: npt.NDArray[np.float64], *, cleared: bool = True) -> int:
    """How often the values of a series rise, which is 0 where they fall.

    One fall among many rises, to less than half the value, is that of a counter that was cleared, where no more is left
    than the largest rise or a small part.
    """
    steps = np.diff(values)
    rises, falls = steps[steps > 0], np.flatnonzero(steps < 0)
    if cleared and len(falls) == 1 and len(rises) >= MANY:
        before, after = values[falls[0] : falls[0] + 2].tolist()
        return len(rises) if 0 <= after < before / 2 and after <= max(rises.max(), before / _CLEARED) else 0
    return 0 if len(falls) else len(rises)


def are_counters(runs: Sequence[npt.NDArray[np.float64]], many: int = MANY, *, cleared: bool = True) -> bool:
    """Whether nearly all series that change are a meter's counter, not what it counts, by so many rises of all.

    A series that rises a few times alone, in less than half of its steps, says nothing. Of very many series some are
    looked at.

    Args:
        runs: the values of each series.
        many: the rises.
        cleared: whether one fall of a series may be that of a counter that was cleared.
    """
    some = runs[:: max(1, len(runs) // _LOOKED)]
    rises = [(rises_in(one, cleared=cleared), len(one) - 1) for one in some if len(one) and np.ptp(one) > 0]
    counters = [one for one, steps in rises if one > min(_FEW, steps / 2)]
    falling = sum(one == 0 for one, _ in rises)
    return sum(counters) >= many and falling <= _FALLING * len(rises)


def _first_rows(path: Path, kind: FileFormat) -> tuple[pa.Table, bool, Layout]:
    try:
        open_regular(path).close()
        layout = layout_of(path) if kind == "csv" else Layout()
        with open_regular(path) if kind in ("parquet", "avro") else open_text(str(path), layout.encoding) as file:
            read = {"parquet": _parquet, "csv": partial(_csv, layout), "jsonl": _jsonl, "avro": _avro}[kind]
            batches = read(file)
            taken: list[pa.RecordBatch] = []
            rows = 0
            for batch in batches:
                taken.append(batch)
                rows += batch.num_rows
                if rows >= ROWS:
                    break
            complete = next(iter(batches), None) is None
            table = _plain(pa.Table.from_batches(taken)) if taken else pa.table({})
    except FileNotFoundError as error:
        raise CommandError(f"{path}: there is no such file; check the path", ExitCode.SOURCE) from error
    except SourceFileError as error:
        raise CommandError(str(error), ExitCode.SOURCE) from error
    except (OSError, pa.ArrowException, ValueError, EOFError, csv.Error) as error:
        raise CommandError(
            f"{path}: cannot be read as {kind} ({reason(error)}); check the file and its ending", ExitCode.SOURCE
        ) from error
    return table, complete, layout


def _plain(table: pa.Table) -> pa.Table:
    """The table with each value in its row, and every text of one type: as a run takes them."""
    kinds = [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in table.schema.types]
    kinds = [pa.utf8() if pa.types.is_string_view(kind) else kind for kind in kinds]
    return table.cast(pa.schema(list(zip(table.column_names, kinds, strict=True))))


def _parquet(file: Any) -> Iterator[pa.RecordBatch]:
    yield from pq.ParquetFile(file).iter_batches()


def _csv(layout: Layout, file: Any) -> Iterator[pa.RecordBatch]:
    kept = pa_csv.ParseOptions(delimiter=layout.delimiter, invalid_row_handler=lambda _row: "skip")
    kinds = pa_csv.ConvertOptions(decimal_point=layout.decimal, column_types=dict.fromkeys(layout.texts, pa.utf8()))
    yield from pa_csv.open_csv(pa.PythonFile(Readable(file), mode="r"), parse_options=kept, convert_options=kinds)


def _jsonl(file: Any) -> Iterator[pa.RecordBatch]:
    lines = list(islice(file, ROWS))
    try:
        yield from _json(b"".join(lines)).to_batches() if lines else ()
    except pa.ArrowInvalid:
        if not (found := _of_objects(lines)).num_rows:
            raise
        yield found
    if next(file, None) is not None:
        yield pa.record_batch([pa.array([None])], names=["more"])


def _json(data: bytes) -> pa.Table:
    """Lines of JSON; texts that are days or midnights as they are, because a run reads them so."""
    table = pa_json.read_json(pa.BufferReader(data))
    days = [
        name
        for name in table.column_names
        if pa.types.is_timestamp(table[name].type)
        and not ((instants := _instants(table, (name,)))[instants != -1] % DAY_US).any()
    ]
    if not days:
        return table
    texts = pa_json.ParseOptions(explicit_schema=pa.schema([(name, pa.utf8()) for name in days]))
    return pa_json.read_json(pa.BufferReader(data), parse_options=texts).select(table.column_names)


def _of_objects(lines: list[bytes]) -> pa.RecordBatch:
    """The lines that are objects; a column whose values are of several types as text."""
    rows: list[dict[str, Any]] = []
    for line in lines:
        with suppress(ValueError, RecursionError):
            if isinstance(row := json.loads(line), dict):
                rows.append(row)
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
        yield pa.RecordBatch.from_pylist(part)


#: The columns of the time, their strptime format and their unit, and microseconds since 1970; -1 where there is none.
_Times: TypeAlias = tuple[tuple[str, ...], str | None, str | None, npt.NDArray[np.int64]]


def _times(table: pa.Table) -> _Times | None:
    """The columns of the time, and how to read them; ``None`` if none looks like one."""
    # a time is preferred to its day, where that does not do
    for name in sorted(table.column_names, key=lambda name: (not TIME.search(name), _is_part(table, name))):
        column = table[name].combine_chunks()
        if _has_days(table, name) and (found := _of_day(table, name)) is not None:
            return found
        if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
            return (name,), None, None, _instants(table, (name,))
        if _is_text(column.type):
            hours = _hours(table, name)
            days = ("%Y%m%d",) if TIME.search(name) and not hours else ()
            for names in ((name,), *((name, hour) for hour in hours)):
                form = text_format(_joined(table, names), ("", *_TEXT_TIMES, *days))
                if form or (form is not None and len(names) == 1):
                    return names, form or None, None, _instants(table, names, form)
        if _is_number(column.type) and TIME.search(name):
            if pa.types.is_integer(column.type) and (form := _compact_format(_joined(table, (name,)))):
                return (name,), form, None, _instants(table, (name,), form)
            numbers = _numbers(table, name)
            typical = np.nanmedian(numbers) if np.isfinite(numbers).any() else 0.0
            unit = next((unit for least, unit in EPOCHS if typical >= least), None)
            if unit is not None:
                return (name,), None, unit, _instants(table, (name,), unit=unit)
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
    kind = table[name].type
    if not (pa.types.is_date(kind) or _is_text(kind) or pa.types.is_timestamp(kind)):
        return False
    some = table.select([name]).take(np.arange(0, len(table), max(1, len(table) // _TRIED)))
    texts = _tried(_joined(some, (name,)))
    return bool(texts) and all(map(_DAY.fullmatch, texts))


def _of_day(table: pa.Table, day: str) -> _Times | None:
    """A column of days with one of the time of the day; ``None`` if there is none, and none is needed.

    Raises:
        CommandError: series have several rows on a day, and the time of the day cannot be read.
    """
    ends = {text[10:] for text in _joined(table, (day,)) if text}
    is_local = not (pa.types.is_timestamp(table[day].type) and table[day].type.tz is not None)
    for hour in _hours(table, day) if len(ends) == 1 and is_local else ():
        texts = _joined(table, (day, hour))
        form = text_format(texts, tuple(f"%Y-%m-%d{end} {clock}" for end in ends for clock in _CLOCKS))
        if form is not None:
            return (day, hour), form, None, _instants(table, (day, hour), form)
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
    return [name for name, one in kinds.items() if pa.types.is_integer(one) or pa.types.is_time(one) or _is_text(one)]


def _is_hour(name: str, day: str) -> bool:
    return name != day and _HOUR.search(name) is not None


def _compact_format(texts: list[str]) -> str | None:
    """The format of times of digits alone; ``None`` if they are not of its length, or it does not read them."""
    tried = _tried(texts)
    form = _COMPACT.get(len(tried[0])) if tried and len({*map(len, tried)}) == 1 else None
    return form if form is not None and _reads(tried, form) else None


def _instants(
    table: pa.Table, names: tuple[str, ...], form: str | None = None, unit: str | None = None
) -> npt.NDArray[np.int64]:
    """Microseconds since 1970 that a run reads in columns, times without an offset as UTC; -1 where there is none."""
    is_text = form or len(names) > 1
    column = pa.array(_joined(table, names), pa.utf8()) if is_text else table[names[0]].combine_chunks()
    instants, problems = TimeReader(time_format=form or None, time_unit=unit or "s").read([column])
    for problem in problems:
        instants = np.where(problem.rows, -1, instants)
    return instants


def _listed(names: list[str]) -> str:
    """Names of columns, the first of many."""
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN:,} others" if len(names) > _SHOWN else "")


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _joined(table: pa.Table, names: tuple[str, ...]) -> list[str]:
    """The texts of columns, with a blank between them: as a run joins them."""
    read = [table[name].cast(pa.utf8()) if pa.types.is_temporal(table[name].type) else table[name] for name in names]
    columns = [["" if v is None else str(v) for v in column.to_pylist()] for column in read]
    return [" ".join(parts) for parts in zip(*columns, strict=True)]


def _stamps(texts: list[str], form: str | None) -> Stamps:
    """What a run reads in texts by a format; ISO 8601 where there is none."""
    return (TimePattern.compile(form) if form else TimePattern.iso()).read(pa.array(texts, pa.utf8()))


def text_format(texts: list[str], forms: tuple[str, ...] = ("", *_TEXT_TIMES)) -> str | None:
    """The first format that reads most of the texts; an empty one is ISO 8601.

    Where day and month may be exchanged, it is the order by which the times lie closer together: the days of two weeks,
    taken for months, are spread over the year.
    """
    tried = _tried(texts)
    found = next((form for form in forms if _reads(tried, form)), None)
    other = None if found is None else _other_order(found)
    if found is None or other not in forms or not _reads(tried, other):
        return found
    spans = [np.ptp(stamps.stamp_us[stamps.good]) for stamps in (_stamps(tried, form) for form in (found, other))]
    return other if spans[1] < spans[0] else found


def _other_order(form: str) -> str:
    """A format with day and month exchanged."""
    return "".join({"%d": "%m", "%m": "%d"}.get(part, part) for part in re.split(r"(%[dm])", form))


def _tried(texts: list[str]) -> list[str]:
    return [text for text in texts[:: max(1, len(texts) // _TRIED)] if text]


def _reads(texts: list[str], form: str) -> bool:
    stamps = _stamps(texts, form)
    return bool(texts) and int((stamps.good & (stamps.stamp_us >= 0)).sum()) * 10 >= len(texts) * 9


def _exchanged(table: pa.Table, time: tuple[str, ...], form: str | None) -> str | None:
    """The format with day and month exchanged, if no row tells which is which."""
    if form is None:
        return None
    other = _other_order(form)
    known = other != form and other in (*_TEXT_TIMES, *_DATES)
    return other if known and _reads(_tried(_joined(table, time)), other) else None


def _series(table: pa.Table, time: tuple[str, ...]) -> str | None:
    others = [name for name in table.column_names if name not in time]
    texts = [name for name in others if _is_text(table[name].type) and not _HOUR.search(name)]
    numbered = [name for name in others if pa.types.is_integer(table[name].type) and SERIES.search(name)]
    candidates = sorted([*texts, *numbered], key=lambda name: not SERIES.search(name))
    return candidates[0] if candidates else None


def _series_of_floats(
    path: Path, table: pa.Table, instants: npt.NDArray[np.int64], value: str | None, *, has_types: bool
) -> str | None:
    """A column of floats that by its name and values tells the rows of one time apart, as text in a file does.

    Raises:
        CommandError: there is one, and its type is no text or integer.
    """
    for name in table.column_names:
        is_named = SERIES.search(name) and not VALUE.search(name) and name != value
        if not is_named or not pa.types.is_floating(table[name].type):
            continue
        rows = np.stack([_numbers(table, name), instants])
        often = max(len(np.unique(one)) for one in rows) <= len(instants) / 2
        if (rows[0] % 1).any() or not often or np.unique(rows, axis=1).shape[1] < len(instants):
            continue
        if has_types:
            raise CommandError(
                f"{path}: the column {name} is of type {table[name].type}, and names of series are text or integers; "
                "convert it to text"
            )
        return name
    return None


def _interval(path: Path, codes: npt.NDArray[Any], instants: npt.NDArray[np.int64]) -> int:
    order = np.lexsort((instants, codes))
    steps = np.diff(instants[order])[np.diff(codes[order]) == 0]
    found = usual_step(steps[steps > 0])
    if found is None:
        raise CommandError(
            f"{path}: no series has two readings at different times, so the interval cannot be seen; give a file that "
            "has more of them, and check that a column with the name of the meter or wearer is called so"
        )
    return found


def usual_step(steps: npt.NDArray[np.int64], *lengths: int) -> int | None:
    """The most frequent of some distances; where they vary, the usual length, or that of ``lengths``, nearest to them.

    Distances vary where most are no multiple of the most frequent one, as of stamps that are late by some seconds.
    """
    found = most_frequent(steps)
    # stamps that are rounded to a microsecond are apart by one more or less
    if found is None or ((steps + 1) % found <= 2).mean() >= 1 / 2:  # noqa: PLR2004 - as said above
        return found
    middle = float(np.median(steps))
    return min((*lengths, *_USUAL_SLOTS, *_DEVICE_SLOTS), key=lambda one: abs(np.log(one / middle)))


def most_frequent(steps: npt.NDArray[np.int64]) -> int | None:
    """The most frequent of some distances; ``None`` where there is none."""
    found, counts = np.unique(steps, return_counts=True)
    return int(found[np.argmax(counts)]) if len(found) else None
