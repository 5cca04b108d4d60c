"""How fast files become batches of readings, inside a pipeline that does nothing else with them.

Run as ``python benchmarks/decode.py``. It writes generated readings of 1,000 series in every format (10 million as
Parquet in row groups of 65,536, fewer in the slower formats), reads each three times on ``FnApiRunner`` with start-up
included, and prints the best of the three.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import apache_beam as beam
import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from pyarrow import csv as arrow_csv

from quiltstream.schemas.settings.connectors import FileSource
from quiltstream.schemas.settings.mappings import Readings
from quiltstream.transforms.sources.files import ReadReadings

SERIES = 1_000
ROWS = {"parquet": 10_000_000, "csv": 2_000_000, "csv, all quoted": 2_000_000, "jsonl": 500_000, "avro": 200_000}
AVRO = {
    "type": "record",
    "name": "Reading",
    "fields": [{"name": "id", "type": "string"}, {"name": "ts", "type": "string"}, {"name": "kwh", "type": "double"}],
}


class Nothing(beam.DoFn):
    """Takes batches and makes nothing of them."""

    def process(self, _batch: pa.RecordBatch) -> tuple[()]:
        """Drop a batch."""
        return ()


def readings(rows: int) -> pa.Table:
    numbers = pa.array(np.arange(rows, dtype=np.int32) % SERIES)
    names = pa.DictionaryArray.from_arrays(numbers, pa.array([f"MAC{i:06d}" for i in range(SERIES)])).cast(pa.utf8())
    seconds = np.arange(rows) // SERIES * 1800 + 1_356_998_400
    values = np.round(np.random.default_rng(1).gamma(1.5, 0.4, rows), 3)
    return pa.table({"id": names, "ts": pa.array(seconds).view(pa.timestamp("s", tz="UTC")), "kwh": values})


def write(path: Path, what: str, table: pa.Table) -> None:
    if what == "parquet":
        pq.write_table(table, path, row_group_size=65_536, compression="zstd")
        return
    table = table.set_column(1, "ts", table.column("ts").cast(pa.utf8()))
    if what == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    elif what == "avro":
        with path.open("wb") as file:
            fastavro.writer(file, AVRO, table.to_pylist(), codec="deflate")
    else:
        style: Any = "all_valid" if "quoted" in what else "none"
        arrow_csv.write_csv(table, path, arrow_csv.WriteOptions(quoting_style=style))


def seconds_of(source: FileSource) -> float:
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        with beam.Pipeline(runner=FnApiRunner()) as pipeline:
            decoded: Any = pipeline | ReadReadings(source, Readings(series="id", time="ts", value="kwh", scale=2000))
            _ = decoded.readings | beam.ParDo(Nothing())
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    print(f"{'files':<20} {'readings':>12} {'MB':>8} {'seconds':>9} {'M readings/s':>14}")
    with tempfile.TemporaryDirectory() as folder:
        for what, rows in ROWS.items():
            path = Path(folder) / what
            write(path, what, readings(rows))
            taken = seconds_of(FileSource.model_validate({what.split(",")[0]: str(path)}))
            size = path.stat().st_size / 1e6
            print(f"{what:<20} {rows:>12,} {size:>8.1f} {taken:>9.2f} {rows / taken / 1e6:>14.2f}")


if __name__ == "__main__":
    main()
