"""The account itself: what charging, refusing, reserving and replaying do to it."""

from __future__ import annotations

import math
import pickle
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.privacy import (
    BudgetExceeded,
    FiniteClass,
    Ledger,
    MarkovChain,
    MixingBounds,
    Schedule,
    mqm_approx,
)
from quiltstream.privacy.accounting.account import Account, Worst
from quiltstream.privacy.models import ChainError
from quiltstream.privacy.models.dobrushin import DobrushinBounds

from ...depth import examples
from ..ledgers import quilt_density, quilt_loss
from ..models.test_chains import CYCLE, THETA1
from ..models.test_classes import THETA2
from ..strategies import windows

BOUNDS = MixingBounds(pi_min=0.2, gap=0.75)
CHAIN = MarkovChain(THETA1)
FIXED = MarkovChain(THETA1, [1, 0])
CLASS = FiniteClass([CHAIN, MarkovChain(THETA2, [0.9, 0.1])])
THREE = MarkovChain([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.1, 0.1, 0.8]])
QUICK = MixingBounds(pi_min=0.5, gap=2.0)
BELIEFS = pytest.mark.parametrize("belief", [BOUNDS, CHAIN, FIXED, CLASS], ids=["bounds", "chain", "fixed", "class"])
# what a scale that is rounded up to a rational does to the density: between these relative amounts
SCALE_UP = (1.4e-11, 2.9e-11)
# relative rounding in which two ways to the same loss may differ
ROUNDING = 1e-13


def charged(belief, charges, budget=None):
    ledger = Ledger(belief, budget)
    for charge in charges:
        ledger.charge(*charge)
    return ledger


@pytest.mark.night
@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 5.0, 20.0])
@pytest.mark.parametrize("up", SCALE_UP)
@pytest.mark.parametrize("bounds", [BOUNDS, MixingBounds(1.88e-6, 0.0371), MixingBounds(0.05, 1.9, "reversible")])
def test_fifty_two_adjacent_windows_at_the_calibrated_density_lose_epsilon(bounds, up, epsilon):
    density = mqm_approx(bounds, epsilon).epsilon_dp / (1 + up)
    size = 20_160
    ledger = Ledger(bounds, budget=epsilon)
    for week in range(52):
        charge = ledger.charge(size * week, size * (week + 1), density)
        assert charge.loss_after <= epsilon
    whole = Ledger(bounds).extended_loss([Schedule(size, size, 0, None, density)])
    assert ledger.loss * (1 - ROUNDING) <= whole <= ledger.loss * (1 + 1e-4)
    assert epsilon * (1 - 1e-9) < quilt_loss(bounds, [(0, 52 * size, density)]) <= epsilon


def test_a_calibration_by_mqm_approx_loses_less_than_its_epsilon():
    # the bounds of the demo's history, and those of the documents
    for bounds, sigma, cost in ((MixingBounds(0.03349, 0.4002), 81.223, 0.5456), (BOUNDS, 31.710, 0.3842)):
        noise = mqm_approx(bounds, 1.0)
        assert noise.sigma == pytest.approx(sigma, abs=1e-3)
        assert Ledger(bounds).charge(0, 10**6, noise.epsilon_dp).loss_after == pytest.approx(cost, abs=1e-4)


def test_two_windows_may_cost_more_together_than_alone_though_never_by_the_quilts():
    density = Ledger(BOUNDS).density_for(0.5)
    window = (0, 336, density)
    alone, both = Ledger(BOUNDS).loss_of([window]), Ledger(BOUNDS).loss_of([window, window])
    assert alone <= 0.5
    assert 2 * alone < both <= quilt_loss(BOUNDS, [window, window]) <= 2 * quilt_loss(BOUNDS, [window])


@pytest.mark.night
@BELIEFS
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_the_same_charges_in_any_order_give_the_same_loss_bit_for_bit(belief, data):
    charges = data.draw(windows(60, most=7))
    shuffled = data.draw(st.permutations(charges))
    first, second = charged(belief, charges), charged(belief, shuffled)
    assert first.loss == second.loss
    assert first.runs == second.runs
    assert first.loss == Ledger(belief).loss_of(shuffled) == Ledger(belief).replay(shuffled)


