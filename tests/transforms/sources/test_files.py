"""Files in a pipeline: outputs, counters, timestamps, how much Python a reading costs, registers and intervals."""

from __future__ import annotations

import cProfile
import logging
import os
import pstats
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to

from quiltstream.schemas.settings.connectors import FileSource
from quiltstream.schemas.settings.readings import Readings
from quiltstream.schemas.table_files import read_rows
from quiltstream.transforms.formats.paths import SourceFileError
from quiltstream.transforms.sinks import REJECTS, WriteRows
from quiltstream.transforms.sources.files import DecodeFiles, ReadReadings

from ..formats.decoding import READINGS, decode, plain
from ..stubborn import StubbornFileSystem


def run(
    source: FileSource, readings: Readings = READINGS, rejects: Any = None, **options: Any
) -> tuple[Any, dict[str, int]]:
    """Runs a pipeline and checks its readings against decoding without one; returns its result and counters."""
    pipeline = beam.Pipeline(runner=FnApiRunner())
    decoded: Any = pipeline | ReadReadings(source, readings, **options)
    rows, _ = decode(source, readings, **options)
    assert_that(decoded.readings | beam.FlatMap(plain), equal_to(rows))
    if rejects is not None:
        _ = decoded.rejected | WriteRows(str(rejects), "jsonl", REJECTS)
    result = pipeline.run()
    result.wait_until_finish()
    counters = {one.key.metric.name: one.committed for one in result.metrics().query()["counters"]}
    return result, {name: count for name, count in counters.items() if count}


@pytest.mark.night
def test_readings_rejects_and_counters_agree(tmp_path):
    (tmp_path / "1.csv").write_text("id,ts,kwh\na,2013-01-01,1\na,x,1\nb,2013-01-01,\n")
    (tmp_path / "2.csv").write_text("kwh,id,ts\n5,c,2013-01-02\n5,c\n")
    _, counters = run(FileSource(csv=[str(tmp_path / "1.csv"), str(tmp_path / "2.csv")]), rejects=tmp_path / "rejects")
    assert counters == {
        "decoded-readings": 2,
        "rejected-unparsable-time": 1,
        "rejected-missing-value": 1,
        "rejected-malformed-row": 1,
    }
    assert read_rows(tmp_path / "rejects", REJECTS).to_pylist() == [
        {"reason": "unparsable-time", "source": str(tmp_path / "1.csv"), "position": 3, "size": None},
        {"reason": "missing-value", "source": str(tmp_path / "1.csv"), "position": 4, "size": None},
        {"reason": "malformed-row", "source": str(tmp_path / "2.csv"), "position": 3, "size": None},
    ]


def stamped(batch: pa.RecordBatch, at: Any = beam.DoFn.TimestampParam) -> tuple[int, int]:
    return int(at), batch.num_rows


def test_the_timestamp_of_a_batch_is_its_earliest_readings(tmp_path):
    table = pa.table({"id": ["a"] * 6, "ts": [50, 40, 60, 7, 8, 9], "kwh": [1.0] * 6})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=3)
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        decoded: Any = pipeline | ReadReadings(FileSource(parquet=str(tmp_path / "x.parquet")), READINGS, batch_rows=3)
        stamps = decoded.readings | beam.Map(stamped)
        assert_that(stamps, equal_to([(40, 3), (7, 3)]))


@pytest.mark.night
def test_remote_files_are_read_through_beams_file_systems(tmp_path, monkeypatch):
    monkeypatch.setattr(StubbornFileSystem, "root", str(tmp_path))
    table = pa.table({"id": ["a", "b"], "ts": [0, 1], "kwh": [1.0, 2.0]})
    pq.write_table(table, tmp_path / "x.parquet")
    (tmp_path / "x.csv").write_text("id,ts,kwh\na,0,1\nb,1,2\n")
    for format_ in ("parquet", "csv"):
        source = FileSource.model_validate({format_: f"stubborn://*.{format_}"})
        assert ReadReadings(source, READINGS).tasks[0].path == f"stubborn://x.{format_}"
        _, counters = run(source)
        assert counters == {"decoded-readings": 2}


