"""``init`` takes encoding, delimiter and decimal mark from the first lines of a CSV file, and reads its rows by them.

Arrow's own texts quote what they could not read, and its callbacks print theirs, so nothing reaches it that it cannot
decode.
"""

from __future__ import annotations

import codecs
import csv
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import pyarrow as pa
import pyarrow.csv as pa_csv

from ...schemas.settings.connectors import Encoding
from ...transforms.formats.paths import is_utf8, open_text
from ...transforms.formats.rows import MISSING
from ..console import plural
from ..errors import CommandError, ExitCode

#: Columns from which those that have one name but for its digits are said to be a series each.
FEWEST_SERIES = 3

#: Names of columns of times, and of those of the day.
TIME = re.compile(
    r"time|^ts$|date|stamp|epoch|when|zeit|datum|^stunde$|horodat|^heure$|fecha|^hora$|tijd", re.IGNORECASE
)
HOUR = re.compile(r"^hour$|^time$|time_?of_?day|^(uhr)?zeit$|^stunde$|^heure$|^hora$|^tijd$", re.IGNORECASE)

#: Bytes and lines that are looked at, and of how many lines one may be damaged.
_BYTES, _LINES, _LINES_A_DAMAGED = 1 << 20, 200, 20
_LONGEST_INTEGER = 19
#: What may stand between columns, the usual first.
DELIMITERS = (",", ";", "\t", "|")

#: Numbers with a decimal comma, and with commas or points between thousands; and what is below a thousand.
_WITH_COMMA = re.compile(r"[-+]?(\d+|\d{1,3}([.'\u2019 \u00a0\u202f]\d{3})+)(,\d+)?")
_COMMA_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+")
_POINT_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(\.\d{3})+")
_BELOW_THOUSAND = re.compile(r"[-+]?\d{1,3}")
_DIGIT = re.compile(r"\d")
_TIME_OF_DAY = re.compile(r"\d{1,2}:\d{2}(:\d{2})?")
#: Numbers and times, which are no names of columns.
_DATA = re.compile(
    r"[-+]?[\d.]*\d([eE][-+]?\d+)?|(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})([T ]\d.*)?"
)

#: The error handler of codecs that writes a question mark for every byte that is no text.
_MARK = "quiltstream-mark"


@dataclass(frozen=True, slots=True)
class Layout:
    """How a CSV file is written."""

    encoding: Encoding = "utf-8"
    delimiter: str = ","  # between its columns
    decimal: Literal[".", ","] = "."  # mark before the decimals of its numbers
    grouped: tuple[str, ...] = ()  # columns whose points may separate thousands
    texts: tuple[str, ...] = ()  # columns that are text, though Arrow would take them for times or numbers


def layout_of(path: Path, value: str | None = None) -> Layout:
    """The layout by the first lines; the column ``value`` tells the decimal mark, or any does if it is not there."""
    encoding, lines = _lines(path)
    delimiter = _delimiter(path, *lines)
    names, *rows = csv.reader(lines, delimiter=delimiter)
    _check_names(path, names)
    columns = _columns(names, rows)
    has_commas = any(_has_commas(cells, delimiter) for name, cells in columns if name == value or value not in names)
    given = {name: kept for name, cells in columns if (kept := {*cells} - {*MISSING})}
    grouped = tuple(name for name, cells in given.items() if not has_commas and _may_be_grouped(cells))
    texts = tuple(name for name, cells in given.items() if _are_texts(cells, is_hour=HOUR.search(name) is not None))
    return Layout(encoding, delimiter, "," if has_commas else ".", grouped, texts)


def batches_of(layout: Layout, file: BinaryIO) -> Iterator[pa.RecordBatch]:
    """The rows of a file, but for those of another number of columns."""
    parsing = pa_csv.ParseOptions(delimiter=layout.delimiter, invalid_row_handler=lambda _row: "skip")
    kinds = pa_csv.ConvertOptions(decimal_point=layout.decimal, column_types=dict.fromkeys(layout.texts, pa.utf8()))
    source: Any = _DecodableFile(file)
    yield from pa_csv.open_csv(pa.PythonFile(source, mode="r"), parse_options=parsing, convert_options=kinds)


def _encoding(sample: bytes) -> Encoding:
    """UTF-16 by its mark; else UTF-8, unless many lines or the first one are none."""
    if sample.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    lines = sample.splitlines()[:-1] or [sample]
    damaged = [at for at, line in enumerate(lines) if not is_utf8(line)]
    # a damaged line here and there is a reject; bytes of zero are no text in any of these
    if b"\0" in lines[0] or not damaged or (damaged[0] > 0 and len(damaged) * _LINES_A_DAMAGED < len(lines)):
        return "utf-8"
    try:
        sample.decode("windows-1252")
    except UnicodeDecodeError:
        return "latin-1"
    return "windows-1252"


