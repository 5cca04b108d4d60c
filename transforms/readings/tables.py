"""Files of any format as rows of all their columns, for a SELECT.

Columns of CSV, JSON and NEM12 are text as it stands in the file; those of Parquet and Avro have their own types. What
is no row, such as a line with another number of fields, is malformed by its line and costs itself. A column without a
name is called ``column`` and its number from 0; of two columns of one name the second has ``_1`` at its end.

``json``
    one document: an array is a row an element, an object one row (``unnest(results::json[])`` makes rows of its array)
``nem12``
    interval meter data of Australia: ``nmi register unit time length value quality``; its clock is UTC+10 all year
``greenbutton``
    ESPI interval readings in Atom feeds: ``usage_point uom flow time length value quality``, the power of ten applied
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from ..formats import avro as avro_files
from ..formats import csv as csv_files
from ..formats import jsonl as json_lines
from ..formats import parquet as parquet_files
from ..formats.paths import LineBlock, SourceFileError, open_bytes, open_text, text_blocks
from ..formats.rows import Columns, RawRows

_UTC = pa.timestamp("us", tz="UTC")
_NONE = np.empty(0, dtype=np.int64)
#: Bytes of a document, which is held as a whole.
_LARGEST_DOCUMENT = 1 << 28
_BATCH_ROWS = 1 << 14


@dataclass(frozen=True, slots=True)
class Layout:
    """How the text of files is laid out."""

    delimiter: str = ","
    encoding: str = "utf-8"
    skip: int = 0  # lines before the names of the columns
    names: tuple[str, ...] = ()  # of the columns, where the file has no line of them
    block_bytes: int = 1 << 23


def named(header: Sequence[str]) -> list[str]:
    """Names that are there once each."""
    made: list[str] = []
    for at, name in enumerate(header):
        one = name.strip() or f"column{at}"
        made.append(one if one not in made else f"{one}_{sum(other.startswith(one) for other in made)}")
    return made


def csv_rows(stream: BinaryIO, path: str, layout: Layout) -> Iterator[RawRows]:
    """Lines of CSV; a first line ``sep=;`` is passed over."""
    form: csv_files.CsvForm | None = None
    skip = layout.skip
    for whole in text_blocks(stream, path, layout.block_bytes):
        block = whole
        while form is None and block.data:
            line, _, rest = block.data.partition(b"\n")
            line = line.removesuffix(b"\r")
            if skip:
                skip -= 1
            elif block.first_line == 1 and line.lower().startswith(b"sep="):
                pass
            elif layout.names:
                form = _form(layout.names, layout.delimiter)
                break
            elif line:
                form = _form(named(csv_files.header_names(line, path, layout.delimiter)), layout.delimiter)
            block = LineBlock(block.first_line + 1, rest)
        if form is not None and (block.data or not whole.data):
            yield from csv_files.block_rows(block, form)


def _form(names: Sequence[str], delimiter: str) -> csv_files.CsvForm:
    fields = [str(at) for at in range(len(names))]
    types = dict.fromkeys(fields, pa.utf8())
    at = {name: number for number, name in enumerate(names)}
    return csv_files.CsvForm(len(names), at, (), fields, (types,), delimiter, ".", 0, 0)


def json_line_rows(stream: BinaryIO, path: str, layout: Layout) -> Iterator[RawRows]:
    """Objects of JSON Lines: the keys of the first block are the columns, what is no text is written as JSON."""
    names: list[str] | None = None
    for block in text_blocks(stream, path, layout.block_bytes):
        lines = block.data.split(b"\n")[:-1] if block.data else [b"!"]
        found = [(number, json_lines.object_of(line)) for number, line in enumerate(lines, block.first_line) if line]
        objects = [(number, one) for number, one in found if one is not None]
        names = names or list(dict.fromkeys(key for _, one in objects for key in one))
        lost = [number for number, one in found if one is None]
        yield _of_objects([one for _, one in objects], [number for number, _ in objects], names, lost)


def json_rows(stream: BinaryIO, path: str, layout: Layout) -> Iterator[RawRows]:  # noqa: ARG001 - as the others
    """A document of JSON."""
    data = stream.read(_LARGEST_DOCUMENT + 1)
    if len(data) > _LARGEST_DOCUMENT:
        raise SourceFileError(f"file {path} is a document of over {_LARGEST_DOCUMENT:,} bytes; write it as JSON Lines")
    found = json_lines.value_of(data.removeprefix(b"\xef\xbb\xbf"))
    elements = found if isinstance(found, list) else [found]
    if found is None:
        raise SourceFileError(f"file {path} is no document of JSON; check that it is whole")
    objects = [(at, one) for at, one in enumerate(elements, 1) if isinstance(one, dict)]
    lost = [at for at, one in enumerate(elements, 1) if not isinstance(one, dict)]
    names = list(dict.fromkeys(key for _, one in objects for key in one))
    yield _of_objects([one for _, one in objects], [at for at, _ in objects], names, lost)


def _of_objects(objects: list[Any], positions: list[int], names: list[str], lost: list[int]) -> RawRows:
    columns = {name: pa.array([_text(one.get(name)) for one in objects], pa.utf8()) for name in names}
    return RawRows(columns, np.array(positions, dtype=np.int64), np.array(lost, dtype=np.int64))


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return None if value is None else str(value).encode("utf-8", "replace").decode("utf-8")
    return json.dumps(value)


def nem12_rows(stream: BinaryIO, path: str, layout: Layout) -> Iterator[RawRows]:
    """Records 200, 300 and 400 of NEM12; a day that does not fit its record 200 is malformed."""
    rows, lost = _Rows("nmi", "register", "unit", "time", "length", "value", "quality"), list[int]()
    meter: tuple[str, str, str, int] | None = None
    first = 0  # row of the day's first interval, for the qualities of records 400
    for number, line in _lines(stream, path, layout):
        record = line.split(",")
        try:
            if record[0] == "100" and record[1] != "NEM12":
                raise SourceFileError(f"file {path} is {record[1]!r}, and source.nem12 reads NEM12")
            if record[0] == "200":
                meter = record[1], record[4] or record[3], record[7], int(record[8])
            elif record[0] == "300" and meter is not None:
                first = len(rows.positions)
                _nem12_day(rows, record, meter, number)
            elif record[0] == "400":
                for at in range(first + int(record[1]) - 1, first + int(record[2])):
                    rows.columns["quality"][at] = record[3]
            elif record[0] not in {"", "100", "500", "900"}:
                lost.append(number)
        except (ValueError, IndexError):
            lost.append(number)
        if record[0] == "200" and len(rows.positions) >= _BATCH_ROWS:
            yield rows.take(lost)
            lost = []
    yield rows.take(lost)


_AEST = dt.timezone(dt.timedelta(hours=10))


def _nem12_day(rows: _Rows, record: list[str], meter: tuple[str, str, str, int], number: int) -> None:
    nmi, register, unit, minutes = meter
    count = 1440 // minutes
    begin = dt.datetime.strptime(record[1], "%Y%m%d").replace(tzinfo=_AEST)
    quality = record[2 + count]
    length = dt.timedelta(minutes=minutes)
    for at, value in enumerate(record[2 : 2 + count]):
        rows.add(number, nmi, register, unit, begin + at * length, length, value or None, quality)


def green_button_rows(stream: BinaryIO, path: str, layout: Layout) -> Iterator[RawRows]:  # noqa: ARG001 - as the others
    """Interval readings of ESPI, each with the reading type that its block's meter reading names."""
    from defusedxml.common import DefusedXmlException  # noqa: PLC0415 - an extra
    from defusedxml.ElementTree import ParseError, iterparse  # noqa: PLC0415

    types, types_of = dict[str, tuple[str, str, int]](), dict[str, list[str]]()
    readings: list[tuple[str, int, int, int, str]] = []
    try:
        for _, entry in iterparse(stream):
            if _tag(entry) == "entry":
                _espi_entry(entry, types, types_of, readings)
                entry.clear()
    except (ParseError, DefusedXmlException, ValueError, StopIteration, OSError) as error:
        raise SourceFileError(f"file {path} is no Green Button feed ({type(error).__name__})") from None
    rows = _Rows("usage_point", "uom", "flow", "time", "length", "value", "quality")
    for number, (reading, start, length, value, quality) in enumerate(readings, 1):
        kind = next((types[one] for one in types_of.get(reading, []) if one in types), None)
        if kind is None:
            raise SourceFileError(
                f"file {path} has interval blocks without their ReadingType: its unit and power of ten are not known; "
                "ask for the whole feed"
            )
        uom, flow, ten = kind
        moment = dt.datetime.fromtimestamp(start, dt.UTC)
        point = reading.split("/MeterReading")[0].rsplit("/", 1)[-1]
        rows.add(number, point, uom, flow, moment, dt.timedelta(seconds=length), f"{value}e{ten}", quality)
    yield rows.take([])


