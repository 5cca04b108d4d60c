"""Feeds record batches to a pipeline through a file: a `Create` would pickle them into the graph, slowly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa


def _read(path: str) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(path) as file:
        yield from pa.ipc.open_stream(file)


def feed(folder: Path, batches: list[pa.RecordBatch]) -> Any:
    """A transform that reads the batches back; it leaves a file in the folder."""
    path = folder / f"batches-{len(list(folder.iterdir()))}.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return "Read" >> beam.Create([str(path)], reshuffle=False) | "Batches" >> beam.FlatMap(_read)
