"""Preview of a data file for ``init``: columns, interval and unit, from the first rows.

The guesses come from the first rows only. They go into a settings file that its author reads; nothing else uses them.

The first line of a CSV file that is looked at: what it tells before Arrow takes the file apart.

Arrow's own texts quote what they could not read, and its callbacks print theirs, so nothing reaches it that it cannot
decode.
"""

from __future__ import annotations

import codecs
import csv
import datetime as dt
import glob
import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq

from ...schemas.files import is_file, is_folder, open_regular, reason
from ...schemas.settings.connectors import Encoding, FileFormat
from ...transforms.formats.avro import whole_records
from ...transforms.formats.paths import SourceFileError, open_text
from ...transforms.formats.rows import MISSING
from ...transforms.formats.text import is_utf8
from ...transforms.formats.wide import clock_columns, clock_times
from ..errors import CommandError, ExitCode

_MOST = 1 << 20
_DELIMITERS = (",", ";", "\t", "|")

#: Lines that are looked at for the layout of a file, and a part of its lines that may be damaged.
_SAMPLED, _FEW_BROKEN = 200, 20
_COMMA = re.compile(r"[-+]?\d+(,\d+)?")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(,\d{3})+")
_DATA = re.compile(
    r"[-+]?[\d.]*\d([eE][-+]?\d+)?|(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})([T ]\d.*)?"
)
_MARK = "quiltstream-mark"


@dataclass(frozen=True, slots=True)
class Layout:
    """How a CSV file is written."""

    encoding: Encoding = "utf-8"
    delimiter: str = ","  # between its columns
    decimal: Literal[".", ","] = "."  # mark before the decimals of its numbers


def layout_of(path: Path) -> Layout:
    """Look at the beginning of a CSV file."""
    with open_text(str(path)) as file:
        sample = file.read(_MOST)
    encoding = _encoding(sample)
    text = sample.decode("utf-8-sig" if encoding == "utf-8" else encoding, "replace")
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise CommandError(f"{path}: it is empty; give a file that holds readings", ExitCode.SOURCE)
    if "\0" in lines[0]:
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
    return Layout(encoding, delimiter, "," if _has_commas(fields, len(names)) else ".")


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
    return "windows-1252" if _reads_as(sample, "windows-1252") else "latin-1"


def _reads_as(sample: bytes, encoding: str) -> bool:
    try:
        sample.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def _columns(header: str, rows: list[str], delimiter: str) -> int:
    """Columns that a delimiter makes of a file; 0 where its lines disagree, or where it makes one."""
    names, *fields = (len(row) for row in csv.reader([header, *rows], delimiter=delimiter))
    same = sum(found == names for found in fields)
    return names if names > 1 and same * 2 >= len(fields) else 0


def _has_commas(fields: list[list[str]], width: int) -> bool:
    """Whether some column has numbers with decimal commas; groups of three digits may as well be thousands."""
    for at in range(width):
        found = [row[at].strip() for row in fields if len(row) == width and row[at].strip()]
        commas = [text for text in found if "," in text]
        if commas and all(map(_COMMA.fullmatch, found)) and not all(map(_THOUSANDS.fullmatch, commas)):
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

#: Steps between readings from which a value that never falls is said to be a counter.
_MANY = 24

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
    r"|^lclid$",
    re.IGNORECASE,
)
TIME = re.compile(r"time|^ts$|date|stamp|epoch|when", re.IGNORECASE)
_HOUR = re.compile(r"^hour$|^time$|time_?of_?day", re.IGNORECASE)
VALUE = re.compile(r"kwh|_wh$|^wh$|kw$|power|watt|load|energy|consum|value|reading|count", re.IGNORECASE)
UNITS = (
    (re.compile(r"kwh", re.IGNORECASE), "kWh"),
    (re.compile(r"(^|_)wh$", re.IGNORECASE), "Wh"),
    (re.compile(r"(^|_)kw$", re.IGNORECASE), "kW"),
    (re.compile(r"(^|_)w$|watt", re.IGNORECASE), "W"),
)
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
    "%Y%m%d%H%M",
)
_DATES = ("%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y", "%Y/%m/%d", "%d-%b-%Y", "%d-%b-%y", "%d %b %Y", "%Y%m%d")
EPOCHS = ((1e17, "ns"), (1e14, "us"), (1e11, "ms"), (1e8, "s"))
_TO_US = {"s": 1_000_000, "ms": 1_000, "us": 1}
_NS_A_US = 1_000
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

