"""Classes of slots: a function of the slot's number and of settings, held against the calendar of Python."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import get_args
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.job import Settings
from quiltstream.schemas.slots import (
    MOST_CELLS,
    SlotClass,
    SlotClasses,
    SlotGrid,
    Window,
    parse_duration,
    parse_instant,
)

MINUTE = 60_000_000
HOURS = SlotGrid(60 * MINUTE, parse_instant("2013-01-01"))
HALVES = SlotGrid(30 * MINUTE, parse_instant("2013-01-01"))
ZONES = ["UTC", "Europe/London", "America/New_York", "Asia/Kolkata", "Asia/Kathmandu", "Australia/Lord_Howe"]
BY = [
    chosen
    for length in (1, 2, 3)
    for chosen in itertools.permutations(get_args(SlotClass), length)
    if not {"weekday", "weekend"} <= set(chosen)
]


def plainly(by: tuple[str, ...], stamp: dt.datetime) -> str:
    """The label of the class of a local time, by the calendar of Python alone."""
    parts = {
        "hour": f"{stamp.hour:02}:00",
        "weekday": stamp.strftime("%a"),
        "weekend": "weekend" if stamp.isoweekday() > 5 else "workday",
        "month": stamp.strftime("%b"),
    }
    return " ".join(parts[name] for name in by)


@pytest.mark.night
@given(st.sampled_from(BY), st.sampled_from(ZONES), st.integers(-400_000, 400_000))
def test_the_class_of_a_slot_is_that_of_the_local_clock_at_its_beginning(by, zone, first):
    classes = SlotClasses(by, zone)
    window = Window(first, first + 30)
    found = [classes.labels[one] for one in classes.of(HALVES, window).tolist()]
    starts = [
        dt.datetime.fromtimestamp(HALVES.time_of(slot) / 1e6, ZoneInfo(zone)) for slot in range(first, first + 30)
    ]
    assert found == [plainly(by, stamp) for stamp in starts]
    assert classes.slots_of(HALVES, window).sum() == 30


def test_without_a_name_all_slots_are_in_one_class():
    one = SlotClasses()
    assert (len(one), one.labels) == (1, ("",))
    assert one.of(HOURS, Window(3, 6)).tolist() == [0, 0, 0]
    assert one.slots_of(HOURS, Window(3, 6)).tolist() == [3]


@pytest.mark.parametrize(
    ("day", "hours", "twice"), [("2013-03-31", 23, -1), ("2013-10-27", 25, 1), ("2013-05-05", 24, 0)]
)
def test_a_doubled_hour_is_in_its_class_twice_and_a_skipped_one_in_none(day, hours, twice):
    """In London the clock skips 01:00 to 02:00 in March and repeats it in October."""
    start = HOURS.slot_at(parse_instant(day, "Europe/London"), "day")
    slots = SlotClasses(("hour",), "Europe/London").slots_of(HOURS, Window(start, start + hours))
    assert slots.tolist() == [1 + twice if hour == 1 else 1 for hour in range(24)]


@pytest.mark.parametrize("year", [1, 1500, 9998, 200_000])
def test_slots_beyond_the_calendar_have_a_class(year):
    start = round((year - 1970) * 365.2425 * 24)
    counted = SlotClasses(("weekday", "hour"), "Europe/London").slots_of(HOURS, Window(start, start + 7 * 24))
    assert counted.sum() == 168


def job(**changes):
    document = {
        "slots": {"interval": "30min", "origin": "2013-01-01"},
        "states": {"edges": [250, 500], "unit": "W"},
        "model": {"pi_min": 0.01, "gap": 0.3},
        "windows": {"size": "14d"},
        "privacy": {"epsilon": 1.0},
        "query": "load",
        "domain": "homes",
    }
    return Settings.parse({**document, **changes})


@pytest.mark.parametrize(("by", "classes"), [("hour", 24), (["weekend", "hour"], 48), (["month"], 12), ([], 1)])
def test_settings_name_classes_by_a_name_or_a_list(by, classes):
    found = job(by=by, slots={"interval": "30min", "timezone": "Europe/London"}).classes
    assert (len(found), found.timezone) == (classes, "Europe/London")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"by": "kwh"},
            r"by names 'kwh', and slots are told apart by hour, weekday, weekend, month of the public clock",
        ),
        ({"by": ["hour", "household"]}, "by names 'household'.*never by data"),
        ({"by": ["hour", "hour"]}, "by names 'hour' twice: name it once"),
        ({"by": ["weekday", "weekend"]}, "by names weekday and weekend.*leave weekend out"),
        ({"by": "hour", "slots": {"interval": "2h"}}, "by hour: slots of 2h do not divide an hour"),
        (
            {"by": "hour", "slots": {"interval": "1h", "origin": "2013-01-01T00:20"}},
            "by hour: slots of 1h do not fill an hour of UTC from its beginning.*slots.origin",
        ),
        # its clock moves by half an hour
        ({"by": "hour", "slots": {"interval": "1h", "timezone": "Australia/Lord_Howe"}}, "of Australia/Lord_Howe"),
        # in summer such a slot begins at one o'clock
        ({"by": "month", "slots": {"interval": "1d", "timezone": "Europe/London"}}, "a day of Europe/London"),
        (
            {"by": ["month", "weekday", "hour"]},
            f"2016 classes of 3 states are 6,048 cells in a histogram, and {MOST_CELLS:,} are the most",
        ),
    ],
)
def test_classes_that_cannot_work_are_refused_with_the_next_step(changes, said):
    with pytest.raises(SettingsError, match=said):
        job(**changes)


def test_slots_are_aligned_if_they_are_so_while_the_schedule_lasts():
    winter = {"size": "14d", "start": "2013-01-01", "stop": "2013-03-01"}
    slots = {"interval": "1d", "timezone": "Europe/London", "origin": "2013-01-01"}
    assert len(job(by="weekday", slots=slots, windows=winter).classes) == 7
    with pytest.raises(SettingsError, match="a day of Europe/London"):
        job(by="weekday", slots=slots, windows={**winter, "stop": "2013-05-01T00:00Z"})


@pytest.mark.parametrize("zone", ["America/St_Johns", "Asia/Gaza"])
def test_classes_change_at_their_borders_where_clocks_change_within_an_hour(zone: str) -> None:
    """In St John's clocks changed at one minute past midnight until 2011, in Gaza in 2011."""
    year = {"America/St_Johns": 2010, "Asia/Gaza": 2011}[zone]
    first, stop = (parse_instant(f"{one}-01-01") for one in (year, year + 1))
    minutes, hours = SlotGrid(parse_duration("1min")), SlotClasses(("hour",), zone)
    window = Window(minutes.slots_of(first), minutes.slots_of(stop))
    borders = np.flatnonzero(np.diff(hours.of(minutes, window))) + 1 + window.start
    assert np.array_equal(hours.borders(minutes, window.start, window.stop), borders)
