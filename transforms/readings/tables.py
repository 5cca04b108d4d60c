"""Files of any format as rows: the columns that readings are made of, or all of them for a SELECT.

Of all columns those of CSV, JSON and NEM12 are text as it stands in the file; those of Parquet and Avro have their own
types. What is no row, such as a line with another number of fields, is malformed by its line and costs itself.

``json``
    one document: an array is a row an element, an object one row (``unnest(results::json[])`` makes rows of its array)
``nem12``
    interval meter data of Australia: ``nmi register unit time length value quality``; its clock is UTC+10 all year
``cim``, ``dsmr``
    what :mod:`.meters` makes of documents and telegrams; of the latter the codes of the first block are the columns
``greenbutton``
    ESPI interval readings in Atom feeds: ``usage_point uom flow time length value quality``, the power of ten applied
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from ..formats import avro as avro_files
from ..formats import csv as csv_files
from ..formats import jsonl as json_files
from ..formats import parquet as parquet_files
from ..formats.columns import Columns, RawRows
from ..formats.lines import Layout, read_text, text_blocks
from ..formats.paths import DAMAGE, SourceFileError, open_bytes, open_text
from .meters import check_xml, cim, telegram, telegrams

_UTC = pa.timestamp("us", tz="UTC")
_BATCH_ROWS = 1 << 14


def nem12_rows(stream: BinaryIO, path: str, layout: Layout) -> Iterator[RawRows]:
    """Records 200, 300 and 400 of NEM12; a day that does not fit its record 200 is malformed."""
    rows, lost = _Rows("nmi", "register", "unit", "time", "length", "value", "quality"), list[int]()
    meter: tuple[str, str, str, int] | None = None
    first = 0  # row of the day's first interval, for the qualities of records 400
    for number, line in _lines(stream, path, layout):
        record = line.split(",")
        if record[0] == "100" and record[1:2] != ["NEM12"]:
            raise SourceFileError(f"file {path} is {record[1:2]}, and source.nem12 reads NEM12")
        try:
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
    except (ParseError, DefusedXmlException, ValueError, StopIteration, *DAMAGE) as error:
        raise SourceFileError(f"file {path} is no Green Button feed ({type(error).__name__})") from None
    rows = _Rows("usage_point", "uom", "flow", "time", "length", "value", "quality")
    for number, (reading, start, length, value, quality) in enumerate(readings, 1):
        kind = next((types[one] for one in types_of.get(reading, []) if one in types), None)
        if kind is None:
            raise SourceFileError(
                f"file {path} has interval blocks without their reading type: its unit and power of ten are not known; "
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


def cim_rows(stream: BinaryIO, path: str, layout: Layout) -> Iterator[RawRows]:  # noqa: ARG001 - as the others
    """Values of a document of CIM."""
    check_xml("source.cim: files")
    try:
        found = cim(read_text(stream, path, json_files.LARGEST_DOCUMENT))
    except Exception as error:  # noqa: BLE001 - whatever a parser raises may quote the document
        raise SourceFileError(f"file {path} has no CIM MeterReadings ({type(error).__name__})") from None
    yield json_files.rows_of_objects(list(enumerate(found, 1)), list(found[0]) if found else [], path)


#: Bytes of a telegram.
_LONGEST_TELEGRAM = 1 << 16


def dsmr_rows(stream: BinaryIO, path: str, layout: Layout) -> Iterator[RawRows]:
    """Telegrams of DSMR by the numbers of their first lines; a bad one is malformed."""
    names: list[str] | None = None
    rest, line = b"", 1
    for block in itertools.chain(text_blocks(stream, path, layout.block_bytes), [None]):
        whole = list(telegrams(rest + block.data)) if block is not None else [rest]
        rest = whole.pop() if block is not None and len(whole[-1]) < _LONGEST_TELEGRAM else b""
        found = list[tuple[int, dict[str, Any] | None]]()
        for one in whole:
            try:
                found.append((line, dict(telegram(one))))
            except ValueError:
                found += [(line, None)] if one.strip() else []
            line += one.count(b"\n")
        names = names or list(dict.fromkeys(key for _, one in found for key in one or {}))
        yield json_files.rows_of_objects(found, names, path)


#: Formats of records that are always read whole.
_RECORDS: dict[str, Callable[[BinaryIO, str, Layout], Iterator[RawRows]]] = {
    "json": lambda stream, path, _: json_files.document_rows(stream, path),
    "nem12": nem12_rows,
    "greenbutton": green_button_rows,
    "cim": cim_rows,
    "dsmr": dsmr_rows,
}


def columns_of(path: str, kind: str, layout: Layout) -> pa.Schema | None:
    """The columns of a file and their types; ``None`` for one without a line.

    Raises:
        SourceFileError: it cannot be read, or is not of its kind.
        SettingsError: it has no line of names.
    """
    if kind == "parquet":
        with parquet_files.opened(path) as file:
            return file.schema_arrow
    if kind == "avro":
        with open_bytes(path) as stream:
            return avro_files.columns_of(stream, path)
    with open_text(path, layout.encoding) as stream:
        if kind == "csv":
            names = csv_files.header_of(stream, path, layout)
        elif kind == "jsonl":
            names = json_files.keys_of(stream, path)
        else:
            first = next((raw for raw in _RECORDS[kind](stream, path, layout) if raw.columns), None)
            return None if first is None else pa.schema([(name, one.type) for name, one in first.columns.items()])
    return None if names is None else pa.schema([(name, pa.utf8()) for name in names])


def rows_of(
    path: str,
    kind: str,
    layout: Layout,
    columns: Columns | None = None,
    batch_rows: int = 1 << 17,
    groups: tuple[int, int, int] | None = None,
) -> Iterator[RawRows]:
    """The rows of a file, or of some row groups of Parquet: the columns that readings are made of, or all of them.

    Raises:
        SourceFileError: it cannot be read, or is not of its kind.
        SettingsError: it has no line of names.
    """
    if kind == "parquet":
        with parquet_files.opened(path, columns) as file:
            some = groups or (0, file.metadata.num_row_groups, 0)
            yield from parquet_files.parquet_rows(file, path, columns, some, batch_rows)
    elif kind == "avro":
        with open_bytes(path) as stream:
            yield from avro_files.avro_rows(stream, path, columns, batch_rows)
    else:
        with open_text(path, layout.encoding) as stream:
            yield from rows_in(stream, path, kind, layout, columns)


def rows_in(stream: BinaryIO, name: str, kind: str, layout: Layout, columns: Columns | None) -> Iterator[RawRows]:
    """The same of text that is open."""
    if kind == "csv":
        yield from csv_files.csv_rows(stream, name, layout, columns)
    elif kind == "jsonl":
        yield from json_files.json_line_rows(stream, name, layout, columns)
    else:
        yield from _RECORDS[kind](stream, name, layout)