@pytest.mark.night
@BELIEFS
@settings(max_examples=examples(40))
@given(data=st.data())
def test_a_charge_never_lowers_the_loss_and_by_the_quilts_costs_at_most_its_own(belief, data):
    charges = data.draw(windows(60, most=5))
    *earlier, last = charges
    ledger = charged(belief, earlier)
    before, cost = ledger.loss, ledger.would_cost(*last)
    charge = ledger.charge(*last)
    assert (charge.loss_before, charge.loss_after) == (before, ledger.loss)
    assert cost == max(0.0, ledger.loss - before)
    assert ledger.loss >= before * (1 - ROUNDING)
    # [SC17] Theorem 3.7 and [SWC17] Theorem 4.4: sequential composition, whatever the quilts
    parts, quilts = [quilt_loss(belief, part) for part in (earlier, [last]) if part], quilt_loss(belief, charges)
    assert ledger.loss <= quilts * (1 + ROUNDING) or quilts > 1
    assert quilts <= sum(parts) * (1 + 2 * ROUNDING)
    # group privacy, and the most that any slot alone can lose
    assert ledger.loss <= sum((stop - start) * e for start, stop, e in charges) * (1 + ROUNDING)
    top = max(run.density for run in ledger.runs)
    assert ledger.loss >= top
    # the exact density may be above the float nearest to it, which a run tells
    assert ledger.loss <= ledger.ceiling(math.nextafter(top, math.inf)) * (1 + ROUNDING)


@BELIEFS
def test_by_the_quilts_the_same_window_twice_loses_the_influence_once(belief):
    density = quilt_density(belief, 1.0)
    window = (0, 500, density)
    twice = quilt_loss(belief, [window, window])
    assert quilt_loss(belief, [window]) == pytest.approx(1.0, rel=1e-12)
    assert 1.0 < twice < 2.0
    assert twice == pytest.approx(quilt_loss(belief, [(0, 10**6, 2 * density)]), rel=1e-12)
    assert charged(belief, [window, window]).loss < twice


@pytest.mark.night
@BELIEFS
@pytest.mark.parametrize("density", [0.001, 0.1])
def test_sliding_windows_of_four_periods_lose_as_much_as_fourfold_density(belief, density):
    ledger = Ledger(belief)
    sliding = charged(belief, [(12 * start, 12 * (start + 4), density) for start in range(120)])
    assert sliding.loss == pytest.approx(ledger.ceiling(4 * density), rel=1e-3)
    assert sliding.loss < 4 * quilt_loss(belief, [(0, 10**6, density)])
    assert ledger.extended_loss([Schedule(48, 12, 0, None, density)]) == pytest.approx(sliding.loss, rel=1e-3)


@BELIEFS
def test_a_refused_charge_changes_nothing_and_reports_the_account(belief):
    density = Ledger(belief).density_for(1.0)
    ledger = charged(belief, [(0, 300, density)], budget=1.2)
    state = pickle.dumps((ledger.loss, ledger.runs, ledger.remaining))
    wanted = Ledger(belief).loss_of([(0, 300, density), (100, 200, density)])
    with pytest.raises(BudgetExceeded) as caught:
        ledger.charge(100, 200, density)
    assert pickle.dumps((ledger.loss, ledger.runs, ledger.remaining)) == state
    error = caught.value
    assert (error.spent, error.budget, error.remaining) == (ledger.loss, 1.2, 1.2 - ledger.loss)
    assert error.spent + error.asked == pytest.approx(wanted, rel=1e-15)
    for number in (error.spent, error.asked, error.remaining, error.budget):
        assert f"{number:.9g}" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert ledger.charge(300, 600, density).loss_after <= 1.2


def test_a_ledger_already_above_its_budget_refuses_even_a_free_charge():
    ledger = Ledger(BOUNDS, budget=0.5)
    assert ledger.replay([(0, 500, 0.06)]) > 0.5
    assert ledger.remaining == 0
    with pytest.raises(BudgetExceeded, match=r" 0 remains"):
        ledger.charge(10_000, 10_001, 1e-9)


def test_an_empty_window_and_a_reducible_chain_are_refused():
    with pytest.raises(ValueError, match="stop is 0, but must be at least 1"):
        Ledger(BOUNDS).charge(0, 0, 0.1)
    with pytest.raises(ChainError, match="reducible"):
        Ledger(MarkovChain([[1, 0], [0, 1]]))


