"""Sources that never end, read piece by piece, and the files of a live sink."""

from __future__ import annotations

import hashlib
import io
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import apache_beam as beam
import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

from quiltstream.schemas.readings import REJECT_SCHEMA, RejectReason
from quiltstream.schemas.settings import Readings
from quiltstream.transforms import feeds
from quiltstream.transforms.decode import FileDecoder
from quiltstream.transforms.feeds import BEGIN, ArrivingFiles, Piece, Reader, StandardInput
from quiltstream.transforms.files import SourceFileError
from quiltstream.transforms.live import Progress, Span, SpanTracker
from quiltstream.transforms.live_sinks import WriteRejects, block_name

ORIGIN = 1_356_998_400_000_000


def decoder(form: Any) -> FileDecoder:
    return FileDecoder(form, ",", Readings(series="series", time="time", value="value", time_unit="us"))


def line(number: int, series: str = "a") -> str:
    return json.dumps({"series": series, "time": ORIGIN + number, "value": float(number)}) + "\n"


def values(piece: Piece | None) -> list[float]:
    assert piece is not None
    return [value for batch in piece.batches for value in batch.column("value").to_pylist()]


# Files


def test_what_was_read_is_known_by_a_reader_at_its_position_whatever_the_names(tmp_path: Path) -> None:
    names = ["b.jsonl", "a.jsonl", 'odd "name", [1].jsonl', "ünï.jsonl"]
    for number, name in enumerate(names):
        (tmp_path / name).write_text(line(number), encoding="utf-8")
    feed = ArrivingFiles(decoder("jsonl"), (str(tmp_path / "*.jsonl"),))
    reader, pieces = feed.reader(0, BEGIN), list[Piece]()
    while (piece := reader.read()) is not None:
        pieces.append(piece)
        # a reader that begins here reads the rest, each once
        rest = feed.reader(0, piece.position)
        left = []
        while (other := rest.read()) is not None:
            left += values(other)
        assert len(left) == len(names) - len(pieces)
    assert sorted(value for piece in pieces for value in values(piece)) == [0.0, 1.0, 2.0, 3.0]
    assert [piece.settled for piece in pieces] == [False, False, False, True]
    assert set(json.loads(pieces[-1].position)) == {str(tmp_path / name) for name in names}


def test_very_many_files_do_not_make_the_position_of_each_dear(tmp_path: Path) -> None:
    for number in range(500):
        (tmp_path / f"{number:04}.jsonl").write_text(line(number), encoding="utf-8")
    feed = ArrivingFiles(decoder("jsonl"), (str(tmp_path / "*.jsonl"),))
    reader = feed.reader(0, BEGIN)
    first = reader.read()
    assert first is not None
    for number in range(0, 500, 2):
        (tmp_path / f"{number:04}.jsonl").unlink()
    # what was listed is read on, and what is gone by then is damaged
    pieces = list(iter(reader.read, None))
    assert Counter(reason for piece in pieces for reason in piece.rejected) == {RejectReason.DAMAGED_SOURCE: 249}
    assert len(json.loads(pieces[-1].position)) == 500
    (tmp_path / "new.jsonl").write_text(line(1), encoding="utf-8")
    last = reader.read()
    assert last is not None
    assert len(json.loads(last.position)) == 251


