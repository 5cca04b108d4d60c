"""Tables to files and back: Parquet, CSV, JSON Lines or Avro; one writer for everything that is published.

The same rows make the same bytes: they are sorted, written once each, and nothing in a file is drawn at random.
Instants are ISO 8601 text in CSV and JSON Lines, and timestamps in Parquet and Avro; lists and structs are JSON text in
CSV. Released rows are read back from such files and from the folders of a live job; that needs neither Beam nor a
ledger nor settings.
"""

from __future__ import annotations

import ast
import csv
import hashlib
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .files import FileError, is_folder, open_regular, reason, whole_file
from .releases import RELEASE_AVRO, RELEASE_SCHEMA, check_released, tidy
from .slots import format_instant, parse_instant

if TYPE_CHECKING:
    from .settings.connectors import FileFormat  # settings take half a second to import, and readers of rows need none

#: Rows that are plain Python objects at a time.
_ROWS = 4_096

#: Rows of a row group of Parquet at least, but in the last; it ends where the first column of the order changes.
_ROW_GROUP = 1 << 17

#: Where a packed batch says between which instants its rows lie.
_SPAN = b"quiltstream.span"

#: Sorted tables of a file in their order, anew at each call.
Parts = Callable[[], Iterator[pa.Table]]


@dataclass(frozen=True)
class RowForm:
    """What the rows of a file are."""

    schema: pa.Schema  # arrow form
    avro: dict[str, Any]  # avro form of the same columns
    order: tuple[str, ...]  # columns that the rows are sorted by
    unique: str | None = None  # column that tells rows apart, if one does: a row that came twice is written once
    private: bool = False  # whether files on this machine are for their owner alone

    def table(self, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        """Batches as one table, its rows in the order of the batches."""
        parts = [pa.Table.from_batches([one]).select(self.schema.names).cast(self.schema) for one in batches]
        return pa.concat_tables([self.schema.empty_table(), *parts])

    def pack(self, batch: pa.RecordBatch) -> bytes:
        """A batch for one file, compressed: most of its columns repeat one value."""
        first = batch.column(batch.schema.get_field_index(self.order[0]))
        if pa.types.is_timestamp(first.type) and len(first):
            ends = pc.call_function("min_max", [first.cast(pa.int64())]).as_py()
            batch = batch.replace_schema_metadata({_SPAN: json.dumps([ends["min"], ends["max"]])})
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
            writer.write_batch(batch)
        return sink.getvalue().to_pybytes()

    def parts(self, packed: Iterable[bytes]) -> Parts:
        """Sorted tables of packed batches, each of those whose instants overlap: no more is unpacked at a time."""
        groups = _overlapping(packed)
        return lambda: (self.sorted(self.table(map(_unpacked, group))) for group in groups)

    def sorted(self, table: pa.Table) -> pa.Table:
        """A table in the order of the file, each row once."""
        keys = [*self.order, *([] if self.unique is None else [self.unique])]
        table = table.combine_chunks().sort_by([(name, "ascending") for name in keys])
        if self.unique is not None and table.num_rows > 1:
            names = table.column(self.unique).to_numpy()
            first = np.concatenate(([True], names[1:] != names[:-1]))
            if not first.all():
                table = table.filter(pa.array(first))
        return table.combine_chunks()


def _unpacked(packed: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(packed) as reader:
        return reader.read_next_batch()


def _overlapping(packed: Iterable[bytes]) -> list[list[bytes]]:
    """Packed batches by their instants, those together whose instants overlap, or which have none."""
    found: list[tuple[float, float, bytes]] = []
    for data in packed:
        with pa.ipc.open_stream(data) as reader:
            span = (reader.schema.metadata or {}).get(_SPAN)
        first, last = json.loads(span) if span else (-math.inf, -math.inf)
        found.append((first, last, data))
    groups: list[list[bytes]] = []
    until = math.inf
    for first, last, data in sorted(found, key=lambda one: one[0]):
        if not groups or first > until:
            groups.append([])
            until = last
        groups[-1].append(data)
        until = max(until, last)
    return groups


#: Releases, by window and key; the release id names a row.
RELEASES = RowForm(RELEASE_SCHEMA, RELEASE_AVRO, ("window_start", "window_stop", "key"), "release_id")


def in_one(table: pa.Table) -> Parts:
    """A sorted table as all that a file has."""
    return lambda: iter((table,))


def write_parts(path: str | Path, format_: FileFormat, parts: Parts, form: RowForm) -> None:
    """Write a file on this machine, whole or not at all; a file of that name is replaced, a missing folder made.

    The parts are sorted tables, of which no more than a few are held at a time.

    Raises:
        FileError: something else than a regular file is there.
        OSError: the file cannot be written.
    """
    with whole_file(Path(path), private=form.private) as part, part.open("wb") as file:
        write_stream(file, format_, parts, form)


def write_stream(stream: BinaryIO, format_: FileFormat, parts: Parts, form: RowForm) -> None:
    """Write sorted tables to an open stream: how the rows are cut into tables leaves no trace."""
    if format_ == "parquet":
        with pq.ParquetWriter(stream, form.schema, compression="zstd") as writer:
            for group in _row_groups(parts(), form):
                writer.write_table(group, row_group_size=max(1, group.num_rows))
    elif format_ == "avro":
        rows = _rows(parts(), instants_as_text=False)
        fastavro.writer(stream, form.avro, rows, codec="deflate", sync_marker=_marker(parts()))
    elif format_ == "jsonl":
        stream.writelines(_json(row).encode() + b"\n" for row in _rows(parts(), instants_as_text=True))
    else:
        text = io.TextIOWrapper(stream, encoding="utf-8", newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(form.schema.names)
        writer.writerows([_cell(value) for value in row.values()] for row in _rows(parts(), instants_as_text=True))
        # the stream stays open, and is its owner's to close
        text.detach()


def _row_groups(parts: Iterable[pa.Table], form: RowForm) -> Iterator[pa.Table]:
    """The row groups of a file: where they end is a function of its rows alone."""
    held: list[pa.Table] = [form.schema.empty_table()]
    number = 0
    for part in parts:
        table = pa.concat_tables([*held, part])
        number = table.num_rows
        if number >= _ROW_GROUP:
            first = table.column(form.order[0]).combine_chunks()
            ends = (
                np.flatnonzero(pc.call_function("not_equal", [first[1:], first[:-1]]).to_numpy(zero_copy_only=False))
                + 1
            )
            begin = 0
            while (at := int(np.searchsorted(ends, begin + _ROW_GROUP))) < len(ends):
                yield table.slice(begin, int(ends[at]) - begin)
                begin = int(ends[at])
            table = table.slice(begin)
        held = [table]
    yield held[0]


def _rows(parts: Iterable[pa.Table], *, instants_as_text: bool) -> Iterator[dict[str, Any]]:
    for part in parts:
        table = part
        stamps = [field.name for field in table.schema if pa.types.is_timestamp(field.type)]
        for name in stamps:
            at = table.schema.get_field_index(name)
            table = table.set_column(at, name, table.column(name).cast(pa.int64()))
        for batch in table.to_batches(max_chunksize=_ROWS):
            for row in cast("list[dict[str, Any]]", batch.to_pylist()):
                if instants_as_text:
                    row.update((name, format_instant(row[name])) for name in stamps if row[name] is not None)
                yield row


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return _json(value) if isinstance(value, (list, dict)) else value


def _marker(parts: Iterable[pa.Table]) -> bytes:
    """Avro's mark between blocks, from the content instead of at random."""
    digest = hashlib.blake2b(digest_size=16)
    for row in _rows(parts, instants_as_text=False):
        digest.update(_json(row).encode())
    return digest.digest()


def read_rows(path: str | Path, form: RowForm) -> pa.Table:
    """Read a file that :func:`write_parts` wrote; its first bytes say which format it has."""
    with open_regular(Path(path)) as file:
        return rows_in(file.read(), form)


def rows_in(data: bytes, form: RowForm) -> pa.Table:
    """The rows in the content of such a file."""
    if data.startswith(b"PAR1"):
        table = pq.read_table(pa.BufferReader(data))
        for field in _apart(table.column_names, form):
            parts = [table.column(name).combine_chunks() for name in _names_apart(field)]
            joined = pa.StructArray.from_arrays(parts, names=[part.name for part in field.type])
            table = table.append_column(field.name, joined)
        return table.select(form.schema.names).cast(form.schema)
    plain = [{field.name: _value(row[field.name], field) for field in form.schema} for row in _joined(data, form)]
    return pa.Table.from_pylist(plain, schema=form.schema)


def _names_apart(field: pa.Field) -> list[str]:
    """The columns that hold the fields of a struct where no struct can be written, as by Beam YAML."""
    return [f"{field.name}_{part.name}" for part in field.type]


def _apart(names: Iterable[str], form: RowForm) -> list[pa.Field]:
    """The structs of a form that a file has as columns of their fields."""
    there = set(names)
    structs = [field for field in form.schema if pa.types.is_struct(field.type) and field.name not in there]
    return [field for field in structs if there.issuperset(_names_apart(field))]


def _joined(data: bytes, form: RowForm) -> Iterator[dict[str, Any]]:
    """The rows of a file that is not Parquet, with the structs of the form."""
    for row in _plain(data):
        for field in _apart(row, form):
            parts = zip(field.type, _names_apart(field), strict=True)
            row[field.name] = {part.name: _value(row[name], part) for part, name in parts}
        yield row


def _plain(data: bytes) -> Iterable[dict[str, Any]]:
    """The rows of a file that is not Parquet, as they are written."""
    if data.startswith(b"Obj\x01"):
        return cast("list[dict[str, Any]]", list(fastavro.reader(io.BytesIO(data))))
    text = data.decode("utf-8-sig")
    if text.startswith("{") or not text:
        # the last line may end without a line feed, where another program wrote the file anew
        return (json.loads(line) for line in text.split("\n") if line.strip())
    return csv.DictReader(io.StringIO(text, newline=""))


def _value(value: Any, field: pa.Field) -> Any:
    """A value of a column from its text, if it is text."""
    kind = field.type
    if not isinstance(value, str) or pa.types.is_string(kind):
        return value
    if not value and field.nullable:
        return None
    if pa.types.is_timestamp(kind):
        return parse_instant(value)
    if pa.types.is_boolean(kind):
        return _FLAGS[value]
    if pa.types.is_list(kind):
        return _list(value)
    return json.loads(value)


def _list(text: str) -> Any:
    """A list from its text, JSON or, as pandas writes lists of texts, Python."""
    with suppress(ValueError):
        return json.loads(text)
    try:
        return ast.literal_eval(text)
    except (SyntaxError, MemoryError, RecursionError):
        raise ValueError("neither JSON nor a list of Python") from None


#: Flags as texts: pandas writes those of Python.
_FLAGS = {"true": True, "false": False, "True": True, "False": False}


#: Endings of the files of a folder that hold rows.
_ENDINGS = frozenset({".parquet", ".avro", ".jsonl", ".csv"})

#: What readers raise at the content of a file that holds something else.
UNREADABLE = (
    OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, OverflowError, StopIteration, csv.Error,
    pa.ArrowException,
)  # fmt: skip


def read_releases(path: str | Path | Sequence[str | Path]) -> pa.Table:
    """Read published releases as a table with one row a count, for data frames and charts.

    ``pandas`` gets it by ``.to_pandas()``, ``polars`` by ``polars.from_arrow``. Rows that stand in several files are
    read once.

    Args:
        path: a file that a sink, ``quiltstream ledger export`` or a writer of Beam YAML wrote (Parquet, Avro, JSON
            Lines or CSV; its first bytes say which), the folder of a live job's sink, or several of these.

    Returns:
        A table of ``quiltstream.schemas.releases.TIDY_SCHEMA``: domain, query, key and window; class of slots and bin
        with their labels and edges; the noisy count, its 95 % band, its estimate and the public total; and where it is
        from: the law and the exact scale of its noise, mechanism, loss, belief and its provenance, release id.

    Raises:
        FileError: there is no such file, it holds no releases, or a row is none that a job publishes. The text says
            which; of rows that are released, which are public, it says the field and its value.
    """
    return tidy(released_rows([path] if isinstance(path, (str, Path)) else path))


def released_rows(paths: Sequence[str | Path]) -> pa.Table:
    """Read published releases as they are, one row a release, sorted by window and key, each once.

    Args:
        paths: files and folders, as for :func:`read_releases`.

    Returns:
        A table of ``RELEASE_SCHEMA``.

    Raises:
        FileError: a file is not there or holds no releases, or a row is none that a job publishes.
    """
    tables = [_rows_in(file) for path in paths for file in _files(Path(path))]
    return RELEASES.sorted(pa.concat_tables([RELEASE_SCHEMA.empty_table(), *tables]))


def _files(path: Path) -> Iterator[Path]:
    if not is_folder(path):
        yield path
        return
    try:
        inside = sorted(path.iterdir())
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({reason(error)})") from None
    found = [one for one in inside if one.suffix in _ENDINGS and not one.name.startswith(".")]
    if not found:
        raise FileError(f"{path}: the folder holds no file of releases ({', '.join(sorted(_ENDINGS))})")
    yield from found


def _rows_in(path: Path) -> pa.Table:
    try:
        with open_regular(path) as file:
            names = columns_of(file) or RELEASE_SCHEMA.names
    except FileNotFoundError:
        raise FileError(f"{path}: there is no such file; give what a sink wrote, or its folder") from None
    except UNREADABLE as error:
        raise FileError(f"{path}: holds no releases ({reason(error)})") from None
    names += [field.name for field in _apart(names, RELEASES)]
    absent = sorted(set(RELEASE_SCHEMA.names) - set(names))
    if absent:
        # names of columns of some other file may be data
        raise FileError(f"{path}: holds no releases (the column {absent[0]} is missing); give what a sink wrote")
    try:
        table = read_rows(path, RELEASES)
    except UNREADABLE as error:
        raise FileError(f"{path}: its releases cannot be read ({reason(error)}); is it whole?") from None
    try:
        check_released(table)
    except ValueError as error:
        raise FileError(
            f"{path}: {error}; it is no released row: take the file from its sink or ledger again"
        ) from None
    return table


def columns_of(file: BinaryIO) -> list[str]:
    """The names of the columns of an open file, read from its beginning; none where it is empty.

    Raises:
        One of :data:`UNREADABLE`: it is a file of another kind, or damaged.
    """
    head = file.readline()
    file.seek(0)
    if head.startswith(b"PAR1"):
        return list(pq.read_schema(file).names)
    if head.startswith(b"Obj\x01"):
        schema: Any = fastavro.reader(file).writer_schema
        return [field["name"] for field in schema["fields"]]
    text = head.decode("utf-8-sig")
    return list(json.loads(text)) if text.startswith("{") else next(csv.reader([text]), [])
