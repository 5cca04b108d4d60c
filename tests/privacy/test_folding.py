"""Time without end: what is folded behind a horizon loses no truth and no more than the stated slack."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.privacy import BudgetExceeded, FiniteClass, Ledger, MarkovChain, MixingBounds, Schedule
from quiltstream.privacy.influence import RESOLUTION, SidedInfluence
from quiltstream.privacy.places import Pricer
from quiltstream.privacy.running import Running
from quiltstream.privacy.states import AccountState
from quiltstream.privacy.timeline import Timeline
from quiltstream.privacy.worlds import Segment, World

from . import reference
from .strategies import windows
from .test_ledger_truth import falling_tables

QUICK = MixingBounds(pi_min=0.5, gap=2.0)
CHAIN = MarkovChain([[0.6, 0.4], [0.3, 0.7]])
PERIODIC = MarkovChain([[0.0, 1.0], [1.0, 0.0]])
BELIEFS = pytest.mark.parametrize(
    "belief",
    [QUICK, CHAIN, PERIODIC, FiniteClass([CHAIN, MarkovChain([[0.2, 0.8], [0.7, 0.3]], [1, 0])])],
    ids=["bounds", "chain", "periodic", "class"],
)
ROUNDING = 1e-13


def folded_along(belief, charges, data):
    """An account that folds now and then, up to the start of the next charge."""
    ledger = Ledger(belief)
    for start, stop, rate in sorted(charges):
        if data.draw(st.booleans()):
            ledger.fold(start - data.draw(st.integers(0, 3)))
        ledger.charge(start, stop, rate)
    return ledger


@BELIEFS
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_folded_account_is_not_below_the_unfolded_one_and_above_it_by_the_last_influence_at_most(belief, data):
    charges = [(4 * start, 4 * start + stop - start, rate) for start, stop, rate in data.draw(windows(150, most=9))]
    whole = Ledger(belief).loss_of(charges)
    ledger = folded_along(belief, charges, data)
    assert whole * (1 - ROUNDING) <= ledger.loss <= whole * (1 + ROUNDING) + 2 * RESOLUTION
    assert not ledger.upper_bound


@settings(max_examples=150, deadline=None)
@given(falling_tables(), windows(40, most=6, epsilon=(0.01, 1.0)), st.data())
def test_with_tables_of_any_shape_the_slack_is_the_influence_at_the_last_lag(tables, charges, data):
    left, right = tables
    world = World((Segment(None, MarkovChain([[1.0]]), Pricer(SidedInfluence(left, right, (), "any"))),))
    charges = sorted(charges)
    whole = Timeline()
    ledger = Ledger.from_state(AccountState((world,)))
    for start, stop, rate in charges:
        if data.draw(st.booleans()):
            ledger.fold(start)
        ledger.charge(start, stop, rate)
        whole = Timeline(whole.density().plus(start, stop, rate))
    truth = Running(world, whole).worst.loss
    slack = float(right[:, -1].max()) if world.closes else 0.0
    assert truth * (1 - ROUNDING) <= ledger.loss <= (truth + slack) * (1 + ROUNDING)


@BELIEFS
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_behind_a_horizon_the_order_of_charges_leaves_no_trace(belief, data):
    before = data.draw(windows(60, most=4))
    after = [(start + 60, stop + 60, rate) for start, stop, rate in data.draw(windows(60, most=4))]
    losses = set()
    for order in (after, data.draw(st.permutations(after))):
        ledger = Ledger(belief)
        ledger.replay(before)
        ledger.fold(60)
        for charge in order:
            ledger.charge(*charge)
        losses.add(ledger.loss)
    assert len(losses) == 1


@BELIEFS
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_charge_behind_the_horizon_is_refused_or_priced_from_above(belief, data):
    charges = data.draw(windows(90, most=6))
    ledger = folded_along(belief, charges, data)
    ledger.fold(data.draw(st.integers(20, 200)))
    known = list(charges)
    for start, stop, rate in data.draw(windows(90, most=3)):
        if ledger.horizon is not None and start < ledger.horizon:
            before = (ledger.loss, ledger.runs, ledger.entries)
            for call in (ledger.charge, ledger.would_cost):
                with pytest.raises(ValueError, match="the horizon is at slot"):
                    call(start, stop, rate)
            assert (ledger.loss, ledger.runs, ledger.entries) == before
        charge = ledger.charge(start, stop, rate, behind="bound")
        known.append((start, stop, rate))
        assert charge.upper_bound == ledger.upper_bound
        assert ledger.loss >= Ledger(belief).loss_of(known) * (1 - ROUNDING)
    later = (300, 310, 0.7)
    ledger.charge(*later)
    assert ledger.loss >= Ledger(belief).loss_of([*known, later]) * (1 - ROUNDING)


def test_a_late_charge_costs_at_most_itself_and_at_most_the_largest_density_for_ever():
    ledger, sharp = Ledger(QUICK, rule="quilts"), Ledger(QUICK)
    for account in (ledger, sharp):
        account.replay([(0, 400, 0.05)])
        account.fold(400)
    before, alone = ledger.loss, Ledger(QUICK, rule="quilts").loss_of([(10, 12, 0.01)])
    assert sharp.charge(10, 12, 0.01, behind="bound").loss_after == sharp.ceiling(0.05 + 0.01)
    charge = ledger.charge(10, 12, 0.01, behind="bound")
    assert charge.upper_bound
    assert charge.rule == "quilt ledger: a slot behind the horizon is worst"
    assert charge.slot is None
    assert ledger.loss == pytest.approx(min(before + alone, ledger.ceiling(0.05 + 0.01)), rel=1e-11)
    wide = ledger.charge(0, 390, 0.01, behind="bound")
    assert wide.loss_after <= ledger.ceiling(0.05 + 0.01 + 0.01) * (1 + 1e-12)


def test_a_late_charge_above_the_budget_changes_nothing():
    ledger = Ledger(QUICK, budget=1.0)
    ledger.charge(0, 400, 0.05)
    ledger.fold(400)
    before = (ledger.loss, ledger.state)
    with pytest.raises(BudgetExceeded):
        ledger.charge(10, 20, 5.0, behind="bound")
    assert (ledger.loss, ledger.state) == before
    assert not ledger.upper_bound


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_a_folded_account_is_never_below_the_truth_by_the_definition(data):
    matrix = data.draw(st.sampled_from([np.array([[0.7, 0.3], [0.4, 0.6]]), np.array([[0.95, 0.05], [0.3, 0.7]])]))
    charges = data.draw(windows(8))
    ledger = folded_along(MarkovChain(matrix), charges, data)
    truth = reference.response_loss(reference.stationary(matrix), matrix, 8, charges)
    assert ledger.loss >= truth - 1e-9


@BELIEFS
def test_with_keep_the_state_does_not_grow_and_the_loss_is_the_same(belief):
    keeping, whole = Ledger(belief, keep=20), Ledger(belief)
    largest = 0
    for number in range(300):
        for ledger in (keeping, whole):
            ledger.charge(30 * number, 30 * number + 10, 0.02 + 0.01 * (number % 3))
        largest = max(largest, len(keeping.entries), len(keeping.runs))
    sight = keeping.state.worlds[0].sight
    assert largest <= 4 * (20 + sight) // 30 + 8
    assert len(whole.entries) == 300
    assert keeping.loss == pytest.approx(whole.loss, rel=1e-11)
    assert keeping.horizon is not None
    assert keeping.horizon <= 30 * 299 + 10 - 20
    assert sum(keeping.state.forgotten.shapes.values()) + len(keeping.entries) == 300
    # the seeds that need no windows still say the same
    for name in ("[SC17] 3.7", "[BHGKM] 6.2"):
        assert keeping.bounds()[name].loss == pytest.approx(whole.bounds()[name].loss, rel=1e-12)


def test_a_fold_back_changes_nothing_and_schedules_start_behind_the_horizon():
    ledger = Ledger(QUICK, budget=3.0)
    ledger.charge(0, 100, 0.03)
    ledger.fold(90)
    before = ledger.state
    ledger.fold(50)
    assert ledger.state == before
    with pytest.raises(ValueError, match="the schedule starts at slot 89, but the horizon is at slot 90"):
        ledger.extended_loss([Schedule(10, 10, 89, None, 0.02)])
    with pytest.raises(ValueError, match="keep is -1"):
        Ledger(QUICK, keep=-1)
    with pytest.raises(ValueError, match="slot is 89, but the horizon is at 90"):
        ledger.switch(89, QUICK)


@BELIEFS
def test_what_comes_on_top_of_a_folded_account_costs_what_it_costs_on_top_of_the_whole(belief):
    charges = [(0, 40, 0.2), (50, 90, 0.1), (95, 100, 0.4)]
    ledger, whole = Ledger(belief, budget=100.0), Ledger(belief, budget=100.0)
    for account in (ledger, whole):
        account.replay(charges)
    ledger.fold(100)
    for schedule in (Schedule(10, 10, 100, None, 0.1), Schedule(5, 9, 120, 400, 0.3)):
        assert ledger.extended_loss([schedule]) == pytest.approx(whole.extended_loss([schedule]), rel=1e-11)
        assert ledger.admitted_prefix(schedule) == whole.admitted_prefix(schedule)


@settings(max_examples=40, deadline=None)
@given(windows(200, most=5), st.integers(0, 300), st.integers(0, 60))
def test_a_belief_that_joins_a_folded_account_is_priced_from_above(charges, horizon, gap):
    ledger = Ledger(QUICK)
    ledger.replay(charges)
    ledger.fold(horizon)
    ledger.join(CHAIN)
    later = [(horizon + gap, horizon + gap + 20, 0.5)]
    ledger.replay(later)
    truth = max(Ledger(belief).loss_of([*charges, *later]) for belief in (QUICK, CHAIN))
    assert ledger.loss >= truth * (1 - ROUNDING)


def test_a_belief_that_sees_further_than_what_is_kept_uses_shorter_quilts():
    slow = MarkovChain([[0.99, 0.01], [0.02, 0.98]])
    charges, later = [(0, 500, 0.01)], [(500, 520, 0.3)]
    ledger = Ledger(QUICK)
    ledger.replay(charges)
    ledger.fold(500)
    ledger.join(slow)
    ledger.replay(later)
    assert ledger.upper_bound
    assert ledger.state.worlds[1].shortened == (500 - (ledger.state.floor or 0)) // 2
    assert ledger.loss >= Ledger(slow).loss_of([*charges, *later])


@settings(max_examples=40, deadline=None)
@given(windows(120, most=6), st.integers(0, 60), st.data())
def test_folding_around_a_switch_loses_no_truth(charges, change, data):
    ledger, whole = Ledger(CHAIN), Ledger(CHAIN)
    slow = MarkovChain([[0.8, 0.2], [0.3, 0.7]])
    for account in (ledger, whole):
        account.switch(change, slow)
    for start, stop, rate in sorted(charges):
        if data.draw(st.booleans()):
            ledger.fold(start)
        ledger.charge(start, stop, rate)
        whole.charge(start, stop, rate)
    assert whole.loss * (1 - ROUNDING) <= ledger.loss <= whole.loss * (1 + ROUNDING) + 4 * RESOLUTION
