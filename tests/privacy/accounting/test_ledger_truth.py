"""The ledger against its rule written out slot by slot, and against the loss by the definition on small chains."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from quiltstream.privacy import AnyInitial, FiniteClass, Ledger, MarkovChain, MixingBounds, Schedule
from quiltstream.privacy.models import Belief

from ...depth import examples
from .. import reference
from ..ledgers import quilt_loss
from ..strategies import distributions, transitions, windows

# slots enumerated: 2^8 sequences of two states, 3^5 of three
LENGTH = {2: 8, 3: 5}
# the ledger rounds outward; the enumeration's own rounding is a little more
TINY = 1e-9


def beliefs_of(matrix):
    """What may be believed of a chain that starts stationary."""
    chain = MarkovChain(matrix)
    found: list[Belief] = [chain, MarkovChain(matrix, np.eye(len(matrix))[0]), AnyInitial([matrix])]
    found.append(FiniteClass([MarkovChain(np.full_like(matrix, 1 / len(matrix))), chain]))
    if chain.is_irreducible and chain.period == 1 and chain.gap > 1e-6:
        found.append(MixingBounds.of(chain))
    return found


@pytest.mark.night
@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_the_ledger_bounds_the_loss_of_every_stationary_chain(data):
    matrix = data.draw(transitions(zeros=data.draw(st.booleans()), least=1e-3))
    assume(MarkovChain(matrix).is_irreducible)
    length = LENGTH[len(matrix)]
    charges = data.draw(windows(length))
    start = reference.stationary(matrix)
    truth = reference.response_loss(start, matrix, length, charges)
    counted = reference.count_loss(start, matrix, length, charges)
    assert counted <= truth + TINY or len(matrix) > 2  # the counts are a function of the answers' slots
    for belief in beliefs_of(matrix):
        ledger = Ledger(belief)
        ledger.replay(charges)
        quilts = ledger.bounds()["quilts"].loss
        assert quilts is not None
        # a matrix is raised by a rounding until couplings prove it
        assert ledger.loss <= quilts * (1 + 1e-10) or quilts > 1
        assert ledger.loss >= max(truth, counted) - TINY


@pytest.mark.night
@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_the_ledger_bounds_the_loss_of_every_chain_with_a_fixed_start(data):
    matrix = data.draw(transitions(zeros=data.draw(st.booleans()), least=1e-3))
    length = LENGTH[len(matrix)]
    start = data.draw(distributions(len(matrix)))
    charges = data.draw(windows(length))
    truth = reference.true_loss(start, matrix, length, charges)
    for ledger in (Ledger(MarkovChain(matrix, start), start=0), Ledger(AnyInitial([matrix]))):
        assert ledger.loss_of(charges) >= truth - TINY
    chain = MarkovChain(matrix)
    if chain.is_irreducible and chain.period == 1 and chain.gap > 1e-6:
        assert Ledger(MixingBounds.of(chain)).loss_of(charges) >= truth - TINY


@pytest.mark.night
def test_the_ledger_equals_the_definition_for_extreme_chains():
    # independent slots lose their density, a chain that cannot move loses the whole window
    charges = [(0, 4, 0.3), (2, 6, 0.5)]
    free = np.full((2, 2), 0.5)
    assert reference.response_loss(np.full(2, 0.5), free, 6, charges) == pytest.approx(0.8)
    assert Ledger(MarkovChain(free)).loss_of(charges) == pytest.approx(0.8)
    still = np.array([[1 - 1e-9, 1e-9], [1e-9, 1 - 1e-9]])
    assert reference.response_loss(np.full(2, 0.5), still, 6, charges) == pytest.approx(3.2, abs=1e-6)
    assert Ledger(MarkovChain(still)).loss_of(charges) == pytest.approx(3.2, abs=1e-6)


@settings(max_examples=examples(60), deadline=None)
@given(st.floats(0.1, 0.5), st.floats(0.5, 2.0), windows(25, most=5), st.integers(0, 1))
def test_with_mixing_bounds_the_quilts_loss_is_the_rule_slot_by_slot(pi_min, gap, charges, far):
    charges = [*charges, *((start + 90 * far, stop + 90 * far, e) for start, stop, e in charges)]
    expected = reference.rule(
        [lambda lag: 2 * reference.lemma_f(pi_min, gap, lag)],
        [lambda lag: reference.lemma_f(pi_min, gap, lag)],
        charges,
        120,
    )
    assert quilt_loss(MixingBounds(pi_min, gap), charges) == pytest.approx(expected, rel=1e-9)


@pytest.mark.night
@settings(max_examples=examples(40), deadline=None)
@given(transitions(least=0.05), windows(20, most=5))
def test_with_a_chain_the_quilts_loss_is_the_rule_slot_by_slot(matrix, charges):
    lefts, rights = reference.chain_influences(matrix)
    expected = reference.rule(lefts, rights, charges, 40)
    # the lags beyond 40 that the plain rule leaves out can only lower the loss
    loss = quilt_loss(MarkovChain(matrix), charges)
    assert loss <= expected * (1 + 1e-9)
    assert loss >= reference.rule(lefts, rights, charges, 160) * (1 - 1e-9)


QUICK = MixingBounds(pi_min=0.5, gap=2.0)  # reach 30: endless schedules can be written out


@settings(max_examples=examples(40), deadline=None)
@given(windows(150, most=4, epsilon=(0.01, 1.0)), st.floats(0.01, 1.0))
def test_in_windows_longer_than_the_reach_the_quilts_loss_is_the_rule_slot_by_slot(charges, epsilon_dp):
    left, right = (lambda lag: 2 * reference.lemma_f(0.5, 2.0, lag)), (lambda lag: reference.lemma_f(0.5, 2.0, lag))
    for extra in ([], [(0, 150, epsilon_dp)], [(0, 45, epsilon_dp), (45, 50, 5 * epsilon_dp)]):
        expected = reference.rule([left], [right], [*charges, *extra], 40)
        assert quilt_loss(QUICK, [*charges, *extra]) == pytest.approx(expected, rel=1e-10)


@settings(max_examples=examples(60), deadline=None)
@given(
    size=st.integers(1, 20),
    every=st.integers(1, 20),
    epsilon_dp=st.floats(0.01, 2.0),
    charges=st.one_of(st.just([]), windows(40, most=3)),
)
def test_the_loss_of_an_endless_schedule_is_the_limit_of_its_windows(size, every, epsilon_dp, charges):
    endless = Schedule(size, every, 7, None, epsilon_dp)
    ledger = Ledger(QUICK)
    ledger.replay(charges)
    many = Ledger(QUICK).loss_of([*charges, *((7 + every * j, 7 + every * j + size, epsilon_dp) for j in range(220))])
    assert ledger.extended_loss([endless]) == pytest.approx(many, rel=1e-10)
    assert ledger.extended_loss([endless.first(220)]) == pytest.approx(many, rel=1e-13)
    assert ledger.extended_loss([]) == pytest.approx(ledger.loss, rel=1e-13)


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 6), st.integers(0, 9)), min_size=2, max_size=3))
def test_the_loss_of_several_endless_schedules_equals_that_of_their_windows(shapes):
    endless = [Schedule(size, every, start, None, 0.3) for size, every, start in shapes]
    written = [
        (s.start + s.every * j, s.start + s.every * j + s.size, 0.3) for s in endless for j in range(300 // s.every)
    ]
    assert Ledger(QUICK).extended_loss(endless) == pytest.approx(Ledger(QUICK).loss_of(written), rel=1e-10)


def test_endless_schedules_without_a_common_period_are_priced_from_above():
    endless = [Schedule(1, every, 0, None, 0.1) for every in (97, 101, 103)]
    loss = Ledger(QUICK).extended_loss(endless)
    assert loss == pytest.approx(Ledger(QUICK).ceiling(0.3), rel=1e-12)
    written = [(every * j, every * j + 1, 0.1) for every in (97, 101, 103) for j in range(100)]
    assert loss >= Ledger(QUICK).loss_of(written)


@pytest.mark.night
@settings(max_examples=examples(60), deadline=None)
@given(
    shape=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    count=st.one_of(st.none(), st.integers(0, 30)),
    epsilon_dp=st.floats(0.05, 1.0),
    budget=st.floats(0.3, 3.0),
    reserve=st.booleans(),
)
def test_the_admitted_prefix_is_the_longest_that_fits(shape, count, epsilon_dp, budget, reserve):
    size, every = shape
    endless = Schedule(size, every, 3, None, epsilon_dp)
    schedule = endless if count is None else endless.first(count)
    reserved = [Schedule(5, 15, 0, None, 0.05)] if reserve else []
    ledger = Ledger(QUICK, budget)
    ledger.replay([(0, 10, 0.02)])
    stop = ledger.admitted_prefix(schedule, reserved)
    fits = [
        number
        for number in range(1, 60 if count is None else count + 1)
        if ledger.extended_loss([*reserved, endless.first(number)]) <= budget
    ]
    if stop is None:
        assert ledger.extended_loss([*reserved, schedule]) <= budget
    else:
        assert stop == endless.end_of(max(fits, default=0))
        assert stop == 3 or ledger.extended_loss([*reserved, Schedule(size, every, 3, stop, epsilon_dp)]) <= budget


def test_without_a_budget_everything_is_admitted():
    assert Ledger(QUICK).admitted_prefix(Schedule(5, 1, 0, None, 100.0)) is None
