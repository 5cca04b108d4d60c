"""Live sources of files that arrive, and of standard input."""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quiltstream.schemas.readings import RejectReason
from quiltstream.transforms.completeness import Punctuation
from quiltstream.transforms.formats.paths import Found, SourceFileError, present
from quiltstream.transforms.sources import arriving_files
from quiltstream.transforms.sources.arriving_files import ArrivingFiles, StandardInput
from quiltstream.transforms.sources.contract import BEGIN, Reader, SourceBatch
from quiltstream.transforms.sources.progress import Restriction
from quiltstream.transforms.sources.reader import PollingPolicy, ReadPart

from ...depth import some
from ..reading import ORIGIN, decoder, line, values
from .check_contract import CheckContract
from .streams import HOUR, Estimator, calls, stamped


def rest_of(reader: Reader) -> list[SourceBatch]:
    """What a reader finds until nothing is there, or nothing can be read."""
    found = iter(reader.read, None)
    return list(takewhile(lambda piece: reader.trouble is None or piece.rows or piece.rejected, found))


def holds(reader: Reader) -> bool:
    """Whether a look finds nothing, and does not say that nothing is there, which would close windows."""
    piece = reader.read()
    return piece is not None and not (piece.rows or piece.rejected or piece.settled)


def rejected(pieces: list[SourceBatch]) -> Counter[RejectReason]:
    return Counter(reason for piece in pieces for reason in Counter(piece.rejected).elements())


class Inbox:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def feed(self) -> ArrivingFiles:
        return ArrivingFiles(decoder("jsonl"), (str(self.folder / "*.jsonl"),))

    def send(self, number: int) -> None:
        (self.folder / f"{number}.jsonl").write_text(line(number), encoding="utf-8")

    def take_away(self) -> None:
        self.folder.rename(self.folder.with_name("elsewhere"))

    def bring_back(self) -> None:
        self.folder.with_name("elsewhere").rename(self.folder)


