"""The pieces of the live way: marks, spans, clocks and positions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from apache_beam.pvalue import TaggedOutput

from quiltstream.schemas.readings import READING_SCHEMA
from quiltstream.transforms.common.batches import RecordBatchCoder
from quiltstream.transforms.completeness import (
    Punctuation,
    Steps,
    horizon_of,
    on_record_of,
    punctuation_batch,
    punctuation_of,
    with_horizon,
)
from quiltstream.transforms.sources.arriving_files import ArrivingFiles
from quiltstream.transforms.sources.contract import BEGIN, SourceBatch
from quiltstream.transforms.sources.progress import PartitionState, PartitionTracker, Reach, Restriction, SpanCoder
from quiltstream.transforms.sources.reader import Look, PollingPolicy, ReadPart

from ..test_histograms import ORIGIN, batches
from .streams import HOUR, Estimator, calls, decoder, put, readings, stamped


def test_punctuations_and_horizons_survive_the_coder_and_are_validated():
    mark = Punctuation(1, 3, 5, 9, replayed=True, lost_us=7, silent_us=6)
    coder = RecordBatchCoder()
    assert punctuation_of(coder.decode(coder.encode(punctuation_batch(mark, READING_SCHEMA)))) == mark
    batch = batches(readings(1, seed=1), 10)[0]
    assert punctuation_of(batch) is None
    assert horizon_of(batch) is None
    marked = coder.decode(coder.encode(with_horizon(batch, 77)))
    assert (horizon_of(marked), on_record_of(marked)) == (77, None)
    marked = coder.decode(coder.encode(with_horizon(batch, -77, on_record_us=-99)))
    assert (horizon_of(marked), on_record_of(marked), on_record_of(batch)) == (-77, -99, None)
    assert marked.to_pylist() == batch.to_pylist()
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
    middle = PartitionState("7", 5, latest_us=6, heard_us=8, followed=True)
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
    assert [punctuation_of(one) for one in made if one.num_rows == 0] == [Punctuation(0, 1, ORIGIN, ORIGIN + 4 * HOUR)]
    assert estimator.at == stamped(ORIGIN + 4 * HOUR)
    # some hours ahead: the clock of this machine holds
    put(tmp_path, "2.jsonl", pl.DataFrame({"series": ["a"], "time": [ORIGIN + 15 * HOUR], "value": [1.0]}))
    made, rest = calls(part, rest, estimator)
    assert [punctuation_of(one) for one in made if one.num_rows == 0] == [
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


def looked(
    part: ReadPart,
    before: PartitionState,
    batch: SourceBatch | None,
    sources: dict[str, Reach] | None = None,
    *,
    ended: bool = False,
) -> Look:
    reader: Any = SimpleNamespace(read=lambda: batch, trouble=None, sources=sources, ended=ended)
    return part._look(0, before, reader)


def test_a_source_polled_less_often_than_idle_still_becomes_silent(tmp_path):
    wall = [ORIGIN]
    part = followed(tmp_path, wall, idle_us=HOUR, poll_s=7_200.0)
    after, _ = looked(part, part.initial_restriction(0).start, None).step()
    wall[0] += 2 * HOUR
    after, mark = looked(part, after, None).step()
    assert mark == Punctuation(0, 1, ORIGIN, ORIGIN + HOUR, replayed=False, silent_us=ORIGIN)
    assert after.clock_us == ORIGIN + HOUR


def test_a_punctuation_marks_the_windows_closed_without_a_silent_source():
    wall = [ORIGIN + 100 * HOUR]
    pace = PollingPolicy(ORIGIN, lateness_us=HOUR, idle_us=4 * HOUR)
    part = ReadPart(ArrivingFiles(decoder(), ("x",)), pace, now=lambda: wall[0])
    begun = part.initial_restriction(0).start

    def step(before: PartitionState, source: str, hour: int) -> tuple[PartitionState, Punctuation | None]:
        spoken = said(source, hour, wall[0])
        return looked(part, before, spoken, ends).step()

    ends = {"north": Reach.END, "south": Reach.END}
    after, _ = step(begun, "north", 40)
    after, mark = step(after, "south", 50)
    assert mark == Punctuation(0, 1, ORIGIN, ORIGIN + 39 * HOUR)
    # the north falls silent; until idle has passed windows wait for it
    for _ in range(7):
        wall[0] += HOUR // 2
        after, mark = step(after, "south", 60)
        assert mark is None
    wall[0] += HOUR // 2
    after, mark = step(after, "south", 70)
    assert mark == Punctuation(0, 1, ORIGIN + 39 * HOUR, ORIGIN + 69 * HOUR, silent_us=ORIGIN + 39 * HOUR)
    assert looked(part, after, None, ends).left_out(after) == ("north",)
    # it had come past the next window before it fell silent: that one lacks nothing
    after, _ = step(after, "north", 90)
    for _ in range(9):
        wall[0] += HOUR // 2
        after, mark = step(after, "south", 70)
        assert mark is None
    assert looked(part, after, None, ends).left_out(after) == ("north",)
    after, mark = step(after, "south", 85)
    assert mark is not None
    assert (mark.until_us, mark.silent_us) == (ORIGIN + 84 * HOUR, None)


def test_the_slowest_of_several_silent_sources_determines_the_marked_windows():
    wall = [ORIGIN + 100 * HOUR]
    part = ReadPart(ArrivingFiles(decoder(), ("x",)), PollingPolicy(ORIGIN, idle_us=HOUR), now=lambda: wall[0])
    ends = {"north": Reach.END, "south": Reach.END, "west": Reach.END}
    after, mark = part.initial_restriction(0).start, None
    for source, hour in (("north", 3), ("south", 6), ("west", 2)):
        spoken = said(source, hour, wall[0])
        after, mark = looked(part, after, spoken, ends).step()
    assert mark == Punctuation(0, 1, ORIGIN, ORIGIN + 2 * HOUR)
    for _ in range(4):
        wall[0] += HOUR // 4
        spoken = said("west", 2, wall[0])
        after, mark = looked(part, after, spoken, ends).step()
    spoken = said("west", 9, wall[0])
    _, mark = looked(part, after, spoken, ends).step()
    assert mark == Punctuation(0, 1, ORIGIN + 2 * HOUR, ORIGIN + 9 * HOUR, silent_us=ORIGIN + 3 * HOUR)


def test_windows_closed_without_a_source_without_readings_are_marked_silent():
    wall = [ORIGIN + 100 * HOUR]
    part = ReadPart(ArrivingFiles(decoder(), ("x",)), PollingPolicy(ORIGIN, idle_us=HOUR), now=lambda: wall[0])
    ends = {"north": Reach.END, "south": Reach.END}
    spoken = said("south", 5, wall[0])
    after, mark = looked(part, part.initial_restriction(0).start, spoken, ends).step()
    assert mark is None
    for hours in (6, 7, 8, 9):
        assert mark is None
        wall[0] += HOUR // 4
        after, mark = looked(part, after, replace(spoken, latest_us=ORIGIN + hours * HOUR), ends).step()
    assert mark == Punctuation(0, 1, ORIGIN, ORIGIN + 9 * HOUR, silent_us=ORIGIN)
    # one that has never spoken is told as such, and not as one that fell silent
    assert looked(part, after, None, ends).left_out(after) == ()


def test_the_end_of_a_source_is_not_marked_as_silence():
    wall = [ORIGIN]
    pace = PollingPolicy(ORIGIN, idle_us=HOUR, end_us=ORIGIN + 9 * HOUR)
    part = ReadPart(ArrivingFiles(decoder(), ("x",)), pace, now=lambda: wall[0])
    begun = part.initial_restriction(0).start
    wall[0] += 20 * HOUR
    _, mark = looked(part, begun, None, ended=True).step()
    assert mark == Punctuation(0, 1, ORIGIN, ORIGIN + 9 * HOUR, replayed=True)


@pytest.mark.parametrize("came", [None, -50, 50])
def test_readings_of_a_step_that_begins_over_a_day_after_they_came_are_rejects(came):
    steps = Steps(ORIGIN, 6 * HOUR)
    part = ReadPart(ArrivingFiles(decoder(), ("x",)), PollingPolicy(ORIGIN, steps=steps), now=lambda: ORIGIN + 8 * HOUR)
    part.setup()
    begun = part.initial_restriction(0).start
    # an instant of a step that has begun by then counts, and the clock that is behind decides nothing
    latest = 36 if came is None or came < 8 else 78
    hours = [-100, 7, latest - 1, latest, 87_600, latest]
    frame = pl.DataFrame({"series": list("aaabbb"), "time": [ORIGIN + one * HOUR for one in hours], "value": [1.0] * 6})
    taken = SourceBatch("x", settled=True, batches=tuple(batches(frame, 6)), rows=6, latest_us=ORIGIN + 87_600 * HOUR)
    taken = replace(taken, came_us=None if came is None else ORIGIN + came * HOUR)
    look = looked(part, begun, taken)
    rejected, kept = part._rows(look)
    assert isinstance(rejected, TaggedOutput)
    assert (
        rejected.value.value.to_pylist()
        == [{"reason": "ahead", "source": "(after decoding)", "position": -1, "size": None}] * 3
    )
    assert kept.value.column("time").cast(pa.int64()).to_pylist() == [ORIGIN + one * HOUR for one in hours[:3]]
    # where the windows are not known, it is not known either when they begin
    blind = ReadPart(ArrivingFiles(decoder(), ("x",)), PollingPolicy(ORIGIN), now=lambda: ORIGIN + 8 * HOUR)
    blind.setup()
    (all_kept,) = blind._rows(looked(blind, begun, taken))
    assert all_kept.value.num_rows == 6
