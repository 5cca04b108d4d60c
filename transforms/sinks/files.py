"""File sinks: one sorted file of a bounded job, or a file a block in the folder of a live job.

Runners retry and replay. A second attempt writes the same bytes under another temporary name and renames them over the
same file, so however often a bundle runs, and if two jobs end at once, one whole file is there. A block's rows are
those of record, so its file has the same name and the same bytes however often a runner sends it.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, ClassVar

import apache_beam as beam
import pyarrow as pa
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.transforms.window import GlobalWindows

from ...schemas.files import part_name
from ...schemas.readings import LETTER_SCHEMA, REJECT_SCHEMA
from ...schemas.settings.connectors import FileFormat
from ...schemas.table_files import (
    RELEASES,
    Parts,
    RowForm,
    in_one,
    read_rows,
    rows_in,
    write_parts,
    write_stream,
)
from ..common.batches import with_dead_letter_columns
from ..formats.paths import is_local, open_bytes

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


#: The same with letters.
DEAD_LETTERS = RowForm(
    LETTER_SCHEMA,
    {
        **REJECTS.avro,
        "fields": [
            *REJECTS.avro["fields"],
            {"name": "letter", "type": ["null", "string"]},
        ],
    },
    REJECTS.order,
    private=True,
)


def read_releases(path: str | Path) -> pa.Table:
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
            | "Write" >> beam.ParDo(_WriteFile(self._path, self._format, self._form)).with_output_types(str)
        )


def _packed(batch: pa.RecordBatch, form: RowForm) -> tuple[int, bytes]:
    return 0, form.pack(batch)


class _WriteFile(beam.DoFn):
    def __init__(self, path: str, format_: FileFormat, form: RowForm) -> None:
        self._path = path
        self._format: FileFormat = format_
        self._form = form

    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterable[str]:
        _write(self._path, self._format, self._form.parts(element[1]), self._form)
        yield self._path


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


class _IntoFolder(beam.PTransform[Any, Any]):
    writer: ClassVar[Callable[[str, FileFormat], beam.DoFn]]

    def __init__(self, folder: str, format_: FileFormat) -> None:
        super().__init__()
        self._folder = folder
        self._format: FileFormat = format_

    def expand(self, input_or_inputs: Any) -> Any:
        return input_or_inputs | "Write" >> beam.ParDo(type(self).writer(self._folder, self._format)).with_output_types(
            str
        )


def block_name(start_us: int, ids: Sequence[str], format_: FileFormat) -> str:
    """Name of a block's file: its window, and a digest of the names of its releases."""
    when = datetime.fromtimestamp(start_us // 1_000_000, timezone.utc).strftime("%Y%m%dT%H%M%S")
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
        for one in writing:
            one.result()


class _WriteRejects(beam.DoFn):
    form = REJECTS

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
        write_batches(path, self._format, held, self.form)


class _WriteDeadLetters(_WriteRejects):
    form = DEAD_LETTERS

    def process(self, batch: pa.RecordBatch) -> None:
        super().process(with_dead_letter_columns(batch))


class WriteBlocks(_IntoFolder):
    """Write each record batch of releases to a file of its own."""

    writer = _WriteBlocks


class WriteRejects(_IntoFolder):
    """Write the rejects of each bundle to a file of its own.

    They are the operator's, and at least once: rejects have no names, so a runner that runs a bundle again adds another
    file of them.
    """

    writer = _WriteRejects


class WriteDeadLetters(WriteRejects):
    """The same with the letters that hold the content of messages."""

    writer = _WriteDeadLetters
