"""PrivateHistograms in a pipeline of your own: minutes of activity of one wearer, from a file with relative days.

The file counts days from 1 and minutes of the day from 0, which no settings file can read, so the pipeline makes the
readings itself: Arrow record batches of ``READING_SCHEMA``. It prints the released rows, private minutes by level.

    python examples/activity.py FOLDER-FOR-THE-LEDGER
"""

from __future__ import annotations

import sys
from pathlib import Path

import apache_beam as beam
import pyarrow as pa
import pyarrow.csv as pa_csv
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

from quiltstream.pipelines import data
from quiltstream.schemas import READING_SCHEMA, Settings
from quiltstream.transforms import PrivateHistograms

MINUTE_US = 60_000_000
DAY_US = 1440 * MINUTE_US


class ReadDays(beam.DoFn):
    """The file's rows as readings; day 1 is taken to be 1970-01-01."""

    def process(self, path: str):  # noqa: ANN201 - a generator of record batches
        """Read one file, whole batches at a time."""
        for batch in pa_csv.open_csv(path):
            days, minutes = batch["day"].to_numpy(), batch["minute"].to_numpy()
            times = pa.array((days - 1) * DAY_US + minutes * MINUTE_US)
            yield pa.RecordBatch.from_arrays(
                [
                    batch["person"].cast(pa.utf8()).dictionary_encode(),
                    times.cast(pa.timestamp("us", tz="UTC")),
                    batch["counts"].cast(pa.float64()),
                ],
                schema=READING_SCHEMA,
            )


def main(folder: Path) -> None:
    """Publish the week once; a second run in the same folder prints the same rows."""
    settings = Settings.parse(
        {
            "slots": {"interval": "1min"},
            "states": {"edges": [100], "unit": "counts", "labels": ["still", "moving"]},
            "model": {"pi_min": 0.2, "gap": 0.2},  # a belief given by hand
            "windows": {"size": "7d", "start": "1970-01-01", "stop": "1970-01-08"},
            "privacy": {"epsilon": 1.0},
            "query": "moving-minutes",
            "domain": "wearer",
            "ledger": f"sqlite:///{folder / 'activity-ledger.db'}",
        }
    )
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        readings = (
            pipeline
            | "File" >> beam.Create([str(data.path("activity_1min_1person_7days.csv"))])
            | "Readings" >> beam.ParDo(ReadDays())
        )
        published = readings | PrivateHistograms(settings)
        _ = published.releases | "Rows" >> beam.FlatMap(lambda batch: batch.to_pylist()) | "Print" >> beam.Map(show)


def show(row: dict[str, object]) -> None:
    """Print one released row."""
    print(f"{row['key']}: {row['counts']} minutes still and moving, each within {row['half_width_95']} (95 %)")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
