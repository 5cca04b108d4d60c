"""Standard input as a source that never ends."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from quiltstream.schemas.readings import RejectReason
from quiltstream.transforms.completeness.punctuation import punctuation_of
from quiltstream.transforms.formats.paths import SourceFileError
from quiltstream.transforms.sources import arriving_files
from quiltstream.transforms.sources.arriving_files import StandardInput
from quiltstream.transforms.sources.contract import BEGIN, Reader, SourceBatch
from quiltstream.transforms.sources.progress import Restriction
from quiltstream.transforms.sources.reader import PollingPolicy, ReadPart

from ..reading import ORIGIN, decoder, line, values
from .streams import HOUR, Estimator, calls, stamped


class Pipe:
    """A pipe in place of the process's standard input."""

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


@pytest.mark.assures("live", "At the end of standard input the windows of an endless schedule wait")
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
    marks = [mark for one in made if (mark := punctuation_of(one)) is not None]
    assert max(mark.until_us for mark in marks) == declared_us
    assert estimator.at == stamped(declared_us)


def test_a_reader_goes_on_where_another_one_stopped_and_nowhere_else(pipe: Pipe) -> None:
    feed = StandardInput(decoder("jsonl"))
    pipe.write(line(1) + line(2))
    piece = next_of(feed.reader(0, BEGIN))
    pipe.write(line(3))
    assert values(next_of(feed.reader(0, piece.position))) == [3.0]
    with pytest.raises(SourceFileError, match=r"read up to line 3 and the runner asks for it from line 1 again"):
        feed.reader(0, BEGIN)


def test_the_header_of_csv_comes_first_and_rejects_count_from_the_first_line(pipe: Pipe) -> None:
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


def test_a_line_without_end_is_cut_and_malformed(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arriving_files, "LONGEST_LINE", 1 << 12)
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


PROGRAM = """
import sys, time
from quiltstream.transforms.sources import arriving_files as line_source
line_source._lines_of(sys.stdin.buffer)
time.sleep(0.3)
"""


def test_a_process_may_end_while_its_standard_input_is_waited_for() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert process.wait(timeout=60) == 0
        assert b"Fatal" not in process.stderr.read()


def test_standard_input_is_never_away(pipe: Pipe) -> None:
    pipe.write(line(1))
    reader = StandardInput(decoder("jsonl")).reader(0, BEGIN)
    assert reader.check()
    assert values(next_of(reader)) == [1.0]
    assert reader.check()
