"""The live way, in event time: what is published, when, and what never is."""

from __future__ import annotations

import threading
import time
from typing import Any

import polars as pl
import pytest
from apache_beam.transforms.window import TimestampedValue

from quiltstream.schemas.releases import releases_from_batch
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.store.store import Store
from quiltstream.transforms import PrivateHistograms
from quiltstream.transforms.completeness import Arrived, Punctuation
from quiltstream.transforms.sources.arriving_files import ArrivingFiles
from quiltstream.transforms.sources.reader import PollingPolicy

from ..test_histograms import DAY, ORIGIN, batches, settings
from .streams import (
    GROUPS,
    HOUR,
    NAMES,
    SERIES,
    SLOT,
    as_it_comes,
    decoder,
    follow,
    live_settings,
    on_record,
    play,
    put,
    readings,
    stamped,
    too_late,
    truth,
)

DAILY_WINDOWS = [(d * DAY, d * DAY + DAY) for d in range(4)]
SLIDING = {"size": "2d", "every": "12h", "start": "2013-01-01", "stop": "2013-01-05"}


# in steps of seven hours, batches lie across the ends of windows
@pytest.mark.parametrize(
    ("changes", "windows", "keys", "parts", "step"),
    [
        ({}, DAILY_WINDOWS, SERIES, 3, 7),
        ({"group_by": "group"}, DAILY_WINDOWS, GROUPS, 2, 14),
        ({"windows": SLIDING}, [(h * 24, h * 24 + 2 * DAY) for h in range(5)], SERIES, 3, 7),
        pytest.param({"missing": "state"}, DAILY_WINDOWS, SERIES, 1, 3, marks=pytest.mark.night),
    ],
    ids=["series", "groups", "sliding", "missing"],
)
def test_a_stream_shuffled_within_its_lateness_equals_a_plain_computation(
    tmp_path, changes, windows, keys, parts, step
):
    job = live_settings(tmp_path, **changes)
    frame = readings(4, seed=parts)
    play(as_it_comes(frame, step_us=step * HOUR, lateness_us=6 * HOUR, parts=parts), job)
    expected = truth(frame, windows, keys)
    if "missing" in changes:
        expected = {key: [*counts, DAY - sum(counts)] for key, counts in expected.items()}
    assert on_record(job) == expected


@pytest.mark.night
def test_a_window_that_its_source_did_not_declare_complete_is_never_on_record(tmp_path):
    job = live_settings(tmp_path)
    frame = readings(4, seed=7)
    # the stream breaks off in the third day, and its runner closes every window nevertheless
    play(as_it_comes(frame, step_us=3 * HOUR, lateness_us=0, until_us=ORIGIN + 60 * HOUR), job)
    windows = [(d * DAY, d * DAY + DAY) for d in range(2)]
    assert on_record(job) == truth(frame, windows, SERIES)


@pytest.mark.night
def test_a_window_waits_for_every_partition(tmp_path):
    job = live_settings(tmp_path)
    frame = readings(2, seed=8)
    events = as_it_comes(frame, step_us=3 * HOUR, lateness_us=0, parts=2)
    sent = [one for one in events if not isinstance(one, int)]
    silenced = [
        one
        for one in sent
        if isinstance(one.value, Arrived) or one.value.part == 0 or one.value.until_us <= ORIGIN + 24 * HOUR
    ]
    play(silenced, job)
    assert on_record(job) == truth(frame, [(0, DAY)], SERIES)


