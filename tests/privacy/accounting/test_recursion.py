"""The ledger of classes and of long and distant windows: never below the definition, never above the quilts."""

from __future__ import annotations

import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.privacy import (
    AnyInitial,
    FiniteClass,
    Ledger,
    MarkovChain,
    MixingBounds,
)
from quiltstream.privacy.models import PeriodicChain
from quiltstream.privacy.models.dobrushin import DobrushinBounds

from ...depth import examples
from .. import reference
from ..ledgers import quilt_loss
from ..strategies import transitions, windows

# slots enumerated: 2^8 sequences of two states, 3^5 of three
LENGTH = {2: 8, 3: 5}
TINY = 1e-9
ROUNDED = 1e-11  # of a loss, whose parts are rounded up
CIRCLING = np.array([[0.5, 0.4, 0.1], [0.1, 0.5, 0.4], [0.5, 0.2, 0.3]])
THETA = np.array([[0.9, 0.1], [0.4, 0.6]])
BOUNDS = MixingBounds(0.2, 0.75)


def truth(start, matrix, charges):
    return reference.true_loss(start, matrix, LENGTH[len(matrix)], charges)


@settings(max_examples=examples(40))
@given(st.data())
def test_the_ledger_bounds_the_loss_of_every_periodic_chain(data):
    one, two = (data.draw(transitions(states=st.just(2), least=0.05)) for _ in range(2))
    charges = data.draw(windows(8, epsilon=(0.01, 1.0)))
    belief = PeriodicChain([one, two])
    start = MarkovChain(one @ two).stationary
    # the matrices one after the other, slot 0 the first
    found = reference.changing_loss(start, ([one, two] * 4)[:7], charges)
    assert found - TINY <= Ledger(belief).loss_of(charges)


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 10**6))
def test_the_ledger_bounds_the_loss_of_periodic_chains_with_states_that_are_impossible_at_a_slot(seed):
    generator = np.random.default_rng(seed)
    kernels = generator.dirichlet(np.full(3, 0.7), (3, 3))
    # no state leads to the first one out of slot 0, and to the last one out of slot 1
    kernels[0, :, 0], kernels[1, :, 2] = 0.0, 0.0
    kernels /= kernels.sum(axis=2, keepdims=True)
    charges = some_windows(generator, 5, 2.0)
    start = reference.stationary(kernels[0] @ kernels[1] @ kernels[2])
    truth = reference.changing_loss(start, [kernels[slot % 3] for slot in range(4)], charges)
    assert truth - TINY <= Ledger(PeriodicChain(kernels)).loss_of(charges)


@pytest.mark.night
@settings(max_examples=examples(60))
@given(st.data())
def test_with_long_and_distant_windows_the_ledger_is_never_above_the_quilts(data):
    belief = data.draw(st.sampled_from([MarkovChain(THETA), MarkovChain(CIRCLING), AnyInitial([CIRCLING]), BOUNDS]))
    charges = data.draw(windows(300, most=8, epsilon=(0.001, 0.5)))
    loss = Ledger(belief).loss_of(charges)
    assert loss <= quilt_loss(belief, charges) + ROUNDED or loss > 1


@pytest.mark.night
@settings(max_examples=examples(40))
@given(windows(120, most=7, epsilon=(0.001, 0.5)), st.randoms(use_true_random=False), st.data())
def test_charges_in_any_order_give_one_float_and_never_lower_the_loss(charges, shuffled, data):
    belief = data.draw(
        st.sampled_from([MarkovChain(THETA), MarkovChain(CIRCLING), BOUNDS, FiniteClass([MarkovChain(CIRCLING)] * 2)])
    )
    ledger, other = Ledger(belief), Ledger(belief)
    before = 0.0
    for charge in charges:
        added = ledger.would_cost(*charge)
        assert ledger.loss == before
        after = ledger.charge(*charge).loss_after
        assert after >= before * (1 - 1e-12)
        assert after - before == pytest.approx(added, abs=1e-12)
        before = after
    assert Ledger(belief).replay([*charges, *[(0, 1, 1e-300)] * 17]) == pytest.approx(before, rel=1e-12)
    shuffled.shuffle(charges)
    for charge in charges:
        other.charge(*charge)
    assert other.loss == ledger.loss == Ledger(belief).loss_of(charges)


def test_the_worst_slot_may_lie_between_two_windows():
    matrix = np.array([[0.01, 0.01, 0.98], [0.06, 0.0, 0.94], [0.93, 0.07, 0.0]])
    chain = MarkovChain(matrix)
    charges = [(0, 1, 2.0), (2, 3, 2.0)]
    ledger = Ledger(chain)
    ledger.charge(*charges[0])
    charge = ledger.charge(*charges[1])
    assert charge.slot == 1
    assert truth(chain.stationary, matrix, charges) <= charge.loss_after <= 4.0


LONDON = {1: 0.98, 2: 0.88, 4: 0.67, 8: 0.38, 16: 0.12, 32: 0.013}


@pytest.mark.night
@pytest.mark.parametrize(
    ("belief", "slots", "density"),
    [
        (DobrushinBounds({100: 0.5}, {100: 0.5}), 300, 0.01),
        (DobrushinBounds({100: 0.5}, {100: 0.5}), 4_000, 0.01),
        (DobrushinBounds(LONDON, LONDON), 336, 0.14),
        (DobrushinBounds(LONDON, LONDON), 336, 0.3),
        (MixingBounds(0.05, 0.02), 600, 0.03),
        (MarkovChain([[0.999, 0.001], [0.002, 0.998]]), 600, 0.02),
    ],
)
def test_a_charge_that_divides_a_run_which_settles_nowhere_lowers_no_loss(belief, slots, density):
    ledger = Ledger(belief)
    before = ledger.charge(0, slots, density).loss_after
    assert before < slots * density
    for slot in range(150, slots, 150):
        after = ledger.charge(slot, slot + 1, 1e-9).loss_after
        assert before <= after < before + 1e-6
        before = after


