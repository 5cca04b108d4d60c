"""Calendar windows through the transform: against plain Python over the raw readings, and their noise by length."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl
import pytest

from quiltstream.privacy.mechanisms.histogram import LaplaceHistogram
from quiltstream.privacy.models.classes import MixingBounds
from quiltstream.privacy.quilts.calibration import mqm_approx
from quiltstream.schemas.calendars import local_calendar
from quiltstream.schemas.releases import Release
from quiltstream.transforms.expected_error import remedies
from quiltstream.transforms.plan import make_plan

from .test_histograms import EDGES, batches, publish
from .test_slot_classes import GROUPS, HALF, by_label, job, plainly, readings

LONDON = ZoneInfo("Europe/London")
DAYS = {"size": "day", "start": "2013-10-20", "stop": "2013-10-31"}


def counts_of(frame: pl.DataFrame, row: Release, members: list[str]) -> list[int]:
    found = [0] * 5
    for name, time, value in frame.unique(["series", "time"]).rows():
        if name in members and row.window_start <= time < row.window_stop:
            found[sum(value >= edge for edge in EDGES)] += 1
    return found


def local(instant_us: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(instant_us / 1e6, LONDON).replace(tzinfo=None)


@pytest.mark.parametrize(("size", "numbers"), [("day", [48] * 7 + [50] + [48] * 3), ("week", [336, 338])])
def test_rows_of_days_and_weeks_count_what_lies_between_their_local_midnights(
    tmp_path: Path, size: str, numbers: list[int]
) -> None:
    frame = readings(20131020)
    windows = DAYS | {"size": size, "start": "2013-10-14" if size == "week" else "2013-10-20", "stop": "2013-10-31"}
    rows = sorted(publish(batches(frame, 400), job(tmp_path, (), windows), tmp_path), key=lambda row: row.window_start)
    of_a = [row for row in rows if row.key == "a"]
    assert [row.slots for row in of_a] == numbers
    assert {(row.window_stop - row.window_start) // HALF - row.slots for row in rows} == {0}
    days = 7 if size == "week" else 1
    for at, row in enumerate(of_a):
        first = dt.datetime.fromisoformat(windows["start"]) + dt.timedelta(days=days * at)
        assert (local(row.window_start), local(row.window_stop)) == (first, first + dt.timedelta(days=days))
    for row in rows:
        assert list(row.counts) == counts_of(frame, row, [row.key])
        assert row.total == sum(row.counts)


def test_groups_and_classes_of_slots_are_counted_in_days_of_any_length(tmp_path: Path) -> None:
    frame, by = readings(20131027), ("hour",)
    rows = publish(batches(frame, 500, GROUPS), job(tmp_path, by, DAYS, group_by="group"), tmp_path)
    assert {row.key for row in rows} == {"north", "south"}
    assert len(rows) == 2 * 11
    for row in rows:
        truth = plainly(frame, row, by, groups=True)
        assert row.classes is not None
        assert row.class_slots is not None
        assert sum(row.class_slots) == row.slots
        assert row.class_slots[1] == (4 if row.slots == 50 else 2)
        for label, counts in by_label(row, row.counts).items():
            assert counts == truth.get(label, [0] * 6)[:5]


def test_noise_for_each_window_alone_is_enough_for_the_longest_month(tmp_path: Path) -> None:
    """The noise is that of the length that needs most, so each window alone loses no more than its own would."""
    windows = {"size": "month", "start": "2013-01-01", "stop": "2014-01-01"}
    plan = make_plan(job(tmp_path, (), windows, privacy={"epsilon": 1.0, "guarantee": "window"}))
    lengths = local_calendar("month", "Europe/London", HALF).lengths
    assert {28 * 48, 31 * 48 - 2, 31 * 48, 30 * 48, 29 * 48} <= set(lengths)
    sigmas = [mqm_approx(MixingBounds(0.01, 0.3), epsilon=1.0, length=length).sigma for length in lengths]
    assert plan.calibration.sigma == max(sigmas)
    assert plan.scale == LaplaceHistogram.from_sigma(5, max(sigmas)).scale
    # the noise of a whole window's group grows with its slots
    group = {"epsilon": 1.0, "guarantee": "window", "mechanism": "group-dp"}
    assert make_plan(job(tmp_path, (), windows, privacy=group)).calibration.sigma == max(lengths) == 31 * 48 + 2
    stream = make_plan(job(tmp_path, (), windows))
    assert stream.scale == make_plan(job(tmp_path, (), windows | {"size": "day"})).scale


def test_longer_windows_of_the_calendar_are_offered_where_noise_drowns_days(tmp_path: Path) -> None:
    windows: dict[str, Any] = {"size": "day", "start": "2013-01-01", "stop": "2014-01-01"}
    one = job(tmp_path, (), windows, roster=None, most_error=0.5)
    texts = [offer.text for offer in remedies(make_plan(one))]
    assert "windows.size: month" in texts
