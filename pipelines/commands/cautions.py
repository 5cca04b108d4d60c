"""What is allowed and most likely not meant: said by the dry run, and by a run where it concerns what was published.

Everything here follows from the settings; nothing of it looks at data.
"""

from __future__ import annotations

import time

from ...schemas.settings import Settings
from ...schemas.slots import DAY_US, HOUR_US, format_duration, format_instant
from ...transforms.plan import Plan


def of_units(settings: Settings) -> tuple[str, ...]:
    """Two units that differ, and nothing that turns one into the other."""
    readings, unit = settings.readings, settings.states.unit
    if readings is None or not readings.unit or not unit or readings.unit == unit or readings.scale != 1:
        return ()
    return (
        f"readings.unit is {readings.unit} and states.unit is {unit}, but readings.scale is 1: the values are counted "
        "as if they were in the unit of the edges; set readings.scale, or give both the same unit",
    )


def cautions(settings: Settings, plan: Plan, *, endless: bool, now_us: int | None = None) -> tuple[str, ...]:
    """What to look at before a job runs.

    Args:
        settings: the job.
        plan: the plan made of them.
        endless: whether it follows its source, and publishes a window only when it is over.
        now_us: microseconds since 1970; the clock's, if left out.
    """
    return (*of_units(settings), *_left_out(settings, plan), *(() if endless else _ahead(plan, now_us)))


def _left_out(settings: Settings, plan: Plan) -> tuple[str, ...]:
    """Slots before the given end that make no whole window."""
    schedule, grid = plan.schedule, plan.grid
    if schedule.start is None or schedule.stop is None or schedule.stop == schedule.covered.stop:
        return ()
    rest = (schedule.stop - schedule.covered.stop) * grid.interval_us
    size = schedule.size * grid.interval_us
    zone = settings.slots.timezone
    changes = (
        f"; a window of {format_duration(size)} always has {size // HOUR_US} hours, and in {zone} a day has 23 "
        "or 25 where the clock changes"
        if zone != "UTC" and size % DAY_US == 0
        else ""
    )
    return (
        f"windows.stop: the last {format_duration(rest)} before it make no whole window and are left out: the windows "
        f"end at {format_instant(grid.time_of(schedule.covered.stop))}{changes}",
    )


def _ahead(plan: Plan, now_us: int | None) -> tuple[str, ...]:
    """An end that is yet to come, of a job that publishes everything up to it at once."""
    schedule, grid = plan.schedule, plan.grid
    if schedule.start is None or schedule.stop is None:
        return ()
    now = time.time_ns() // 1_000 if now_us is None else now_us
    days = (grid.time_of(schedule.covered.stop) - now) // DAY_US
    if days < 1:
        return ()
    return (
        f"windows.stop lies {days:,} day{'' if days == 1 else 's'} ahead: this run publishes and charges the windows "
        "until then too, which are on record for ever as they are now, most likely without readings",
    )
