"""Densities as exact step functions, and schedules written out as such."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quiltstream.privacy import Schedule
from quiltstream.privacy.accounting.charges import Density, Run
from quiltstream.privacy.accounting.schedules import densest

from ...depth import examples
from ..strategies import windows


def by_slot(density):
    """Density of every slot in sight."""
    return {slot: run.density for run in density.runs() for slot in range(run.start, run.stop) if run.density}


@settings(max_examples=examples(100), deadline=None)
@given(windows(30, most=8))
def test_the_density_of_a_slot_is_the_exact_sum_of_the_windows_that_hold_it(charges):
    density = Density().with_spans(charges)
    expected = {
        slot: float(sum(Fraction(e) for start, stop, e in charges if start <= slot < stop)) for slot in range(30)
    }
    assert by_slot(density) == {slot: level for slot, level in expected.items() if level}
    assert Density().with_spans(charges[:3]).with_spans(charges[3:]) == density


@settings(max_examples=examples(100), deadline=None)
@given(
    charges=windows(30, most=5),
    endless=st.lists(
        st.builds(
            Schedule,
            size=st.integers(1, 9),
            every=st.integers(1, 9),
            start=st.integers(0, 40),
            stop=st.none(),
            epsilon_dp=st.sampled_from([0.1, 0.3]),
        ),
        max_size=2,
    ),
    slots=st.integers(1, 90),
)
@example(charges=[(0, 5, 0.1), (5, 8, 0.3)], endless=[], slots=5)
def test_the_densest_slots_in_a_row_are_those_of_all_places(charges, endless, slots):
    levels = [Fraction(0)] * 600
    listed = charges + [
        (start, start + one.size, one.epsilon_dp) for one in endless for start in range(one.start, 600, one.every)
    ]
    for start, stop, epsilon_dp in listed:
        for slot in range(start, min(stop, 600)):
            levels[slot] += Fraction(epsilon_dp)
    sums = list(itertools.accumulate(levels, initial=Fraction(0)))
    found = densest(Density().with_spans(charges), endless)(slots)
    assert found == max(after - before for before, after in zip(sums, sums[slots:], strict=False))


def test_the_densest_slots_long_before_an_endless_schedule_cost_no_window_of_it():
    endless = [Schedule(2, 7, 10**12, None, 0.1), Schedule(1, 1, 0, None, 0.3)]
    found = densest(Density().with_spans([(0, 10, 0.5)]), endless)
    assert [float(found(slots)) for slots in (1, 9)] == pytest.approx([0.9, 9 * 0.8 + 0.4])


def test_adjacent_windows_of_one_density_are_one_run_and_an_empty_density_has_none():
    density = Density().with_spans([(10, 20, 0.1), (0, 10, 0.1), (25, 30, 0.2)])
    assert density.runs() == (Run(0, 20, 0.1), Run(20, 25, 0.0), Run(25, 30, 0.2))
    assert Density().runs() == ()


schedules = st.builds(
    Schedule,
    size=st.integers(1, 12),
    every=st.integers(1, 12),
    start=st.integers(-5, 5),
    stop=st.integers(5, 60),
    epsilon_dp=st.sampled_from([0.1, 0.3, 1.0]),
)


@settings(max_examples=examples(200), deadline=None)
@given(schedules)
def test_a_schedule_has_the_density_of_its_windows(schedule):
    listed = [
        (start, start + schedule.size, schedule.epsilon_dp)
        for start in range(schedule.start, schedule.stop, schedule.every)
        if start + schedule.size <= schedule.stop
    ]
    assert schedule.windows == len(listed)
    assert Density().with_steps(schedule.steps()) == Density().with_spans(listed)
    assert schedule.end_of(len(listed)) == (listed[-1][1] if listed else schedule.start)
    assert schedule.first(len(listed)).windows == len(listed)


@settings(max_examples=examples(200), deadline=None)
@given(schedules, st.integers(0, 30))
def test_an_endless_schedule_is_cut_at_its_horizon(schedule, more):
    endless = Schedule(schedule.size, schedule.every, schedule.start, None, schedule.epsilon_dp)
    horizon = schedule.start + schedule.size + more
    starts = range(schedule.start, horizon, schedule.every)
    cut = [(start, min(start + schedule.size, horizon), schedule.epsilon_dp) for start in starts]
    assert Density().with_steps(endless.steps(horizon)) == Density().with_spans(cut)
    assert endless.windows is None
    with pytest.raises(ValueError, match="endless"):
        endless.steps()