def damaged(form: str, path: Path) -> None:
    if form == "parquet":
        pq.write_table(pa.table({"series": ["a"], "time": [ORIGIN], "value": [1.0]}), path)
    elif form == "avro":
        with path.open("wb") as file:
            fields = [{"name": n, "type": t} for n, t in (("series", "string"), ("time", "long"), ("value", "double"))]
            rows = [{"series": "a", "time": ORIGIN, "value": 1.0}] * 500
            fastavro.writer(file, {"type": "record", "name": "R", "fields": fields}, rows)
    content = path.read_bytes() if path.exists() else b""
    path.write_bytes(content[: len(content) // 2] if content else b"other,columns\n1,2\n")


@pytest.mark.parametrize("form", ["csv", "parquet", "avro"])
def test_a_damaged_file_of_any_format_is_one_reject_and_the_next_file_is_read(tmp_path: Path, form: str) -> None:
    damaged(form, tmp_path / f"0.{form}")
    (tmp_path / f"1.{form}").mkdir()
    feed = ArrivingFiles(decoder(form), (str(tmp_path / f"*.{form}"),))
    reader = feed.reader(0, BEGIN)
    piece = reader.read()
    assert piece is not None
    assert piece.rejected == {RejectReason.DAMAGED_SOURCE: 1}
    assert [batch.to_pylist() for batch in piece.rejects] == [
        [{"reason": "damaged-source", "source": str(tmp_path / f"0.{form}"), "position": -1}]
    ]
    assert reader.read() is None


# Standard input


class Pipe:
    """A pipe in place of the process's standard input."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        out, into = os.pipe()
        self._into = os.fdopen(into, "wb", buffering=0)
        self.buffer = os.fdopen(out, "rb")
        monkeypatch.setattr(feeds, "_standard_input", None)
        monkeypatch.setattr("sys.stdin", self)

    def write(self, text: str | bytes) -> None:
        self._into.write(text if isinstance(text, bytes) else text.encode())

    def close(self) -> None:
        self._into.close()


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipe]:
    made = Pipe(monkeypatch)
    yield made
    made.close()
    for thread in threading.enumerate():
        if thread.name == "quiltstream-stdin":
            thread.join(10)
    made.buffer.close()


def next_of(reader: Reader) -> Piece:
    deadline = time.monotonic() + 30
    while (piece := reader.read()) is None:
        assert time.monotonic() < deadline, "nothing came"
        time.sleep(0.005)
    return piece


def test_only_whole_lines_are_read_and_the_last_one_needs_no_end(pipe: Pipe) -> None:
    reader = StandardInput(decoder("jsonl")).reader(0, BEGIN)
    assert reader.read() is None
    text = line(1) + line(2)
    pipe.write(text[: len(line(1)) + 5])
    assert values(next_of(reader)) == [1.0]
    time.sleep(0.05)
    assert reader.read() is None
    pipe.write(text[len(line(1)) + 5 :] + line(3).rstrip("\n"))
    assert values(next_of(reader)) == [2.0]
    assert not reader.ended
    pipe.close()
    assert values(next_of(reader)) == [3.0]
    assert reader.read() is None
    assert reader.ended


def test_a_reader_goes_on_where_another_one_stopped_and_nowhere_else(pipe: Pipe) -> None:
    feed = StandardInput(decoder("jsonl"))
    pipe.write(line(1) + line(2))
    piece = next_of(feed.reader(0, BEGIN))
    pipe.write(line(3))
    assert values(next_of(feed.reader(0, piece.position))) == [3.0]
    with pytest.raises(SourceFileError, match=r"read up to line 3 and the runner asks for it from line 1 again"):
        feed.reader(0, BEGIN)


def test_the_names_of_csv_come_first_alone_or_with_rows_and_rejects_count_from_the_first_line(pipe: Pipe) -> None:
    feed = StandardInput(decoder("csv"))
    reader = feed.reader(0, BEGIN)
    pipe.write("series,time,value\n")
    piece = next_of(reader)
    assert (piece.rows, piece.position) == (0, "1")
    pipe.write(f"a,{ORIGIN},1.5\n")
    # another worker's reader knows the names too
    reader = feed.reader(0, piece.position)
    assert values(next_of(reader)) == [1.5]
    pipe.write(f"a,{ORIGIN},2.5\na,never,2\n")
    piece = next_of(reader)
    assert values(piece) == [2.5]
    assert [row for batch in piece.rejects for row in batch.to_pylist()] == [
        {"reason": "unparsable-time", "source": "standard input", "position": 4}
    ]


def test_a_line_without_end_is_cut_and_malformed(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "LONGEST_LINE", 1 << 12)
    reader = StandardInput(decoder("jsonl")).reader(0, BEGIN)
    writer = threading.Thread(target=pipe.write, args=(b"x" * (1 << 14) + b"\n" + line(1).encode(),))
    writer.start()
    rejected, found = Counter[RejectReason](), list[float]()
    while not found:
        piece = next_of(reader)
        rejected.update(piece.rejected)
        found += values(piece)
    writer.join()
    assert found == [1.0]
    assert set(rejected) == {RejectReason.MALFORMED_ROW}


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
