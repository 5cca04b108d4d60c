"""Sinks of released rows and rejects: a sorted file, a folder with a file a block, a topic of messages.

Runners retry and replay, and a row of record never changes, so what is written again is the same.

*Files.* A second attempt writes the same bytes under another temporary name and renames them over the same file, so
however often a bundle runs, and if two jobs end at once, one whole file is there. A block's file has the same name and
the same bytes however often a runner sends it.

*Topics.* A row is a message under its release id. A bundle ends when the broker has what it sent; what it refuses fails
the bundle, the runner runs it again, and the rows come from the ledger of record once more. What is a broker's own is
in :mod:`.kafka.sink`.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import apache_beam as beam
import fastavro
import pyarrow as pa
from apache_beam import typehints
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.transforms.window import GlobalWindows
from fastavro.schema import fingerprint, to_parsing_canonical_form

from ..schemas.files import part_name
from ..schemas.readings import REJECT_SCHEMA
from ..schemas.releases import RELEASE_VERSION
from ..schemas.settings.connectors import FileFormat
from ..schemas.table_files import RELEASES, Parts, RowForm, in_one, read_rows, rows_in, write_parts, write_stream
from .formats.paths import is_local, open_bytes
from .sources.progress import at_work

#: Rejected rows, by where they were.
REJECTS = RowForm(
    REJECT_SCHEMA,
    {
        "type": "record",
        "name": "Reject",
        "namespace": "quiltstream.v1",
        "fields": [
            {"name": "reason", "type": "string"},
            {"name": "source", "type": "string"},
            {"name": "position", "type": "long"},
            {"name": "size", "type": ["null", "long"]},
        ],
    },
    ("source", "position", "reason"),
    private=True,
)


def read_release_rows(path: str | Path) -> pa.Table:
    """Read a file of releases of any of the formats, here or elsewhere, as a table of ``RELEASE_SCHEMA``."""
    if is_local(str(path)):
        return read_rows(path, RELEASES)
    with open_bytes(str(path)) as file:
        return rows_in(file.read(), RELEASES)


class WriteRows(beam.PTransform[Any, Any]):
    """Write the record batches of a bounded PCollection to one file.

    The rows are sorted, and a row that a runner delivered twice is written once. Without rows the file has none.
    """

    def __init__(self, path: str, format_: FileFormat, form: RowForm = RELEASES) -> None:
        super().__init__()
        self._path = path
        self._format: FileFormat = format_
        self._form = form

    def expand(self, input_or_inputs: Any) -> Any:
        """Gather the rows in one place and write them."""
        empty = pa.RecordBatch.from_pylist([], schema=self._form.schema)
        rows = input_or_inputs | "OneWindow" >> beam.WindowInto(GlobalWindows())
        # the empty batch makes sure that there is something to write
        seed = input_or_inputs.pipeline | "Seed" >> beam.Impulse()
        none = seed | "NoRows" >> beam.Map(lambda _: empty)
        # packed where they are made: what waits for the last row takes a sixth of the memory
        packed = (
            one | label >> beam.Map(_packed, self._form).with_output_types(tuple[int, bytes])
            for label, one in (("Pack", rows), ("PackNone", none))
        )
        return (
            tuple(packed)
            | beam.Flatten()
            | beam.GroupByKey()
            | "Write" >> beam.Map(_write_group, self._path, self._format, self._form).with_output_types(str)
        )


def _packed(batch: pa.RecordBatch, form: RowForm) -> tuple[int, bytes]:
    return 0, form.pack(batch)


def _write_group(packed: tuple[int, Iterable[bytes]], path: str, format_: FileFormat, form: RowForm) -> str:
    _write(path, format_, form.parts(packed[1]), form)
    return path


def write_batches(path: str, format_: FileFormat, batches: Iterable[pa.RecordBatch], form: RowForm) -> None:
    """Write batches to a file, on this machine or elsewhere, whole or not at all."""
    table = form.sorted(form.table(batches))
    _write(path, format_, in_one(table), form)


def _write(path: str, format_: FileFormat, parts: Parts, form: RowForm) -> None:
    (write_parts if is_local(path) else write_remote)(path, format_, parts, form)


def write_remote(path: str, format_: FileFormat, parts: Parts, form: RowForm) -> None:
    """Write a file through Beam's file systems under another name, then rename it."""
    folder, name = FileSystems.split(path)
    part = FileSystems.join(folder, part_name(name))
    # it may exist already, or the store may have no folders; otherwise creating the file fails and says so
    with contextlib.suppress(OSError):
        FileSystems.mkdirs(folder)
    with FileSystems.create(part, "application/octet-stream", CompressionTypes.UNCOMPRESSED) as stream:
        write_stream(stream, format_, parts, form)
    try:
        FileSystems.rename([part], [path])
    except OSError:
        # some stores do not rename over a file
        if not FileSystems.exists(path):
            raise
        FileSystems.delete([path])
        FileSystems.rename([part], [path])


#: Files of a bundle that are written at once.
_WRITERS = 8


