"""Files of what may be published: the ledger's entries and the released rows, and nothing else the store holds.

A file appears whole or not at all: it is written under another name beside its place, flushed to the disk and renamed.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from ..schemas.ledger import LEDGER_AVRO, LEDGER_SCHEMA, LedgerEntry
from ..schemas.releases import RELEASE_AVRO, RELEASE_SCHEMA, rows_from_batch
from .errors import ExportError


def export_entries(path: Path, entries: Iterable[LedgerEntry]) -> int:
    """Write ledger entries; the suffix chooses Parquet, Avro or JSON lines. Returns how many."""
    batch = pa.RecordBatch.from_pylist([entry.to_dict() for entry in entries], schema=LEDGER_SCHEMA)
    return _write(path, LEDGER_SCHEMA, LEDGER_AVRO, [batch], lambda one: one.to_pylist())


def export_releases(path: Path, batches: Iterable[pa.RecordBatch]) -> int:
    """Write released rows; the suffix chooses Parquet, Avro or JSON lines. Returns how many."""
    return _write(path, RELEASE_SCHEMA, RELEASE_AVRO, batches, rows_from_batch)


@contextmanager
def whole_file(path: Path) -> Generator[Path]:
    """A name to write to, which becomes the file when the block ends without an error.

    Raises:
        ExportError: the file or its folder cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ExportError(f"{path}: cannot be written ({reason}); check the folder and the room on its disk") from None
    finally:
        with suppress(OSError):
            temporary.unlink()


Rows = Callable[[pa.RecordBatch], list[dict[str, Any]]]


def _write(path: Path, schema: pa.Schema, avro: dict[str, Any], batches: Iterable[pa.RecordBatch], rows: Rows) -> int:
    count = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal count
        for batch in batches:
            count += batch.num_rows
            yield batch

    if path.suffix not in (".parquet", ".avro", ".jsonl"):
        raise ExportError(f"{path}: the suffix {path.suffix!r} is no format; use .parquet, .avro or .jsonl")
    with whole_file(path) as temporary:
        if path.suffix == ".parquet":
            with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
                for batch in counted():
                    writer.write_batch(batch)
        elif path.suffix == ".avro":
            with temporary.open("wb") as file:
                fastavro.writer(file, avro, (row for batch in counted() for row in rows(batch)), codec="deflate")
        else:
            with temporary.open("w", encoding="utf-8") as file:
                for batch in counted():
                    for row in rows(batch):
                        json.dump(row, file, allow_nan=False, ensure_ascii=False)
                        file.write("\n")
    return count
