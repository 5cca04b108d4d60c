"""A belief that joins an account for its whole history, and one that follows another from a public slot on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.privacy import BudgetExceeded, FiniteClass, Ledger, MarkovChain, MixingBounds, Schedule
from quiltstream.privacy.crossings import Crossing, _together, tolls
from quiltstream.privacy.influence import sided_influence

from . import reference
from .strategies import transitions, windows

TINY = 1e-9
LENGTH = {2: 7, 3: 5}
OLD = np.array([[0.95, 0.05], [0.001, 0.999]])
NEW = np.array([[0.999, 0.001], [0.001, 0.999]])
WHOLE = [(0, 6, 3.0)]
FAST = MarkovChain([[0.6, 0.4], [0.3, 0.7]])
SLOW = MarkovChain([[0.9, 0.1], [0.2, 0.8]])


def switched(before, after, change, charges):
    ledger = Ledger(before)
    ledger.replay(charges)
    ledger.switch(change, after)
    return ledger


def test_the_larger_of_two_stationary_ledgers_is_below_the_truth_and_a_declared_switch_is_not():
    # slots count from 0 here: the switch at the third slot is at slot 2
    truth = reference.changing_loss(reference.stationary(OLD), [OLD, OLD, NEW, NEW, NEW], WHOLE)
    chains = [MarkovChain(matrix) for matrix in (OLD, NEW)]
    larger = max(Ledger(chain).loss_of(WHOLE) for chain in chains)
    quilts = max(Ledger(chain, rule="quilts").loss_of(WHOLE) for chain in chains)
    assert (round(truth, 2), round(quilts, 2)) == (17.06, 15.91)
    assert larger <= quilts
    assert truth <= switched(MarkovChain(OLD), MarkovChain(NEW), 2, WHOLE).loss <= 18.0 * (1 + TINY)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_switch_is_never_below_enumeration(data):
    states = st.just(data.draw(st.sampled_from([2, 2, 3])))
    zeros = data.draw(st.booleans())
    before = data.draw(transitions(states, least=1e-3))
    after = data.draw(transitions(states, zeros=zeros, least=1e-3))
    length = LENGTH[len(before)]
    change = data.draw(st.integers(0, length))
    charges = data.draw(windows(length))
    steps = [before if slot < change else after for slot in range(length - 1)]
    start = reference.stationary(before)
    truth = reference.changing_loss(start, steps, charges)
    counted = reference.changing_loss(start, steps, charges, counts=True)
    old, new = MarkovChain(before), MarkovChain(after)
    assert switched(old, new, change, charges).loss >= max(truth, counted) - TINY
    classes = FiniteClass([old, MarkovChain(np.full_like(before, 1 / len(before)))]), FiniteClass([new])
    assert switched(*classes, change, charges).loss >= max(truth, counted) - TINY
    if new.is_irreducible and new.period == 1 and min(old.gap, new.gap) > 1e-6:
        bounds = MixingBounds.of(old), MixingBounds.of(new)
        assert switched(*bounds, change, charges).loss >= max(truth, counted) - TINY
        assert switched(old, bounds[1], change, charges).loss >= max(truth, counted) - TINY


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_two_switches_are_never_below_enumeration(data):
    matrices = [data.draw(transitions(st.just(2), least=1e-2)) for _ in range(3)]
    changes = sorted(data.draw(st.lists(st.integers(0, 7), min_size=2, max_size=2, unique=True)))
    charges = data.draw(windows(8))
    steps = [matrices[sum(change <= slot for change in changes)] for slot in range(7)]
    truth = reference.changing_loss(reference.stationary(matrices[0]), steps, charges)
    for ends in (None, MixingBounds):
        chains = [MarkovChain(matrix) for matrix in matrices]
        if ends is not None and min(chain.gap for chain in chains) < 1e-6:
            continue
        first, *others = chains if ends is None else [MixingBounds.of(chain) for chain in chains]
        ledger = Ledger(first)
        ledger.switch(changes[0], others[0])
        for charge in charges:
            ledger.charge(*charge)
        ledger.switch(changes[1], others[1])
        assert ledger.loss >= truth - TINY


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_a_switch_between_chains_is_the_rule_with_the_products_of_the_powers(data):
    before, after = (data.draw(transitions(st.just(2), least=0.05)) for _ in range(2))
    change = data.draw(st.integers(0, 14))
    charges = data.draw(windows(15, most=4))
    expected = reference.changing_rule(before, after, change, charges, 60)
    loss = switched(MarkovChain(before), MarkovChain(after), change, charges).loss
    # lags beyond those of the plain rule could only lower the loss, by no more than the influence left there
    assert loss == pytest.approx(expected, rel=1e-7)


def test_a_switch_to_the_same_chain_costs_no_less_and_far_from_it_nothing_changes():
    charges = [(0, 40, 0.2), (200, 240, 0.2)]
    # across a change the quilts price alone
    plain = Ledger(FAST, rule="quilts").loss_of(charges)
    assert plain > Ledger(FAST).loss_of(charges)
    assert switched(FAST, FAST, 120, charges).loss >= plain * (1 - 1e-12)
    once = switched(FAST, SLOW, 1000, charges)
    assert once.loss == pytest.approx(plain, rel=1e-12)
    assert switched(SLOW, FAST, -1000, charges).loss == pytest.approx(
        Ledger(MarkovChain(FAST.transition, [0.5, 0.5]), rule="quilts").loss_of(charges), rel=1e-12
    )


@pytest.mark.parametrize("order", [1, -1])
def test_charges_around_a_switch_may_come_in_any_order_and_reload(order):
    charges = [(90, 110, 0.1), (0, 30, 0.3), (95, 100, 0.7), (130, 160, 0.2), (40, 90, 0.05), (101, 300, 0.01)][::order]
    ledger = Ledger(FAST)
    ledger.switch(100, SLOW)
    for charge in charges:
        ledger.charge(*charge)
    assert ledger.loss == switched(FAST, SLOW, 100, sorted(charges)).loss == ledger.loss_of(charges)
    assert ledger.worlds == (((None, FAST), (100, SLOW)),)
    assert ledger.basis.endswith("from slot 100 on 1 transition matrices of 2 states with any initial distribution")


def test_a_switch_above_the_budget_is_refused_and_changes_nothing():
    ledger = Ledger(MarkovChain(OLD), budget=16.0)
    ledger.replay(WHOLE)
    before = (ledger.loss, ledger.worlds)
    with pytest.raises(BudgetExceeded, match="the change of belief would cost"):
        ledger.switch(2, MarkovChain(NEW))
    with pytest.raises(BudgetExceeded, match="the belief that joins would cost"):
        Ledger.join(ledger, MarkovChain([[1 - 1e-6, 1e-6], [1e-6, 1 - 1e-6]]))
    assert (ledger.loss, ledger.worlds) == before


@settings(max_examples=40, deadline=None)
@given(windows(40, most=4), st.booleans())
def test_a_belief_that_joins_reprices_the_whole_history(charges, late):
    ledger = Ledger(FAST)
    cut = 0 if late else len(charges)
    ledger.replay(charges[:cut])
    ledger.join(SLOW)
    for charge in charges[cut:]:
        ledger.charge(*charge)
    assert ledger.loss == max(Ledger(chain).loss_of(charges) for chain in (FAST, SLOW))
    assert ledger.loss == pytest.approx(Ledger(FiniteClass([FAST, SLOW])).loss_of(charges), rel=1e-12)
    assert ledger.density_for(1.0) == min(Ledger(chain).density_for(1.0) for chain in (FAST, SLOW))
    assert not ledger.upper_bound


@pytest.mark.parametrize(
    ("slot", "belief", "message"),
    [
        (4, SLOW, "slot is 4, but the belief changes at slot 5"),
        (9, MarkovChain(np.full((3, 3), 1 / 3)), "the belief has 3 states, but the account is about 2"),
    ],
)
def test_a_switch_that_cannot_be_is_refused(slot, belief, message):
    ledger = Ledger(FAST)
    ledger.switch(5, SLOW)
    with pytest.raises(ValueError, match=message):
        ledger.switch(slot, belief)


def test_a_switch_lies_at_the_start_of_the_chain_or_later():
    ledger = Ledger(MarkovChain(FAST.transition, [1, 0]), start=10)
    with pytest.raises(ValueError, match="slot is 9, but the start of the chain is at 10"):
        ledger.switch(9, SLOW)
    ledger.switch(10, SLOW)


def test_an_endless_schedule_across_a_switch_costs_what_its_windows_cost():
    for before, after in ((FAST, SLOW), (SLOW, FAST), (MixingBounds(0.5, 2.0), MixingBounds(0.4, 1.5))):
        ledger = Ledger(before)
        ledger.switch(300, after)
        endless = Schedule(7, 9, 100, None, 0.1)
        written = ledger.loss_of([(100 + 9 * j, 107 + 9 * j, 0.1) for j in range(150)])
        assert ledger.extended_loss([endless]) == pytest.approx(written, rel=1e-10)
        density = ledger.density_for(1.0)
        assert 1 - 1e-9 < ledger.ceiling(density) <= 1
        assert ledger.loss_of([(0, 600, density)]) <= 1
        assert Ledger(before).density_for(1.0) >= density


def rows_differ(kernel):
    """The largest log-ratio of two rows of a kernel in one column."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.log(kernel[:, np.newaxis, :] / kernel[np.newaxis, :, :])
    return np.nan_to_num(ratios, nan=0.0, posinf=np.inf).max()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_two_stages_never_tell_more_than_the_product_of_their_tangents(data):
    states = data.draw(st.sampled_from([2, 3, 4]))
    first = data.draw(transitions(st.just(states), zeros=True, least=1e-6))
    second = data.draw(transitions(st.just(states), zeros=True, least=1e-6))
    a, b, c = (rows_differ(kernel) for kernel in (first, second, first @ second))
    assert np.tanh(c / 2) <= np.tanh(a / 2) * np.tanh(b / 2) + 1e-9
    assert _together(np.array([[a]]), np.array([b]))[0, 0] >= c - 1e-12