@pytest.mark.night
@pytest.mark.parametrize("changes", [{}, {"group_by": "group"}], ids=["series", "groups"])
def test_only_windows_with_possibly_lost_readings_are_marked(tmp_path, changes):
    job = live_settings(tmp_path, **changes)
    end, noon = ORIGIN + 96 * HOUR, ORIGIN + 36 * HOUR
    marks = [
        Punctuation(0, 2, ORIGIN, end, replayed=True),
        # the second part has lost what came before noon of the second day
        Punctuation(1, 2, ORIGIN, ORIGIN + 72 * HOUR, lost_us=noon),
        Punctuation(1, 2, ORIGIN + 72 * HOUR, end, lost_us=noon),
    ]
    play([TimestampedValue(mark, stamped(ORIGIN)) for mark in marks], job)
    with Store(PrivateHistograms(job, noise="none").plan.address, create=True) as store:
        rows = [row for batch in store.releases(job.domain, job.query) for row in releases_from_batch(batch)]
    said = {((row.window_start - ORIGIN) // (24 * HOUR), row.completeness) for row in rows}
    assert said == {(0, "unavailable"), (1, "unavailable"), (2, "replayed"), (3, "replayed")}


@pytest.mark.night
def test_empty_windows_are_recorded_and_the_schedule_determines_the_rows(tmp_path):
    job = live_settings(tmp_path)
    mark = Punctuation(0, 1, ORIGIN, ORIGIN + 4 * 24 * HOUR)
    play([TimestampedValue(mark, stamped(ORIGIN))], job)
    assert on_record(job) == {(d * DAY, name): [0] * 5 for d in range(4) for name in NAMES}


@pytest.mark.night
def test_a_reading_is_late_by_its_own_partitions_watermark(tmp_path):
    job = live_settings(tmp_path)
    frame = readings(1, seed=14)
    end = ORIGIN + 24 * HOUR
    late = frame.filter(pl.col("time") < ORIGIN + 12 * HOUR).with_columns(
        time=pl.col("time") // SLOT * SLOT + SLOT - 1, value=pl.lit(5000.0)
    )
    held: list[TimestampedValue[Any]] = [
        TimestampedValue(Arrived(one, ORIGIN), stamped(ORIGIN)) for one in batches(frame, 500)
    ]
    first, second = (Punctuation(part, 2, ORIGIN, end) for part in range(2))
    held.append(TimestampedValue(first, stamped(ORIGIN)))
    # the runner's watermark is the slowest part's, so the window is still open to it
    held += [TimestampedValue(one.value, stamped(ORIGIN)) for one in too_late(late, end)]
    held.append(TimestampedValue(second, stamped(ORIGIN)))
    play([*held, end], job)
    assert on_record(job) == truth(frame, [(0, DAY)], SERIES)


@pytest.mark.night
def test_an_endless_schedule_needs_a_start(tmp_path):
    job = settings(tmp_path, windows={"size": "1d"})
    with pytest.raises(SettingsError, match=r"windows\.start is missing"):
        play([], job)
    job = live_settings(tmp_path, windows={"size": "1d", "start": "2013-01-01"})
    frame = readings(3, seed=11)
    play(as_it_comes(frame, step_us=6 * HOUR, lateness_us=0), job)
    assert on_record(job) == truth(frame, [(d * DAY, d * DAY + DAY) for d in range(3)], SERIES)


@pytest.mark.night
def test_files_that_arrive_while_the_job_runs_are_read_and_damaged_ones_skipped(tmp_path):
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
    counted = follow(job, feed, PollingPolicy(begin_us=ORIGIN, lateness_us=0, poll_s=0.05, end_us=last, idle_us=None))
    later.join()
    assert end > last
    assert counted["rejected-damaged-source"] == 1
    assert on_record(job) == truth(frame, [(d * DAY, d * DAY + DAY) for d in range(3)], SERIES)


@pytest.mark.night
def test_a_restarted_job_publishes_missing_windows_and_nothing_twice(tmp_path):
    job = live_settings(tmp_path)
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    frame = readings(4, seed=13)
    feed = ArrivingFiles(decoder(), (str(inbox / "*.jsonl"),))
    put(inbox, "1.jsonl", frame.filter(pl.col("time") < ORIGIN + 50 * HOUR))
    follow(job, feed, PollingPolicy(ORIGIN, poll_s=0.05, end_us=ORIGIN + 49 * HOUR))
    first = on_record(job)
    assert set(first) == {(d * DAY, name) for d in range(2) for name in NAMES}
    put(inbox, "2.jsonl", frame.filter(pl.col("time") >= ORIGIN + 50 * HOUR))
    counted = follow(job, feed, PollingPolicy(ORIGIN + 48 * HOUR, poll_s=0.05, end_us=ORIGIN + 95 * HOUR))
    # what is on record and read again is not late
    assert counted["readings-on-record"] == len(frame.filter(pl.col("time") < ORIGIN + 48 * HOUR))
    assert "rejected-late" not in counted
    again = on_record(job)
    assert {key: again[key] for key in first} == first
    assert again == truth(frame, [(d * DAY, d * DAY + DAY) for d in range(3)], SERIES)
