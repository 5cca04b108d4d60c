"""CSV files to raw rows.

A record is one line: quoted fields may hold delimiters and doubled quotes, but no line feed. So a quote that is never
closed costs its own line and nothing after it. A line that closes a quote which it did not open is malformed, too: as
the rest of a quoted name with a line feed it would be a reading of a series that is none.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, BinaryIO

import pyarrow as pa
from pyarrow import csv as arrow_csv

from ...schemas.settings.base import SettingsError
from ..common.batches import pc, whole
from .columns import Columns, RawRows, named_once
from .lines import HEAD_BYTES, Layout, LineBlock, Parsed, line_rows, text_blocks
from .paths import is_utf8
from .rows import MISSING


def check_delimiter(delimiter: str) -> None:
    """Refuse delimiters that cannot be distinguished from the rest of a line."""
    if not delimiter.isascii() or delimiter in '"\r\n\0':
        raise SettingsError(
            f"source.delimiter is {delimiter!r} and must be one ASCII character other than a quote or a line end"
        )


def header_of(stream: BinaryIO, path: str, layout: Layout) -> list[str] | None:
    """The names of the columns of a file; ``None`` for a file without a line."""
    found = _behind_header(text_blocks(stream, path, HEAD_BYTES), path, layout)
    return None if found is None else found[0]


def csv_rows(stream: BinaryIO, path: str, layout: Layout, columns: Columns | None) -> Iterator[RawRows]:
    """Parse a file: the columns that readings are made of, or all of them as text."""
    blocks = text_blocks(stream, path, layout.block_bytes)
    found = _behind_header(blocks, path, layout)
    if found is not None:
        header, rest = found
        lines = _Lines(header, layout.delimiter, columns)
        yield from line_rows(chain([rest] if rest.data else [], blocks), lines.parse, lines.each)


def _behind_header(blocks: Iterator[LineBlock], path: str, layout: Layout) -> tuple[list[str], LineBlock] | None:
    """The names of the columns, and what is behind them in their block; a first line ``sep=;`` is passed over."""
    skip = layout.skip
    for block in blocks:
        at, number = 0, block.first_line
        if not block.data:
            if not skip:
                raise SettingsError(
                    f"source.csv: {path} does not begin with a header line; check that it is a CSV file"
                )
            skip -= 1
        while at < len(block.data):
            end = block.data.index(b"\n", at)
            line = block.data[at:end].removesuffix(b"\r")
            if skip:
                skip -= 1
            elif number == 1 and line[:4].lower() == b"sep=":
                pass
            elif layout.names:
                return list(layout.names), LineBlock(number, block.data[at:])
            elif line:
                return _names_in(line, path, layout.delimiter), LineBlock(number + 1, block.data[end + 1 :])
            at, number = end + 1, number + 1
    return None


def _names_in(line: bytes, path: str, delimiter: str) -> list[str]:
    """The names in a line of names; blanks around a name do not matter."""
    if not is_utf8(line) or b"\0" in line or b"\r" in line:
        raise SettingsError(
            f"source.csv: the header of {path} is not a line of UTF-8 text; save it as UTF-8 with line feeds, set "
            "source.encoding, or check that it is a CSV file"
        )
    header = _fields(line.decode("utf-8"), delimiter)
    if header is None:
        raise SettingsError(f"source.csv: the header of {path} has a quote that is not closed; correct the header")
    return [name.strip() for name in header]


def _fields(line: str, delimiter: str) -> list[str] | None:
    try:
        return next(csv.reader([line], delimiter=delimiter, strict=True), [])
    except csv.Error:
        return None


@dataclass(frozen=True)
class _Lines:
    """How the lines of one file are read."""

    header: Sequence[str]
    delimiter: str
    columns: Columns | None  # ``None`` for all of them

    @cached_property
    def _at(self) -> dict[str, int]:
        """The number of each needed column's field."""
        if self.columns is None:
            return {name: at for at, name in enumerate(named_once(self.header))}
        return {name: self.header.index(name.strip()) for name in self.columns.names}

    @cached_property
    def _fields(self) -> list[str]:
        """A name for each field of a line, which is its number."""
        return [str(at) for at in range(len(self.header))]

    @cached_property
    def _types(self) -> tuple[dict[str, pa.DataType], ...]:
        """The type of each needed field; of values that are numbers the second one where a block has others."""
        texts = dict.fromkeys((self._fields[at] for at in self._at.values()), pa.utf8())
        if self.columns is None:
            return (texts,)
        names = (self.columns.series, self.columns.group, self.columns.value if self.columns.labels else None)
        texts |= {self._fields[self._at[one]]: pa.dictionary(pa.int32(), pa.utf8()) for one in names if one is not None}
        at = self._at[self.columns.value]
        if self.columns.labels or Counter(self._at.values())[at] > 1:
            return (texts,)
        return texts | {self._fields[at]: pa.float64()}, texts

    @cached_property
    def _in_order(self) -> re.Pattern[bytes]:
        """Lines whose quotes, if any, are around whole fields: nothing reaches beyond a line feed."""
        one = re.escape(self.delimiter.encode())
        field = rb'"[^"\r\n]*+(?:""[^"\r\n]*+)*+"|[^"\r\n' + one + rb"]*+"
        return re.compile(rb"(?:(?:" + field + rb")(?:" + one + rb"|\r?\n))*+")

    def parse(self, data: bytes) -> Parsed | None:
        """All lines at once."""
        if b"\0" in data or not is_utf8(data):
            return None
        quoted = b'"' in data or (b"\r" in data and data.count(b"\r") != data.count(b"\r\n"))
        if quoted and self._in_order.fullmatch(data) is None:
            return None
        bad: list[int] = []

        def passed_over(row: Any) -> str:
            bad.append(row.number - 1)
            return "skip"

        for types in self._types:
            bad.clear()
            try:
                # the reader of streams parses here; that of files hands each block to a thread, which takes longer than
                # a small one does
                with arrow_csv.open_csv(
                    pa.BufferReader(data),
                    read_options=arrow_csv.ReadOptions(
                        column_names=self._fields, block_size=len(data) + 1, use_threads=False
                    ),
                    parse_options=arrow_csv.ParseOptions(delimiter=self.delimiter, invalid_row_handler=passed_over),
                    convert_options=arrow_csv.ConvertOptions(
                        column_types=types,
                        include_columns=list(types),
                        null_values=list(MISSING),
                        strings_can_be_null=False,
                    ),
                ) as reader:
                    table = reader.read_all()
            except pa.ArrowInvalid:
                continue
            if table.num_rows + len(bad) != data.count(b"\n"):
                return None
            arrays = {name: whole(table.column(self._fields[at])) for name, at in self._at.items()}
            # only in the text does an infinity differ from a number too large for a float
            if not any(pa.types.is_floating(one.type) and pc.any(pc.is_inf(one)).as_py() for one in arrays.values()):
                return arrays, bad
        return None

    def each(self, lines: list[bytes]) -> Parsed:
        """Lines one by one."""
        found = list(map(self._row, lines))
        rows = [row for row in found if row is not None]
        arrays = {name: pa.array([row[at] for row in rows], pa.utf8()) for name, at in self._at.items()}
        return arrays, [place for place, row in enumerate(found) if row is None]

    def _row(self, line: bytes) -> list[str] | None:
        if b"\0" in line or b"\r" in line or not is_utf8(line):
            return None
        text = line.decode("utf-8")
        first = text.partition(self.delimiter)[0]
        # a quoted field that began before the line may end with its first field
        is_rest = first.endswith('"') and first.count('"') % 2 == 1 and _fields(f'"{text}', self.delimiter) is not None
        fields = None if is_rest else _fields(text, self.delimiter)
        return fields if fields is not None and len(fields) == len(self.header) else None
