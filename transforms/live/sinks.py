"""The sinks of a live job: folders to which a file is added for every block of released rows.

A block's rows are those of record, so its file has the same name and the same bytes however often a runner sends it.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timezone
from typing import Any, ClassVar

import apache_beam as beam
import pyarrow as pa

from ...schemas.settings import FileFormat
from .. import coders
from ..formats import LETTERS, REJECTS, RELEASES
from ..letters import all_with_letters
from ..sinks import write_batches

#: Files of a bundle that are written at once.
_WRITERS = 8


class _IntoFolder(beam.PTransform[Any, Any]):
    """Write record batches to files of a folder, where they are.

    Args:
        folder: where; it is made if needed.
        format_: how a file is written.
    """

    writer: ClassVar[Callable[[str, FileFormat], beam.DoFn]]

    def __init__(self, folder: str, format_: FileFormat) -> None:
        super().__init__()
        self._folder = folder
        self._format: FileFormat = format_

    def expand(self, input_or_inputs: Any) -> Any:
        """Write them where they are."""
        return input_or_inputs | "Write" >> beam.ParDo(type(self).writer(self._folder, self._format)).with_output_types(
            str
        )


def block_name(start_us: int, ids: Sequence[str], format_: FileFormat) -> str:
    """Name of a block's file: its window, and a digest of the names of its releases.

    Args:
        start_us: start of the window.
        ids: the release ids.
        format_: how the file is written.
    """
    when = datetime.fromtimestamp(start_us // 1_000_000, timezone.utc).strftime("%Y%m%dT%H%M%S")
    digest = hashlib.blake2b("\n".join(sorted(ids)).encode(), digest_size=8).hexdigest()
    return f"{when}-{digest}.{format_}"


def write_block(folder: str, format_: FileFormat, batch: pa.RecordBatch) -> str:
    """Write a block of releases to its file.

    Returns:
        The file's path.
    """
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


class _WriteLetters(_WriteRejects):
    form = LETTERS

    def process(self, batch: pa.RecordBatch) -> None:
        super().process(all_with_letters(batch))


class WriteBlocks(_IntoFolder):
    """Write each record batch of releases to a file of its own."""

    writer = _WriteBlocks


class WriteRejects(_IntoFolder):
    """Write the rejects of each bundle to a file of its own.

    They are the operator's, and at least once: rejects have no names, so a runner that runs a bundle again adds another
    file of them.
    """

    writer = _WriteRejects


class WriteLetters(WriteRejects):
    """The same with the letters that hold the content of messages."""

    writer = _WriteLetters


__all__ = ["WriteBlocks", "WriteLetters", "WriteRejects", "block_name", "coders", "in_folder", "write_block"]
