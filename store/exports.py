"""Files of what may be published: the ledger's entries and the released rows, and nothing else the store holds.

They are written as the sink's are, so the export of a query has the bytes of its sink.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..schemas import files
from ..schemas.ledger import LEDGER_SCHEMA, LedgerEntry
from ..schemas.settings.connectors import FileFormat
from ..schemas.table_files import ENTRIES, RELEASES, RowForm, in_one, write_stream
from .address import StoreAddress
from .errors import ExportError

_FORMATS: dict[str, FileFormat] = {".parquet": "parquet", ".avro": "avro", ".jsonl": "jsonl"}


def export_entries(path: Path, entries: Iterable[LedgerEntry]) -> int:
    """Write ledger entries; the suffix chooses Parquet, Avro or JSON lines. Returns how many.

    Raises:
        ExportError: another suffix, or the file cannot be written.
    """
    batch = pa.RecordBatch.from_pylist([entry.to_dict() for entry in entries], schema=LEDGER_SCHEMA)
    return _write(path, [batch], ENTRIES)


def export_releases(path: Path, batches: Iterable[pa.RecordBatch]) -> int:
    """Write released rows; the suffix chooses Parquet, Avro or JSON lines. Returns how many.

    Raises:
        ExportError: another suffix, or the file cannot be written.
    """
    return _write(path, batches, RELEASES)


def back_up(target: Path, address: StoreAddress, opened: Callable[[], AbstractContextManager[Any]]) -> None:
    """Copy an SQLite ledger to a new file while jobs may be running.

    Args:
        target: the file.
        address: of the ledger.
        opened: gives a connection to it, for this use only.

    Raises:
        ExportError: the ledger is not SQLite, the file exists, or it cannot be written.
    """
    if not address.is_sqlite:
        raise ExportError(f"ledger {address}: a server is backed up with its own tools; use pg_dump")
    if os.path.lexists(target):
        raise ExportError(f"{target}: it exists, and a backup never replaces a file; choose another name")
    with (
        whole_file(target, private=True) as temporary,
        closing(sqlite3.connect(temporary)) as copy,
        opened() as source,
    ):
        try:
            source.backup(copy)
        except sqlite3.Error as error:
            raise ExportError(
                f"{target}: the backup was not completed ({type(error).__name__}); check the room on its disk"
            ) from None


@contextmanager
def whole_file(path: Path, *, private: bool = False) -> Generator[Path]:
    """An empty file to write to, which gets its name when the block ends without an error.

    Args:
        path: the file.
        private: it is a new ledger, for its owner alone; never replaces a file.

    Raises:
        ExportError: the file or its folder cannot be written.
    """
    try:
        with files.whole_file(path, private=private, new=private) as part:
            yield part
    except files.FileError as error:
        raise ExportError(f"{path}: {error}") from None
    except OSError as error:
        raise ExportError(
            f"{path}: cannot be written ({files.reason(error)}); check the folder and the room on its disk"
        ) from None


def _write(path: Path, batches: Iterable[pa.RecordBatch], form: RowForm) -> int:
    format_ = _FORMATS.get(path.suffix)
    if format_ is None:
        raise ExportError(f"{path}: the suffix {path.suffix!r} is no format; use .parquet, .avro or .jsonl")
    table = form.sorted(form.table(batches))
    with whole_file(path) as part, part.open("wb") as file:
        write_stream(file, format_, in_one(table), form)
    return table.num_rows