def test_a_chain_with_a_start_refuses_charges_before_it():
    ledger = Ledger(FIXED, start=100)
    ledger.charge(100, 200, 0.01)
    for call in (
        lambda: ledger.charge(99, 200, 0.01),
        lambda: ledger.would_cost(0, 1, 0.01),
        lambda: ledger.extended_loss([Schedule(10, 10, 90, None, 0.01)]),
    ):
        with pytest.raises(ValueError, match="the chain begins at slot 100"):
            call()
    for belief in (BOUNDS, CHAIN):
        with pytest.raises(ValueError, match=r"start is 100, but the belief holds at every slot"):
            Ledger(belief, start=100)
    assert Ledger(CLASS, start=0).loss == 0


@BELIEFS
def test_slots_may_lie_anywhere_on_the_line(belief):
    charges = [(0, 50, 0.1), (70, 90, 0.3), (40, 75, 0.2)]
    moved = [(start - 10**12, stop - 10**12, e) for start, stop, e in charges]
    assert charged(belief, moved).loss == charged(belief, charges).loss
    assert charged(belief, [(np.int64(s), np.int64(t), np.float64(e)) for s, t, e in charges]).loss > 0


@BELIEFS
@pytest.mark.parametrize("epsilon", [1e-3, 0.3, 1.0, 8.0, 20.0])
def test_density_and_ceiling_are_inverse(belief, epsilon):
    ledger, density = Ledger(belief), quilt_density(belief, epsilon)
    # a density of the grid, the quilts', or what the recursion finds
    assert ledger.density_for(epsilon) >= density * (1 - 1e-12)
    assert ledger.ceiling(ledger.density_for(epsilon)) <= epsilon < ledger.ceiling(1.002 * ledger.density_for(epsilon))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_for_mixing_bounds_the_density_of_the_quilts_is_the_calibrated_one(epsilon):
    assert quilt_density(BOUNDS, epsilon) == pytest.approx(mqm_approx(BOUNDS, epsilon).epsilon_dp, rel=1e-12)


def test_a_class_loses_what_its_worst_member_loses():
    charges = [(0, 40, 0.1), (20, 30, 0.4)]
    found = FiniteClass([CHAIN, MarkovChain(THETA2)])
    members = [Ledger(chain).loss_of(charges) for chain in found.chains]
    assert Ledger(found).loss_of(charges) == pytest.approx(max(members), rel=ROUNDING)
    assert quilt_loss(CLASS, charges) == pytest.approx(max(quilt_loss(c, charges) for c in CLASS.chains))


def test_one_state_loses_nothing():
    ledger = Ledger(MarkovChain([[1.0]]), budget=1.0)
    charge = ledger.charge(0, 100, 50.0)
    assert (charge.loss_after, charge.slot) == (0.0, None)
    assert charge.rule == "no loss: the belief has no secret pair"
    assert ledger.density_for(1.0) == math.inf
    assert ledger.extended_loss([Schedule(10, 10, 0, None, 9.0)]) == 0


def test_a_chain_that_never_mixes_is_charged_by_group_privacy():
    ledger = Ledger(MarkovChain(CYCLE), budget=10.01)
    charge = ledger.charge(0, 100, 0.05)
    assert charge.loss_after == pytest.approx(5.0, rel=1e-12)
    assert ledger.charge(1000, 1100, 0.05).loss_after == pytest.approx(10.0, rel=1e-12)
    assert ledger.extended_loss([Schedule(10, 10, 0, None, 0.1)]) == math.inf
    with pytest.raises(ChainError, match=r"no quilt within .* influence below epsilon 1.0"):
        ledger.density_for(1.0)


def test_a_budget_cuts_a_schedule_that_costs_group_privacy():
    ledger = Ledger(MarkovChain(CYCLE), budget=1.0)
    assert ledger.admitted_prefix(Schedule(10, 10, 0, None, 0.0101)) == 90
    assert ledger.admitted_prefix(Schedule(10, 10, 0, 90, 0.0101)) is None


def test_densities_are_summed_exactly():
    tenths = [(0, 10, 0.1), (0, 10, 1e16), (0, 10, 0.2), (0, 10, 1.0)]
    exact = float(Fraction(0.1) + Fraction(1e16) + Fraction(0.2) + 1)
    assert charged(BOUNDS, tenths).runs[0].density == exact != sum((0.1, 1e16, 0.2, 1.0))


