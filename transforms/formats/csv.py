"""CSV files to raw rows: blocks that are in order go to Arrow at once, the others line by line without losing a line.

A record is one line: quoted fields may hold delimiters and doubled quotes, but no line feed. So a quote that is never
closed costs its own line and nothing after it, and every line has a number. A line that closes a quote which it did not
open is malformed, too: as the rest of a quoted name with a line feed it would be a reading of a series that is none.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import pyarrow as pa
from pyarrow import csv as arrow_csv

from ...schemas.settings.base import SettingsError
from ..common.batches import Bools, Ints, pc, whole
from .paths import LineBlock, is_utf8, text_blocks
from .rows import MISSING, Columns, RawRows, missing_column

_LF, _CR, _QUOTE = 10, 13, 34
#: The first byte value that is not ASCII.
_NOT_ASCII = 0x80
#: How much of a file is looked at for its header.
_HEADER_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class CsvForm:
    """How the lines of one file are laid out."""

    width: int
    at: dict[str, int]
    values: tuple[str, ...]  # the columns with numbers; one, but in a wide table, and none where the values are labels
    fields: list[str]  # a name for each field of a line, which is its number
    # the type of each needed field; of values that are numbers the second one where a block has others
    types: tuple[dict[str, pa.DataType], ...]
    delimiter: str
    decimal: str
    lines: int
    begin: int  # bytes up to and including the header, without a byte order mark


def check_delimiter(delimiter: str) -> None:
    """Refuse delimiters that cannot be distinguished from the rest of a line."""
    if not delimiter.isascii() or delimiter in '"\r\n\0':
        raise SettingsError(
            f"source.delimiter is {delimiter!r} and must be one ASCII character other than a quote or a line end"
        )


def header_of(stream: BinaryIO, path: str, delimiter: str) -> list[str] | None:
    """The names in the header of a file; ``None`` for a file without a line."""
    blocks = text_blocks(stream, path, _HEADER_BYTES)
    return next((found[0] for block in blocks if (found := _find_header(block, path, delimiter)) is not None), None)


def check_columns(stream: BinaryIO, path: str, columns: Columns, delimiter: str) -> bool:
    """See whether the header of a file has the columns; ``False`` for a file without a line."""
    header = header_of(stream, path, delimiter)
    return header is not None and bool(_places(header, path, columns))


def _find_form(block: LineBlock, path: str, columns: Columns, delimiter: str) -> CsvForm | None:
    found = _find_header(block, path, delimiter)
    if found is None:
        return None
    header, lines, begin = found
    at = _places(header, path, columns)
    texts = columns.values if columns.labels else ()
    names = tuple(one for one in (columns.series, columns.group, *texts) if one is not None)
    values = () if columns.labels else columns.values
    fields = [str(i) for i in range(len(header))]
    plain = {fields[place]: pa.utf8() for place in at.values()}
    plain |= {fields[at[name]]: pa.dictionary(pa.int32(), pa.utf8()) for name in names}
    shares = Counter(at.values())
    alone = [fields[at[value]] for value in values if shares[at[value]] == 1]
    types = tuple(plain | dict.fromkeys(alone, kind) for kind in (pa.float64(), pa.utf8()))
    return CsvForm(len(header), at, values, fields, types, delimiter, columns.decimal, lines, begin)


def _find_header(block: LineBlock, path: str, delimiter: str) -> tuple[list[str], int, int] | None:
    """The header, if it is in this block: the first line that is not blank; and the lines and bytes up to its end."""
    if not block.data:
        raise SettingsError(f"source.csv: {path} does not begin with a header line; check that it is a CSV file")
    start, number = 0, 0
    while start < len(block.data):
        end = block.data.index(b"\n", start)
        number += 1
        line = block.data[start:end].removesuffix(b"\r")
        if line:
            return header_names(line, path, delimiter), number, end + 1
        start = end + 1
    return None


def header_names(line: bytes, path: str, delimiter: str) -> list[str]:
    """The names in a line of names.

    Raises:
        SettingsError: it is no line of UTF-8 text, or has an open quote.
    """
    if not is_utf8(line) or b"\0" in line or b"\r" in line:
        raise SettingsError(
            f"source.csv: the header of {path} is not a line of UTF-8 text; save it as UTF-8 with line feeds, set "
            "source.encoding, or check that it is a CSV file"
        )
    header = _fields(line.decode("utf-8"), delimiter)
    if header is None:
        raise SettingsError(f"source.csv: the header of {path} has a quote that is not closed; correct the header")
    return header


def _places(header: list[str], path: str, columns: Columns) -> dict[str, int]:
    """The number of each needed column's field; blanks around a name in the header do not matter."""
    problems: list[str] = []
    at: dict[str, int] = {}
    exact, stripped = dict[str, list[int]](), dict[str, list[int]]()
    for i, name in enumerate(header):
        exact.setdefault(name, []).append(i)
        stripped.setdefault(name.strip(), []).append(i)
    for setting, column in columns.settings:
        places = exact.get(column) or stripped.get(column.strip(), [])
        if len(places) == 1:
            at[column] = places[0]
        elif places:
            problems.append(f"{setting}: the header of {path} has {len(places)} columns {column!r}; rename all but one")
        else:
            problems.append(missing_column(setting, column, path, header, hidden=columns.cells is not None))
    if problems:
        raise SettingsError(problems)
    if columns.cells is not None:
        at |= zip(columns.cells.names, (columns.cells.numbers - 1).tolist(), strict=True)
    return at


