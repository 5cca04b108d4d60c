"""What the tests of decoding share: readings and rejects of files, as plain sorted rows."""

from __future__ import annotations

from collections import Counter
from typing import Any

from quiltstream.schemas.settings.connectors import FileSource
from quiltstream.schemas.settings.readings import Readings
from quiltstream.transforms.sources.files import FileDecoder, ReadReadings

READINGS = Readings(series="id", time="ts", value="kwh")

Row = tuple[Any, ...]


def decode(
    source: FileSource, readings: Readings = READINGS, **options: Any
) -> tuple[list[Row], list[tuple[int, str]]]:
    """Reads a source without a pipeline: sorted (series, microseconds, value[, group]) and (position, reason)."""
    reader = ReadReadings(source, readings, **options)
    rows, rejects = [], []
    for decoded in decoded_parts(reader):
        rejects += [(at, one.reason.value) for one in decoded.rejects for at in one.positions.tolist()]
        if decoded.readings is not None:
            rows += plain(decoded.readings)
    return sorted(rows), sorted(rejects)


def decoded_parts(reader: ReadReadings) -> list[Any]:
    decoder: FileDecoder = reader.decoder
    rows = decoder.rows()
    return [rows.decode(raw) for task in reader.tasks for raw in decoder.raw_rows(task)]


def plain(batch: Any) -> list[Row]:
    """Rows of a batch as plain tuples, with instants in microseconds."""
    columns = [
        column.cast("int64").to_pylist() if name == "time" else column.to_pylist()
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return list(zip(*columns, strict=True))


def reasons(rejects: list[tuple[int, str]]) -> dict[str, int]:
    return dict(Counter(reason for _, reason in rejects))


def avro_record(name: str, /, **fields: Any) -> dict[str, Any]:
    """The schema of a record, by the types of its fields."""
    return {"type": "record", "name": name, "fields": [{"name": one, "type": kind} for one, kind in fields.items()]}