def _lines(path: Path) -> tuple[Encoding, list[str]]:
    """The encoding of a file, and its first lines that are not blank."""
    with open_text(str(path)) as file:
        sample = file.read(_BYTES)
    encoding = _encoding(sample)
    text = sample.decode("utf-8-sig" if encoding == "utf-8" else encoding, "replace")
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise CommandError(f"{path}: it is empty; give a file that holds readings", ExitCode.SOURCE)
    if any(unicodedata.category(character) == "Cc" for character in lines[0] if character != "\t"):
        raise CommandError(
            f"{path}: its first line is not a line of text; save it as UTF-8, or check that it is a CSV file",
            ExitCode.SOURCE,
        )
    return encoding, lines[: 1 + _LINES]


def _delimiter(path: Path, header: str, *others: str) -> str:
    """The delimiter that makes the most columns; where none makes several, it is said what may be wrong."""
    widths = {one: _joint_width(one, header, *others) for one in DELIMITERS}
    delimiter = max(DELIMITERS, key=widths.__getitem__)
    if not widths[delimiter]:
        _check_first(path, header, others)
    return delimiter


def _joint_width(delimiter: str, header: str, *others: str) -> int:
    """Columns that a delimiter makes of a file; 0 where its lines disagree, or where it makes one."""
    names, *widths = (len(row) for row in csv.reader([header, *others], delimiter=delimiter))
    return names if names > 1 and sum(width == names for width in widths) * 2 >= len(widths) else 0


def _check_first(path: Path, header: str, others: Sequence[str]) -> None:
    """Check that some line has as many columns as the first one, which a remark above the names has not."""
    if not others:
        return
    usual = {one: Counter(_width(line, one) for line in others).most_common(1)[0][0] for one in DELIMITERS}
    delimiter = max(DELIMITERS, key=usual.__getitem__)
    if _width(header, delimiter) in {_width(line, delimiter) for line in others}:
        return
    raise CommandError(
        f"{path}: its first line has {plural(_width(header, delimiter), 'column')}, and the lines below it have "
        f"{usual[delimiter]}; begin the file with a line of the names of all columns, and take away what is above it",
        ExitCode.SOURCE,
    )


def _width(line: str, delimiter: str) -> int:
    return len(next(csv.reader([line], delimiter=delimiter)))


def _check_names(path: Path, names: list[str]) -> None:
    """Check that the first line is no data: whole numbers, as of meters or hours, are names beside that of a time."""
    whole = [name.strip() for name in names if name.strip().isdecimal()]
    others = [name for name in names if not name.strip().isdecimal()]
    are_names = len(whole) >= FEWEST_SERIES and len(set(whole)) == len(whole) and any(map(TIME.search, others))
    if any(_DATA.fullmatch(name.strip()) for name in others) or (whole and not are_names):
        raise CommandError(
            f"{path}: its first line looks like data, not like the names of columns; begin the file with a line of "
            "names, for example meter,time,kwh",
            ExitCode.SOURCE,
        )


def _columns(names: list[str], rows: list[list[str]]) -> list[tuple[str, tuple[str, ...]]]:
    """The name and the cells of each column, from the rows that have all of them; no column without such a row."""
    whole = [[cell.strip() for cell in row] for row in rows if len(row) == len(names)]
    return list(zip(names, zip(*whole, strict=True), strict=False))


def _has_commas(column: Iterable[str], delimiter: str) -> bool:
    """Whether a column has numbers with decimal commas.

    Groups of three digits may as well be thousands, but not between semicolons, which are there because the comma
    is the decimal mark. Where one such group after a point may be decimals, the mark of most numbers counts. Texts
    without a digit are marks of a missing value or an error.
    """
    cells = [cell for cell in column if _DIGIT.search(cell)]
    commas = [cell for cell in cells if "," in cell]
    are_thousands = delimiter != ";" and all(map(_COMMA_THOUSANDS.fullmatch, commas))
    points = [cell for cell in cells if "." in cell and "," not in cell]
    return len(commas) > len(points) and all(map(_WITH_COMMA.fullmatch, cells)) and not are_thousands


def _may_be_grouped(cells: set[str]) -> bool:
    """Whether all numbers with a point are as thousands are written, and all others whole and smaller."""
    points = {cell for cell in cells if _POINT_THOUSANDS.fullmatch(cell)}
    return 0 < len(points) < len(cells) and all(map(_BELOW_THOUSAND.fullmatch, cells - points))


def _are_texts(cells: set[str], *, is_hour: bool) -> bool:
    """Whether a column has times of the day, whose format matters, or whole numbers that no integer can hold."""
    if is_hour:
        return all(map(_TIME_OF_DAY.fullmatch, cells))
    return all(map(str.isdecimal, cells)) and max(map(len, cells)) > _LONGEST_INTEGER


def _marked(error: UnicodeError) -> tuple[str, int]:
    """A question mark for every byte that is no text, so that nothing becomes longer."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "?" * (error.end - error.start), error.end


codecs.register_error(_MARK, _marked)


class _DecodableFile:
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