def test_the_product_of_the_tangents_is_reached():
    def told(by):
        share = np.exp(by) / (1 + np.exp(by))
        return np.array([[share, 1 - share], [1 - share, share]])

    for a, b in [(0.3, 2.0), (1.0, 1.0), (5.0, 0.01)]:
        assert rows_differ(told(a) @ told(b)) == pytest.approx(
            _together(np.array([[a]]), np.array([b]))[0, 0], abs=1e-9
        )


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_tables_between_two_bounds_hold_for_all_their_chains_and_are_below_the_tolls(data):
    old, new = (MarkovChain(data.draw(transitions(st.just(3), least=1e-2))) for _ in range(2))
    bounds = MixingBounds.of(old), MixingBounds.of(new)
    tables = [sided_influence(belief) for belief in bounds]
    found = Crossing.between((bounds[0], tables[0]), (bounds[1], tables[1]))
    assert found is not None
    assert (found.right[0] <= tolls(tables[1], backward=False) + 1e-9).all()
    assert (found.left[0] <= tolls(tables[0], backward=True) + 1e-9).all()
    for m, n in [(1, 1), (1, 4), (3, 2), (6, 9)]:
        if m <= found.right.shape[1] and n <= found.right.shape[2]:
            kernel = np.linalg.matrix_power(old.transition, m) @ np.linalg.matrix_power(new.transition, n)
            assert rows_differ(kernel) <= found.right[0, m - 1, n - 1]
        if m < found.left.shape[1] and n <= found.left.shape[2]:
            kernel = np.linalg.matrix_power(old.transition, n) @ np.linalg.matrix_power(new.transition, m)
            assert 2 * rows_differ(kernel) <= found.left[0, m, n - 1]


@pytest.mark.parametrize("pair", [(FAST, SLOW), (SLOW, MarkovChain(np.full((2, 2), 0.5)))])
def test_the_bound_on_a_crossing_is_above_the_product(pair):
    old, new = pair
    exact = Crossing.between((old, sided_influence(old)), (new, sided_influence(new)))
    assert exact is not None
    own, far = sided_influence(old).right, sided_influence(new).right.max(axis=0)
    assert (exact.right <= np.minimum(own[:, :, np.newaxis], far) + 1e-9).all()
    assert (exact.left <= 2 * sided_influence(old).right.max(axis=0) + 1e-9).all()
