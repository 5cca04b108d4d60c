"""Schedules: what their windows lose, one by one, and where they end."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.privacy import Ledger, MarkovChain, Schedule

from ...depth import examples

CHAIN = MarkovChain([[0.6, 0.4], [0.3, 0.7]])
SCHEDULES = st.builds(
    Schedule,
    size=st.integers(1, 12),
    every=st.integers(1, 12),
    start=st.integers(-5, 5),
    stop=st.integers(5, 60),
    epsilon_dp=st.sampled_from([0.1, 0.3, 1.0]),
)


@settings(max_examples=examples(100), deadline=None)
@given(SCHEDULES)
def test_a_schedule_loses_what_its_windows_lose(schedule):
    listed = [
        (start, start + schedule.size, schedule.epsilon_dp)
        for start in range(schedule.start, schedule.stop, schedule.every)
        if start + schedule.size <= schedule.stop
    ]
    assert schedule.windows == len(listed)
    assert schedule.end_of(len(listed)) == (listed[-1][1] if listed else schedule.start)
    assert schedule.first(len(listed)).windows == len(listed)
    if listed:
        assert Ledger(CHAIN).extended_loss([schedule]) == pytest.approx(Ledger(CHAIN).loss_of(listed), rel=1e-12)
        # in the densest slots of all places, and no more of them than there are
        ledger = Ledger(CHAIN)
        ledger.replay(listed)
        for slots in (2, 7, 90):
            assert Ledger(CHAIN).event_loss(slots, [schedule]) == pytest.approx(ledger.event_loss(slots), rel=1e-9)


def test_an_event_before_an_endless_schedule_costs_no_window_of_it():
    chain = MarkovChain([[0.5, 0.5], [0.5, 0.5]])
    ledger = Ledger(chain)
    ledger.charge(0, 10, 0.5)
    endless = [Schedule(2, 7, 10**12, None, 0.1), Schedule(1, 1, 0, None, 0.3)]
    # independent slots: an event loses the density of its own
    assert [ledger.event_loss(slots, endless) for slots in (1, 9)] == pytest.approx([0.8, 9 * 0.8], abs=0.05)