def _tag(element: Any) -> str:
    return str(element.tag).rsplit("}", 1)[-1]


def _espi_entry(entry: Any, types: Any, types_of: Any, readings: list[tuple[str, int, int, int, str]]) -> None:
    links = dict[str, list[str]]()
    for one in entry:
        if _tag(one) == "link":
            links.setdefault(one.get("rel", ""), []).append(one.get("href", ""))
    here = links.get("self", [""])[0]
    for content in (kind for one in entry if _tag(one) == "content" for kind in one):
        if _tag(content) == "ReadingType":
            part = {_tag(one): (one.text or "").strip() for one in content}
            types[here] = part.get("uom", ""), part.get("flowDirection", ""), int(part.get("powerOfTenMultiplier") or 0)
        elif _tag(content) == "MeterReading":
            types_of[here] = [one for one in links.get("related", []) if "ReadingType" in one]
        elif _tag(content) == "IntervalBlock":
            for one in (one for one in content if _tag(one) == "IntervalReading"):
                part = {_tag(each): each for each in one.iter()}
                readings.append(
                    (
                        here.split("/IntervalBlock")[0],
                        int(part["start"].text),
                        int(part["duration"].text),
                        int(next(each.text for each in one if _tag(each) == "value")),
                        part["quality"].text if "quality" in part else "",
                    )
                )


