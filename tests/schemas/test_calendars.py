"""Calendar windows against a walk through a year of slots by the wall clock of datetime."""

from __future__ import annotations

import datetime as dt
import pickle
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import yaml

from quiltstream.schemas.calendars import UNITS, Calendar, Unit, local_calendar, shifts_of
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.job import EXAMPLE, Settings
from quiltstream.schemas.slots import Schedule, SlotGrid, Window, parse_instant

from ..present import present

HALF = 1_800_000_000
GRID = SlotGrid(HALF, parse_instant("2000-01-01"))
ZONES = "Europe/London", "America/New_York", "Australia/Lord_Howe"

#: Their clocks skip or repeat midnight, or change by the hour at other times of the day.
ODD_ZONES = ("America/Sao_Paulo", 2017), ("Asia/Beirut", 2013), ("Africa/Cairo", 2014), ("America/Havana", 2012)

NAME_OF = {
    "day": lambda day: day,
    "week": lambda day: day - dt.timedelta(days=day.weekday()),
    "month": lambda day: day.replace(day=1),
}


def walked(unit: str, zone: str, start: int, stop: int) -> list[Window]:
    """The whole days, weeks or months between two slots: each slot is asked which local day it begins in."""
    found: list[tuple[dt.date, int]] = []
    for slot in range(start - 1, stop + 1):
        stamp = dt.datetime.fromtimestamp(GRID.time_of(slot) / 1e6, ZoneInfo(zone))
        name = NAME_OF[unit](stamp.date())
        if not found or found[-1][0] != name:
            found.append((name, slot))
    starts = [slot for _, slot in found[1:]]
    return [Window(one, other) for one, other in pairwise(starts)]


def schedule_of(unit: Unit, zone: str, first: str, last: str) -> Schedule:
    calendar = local_calendar(unit, zone, HALF, GRID.origin_us)
    return Schedule.of_calendar(calendar, *(GRID.slots_of(parse_instant(one)) for one in (first, last)))


@pytest.mark.night
@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("unit", UNITS)
def test_a_year_of_calendar_windows_is_that_of_the_wall_clock(unit: Unit, zone: str) -> None:
    made = schedule_of(unit, zone, "2012-12-31T05:00Z", "2014-01-02T03:00Z")
    assert made.stop is not None
    truth = walked(unit, zone, present(made.start), made.stop)
    assert list(made.windows()) == truth
    assert (len(made), made.first, made.covered) == (len(truth), truth[0].start, Window(truth[0].start, truth[-1].stop))
    assert made.ends == tuple(one.stop for one in truth)
    if unit == "day":
        # Lord Howe Island moves its clock by half an hour
        other = {47, 49} if zone == "Australia/Lord_Howe" else {46, 50}
        assert {len(one) for one in truth} == {48} | other
    for at, window in enumerate(truth):
        assert made.contains(window)
        assert made.window_at(window.start) == window
        assert made.start_before(window.stop) == window.start
        assert made.start_after(window.start) == made.start_behind(window.stop) == window.stop
        assert [made.ended_by(slot) for slot in (window.stop - 1, window.stop)] == [at, at + 1]
        assert [made.is_end(slot) for slot in (window.stop - 1, window.stop)] == [False, True]
    assert not made.contains(Window(truth[0].start, truth[1].stop))
    assert not made.contains(Window(truth[0].start + 1, truth[0].stop))
    slots = np.arange(truth[0].start, truth[-1].stop)
    numbers = made.number_of(slots)
    assert numbers.tolist() == [made.number_of(int(slot)) for slot in slots]
    assert np.bincount(numbers - numbers[0]).tolist() == [len(one) for one in truth]
    assert (made.start_of(numbers) <= slots).all()
    assert (slots < made.over_at(numbers)).all()


@pytest.mark.night
@pytest.mark.parametrize(("zone", "year"), ODD_ZONES)
def test_a_day_whose_midnight_is_skipped_begins_where_the_clock_does(zone: str, year: int) -> None:
    made = schedule_of("day", zone, f"{year}-01-02", f"{year}-12-30")
    assert made.stop is not None
    assert list(made.windows()) == walked("day", zone, present(made.start), made.stop)


def test_an_endless_calendar_extends_to_the_end_of_its_years() -> None:
    calendar = local_calendar("month", "Europe/London", HALF, GRID.origin_us)
    made = Schedule.of_calendar(calendar, 0)
    windows = list(made.windows())
    assert (windows[0].start, len(windows), windows[-1].stop) == (0, 100 * 12, calendar.end)
    with pytest.raises(ValueError, match=r"windows\.start is outside of the years 1970 to 2099"):
        Schedule.of_calendar(calendar, -31 * 366 * 48)