def csv_rows(stream: BinaryIO, path: str, columns: Columns, delimiter: str, block_bytes: int) -> Iterator[RawRows]:
    """Parse a file."""
    form: CsvForm | None = None
    for block in text_blocks(stream, path, block_bytes):
        body = block
        if form is None:
            form = _find_form(block, path, columns, delimiter)
            if form is None:
                continue
            body = LineBlock(block.first_line + form.lines, block.data[form.begin :])
            if not body.data:
                continue
        yield from block_rows(body, form)


def block_rows(block: LineBlock, form: CsvForm) -> Iterator[RawRows]:
    """Parse a block of lines."""
    if not block.data:
        yield RawRows.lost(np.array([block.first_line], dtype=np.int64))
        return
    lines = block.lines
    numbers = np.arange(lines, dtype=np.int64) + block.first_line
    none = np.empty(0, dtype=np.int64)
    if _in_order(block.data):
        columns = _parse(block.data, form, lines)
        if columns is not None:
            yield RawRows(columns, numbers, none)
            return
    lots = _sort_lines(block.data, form)
    good, single = lots.good, lots.single
    malformed = [numbers[lots.malformed]]
    if good.any():
        columns = _parse(block.data if good.all() else lots.take(good), form, int(good.sum()))
        if columns is None:
            single = single | good  # Arrow and we disagree about a line: each is parsed alone
        else:
            yield RawRows(columns, numbers[good], none)
    if single.any():
        texts = [line.decode("utf-8") for line in lots.lines(single)]
        fields = [None if _may_be_rest(one, form.delimiter) else _fields(one, form.delimiter) for one in texts]
        whole = np.array([one is not None and len(one) == form.width for one in fields], dtype=np.bool_)
        kept = [one for one in fields if one is not None and len(one) == form.width]
        arrays = {name: pa.array([one[at] for one in kept], pa.utf8()) for name, at in form.at.items()}
        malformed.append(numbers[single][~whole])
        yield RawRows(arrays, numbers[single][whole], none)
    lost = np.sort(np.concatenate(malformed))
    if len(lost):
        yield RawRows.lost(lost)


def _fields(line: str, delimiter: str) -> list[str] | None:
    try:
        return next(csv.reader([line], delimiter=delimiter, strict=True), [])
    except csv.Error:
        return None


def _may_be_rest(line: str, delimiter: str) -> bool:
    """Whether a quoted field that began before a line ends with the line's first field; a quoted line is none."""
    first = line.partition(delimiter)[0]
    return first.endswith('"') and first.count('"') % 2 == 1 and _fields(f'"{line}', delimiter) is not None


def _in_order(data: bytes) -> bool:
    """Whether Arrow's reader surely sees the same lines as we do: nothing reaches beyond a line feed."""
    if b"\0" in data or b'"' in data or not is_utf8(data):
        return False
    return b"\r" not in data or data.count(b"\r") == data.count(b"\r\n")


