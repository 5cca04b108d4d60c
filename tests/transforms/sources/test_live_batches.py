"""The pieces of the live way: marks, spans, clocks and positions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from quiltstream.transforms.completeness import Arrived, FromSourceCoder, Punctuation, StateError, Steps
from quiltstream.transforms.sources.arriving_files import ArrivingFiles
from quiltstream.transforms.sources.contract import BEGIN, PartitionedSource, Reader, SourceBatch
from quiltstream.transforms.sources.progress import (
    Activity,
    PartitionState,
    PartitionTracker,
    Reach,
    Restriction,
    SpanCoder,
)
from quiltstream.transforms.sources.reader import PollingPolicy, ReadPart

from ..test_histograms import ORIGIN, batches
from .streams import HOUR, Estimator, calls, decoder, put, stamped

BATCH = pa.RecordBatch.from_pydict({"time": pa.array([5, None], pa.int64())})
SENT = {
    "readings": Arrived(BATCH, 77),
    "readings of a backlog": Arrived(BATCH, -77, -99),
    "punctuation": Punctuation(1, 3, 5, 9),
    "punctuation with everything": Punctuation(70_000, 70_001, -5, 1 << 60, replayed=True, lost_us=7, silent_us=0),
}
#: Two of them as version 1 wrote them.
RECORDED = {
    "punctuation": "01010100000003000000050000000000000009000000000000000000000000000000800000000000000080",
    "punctuation with everything": (
        "01017011010071110100fbffffffffffffff00000000000000100107000000000000000000000000000000"
    ),
}


@pytest.mark.parametrize("name", SENT)
def test_what_a_source_sends_is_read_as_it_was_written(name: str) -> None:
    assert FromSourceCoder().decode(FromSourceCoder().encode(SENT[name])) == SENT[name]


@pytest.mark.parametrize("name", RECORDED)
def test_what_a_source_sent_is_read_from_a_savepoint(name: str) -> None:
    assert FromSourceCoder().decode(bytes.fromhex(RECORDED[name])) == SENT[name]


def test_what_another_version_sent_is_refused_by_name() -> None:
    with pytest.raises(StateError, match="version 9, and this one reads 1: begin anew"):
        FromSourceCoder().decode(b"\x09" + FromSourceCoder().encode(SENT["punctuation"])[1:])


def test_a_punctuation_is_of_a_part_and_goes_forward() -> None:
    with pytest.raises(ValueError, match="part 3 is not one of the 3 parts"):
        Punctuation(3, 3, 0, 1)
    with pytest.raises(ValueError, match="cannot go back from 2 to 1"):
        Punctuation(0, 1, 2, 1)


def test_a_restriction_splits_only_after_its_last_claim():
    begin = PartitionState(BEGIN, 0)
    tracker = PartitionTracker(Restriction(begin))
    assert not tracker.is_bounded()
    with pytest.raises(ValueError, match="without handing the rest"):
        tracker.check_done()
    middle = PartitionState("7", 5, followed=True, sources={"": Activity(6, 8)})
    assert tracker.try_claim(middle)
    assert tracker.try_split(0.5) is None
    assert tracker.try_split(0) == (Restriction(begin, middle), Restriction(middle))
    assert tracker.is_bounded()
    assert not tracker.try_claim(PartitionState("8", 9))
    tracker.check_done()
    ended = PartitionTracker(Restriction(middle))
    assert ended.try_claim(PartitionState("9", 9, over=True))
    assert ended.try_split(0) is None
    ended.check_done()
    coder = SpanCoder()
    for span in (Restriction(begin), Restriction(begin, middle)):
        assert coder.decode(coder.encode(span)) == span
    assert coder.is_deterministic()


def followed(folder: Path, wall: list[int], **pace: Any) -> ReadPart:
    feed = ArrivingFiles(decoder(), (str(folder / "*.jsonl"),))
    part = ReadPart(feed, PollingPolicy(ORIGIN, **pace), now=lambda: wall[0])
    part.setup()
    return part


def test_a_watermark_follows_the_data_and_never_a_future_timestamp(tmp_path):
    wall = [ORIGIN + 10 * HOUR]
    part, estimator = followed(tmp_path, wall, lateness_us=HOUR, idle_us=2 * HOUR), Estimator()
    made, rest = calls(part, part.initial_restriction(0), estimator)
    assert made == []
    assert estimator.at == stamped(ORIGIN)
    put(tmp_path, "1.jsonl", pl.DataFrame({"series": ["a"], "time": [ORIGIN + 5 * HOUR], "value": [1.0]}))
    made, rest = calls(part, rest, estimator)
    assert [one for one in made if isinstance(one, Punctuation)] == [Punctuation(0, 1, ORIGIN, ORIGIN + 4 * HOUR)]
    assert estimator.at == stamped(ORIGIN + 4 * HOUR)
    # some hours ahead: the clock of this machine holds
    put(tmp_path, "2.jsonl", pl.DataFrame({"series": ["a"], "time": [ORIGIN + 15 * HOUR], "value": [1.0]}))
    made, rest = calls(part, rest, estimator)
    assert [one for one in made if isinstance(one, Punctuation)] == [
        Punctuation(0, 1, ORIGIN + 4 * HOUR, ORIGIN + 9 * HOUR)
    ]
    # and the machine's clock jumping back moves nothing
    wall[0] -= 9 * HOUR
    made, rest = calls(part, rest, estimator)
    assert made == []
    assert estimator.at == stamped(ORIGIN + 9 * HOUR)


def test_a_silent_source_holds_its_windows_until_idle_has_passed(tmp_path):
    wall = [ORIGIN]
    part, estimator = followed(tmp_path, wall, lateness_us=HOUR, idle_us=3 * HOUR), Estimator()
    _, rest = calls(part, part.initial_restriction(0), estimator)
    for hours, reached in ((2, 0), (3, 0), (4, 0), (6, 2)):
        wall[0] = ORIGIN + hours * HOUR
        _, rest = calls(part, rest, estimator)
        assert estimator.at == stamped(ORIGIN + reached * HOUR)


def test_the_time_between_polls_does_not_count_as_silence(tmp_path):
    wall = [ORIGIN]
    part, estimator = followed(tmp_path, wall, lateness_us=HOUR, idle_us=4 * HOUR), Estimator()
    _, rest = calls(part, part.initial_restriction(0), estimator)
    # three hours are looked through, ten and three are not; of the last three an hour counts
    for hours, reached in ((1, 0), (2, 0), (3, 0), (13, 0), (14, 0), (17, 0), (18, 0), (19, 14)):
        wall[0] = ORIGIN + hours * HOUR
        # neither does it for another worker that goes on with what the runner has kept
        assert rest is not None
        coder = SpanCoder()
        _, rest = calls(part, coder.decode(coder.encode(rest)), estimator)
        assert estimator.at == stamped(ORIGIN + reached * HOUR)


def said(source: str, hour: int, came_us: int) -> SourceBatch:
    return SourceBatch("x", settled=True, rows=1, latest_us=ORIGIN + hour * HOUR, source=source, came_us=came_us)


class Told(PartitionedSource, Reader):
    """A source of several that hands over what it is given."""

    def __init__(self, *names: str) -> None:
        self.pieces: list[SourceBatch] = []
        self._names = names

    def reader(self, part: int, position: str) -> Reader:
        assert part == 0, position
        return self

    def read(self) -> SourceBatch | None:
        return self.pieces.pop(0) if self.pieces else None

    @property
    def sources(self) -> dict[str, Reach] | None:
        return dict.fromkeys(self._names, Reach.END) or None

    def close(self) -> None:
        """Nothing is open."""


def test_a_punctuation_marks_the_windows_closed_without_a_silent_source():
    wall, source, estimator = [ORIGIN + 100 * HOUR], Told("north", "south"), Estimator()
    pace = PollingPolicy(ORIGIN, lateness_us=HOUR, idle_us=4 * HOUR)
    part = ReadPart(source, pace, now=lambda: wall[0])
    part.setup()
    rest: Restriction | None = part.initial_restriction(0)

    def step(name: str, hour: int) -> list[Punctuation]:
        nonlocal rest
        source.pieces.append(said(name, hour, wall[0]))
        made, rest = calls(part, rest, estimator)
        return [one for one in made if isinstance(one, Punctuation)]

    assert step("north", 40) == []
    assert step("south", 50) == [Punctuation(0, 1, ORIGIN, ORIGIN + 39 * HOUR)]
    # the north falls silent; until idle has passed windows wait for it
    for _ in range(7):
        wall[0] += HOUR // 2
        assert step("south", 60) == []
    wall[0] += HOUR // 2
    silent = Punctuation(0, 1, ORIGIN + 39 * HOUR, ORIGIN + 69 * HOUR, silent_us=ORIGIN + 39 * HOUR)
    assert step("south", 70) == [silent]
    # it had come past the next window before it fell silent: that one lacks nothing
    assert step("north", 90) == []
    for _ in range(7):
        wall[0] += HOUR // 2
        assert step("south", 70) == []
    wall[0] += HOUR // 2
    (mark,) = step("south", 85)
    assert (mark.until_us, mark.silent_us) == (ORIGIN + 84 * HOUR, None)


@pytest.mark.parametrize("came", [None, -50, 50])
def test_readings_of_a_step_that_begins_over_a_day_after_they_came_are_rejects(came):
    # an instant of a step that has begun by then counts, and the clock that is behind decides nothing
    latest = 36 if came is None or came < 8 else 78
    hours = [-100, 7, latest - 1, latest, 87_600, latest]
    frame = pl.DataFrame({"series": list("aaabbb"), "time": [ORIGIN + one * HOUR for one in hours], "value": [1.0] * 6})
    taken = SourceBatch("x", settled=True, batches=tuple(batches(frame, 6)), rows=6, latest_us=ORIGIN + 87_600 * HOUR)
    found: list[list[Any]] = []
    # where the windows are not known, it is not known either when they begin
    for steps in (Steps(ORIGIN, 6 * HOUR), None):
        source = Told()
        source.pieces.append(replace(taken, came_us=None if came is None else ORIGIN + came * HOUR))
        part = ReadPart(source, PollingPolicy(ORIGIN, steps=steps), now=lambda: ORIGIN + 8 * HOUR)
        part.setup()
        made, _ = calls(part, part.initial_restriction(0), Estimator())
        found.append([getattr(one, "value", one) for one in made if not isinstance(one, Punctuation)])
    (rejected, kept), (all_kept,) = found
    reject = {"reason": "ahead", "source": "(after decoding)", "position": -1, "size": None}
    assert rejected.to_pylist() == [reject] * 3
    assert kept.batch.column("time").cast(pa.int64()).to_pylist() == [ORIGIN + one * HOUR for one in hours[:3]]
    assert all_kept.batch.num_rows == 6