class _Rows:
    """Rows that are gathered one by one."""

    def __init__(self, *names: str) -> None:
        self.columns: dict[str, list[Any]] = {name: [] for name in names}
        self.positions: list[int] = []

    def add(self, position: int, *row: Any) -> None:
        self.positions.append(position)
        for column, one in zip(self.columns.values(), row, strict=True):
            column.append(one)

    def take(self, lost: Iterable[int]) -> RawRows:
        kinds = {"time": _UTC, "length": pa.duration("us")}
        arrays = {name: pa.array(column, kinds.get(name, pa.utf8())) for name, column in self.columns.items()}
        made = RawRows(arrays, np.array(self.positions, dtype=np.int64), np.array(list(lost), dtype=np.int64))
        self.positions = []
        for column in self.columns.values():
            column.clear()
        return made


def _lines(stream: BinaryIO, path: str, layout: Layout) -> Iterator[tuple[int, str]]:
    for block in text_blocks(stream, path, layout.block_bytes):
        for number, line in enumerate(block.data.split(b"\n")[:-1], block.first_line):
            yield number, line.decode("utf-8", "replace").strip()


def parquet_rows(path: str, groups: tuple[int, int, int] | None, batch_rows: int) -> Iterator[RawRows]:
    """Row groups of Parquet, or all of them."""
    file = parquet_files.open_parquet(path, Columns(None, (), ""))
    try:
        names = Columns(None, tuple(file.schema_arrow.names), "")
        whole = groups or (0, file.metadata.num_row_groups, 0)
        yield from parquet_files.parquet_rows(file, path, names, whole, batch_rows)
    finally:
        parquet_files.close_parquet(file)


def avro_rows(path: str, batch_rows: int) -> Iterator[RawRows]:
    """Records of an Avro container: its fields that hold single values."""
    with open_bytes(path) as stream:
        yield from avro_files.avro_rows(stream, path, avro_files.single_values, batch_rows)


#: Formats that are read from a stream.
_STREAMS: dict[str, Callable[[BinaryIO, str, Layout], Iterator[RawRows]]] = {
    "csv": csv_rows,
    "jsonl": json_line_rows,
    "json": json_rows,
    "nem12": nem12_rows,
    "greenbutton": green_button_rows,
}


def rows_of(path: str, kind: str, layout: Layout, groups: tuple[int, int, int] | None, rows: int) -> Iterator[RawRows]:
    """The rows of a file with all its columns.

    Raises:
        SourceFileError: it cannot be read, or is not of its kind.
        SettingsError: it has no line of names.
    """
    if kind == "parquet":
        yield from parquet_rows(path, groups, rows)
    elif kind == "avro":
        yield from avro_rows(path, rows)
    else:
        with open_text(path, layout.encoding) as stream:
            yield from _STREAMS[kind](stream, path, layout)


def rows_in(stream: BinaryIO, name: str, kind: str, layout: Layout) -> Iterator[RawRows]:
    """The same of text that is open."""
    yield from _STREAMS[kind](stream, name, layout)
