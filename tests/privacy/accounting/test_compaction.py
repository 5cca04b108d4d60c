"""Time without end: what is compacted behind a horizon is never below the truth, however dear later charges are."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.privacy import BudgetExceeded, FiniteClass, Ledger, MarkovChain, MixingBounds, Schedule

from ...depth import examples
from .. import reference
from ..strategies import transitions, windows

TINY = 1e-9
CHAIN = MarkovChain([[0.6, 0.4], [0.3, 0.7]])
STICKY = MarkovChain([[0.97, 0.03], [0.03, 0.97]])
QUICK = MixingBounds(pi_min=0.5, gap=2.0)
BELIEFS = pytest.mark.parametrize(
    "belief",
    [QUICK, CHAIN, FiniteClass([CHAIN, MarkovChain([[0.2, 0.8], [0.7, 0.3]], [1, 0])])],
    ids=["bounds", "chain", "class"],
)


def admitted(ledger, charges, data):
    """Charge in order, compact now and then up to the start of the next charge; what was accepted."""
    accepted = []
    for start, stop, rate in sorted(charges):
        if data.draw(st.booleans()):
            ledger.compact(start - data.draw(st.integers(0, 3)))
        try:
            ledger.charge(start, stop, rate)
        except BudgetExceeded:
            continue
        accepted.append((start, stop, rate))
    return accepted


@settings(max_examples=examples(100))
@given(st.data())
def test_a_compacted_account_is_never_below_the_definition(data):
    matrix = data.draw(transitions(st.just(2), least=1e-2))
    chain = MarkovChain(matrix)
    budget = data.draw(st.floats(0.5, 4.0))
    ledger = Ledger(chain, budget)
    accepted = admitted(ledger, data.draw(windows(8, epsilon=(0.01, 1.5))), data)
    truth = reference.response_loss(chain.stationary, matrix, 8, accepted)
    assert truth - TINY <= ledger.loss <= budget


def test_a_slot_that_later_charges_could_push_above_the_budget_is_not_compacted():
    # by what lies behind the horizon alone, the first slot would cost 2 for ever
    charges = [(1, 2, 2.0), (4, 5, 1.0)]
    truth = reference.response_loss(STICKY.stationary, STICKY.transition, 6, charges)
    assert truth > 2.4
    for budget in (2.4, 4.0):
        ledger = Ledger(STICKY, budget=budget)
        ledger.charge(*charges[0])
        ledger.compact(3)
        if budget < truth:
            with pytest.raises(BudgetExceeded):
                ledger.charge(*charges[1])
        else:
            assert truth <= ledger.charge(*charges[1]).loss_after <= budget


@BELIEFS
@settings(max_examples=examples(40))
@given(data=st.data())
def test_a_compacted_account_is_never_below_the_full_account(belief, data):
    ledger, whole = Ledger(belief, budget=5.0), Ledger(belief)
    charges = [(9 * start, 9 * start + stop - start, rate) for start, stop, rate in data.draw(windows(100, most=9))]
    whole.replay(admitted(ledger, charges, data))
    assert whole.loss * (1 - TINY) <= ledger.loss <= 5.0


@BELIEFS
def test_compacted_equal_weeks_keep_their_loss_in_bounded_state(belief):
    ledger, whole = Ledger(belief, budget=2.0), Ledger(belief)
    for week in range(200):
        ledger.compact(30 * week)
        for account in (ledger, whole):
            account.charge(30 * week, 30 * week + 25, 0.05)
        assert len(ledger.runs) <= 30
    assert whole.loss <= ledger.loss <= whole.loss * 1.001
    assert ledger.horizon == 30 * 199
    endless = Schedule(25, 30, 6000, None, 0.05)
    assert ledger.extended_loss([endless]) == pytest.approx(whole.extended_loss([endless]), rel=1e-3)


@settings(max_examples=examples(30))
@given(st.data())
def test_compaction_around_a_switch_is_never_below_enumeration(data):
    before, after = (data.draw(transitions(st.just(2), least=1e-2)) for _ in range(2))
    change = data.draw(st.integers(0, 6))
    ledger = Ledger(MarkovChain(before), budget=3.0)
    ledger.switch(change, MarkovChain(after))
    accepted = admitted(ledger, data.draw(windows(7, epsilon=(0.01, 1.0))), data)
    steps = [before if slot < change else after for slot in range(6)]
    truth = reference.changing_loss(reference.stationary(before), steps, accepted)
    assert truth - TINY <= ledger.loss <= 3.0


@settings(max_examples=examples(30))
@given(st.data())
def test_compaction_of_a_switched_account_with_an_added_belief_holds_for_both(data):
    before, after, other = (data.draw(transitions(st.just(2), least=1e-2)) for _ in range(3))
    ledger = Ledger(MarkovChain(before), budget=3.0)
    ledger.switch(data.draw(st.integers(0, 6)), MarkovChain(after))
    ledger.add_belief(MarkovChain(other))
    change = ledger.histories[0][1][0]
    assert change is not None
    accepted = admitted(ledger, data.draw(windows(7, epsilon=(0.01, 1.0))), data)
    steps = [before if slot < change else after for slot in range(6)]
    truth = max(
        reference.changing_loss(reference.stationary(before), steps, accepted),
        reference.response_loss(reference.stationary(other), other, 7, accepted),
    )
    assert truth - TINY <= ledger.loss <= 3.0


def test_behind_the_horizon_nothing_is_charged_and_nothing_changes():
    ledger = Ledger(QUICK, budget=3.0)
    ledger.charge(0, 100, 0.03)
    ledger.compact(90)
    before = ledger.loss, ledger.runs, ledger.horizon
    ledger.compact(50)
    for call in (ledger.charge, ledger.would_cost):
        with pytest.raises(ValueError, match="start is 89, but the horizon is at slot 90"):
            call(89, 95, 0.01)
    with pytest.raises(ValueError, match="the schedule starts at slot 89, but the horizon is at slot 90"):
        ledger.extended_loss([Schedule(10, 10, 89, None, 0.02)])
    with pytest.raises(ValueError, match="slot is 89, but the horizon is at 90"):
        ledger.switch(89, QUICK)
    with pytest.raises(ValueError, match="a belief that is added prices them, too"):
        ledger.add_belief(QUICK)
    assert (ledger.loss, ledger.runs, ledger.horizon) == before
    with pytest.raises(ValueError, match="budget is None"):
        Ledger(QUICK).compact(0)


def test_a_replay_above_the_budget_leaves_no_bound_on_compacted_slots():
    ledger = Ledger(CHAIN, budget=1.0)
    ledger.charge(0, 200, 0.2)
    ledger.compact(200)
    assert ledger.replay([(200, 210, 5.0)]) > 1.0
    assert ledger.loss > 1.0
    assert np.isinf(ledger.loss) or ledger.loss >= Ledger(CHAIN).loss_of([(0, 200, 0.2), (200, 210, 5.0)])


def test_an_account_within_its_budget_by_quilts_alone_stays_within_it():
    """Quilts need every charge: without them the loss would be above the budget that all was admitted under."""
    ledger = Ledger(MarkovChain([[0.5, 0.5], [0.5, 0.5]]), budget=1.0)
    ledger.charge(6, 7, 1.0)
    ledger.compact(6)
    assert ledger.loss <= 1.0
    with pytest.raises(BudgetExceeded):
        ledger.charge(6, 7, 1.0)
    ledger.compact(20)
    assert ledger.loss <= 1.0


@pytest.mark.parametrize(("bounds", "epsilon"), [((0.2, 0.75), 8.0), ((0.0335, 0.4), 7.5)])
def test_windows_that_are_reserved_still_fit_behind_a_horizon(bounds, epsilon):
    """At such a density the quilts alone keep the promise, and compaction would lose them."""
    belief = MixingBounds(*bounds)
    density = Ledger(belief).density_for(epsilon) / 2
    ledger = Ledger(belief, epsilon)
    assert ledger.admitted_prefix(Schedule(96, 48, 0, None, density)) is None
    for start in range(0, 480, 48):
        ledger.charge(start, start + 96, density)
        rest = Schedule(96, 48, start + 48, None, density)
        ledger.compact(start + 48, [rest])
        assert ledger.admitted_prefix(rest) is None
    with pytest.raises(ValueError, match="the schedule starts at slot 0, but the horizon is at slot 480"):
        ledger.compact(480, [Schedule(96, 48, 0, None, density)])


def test_an_account_whose_compaction_ends_in_an_error_stays_as_it_was(monkeypatch):
    ledger = Ledger(CHAIN, budget=2.0)
    for start in range(0, 480, 24):
        ledger.charge(start, start + 24, 0.02)
    before, runs = ledger.loss, ledger.runs

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "_decided", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            ledger.compact(480)
    assert (ledger.loss, ledger.runs, ledger.horizon) == (before, runs, None)
    assert ledger.bounds()["quilts"].loss is not None
    ledger.compact(480)
    assert ledger.horizon == 480