#: Lengths of slots that people use: 1 s to 1 h.
_USUAL_SLOTS = tuple(1_000_000 * seconds for seconds in (1, 5, 10, 30, 60, 300, 600, 900, 1800, 3600))
_DIGITS = re.compile(r"\d+")

#: Names of columns that a message shows.
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Look:
    """What the first rows of a file suggest."""

    path: Path  # the file; of a folder or a pattern the first
    files: Path  # what was given: the file, or a pattern
    format: FileFormat
    layout: Layout  # how a CSV file is written
    complete: bool  # whether every row was looked at
    columns: tuple[str, ...]
    series: str | None  # column of the series; ``None`` if there is only one series
    names: int  # distinct series seen
    time: tuple[str, ...]
    time_format: str | None  # strptime format of text times that are not ISO 8601
    time_unit: str | None  # unit of times given as numbers
    ambiguous: str | None  # the format with day and month exchanged, where it reads the times too
    value: str  # column of the value; of a wide table one of them
    unit: str  # unit that the value's name suggests
    times_us: npt.NDArray[np.int64]  # instants of the rows, naive ones read as UTC, sorted, int64
    interval_us: int  # most frequent distance between two readings of a series, microseconds
    values: npt.NDArray[np.float64]  # the finite values; of a counter how much it rises from one reading to the next
    others: tuple[str, ...] = ()  # further columns of numbers
    rises: bool = False  # whether the value of every series never falls, and most often rises: a meter's counter
    wide: Literal["series", "times"] | None = None  # what the columns of values are named by, in a wide table
    wide_columns: int = 0  # how many there are
    without: tuple[str, ...] = ()  # columns of a wide table that are none of them
    # the labels of a column of few texts, in their order; empty where the value is a number
    labels: tuple[str, ...] = ()
    until: str | None = None  # column with the end of each interval
    naive: bool = True  # whether the times have no offset and are no counts since 1970, so that a zone is to be named
    other_labels: tuple[str, ...] = ()  # further columns of few texts


def format_of(path: Path) -> FileFormat:
    """The format that a file's name says it has; of a ``.zip`` without another ending that of the file in it."""
    named = Path(path.stem) if path.suffix.lower() in PACKED else path
    if path.suffix.lower() == ".zip" and named.suffix.lower() not in FORMATS and is_file(path):
        with suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
            named = Path(next((one.filename for one in archive.infolist() if not one.is_dir()), ""))
    found = FORMATS.get(named.suffix.lower())
    if found is None:
        raise CommandError(
            f"{path}: its name does not say what it is; name it with one of the endings {', '.join(FORMATS)}"
        )
    return found


@dataclass(frozen=True, slots=True)
class _Seen:
    """The readings of the first rows, as far as their columns are found."""

    series: str | None
    names: int  # distinct series
    time: tuple[str, ...]
    time_format: str | None  # strptime format of text times
    time_unit: str | None  # unit of times given as numbers
    value: str  # column of the value, or one of them
    codes: npt.NDArray[np.int64]  # the series of each reading, -1 where there is none, shape (n,)
    instants: npt.NDArray[np.int64]  # microseconds since 1970 of each, -1 where there is none, shape (n,)
    numbers: npt.NDArray[np.float64]  # the value of each, shape (n,)
    wide: Literal["series", "times"] | None = None  # what the columns of values are named by, in a wide table
    columns: tuple[str, ...] = ()  # the columns of values
    labels: tuple[str, ...] = ()  # the labels, where the value is one
    until: str | None = None  # column with the end of each interval
    # microseconds since 1970 of the end of each, -1 where there is none; of readings without an end none
    ends: npt.NDArray[np.int64] | None = None


