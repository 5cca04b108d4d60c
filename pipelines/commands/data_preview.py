"""Preview of a data file for ``init``: columns, interval and unit, guessed from the first rows.

The guesses go into a settings file that its author reads; nothing else uses them.
"""

from __future__ import annotations

import csv
import glob
import json
import re
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json
import pyarrow.parquet as pq

from ...schemas.files import is_file, is_folder, open_regular, reason
from ...schemas.readings import RejectReason
from ...schemas.settings.base import SettingsError
from ...schemas.settings.connectors import FileFormat
from ...schemas.slots import DAY_US
from ...transforms.common.batches import HIGHEST_US, Problem, is_text_type
from ...transforms.formats.avro import whole_records
from ...transforms.formats.csv import csv_rows
from ...transforms.formats.paths import SourceFileError, open_text
from ...transforms.formats.rows import MISSING, Columns, clock_columns, clock_times, read_values
from ...transforms.formats.times import Stamps, TimePattern, TimeReader
from ..errors import CommandError, ExitCode
from .csv_preview import FEWEST_SERIES, GROUPED, Layout, batches_of, layout_of

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
#: Bytes that are parsed at once.
_BLOCK = 1 << 20

#: Names of columns: of series; of times, those of the day, and both ends of an interval; of values and labels.
SERIES = re.compile(
    r"household|meter|house|person|customer|series|device|sensor|wearer|subject|participant|patient|^user|^id$|_id$"
    r"|^lclid$|z(ä|ae)hler(?!stand)|z(ä|ae)hlpunkt|messstelle|kunde"
    r"|(?<![^\W_])(prm|pdl|ean\d{0,18}|(?-i:CUPS))(?![^\W_])|aansluiting",
    re.IGNORECASE,
)
#: A meter, or what it counts.
_COUNTS = re.compile(r"compteur|contador", re.IGNORECASE)
_SERIES = re.compile(f"{SERIES.pattern}|{_COUNTS.pattern}", re.IGNORECASE)
TIME = re.compile(
    r"time|^ts$|date|stamp|epoch|when|zeit|datum|^stunde$|horodat|^heure$|fecha|^hora$|tijd", re.IGNORECASE
)
_HOUR = re.compile(r"^hour$|^time$|time_?of_?day|^(uhr)?zeit$|^stunde$|^heure$|^hora$|^tijd$", re.IGNORECASE)
#: A time that is, where there is another one, not that of the reading.
_UPDATE = re.compile(r"update", re.IGNORECASE)
_BEGIN = re.compile(r"start|begin|from|onset", re.IGNORECASE)
_END = re.compile(r"end|stop|until|finish|(^|_)to$", re.IGNORECASE)
VALUE = re.compile(
    r"kwh|_wh$|^wh$|kw$|power|watt|load|energy|consum|value(?!r)|reading|(?<!ac)(?<!dis)count(?!y|ry)"
    r"|verbrauch|[eé]nergie|leistung|wert|valeur|puissance|consommation|valor(?![ai])|verbruik",
    re.IGNORECASE,
)
_LABEL = re.compile(
    r"label|activit|aktivit|status|stage|stadium|zustand|class|mode|annotation|behavio|posture|event|action|phase",
    re.IGNORECASE,
)
_DIGITS = re.compile(r"\d+")
#: Units of columns, by their names; of mW and MW the latter alone, as it is written.
_UNITS = tuple(
    (re.compile(name, re.IGNORECASE), unit)
    for name, unit in (
        (r"kwh", "kWh"),
        (r"(?<![^\s_(\[])(?-i:MWh|MWH)(?![^\s)\]])", "MWh"),
        (r"(?<![^\s_(\[])wh(?![^\s)\]])", "Wh"),
        (r"(?<![^\s_(\[])(?-i:MW)(?![^\s)\]])", "MW"),
        (r"(?<![^\s_(\[])kw(?![^\s)\]])", "kW"),
        (r"(?<![^\s_(\[])w(?![^\s)\]])|watt", "W"),
    )
)
_UNITS_OF_POWER = frozenset({"W", "kW", "MW"})
#: Names that a message shows.
_SHOWN = 10

