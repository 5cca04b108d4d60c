"""File sinks: whole files, the same bytes for the same rows, and every format read back to the same table."""

from __future__ import annotations

import csv
import datetime as dt
import json
from pathlib import Path
from typing import Any

import apache_beam as beam
import fastavro
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.window import FixedWindows, TimestampedValue

from quiltstream.schemas import table_files
from quiltstream.schemas.readings import REJECT_SCHEMA
from quiltstream.schemas.releases import RELEASE_SCHEMA, Release, releases_from_batch
from quiltstream.schemas.table_files import RELEASES, read_rows, write_parts
from quiltstream.transforms.sinks import REJECTS, WriteRows, read_release_rows

from ..released import batch_from_releases, write_rows
from .stubborn import StubbornFileSystem

FORMATS: list[Any] = ["parquet", "csv", "jsonl", "avro"]
HOUR = 3600_000_000


def release(number: int, **changes: Any) -> Release:
    fields: dict[str, Any] = {
        "release_id": f"{number:032x}",
        "domain": "d",
        "query": 'q,"1"',
        "query_digest": "0" * 64,
        "key_kind": "group",
        "key": f"feeder {number % 3} é\n",
        "window_start": 1356998400_000_000 + number * HOUR,
        "window_stop": 1356998400_000_000 + (number + 1) * HOUR + 1,
        "window": "1h",
        "timezone": "Europe/London",
        "slots": 48,
        "members": 30,
        "edges": (250.0, 0.1, 1e300),
        "unit": "",
        "missing": "public",
        "counts": (5, -3, 2**60, 0),
        "total": None if number % 2 else 7,
        "estimate": None if number % 2 else (0.1, 2 / 3, 6.0, 0.0),
        "scale": 2 / 3,
        "scale_exact": "2/3",
        "half_width_95": 4,
        "epsilon_dp": 1e-17,
        "loss_before": 0.0,
        "loss_after": 1.0,
        "guarantee": "stream",
        "mechanism": "mqm-approx",
        "quilt": (None, 13) if number % 2 else (15, None),
        "model_id": "m",
        "model_provenance": "NA",
        "given_model": bool(number % 2),
        "completeness": "live",
        "noise_law": "discrete-laplace",
        "by": ("weekend",) if number % 3 else None,
        "classes": ("workday", "weekend") if number % 3 else None,
        "class_slots": (48, 0) if number % 3 else None,
    }
    return Release(**{**fields, **changes})


ROWS = [release(number) for number in range(12)]


def table(rows: list[Release]) -> pa.Table:
    return pa.Table.from_batches([batch_from_releases(rows)])


@pytest.mark.parametrize("format_", FORMATS)
def test_releases_are_read_back_unchanged_from_every_format(tmp_path, format_):
    path = tmp_path / "new" / "folder" / "out"
    write_rows(path, format_, table(ROWS[::-1]))
    again = read_release_rows(path)
    assert again.schema.equals(RELEASE_SCHEMA, check_metadata=True)
    assert releases_from_batch(again) == ROWS
    assert [one.name for one in path.parent.iterdir()] == ["out"]


@pytest.mark.parametrize("format_", FORMATS)
def test_rejects_are_read_back_and_no_rows_give_an_empty_file(tmp_path, format_):
    columns = {"reason": ["b", "a"], "source": ["x,y", "x,y"], "position": [7, 3], "size": [None, 12]}
    rejects = pa.table(columns, schema=REJECT_SCHEMA)
    write_rows(tmp_path / "r", format_, rejects, REJECTS)
    assert read_rows(tmp_path / "r", REJECTS).to_pylist() == rejects.to_pylist()[::-1]
    for name, form in (("e", REJECTS), ("f", RELEASES)):
        write_rows(tmp_path / name, format_, form.schema.empty_table(), form)
        empty = read_rows(tmp_path / name, form)
        assert empty.num_rows == 0
        assert empty.schema.equals(form.schema, check_metadata=True)


