"""The smallest class of the windows of a schedule, against every slot of every window counted one by one."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from quiltstream.schemas.calendars import Unit, local_calendar
from quiltstream.schemas.slots import DAY_US, Schedule, SlotClasses, SlotGrid, parse_instant, smallest_classes
from quiltstream.transforms.checks import class_share, count_error, error_shares, fewest_slots, noise_problem
from quiltstream.transforms.plan import Plan, make_plan

from ..depth import examples
from .test_histograms import settings

MINUTE = 60_000_000
BY = (("hour",), ("weekend",), ("weekday", "hour"), ("month",), ("month", "weekday"), ("weekend", "hour"))
UNITS: tuple[Unit, ...] = ("day", "week", "month")


def counted(classes: SlotClasses, grid: SlotGrid, schedule: Schedule) -> tuple[tuple[int, int], ...]:
    """The same from the class of each slot of each window of a year."""
    last = schedule.first + 366 * DAY_US // grid.interval_us
    changes = classes.changes(grid, schedule.first, last + schedule.size)
    if schedule.calendar is None:  # by the clock as it is at the start
        at = dt.datetime.fromtimestamp(grid.time_of(schedule.first) / 1e6, ZoneInfo(classes.timezone)).utcoffset()
        assert at is not None
        classes, changes = SlotClasses(classes.by), np.zeros(0, np.int64)
        grid = SlotGrid(grid.interval_us, grid.origin_us + round(at.total_seconds()) * 1_000_000)
    whole, every = dict[int, int](), dict[int, int]()
    for window in schedule.windows():
        if window.start > last:
            break
        slots = classes.slots_of(grid, window)
        fewest = int(slots[slots > 0].min())
        held = bool(((changes > window.start) & (changes < window.stop)).any())
        for found in (every,) if held else (every, whole):
            found[len(window)] = min(found.get(len(window), fewest), fewest)
    return tuple(sorted((whole or every).items()))


@pytest.mark.night
@pytest.mark.parametrize("seed", range(examples(24)))
def test_the_smallest_class_is_that_of_all_windows_of_a_year(seed: int) -> None:
    rng = random.Random(seed)
    zone = ("UTC", "Europe/London", "Australia/Lord_Howe")[seed % 3]
    grid = SlotGrid(30 * MINUTE, parse_instant("2013-01-01"))
    if seed % 4 == 3:
        calendar = local_calendar(UNITS[seed // 4 % 3], zone, grid.interval_us, grid.origin_us)
        schedule = Schedule.of_calendar(calendar, rng.randrange(20_000), rng.choice([None, 60_000]))
    else:
        every = rng.choice([1, 3, 24, 50, 96, 144, 301, 1000])
        size, start = every * rng.choice([1, 1, 2, 3]), rng.randrange(5_000)
        stop = rng.choice([None, start + size + every, start + 20_000 + size])
        schedule = Schedule(size, every, start, stop, anchor=rng.randrange(every))
    for by in BY:
        classes = SlotClasses(by, zone)
        assert smallest_classes(classes, grid, schedule) == counted(classes, grid, schedule), by


def test_an_open_start_has_the_smallest_class_of_windows_like_it() -> None:
    grid = SlotGrid(60 * MINUTE, parse_instant("2013-01-01"))
    days = SlotClasses(("weekend",), "Europe/London")
    assert smallest_classes(days, grid, Schedule(72, 72)) == ((72, 24),)
    calendar = local_calendar("month", "Europe/London", grid.interval_us, grid.origin_us)
    hours = dict(smallest_classes(days, grid, Schedule.of_calendar(calendar)))
    assert hours[28 * 24] == 8 * 24
    assert set(hours) == {28 * 24, 30 * 24, 31 * 24}


def planned(folder: Path, by: list[str], size: str, start: str, **extra: Any) -> Plan:
    slots = {"interval": "30min", "origin": "2013-01-01", "timezone": "Europe/London"}
    windows = {"size": size, "start": start}
    return make_plan(settings(folder, by=by, slots=slots, windows=windows, roster=None, **extra))


def test_a_later_window_with_a_smaller_class_decides_on_the_error(tmp_path: Path) -> None:
    """Three days from a Monday hold no weekend, and those of later weeks two days of it or one."""
    plan = planned(tmp_path, ["weekend"], "3d", "2013-01-07T00:00Z", most_error=1e6)
    assert plan.classes.slots_of(plan.grid, plan.schedule.window_at(plan.schedule.first)).tolist() == [144, 0]
    assert fewest_slots(plan) == 48
    assert class_share(plan) == 48 / 144
    assert error_shares(plan) == pytest.approx([count_error(plan) / (48 / plan.histogram.size)])
    (worst,) = error_shares(plan).tolist()
    assert noise_problem(planned(tmp_path, ["weekend"], "3d", "2013-01-07T00:00Z", most_error=worst * 0.9))
    assert noise_problem(planned(tmp_path, ["weekend"], "3d", "2013-01-07T00:00Z", most_error=worst * 1.1)) == ()


def test_a_class_thinned_by_a_clock_change_counts_only_without_other_windows(tmp_path: Path) -> None:
    plan = planned(tmp_path, ["weekend", "hour"], "week", "2013-03-25T00:00Z", most_error=1e6)
    assert plan.classes.slots_of(plan.grid, plan.schedule.window_at(plan.schedule.first))[24 + 1] == 2
    assert fewest_slots(plan) == 4
    only = Schedule.of_calendar(plan.schedule.calendar, plan.schedule.first, plan.schedule.first + 7 * 48)  # type: ignore[arg-type]
    assert smallest_classes(plan.classes, plan.grid, only) == ((334, 2),)