def _parse(data: bytes, form: CsvForm, lines: int) -> dict[str, pa.Array] | None:
    """Parse lines that are in order; ``None`` if one has another number of fields."""
    for types in form.types:
        try:
            # the reader of streams parses here; that of files hands each block to a thread, which takes longer than a
            # small one does
            with arrow_csv.open_csv(
                pa.BufferReader(data),
                read_options=arrow_csv.ReadOptions(
                    column_names=form.fields, block_size=len(data) + 1, use_threads=False
                ),
                parse_options=arrow_csv.ParseOptions(delimiter=form.delimiter),
                convert_options=arrow_csv.ConvertOptions(
                    column_types=types,
                    include_columns=list(types),
                    null_values=list(MISSING),
                    strings_can_be_null=False,
                    decimal_point=form.decimal,
                ),
            ) as reader:
                table = reader.read_all()
        except pa.ArrowInvalid:
            continue
        if table.num_rows != lines:
            return None
        columns = {name: whole(table.column(form.fields[at])) for name, at in form.at.items()}
        if _have_infinity([columns[value] for value in form.values]):
            continue  # only in the text does an infinity differ from a number too large for a float
        return columns
    return None


def _have_infinity(columns: list[pa.Array]) -> bool:
    floats = [column for column in columns if pa.types.is_floating(column.type)]
    return bool(floats) and bool(pc.any(pc.is_inf(pa.chunked_array(floats))).as_py())


@dataclass(frozen=True, slots=True)
class _SortedLines:
    """The lines of a block by what can be done with them; blank ones are in none of the three."""

    data: bytes
    starts: Ints  # first byte of each line, shape (n,)
    ends: Ints  # its line feed, shape (n,)
    good: Bools  # lines with the right number of properly quoted fields, shape (n,)
    single: Bools  # lines with quotes in unusual places, to be looked at one by one, shape (n,)
    malformed: Bools

    def take(self, rows: Bools) -> bytes:
        return np.frombuffer(self.data, np.uint8)[np.repeat(rows, self.ends - self.starts + 1)].tobytes()

    def lines(self, rows: Bools) -> list[bytes]:
        return [line.removesuffix(b"\r") for line in self.take(rows).split(b"\n")[:-1]]


def _sort_lines(data: bytes, form: CsvForm) -> _SortedLines:
    raw = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(raw == _LF)
    starts = np.concatenate(([0], ends[:-1] + 1))
    stops = ends - ((ends > starts) & (raw[ends - 1] == _CR))
    blank = stops == starts

    def line_of(bytes_at: Ints) -> Ints:
        return np.searchsorted(ends, bytes_at)

    broken = np.zeros(len(ends), dtype=np.bool_)
    broken[line_of(np.flatnonzero(raw == 0))] = True
    returns = np.flatnonzero(raw == _CR)
    inner = returns != stops[line_of(returns)]
    broken[line_of(returns[inner])] = True
    if not is_utf8(data):
        for line in np.unique(line_of(np.flatnonzero(raw >= _NOT_ASCII))).tolist():
            broken[line] |= not is_utf8(data[starts[line] : stops[line]])

    delimiters = np.flatnonzero(raw == ord(form.delimiter))
    at = line_of(delimiters)
    unusual = np.zeros(len(ends), dtype=np.bool_)
    quotes = np.flatnonzero(raw == _QUOTE)
    if len(quotes):
        line = line_of(quotes)
        firsts = np.searchsorted(quotes, starts)
        opening = (np.arange(len(quotes)) - firsts[line]) % 2 == 0
        before, after = raw[quotes - 1], raw[quotes + 1]
        delimiter = ord(form.delimiter)
        begins = (quotes == starts[line]) | (before == delimiter) | (before == _QUOTE)
        closes = (quotes + 1 == stops[line]) | (after == delimiter) | (after == _QUOTE)
        unusual[line[np.where(opening, ~begins, ~closes)]] = True
        unusual |= np.bincount(line, minlength=len(ends)) % 2 == 1
        outside = (np.searchsorted(quotes, delimiters) - firsts[at]) % 2 == 0
        at = at[outside]
    fits = np.bincount(at, minlength=len(ends)) == form.width - 1
    usable = ~blank & ~broken
    return _SortedLines(
        data, starts, ends, usable & ~unusual & fits, usable & unusual, ~blank & (broken | (~unusual & ~fits))
    )
