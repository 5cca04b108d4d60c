"""The running loss: what was computed once is not computed again, and nothing depends on how an account grew."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.privacy import Ledger, MarkovChain, MixingBounds, Schedule
from quiltstream.privacy.accounting import sweep
from quiltstream.privacy.accounting.charges import Density, Timeline
from quiltstream.privacy.accounting.quilt_account import (
    Pricer,
    QuiltAccount,
    priced,
    prices_of,
    undominated,
    worst_unless_above,
)
from quiltstream.privacy.quilts import SidedInfluence

from ...depth import examples
from .. import reference
from ..strategies import windows
from .test_ledger_truth import falling_tables

THREE = MarkovChain([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.1, 0.1, 0.8]])
QUICK = MixingBounds(pi_min=0.5, gap=2.0)
SCHEDULES = pytest.mark.parametrize(
    "windows_of",
    [
        lambda number: (50 * number, 50 * number + 20, 0.03),
        lambda number: (20 * number, 20 * number + 20, 0.03),
        lambda number: (20 * number, 20 * number + 80, 0.01),
        lambda number: (10**4 * number, 10**4 * number + 300, 0.2),
        lambda number: (-40 * number, -40 * number + 10, 0.4),
        lambda number: (30 * number, 30 * number + 30, 0.01 * (1 + number % 4)),
    ],
    ids=["gaps", "tumbling", "sliding", "far apart", "backwards", "four densities"],
)


@SCHEDULES
@pytest.mark.parametrize("belief", [QUICK, THREE], ids=["bounds", "chain"])
def test_a_charge_on_a_priced_schedule_requires_no_new_computation(windows_of, belief, monkeypatch):
    priced, swept = [], []
    real_worst, real_step = QuiltAccount.worst, sweep.Course._step
    monkeypatch.setattr(QuiltAccount, "worst", lambda self: priced.append(self) or real_worst(self))
    monkeypatch.setattr(sweep.Course, "_step", lambda self: swept.append(self) or real_step(self))
    ledger = Ledger(belief)
    for number in range(60):
        ledger.charge(*windows_of(number))
    priced.clear()
    swept.clear()
    for number in range(60, 100):
        ledger.charge(*windows_of(number))
    # the worst slot of the sweep shows that no quilt is below it
    assert priced == []
    assert len(swept) <= 40
    assert ledger.loss == Ledger(belief).loss_of([windows_of(number) for number in range(100)])


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


@settings(max_examples=examples(300), deadline=None)
@given(falling_tables(), windows(70, most=14, epsilon=(0.01, 0.7)), st.floats(0, 1))
def test_quilts_are_called_above_a_loss_only_where_they_are(tables, charges, place):
    pricer = Pricer(SidedInfluence(tables[0], tables[1], (), "any"))
    line = Timeline(Density().with_spans(charges))
    slot = line.slots[0] + int(place * (line.slots[-1] - 1 - line.slots[0]))
    worst = QuiltAccount(pricer, line).worst()
    assert QuiltAccount(pricer, line).at(slot) <= worst.loss * (1 + 1e-12)
    assert worst_unless_above(pricer, line, slot, worst.loss * (1 + 2.0**-30)) is not None


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


@settings(max_examples=examples(150), deadline=None)
@given(falling_tables(), windows(25, most=4, epsilon=(0.01, 1.0)))
def test_pairs_that_are_dropped_never_decide(tables, charges):
    left, right = tables
    rows = undominated(left, right)
    for row in set(range(len(left))) - set(rows.tolist()):
        above = [kept for kept in rows if (left[row] <= left[kept]).all() and (right[row] <= right[kept]).all()]
        assert above
    density = Density().with_spans(charges)
    influence = SidedInfluence(left, right, (), "any")
    losses = [
        QuiltAccount(pricer, Timeline(density)).worst().loss for pricer in (Pricer(influence), Pricer(influence, rows))
    ]
    assert losses[0] == losses[1]


@settings(max_examples=examples(50), deadline=None)
@given(
    st.integers(2, 30),
    windows(90, most=6, epsilon=(0.001, 0.3)),
    st.integers(0, 10**6),
    st.sampled_from([(0.1, 3.0), (0.98, 1.02)]),
)
def test_with_many_pairs_the_loss_is_the_rule_slot_by_slot(pairs, charges, seed, scales):
    # influences that cross each other, so that most pairs stay
    generator = np.random.default_rng(seed)
    lags = 40
    tables = [
        np.sort(
            generator.exponential(1.0, (pairs, lags)) * generator.uniform(scales[0], scales[1], (pairs, 1)), axis=1
        )[:, ::-1]
        for _ in range(2)
    ]
    left, right = (np.ascontiguousarray(table) for table in tables)
    density = Density().with_spans(charges)
    pricer = Pricer(SidedInfluence(left, right, (), "any"), undominated(left, right))
    worst = QuiltAccount(pricer, Timeline(density)).worst()
    lefts = [lambda lag, row=row: float(row[lag - 1]) for row in left]
    rights = [lambda lag, row=row: float(row[lag - 1]) for row in right]
    assert worst.loss == pytest.approx(reference.rule(lefts, rights, charges, lags), rel=1e-12)


@pytest.mark.parametrize("charges", [[], [(0, 9, 0.3), (30, 32, 0.7)]])
def test_quilts_that_end_too_far_off_are_not_priced_and_change_no_loss(charges):
    schedule, density = Schedule(1, 2, 40, None, 0.5), Density().with_spans(charges)
    prices_of.cache_clear()
    prices = prices_of(MarkovChain([[0.9, 0.1], [0.2, 0.8]]))
    assert (prices.reach, prices.nearby(density, [schedule]).reach) == (81, 44 if charges else 10)
    found = priced(prices, density, [schedule])
    assert not prices.worst_of.cache_info().misses
    # so many windows that the last ones see nothing before the first
    ends = Timeline(density.with_steps(schedule.steps(4 * prices.reach)))
    assert found == QuiltAccount(prices, ends).rounded().loss