#: Formats of texts: of digits alone by how many there are, of times, of days, and of times of the day.
_DIGIT_FORMATS = {12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
_TEN_DIGITS = "%y%m%d%H%M"
_TIME_FORMATS = (
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
    "%d.%m.%Y %H",
    "%d-%m-%Y %H",
    "%Y-%m-%d %H",
    *_DIGIT_FORMATS.values(),
    *(f"%Y%m%dT%H%M{end}" for end in ("", "%z", "%S", "%S%z", "%S.%f", "%S.%f%z")),
)
_DAY_FORMATS = (
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%d.%m.%Y",
    "%d-%m-%Y",
    "%Y/%m/%d",
    "%d-%b-%Y",
    "%d-%b-%y",
    "%d %b %Y",
    "%Y%m%d",
)
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

#: Times of the day from which a table is said to be wide.
_FEWEST_TIMES = 4
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

#: Why lines of a CSV file are rejected as a whole, and what to do.
MALFORMED = (
    'give each as many columns as the first line has, and write a quote (") in a field as "", with the field in quotes'
)

#: What to do about values that are no number, whatever they are, and where a mark of theirs may mean two things.
NO_NUMBER = (
    "where a mark stands between their thousands, as in 1.503,5 or 1'503, write them without it; where it stands "
    "before decimals, set readings.decimal"
)
UNSURE = (
    "a point or comma, as in 1.503, may stand before decimals or between thousands: see which; readings.decimal names "
    "the mark before decimals"
)
_SURE = "marks stand between thousands, as in 1.503,5 or 1'503"
_WRITE = "write its numbers with one mark before decimals, and without a mark between thousands"

#: Numbers with points, commas, apostrophes or blanks between thousands, and another mark before decimals; and those
#: with one point or comma, whatever it means.
_MAY_BE_GROUPED = re.compile(
    r"[-+]?[1-9]\d{0,2}((\.\d{3})+(,\d+)?|(,\d{3})+(\.\d+)?|(['\u2019 \u00a0\u202f]\d{3})+([.,]\d+)?)"
)
_WITH_MARK = re.compile(r"[-+]?\d+[.,]\d+")
_GROUP_MARK = re.compile(r"[.,'\u2019 \u00a0\u202f]")


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
    alike: int  # names of series that differ from another one by blanks or the form of letters alone
    no_time: float  # share of the rows whose time cannot be read; 0 of a wide table
    no_number: float  # share of the values that are there and no number; 0 of labels
    unsure: bool  # whether the mark of some of them may be that before decimals
    unread: tuple[str, ...]  # further columns of numbers, of which a run reads none because of their marks
    malformed: float  # share of the lines of a CSV file that a run rejects as a whole


@dataclass(frozen=True, slots=True)
class _FirstRows:
    """What is looked at of a file."""

    table: pa.Table
    complete: bool  # whether these are all rows
    layout: Layout


@dataclass(frozen=True, slots=True)
class _Numbers:
    """A table whose numbers are of a type of numbers."""

    table: pa.Table
    unread: frozenset[str]  # columns of which a run reads no number, because of the marks in them
    unsure: frozenset[str]  # columns with a point or comma that may stand before decimals or between thousands

    def refusal(self, path: Path, names: Sequence[str]) -> CommandError:
        """The error about columns that are unread."""
        what = UNSURE if self.unsure.intersection(names) else _SURE
        return CommandError(f"{path}: a run reads no number in {_listed(list(names))}: {what}; {_WRITE}")


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


def is_name_of_series(name: str) -> bool:
    """Whether a column or field is called as what has readings: a meter, a home, a person."""
    return SERIES.search(name) is not None


#: What such names of series are.
ALIKE = (
    "differ from another one by blanks around it, or by the Unicode form of a letter, alone: each is a series of its "
    "own, because names count by their characters; write each name in one way"
)


def alike(names: Iterable[str]) -> int:
    """How many names are as another one without blanks around them and with composed letters (Unicode's form NFC)."""
    forms = Counter(unicodedata.normalize("NFC", name.strip()) for name in set(names))
    return sum(count for count in forms.values() if count > 1)


def format_of(path: Path) -> FileFormat:
    """The format that a file's name says it has; of a ``.zip`` without another ending that of the file in it."""
    unpacked = _unpacked(path)
    if path.suffix.lower() == ".zip" and unpacked.suffix.lower() not in FORMATS and is_file(path):
        with suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
            unpacked = Path(next((member.filename for member in archive.infolist() if not member.is_dir()), ""))
    file_format = FORMATS.get(unpacked.suffix.lower())
    if file_format is None:
        raise CommandError(
            f"{path}: its name does not say what it is; name it with one of the endings {', '.join(FORMATS)}"
        )
    return file_format


def look_at(path: Path, value: str | None = None) -> Look:
    """Look at a data file, or at the first of a folder or a pattern; the column of the value is guessed if left out."""
    given, path = path, _first_file(path)
    endings = path.suffixes[-2:] if path.suffix.lower() in PACKED else [path.suffix]
    files = given / f"*{''.join(endings)}" if is_folder(given) else given
    file_format = format_of(path)
    first = _first_rows(path, file_format, value)
    if not first.table.num_rows:
        raise CommandError(
            f"{path}: it has no rows to look at; give a file with a row for each reading"
            + (", below the names of its columns, with every quote closed" if file_format == "csv" else ""),
            ExitCode.SOURCE,
        )
    has_types, decimal = file_format != "csv", first.layout.decimal
    written = _without_index(_with_single_names(path, first.table))
    found = _with_numbers(written, decimal, value, has_types=has_types)
    table = found.table
    may_be_wide = value is None and file_format in ("csv", "parquet")
    seen = may_be_wide and (_wide_times(table) or _wide_series(table))
    seen = seen or _long(path, found, value, has_types=has_types)
    malformed = _malformed(path, first.layout, seen.time[0]) if file_format == "csv" else 0.0
    if malformed == 1:
        raise CommandError(f"{path}: a run rejects every line of it: {MALFORMED}", ExitCode.SOURCE)
    measured = [] if seen.labels else [name for name in seen.columns or (seen.value,) if _is_number(table[name].type)]
    if measured and found.unread.issuperset(measured):
        raise found.refusal(path, measured)
    if has_types and seen.time_format is not None and len(seen.time) == 1:
        _check_times(path, table, seen.time[0])
    known = (seen.instants >= 0) & (seen.instants <= HIGHEST_US)
    if seen.ends is not None:
        known &= seen.ends > seen.instants
    codes, instants, numbers = seen.codes[known], seen.instants[known], seen.numbers[known]
    taken = {*seen.time, seen.value, *seen.columns, seen.series, seen.until}
    others = tuple(name for name in table.column_names if name not in taken)
    labels = () if seen.wide is not None else _label_columns(table, seen.time)
    runs = runs_of(codes, instants, numbers)
    rises = are_counters(runs, cleared=unit_of(seen.value) not in _UNITS_OF_POWER)  # power falls
    steps = np.concatenate([np.diff(run) for run in runs])
    values = steps[steps >= 0] if rises else seen.numbers
    named = "" if seen.labels else seen.value if seen.wide is None else f"{seen.value} {path.stem}"
    return Look(
        **{column.name: getattr(seen, column.name) for column in fields(_Columns)},
        path=path,
        files=files,
        format=file_format,
        layout=first.layout,
        complete=first.complete and files == path,
        ambiguous=_exchanged(table, seen.time, seen.time_format),
        unit=unit_of(named),
        times_us=np.sort(instants if seen.ends is None else np.concatenate([instants, seen.ends[known] - 1])),
        interval_us=_interval(path, codes, instants) if seen.ends is None else slot_of(seen.ends[known] - instants),
        values=values[np.isfinite(values)],
        others=tuple(name for name in others if _is_number(table[name].type) and name not in found.unread),
        rises=rises,
        without=() if seen.wide is None else others,
        naive=_is_naive(table, seen),
        other_labels=tuple(name for name in labels if name in others and _times_of(table.select([name])) is None),
        alike=alike(_names_of(table, seen)),
        no_time=0.0 if seen.wide is not None else float((seen.instants == -1).mean()),
        no_number=0.0 if seen.labels else _no_number(written, seen.columns or (seen.value,), decimal),
        unsure=not found.unsure.isdisjoint(measured),
        unread=tuple(name for name in others if name in found.unread),
        malformed=malformed,
    )


def unit_of(name: str) -> str:
    """The unit that is in the name of a column: at its end, in brackets or between blanks; empty if there is none."""
    return next((unit for pattern, unit in _UNITS if pattern.search(name)), "")


def _unpacked(path: Path) -> Path:
    """The name of a file without the ending of its packing."""
    return Path(path.stem) if path.suffix.lower() in PACKED else path


def _first_file(path: Path) -> Path:
    """The file, or the first of a folder or a pattern."""
    if is_folder(path):
        files = sorted(file for file in path.iterdir() if file.is_file() and _unpacked(file).suffix.lower() in FORMATS)
        endings = {file.suffixes[-1].lower() if file.suffixes else "" for file in files}
        if len(endings) != 1:
            what = f"files of {len(endings)} endings" if endings else "no file of a known ending"
            raise CommandError(f"{path}: the folder has {what}; name the files with a pattern such as '{path}/*.csv'")
        return files[0]
    if not is_file(path) and glob.has_magic(str(path)):
        matching = sorted(file for file in glob.glob(str(path)) if Path(file).is_file())  # noqa: PTH207 - of any folder
        if not matching:
            raise CommandError(f"{path}: no file matches; check the path", ExitCode.SOURCE)
        return Path(matching[0])
    return path


def _first_rows(path: Path, file_format: FileFormat, value: str | None) -> _FirstRows:
    try:
        open_regular(path).close()
        layout = layout_of(path, TIME, _HOUR, value) if file_format == "csv" else Layout()
        has_own_packing = file_format in ("parquet", "avro")
        with open_regular(path) if has_own_packing else open_text(str(path), layout.encoding) as file:
            read = {"parquet": _parquet, "csv": partial(batches_of, layout), "jsonl": _jsonl, "avro": _avro}[
                file_format
            ]
            batches = read(file)
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
    return _FirstRows(table, is_complete, layout)


def _malformed(path: Path, layout: Layout, column: str) -> float:
    """The share of the first lines of a CSV file of which a run reads nothing, whatever columns it needs.

    Where the file is damaged further down, it is that of the lines before.
    """
    columns = Columns(None, (column,), column, labels=True)
    lines = lost = 0
    with suppress(SettingsError, SourceFileError), open_text(str(path), layout.encoding) as file:
        for rows in csv_rows(file, str(path), columns, layout.delimiter, _BLOCK):
            lost += len(rows.malformed)
            lines += len(rows.malformed) + len(rows.positions)
            if lines >= ROWS:
                break
    return lost / max(lines, 1)


def _plain(table: pa.Table) -> pa.Table:
    """The table with each value in its row, and every text of one type: as a run takes them."""
    kinds = [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in table.schema.types]
    kinds = [pa.utf8() if pa.types.is_string_view(kind) else kind for kind in kinds]
    return table.cast(pa.schema(list(zip(table.column_names, kinds, strict=True))))


def _parquet(file: Any) -> Iterator[pa.RecordBatch]:
    yield from pq.ParquetFile(file).iter_batches()


def _jsonl(file: Any) -> Iterator[pa.RecordBatch]:
    lines = list(islice(file, ROWS))
    try:
        yield from _json(b"".join(lines)).to_batches() if lines else ()
    except pa.ArrowInvalid:
        if not (objects := _of_objects(lines)).num_rows:
            raise
        yield objects
    if next(file, None) is not None:
        yield pa.record_batch([pa.array([None])], names=["more"])


def _json(data: bytes) -> pa.Table:
    """Lines of JSON; texts that are days or midnights as they are, because a run reads them so."""
    table = pa_json.read_json(pa.BufferReader(data))
    stamps = [name for name in table.column_names if pa.types.is_timestamp(table[name].type)]
    days = [name for name in stamps if _are_midnights(_Times.read(table, (name,)).instants)]
    if not days:
        return table
    texts = pa_json.ParseOptions(explicit_schema=pa.schema([(name, pa.utf8()) for name in days]))
    return pa_json.read_json(pa.BufferReader(data), parse_options=texts).select(table.column_names)


def _are_midnights(instants: npt.NDArray[np.int64]) -> bool:
    return not (instants[instants != -1] % DAY_US).any()


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


def _with_numbers(table: pa.Table, decimal: str, value: str | None, *, has_types: bool) -> _Numbers:
    """The table with numbers for values that are mostly numbers, beside marks of a missing one or of an error.

    What has digits and is none stays text: names of rooms and contracts, stages of sleep. A name of a measured value
    tells one from the other. Where none has, or for the column that is asked for, nearly all must be numbers and the
    marks without a digit; in a file whose columns have types, a text without marks and fractions is one on purpose.

    A number that a run rejects for the marks in it counts as one, so that such numbers become no labels.
    """
    unread, unsure = set[str](), set[str]()
    texts = [
        name
        for name in table.column_names
        if is_text_type(table.column(name).type) and not any(names.search(name) for names in (_SERIES, TIME, _LABEL))
    ]
    for name in sorted(texts, key=lambda name: not VALUE.search(name)):
        is_named = VALUE.search(name) is not None
        if not is_named and name != value and any(map(VALUE.search, {*_number_columns(table)} - unread)):
            continue
        column = table.column(name).combine_chunks()
        numbers, problems = read_values(column, decimal=decimal)
        known = ~np.logical_or.reduce([problem.rows for problem in problems] or [np.zeros(len(numbers), dtype=bool)])
        is_readable = known.any()
        grouped, doubtful = _read_marked(column, numbers, problems)
        known |= grouped | doubtful
        missing = sum(problem.rows.sum() for problem in problems if problem.reason is RejectReason.MISSING_VALUE)
        least = (_HALF if is_named else _NEARLY_ALL) * (len(numbers) - missing)
        is_measured = known.any() and known.sum() >= least
        if is_measured and not is_named:
            marks = column.filter(pa.array(~known)).drop_null().to_pylist()
            on_purpose = has_types and not marks and not (numbers[known] % 1).any()
            is_measured = not on_purpose and not any(map(_DIGITS.search, marks))
        if not is_measured:
            continue
        if doubtful.any():
            unsure.add(name)
        if not is_readable:
            unread.add(name)
        lost = ~(known & ~doubtful) if is_readable else ~known
        table = table.set_column(table.column_names.index(name), name, pa.array(numbers, mask=lost))
    return _Numbers(table, frozenset(unread), frozenset(unsure))


def _read_marked(
    column: pa.Array, numbers: npt.NDArray[np.float64], problems: list[Problem]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Put numbers that a run rejects for the marks in them in their rows.

    Returns:
        The rows with marks that surely stand between thousands, because they do so in some number of the column, and
        those with a point or comma that may stand before decimals, each of shape (n,).
    """
    grouped, doubtful = np.zeros((2, len(numbers)), dtype=np.bool_)
    for problem in problems:
        if problem.reason is not RejectReason.NOT_A_NUMBER:
            continue
        encoded = pc.dictionary_encode(column.filter(pa.array(problem.rows)))  # pyright: ignore[reportAttributeAccessIssue] - made at run time
        texts = [str(text).strip() for text in encoded.dictionary.to_pylist()]
        marks = {_mark_of(text) for text in texts if GROUPED.fullmatch(text)}
        is_grouped = [_mark_of(text) in marks and _MAY_BE_GROUPED.fullmatch(text) is not None for text in texts]
        is_doubtful = [_WITH_MARK.fullmatch(text) is not None for text in texts]
        each = [
            float(text.replace(_mark_of(text) if sure else "", "").replace(",", ".")) if sure or doubt else np.nan
            for text, sure, doubt in zip(texts, is_grouped, is_doubtful, strict=True)
        ]
        at = np.asarray(encoded.indices)
        numbers[problem.rows] = np.array(each, dtype=np.float64)[at]
        grouped[problem.rows] = np.array(is_grouped, dtype=np.bool_)[at]
        doubtful[problem.rows] = np.array(is_doubtful, dtype=np.bool_)[at]
    return grouped, doubtful & ~grouped


def _mark_of(text: str) -> str:
    """The first mark in a number; empty where there is none."""
    mark = _GROUP_MARK.search(text)
    return "" if mark is None else mark[0]


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
    return _Seen(
        series=series, names=names, time=days.columns, time_format=days.format, time_unit=None, value=columns[0],
        wide="times", columns=columns, codes=np.tile(codes[rows], len(columns)), instants=seen, numbers=values.ravel(),
    )  # fmt: skip


def _wide_series(table: pa.Table) -> _Seen | None:
    """A table with a column for each series: columns of numbers that have one name but for its digits."""
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
    if "#" not in stem or count < FEWEST_SERIES or count <= len(beside) or any(map(VALUE.search, beside)):
        return None
    rows = slice(0, max(_FEWEST_WIDE_ROWS, ROWS * _CELLS_A_ROW // count))
    values = np.stack([_numbers(table, name, rows) for name in columns])
    seen = np.where(np.isfinite(values), times.instants[rows], -1).ravel()
    return _Seen(
        names=count, time=times.columns, time_format=times.format, time_unit=times.unit, value=columns[0],
        wide="series", columns=columns, codes=np.repeat(np.arange(count), values.shape[1]), instants=seen,
        numbers=values.ravel(),
    )  # fmt: skip


def _long(path: Path, found: _Numbers, value: str | None, *, has_types: bool) -> _Seen:
    """A table with a row for each reading; what a run cannot read is taken for its value last."""
    table = found.table
    times = _times_of(table)
    if times is None:
        raise CommandError(
            f"{path}: none of its columns, {_listed(table.column_names)}, looks like a time; {_flatten(table)}"
            "convert the file, or build the readings in a pipeline of your own (docs/guides/own-pipeline.md)"
        )
    label = _label(found, times.columns, value)
    if label is not None:
        return _labelled(found, times, label)
    series = _series(table, times.columns)
    series = series or _series_of_floats(path, table, times.instants, value, has_types=has_types)
    series = series or _series_of_marked(found, times.instants, value)
    numbers = [name for name in _number_columns(table) if name not in {*times.columns, series}]
    unread = [name for name in numbers if name in found.unread and value in (name, None)]
    numbers = [name for name in numbers if name not in found.unread]
    if unread and (value is not None or not numbers):
        raise found.refusal(path, unread)
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
        series=series, names=names, time=times.columns, time_format=times.format, time_unit=times.unit, value=value,
        codes=codes, instants=times.instants, numbers=_numbers(table, value),
    )  # fmt: skip


def _labelled(found: _Numbers, times: _Times, label: str) -> _Seen:
    """A table with a row for each label: of an instant, or of an interval where there is an end."""
    table = found.table
    starts = (_times_of(table.select([name])) for name in table.column_names if _BEGIN.search(name))
    begin = next((start for start in starts if start is not None), None)
    ends = (name for name in table.column_names if begin and _END.search(name) and name not in {*begin.columns, label})
    end = next((stop for name in ends if (stop := _times_of(table.select([name]))) is not None), None)
    if begin is not None and end is not None:
        times = begin
    until = None if end is None else end.columns[0]
    series = _series(table.drop_columns([label, *([] if until is None else [until])]), times.columns)
    series = series or _series_of_marked(found, times.instants, label)
    codes, names = _codes(table, series)
    return _Seen(
        series=series, names=names, time=times.columns, time_format=times.format, time_unit=times.unit, value=label,
        codes=codes, instants=times.instants, numbers=np.full(len(times.instants), np.nan),
        labels=_texts(table, label), until=until, ends=None if end is None else end.instants,
    )  # fmt: skip


def _label(found: _Numbers, time: tuple[str, ...], value: str | None) -> str | None:
    """The column of labels: texts of few values, by its name, or because nothing is measured that can be read."""
    table = found.table
    if value is not None:
        return value if value in table.column_names and is_text_type(table[value].type) and value not in time else None
    labels = _label_columns(table, time)
    numbers = [name for name in _number_columns(table) if name not in time and name not in found.unread]
    if any(VALUE.search(name) and not _SERIES.search(name) for name in numbers):
        return None
    named = [name for name in labels if _LABEL.search(name)]
    if named:
        return named[0]
    return labels[-1] if labels and all(_SERIES.search(name) for name in numbers) else None


def _label_columns(table: pa.Table, without: tuple[str, ...]) -> list[str]:
    """Columns of texts of few values, but those that name series or the time of the day."""
    texts = [name for name in table.column_names if name not in without and is_text_type(table[name].type)]
    counts = {name: len(_texts(table, name)) for name in texts if not _SERIES.search(name) and not _HOUR.search(name)}
    most = min(_MOST_LABELS, table.num_rows // _ROWS_A_LABEL)
    return [name for name, count in counts.items() if 2 <= count <= most]  # noqa: PLR2004 - one label tells nothing


def _texts(table: pa.Table, name: str) -> tuple[str, ...]:
    """The distinct texts of a column, without blanks around them, but for those of a missing value."""
    texts = {str(text).strip() for text in table[name].unique().to_pylist() if text is not None}
    return tuple(sorted(texts - set(MISSING)))


def _series(table: pa.Table, time: tuple[str, ...]) -> str | None:
    others = [name for name in table.column_names if name not in time]
    texts = [name for name in others if is_text_type(table[name].type) and not _HOUR.search(name)]
    whole = [name for name in others if pa.types.is_integer(table[name].type) and _SERIES.search(name)]
    numbered = [name for name in whole if not unit_of(name) and not _is_counted(table, name, time)]
    return min([*texts, *numbered], key=lambda name: not _SERIES.search(name), default=None)


def _is_counted(table: pa.Table, name: str, time: tuple[str, ...]) -> bool:
    """Whether whole numbers are what meters count rather than meters, as most of them, or their times, come once."""
    if not _COUNTS.search(name):
        return False
    numbers = len(table[name].unique())
    times = table.group_by(list(time)).aggregate([]).num_rows
    return numbers > 1 and 2 * max(numbers, times) > table.num_rows


def _series_of_floats(
    path: Path, table: pa.Table, instants: npt.NDArray[np.int64], value: str | None, *, has_types: bool
) -> str | None:
    """A column of floats that by its name and values tells the rows of one time apart, as text in a file does.

    Raises:
        CommandError: there is one, and its type is no text or integer.
    """
    for name in table.column_names:
        is_named = _SERIES.search(name) and not VALUE.search(name) and name != value
        if not is_named or not pa.types.is_floating(table[name].type):
            continue
        if (_numbers(table, name) % 1).any() or not _tells_apart(table, name, instants):
            continue
        if has_types:
            raise CommandError(
                f"{path}: the column {name} is of type {table[name].type}, and names of series are text or integers; "
                "convert it to text"
            )
        return name
    return None


def _series_of_marked(found: _Numbers, instants: npt.NDArray[np.int64], value: str | None) -> str | None:
    """A column of numbers with marks, none of them read, that tells the rows of one time apart: texts to a run."""
    names = (name for name in found.table.column_names if name in found.unread)
    others = (name for name in names if name != value and not VALUE.search(name))
    return next((name for name in others if _tells_apart(found.table, name, instants)), None)


def _tells_apart(table: pa.Table, name: str, instants: npt.NDArray[np.int64]) -> bool:
    """Whether numbers and times come often, and never the same two together."""
    rows = np.stack([_numbers(table, name), instants])
    come_often = max(len(np.unique(numbers)) for numbers in rows) <= len(instants) / 2
    return come_often and np.unique(rows, axis=1).shape[1] == len(instants)


def _names_of(table: pa.Table, seen: _Seen) -> Iterable[str]:
    """The names of the series, where they are texts."""
    if seen.wide == "series":
        return seen.columns
    is_text = seen.series is not None and is_text_type(table[seen.series].type)
    return (str(name) for name in table[seen.series].unique().to_pylist() if name is not None) if is_text else ()


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
        f"objects and lists, as in {_listed(nested)}, are not looked into: make each of their fields a column of its "
        "own, read messages from the Avro files of a gateway (docs/mappings.md), or "
    )


def _times_of(table: pa.Table) -> _Times | None:
    """The columns of the time, and how to read them; ``None`` if none looks like one."""
    for name in sorted(table.column_names, key=partial(_preference, table)):
        kind = table[name].type
        if _has_days(table, name) and (times := _of_day(table, name)) is not None:
            return times
        if _is_time(kind):
            return _Times.read(table, (name,))
        if is_text_type(kind):
            hours = _hours(table, name)
            days = ("%Y%m%d",) if TIME.search(name) and not hours else ()
            for columns in ((name,), *((name, hour) for hour in hours)):
                format_ = text_format(_joined(table, columns), ("", *_TIME_FORMATS, *days))
                if format_ or (format_ is not None and len(columns) == 1):
                    return _Times.read(table, columns, format_)
        if _is_number(kind) and TIME.search(name):
            if pa.types.is_integer(kind) and (format_ := _digit_format(_joined(table, (name,)))):
                return _Times.read(table, (name,), format_)
            numbers = _numbers(table, name)
            typical = np.nanmedian(numbers) if np.isfinite(numbers).any() else 0.0
            unit = next((unit for least, unit in EPOCHS if typical >= least), None)
            if unit is not None:
                return _Times.read(table, (name,), unit=unit)
    return None


def _preference(table: pa.Table, name: str) -> tuple[bool, ...]:
    """What speaks against a column as the time, the worst first: its name, or that it has days, or updates, alone."""
    is_part = _is_part(table, name)
    return not TIME.search(name), is_part and not _hours(table, name), bool(_UPDATE.search(name)), is_part


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
    ends = {text[10:] for text in _joined(table, (day,)) if text}
    is_local = not (pa.types.is_timestamp(table[day].type) and table[day].type.tz is not None)
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
    return name != day and _HOUR.search(name) is not None


def _is_naive(table: pa.Table, seen: _Seen) -> bool:
    """Whether the times have no offset, and are no counts since 1970."""
    if seen.time_unit is not None or not seen.time or seen.time[0] not in table.column_names:
        return seen.time_unit is None
    kind = table[seen.time[0]].type
    if not is_text_type(kind):
        return not (pa.types.is_timestamp(kind) and kind.tz is not None)
    stamps = _stamps(_tried(_joined(table, seen.time)), seen.time_format)
    return not stamps.zoned[stamps.good].any()


def _check_times(path: Path, table: pa.Table, name: str) -> None:
    """Check that times of digits are text."""
    if _is_number(table[name].type):
        raise CommandError(
            f"{path}: the times in {name} are digits of a date in a column of numbers, and numbers are read as counts "
            "since 1970; convert the column to text"
        )


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
    if _are_minutes(texts):
        return _TEN_DIGITS
    format_ = _DIGIT_FORMATS.get(len(tried[0])) if tried and len({*map(len, tried)}) == 1 else None
    return format_ if format_ is not None and _reads(tried, format_) else None


def _are_minutes(texts: list[str]) -> bool:
    """Whether all times of ten digits are of two digits of the year, and lie evenly so rather than as seconds."""
    distinct = sorted({*texts} - {""})
    if len(distinct) < 3 or {*map(len, distinct)} != {10}:  # noqa: PLR2004 - two steps at least
        return False
    stamps, seconds = _stamps(distinct, _TEN_DIGITS), np.array([*map(int, distinct)])
    steps, steps_s = np.diff(stamps.stamp_us), np.diff(seconds)
    even, even_s = ((lengths == most_frequent(lengths)).mean() for lengths in (steps, steps_s))
    return bool(stamps.good.all()) and even > even_s


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


def rises_in(values: npt.NDArray[np.float64], *, cleared: bool = True) -> int:
    """How often the values of a series rise, which is 0 where they fall.

    One fall among many rises, to less than half the value, is that of a counter that was cleared, where no more is left
    than the largest rise or a small part.
    """
    steps = np.diff(values)
    rises, falls = steps[steps > 0], np.flatnonzero(steps < 0)
    if cleared and len(falls) == 1 and len(rises) >= COUNTER_RISES:
        before, after = values[falls[0] : falls[0] + 2].tolist()
        return len(rises) if 0 <= after < before / 2 and after <= max(rises.max(), before / _CLEARED) else 0
    return 0 if len(falls) else len(rises)


def are_counters(runs: Sequence[npt.NDArray[np.float64]], fewest: int = COUNTER_RISES, *, cleared: bool = True) -> bool:
    """Whether nearly all series that change are a meter's counter, not what it counts, by so many rises of all.

    A series that rises a few times alone, in less than half of its steps, says nothing. Of very many series some are
    looked at.

    Args:
        runs: the values of each series.
        fewest: the rises.
        cleared: whether one fall of a series may be that of a counter that was cleared.
    """
    tried = runs[:: max(1, len(runs) // _SERIES_TRIED)]
    rises = [(rises_in(run, cleared=cleared), len(run) - 1) for run in tried if len(run) and np.ptp(run) > 0]
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
