"""The live way, in event time: what is published, when, and what never is."""

from __future__ import annotations

import json
import random
import threading
import time
from pathlib import Path
from typing import Any

import apache_beam as beam
import polars as pl
import pyarrow as pa
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.testing import test_stream
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from quiltstream.schemas.readings import READING_SCHEMA, RejectReason
from quiltstream.schemas.releases import releases_from_batch
from quiltstream.schemas.settings import Readings, Settings, SettingsError
from quiltstream.store.records import Store
from quiltstream.transforms import PrivateHistograms
from quiltstream.transforms.coders import RecordBatchCoder
from quiltstream.transforms.decode import FileDecoder
from quiltstream.transforms.feeds import BEGIN
from quiltstream.transforms.file_feed import ArrivingFiles
from quiltstream.transforms.live import Pace, Progress, ReadLive, ReadPart, Span, SpanCoder, SpanTracker
from quiltstream.transforms.marks import Mark, horizon_of, is_backlog, mark_batch, mark_of, with_horizon

from .test_histograms import DAY, EDGES, ORIGIN, batches, settings, write
from .truth import cells, histograms

HOUR = 3_600_000_000
SLOT = 1_800_000_000
NAMES = ["a", "b", "c", "d", "e"]


def live_settings(folder: Path, **changes: Any) -> Settings:
    (folder / "roster.csv").write_text("series,group\n" + "".join(f"{n},{'x' if n < 'c' else 'y'}\n" for n in NAMES))
    document: dict[str, Any] = {
        "windows": {"size": "1d", "start": "2013-01-01", "stop": "2013-01-05"},
        "roster": str(folder / "roster.csv"),
    }
    document.update(changes)
    return settings(folder, **document)


def readings(days: int, seed: int, names: list[str] = NAMES) -> pl.DataFrame:
    """Half-hourly readings with some cells missing and some read twice, shuffled."""
    print("seed", seed)  # noqa: T201 - a random test says its seed
    source = random.Random(seed)  # noqa: S311 - test data
    rows = [
        (name, ORIGIN + slot * SLOT + source.randrange(SLOT), source.uniform(0, 3000))
        for name in names
        for slot in range(days * DAY)
        for _ in range(source.choice([0, 1, 1, 1, 2]))
    ]
    source.shuffle(rows)
    return pl.DataFrame(rows, schema={"series": pl.Utf8, "time": pl.Int64, "value": pl.Float64}, orient="row")


def truth(frame: pl.DataFrame, windows: list[tuple[int, int]], keys: dict[str, list[str]]) -> dict[Any, list[int]]:
    found = cells(frame, interval_us=SLOT, origin_us=ORIGIN, edges=EDGES)
    return histograms(found, windows=windows, keys=keys, bins=len(EDGES) + 1)