@pytest.mark.parametrize("densities", [(0.1, 0.2), (1e-7, 1.0), (3.7, 1e-3, 0.11)])
def test_the_loss_is_rounded_outward_and_by_little(densities):
    # one slot and no neighbour: the loss is the sum of the densities, known exactly
    ledger = charged(BOUNDS, [(5, 6, density) for density in densities])
    exact = sum(map(Fraction, densities))
    assert exact <= Fraction(ledger.loss) <= exact * (1 + Fraction(1, 10**14)) + Fraction(1, 10**14)


@BELIEFS
def test_a_pickled_ledger_charges_as_before(belief):
    ledger = charged(belief, [(0, 20, 0.05), (10, 40, 0.02)], budget=5.0)
    again = pickle.loads(pickle.dumps(ledger))
    assert again.charge(30, 60, 0.03) == ledger.charge(30, 60, 0.03)


@pytest.mark.parametrize("charges", [2, 30], ids=["one by one", "at once"])
def test_a_replay_that_ends_in_an_error_enters_nothing(charges):
    ledger = Ledger(MixingBounds(0.2, 0.5))
    ledger.charge(0, 2, 0.1)
    before, runs = ledger.loss, ledger.runs
    spans = [(10, 12, 0.5)] * charges
    with pytest.raises(ValueError, match=r"epsilon_dp is 1e\+308, but must be at most 1e\+100"):
        ledger.replay([*spans, (0, 10, 1e308)])
    assert (ledger.loss, ledger.runs) == (before, runs)
    assert ledger.charge(10, 12, 0.5).loss_before == before
    assert ledger.loss == Ledger(MixingBounds(0.2, 0.5)).replay([(0, 2, 0.1), (10, 12, 0.5)])