@pytest.mark.parametrize("format_", FORMATS)
def test_equal_rows_give_equal_bytes_in_any_order_and_batching(tmp_path, format_):
    order = np.random.default_rng(4).permutation(len(ROWS)).tolist()
    write_rows(tmp_path / "1", format_, table(ROWS))
    write_rows(tmp_path / "2", format_, RELEASES.table([batch_from_releases([ROWS[i]]) for i in [*order, *order[:5]]]))
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
    write_rows(tmp_path / "3", format_, table([*ROWS[:-1], release(11, loss_after=2.0)]))
    assert (tmp_path / "1").read_bytes() != (tmp_path / "3").read_bytes()


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("seed", range(2))
def test_packed_batches_are_written_as_one_unpacked_batch(tmp_path, monkeypatch, format_, seed):
    monkeypatch.setattr(table_files, "_ROW_GROUP", 5)
    random = np.random.default_rng(seed)
    rows = [
        release(n, window_start=HOUR * (n // 4), window_stop=HOUR * (n // 4 + 1), key=f"k{n:02}") for n in range(30)
    ]
    write_rows(tmp_path / "whole", format_, table(rows))
    order = random.permutation(np.r_[0:30, 0:6])
    cuts = np.sort(random.choice(np.arange(1, 36), 8, replace=False))
    packed = [RELEASES.pack(batch_from_releases([rows[i] for i in part])) for part in np.split(order, cuts)]
    packed += [
        RELEASES.pack(batch_from_releases([])),
        *(RELEASES.pack(batch_from_releases(rows[n : n + 2])) for n in (4, 20)),
    ]
    write_parts(tmp_path / "parts", format_, RELEASES.parts(packed), RELEASES)
    assert (tmp_path / "parts").read_bytes() == (tmp_path / "whole").read_bytes()
    assert releases_from_batch(read_release_rows(tmp_path / "parts")) == rows
    if format_ == "parquet":
        file = pq.ParquetFile(tmp_path / "parts")
        assert [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] == [8, 8, 8, 6]


def test_no_more_is_unpacked_at_a_time_than_the_batches_whose_windows_overlap():
    windows = [RELEASES.pack(batch_from_releases([ROWS[n]])) for n in (7, 2, 5)]
    across = RELEASES.pack(batch_from_releases(ROWS[4:7]))
    found = [part.num_rows for part in RELEASES.parts([*windows, across])()]
    assert found == [1, 3, 1]


def test_other_software_reads_the_files(tmp_path):
    for format_ in FORMATS:
        write_rows(tmp_path / format_, format_, table(ROWS))
    start = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
    parquet = pl.read_parquet(tmp_path / "parquet")
    assert parquet["window_start"][0] == start
    assert parquet["counts"][0].to_list() == [5, -3, 2**60, 0]
    with (tmp_path / "avro").open("rb") as file:
        rows: list[Any] = list(fastavro.reader(file))
    assert rows[0]["window_start"] == start
    assert rows[1]["quilt"] == {"left": None, "right": 13}
    line = json.loads((tmp_path / "jsonl").read_text().split("\n")[0])
    assert (line["window_start"], line["window_stop"]) == ("2013-01-01T00:00:00Z", "2013-01-01T01:00:00.000001Z")
    assert (line["estimate"], line["total"]) == ([0.1, 2 / 3, 6.0, 0.0], 7)
    with (tmp_path / "csv").open(newline="") as file:
        cells = next(csv.DictReader(file))
    assert (cells["counts"], cells["given_model"], cells["key"]) == (
        "[5,-3,1152921504606846976,0]",
        "false",
        "feeder 0 é\n",
    )


@pytest.mark.night
@pytest.mark.parametrize("format_", ["parquet", "jsonl"])
def test_the_transform_writes_all_windows_to_one_file_and_emits_its_path(tmp_path, format_):
    path = str(tmp_path / "out")
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        written = (
            pipeline
            | beam.Create(range(len(ROWS)))
            | beam.Map(lambda i: TimestampedValue(batch_from_releases([ROWS[i], ROWS[0]]), i * 10))
            | beam.WindowInto(FixedWindows(20))
            | WriteRows(path, format_)
        )
        assert_that(written, equal_to([path]))
    assert releases_from_batch(read_release_rows(path)) == ROWS
    write_rows(tmp_path / "plain", format_, table(ROWS))
    assert Path(path).read_bytes() == (tmp_path / "plain").read_bytes()


@pytest.mark.night
@pytest.mark.parametrize("format_", ["parquet", "csv"])
def test_a_remote_store_is_written_and_read_through_beams_file_systems(tmp_path, monkeypatch, format_):
    monkeypatch.setattr(StubbornFileSystem, "root", str(tmp_path))
    for _ in range(2):
        with beam.Pipeline(runner=FnApiRunner()) as pipeline:
            _ = pipeline | beam.Create([batch_from_releases(ROWS)]) | WriteRows("stubborn://out/file", format_)
    assert [one.name for one in (tmp_path / "out").iterdir()] == ["file"]
    assert releases_from_batch(read_release_rows(tmp_path / "out" / "file")) == ROWS