def test_a_calendar_is_pickled_and_recorded_as_a_few_numbers() -> None:
    calendar = local_calendar("day", "Europe/London", HALF, GRID.origin_us)
    assert calendar.longest == 50
    assert len(pickle.dumps(calendar)) < 5_000
    assert pickle.loads(pickle.dumps(calendar)) == calendar == Calendar.from_dict(calendar.to_dict())
    for wrong in ({"unit": "year"}, {"shifts": []}, {"shifts": [[5, 0], [5, 3600]]}):
        with pytest.raises(ValueError, match="must"):
            Calendar.from_dict(calendar.to_dict() | wrong)


def test_another_edition_of_the_zone_data_is_detected_by_its_first_window() -> None:
    made = schedule_of("day", "Europe/London", "2013-01-01", "2014-01-01")
    assert made.calendar is not None
    shifts = shifts_of("Europe/London")
    day = (dt.date(2013, 10, 28) - dt.date(1970, 1, 1)).days
    kept = tuple(one for one in shifts if one[0] != day)  # the clock stays at summer time
    assert len(kept) == len(shifts) - 1
    other = Schedule.of_calendar(Calendar("day", "Europe/London", kept, HALF, GRID.origin_us), made.start, made.stop)
    assert made.difference(other) == other.difference(made) == "2013-10-27"
    summer = schedule_of("day", "Europe/London", "2013-04-01", "2013-10-01")
    assert summer.difference(other) is None


@pytest.mark.night
@pytest.mark.parametrize(
    ("zone", "interval", "first", "message"),
    [
        ("Australia/Lord_Howe", "1h", "2013-01-01T13:00Z", "2013-04-07T13:30:00Z does not begin with a slot"),
        ("Europe/London", "7h", "2013-01-01", "does not begin with a slot"),
        ("Asia/Kolkata", "1h", "2013-01-01", "2013-01-01T18:30:00Z does not begin with a slot"),
        ("Pacific/Apia", "30min", "2011-12-01", "the day 2011-12-30 does not exist in Pacific/Apia"),
    ],
)
def test_days_that_are_not_whole_slots_are_refused(zone: str, interval: str, first: str, message: str) -> None:
    grid = SlotGrid({"30min": 1, "1h": 2, "7h": 14}[interval] * HALF)
    calendar = local_calendar("day", zone, grid.interval_us)
    start, stop = (grid.slots_of(parse_instant(one)) for one in (first, "2013-12-01"))
    with pytest.raises(ValueError, match=message):
        Schedule.of_calendar(calendar, start, stop)


def test_hours_are_whole_slots_if_the_schedule_has_no_irregular_clock_change() -> None:
    calendar = local_calendar("day", "Asia/Kathmandu", HALF // 2)  # 5:30 before 1986, 5:45 since
    start = parse_instant("2013-01-01", "Asia/Kathmandu") // (HALF // 2)
    assert len(Schedule.of_calendar(calendar, start, start + 960)) == 10


def settings(**windows: Any) -> Settings:
    plain = yaml.safe_load(EXAMPLE)
    zone = windows.pop("zone", "Europe/London")
    plain["slots"] = {"interval": windows.pop("interval", "30min"), "origin": "2013-01-01"} | zone_of(zone)
    return Settings.parse({**plain, "windows": windows})


def zone_of(zone: str | None) -> dict[str, str]:
    return {} if zone is None else {"timezone": zone}


def test_settings_name_days_weeks_and_months_of_their_zone() -> None:
    numbers = {unit: len(settings(size=unit, start="2013-01-01", stop="2014-01-01").schedule) for unit in UNITS}
    assert numbers == {"day": 365, "week": 51, "month": 12}


@pytest.mark.parametrize(
    ("windows", "message"),
    [
        ({"size": "day", "zone": None}, r"where a day begins depends on the zone: name that in slots\.timezone"),
        ({"size": "month", "every": "1d"}, r"windows\.every is 1d, and a month follows the one before"),
        ({"size": "month", "start": "2013-01-02", "stop": "2013-02-20"}, "02-20: no whole month of Europe/London lies"),
    ],
)
def test_invalid_settings_of_calendar_windows_are_refused(windows: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        settings(**windows)
