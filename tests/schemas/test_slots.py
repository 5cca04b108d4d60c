from __future__ import annotations

import datetime as dt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiltstream.schemas.slots import (
    Schedule,
    SlotGrid,
    Window,
    format_duration,
    format_instant,
    parse_duration,
    parse_instant,
)


@pytest.mark.parametrize("text", ["30", "0min", "-1h", "1.5h", "h", "30 minutes", ""])
def test_a_duration_without_a_unit_or_not_positive_is_refused(text):
    with pytest.raises(ValueError, match="whole number with a unit; write one of us, ms, s, min"):
        parse_duration(text)


@given(st.integers(1, 10**15))
def test_durations_round_trip(duration_us):
    assert parse_duration(format_duration(duration_us)) == duration_us


@given(st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1)))
def test_instants_round_trip(stamp):
    expected = (stamp - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)
    assert parse_instant(stamp) == parse_instant(format_instant(expected)) == expected


def test_a_naive_instant_is_read_in_the_zone_and_an_offset_wins():
    assert format_instant(parse_instant("2013-07-01", "Europe/London")) == "2013-06-30T23:00:00Z"
    assert format_instant(parse_instant("2013-07-01T00:00+02:00", "Europe/London")) == "2013-06-30T22:00:00Z"


@pytest.mark.parametrize("stamp", ["2013-10-27T01:30", "2013-03-31T01:30"])
def test_a_naive_instant_in_a_clock_change_is_refused(stamp):
    with pytest.raises(ValueError, match="ambiguous or does not exist in Europe/London"):
        parse_instant(stamp, "Europe/London")


@pytest.mark.parametrize("name", ["localtime", "posixrules", "Factory"])
def test_a_name_that_is_another_zone_on_each_machine_is_refused(name):
    with pytest.raises(ValueError, match=f"'{name}' is whatever a machine is set to; use an IANA name"):
        parse_instant("2013-01-01", name)


@given(st.integers(1, 10**12), st.integers(-(10**15), 10**15), st.lists(st.integers(-(10**15), 10**15), min_size=1))
def test_the_slot_is_the_floor_also_before_the_origin(interval, origin, times):
    grid = SlotGrid(interval, origin)
    slots = grid.slots_of(np.array(times, dtype=np.int64))
    assert slots.tolist() == [(t - origin) // interval for t in times]
    assert (grid.time_of(slots) <= times).all()
    assert (grid.time_of(slots + 1) > times).all()


@given(st.integers(1, 6), st.integers(1, 6), st.integers(-30, 30), st.integers(-40, 40), st.integers(0, 60))
def test_the_schedule_lists_exactly_the_whole_windows_between_its_ends(every, overlap, anchor, start, length):
    size = every * overlap
    truth = [
        Window(s, s + size)
        for s in range(start, start + length)
        if (s - anchor) % every == 0 and s + size <= start + length
    ]
    if not truth:
        with pytest.raises(ValueError, match="no whole window"):
            Schedule(size=size, every=every, start=start, stop=start + length, anchor=anchor)
        return
    schedule = Schedule(size=size, every=every, start=start, stop=start + length, anchor=anchor)
    assert list(schedule.windows()) == truth
    assert len(schedule) == len(truth)
    assert schedule.covered == Window(truth[0].start, truth[-1].stop)
    for s in range(start - 3 * size, start + length + 3 * size):
        assert schedule.contains(Window(s, s + size)) == (Window(s, s + size) in truth)