def look_at(path: Path, value: str | None = None) -> Look:
    """Look at a data file."""
    given, path = path, _first_file(path)
    ends = path.suffixes[-2:] if path.suffix.lower() in PACKED else [path.suffix]
    files = given / f"*{''.join(ends)}" if is_folder(given) else given
    kind = format_of(path)
    table, complete, layout = _first_rows(path, kind)
    complete = complete and files == path
    if not table.num_rows:
        raise CommandError(f"{path}: it has no rows to look at", ExitCode.SOURCE)
    table = _without_index(table)
    columns = tuple(table.column_names)
    is_wide = value is None and kind in ("csv", "parquet")
    seen = (is_wide and (_wide_times(table) or _wide_series(path, table))) or _long(path, table, value)
    known = seen.instants >= 0
    if seen.ends is not None:
        known &= seen.ends > seen.instants
    taken = {*seen.time, seen.value, *seen.columns, *(one for one in (seen.series, seen.until) if one is not None)}
    codes, instants, numbers = seen.codes[known], seen.instants[known], seen.numbers[known]
    rest = tuple(name for name in columns if name not in taken)
    steps = steps_of(codes, instants, numbers)
    rises = rises_of(steps)
    values = steps if rises else seen.numbers
    named = seen.value if seen.wide is None else f"{seen.value} {path.stem}"
    return Look(
        path=path,
        files=files,
        format=kind,
        layout=layout,
        complete=complete,
        columns=columns,
        series=seen.series,
        names=seen.names,
        time=seen.time,
        time_format=seen.time_format,
        time_unit=seen.time_unit,
        ambiguous=_exchanged(table, seen.time, seen.time_format),
        value=seen.value,
        unit=""
        if seen.labels
        else next((unit for pattern, unit in UNITS if any(map(pattern.search, named.split()))), ""),
        times_us=np.sort(instants if seen.ends is None else np.concatenate([instants, seen.ends[known] - 1])),
        interval_us=_interval(path, codes, instants) if seen.ends is None else slot_of(seen.ends[known] - instants),
        values=values[np.isfinite(values)],
        others=tuple(name for name in rest if _is_number(table[name].type)),
        rises=rises,
        wide=seen.wide,
        wide_columns=len(seen.columns),
        without=() if seen.wide is None else rest,
        labels=seen.labels,
        until=seen.until,
        naive=_is_naive(table, seen),
        other_labels=tuple(
            name
            for name in (() if seen.wide is not None else _few_texts(table, seen.time))
            if name in rest and not _reads_time(path, table, name)
        ),
    )


def _long(path: Path, table: pa.Table, value: str | None) -> _Seen:
    """A table with a row for each reading."""
    time, time_format, time_unit, instants = _times(path, table)
    label = _label(table, time, value)
    if label is not None:
        return _labelled(path, table, time, label)
    series = _series(table, time)
    taken = {*time, *([] if series is None else [series])}
    value = _value(path, table, taken) if value is None else _named_value(path, table, value, taken)
    codes, names = np.zeros(table.num_rows, dtype=np.int64), 1
    if series is not None:
        codes, names = _codes(table[series])
    return _Seen(
        series, names, time, time_format, time_unit, value, codes, instants, _numbers(table[value].combine_chunks())
    )


def _labelled(path: Path, table: pa.Table, time: tuple[str, ...], label: str) -> _Seen:
    """A table with a row for each label: of an instant, or of an interval where there is an end."""
    until, ends = None, None
    begin = next((name for name in table.column_names if _BEGIN.search(name) and _reads_time(path, table, name)), None)
    if begin is not None:
        named = (name for name in table.column_names if _END.search(name) and name not in {begin, label})
        until = next((name for name in named if _reads_time(path, table, name)), None)
    chosen = table.select([begin if until is not None and begin is not None else name for name in time[:1]])
    time, form, unit, instants = _times(path, table if until is None else chosen)
    if until is not None:
        ends = _times(path, table.select([until]))[3]
    series = _series(table.drop_columns([label, *([] if until is None else [until])]), time)
    codes, names = np.zeros(table.num_rows, dtype=np.int64), 1
    if series is not None:
        codes, names = _codes(table[series])
    return _Seen(
        series, names, time, form, unit, label, codes, instants, np.full(len(instants), np.nan),
        labels=_texts(table, label), until=until,
        ends=ends,
    )  # fmt: skip


def _reads_time(path: Path, table: pa.Table, name: str) -> bool:
    try:
        _times(path, table.select([name]))
    except CommandError:
        return False
    return True


def _texts(table: pa.Table, name: str) -> tuple[str, ...]:
    """The distinct texts of a column, without blanks around them, but for those of a missing value."""
    found = {str(text).strip() for text in table[name].unique().to_pylist() if text is not None}
    return tuple(sorted(found - set(MISSING)))


def _label(table: pa.Table, time: tuple[str, ...], value: str | None) -> str | None:
    """The column of labels: texts of few values, by its name, or because nothing is measured."""
    if value is not None:
        return value if value in table.column_names and _is_text(table[value].type) and value not in time else None
    few = _few_texts(table, time)
    numbers = [name for name in table.column_names if name not in time and _is_number(table[name].type)]
    if any(VALUE.search(name) and not SERIES.search(name) for name in numbers):
        return None
    named = [name for name in few if _LABEL.search(name)]
    return named[0] if named else few[-1] if few and not any(not SERIES.search(one) for one in numbers) else None


