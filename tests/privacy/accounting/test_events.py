"""What an event of several slots loses: never less than by enumeration of every sequence, and how long one may be."""

from __future__ import annotations

import itertools
import math
import sys

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from quiltstream.privacy import AnyInitial, FiniteClass, Ledger, MarkovChain, MixingBounds, Schedule, mqm_approx
from quiltstream.privacy.models import PeriodicChain
from quiltstream.privacy.models.dobrushin import DobrushinBounds

from ...depth import examples
from .. import reference
from ..strategies import distributions, transitions, windows

LENGTH = {2: 7, 3: 5}
TINY = 1e-9
BOUNDS = MixingBounds(0.2, 0.75)


def truth(start, matrix, charges, slots):
    return reference.true_loss(start, matrix, LENGTH[len(matrix)], charges, slots)


@pytest.mark.night
@settings(max_examples=examples(40), deadline=None)
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


@pytest.mark.night
@settings(max_examples=examples(25), deadline=None)
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


@settings(max_examples=examples(25), deadline=None)
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


def test_schedules_count_in_event_losses():
    density = mqm_approx(BOUNDS, 1.0).epsilon_dp
    endless = Schedule(48, 48, 0, None, density)
    ledger = Ledger(BOUNDS)
    within = [ledger.longest_event(epsilon, [endless]) for epsilon in (0.3, 1.0, 2.0, 4.0)]
    assert within == [0, 20, 52, 115]
    assert ledger.event_loss(20, [endless]) <= 1.0 < ledger.event_loss(21, [endless])


def test_an_event_without_a_usable_account_has_no_bound():
    cycle = MarkovChain([[0.0, 1.0], [1.0, 0.0]])
    assert Ledger(cycle).event_loss(2, [Schedule(1, 1, 0, None, 0.1)]) == math.inf
    assert Ledger(cycle).longest_event(1.0, [Schedule(1, 1, 0, None, 0.1)]) == 0
    still = Ledger(MarkovChain([[1.0]]))
    still.charge(0, 10, 0.1)
    assert (still.event_loss(3), still.longest_event(1.0)) == (0.0, None)
    assert (Ledger(BOUNDS).event_loss(3), Ledger(BOUNDS).longest_event(1.0)) == (0.0, None)


@pytest.fixture
def generator():
    """Random numbers, whose seed a failure shows."""
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    sys.stdout.write(f"seed {seed}\n")
    return np.random.default_rng(seed)


@pytest.mark.night
def test_an_event_where_the_belief_changes_is_bounded_by_enumeration(generator):
    for _ in range(15):
        states = int(generator.integers(2, 4))
        before, after = generator.dirichlet(np.full(states, generator.choice([0.3, 1.0, 3.0])), (2, states))
        length, change = LENGTH[states], int(generator.integers(0, LENGTH[states]))
        charges = [
            (s, int(generator.integers(s + 1, length + 1)), float(generator.uniform(0.05, 2)))
            for s in generator.integers(0, length, 3).tolist()
        ]
        ledger = Ledger(MarkovChain(before))
        ledger.replay(charges)
        ledger.switch(change, MarkovChain(after))
        steps = [before if slot < change else after for slot in range(length - 1)]
        for slots in (1, 2, 3):
            found = reference.changing_loss(reference.stationary(before), steps, charges, slots=slots)
            assert ledger.event_loss(slots) >= found - TINY, (before, after, change, charges, slots)


@pytest.mark.night
def test_an_event_under_a_rhythm_or_its_contraction_is_bounded_by_enumeration(generator):
    for _ in range(15):
        kernels = generator.dirichlet(np.full(2, generator.choice([0.5, 1.0, 3.0])), (2, 2))
        belief = PeriodicChain(kernels)
        charges = [
            (s, s + int(generator.integers(1, 3)), float(generator.uniform(0.05, 2)))
            for s in generator.integers(0, 6, 3).tolist()
        ]
        start = MarkovChain(kernels[0] @ kernels[1]).stationary
        for one in (belief, DobrushinBounds.of(belief)):
            ledger = Ledger(one)
            ledger.replay(charges)
            for slots in (2, 3):
                found = reference.changing_loss(start, [*kernels, *kernels, *kernels, kernels[0]], charges, slots=slots)
                assert ledger.event_loss(slots) >= found - TINY, (kernels, charges, slots)


@pytest.mark.night
def test_an_event_on_an_endless_schedule_loses_no_less_than_on_a_part_of_it(generator):
    for _ in range(20):
        size, every = sorted(generator.integers(1, 7, 2).tolist(), reverse=bool(generator.integers(2)))
        rate = float(generator.uniform(0.01, 0.3))
        charges = [(s, s + 5, float(generator.uniform(0.01, 0.6))) for s in generator.integers(0, 30, 2).tolist()]
        endless = Schedule(size, every, int(generator.integers(0, 60)), None, rate)
        belief = (BOUNDS, MarkovChain([[0.9, 0.1], [0.4, 0.6]]), DobrushinBounds({1: 0.8}, {1: 0.8}))[
            int(generator.integers(3))
        ]
        ledger, whole = Ledger(belief), Ledger(belief)
        for one in (ledger, whole):
            one.replay(charges)
        whole.replay([(endless.start + j * every, endless.start + j * every + size, rate) for j in range(60)])
        if generator.integers(2):
            for one in (ledger, whole):
                one.switch(20, BOUNDS)
        for slots in (2, 5, 23, 61):
            part, all_of_it = whole.event_loss(slots), ledger.event_loss(slots, [endless])
            assert part <= all_of_it * (1 + 1e-3), (belief, charges, endless, slots)


def test_an_event_needs_no_certificate_and_no_single_belief():
    bounds = DobrushinBounds({1: 0.8}, {1: 0.8})
    ledger, windows_of = Ledger(bounds), Schedule(1, 10, 0, None, 0.5)
    ledger.replay([(10 * j, 10 * j + 1, 0.5) for j in range(100)])
    # no certificate holds at the density 0.5 in every slot; all charges are 50
    assert ledger.event_loss(1) < ledger.event_loss(2) < 1.5
    assert ledger.event_loss(21) - ledger.event_loss(2) == pytest.approx(1.0)
    assert Ledger(bounds).event_loss(2, [windows_of]) == pytest.approx(ledger.event_loss(2), rel=1e-4)
    assert ledger.longest_event(2.5) == Ledger(bounds).longest_event(2.5, [windows_of]) == 30
    changed = Ledger(BOUNDS)
    changed.switch(5, BOUNDS)
    changed.charge(0, 10, 0.1)
    assert changed.loss < changed.event_loss(2) == pytest.approx(1.0)
    stream = [Schedule(1, 1, 20, None, 0.1)]
    assert changed.event_loss(3, stream) - changed.event_loss(2, stream) == pytest.approx(0.1)