def block_name(start_us: int, ids: Sequence[str], format_: FileFormat) -> str:
    """Name of a block's file: its window, and a digest of the names of its releases."""
    when = datetime.fromtimestamp(start_us // 1_000_000, UTC).strftime("%Y%m%dT%H%M%S")
    digest = hashlib.blake2b("\n".join(sorted(ids)).encode(), digest_size=8).hexdigest()
    return f"{when}-{digest}.{format_}"


def write_block(folder: str, format_: FileFormat, batch: pa.RecordBatch) -> str:
    """Write a block of releases to its file."""
    start = int(batch.column("window_start").cast(pa.int64())[0].as_py())
    path = in_folder(folder, block_name(start, batch.column("release_id").to_pylist(), format_))
    write_batches(path, format_, [batch], RELEASES)
    return path


def in_folder(folder: str, name: str) -> str:
    """Path of a file in a folder, here or elsewhere."""
    return f"{folder.rstrip('/')}/{name}"


@typehints.with_output_types(str)
class _WriteBlocks(beam.DoFn):
    """Writes the files of a bundle side by side: most of the time goes to waiting for the disk."""

    def __init__(self, folder: str, format_: FileFormat) -> None:
        self._folder = folder
        self._format: FileFormat = format_
        self._writing: list[Future[str]] = []

    def setup(self) -> None:
        self._pool = ThreadPoolExecutor(_WRITERS, thread_name_prefix="quiltstream-sink")

    def teardown(self) -> None:
        self._pool.shutdown()

    def start_bundle(self) -> None:
        self._writing = []

    def process(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._writing.append(self._pool.submit(write_block, self._folder, self._format, batch))

    def finish_bundle(self) -> None:
        writing, self._writing = self._writing, []
        with at_work("sink"):
            for one in writing:
                one.result()


@typehints.with_output_types(str)
class _WriteRejects(beam.DoFn):
    def __init__(self, folder: str, format_: FileFormat) -> None:
        self._folder = folder
        self._format: FileFormat = format_
        self._held: list[pa.RecordBatch] = []

    def start_bundle(self) -> None:
        self._held = []

    def process(self, batch: pa.RecordBatch) -> None:
        self._held.append(batch)

    def finish_bundle(self) -> None:
        held, self._held = self._held, []
        if not held:
            return
        when = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        path = in_folder(self._folder, f"{when}-{uuid.uuid4().hex[:16]}.{self._format}")
        write_batches(path, self._format, held, REJECTS)


class WriteBlocks(beam.ParDo):
    """Write each record batch of releases to a file of its own in a folder."""

    def __init__(self, folder: str, format_: FileFormat) -> None:
        super().__init__(_WriteBlocks(folder, format_))


class WriteRejects(beam.ParDo):
    """Write the rejects of each bundle to a file of its own in a folder.

    They are the operator's, and at least once: rejects have no names, so a runner that runs a bundle again adds another
    file of them.
    """

    def __init__(self, folder: str, format_: FileFormat) -> None:
        super().__init__(_WriteRejects(folder, format_))


MessageFormat = Literal["json", "avro", "avro-single-object"]
"""``avro`` is what the number of a schema in a registry stands before, ``avro-single-object`` its fingerprint."""

#: Headers, or attributes, of every message.
SCHEMA, VERSION, DOMAIN, QUERY = "quiltstream.schema", "quiltstream.version", "quiltstream.domain", "quiltstream.query"

_CONTENT = {"json": "application/json", "avro": "avro/binary", "avro-single-object": "avro/binary"}

Message = tuple[bytes | None, bytes, list[tuple[str, bytes]]]
"""Key, value and headers."""

Head = Callable[[Mapping[str, Any]], bytes]
"""What stands before an Avro body, by its schema."""


def single_object_head(schema: Mapping[str, Any]) -> bytes:
    """What stands before a single object of Avro: a mark, and the fingerprint of its schema."""
    return b"\xc3\x01" + bytes.fromhex(fingerprint(to_parsing_canonical_form(dict(schema)), "CRC-64-AVRO"))


def release_messages(
    batch: pa.RecordBatch, format_: MessageFormat, head: Head = single_object_head
) -> Iterator[Message]:
    """A block of releases as messages, keyed by release id."""
    table = RELEASES.sorted(RELEASES.table([batch]))
    columns = (table.column(name).to_pylist() for name in ("release_id", "domain", "query"))
    for value, key, domain, query in zip(_values(table, RELEASES, format_, head), *columns, strict=True):
        names = [(DOMAIN, str(domain).encode()), (QUERY, str(query).encode())]
        yield str(key).encode(), value, [*_headers("release", format_), *names]


def reject_messages(
    batch: pa.RecordBatch, format_: MessageFormat, head: Head = single_object_head
) -> Iterator[Message]:
    """Rejects as messages without keys: reason, source, position, and the size where it is known."""
    for value in _values(REJECTS.sorted(REJECTS.table([batch])), REJECTS, format_, head):
        yield None, value, _headers("reject", format_)


def _headers(schema: str, format_: MessageFormat) -> list[tuple[str, bytes]]:
    return [
        ("content-type", _CONTENT[format_].encode()),
        (SCHEMA, schema.encode()),
        (VERSION, RELEASE_VERSION.encode()),
    ]


def _values(table: pa.Table, form: RowForm, format_: MessageFormat, head: Head) -> list[bytes]:
    if format_ == "json":
        stream = io.BytesIO()
        write_stream(stream, "jsonl", in_one(table), form)
        return stream.getvalue().split(b"\n")[:-1]
    begin = head(form.avro)
    schema = fastavro.parse_schema(form.avro)
    return [begin + _avro(schema, row) for row in table.to_pylist()]


def _avro(schema: Any, row: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, row)
    return stream.getvalue()
