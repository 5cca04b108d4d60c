"""What an event of several slots loses: never less than by enumeration of every sequence, and how long one may be."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from quiltstream.privacy import AnyInitial, FiniteClass, Ledger, MarkovChain, MixingBounds, Schedule, mqm_approx

from .. import reference
from ..strategies import distributions, transitions, windows

LENGTH = {2: 7, 3: 5}
TINY = 1e-9
BOUNDS = MixingBounds(0.2, 0.75)


def truth(start, matrix, charges, slots):
    length = LENGTH[len(matrix)]
    return max(
        reference.response_loss(start, matrix, length, charges, slots),
        reference.count_loss(start, matrix, length, charges, slots),
    )


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_event_loss_bounds_every_event_of_a_stationary_chain(data):
    matrix = data.draw(transitions(zeros=data.draw(st.booleans()), least=1e-2))
    chain = MarkovChain(matrix)
    assume(chain.is_irreducible and chain.period == 1 and chain.gap > 1e-2)
    charges = data.draw(windows(LENGTH[len(matrix)], epsilon=(0.01, 0.5)))
    slots = data.draw(st.integers(1, 4))
    found = truth(reference.stationary(matrix), matrix, charges, slots)
    both = FiniteClass([chain, MarkovChain(np.full_like(matrix, 1 / len(matrix)))])
    for belief in (chain, AnyInitial([matrix]), MixingBounds.of(chain), both):
        ledger = Ledger(belief)
        ledger.replay(charges)
        assert ledger.event_loss(slots) >= found - TINY


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_the_event_loss_bounds_every_event_of_a_chain_with_a_fixed_start(data):
    matrix = data.draw(transitions(zeros=data.draw(st.booleans()), least=1e-2))
    start = data.draw(distributions(len(matrix)))
    charges = data.draw(windows(LENGTH[len(matrix)], epsilon=(0.01, 0.5)))
    ledger = Ledger(MarkovChain(matrix, start), start=0)
    ledger.replay(charges)
    for slots in (1, 2, 4):
        assert ledger.event_loss(slots) >= truth(start, matrix, charges, slots) - TINY


def test_the_bound_on_the_loss_of_a_long_event_is_nearly_attained():
    # of two states that change together each pair of ends is the worst one
    matrix = np.array([[0.8, 0.2], [0.2, 0.8]])
    ledger = Ledger(MarkovChain(matrix))
    charges = [(0, 9, 0.3)]
    ledger.replay(charges)
    found = reference.response_loss(np.full(2, 0.5), matrix, 9, charges, 3)
    assert found <= ledger.event_loss(3) <= 1.1 * found


@settings(max_examples=25, deadline=None)
@given(windows(40, epsilon=(0.01, 0.4)), st.floats(0.05, 6.0))
def test_a_longer_event_loses_no_less_and_the_longest_is_the_last_within(charges, epsilon):
    for belief in (BOUNDS, MarkovChain([[0.9, 0.1], [0.4, 0.6]]), MarkovChain([[0.0, 1.0], [1.0, 0.0]])):
        ledger = Ledger(belief)
        ledger.replay(charges)
        losses = [ledger.event_loss(slots) for slots in range(1, 60)]
        assert losses[0] == ledger.loss
        assert all(one <= other for one, other in itertools.pairwise(losses))
        # group privacy bounds every event
        assert losses[-1] <= sum((stop - start) * e for start, stop, e in charges) * (1 + 1e-12)
        longest = ledger.longest_event(epsilon)
        if longest is None:
            assert losses[-1] <= epsilon
        else:
            assert longest == sum(loss <= epsilon for loss in losses)


def test_schedules_and_compacted_slots_count_in_event_losses():
    density = mqm_approx(BOUNDS, 1.0).epsilon_dp
    endless = Schedule(48, 48, 0, None, density)
    ledger = Ledger(BOUNDS)
    within = [ledger.longest_event(epsilon, [endless]) for epsilon in (0.3, 1.0, 2.0, 4.0)]
    assert within == [0, 20, 52, 115]
    assert ledger.event_loss(20, [endless]) <= 1.0 < ledger.event_loss(21, [endless])
    compacted = Ledger(BOUNDS, budget=2.0)
    compacted.charge(0, 1000, density)
    compacted.compact(10_000)
    assert compacted.event_loss(20) == ledger.event_loss(20, [endless])


def test_an_event_without_a_usable_account_has_no_bound():
    cycle = MarkovChain([[0.0, 1.0], [1.0, 0.0]])
    assert Ledger(cycle).event_loss(2, [Schedule(1, 1, 0, None, 0.1)]) == math.inf
    assert Ledger(cycle).longest_event(1.0, [Schedule(1, 1, 0, None, 0.1)]) == 0
    ledger = Ledger(BOUNDS)
    ledger.switch(5, BOUNDS)
    ledger.charge(0, 10, 0.1)
    assert ledger.event_loss(2) == pytest.approx(1.0)
    assert ledger.event_loss(2, [Schedule(1, 1, 20, None, 0.1)]) == math.inf
    still = Ledger(MarkovChain([[1.0]]))
    still.charge(0, 10, 0.1)
    assert (still.event_loss(3), still.longest_event(1.0)) == (0.0, None)
    assert (Ledger(BOUNDS).event_loss(3), Ledger(BOUNDS).longest_event(1.0)) == (0.0, None)


@pytest.mark.parametrize(("slots", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError)])
def test_an_event_has_at_least_one_slot(slots, error):
    with pytest.raises(error, match="slots"):
        Ledger(BOUNDS).event_loss(slots)
