"""Each sample of the repository as a stream, shuffled within its lateness: the windows are those of the batch run."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.testing import test_stream
from apache_beam.transforms.window import TimestampedValue

from quiltstream.pipelines import data
from quiltstream.schemas.readings import READING_SCHEMA
from quiltstream.schemas.releases import releases_from_batch
from quiltstream.schemas.settings.job import Settings, read_settings
from quiltstream.store.store import Store
from quiltstream.transforms import PrivateHistograms
from quiltstream.transforms.completeness import Punctuation, SequenceNumbers, Steps, punctuation_batch, with_horizon
from quiltstream.transforms.sources.files import decoder_of

from ...loading import load
from .streams import stamped

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
PIECES = 40
HOUR = 3_600_000_000
DAY_US = 24 * HOUR
ACTIVITY = Path(str(data.path("activity_1min_1person_7days.csv")))


def readings_of(job: Settings) -> pa.RecordBatch:
    assert job.source is not None
    assert job.readings is not None
    decoder = decoder_of(job.source, job.readings, timezone=job.slots.timezone)
    rows = decoder.rows()
    (pattern,) = job.source.patterns
    decoded = [
        rows.decode(raw)
        for task in decoder.tasks(str(Path(job.path(pattern)).resolve()))
        for raw in decoder.raw_rows(task)
    ]
    table = pa.Table.from_batches([one.readings for one in decoded if one.readings is not None])
    return table.combine_chunks().to_batches()[0]


def as_it_comes(readings: pa.RecordBatch, lateness_us: int, seed: int) -> list[pa.RecordBatch | int]:
    """The readings in the order of their arrival, each up to the lateness after its own time, and a clock behind each.

    A clock says how far the source has come: whatever arrives later is not older than that.
    """
    print("seed", seed)  # noqa: T201 - a random test says its seed
    source = np.random.default_rng(seed)
    times = readings.column("time").cast(pa.int64()).to_numpy(zero_copy_only=False)
    arrival = times + source.integers(0, lateness_us, len(times))
    order = np.argsort(arrival, kind="stable")
    events: list[pa.RecordBatch | int] = []
    for part in np.array_split(order, PIECES):
        events += [readings.take(pa.array(part)), int(arrival[part].max()) - lateness_us]
    return events


def streamed(events: list[pa.RecordBatch | int], job: Settings, begin_us: int, end_us: int) -> test_stream.TestStream:
    """The stream of a source of one part, with tickets."""
    stream, clock = test_stream.TestStream().advance_watermark_to(stamped(begin_us)), begin_us
    issued, steps = SequenceNumbers(), Steps.of(job.grid, job.schedule)
    for event in [*events, end_us]:
        if isinstance(event, int):
            if stamped(event) <= stamped(clock):
                continue
            due, issued = issued.declare(steps, event)
            mark, reached = (
                punctuation_batch(Punctuation(0, 1, clock, event, run=issued.run, sent=due), READING_SCHEMA),
                event,
            )
            stream = stream.add_elements([TimestampedValue(mark, stamped(clock))])
            stream = stream.advance_watermark_to(stamped(reached))
            clock = reached
        else:
            (ticket,), issued = issued.issue(0, [event], steps, clock, end_us)
            said = with_horizon(event, clock, numbers=ticket)
            stream = stream.add_elements([TimestampedValue(said, stamped(clock))])
    return stream.advance_watermark_to_infinity()


def on_record(job: Settings) -> dict[tuple[int, str], tuple[list[int], int | None]]:
    with Store(PrivateHistograms(job, noise="none").plan.address, create=True) as store:
        rows = [row for batch in store.releases(job.domain, job.query) for row in releases_from_batch(batch)]
        assert len({row.release_id for row in rows}) == len(rows)
        return {(row.window_start, row.key): (list(row.counts), row.total) for row in rows}


def activity(folder: Path) -> tuple[Settings, pa.RecordBatch]:
    """The job of the example without a settings file, day by day, and its readings."""
    example = load(EXAMPLES / "activity.py")
    batches = list(example.ReadDays().process(str(ACTIVITY)))
    job = Settings.parse(
        {
            "slots": {"interval": "1min"},
            "states": {"edges": [1, 100, 2000], "unit": "counts"},
            "model": {"pi_min": 0.05, "gap": 0.2},
            "windows": {"size": "1d", "start": "1970-01-01", "stop": "1970-01-08"},
            "privacy": {"epsilon": 1.0, "budget": 1.0},
            "roster": str(folder / "roster.csv"),
            "query": "minutes-by-level",
            "most_error": 1e6,  # what is tested here is not how useful the rows are
            "domain": "wearer",
        }
    )
    table = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks()
    (wearer,) = table.column("series").unique().to_pylist()
    (folder / "roster.csv").write_text(f"series\n{wearer}\n", encoding="utf-8")
    return job, table.to_batches()[0]


def job_of(name: str, folder: Path) -> tuple[Settings, pa.RecordBatch]:
    if name == "activity":
        return activity(folder)
    given = read_settings(EXAMPLES / name)
    if name == "london-feeder.yaml":  # a quarter of the year will do
        given = given.changed({"windows": given.windows.model_copy(update={"stop": "2013-03-26"})})
    return given, readings_of(given)


@pytest.mark.parametrize(
    "name", ["london-feeder.yaml", "households.yaml", "house-power.yaml", "house-dst.yaml", "activity"]
)
def test_a_sample_as_a_stream_gives_the_windows_of_its_batch_run(name: str, tmp_path: Path) -> None:
    given, readings = job_of(name, tmp_path)
    batch, stream = (given.changed({"ledger": f"sqlite:///{tmp_path / kind}.db"}) for kind in ("batch", "stream"))
    begin, end = (given.grid.time_of(slot) for slot in (given.schedule.covered.start, given.schedule.covered.stop))
    times = readings.column("time").cast(pa.int64()).to_numpy(zero_copy_only=False)
    readings = readings.filter(pa.array(times < end))
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        _ = pipeline | beam.Create([readings]) | PrivateHistograms(batch, noise="none")
    events = as_it_comes(readings, random.Random(len(name)).randrange(HOUR, 60 * HOUR), seed=len(name))
    with beam.Pipeline(runner=BundleBasedDirectRunner(), options=PipelineOptions(streaming=True)) as pipeline:
        _ = pipeline | streamed(events, stream, begin, end) | PrivateHistograms(stream, noise="none")
    expected = on_record(batch)
    assert len({start for start, _ in expected}) == len(given.schedule)
    assert sum(sum(counts) for counts, _ in expected.values()) > 300
    assert on_record(stream) == expected
    if name == "activity":
        assert {start // DAY_US: counts for (start, _), (counts, _) in expected.items()} == minutes_by_level()


def minutes_by_level() -> dict[int, list[int]]:
    """Of the activity sample, by day from 0: by hand, from its rows alone."""
    found: dict[int, list[int]] = {}
    with ACTIVITY.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            levels = found.setdefault(int(row["day"]) - 1, [0, 0, 0, 0])
            levels[sum(float(row["counts"]) >= edge for edge in (1, 100, 2000))] += 1
    return found