def on_record(job: Settings) -> dict[tuple[int, str], list[int]]:
    with Store(PrivateHistograms(job, noise="none").plan.address) as store:
        rows = [row for batch in store.releases(job.domain, job.query) for row in releases_from_batch(batch)]
        assert len({row.release_id for row in rows}) == len(rows)
        return {((row.window_start - ORIGIN) // SLOT, row.key): list(row.counts) for row in rows}


def stamped(instant_us: int) -> Timestamp:
    return Timestamp(micros=instant_us // 1000 * 1000)


def as_it_comes(
    frame: pl.DataFrame, *, step_us: int, lateness_us: int, parts: int = 1, until_us: int | None = None
) -> list[Any]:
    """What a source of some parts would send: readings in pieces by event time, and marks that lag behind."""
    events: list[Any] = []
    end = int(max(frame["time"].to_list())) + 1 if until_us is None else until_us
    clock = dict.fromkeys(range(parts), ORIGIN)
    for begin in range(ORIGIN, end + lateness_us + step_us, step_us):
        for part in range(parts):
            mine = frame.filter(
                (pl.col("time") >= begin)
                & (pl.col("time") < begin + step_us)
                & (pl.col("series").str.to_integer(base=36) % parts == part)
            )
            at = clock[part]
            found = batches(mine, 64) if len(mine) else []
            events += [TimestampedValue(with_horizon(batch, at), stamped(at)) for batch in found]
            reached = max(clock[part], begin + step_us - lateness_us)
            mark = Mark(part, parts, clock[part], reached)
            events.append(TimestampedValue(mark_batch(mark, READING_SCHEMA), stamped(clock[part])))
            clock[part] = reached
        events.append(min(clock.values()))
    return events


def streamed(events: list[Any]) -> Any:
    stream, reached = test_stream.TestStream().advance_watermark_to(stamped(ORIGIN)), ORIGIN
    for event in events:
        if not isinstance(event, int):
            stream = stream.add_elements([event])
        elif event > reached:
            stream, reached = stream.advance_watermark_to(stamped(event)), event
    return stream.advance_watermark_to_infinity()


def play(events: list[Any], job: Settings) -> None:
    with beam.Pipeline(runner=BundleBasedDirectRunner(), options=PipelineOptions(streaming=True)) as pipeline:
        _ = pipeline | streamed(events) | PrivateHistograms(job, noise="none")


SERIES = {name: [name] for name in NAMES}
GROUPS = {"x": ["a", "b"], "y": ["c", "d", "e"]}


@pytest.mark.parametrize(
    ("changes", "windows", "keys"),
    [
        ({}, [(d * DAY, d * DAY + DAY) for d in range(4)], SERIES),
        ({"group_by": "group"}, [(d * DAY, d * DAY + DAY) for d in range(4)], GROUPS),
        (
            {"windows": {"size": "2d", "every": "12h", "start": "2013-01-01", "stop": "2013-01-05"}},
            [(h * 24, h * 24 + 2 * DAY) for h in range(5)],
            SERIES,
        ),
        ({"missing": "state"}, [(d * DAY, d * DAY + DAY) for d in range(4)], SERIES),
    ],
    ids=["series", "groups", "sliding", "missing"],
)
# in steps of seven hours, batches lie across the ends of windows
@pytest.mark.parametrize(("parts", "step"), [(1, 3), (3, 7)])
def test_a_stream_shuffled_within_its_lateness_gives_what_a_plain_computation_gives(
    tmp_path, changes, windows, keys, parts, step
):
    job = live_settings(tmp_path, **changes)
    frame = readings(4, seed=parts)
    play(as_it_comes(frame, step_us=step * HOUR, lateness_us=6 * HOUR, parts=parts), job)
    expected = truth(frame, windows, keys)
    if "missing" in changes:
        expected = {key: [*counts, DAY - sum(counts)] for key, counts in expected.items()}
    assert on_record(job) == expected


def test_a_window_that_its_source_did_not_declare_complete_is_never_on_record(tmp_path):
    job = live_settings(tmp_path)
    frame = readings(4, seed=7)
    # the stream breaks off in the third day, and its runner closes every window nevertheless
    play(as_it_comes(frame, step_us=3 * HOUR, lateness_us=0, until_us=ORIGIN + 60 * HOUR), job)
    windows = [(d * DAY, d * DAY + DAY) for d in range(2)]
    assert on_record(job) == truth(frame, windows, SERIES)


def test_a_window_waits_for_every_part(tmp_path):
    job = live_settings(tmp_path)
    frame = readings(2, seed=8)
    events = as_it_comes(frame, step_us=3 * HOUR, lateness_us=0, parts=2)
    marks = [mark_of(one.value) for one in events if not isinstance(one, int)]
    silenced = [
        one
        for one, mark in zip([one for one in events if not isinstance(one, int)], marks, strict=True)
        if mark is None or mark.part == 0 or mark.until_us <= ORIGIN + 24 * HOUR
    ]
    play(silenced, job)
    assert on_record(job) == truth(frame, [(0, DAY)], SERIES)


def test_empty_windows_are_on_record_too_and_the_number_of_rows_is_the_schedules(tmp_path):
    job = live_settings(tmp_path)
    mark = Mark(0, 1, ORIGIN, ORIGIN + 4 * 24 * HOUR)
    play([TimestampedValue(mark_batch(mark, READING_SCHEMA), stamped(ORIGIN))], job)
    assert on_record(job) == {(d * DAY, name): [0] * 5 for d in range(4) for name in NAMES}


def test_late_readings_are_dropped_and_counted_by_the_sources_own_clock(tmp_path):
    job = live_settings(tmp_path)
    frame = readings(4, seed=9)
    noon = ORIGIN + 12 * HOUR
    late = frame.filter(pl.col("time") < noon).with_columns(value=pl.lit(5000.0))
    events = as_it_comes(frame, step_us=3 * HOUR, lateness_us=0)
    # the first morning comes again with other values: an hour, a day and two days after its window has closed
    for behind in (1, 24, 48):
        closed = ORIGIN + (24 + behind) * HOUR
        at = next(i for i, one in enumerate(events) if isinstance(one, int) and one >= closed)
        events[at:at] = [TimestampedValue(with_horizon(batch, closed), stamped(closed)) for batch in batches(late, 500)]
    out = tmp_path / "rejected"
    out.mkdir()
    with beam.Pipeline(runner=BundleBasedDirectRunner(), options=PipelineOptions(streaming=True)) as pipeline:
        published = pipeline | streamed(events) | PrivateHistograms(job, noise="none")
        _ = published.rejected | beam.Map(write, str(out))
    assert on_record(job) == truth(frame, [(d * DAY, d * DAY + DAY) for d in range(4)], SERIES)
    reasons = [row["reason"] for path in out.iterdir() for row in pa.ipc.open_file(path).read_all().to_pylist()]
    assert reasons == [RejectReason.LATE.value] * 3 * len(late)


def test_a_reading_is_late_by_its_own_parts_clock_also_while_another_part_holds_the_window(tmp_path):
    job = live_settings(tmp_path)
    frame = readings(1, seed=14)
    end = ORIGIN + 24 * HOUR
    late = frame.filter(pl.col("time") < ORIGIN + 12 * HOUR).with_columns(
        time=pl.col("time") // SLOT * SLOT + SLOT - 1, value=pl.lit(5000.0)
    )
    on_time = [with_horizon(batch, ORIGIN) for batch in batches(frame, 500)]
    held = [TimestampedValue(one, stamped(ORIGIN)) for one in on_time]
    first, second = (mark_batch(Mark(part, 2, ORIGIN, end), READING_SCHEMA) for part in (0, 1))
    held.append(TimestampedValue(first, stamped(ORIGIN)))
    # the runner's watermark is the slowest part's, so the window is still open to it
    held += [TimestampedValue(with_horizon(one, end), stamped(ORIGIN)) for one in batches(late, 500)]
    held.append(TimestampedValue(second, stamped(ORIGIN)))
    play([*held, end], job)
    assert on_record(job) == truth(frame, [(0, DAY)], SERIES)


def test_every_bundle_twice_and_every_mark_twice_changes_nothing(tmp_path):
    job = live_settings(tmp_path)
    frame = readings(4, seed=10)
    events = as_it_comes(frame, step_us=6 * HOUR, lateness_us=0, parts=2)
    twice = [again for one in events for again in ([one] if isinstance(one, int) else [one, one])]
    play(twice, job)
    first = on_record(job)
    assert first == truth(frame, [(d * DAY, d * DAY + DAY) for d in range(4)], SERIES)
    play(twice, job)
    assert on_record(job) == first


def test_an_endless_schedule_needs_a_start(tmp_path):
    job = settings(tmp_path, windows={"size": "1d"})
    with pytest.raises(SettingsError, match=r"windows\.start is missing"):
        play([], job)
    job = live_settings(tmp_path, windows={"size": "1d", "start": "2013-01-01"})
    frame = readings(3, seed=11)
    play(as_it_comes(frame, step_us=6 * HOUR, lateness_us=0), job)
    assert on_record(job) == truth(frame, [(d * DAY, d * DAY + DAY) for d in range(3)], SERIES)


# Arriving files


def decoder(format_: str = "jsonl") -> FileDecoder:
    return FileDecoder(format_, ",", Readings(series="series", time="time", value="value", time_unit="us"))  # type: ignore[arg-type]


def put(folder: Path, name: str, frame: pl.DataFrame) -> None:
    """A file that appears whole."""
    part = folder / f".{name}.part"
    part.write_text("".join(json.dumps(row) + "\n" for row in frame.to_dicts()))
    part.rename(folder / name)


def follow(job: Settings, feed: ArrivingFiles, pace: Pace) -> dict[str, int]:
    pipeline = beam.Pipeline(runner=FnApiRunner())
    decoded: Any = pipeline | ReadLive(feed, pace)
    _ = decoded.readings | PrivateHistograms(job, noise="none")
    result = pipeline.run()
    result.wait_until_finish()
    return {c.key.metric.name: c.committed for c in result.metrics().query()["counters"]}


def test_files_that_arrive_while_the_job_runs_are_read_and_a_damaged_one_is_passed_over(tmp_path):
    job = live_settings(tmp_path)
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    frame = readings(4, seed=12)
    days = [frame.filter((pl.col("time") - ORIGIN) // (24 * HOUR) == day) for day in range(4)]
    put(inbox, "a-second.jsonl", days[1])
    put(inbox, "b-first.jsonl", days[0])
    (inbox / "half.jsonl.gz").write_bytes(b"\x1f\x8b\x08\x00 half")

    def arrive() -> None:
        for number in (2, 3):
            time.sleep(0.3)
            put(inbox, f"day-{number}.jsonl", days[number])

    later = threading.Thread(target=arrive)
    later.start()
    feed = ArrivingFiles(decoder(), (str(inbox / "*.jsonl*"),))
    end = ORIGIN + 4 * 24 * HOUR
    last = max(days[3]["time"].to_list())
    # the clock stays behind the last reading: let the end be what the data reach
    counted = follow(job, feed, Pace(begin_us=ORIGIN, lateness_us=0, poll_s=0.05, end_us=last, idle_us=None))
    later.join()
    assert end > last
    assert counted["rejected-damaged-source"] == 1
    assert on_record(job) == truth(frame, [(d * DAY, d * DAY + DAY) for d in range(3)], SERIES)


def test_a_job_that_begins_again_from_nothing_publishes_what_is_missing_and_nothing_twice(tmp_path):
    job = live_settings(tmp_path)
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    frame = readings(4, seed=13)
    feed = ArrivingFiles(decoder(), (str(inbox / "*.jsonl"),))
    put(inbox, "1.jsonl", frame.filter(pl.col("time") < ORIGIN + 50 * HOUR))
    follow(job, feed, Pace(ORIGIN, poll_s=0.05, end_us=ORIGIN + 49 * HOUR))
    first = on_record(job)
    assert set(first) == {(d * DAY, name) for d in range(2) for name in NAMES}
    put(inbox, "2.jsonl", frame.filter(pl.col("time") >= ORIGIN + 50 * HOUR))
    counted = follow(job, feed, Pace(ORIGIN + 48 * HOUR, poll_s=0.05, end_us=ORIGIN + 95 * HOUR))
    # what is on record and read again is not late
    assert counted["readings-on-record"] == len(frame.filter(pl.col("time") < ORIGIN + 48 * HOUR))
    assert "rejected-late" not in counted
    again = on_record(job)
    assert {key: again[key] for key in first} == first
    assert again == truth(frame, [(d * DAY, d * DAY + DAY) for d in range(3)], SERIES)


# The pieces


def test_marks_and_horizons_survive_the_coder_and_refuse_nonsense():
    mark = Mark(1, 3, 5, 9, replayed=True)
    coder = RecordBatchCoder()
    assert mark_of(coder.decode(coder.encode(mark_batch(mark, READING_SCHEMA)))) == mark
    batch = batches(readings(1, seed=1), 10)[0]
    assert mark_of(batch) is None
    assert horizon_of(batch) is None
    marked = coder.decode(coder.encode(with_horizon(batch, 77)))
    assert (horizon_of(marked), is_backlog(marked)) == (77, False)
    marked = with_horizon(batch, -77, backlog=True)
    assert (horizon_of(marked), is_backlog(marked), is_backlog(batch)) == (-77, True, False)
    assert marked.to_pylist() == batch.to_pylist()
    with pytest.raises(ValueError, match="part 3 is not one of the 3 parts"):
        Mark(3, 3, 0, 1)
    with pytest.raises(ValueError, match="cannot go back from 2 to 1"):
        Mark(0, 1, 2, 1)


def test_a_span_splits_after_its_last_claim_and_nowhere_else():
    begin = Progress(BEGIN, 0)
    tracker = SpanTracker(Span(begin))
    assert not tracker.is_bounded()
    with pytest.raises(ValueError, match="without handing the rest"):
        tracker.check_done()
    middle = Progress("7", 5, latest_us=6, heard_us=8, followed=True)
    assert tracker.try_claim(middle)
    assert tracker.try_split(0.5) is None
    assert tracker.try_split(0) == (Span(begin, middle), Span(middle))
    assert tracker.is_bounded()
    assert not tracker.try_claim(Progress("8", 9))
    tracker.check_done()
    ended = SpanTracker(Span(middle))
    assert ended.try_claim(Progress("9", 9, over=True))
    assert ended.try_split(0) is None
    ended.check_done()
    coder = SpanCoder()
    for span in (Span(begin), Span(begin, middle)):
        assert coder.decode(coder.encode(span)) == span
    assert coder.is_deterministic()


class Estimator:
    """A watermark that must never go back."""

    def __init__(self) -> None:
        self.at: Timestamp | None = None

    def current_watermark(self) -> Timestamp | None:
        return self.at

    def set_watermark(self, at: Timestamp) -> None:
        assert self.at is None or at >= self.at
        self.at = at


class Tracker(SpanTracker):
    """Hands the rest back as a runner would."""

    rest: Span | None = None

    def defer_remainder(self, _pause: Any) -> None:
        split = self.try_split(0)
        assert split is not None
        self.rest = split[1]


def calls(part: ReadPart, span: Span, estimator: Estimator) -> tuple[list[Any], Span | None]:
    tracker = Tracker(span)
    made = [getattr(one, "value", one) for one in part.process(0, tracker, estimator)]
    tracker.check_done()
    return made, tracker.rest


def test_a_clock_follows_the_data_less_the_lateness_but_never_a_stamp_of_the_future(tmp_path):
    wall = [ORIGIN + 10 * HOUR]
    feed = ArrivingFiles(decoder(), (str(tmp_path / "*.jsonl"),))
    part = ReadPart(feed, Pace(ORIGIN, lateness_us=HOUR, idle_us=2 * HOUR), now=lambda: wall[0])
    part.setup()
    estimator = Estimator()
    made, rest = calls(part, part.initial_restriction(0), estimator)
    assert made == []
    assert estimator.at == stamped(ORIGIN)
    put(tmp_path, "1.jsonl", pl.DataFrame({"series": ["a"], "time": [ORIGIN + 5 * HOUR], "value": [1.0]}))
    assert rest is not None
    made, rest = calls(part, rest, estimator)
    assert [mark_of(one) for one in made if one.num_rows == 0] == [Mark(0, 1, ORIGIN, ORIGIN + 4 * HOUR)]
    assert estimator.at == stamped(ORIGIN + 4 * HOUR)
    # some hours ahead: the clock of this machine holds
    put(tmp_path, "2.jsonl", pl.DataFrame({"series": ["a"], "time": [ORIGIN + 15 * HOUR], "value": [1.0]}))
    assert rest is not None
    made, rest = calls(part, rest, estimator)
    assert [mark_of(one) for one in made if one.num_rows == 0] == [Mark(0, 1, ORIGIN + 4 * HOUR, ORIGIN + 9 * HOUR)]
    # and the machine's clock jumping back moves nothing
    wall[0] -= 9 * HOUR
    assert rest is not None
    made, rest = calls(part, rest, estimator)
    assert made == []
    assert estimator.at == stamped(ORIGIN + 9 * HOUR)


def test_a_meter_whose_clock_jumped_moves_no_clock_and_the_others_of_its_file_do(tmp_path):
    now = ORIGIN + 100 * HOUR
    feed = ArrivingFiles(decoder(), (str(tmp_path / "*.jsonl"),))
    part = ReadPart(feed, Pace(ORIGIN, lateness_us=HOUR), now=lambda: now)
    part.setup()
    estimator = Estimator()
    put(tmp_path, "1.jsonl", pl.DataFrame({"series": ["a"], "time": [ORIGIN + 87_600 * HOUR], "value": [1.0]}))
    made, rest = calls(part, part.initial_restriction(0), estimator)
    assert [mark_of(one) for one in made] == [None]
    assert estimator.at == stamped(ORIGIN)
    times = [ORIGIN + 87_600 * HOUR, ORIGIN + 50 * HOUR]
    put(tmp_path, "2.jsonl", pl.DataFrame({"series": ["a", "b"], "time": times, "value": [1.0, 1.0]}))
    assert rest is not None
    made, rest = calls(part, rest, estimator)
    # although this machine's clock says 100 hours: windows that "b" may still fill are not closed
    assert [mark_of(one) for one in made if one.num_rows == 0] == [
        Mark(0, 1, ORIGIN, ORIGIN + 49 * HOUR, replayed=False)
    ]


def test_a_silent_source_holds_its_windows_until_idle_has_passed(tmp_path):
    wall = [ORIGIN]
    feed = ArrivingFiles(decoder(), (str(tmp_path / "*.jsonl"),))
    part = ReadPart(feed, Pace(ORIGIN, lateness_us=HOUR, idle_us=3 * HOUR), now=lambda: wall[0])
    part.setup()
    estimator = Estimator()
    _, rest = calls(part, part.initial_restriction(0), estimator)
    for hours, reached in ((2, 0), (3, 0), (4, 0), (6, 2)):
        wall[0] = ORIGIN + hours * HOUR
        assert rest is not None
        _, rest = calls(part, rest, estimator)
        assert estimator.at == stamped(ORIGIN + reached * HOUR)


def test_the_silence_of_a_source_that_is_away_does_not_count(tmp_path):
    wall = [ORIGIN]
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    part = ReadPart(
        ArrivingFiles(decoder(), (str(inbox / "*.jsonl"),)), Pace(ORIGIN, idle_us=3 * HOUR), now=lambda: wall[0]
    )
    part.setup()
    estimator = Estimator()
    _, rest = calls(part, part.initial_restriction(0), estimator)
    inbox.rename(tmp_path / "away")
    for hours in (2, 4, 6):
        wall[0] = ORIGIN + hours * HOUR
        assert rest is not None
        _, rest = calls(part, rest, estimator)
    (tmp_path / "away").rename(inbox)
    for hours, reached in ((8, 0), (10, 7)):
        wall[0] = ORIGIN + hours * HOUR
        assert rest is not None
        _, rest = calls(part, rest, estimator)
        assert estimator.at == stamped(ORIGIN + reached * HOUR)


def test_the_reasons_of_a_live_source_have_words():
    assert all(reason.text for reason in RejectReason)


def test_the_position_of_a_folder_forgets_files_that_are_gone(tmp_path):
    feed = ArrivingFiles(decoder(), (str(tmp_path / "*.jsonl"),))
    one = pl.DataFrame({"series": ["a"], "time": [ORIGIN], "value": [1.0]})
    put(tmp_path, "1.jsonl", one)
    put(tmp_path, "2.jsonl", one)
    reader = feed.reader(0, BEGIN)
    first, second = reader.read(), reader.read()
    assert first is not None
    assert second is not None
    assert (first.settled, second.settled) == (False, True)
    assert reader.read() is None
    (tmp_path / "1.jsonl").unlink()
    put(tmp_path, "3.jsonl", one)
    again = feed.reader(0, second.position)
    third = again.read()
    assert third is not None
    assert len(third.position) == len(second.position)
    assert again.read() is None


def test_batches_of_a_live_source_keep_their_schema():
    batch = with_horizon(batches(readings(1, seed=3), 10)[0], 5)
    assert batch.schema.remove_metadata() == READING_SCHEMA
    assert isinstance(batch, pa.RecordBatch)