def _few_texts(table: pa.Table, without: tuple[str, ...]) -> list[str]:
    """Columns of texts of few values, but those that name series."""
    texts = [name for name in table.column_names if name not in without and _is_text(table[name].type)]
    few = [name for name in texts if not SERIES.search(name) and 2 <= len(_texts(table, name)) <= _MOST_LABELS]  # noqa: PLR2004 - one label tells nothing
    return [name for name in few if table.num_rows >= _ROWS_A_LABEL * len(_texts(table, name))]


def _is_naive(table: pa.Table, seen: _Seen) -> bool:
    """Whether the times have no offset, and are no counts since 1970."""
    if seen.time_unit is not None or not seen.time or seen.time[0] not in table.column_names:
        return seen.time_unit is None
    kind = table[seen.time[0]].type
    if not _is_text(kind):
        return not (pa.types.is_timestamp(kind) and kind.tz is not None)
    form = seen.time_format
    if form is not None:
        return "%z" not in form
    for text in _tried(_joined(table, seen.time)):
        with suppress(ValueError):
            return dt.datetime.fromisoformat(text.replace("Z", "+00:00")).tzinfo is None
    return True


def slot_of(lengths: npt.NDArray[np.int64]) -> int:
    """A usual length of a slot that most intervals fill."""
    short = float(np.quantile(lengths, 0.25)) if len(lengths) else 0.0
    return max((one for one in _USUAL_SLOTS if one <= short), default=_USUAL_SLOTS[0])


def _codes(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.int64], int]:
    encoded = pc.dictionary_encode(column.combine_chunks())  # pyright: ignore[reportAttributeAccessIssue] - made at run time
    return np.asarray(encoded.indices.fill_null(-1)).astype(np.int64), len(encoded.dictionary)


def _numbers(column: pa.Array) -> npt.NDArray[np.float64]:
    return np.asarray(column.cast(pa.float64()).fill_null(np.nan))


def _is_number_or_empty(kind: pa.DataType) -> bool:
    return _is_number(kind) or pa.types.is_null(kind)