class TestCheck(CheckContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Inbox:
        return Inbox(tmp_path / "inbox")


def test_a_reader_at_a_position_skips_read_files_of_any_name(tmp_path: Path) -> None:
    names = ["b.jsonl", "a.jsonl", 'odd "name", [1].jsonl', "ünï.jsonl"]
    for number, name in enumerate(names):
        (tmp_path / name).write_text(line(number), encoding="utf-8")
    feed = ArrivingFiles(decoder("jsonl"), (str(tmp_path / "*.jsonl"),))
    reader, pieces = feed.reader(0, BEGIN), list[SourceBatch]()
    while (piece := reader.read()) is not None:
        pieces.append(piece)
        # a reader that begins here reads the rest, each once
        left = [value for other in rest_of(feed.reader(0, piece.position)) for value in values(other)]
        assert len(left) == len(names) - len(pieces)
    assert sorted(value for piece in pieces for value in values(piece)) == [0.0, 1.0, 2.0, 3.0]
    assert [piece.settled for piece in pieces] == [False, False, False, True]


def test_a_pipe_in_the_folder_is_one_reject_by_its_name_and_files_are_read(tmp_path: Path) -> None:
    """A live job does not end for it, waits for no writer, and does not leave it out without a word."""
    os.mkfifo(tmp_path / "1.jsonl")
    (tmp_path / "2.jsonl").write_text(line(7), encoding="utf-8")
    (tmp_path / "3.jsonl").mkdir()
    feed = ArrivingFiles(decoder("jsonl"), (str(tmp_path / "*.jsonl"),))
    reader = feed.reader(0, BEGIN)
    pieces = rest_of(reader)
    assert [value for piece in pieces for value in values(piece)] == [7.0]
    rejected = [row for piece in pieces for batch in piece.rejects for row in batch.to_pylist()]
    assert [row["source"] for row in rejected] == [str(tmp_path / "1.jsonl")]
    assert Counter(reason for piece in pieces for reason in piece.rejected) == {RejectReason.DAMAGED_SOURCE: 1}
    assert feed.reader(0, pieces[-1].position).read() is None


@pytest.mark.night
def test_a_position_has_bounded_size_per_existing_file(tmp_path: Path) -> None:
    for number in range(500):
        (tmp_path / f"{number:04}.jsonl").write_text(line(number), encoding="utf-8")
    feed = ArrivingFiles(decoder("jsonl"), (str(tmp_path / "*.jsonl"),))
    reader = feed.reader(0, BEGIN)
    first = reader.read()
    assert first is not None
    for number in range(0, 500, 2):
        (tmp_path / f"{number:04}.jsonl").unlink()
    # what was listed is read on, and what is gone by then is damaged
    pieces = rest_of(reader)
    assert Counter(reason for piece in pieces for reason in piece.rejected) == {RejectReason.DAMAGED_SOURCE: 249}
    assert len(pieces[-1].position) < 13 * 500
    (tmp_path / "new.jsonl").write_text(line(1), encoding="utf-8")
    last = reader.read()
    assert last is not None
    assert len(last.position) < 13 * 260
    assert reader.read() is None
    assert feed.reader(0, last.position).read() is None


def test_a_listing_that_lacks_an_earlier_file_settles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a folder is listed, one file may come where the list has passed, and a later one ahead of it."""
    lacks = [{"1.jsonl"}, set[str](), {"3.jsonl"}, set[str]()]

    def listed(patterns: tuple[str, ...]) -> Found:
        found, missed = present(patterns), lacks.pop(0) if lacks else set[str]()
        return replace(found, paths=[path for path in found.paths if Path(path).name not in missed])

    monkeypatch.setattr(arriving_files, "present", listed)
    feed = ArrivingFiles(decoder("jsonl"), (str(tmp_path / "*.jsonl"),))
    reader = feed.reader(0, BEGIN)
    for numbers in ((1, 2), (3, 4)):
        for number in numbers:
            (tmp_path / f"{number}.jsonl").write_text(line(number), encoding="utf-8")
            time.sleep(0.02)  # of the order in which they came
        assert [(values(one), one.settled) for one in rest_of(reader)] == [
            ([float(numbers[0])], False),
            ([float(numbers[1])], True),
        ]


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
        [{"reason": "damaged-source", "source": str(tmp_path / f"0.{form}"), "position": -1, "size": None}]
    ]
    assert reader.read() is None


ROWS = 1000


def large(form: str, path: Path) -> None:
    """A file of so many readings, every third of them with a mistake where the format has room for one."""
    rows = range(ROWS)
    if form == "parquet":
        columns = {"series": ["a"] * ROWS, "time": [ORIGIN + n for n in rows], "value": [float(n) for n in rows]}
        pq.write_table(pa.table(columns), path, row_group_size=70)
    elif form == "avro":
        fields = [{"name": n, "type": t} for n, t in (("series", "string"), ("time", "long"), ("value", "double"))]
        records = [{"series": "a", "time": ORIGIN + n, "value": float(n)} for n in rows]
        with path.open("wb") as file:
            schema = {"type": "record", "name": "R", "fields": fields}
            fastavro.writer(file, schema, records, sync_interval=500)
    elif form == "csv":
        text = "".join(f"a,{ORIGIN + n},{'-' if n % 3 == 0 else n}\n" for n in rows)
        path.write_text("series,time,value\n" + text, encoding="utf-8")
    else:
        path.write_text("".join("oops\n" if n % 3 == 0 else line(n) for n in rows), encoding="utf-8")


def in_pieces(form: str, folder: Path) -> ArrivingFiles:
    return ArrivingFiles(replace(decoder(form), batch_rows=40), (str(folder / f"*.{form}"),))


def outcome(pieces: list[SourceBatch]) -> tuple[list[float], list[tuple[str, int]]]:
    """The readings, and the reason and position of every reject, in their order."""
    rejects = [row for piece in pieces for batch in piece.rejects for row in batch.to_pylist()]
    return (
        [value for piece in pieces for value in values(piece)],
        [(row["reason"], row["position"]) for row in rejects],
    )


@pytest.mark.night
@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "avro"])
def test_a_large_file_is_read_in_batches_and_resumes_at_any_offset(tmp_path: Path, form: str) -> None:
    large(form, tmp_path / f"0.{form}")
    (tmp_path / f"1.{form}").write_bytes((tmp_path / f"0.{form}").read_bytes())
    feed = in_pieces(form, tmp_path)
    pieces = rest_of(feed.reader(0, BEGIN))
    assert len(pieces) > 8
    assert max(piece.rows + sum(piece.rejected.values()) for piece in pieces) <= 200
    # the clock may move when nothing is left to read, and only then
    assert [piece.settled for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    readings, rejects = outcome(pieces)
    expected = [float(n) for n in range(ROWS) if form in ("parquet", "avro") or n % 3]
    assert Counter(readings) == Counter(expected * 2)
    assert len(readings) + len(rejects) == 2 * ROWS
    for number, piece in some(list(enumerate(pieces)), 3):
        assert len(piece.position) < 250 + len(str(tmp_path))
        assert outcome(rest_of(feed.reader(0, piece.position))) == outcome(pieces[number + 1 :])


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_half_read_file_that_changed_is_counted_and_read_from_its_beginning_once(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"0.{form}"
    large(form, path)
    feed = in_pieces(form, tmp_path)
    before = feed.reader(0, BEGIN).read()
    assert before is not None
    whole = [value for piece in rest_of(feed.reader(0, BEGIN)) for value in values(piece)]
    os.utime(path, ns=(1, 1))
    reader = feed.reader(0, before.position)
    piece = reader.read()
    assert piece is not None
    assert piece.rejected[RejectReason.DAMAGED_SOURCE] == 1
    pieces = [piece, *rest_of(reader)]
    assert [value for one in pieces for value in values(one)] == whole
    assert sum(one.rejected.get(RejectReason.DAMAGED_SOURCE, 0) for one in pieces) == 1
    # a file that changes for ever does not hold the windows for ever
    os.utime(path, ns=(2, 2))
    (last,) = rest_of(feed.reader(0, piece.position))
    assert (last.rejected, last.rows, last.settled) == ({RejectReason.DAMAGED_SOURCE: 1}, 0, True)
    assert feed.reader(0, last.position).read() is None


@pytest.mark.night
@pytest.mark.parametrize("form", ["jsonl", "avro"])
@pytest.mark.parametrize("renamed", [True, False], ids=["renamed over", "written over"])
def test_a_file_that_changes_while_it_is_read_is_counted_and_read_from_its_beginning(
    tmp_path: Path, form: str, *, renamed: bool
) -> None:
    path, other = tmp_path / f"0.{form}", tmp_path / "other"
    large(form, path)
    large(form, other)
    os.utime(path, ns=(1, 1))
    feed = in_pieces(form, tmp_path)
    whole = [value for piece in rest_of(feed.reader(0, BEGIN)) for value in values(piece)]
    os.utime(path, ns=(1, 1))
    reader = feed.reader(0, BEGIN)
    assert reader.read() is not None
    if renamed:
        other.rename(path)
    else:
        path.write_bytes(other.read_bytes())
    pieces = rest_of(reader)
    assert sum(one.rejected.get(RejectReason.DAMAGED_SOURCE, 0) for one in pieces) == 1
    # nothing of the second file is lost, and nothing of it taken for the rest of the first
    assert [value for one in pieces for value in values(one)] == whole
    assert pieces[0].lost_us is not None


def test_the_rest_of_a_half_read_vanished_file_is_counted_and_others_are_read(tmp_path: Path) -> None:
    large("jsonl", tmp_path / "0.jsonl")
    (tmp_path / "1.jsonl").write_text(line(5000), encoding="utf-8")
    feed = in_pieces("jsonl", tmp_path)
    reader = feed.reader(0, BEGIN)
    first = reader.read()
    assert first is not None
    (tmp_path / "0.jsonl").unlink()
    lost, other = rest_of(feed.reader(0, first.position))
    assert [row for batch in lost.rejects for row in batch.to_pylist()] == [
        {"reason": "damaged-source", "source": str(tmp_path / "0.jsonl"), "position": -1, "size": None}
    ]
    assert values(other) == [5000.0]
    # whoever has it open reads it to its end
    assert rejected(rest_of(reader))[RejectReason.DAMAGED_SOURCE] == 0


def test_a_closed_reader_closes_its_file(tmp_path: Path) -> None:
    large("parquet", tmp_path / "0.parquet")
    reader = in_pieces("parquet", tmp_path).reader(0, BEGIN)
    assert reader.read() is not None

    def held() -> bool:
        return (tmp_path / "0.parquet").resolve() in [one.resolve() for one in Path("/proc/self/fd").iterdir()]

    assert held()
    reader.close()
    # a thread of Arrow's pool that reads a column lets go of the file a moment after its result is there
    until = time.monotonic() + 30
    while held() and time.monotonic() < until:
        time.sleep(0.001)
    assert not held()


def test_other_folders_are_read_if_one_of_several_is_missing(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.jsonl").write_text(line(1), encoding="utf-8")
    feed = ArrivingFiles(decoder("jsonl"), (str(tmp_path / "one/*.jsonl"), str(tmp_path / "two/*.jsonl")))
    reader = feed.reader(0, BEGIN)
    assert len(rest_of(reader)) == 2
    (tmp_path / "one").rename(tmp_path / "away")
    (tmp_path / "two" / "1.jsonl").write_text(line(2), encoding="utf-8")
    assert [values(piece) for piece in rest_of(reader)] == [[2.0]]
    assert reader.trouble == f"the folder {tmp_path / 'one'} is not there"
    (tmp_path / "away").rename(tmp_path / "one")
    assert reader.read() is None


def denied(monkeypatch: pytest.MonkeyPatch, *paths: Path) -> None:
    """Take the right to list folders and to open files, which root has anyway."""
    for module, name in ((os, "scandir"), (os, "open")):
        real = getattr(module, name)

        def refuse(path: Any, *more: Any, real: Any = real, **options: Any) -> Any:
            if Path(path) in paths:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return real(path, *more, **options)

        monkeypatch.setattr(module, name, refuse)


def test_windows_wait_for_a_subfolder_that_may_not_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, name in enumerate(("a", "b")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.jsonl").write_text(line(number), encoding="utf-8")
    reader = ArrivingFiles(decoder("jsonl"), (str(tmp_path / "*/*.jsonl"),)).reader(0, BEGIN)
    with monkeypatch.context() as patch:
        denied(patch, tmp_path / "b")
        (piece,) = rest_of(reader)
        assert (values(piece), piece.settled) == ([0.0], False)
        assert reader.trouble == f"the folder {tmp_path / 'b'} cannot be listed (Permission denied)"
        assert holds(reader)
    (piece,) = rest_of(reader)
    assert (values(piece), piece.settled, reader.trouble) == ([1.0], True, None)


def test_a_file_that_may_not_be_opened_is_tried_again_and_windows_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    form = "jsonl"
    for number in range(3):
        large(form, tmp_path / f"{number}.{form}")
    feed = ArrivingFiles(decoder(form), (str(tmp_path / f"*.{form}"),))
    reader, path = feed.reader(0, BEGIN), tmp_path / f"1.{form}"
    told = f"file {path} cannot be opened (Permission denied); check its permissions and that it is still there"
    with monkeypatch.context() as patch:
        denied(patch, path)
        pieces = rest_of(reader)
        # the others are read meanwhile
        read = [Path(piece.rejects[0].column("source")[0].as_py()).name for piece in pieces if piece.rejects]
        assert read == ["0.jsonl", "2.jsonl"]
        assert len(pieces) == 2
        assert not any(piece.settled for piece in pieces)
        assert not any(RejectReason.DAMAGED_SOURCE in piece.rejected for piece in pieces)
        assert reader.trouble == told
        assert holds(reader)
        assert caplog.text.count(told) == 1
        # another worker goes on from there
        assert holds(feed.reader(0, pieces[-1].position))
    (piece,) = rest_of(reader)
    assert (piece.rows > 0, piece.settled, reader.trouble) == (True, True, None)


def test_a_damaged_file_is_one_line_of_the_log_by_its_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What a header holds instead of columns may be readings, which no log has."""
    damaged("parquet", tmp_path / "0.parquet")
    (tmp_path / "0.csv").write_text("secret,2024-01-01,7\n", encoding="utf-8")
    for form in ("parquet", "csv"):
        caplog.clear()
        rest_of(ArrivingFiles(decoder(form), (str(tmp_path / f"*.{form}"),)).reader(0, BEGIN))
        (said,) = [one.getMessage() for one in caplog.records if one.name == "quiltstream.files"]
        assert str(tmp_path / f"0.{form}") in said
        assert "it is passed over: send it again under another name" in said
        assert "secret" not in said


class Pipe:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        out, into = os.pipe()
        self._into = os.fdopen(into, "wb", buffering=0)
        self.buffer = os.fdopen(out, "rb")
        monkeypatch.setattr(arriving_files, "_standard_input", None)
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


def next_of(reader: Reader) -> SourceBatch:
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


@pytest.mark.parametrize(
    ("end_us", "declared_us"),
    [
        # the next job publishes what is not over by the source's own clock
        (None, ORIGIN + 5 * HOUR),
        (ORIGIN + 48 * HOUR, ORIGIN + 48 * HOUR),
        # of a schedule that ends in the future, what is over by the wall clock
        (ORIGIN + 96 * HOUR, ORIGIN + 72 * HOUR),
    ],
    ids=["endless", "over", "not over"],
)
def test_at_the_end_of_standard_input_windows_of_an_endless_schedule_wait(
    pipe: Pipe, end_us: int | None, declared_us: int
) -> None:
    pipe.write("".join(line(hour * HOUR) for hour in range(7)))
    pipe.close()
    pace = PollingPolicy(ORIGIN, lateness_us=HOUR, poll_s=0.01, end_us=end_us)
    part = ReadPart(StandardInput(decoder("jsonl")), pace, now=lambda: ORIGIN + 72 * HOUR)
    part.setup()
    span: Restriction | None = part.initial_restriction(0)
    estimator, made = Estimator(), list[Any]()
    while span is not None:
        given, span = calls(part, span, estimator)
        made += given
    part.teardown()
    marks = [one for one in made if isinstance(one, Punctuation)]
    assert max(mark.until_us for mark in marks) == declared_us
    assert estimator.at == stamped(declared_us)


def test_standard_input_that_breaks_off_is_an_error_and_not_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    tcp = socket.create_server(("127.0.0.1", 0))
    into = socket.create_connection(tcp.getsockname())
    out, _ = tcp.accept()
    tcp.close()
    monkeypatch.setattr(arriving_files, "_standard_input", None)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=out))
    reader = StandardInput(decoder("jsonl")).reader(0, BEGIN)
    into.sendall((line(1) + line(2) + line(3)[:9]).encode())
    piece = next_of(reader)
    while piece.position != "2":
        piece = next_of(reader)
    into.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    into.close()
    with pytest.raises(SourceFileError, match=r"broke off behind line 2 \(ConnectionResetError\); start the job again"):
        next_of(reader)
    assert not reader.ended
    out.close()