def test_sums_of_densities_are_rounded_up():
    """Of a member that is frozen but for one transition in 100,000, all slots tell the same."""
    belief = DobrushinBounds({100_000: 0.5}, {100_000: 0.5})
    generator = np.random.default_rng(11)
    for first, second in generator.uniform(1e-6, 4e-6, (14, 2)).tolist():
        loss = Ledger(belief).loss_of([(0, 40_000, first), (40_000, 90_000, second)])
        assert Fraction(loss) >= 40_000 * Fraction(first) + 50_000 * Fraction(second)


@pytest.fixture
def generator():
    """Random numbers, whose seed a failure shows."""
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    sys.stdout.write(f"seed {seed}\n")
    return np.random.default_rng(seed)


def kernel(generator):
    """A random kernel of two or three states: even, with zeros, nearly periodic, with a rare state, or slow."""
    states = int(generator.integers(2, 4))
    kind = generator.integers(5)
    matrix = generator.dirichlet(np.ones(states), states)
    if kind == 1:
        matrix = np.where(generator.random(matrix.shape) < 0.3, 0.0, matrix)
        matrix[matrix.sum(axis=1) == 0] = 1.0
    if kind == 2:
        matrix = np.roll(np.eye(states), 1, axis=1) + matrix * 10.0 ** generator.uniform(-6, -1)
    if kind == 3:
        matrix[:, 0] *= 10.0 ** generator.uniform(-12, -3)
    if kind == 4:
        matrix = np.eye(states) + matrix * 10.0 ** generator.uniform(-9, -1)
    return matrix / matrix.sum(axis=1, keepdims=True)


def some_windows(generator, length, largest):
    starts = generator.integers(0, length, int(generator.integers(1, 6)))
    return [
        (int(start), int(generator.integers(start + 1, length + 1)), float(largest * 10.0 ** generator.uniform(-3, 0)))
        for start in starts
    ]


def ratio_of_outputs(start, matrix, density, outputs):
    """The largest log-ratio of one series of outputs, each true with odds e to the power of its slot's density."""
    length, states = len(density), len(matrix)
    told = np.where(np.arange(states) == outputs[:, None], np.exp(density)[:, None], 1.0)
    ahead = np.ones((length, states))
    for slot in range(length - 2, -1, -1):
        ahead[slot] = matrix @ (told[slot + 1] * ahead[slot + 1])
        ahead[slot] /= ahead[slot].max()
    prior, before = np.array(start, dtype=float), np.array(start, dtype=float)
    most = 0.0
    for slot in range(length):
        live = prior > 1e-250
        given = np.log(before[live] / prior[live]) + np.log(told[slot] * ahead[slot])[live]
        most = max(most, float(given.max() - given.min()))
        before = (before * told[slot]) @ matrix
        prior, before = prior @ matrix, before / before.max()
    return most


@pytest.mark.night
def test_over_10000_compositions_the_ledger_is_never_below_the_definition(generator):
    for number in range(400):
        matrix = kernel(generator)
        chain = MarkovChain(matrix, generator.dirichlet(np.ones(len(matrix))) if number % 2 else None)
        if number % 2 == 0 and not chain.is_irreducible:
            continue
        start = chain.stationary if chain.initial is None else chain.initial
        for _ in range(25):
            charges = some_windows(generator, LENGTH[len(matrix)], 3.0)
            assert truth(start, matrix, charges) - TINY <= Ledger(chain).loss_of(charges), (matrix, charges)


@pytest.mark.night
def test_the_ledger_bounds_sampled_output_ratios_over_windows_of_336_slots(generator):
    for _ in range(100):
        matrix = kernel(generator)
        chain = MarkovChain(matrix)
        if not chain.is_irreducible:
            continue
        for _ in range(10):
            charges = some_windows(generator, 336, 0.5)
            density = np.zeros(336)
            for start, stop, rate in charges:
                density[start:stop] += rate
            paths = [np.full(336, state) for state in range(len(matrix))]
            paths += [
                np.repeat(generator.integers(0, len(matrix), 336 // length + 1), length)[:336] for length in (1, 7, 40)
            ]
            found = max(ratio_of_outputs(chain.stationary, matrix, density, path) for path in paths)
            assert found - 1e-6 <= Ledger(chain).loss_of(charges), (matrix, charges)


@pytest.mark.night
@pytest.mark.parametrize("_part", range(4))  # for several workers
def test_over_10000_schedules_the_ledger_is_never_above_the_quilts_or_a_theorem(_part, generator):
    for _ in range(200 // 4):
        chain = MarkovChain(kernel(generator))
        belief = MixingBounds(float(generator.uniform(0.001, 0.5)), float(10.0 ** generator.uniform(-2, 0.3)))
        for held in (chain, belief):
            if held is chain and not chain.is_irreducible:
                continue
            for _ in range(25):
                ledger = Ledger(held)
                ledger.replay(some_windows(generator, int(generator.integers(1, 400)), 0.5))
                for name, bound in ledger.bounds().items():
                    assert bound.loss is None or ledger.loss <= bound.loss + ROUNDED or bound.loss > 1, (name, held)
