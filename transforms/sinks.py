"""Sinks: all rows of a bounded pipeline as one sorted file, whole or not at all.

Runners retry and replay. A second attempt writes the same bytes under another temporary name and renames them over the
same file, so however often a bundle runs, and if two jobs end at once, one whole file is there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.transforms.window import GlobalWindows

from ..schemas.settings import FileFormat
from . import coders
from .files import is_local
from .formats import RELEASES, RowForm, part_name, write_rows, write_stream


class WriteRows(beam.PTransform[Any, Any]):
    """Write the record batches of a bounded PCollection to one file.

    The rows are sorted, and a row that a runner delivered twice is written once. Without rows the file has none.

    Args:
        path: the file; it is replaced, and its folder made.
        format_: how it is written.
        form: what the rows are.

    Returns:
        A PCollection of the path, once it is written.
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
        for one in (rows, none):
            one.element_type = pa.RecordBatch
        return (
            (rows, none)
            | beam.Flatten()
            | "Together" >> beam.Map(_keyed).with_output_types(tuple[int, pa.RecordBatch])
            | beam.GroupByKey()
            | "Write" >> beam.ParDo(_WriteFile(self._path, self._format, self._form)).with_output_types(str)
        )


def _keyed(batch: pa.RecordBatch) -> tuple[int, pa.RecordBatch]:
    return 0, batch


class _WriteFile(beam.DoFn):
    def __init__(self, path: str, format_: FileFormat, form: RowForm) -> None:
        self._path = path
        self._format: FileFormat = format_
        self._form = form

    def process(self, element: tuple[int, Iterable[pa.RecordBatch]]) -> Iterable[str]:
        write_batches(self._path, self._format, element[1], self._form)
        yield self._path


def write_batches(path: str, format_: FileFormat, batches: Iterable[pa.RecordBatch], form: RowForm) -> None:
    """Write batches to a file, on this machine or elsewhere, whole or not at all."""
    (write_rows if is_local(path) else write_remote)(path, format_, form.table(batches), form)


def write_remote(path: str, format_: FileFormat, table: pa.Table, form: RowForm) -> None:
    """Write a file through Beam's file systems under another name, then rename it.

    Args:
        path: where, with a scheme.
        format_: how.
        table: the rows, in any order.
        form: what they are.
    """
    folder, name = FileSystems.split(path)
    part = FileSystems.join(folder, part_name(name))
    # it may exist already, or the store may have no folders; otherwise creating the file fails and says so
    with contextlib.suppress(OSError):
        FileSystems.mkdirs(folder)
    with FileSystems.create(part, "application/octet-stream", CompressionTypes.UNCOMPRESSED) as stream:
        write_stream(stream, format_, form.sorted(table), form)
    try:
        FileSystems.rename([part], [path])
    except OSError:
        # some stores do not rename over a file
        if not FileSystems.exists(path):
            raise
        FileSystems.delete([path])
        FileSystems.rename([part], [path])


__all__ = ["WriteRows", "coders", "write_batches", "write_remote"]
