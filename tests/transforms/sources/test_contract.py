"""What a runner asks of a live reader, and the files of a live sink."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

from quiltstream.schemas.readings import READING_SCHEMA, REJECT_SCHEMA
from quiltstream.schemas.settings.connectors import FileFormat
from quiltstream.schemas.table_files import read_rows
from quiltstream.transforms.formats.rows import Decoded
from quiltstream.transforms.sinks import REJECTS, WriteRejects
from quiltstream.transforms.sources.arriving_files import ArrivingFiles
from quiltstream.transforms.sources.contract import BEGIN, Attempts, SourceBatch, source_batch_of

from ..reading import ORIGIN, decoder, line


@pytest.mark.night
@pytest.mark.parametrize("format_", ["jsonl", "csv", "parquet", "avro"])
def test_the_rejects_of_a_bundle_are_one_file_and_none_is_written_without_any(
    tmp_path: Path, format_: FileFormat
) -> None:
    """Those of messages with sizes; readings that are rejected have none."""
    rows = [{"reason": "late", "source": "x", "position": 7 + size, "size": size or None} for size in range(3)]
    batches = [pa.RecordBatch.from_pylist([row], schema=REJECT_SCHEMA) for row in rows]
    for given, name in ((batches, "some"), ([], "none")):
        with beam.Pipeline(runner=FnApiRunner()) as pipeline:
            _ = pipeline | beam.Create(given, reshuffle=False) | WriteRejects(str(tmp_path / name), format_)
    (path,) = (tmp_path / "some").iterdir()
    assert path.suffix == f".{format_}"
    assert read_rows(path, REJECTS).to_pylist() == rows
    assert not (tmp_path / "none").exists()


HOUR = 3_600_000_000


def piece(*hours: float, came: float | None = None) -> SourceBatch:
    times = pa.array([ORIGIN + int(hour * HOUR) for hour in hours], pa.int64()).view(pa.timestamp("us", tz="UTC"))
    series = pa.array(["a"] * len(hours)).dictionary_encode()
    batch = pa.RecordBatch.from_arrays([series, times, pa.array([1.0] * len(hours))], schema=READING_SCHEMA)
    made = source_batch_of("t", [Decoded(batch, 0, ())], "", settled=True)
    return replace(made, came_us=None if came is None else ORIGIN + int(came * HOUR))


@pytest.mark.parametrize(
    ("hours", "came", "vote", "ahead"),
    [
        ((3, 5), None, 5, 0),
        ((3, 5), 4, 4, 0),  # ahead of its message
        ((3, 5), 6, 5, 0),
        ((3, 500), 6, 3, 1),  # jumped
        ((3, 30), 6, 6, 0),
        ((3, 30.1), 6, 3, 1),
        ((40, 500), 6, None, 2),
        ((90, 101), None, 101, 0),  # ahead of the wall, by which whoever asks sees to it that no clock is
        ((90, 101), 200, 101, 0),
        ((90, 125), None, 90, 1),
        ((90, 125), 200, 90, 1),  # whoever took it is ahead of the wall
    ],
)
def test_a_reading_advances_the_watermark_at_most_to_its_arrival(hours, came, vote, ahead):
    found = piece(*hours, came=came)
    expected = None if vote is None else ORIGIN + vote * HOUR
    assert (found.vote(ORIGIN + 100 * HOUR), found.ahead(ORIGIN + 100 * HOUR)) == (expected, ahead)


def test_the_loss_of_a_damaged_file_is_kept_for_the_next_reader(tmp_path):
    (tmp_path / "1.jsonl").write_text(line(1), encoding="utf-8")
    feed = ArrivingFiles(decoder("jsonl"), (str(tmp_path / "*.jsonl*"),))
    first = feed.reader(0, BEGIN).read()
    assert first is not None
    assert first.lost_us is None
    before = time.time_ns() // 1_000 - 1_000_000
    (tmp_path / "2.jsonl.gz").write_bytes(b"\x1f\x8b\x08\x00 half")
    second = feed.reader(0, first.position).read()
    assert second is not None
    assert before <= (second.lost_us or 0) <= time.time_ns() // 1_000 + 1_000_000
    (tmp_path / "3.jsonl").write_text(line(3), encoding="utf-8")
    third = feed.reader(0, second.position).read()
    assert third is not None
    assert (third.rows, third.lost_us) == (1, second.lost_us)


def test_the_arrival_of_a_file_is_the_time_of_its_renaming(tmp_path):
    before = time.time_ns() // 1_000 - 1_000_000
    (tmp_path / ".1.part").write_text(line(1), encoding="utf-8")
    os.utime(tmp_path / ".1.part", (0, 0))
    (tmp_path / ".1.part").rename(tmp_path / "1.jsonl")
    found = ArrivingFiles(decoder("jsonl"), (str(tmp_path / "*.jsonl"),)).reader(0, BEGIN).read()
    assert found is not None
    assert before <= (found.came_us or 0) <= time.time_ns() // 1_000 + 1_000_000


def test_attempts_go_on_at_the_longest_pause_however_long_an_outage_is() -> None:
    attempts = Attempts()
    assert [attempts.failed("away") for _ in range(6)] == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0]
    assert {attempts.failed("away") for _ in range(2_000)} == {10.0}
    assert attempts.trouble == "away"
    attempts.succeeded()
    assert (attempts.trouble, attempts.failed("gone")) == (None, 0.5)