@pytest.mark.parametrize("many", [3, 40], ids=["one by one", "at once"])
def test_an_interrupt_in_a_replay_leaves_the_ledger_usable(many):
    spans = [(7 * j, 7 * j + 3 + j % 4, 0.01 * (1 + j % 9)) for j in range(many)]

    def opened() -> Ledger:
        ledger = Ledger(DobrushinBounds({1: 0.7}, {1: 0.6}))
        ledger.belief.memory.clear()  # courses that are followed already are looked up
        ledger = Ledger(ledger.belief)
        ledger.charge(0, 40, 0.01)
        return ledger

    def interrupted(ledger: Ledger, stop: int) -> int:
        """Replay until so many calls of Python's functions were made; returns how many there are."""
        calls = 0

        def count(_frame, event, _arg):
            nonlocal calls
            calls += event == "call"
            if calls == stop:
                sys.setprofile(None)
                raise KeyboardInterrupt

        sys.setprofile(count)
        try:
            ledger.replay(spans)
        finally:
            sys.setprofile(None)
        return calls

    whole = opened()
    calls = interrupted(whole, 0)
    for part in (1, 7, 13, 19):
        ledger = opened()
        before, runs = ledger.loss, ledger.runs
        with pytest.raises(KeyboardInterrupt):
            interrupted(ledger, part * calls // 20)
        assert (ledger.loss, ledger.runs) == (before, runs)
        assert ledger.replay(spans) == whole.loss


def test_a_loss_that_is_not_a_number_is_within_no_budget(monkeypatch):
    ledger = Ledger(BOUNDS, budget=1e9)
    monkeypatch.setattr(Account, "after", lambda self, *_: replace_worst(self, math.nan))
    with pytest.raises(BudgetExceeded):
        ledger.charge(0, 1, 1e-9)
    assert ledger.loss == 0


def replace_worst(account: Account, loss: float) -> Account:
    made = Account(account.history)
    made.worst = Worst(loss, 0)
    return made


def test_a_rule_never_names_a_smaller_density_than_there_is():
    rule = Ledger(MarkovChain([[0.9, 0.1], [0.4, 0.6]])).charge(0, 5_000, 0.1234567891).rule
    named = re.search(r"above ([\d.]+), and", rule)
    assert named is None or float(named[1]) >= 0.1234567891
    assert named is not None or "slot" in rule


@pytest.mark.night
def test_windows_of_a_class_that_hardly_mixes_are_charged_by_group_privacy():
    belief = MixingBounds(0.01, 1e-4)
    ledger = Ledger(belief)
    for window in range(24):
        ledger.charge(360 * window, 360 * (window + 1), 1e-5)
    assert ledger.loss == pytest.approx(24 * 360 * 1e-5, rel=1e-9)


def test_a_long_gap_between_windows_of_a_chain_that_forgets_at_once_is_priced():
    chain, asked = MarkovChain([[0.5, 0.5], [0.5, 0.5]]), Schedule(4, 9, -1, None, 0.5)
    for start in range(9):
        ledger = Ledger(chain)
        ledger.charge(start, start + 1, 0.75)
        assert ledger.extended_loss([asked]) == pytest.approx(1.25 if start % 9 in (8, 0, 1, 2) else 0.75)


def test_what_is_asked_of_an_account_again_is_the_same_and_another_after_a_charge():
    ledger, asked = Ledger(MarkovChain([[0.9, 0.1], [0.4, 0.6]])), Schedule(48, 48, 0, None, 0.05)
    first = ledger.extended_loss([asked])
    events = [ledger.event_loss(slots, [asked]) for slots in (1, 2, 9)]
    assert ledger.longest_event(1.0, [asked]) is not None
    before = ledger.would_cost(3, 9, 0.4)
    assert (before > 0, ledger.extended_loss([asked])) == (True, first)
    ledger.charge(3, 9, 0.4)
    assert ledger.extended_loss([asked]) > first
    assert ledger.event_loss(9, [asked]) > events[-1]
    made = Ledger(MarkovChain([[0.9, 0.1], [0.4, 0.6]]))
    made.charge(3, 9, 0.4)
    assert [made.event_loss(slots, [asked]) for slots in (1, 9)] == [ledger.event_loss(n, [asked]) for n in (1, 9)]
    ledger.switch(20, MarkovChain([[0.99, 0.01], [0.02, 0.98]]))
    assert ledger.extended_loss([asked]) > made.extended_loss([asked])


def test_threads_are_granted_no_more_than_the_budget_and_lose_no_charge():
    """A switch every 10 microseconds: without turns charges of one thread are taken back by another."""
    before = sys.getswitchinterval()
    ledger, granted = Ledger(MarkovChain(THETA1), budget=0.3), list[tuple[int, int, float]]()

    def charge(number: int) -> None:
        for slot in range(12):
            with suppress(BudgetExceeded):
                ledger.charge(slot, slot + 1 + number % 3, 0.02)
                granted.append((slot, slot + 1 + number % 3, 0.02))

    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(charge, range(8)))
    finally:
        sys.setswitchinterval(before)
    assert ledger.loss == Ledger(MarkovChain(THETA1)).loss_of(granted) <= 0.3


def test_an_iterator_of_charges_may_wait_for_another_thread_that_uses_a_ledger():
    with ThreadPoolExecutor(1) as pool:

        def charges():
            other = pool.submit(lambda: Ledger(MarkovChain(THETA1)).charge(0, 9, 0.1).loss_after)
            yield (0, 1, other.result(timeout=20.0))

        ledger = Ledger(MarkovChain(THETA1))
        assert ledger.loss_of(charges()) == ledger.loss_of(charges=charges()) == ledger.replay(charges())


@pytest.mark.night
@settings(max_examples=examples(40), deadline=None)
@given(windows(300, most=40), st.integers(0, 40))
def test_an_account_entered_at_once_or_one_by_one_is_the_same(charges, cut):
    for belief in (QUICK, THREE):
        one, other = Ledger(belief), Ledger(belief)
        for charge in charges:
            one.charge(*charge)
        other.replay(charges[:cut])
        other.replay(charges[cut:])
        assert one.loss == other.loss == Ledger(belief).loss_of(charges)
        assert one.runs == other.runs


@pytest.mark.night
@settings(max_examples=examples(80), deadline=None)
@given(windows(120, most=6), windows(120, most=3))
def test_computing_the_cost_of_charges_does_not_affect_later_charges(charges, others):
    ledger, untouched = Ledger(THREE), Ledger(THREE)
    ledger.replay(charges)
    untouched.replay(charges)
    for charge in others:
        ledger.would_cost(*charge)
    for charge in others:
        assert ledger.charge(*charge).loss_after == untouched.charge(*charge).loss_after