def test_standard_input_resumes_only_at_the_last_position(pipe: Pipe) -> None:
    feed = StandardInput(decoder("jsonl"))
    pipe.write(line(1) + line(2))
    piece = next_of(feed.reader(0, BEGIN))
    pipe.write(line(3))
    assert values(next_of(feed.reader(0, piece.position))) == [3.0]
    with pytest.raises(SourceFileError, match=r"read up to line 3 and the runner asks for it from line 1 again"):
        feed.reader(0, BEGIN)


def test_the_csv_header_of_standard_input_is_read_first_and_lines_are_counted(pipe: Pipe) -> None:
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
        {"reason": "unparsable-time", "source": "standard input", "position": 4, "size": None}
    ]


@pytest.mark.parametrize("long", [b"x" * (1 << 14), b'{"series": "m", "time": 0, "value": 7}' + b" " * (1 << 14)])
def test_an_overlong_line_of_standard_input_is_one_reject_without_a_reading(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch, long: bytes
) -> None:
    """Neither its beginning nor its end is one, and the lines behind it have their numbers."""
    monkeypatch.setattr(arriving_files, "LONGEST_LINE", 1 << 12)
    reader = StandardInput(decoder("jsonl")).reader(0, BEGIN)
    pipe.write(long)
    first = next_of(reader)
    pipe.write(long + line(2).encode() + line(1).encode() + b"{\n")
    second = next_of(reader)
    rejects = [batch.to_pylist() for piece in (first, second) for batch in piece.rejects]
    assert [[row["position"] for row in rows] for rows in rejects] == [[1], [3]]
    assert (values(first), values(second)) == ([], [1.0])
