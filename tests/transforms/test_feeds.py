"""What a runner asks of a live reader, and the files of a live sink."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any, cast

import apache_beam as beam
import pyarrow as pa
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

from quiltstream.schemas.readings import REJECT_SCHEMA
from quiltstream.transforms.feeds import BEGIN
from quiltstream.transforms.live import Progress, Span, SpanTracker
from quiltstream.transforms.live_sinks import WriteRejects, block_name

from .reading import ORIGIN

# What a runner asks while a part is read


def test_a_runner_that_asks_to_split_before_the_first_byte_is_told_how_far_it_is() -> None:
    # Beam puts the bytes of the output so far in, and has no estimate of them before the first element
    asked = SpanTracker(Span(Progress(BEGIN, 0))).current_progress().with_completed(cast("Any", float("nan")))
    assert asked.fraction_completed == 0.0


# The sink


def test_a_blocks_file_is_named_by_its_window_and_what_it_holds() -> None:
    digest = hashlib.blake2b(b"a\nb", digest_size=8).hexdigest()
    assert block_name(ORIGIN, ["b", "a"], "avro") == f"20130101T000000-{digest}.avro"
    assert block_name(ORIGIN, ["a", "b"], "avro") == block_name(ORIGIN, ["b", "a"], "avro")
    assert block_name(ORIGIN, ["a"], "avro") != block_name(ORIGIN, ["b"], "avro")


def test_the_rejects_of_a_bundle_are_one_file_and_none_is_written_without_any(tmp_path: Path) -> None:
    rows = [{"reason": "late", "source": "x", "position": number} for number in range(3)]
    batches = [pa.RecordBatch.from_pylist([row], schema=REJECT_SCHEMA) for row in rows]
    for given, name in ((batches, "some"), ([], "none")):
        with beam.Pipeline(runner=FnApiRunner()) as pipeline:
            _ = pipeline | beam.Create(given, reshuffle=False) | WriteRejects(str(tmp_path / name), "jsonl")
    (path,) = (tmp_path / "some").iterdir()
    found = [json.loads(text) for text in io.StringIO(path.read_text(encoding="utf-8"))]
    assert sorted(found, key=lambda row: row["position"]) == rows
    assert not (tmp_path / "none").exists()
