"""Windows of unequal length that adjoin: their loss by the definition on small chains, and where a schedule is cut."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from quiltstream.privacy import Ledger, MarkovChain, MixingBounds, Schedule

from ...depth import examples
from .. import reference
from ..strategies import transitions

TINY = 1e-9
BELIEF = MixingBounds(0.2, 0.75)

#: Slots of windows that fill eight slots.
LENGTHS = st.lists(st.integers(1, 4), min_size=2, max_size=5).filter(lambda found: sum(found) <= 8)


def ends_of(lengths, start=0):
    return tuple(accumulate(lengths, initial=start))[1:]


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_the_ledger_bounds_the_loss_of_unequal_windows(data):
    matrix = data.draw(transitions(least=1e-3).filter(lambda found: len(found) == 2))
    assume(MarkovChain(matrix).is_irreducible)
    lengths, density = data.draw(LENGTHS), data.draw(st.floats(0.05, 1.0))
    ends = ends_of(lengths)
    charges = [(start, stop, density) for start, stop in pairwise((0, *ends))]
    truth = reference.true_loss(reference.stationary(matrix), matrix, ends[-1], charges)
    chain = MarkovChain(matrix)
    believed = [chain, MixingBounds.of(chain)] if chain.period == 1 and chain.gap > 1e-6 else [chain]
    for belief in believed:
        ledger = Ledger(belief)
        said = ledger.extended_loss([Schedule(1, 1, 0, ends[-1], density, ends)])
        assert said == pytest.approx(ledger.loss_of(charges), rel=1e-9)
        assert said >= truth - TINY
        # an endless schedule goes on with windows of whatever length
        endless = ledger.extended_loss([Schedule(1, 1, 0, None, density, ends)])
        assert endless >= truth - TINY
        assert endless == ledger.extended_loss([Schedule(1, 1, 0, None, density)])


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_the_ledger_bounds_the_loss_of_windows_with_noise_by_length(data):
    """By enumeration of all paths: each window at a loss per slot of its own, as noise by its length has it."""
    matrix = data.draw(transitions(least=1e-3).filter(lambda found: len(found) == 2))
    assume(MarkovChain(matrix).is_irreducible)
    ends = ends_of(data.draw(LENGTHS))
    densities = tuple(data.draw(st.lists(st.floats(0.05, 1.0), min_size=len(ends), max_size=len(ends))))
    charges = [(*span, density) for span, density in zip(pairwise((0, *ends)), densities, strict=True)]
    truth = reference.true_loss(reference.stationary(matrix), matrix, ends[-1], charges)
    chain = MarkovChain(matrix)
    for belief in [chain, MixingBounds.of(chain)] if chain.period == 1 and chain.gap > 1e-6 else [chain]:
        ledger = Ledger(belief)
        own = Schedule(1, 1, 0, ends[-1], max(densities), ends, densities)
        said = ledger.extended_loss([own])
        assert said == pytest.approx(ledger.loss_of(charges), rel=1e-9)
        assert said >= truth - TINY
        # without an end it is that of the largest density in every slot
        endless = ledger.extended_loss([Schedule(1, 1, 0, None, max(densities), ends, densities)])
        assert endless >= said - TINY
        assert endless == ledger.extended_loss([Schedule(1, 1, 0, None, max(densities))])
        assert own.mass == pytest.approx(sum((stop - start) * density for start, stop, density in charges))


@settings(max_examples=examples(60), deadline=None)
@given(st.data(), st.floats(0.1, 3.0), st.integers(-5, 5))
def test_windows_with_noise_by_length_are_cut_after_the_last_within_the_budget(data, budget, start):
    ends = ends_of(data.draw(LENGTHS), start)
    densities = tuple(data.draw(st.sampled_from([0.05, 0.15, 0.3])) for _ in ends)
    fitting, charged = start, []
    for span, density in zip(pairwise((start, *ends)), densities, strict=True):
        charged.append((*span, density))
        if Ledger(BELIEF).loss_of(charged) > budget:
            break
        fitting = span[1]
    schedule = Schedule(1, 1, start, ends[-1], max(densities), ends, densities)
    assert Ledger(BELIEF, budget).admitted_prefix(schedule) == (None if fitting == ends[-1] else fitting)


@settings(max_examples=examples(60), deadline=None)
@given(LENGTHS, st.floats(0.1, 3.0), st.integers(-5, 5))
def test_unequal_windows_are_cut_after_the_last_within_the_budget(lengths, budget, start):
    ends = ends_of(lengths, start)
    schedule = Schedule(1, 1, start, ends[-1], 0.15, ends)
    fitting = start
    for stop in ends:
        ledger = Ledger(BELIEF, budget)
        if ledger.extended_loss([Schedule(1, 1, start, stop, 0.15, ends)]) > budget:
            break
        fitting = stop
    assert Ledger(BELIEF, budget).admitted_prefix(schedule) == (None if fitting == ends[-1] else fitting)


def test_an_endless_schedule_is_cut_at_a_window_and_sums_over_its_slots():
    ends = ends_of([28, 31, 30, 31] * 40)
    schedule = Schedule(1, 1, 0, None, 0.02, ends)
    budget = Ledger(BELIEF).extended_loss([schedule.first(1)])
    whole = Ledger(BELIEF).extended_loss([schedule])
    cut = Ledger(BELIEF, (budget + whole) / 2).admitted_prefix(schedule)
    assert cut is None or cut in ends
    assert schedule.first(2).mass == pytest.approx(59 * 0.02)
    assert schedule.first(2).windows == 2
    assert schedule.first(2).steps() == Schedule(59, 59, 0, 59, 0.02).steps()
    assert schedule.mass == np.inf


def test_the_longest_event_is_by_the_slots_of_all_windows():
    ends = ends_of([3, 5, 2])
    unequal, level = Schedule(1, 1, 0, 10, 0.1, ends), Schedule(10, 10, 0, 10, 0.1)
    for slots in (1, 2, 5, 50):
        assert Ledger(BELIEF).event_loss(slots, [unequal]) == Ledger(BELIEF).event_loss(slots, [level])