@pytest.mark.night
@pytest.mark.parametrize("format_", ["csv", "parquet"])
def test_python_is_called_for_each_batch_and_not_for_each_reading(tmp_path, format_):
    calls: dict[int, int] = {}
    for rows in (2_000, 200_000):
        table = pl.DataFrame(
            {
                "id": [f"h{i % 50}" for i in range(rows)],
                "ts": np.arange(rows) * 60 + 1356998400,
                "kwh": np.where(np.arange(rows) % 10 == 0, np.nan, np.arange(rows) / 7),
            }
        )
        path = tmp_path / f"{rows}.{format_}"
        {"csv": table.write_csv, "parquet": table.write_parquet}[format_](path)
        reader = ReadReadings(FileSource.model_validate({format_: str(path)}), READINGS, batch_rows=1 << 20)
        decoder = DecodeFiles(reader.decoder)
        decoder.setup()
        profile = cProfile.Profile()
        outputs = profile.runcall(lambda d=decoder, r=reader: [one for task in r.tasks for one in d.process(task)])
        decoder.teardown()
        assert len(outputs) == 2
        assert outputs[1].value.num_rows == rows * 9 // 10
        calls[rows] = vars(pstats.Stats(profile))["total_calls"]
    # the larger file is a few reads longer, and its readings are a hundred times as many; from Python 3.12 on the calls
    # of other threads count, too
    assert calls[200_000] < calls[2_000] + 2_000


@pytest.mark.night
def test_inputs_that_differ_in_one_value_have_equal_logs_and_counters(tmp_path, caplog):
    seen: list[Any] = []
    for value in ("0.25", "-1e308"):
        (tmp_path / "x.csv").write_text(f"id,ts,kwh\na,2013-01-01,{value}\nb,2013-01-01,\n")
        caplog.clear()
        caplog.set_level(logging.INFO)
        _, counters = run(
            FileSource(csv=str(tmp_path / "x.csv")), READINGS.model_copy(update={"scale": 1000}), tmp_path / "r"
        )
        messages = [one.getMessage() for one in caplog.records]
        seen.append((counters, messages, (tmp_path / "r").read_bytes()))
    assert seen[0] == seen[1]


def test_damage_stops_the_pipeline_and_the_message_holds_no_data(tmp_path):
    table = pa.table({"id": ["secret"] * 9000, "ts": list(range(9000)), "kwh": np.random.default_rng(1).random(9000)})
    pq.write_table(table, tmp_path / "x.parquet", write_page_checksum=True)
    data = bytearray((tmp_path / "x.parquet").read_bytes())
    data[len(data) // 2 - 2000 : len(data) // 2 + 2000] = bytes(4000)
    (tmp_path / "x.parquet").write_bytes(bytes(data))
    pipeline = beam.Pipeline(runner=FnApiRunner())
    _ = pipeline | ReadReadings(FileSource(parquet=str(tmp_path / "x.parquet")), READINGS)
    with pytest.raises(SourceFileError, match=r"x\.parquet is damaged in row groups 0 to 0") as caught:
        pipeline.run()
    assert "secret" not in str(caught.value)


CHANGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: os.truncate(path, path.stat().st_size - 7),
    "added to": lambda path: path.write_bytes(path.read_bytes() + b"a,2013-01-02,1"),
    "written over": lambda path: path.write_bytes(path.read_bytes()),
    "replaced": lambda path: path.with_name("other").replace(path),
}


def several_tasks(form: str, path: Path) -> ReadReadings:
    """A file that is read in parts where the format has some."""
    table = pa.table({"id": ["a"] * 90, "ts": list(range(90)), "kwh": [1.0] * 90})
    for one in (path, path.with_name("other")):
        if form == "parquet":
            pq.write_table(table, one, row_group_size=10)
        else:
            one.write_text("id,ts,kwh\n" + "a,2013-01-01,1\n" * 90)
        os.utime(one, ns=(1, 1 if one == path else 2))
    reading = ReadReadings(FileSource.model_validate({form: str(path)}), READINGS, batch_rows=4)
    assert len(reading.tasks) == (3 if form == "parquet" else 1)
    return reading


@pytest.mark.night
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_file_that_changes_after_it_was_found_is_an_error(
    tmp_path: Path, form: str, change: Callable[[Path], object]
) -> None:
    """Each part is compared with what the file was for all of them, by the worker that reads it."""
    path = tmp_path / f"x.{form}"
    for reads in (0, 1, 2 if form == "parquet" else 1):
        reading = several_tasks(form, path)
        decoder = DecodeFiles(reading.decoder)
        decoder.setup()
        parts = (one for task in reading.tasks for one in decoder.process(task))
        for _ in range(reads):
            next(parts)
        change(path)
        with pytest.raises(SourceFileError, match=rf"x\.{form} changed while it was read: .*nothing was charged"):
            list(parts)
        decoder.teardown()
        with pytest.raises(SourceFileError, match="changed while it was read"):
            list(reading.decoded())