def _wide_times(table: pa.Table) -> _Seen | None:
    """A table with a column for each time of the day, evenly apart, and a row for each series and day."""
    numbers = [name for name in table.column_names if _is_number_or_empty(table[name].type)]
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
    codes, names = (np.zeros(table.num_rows, dtype=np.int64), 1) if series is None else _codes(rest[series])
    rows = slice(0, max(_FEWEST_ROWS, ROWS * _WIDER // len(columns)))
    instants = np.where(days[rows] >= 0, days[rows] + clock[:, None], -1)
    values = np.stack([_numbers(table[name].combine_chunks())[rows] for name in columns])
    seen = np.where(np.isfinite(values), instants, -1).ravel()  # an empty cell is no reading
    return _Seen(
        series, names, (date,), form, None, columns[0], np.tile(codes[rows], len(columns)), seen, values.ravel(),
        "times", columns,
    )  # fmt: skip


def _wide_series(path: Path, table: pa.Table) -> _Seen | None:
    """A table with a column for each series: columns of numbers that have one name but for its digits."""
    try:
        time, form, unit, instants = _times(path, table)
    except CommandError:
        return None
    rest = [name for name in table.column_names if name not in time]
    if any(_is_text(table[name].type) for name in rest):
        return None  # of a name, most likely
    numbers = [name for name in rest if _is_number_or_empty(table[name].type)]
    stems = Counter(_DIGITS.sub("#", name.strip()) for name in numbers)
    stem, many = max(stems.items(), key=lambda pair: pair[1], default=("", 0))
    columns = tuple(name for name in numbers if _DIGITS.sub("#", name.strip()) == stem)
    others = [name for name in numbers if name not in columns]
    if "#" not in stem or many < _FEWEST_SERIES or many <= len(others) or any(map(VALUE.search, others)):
        return None
    rows = slice(0, max(_FEWEST_ROWS, ROWS * _WIDER // many))
    values = np.stack([_numbers(table[name].combine_chunks())[rows] for name in columns])
    seen = np.where(np.isfinite(values), instants[rows], -1).ravel()
    codes = np.repeat(np.arange(many), values.shape[1])
    return _Seen(None, many, time, form, unit, columns[0], codes, seen, values.ravel(), "series", columns)


def _dates(table: pa.Table) -> tuple[str, str | None, npt.NDArray[np.int64]] | None:
    """The column of the day, its format, and its midnights; -1 where there is none."""
    for name in sorted(table.column_names, key=lambda name: not TIME.search(name)):
        column = table[name].combine_chunks()
        if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
            return name, None, np.asarray(column.cast(pa.timestamp("us")).cast(pa.int64()).fill_null(-1))
        is_number = pa.types.is_integer(column.type) and TIME.search(name)
        if _is_text(column.type) or is_number:
            texts = _joined(table, (name,))
            form = text_format(texts, ("%Y%m%d",) if is_number else ("", *_DATES, *_TEXT_TIMES))
            if form is not None:
                return name, form or None, _parsed(texts, form)
    return None


def _first_file(path: Path) -> Path:
    """The file, or the first of a folder or a pattern."""
    if is_folder(path):
        found = sorted(one for one in path.iterdir() if one.is_file() and _known(one))
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


def _known(path: Path) -> bool:
    named = Path(path.stem) if path.suffix.lower() in PACKED else path
    return named.suffix.lower() in FORMATS


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


def steps_of(
    codes: npt.NDArray[Any], instants: npt.NDArray[np.int64], numbers: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """From each value of a series to its next one."""
    there = np.isfinite(numbers)
    codes, instants, numbers = codes[there], instants[there], numbers[there]
    order = np.lexsort((instants, codes))
    return np.diff(numbers[order])[np.diff(codes[order]) == 0]


def rises_of(steps: npt.NDArray[np.float64]) -> bool:
    """Whether no series ever falls, and most steps are rises: a meter's counter, not what it counts."""
    return len(steps) >= _MANY and bool((steps >= 0).all()) and bool((steps > 0).mean() > 1 / 2)


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
    except FileNotFoundError as error:
        raise CommandError(f"{path}: there is no such file; check the path", ExitCode.SOURCE) from error
    except SourceFileError as error:
        raise CommandError(str(error), ExitCode.SOURCE) from error
    except (OSError, pa.ArrowException, ValueError, EOFError, csv.Error) as error:
        raise CommandError(
            f"{path}: cannot be read as {kind} ({reason(error)}); check the file and its ending", ExitCode.SOURCE
        ) from error
    return pa.Table.from_batches(taken) if taken else pa.table({}), complete, layout


def _parquet(file: Any) -> Iterator[pa.RecordBatch]:
    yield from pq.ParquetFile(file).iter_batches()


def _csv(layout: Layout, file: Any) -> Iterator[pa.RecordBatch]:
    kept = pa_csv.ParseOptions(delimiter=layout.delimiter, invalid_row_handler=lambda _row: "skip")
    numbers = pa_csv.ConvertOptions(decimal_point=layout.decimal)
    yield from pa_csv.open_csv(pa.PythonFile(Readable(file), mode="r"), parse_options=kept, convert_options=numbers)


def _jsonl(file: Any) -> Iterator[pa.RecordBatch]:
    lines = b"".join(islice(file, ROWS))
    yield from pa_json.read_json(pa.BufferReader(lines)).to_batches() if lines else ()
    if next(file, None) is not None:
        yield pa.record_batch([pa.array([None])], names=["more"])


def _avro(file: Any) -> Iterator[pa.RecordBatch]:
    rows = whole_records(file)
    while part := list(islice(rows, ROWS)):
        yield pa.RecordBatch.from_pylist(part)


def _times(path: Path, table: pa.Table) -> tuple[tuple[str, ...], str | None, str | None, npt.NDArray[np.int64]]:
    """The columns of the time, how to read them, and the instants; -1 where there is none."""
    named = sorted(table.column_names, key=lambda name: not TIME.search(name))
    for name in named:
        column = table[name].combine_chunks()
        if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
            hour = next((n for n in table.column_names if n != name and _HOUR.search(n)), None)
            if hour is None:
                return (name,), None, None, np.asarray(column.cast(pa.timestamp("us")).cast(pa.int64()).fill_null(-1))
            joined = _joined(table, (name, hour))
            return (name, hour), "%Y-%m-%d %H", None, _parsed(joined, "%Y-%m-%d %H")
        if _is_text(column.type):
            texts = _joined(table, (name,))
            form = text_format(texts)
            if form is not None:
                return (name,), form or None, None, _parsed(texts, form)
            hour = next((n for n in table.column_names if n != name and _HOUR.search(n)), None)
            if hour is not None:
                texts = _joined(table, (name, hour))
                form = text_format(texts)
                if form:
                    return (name, hour), form, None, _parsed(texts, form)
        if _is_number(column.type) and TIME.search(name):
            numbers = np.asarray(column.cast(pa.float64()).fill_null(np.nan))
            typical = np.nanmedian(numbers) if np.isfinite(numbers).any() else 0.0
            unit = next((unit for least, unit in EPOCHS if typical >= least), None)
            if unit is not None:
                whole = np.where(np.isfinite(numbers), numbers, -1).astype(np.int64)
                return (name,), None, unit, whole // _NS_A_US if unit == "ns" else whole * _TO_US[unit]
    raise CommandError(
        f"{path}: none of its columns, {_listed(table.column_names)}, looks like a time; "
        "convert the file, or build the readings in a pipeline of your own (docs/guides/own-pipeline.md)"
    )


def _listed(names: list[str]) -> str:
    """Names of columns, the first of many."""
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN:,} others" if len(names) > _SHOWN else "")


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def _joined(table: pa.Table, names: tuple[str, ...]) -> list[str]:
    columns = [["" if v is None else str(v) for v in table[name].to_pylist()] for name in names]
    return [" ".join(parts) for parts in zip(*columns, strict=True)]


def _instant(text: str, form: str) -> int:
    try:
        stamp = dt.datetime.strptime(text, form) if form else dt.datetime.fromisoformat(text.replace("Z", "+00:00"))  # noqa: DTZ007 - naive stamps are read as UTC below
    except ValueError:
        return -1
    if stamp.tzinfo is None:
        stamp = stamp.replace(tzinfo=dt.timezone.utc)
    return int(stamp.timestamp() * 1_000_000)


def _parsed(texts: list[str], form: str) -> npt.NDArray[np.int64]:
    return np.array([_instant(text, form) for text in texts], dtype=np.int64)


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
    spans = [np.ptp(times[times >= 0]) for times in (_parsed(tried, form) for form in (found, other))]
    return other if spans[1] < spans[0] else found


def _other_order(form: str) -> str:
    """A format with day and month exchanged."""
    return "".join({"%d": "%m", "%m": "%d"}.get(part, part) for part in re.split(r"(%[dm])", form))


def _tried(texts: list[str]) -> list[str]:
    return [text for text in texts[:: max(1, len(texts) // _TRIED)] if text]


def _reads(texts: list[str], form: str) -> bool:
    return bool(texts) and sum(_instant(text, form) >= 0 for text in texts) * 10 >= len(texts) * 9


def _exchanged(table: pa.Table, time: tuple[str, ...], form: str | None) -> str | None:
    """The format with day and month exchanged, if no row tells which is which."""
    if form is None:
        return None
    other = _other_order(form)
    return (
        other
        if other != form and other in (*_TEXT_TIMES, *_DATES) and _reads(_tried(_joined(table, time)), other)
        else None
    )


def _series(table: pa.Table, time: tuple[str, ...]) -> str | None:
    others = [name for name in table.column_names if name not in time]
    texts = [name for name in others if _is_text(table[name].type) or pa.types.is_dictionary(table[name].type)]
    numbered = [name for name in others if pa.types.is_integer(table[name].type) and SERIES.search(name)]
    candidates = sorted([*texts, *numbered], key=lambda name: not SERIES.search(name))
    return candidates[0] if candidates else None


def _value(path: Path, table: pa.Table, taken: set[str]) -> str:
    numbers = [name for name in table.column_names if name not in taken and _is_number(table[name].type)]
    if not numbers:
        raise CommandError(
            f"{path}: none of its columns, {_listed(table.column_names)}, holds numbers to measure; convert the file"
        )
    return min(numbers, key=lambda name: not VALUE.search(name))


def _named_value(path: Path, table: pa.Table, value: str, taken: set[str]) -> str:
    numbers = [name for name in table.column_names if name not in taken and _is_number(table[name].type)]
    if value not in numbers:
        raise CommandError(
            f"--value {value!r}: {path} has the columns of numbers {_listed(numbers)}; name one, or one of labels"
        )
    return value


def _interval(path: Path, codes: npt.NDArray[Any], instants: npt.NDArray[np.int64]) -> int:
    order = np.lexsort((instants, codes))
    steps = np.diff(instants[order])[np.diff(codes[order]) == 0]
    steps = steps[steps > 0]
    if not len(steps):
        raise CommandError(f"{path}: no series has two readings at different times, so the interval cannot be seen")
    found, counts = np.unique(steps, return_counts=True)
    return int(found[np.argmax(counts)])
