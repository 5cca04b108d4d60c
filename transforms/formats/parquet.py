"""Parquet files to raw rows: ranges of row groups, only the needed columns, names read as dictionaries."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..common.batches import is_text_type, whole
from .columns import Columns, RawRows
from .paths import SourceFileError, is_local, open_bytes, unopened

#: Row groups up to so many batches are read whole; larger ones batch by batch.
_WHOLE_BATCHES = 4


@contextmanager
def opened(path: str, columns: Columns | None = None) -> Generator[pq.ParquetFile]:
    """A file that is open in the block, for some columns or for all.

    It is not mapped into memory: all of it would count as the job's, and a file that is cut off meanwhile would end it.
    Pages with checksums are checked against them; without them, damage that still decodes cannot be seen.

    Raises:
        SourceFileError: it is not a Parquet file.
    """
    try:
        source = pa.OSFile(path) if is_local(path) else pa.PythonFile(open_bytes(path), mode="r")
    except OSError as error:
        raise unopened(path, error) from None
    with source:
        try:
            schema = pq.read_schema(source)
            # a text that is repeated in every row of a page stands there once, also where it is long
            names = [one for one in _wanted(schema, columns) if _is_text(schema, one)]
            source.seek(0)
            file = pq.ParquetFile(source, read_dictionary=names or None, page_checksum_verification=True)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise SourceFileError(
                f"file {path} is not a whole Parquet file ({type(error).__name__}); write it again, or take it out of "
                "source.parquet"
            ) from None
        yield file


def _wanted(schema: pa.Schema, columns: Columns | None) -> list[str]:
    return list(schema.names if columns is None else columns.names)


def _is_text(schema: pa.Schema, name: str) -> bool:
    at = schema.get_field_index(name)
    return at >= 0 and (is_text_type(kind := schema.field(at).type) or kind in (pa.binary(), pa.large_binary()))


def row_groups(file: pq.ParquetFile, rows: int, within: range | None = None) -> Iterator[tuple[int, int, int]]:
    """Ranges of row groups of at least so many rows: first, the one after the last, and the rows before the first."""
    groups = range(file.metadata.num_row_groups) if within is None else within
    first, before, held = groups.start, 0, 0
    for group in groups:
        held += file.metadata.row_group(group).num_rows
        if held >= rows or (held and group == groups.stop - 1):
            yield first, group + 1, before
            first, before, held = group + 1, before + held, 0


def parquet_rows(
    file: pq.ParquetFile, path: str, columns: Columns | None, groups: tuple[int, int, int], batch_rows: int
) -> Iterator[RawRows]:
    """Read some columns, or all, of a range of row groups."""
    first, stop, before = groups
    names = _wanted(file.schema_arrow, columns)
    try:
        for batch in _batches(file, names, range(first, stop), batch_rows):
            # without checksums of its pages a damaged file may be read as values that no column can hold
            batch.validate(full=True)
            # empty chunks are left behind where row groups are empty
            arrays = {name: whole(batch.column(name)) for name in names}
            yield RawRows(
                arrays,
                np.arange(before + 1, before + batch.num_rows + 1, dtype=np.int64),
                np.empty(0, dtype=np.int64),
            )
            before += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise SourceFileError(
            f"file {path} is damaged in row groups {first} to {stop - 1} ({type(error).__name__}); write it again: "
            "releases without its readings would be final"
        ) from None


def _batches(file: pq.ParquetFile, names: list[str], groups: range, batch_rows: int) -> Iterator[Any]:
    """Tables or batches of about so many rows: small row groups together, large ones in batches."""
    for first, stop, _ in row_groups(file, (batch_rows + 1) // 2, groups):
        chosen = list(range(first, stop))
        if sum(file.metadata.row_group(group).num_rows for group in chosen) <= _WHOLE_BATCHES * batch_rows:
            yield file.read_row_groups(chosen, columns=names)
        else:
            yield from file.iter_batches(batch_rows, row_groups=chosen, columns=names)
