"""The recursion over the slots: never below the definition; with it the ledger is never above the quilts."""

from __future__ import annotations

import sys
from contextlib import suppress
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from quiltstream.privacy import (
    AnyInitial,
    BinaryInterval,
    FiniteClass,
    Ledger,
    MarkovChain,
    MixingBounds,
    Schedule,
)
from quiltstream.privacy.accounting import sweep
from quiltstream.privacy.accounting.charges import Density
from quiltstream.privacy.accounting.quilt_account import loss_by_quilts
from quiltstream.privacy.accounting.sweep import BeliefHistory, State, Sweeper, endless_loss, loss_of
from quiltstream.privacy.models import PeriodicChain
from quiltstream.privacy.models.belief import Belief
from quiltstream.privacy.models.dobrushin import DobrushinBounds

from ...depth import examples
from .. import reference
from ..strategies import distributions, transitions, windows

# slots enumerated: 2^8 sequences of two states, 3^5 of three
LENGTH = {2: 8, 3: 5}
TINY = 1e-9
CIRCLING = np.array([[0.5, 0.4, 0.1], [0.1, 0.5, 0.4], [0.5, 0.2, 0.3]])
THETA = np.array([[0.9, 0.1], [0.4, 0.6]])
BOUNDS = MixingBounds(0.2, 0.75)


def density_of(charges):
    return Density().with_spans(charges)


def truth(start, matrix, charges):
    return reference.true_loss(start, matrix, LENGTH[len(matrix)], charges)


@settings(max_examples=examples(150))
@given(st.data())
def test_the_recursion_bounds_the_loss_of_every_stationary_chain(data):
    matrix = data.draw(transitions(zeros=data.draw(st.booleans()), least=1e-3))
    chain = MarkovChain(matrix)
    assume(chain.is_irreducible)
    charges = data.draw(windows(LENGTH[len(matrix)]))
    found = truth(chain.stationary, matrix, charges)
    beliefs: list[Belief] = [
        chain,
        AnyInitial([matrix]),
        FiniteClass([MarkovChain(np.full_like(matrix, 1 / len(matrix))), chain]),
    ]
    if chain.period == 1 and chain.gap > 1e-6:
        beliefs.append(MixingBounds.of(chain))
    for belief in beliefs:
        swept, ledger = loss_of(belief, density_of(charges)).loss, Ledger(belief).loss_of(charges)
        assert found - TINY <= ledger <= min(swept * (1 + TINY), loss_by_quilts(belief, charges))


@settings(max_examples=examples(100))
@given(st.data())
def test_the_recursion_bounds_the_loss_of_every_chain_with_any_start(data):
    matrix = data.draw(transitions(zeros=data.draw(st.booleans()), least=1e-3))
    start = data.draw(distributions(len(matrix)))
    charges = data.draw(windows(LENGTH[len(matrix)]))
    found = truth(start, matrix, charges)
    for belief in (MarkovChain(matrix, start), AnyInitial([matrix])):
        swept, ledger = loss_of(belief, density_of(charges)).loss, Ledger(belief).loss_of(charges)
        assert found - TINY <= ledger <= min(swept * (1 + TINY), loss_by_quilts(belief, charges))


@settings(max_examples=examples(20))
@given(windows(8), st.floats(0.05, 0.5), st.floats(0.5, 0.95), st.floats(0, 1), st.floats(0, 1))
def test_the_recursion_bounds_the_loss_of_every_chain_of_an_interval(charges, low, high, first, second):
    belief = BinaryInterval((low, high), (0.3, 0.9))
    stay, other = low + first * (high - low), 0.3 + second * 0.6
    matrix = np.array([[stay, 1 - stay], [1 - other, other]])
    assert truth(MarkovChain(matrix).stationary, matrix, charges) - TINY <= loss_of(belief, density_of(charges)).loss


@settings(max_examples=examples(40))
@given(st.data())
def test_the_recursion_bounds_the_loss_of_every_periodic_chain(data):
    one, two = (data.draw(transitions(states=st.just(2), least=0.05)) for _ in range(2))
    charges = data.draw(windows(8, epsilon=(0.01, 1.0)))
    belief = PeriodicChain([one, two])
    start = MarkovChain(one @ two).stationary
    # the matrices one after the other, slot 0 the first
    found = reference.changing_loss(start, ([one, two] * 4)[:7], charges)
    assert found - TINY <= loss_of(belief, density_of(charges)).loss


@settings(max_examples=examples(60))
@given(st.data())
def test_with_long_and_distant_windows_the_ledger_is_never_above_the_quilts(data):
    belief = data.draw(st.sampled_from([MarkovChain(THETA), MarkovChain(CIRCLING), AnyInitial([CIRCLING]), BOUNDS]))
    charges = data.draw(windows(300, most=8, epsilon=(0.001, 0.5)))
    assert Ledger(belief).loss_of(charges) <= loss_by_quilts(belief, charges)


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


@settings(max_examples=examples(30))
@given(
    size=st.integers(1, 20),
    every=st.integers(1, 20),
    epsilon_dp=st.floats(0.01, 0.15),
    charges=st.one_of(st.just([]), windows(40, most=3, epsilon=(0.01, 0.5))),
    belief=st.sampled_from([MarkovChain(THETA), MarkovChain(CIRCLING), MixingBounds(0.3, 1.2)]),
)
def test_the_loss_of_an_endless_schedule_is_the_limit_of_its_windows(size, every, epsilon_dp, charges, belief):
    endless = Schedule(size, every, 7, None, epsilon_dp)
    history = BeliefHistory([(None, belief)])
    many = [*charges, *((7 + every * j, 7 + every * j + size, epsilon_dp) for j in range(200))]
    found = loss_of(belief, density_of(many)).loss
    worst, top = endless_loss(history, density_of(charges), [endless])
    assert found * (1 - TINY) <= worst.loss
    # a class that forgets more slowly than it loses has no bound at all on an endless stream
    assert worst.loss <= found * (1 + 1e-3) + TINY or found > 8
    assert Ledger(belief).extended_loss([endless]) < 40
    assert float(top) == pytest.approx(max(run.density for run in density_of(many).runs()))


@settings(max_examples=examples(40))
@given(windows(400, most=6, epsilon=(0.001, 0.2)), st.floats(0.05, 0.5), st.floats(0.02, 0.3))
def test_vectorised_slots_give_the_loss_of_the_recursion_slot_by_slot(charges, pi_min, gap):
    belief = MixingBounds(pi_min, gap)
    assume(
        min(way.blocks.stride for way in vars(sweep.members_of(belief)[0]).values() if isinstance(way, sweep.Way)) > 2
    )
    found = []
    for stride in (2, 10**9):
        sweep.members_of.cache_clear()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(sweep, "_LEAST_STRIDE", stride)
            found.append(loss_of(belief, density_of(charges)).loss)
    sweep.members_of.cache_clear()
    # a loss that no budget allows is not followed
    assert found[0] == pytest.approx(found[1], rel=1e-4) or min(found) > 16


def test_the_worst_slot_may_lie_between_two_windows():
    matrix = np.array([[0.01, 0.01, 0.98], [0.06, 0.0, 0.94], [0.93, 0.07, 0.0]])
    chain = MarkovChain(matrix)
    charges = [(0, 1, 2.0), (2, 3, 2.0)]
    worst = loss_of(chain, density_of(charges))
    assert worst.slot == 1
    assert truth(chain.stationary, matrix, charges) <= worst.loss <= 4.0


def test_the_loss_before_a_denser_run_falls_to_that_of_its_own_density():
    belief = MarkovChain(CIRCLING)
    thin, dense = loss_of(belief, density_of([(0, 400, 0.05)])).loss, loss_of(belief, density_of([(0, 400, 0.2)])).loss
    both = loss_of(belief, density_of([(0, 400, 0.05), (400, 800, 0.2)]))
    assert thin < dense <= both.loss < dense + 0.05
    assert both.slot is not None
    assert both.slot >= 400


LONDON = {1: 0.98, 2: 0.88, 4: 0.67, 8: 0.38, 16: 0.12, 32: 0.013}


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


@pytest.mark.parametrize("known", [True, False])
def test_slots_that_are_not_followed_have_the_bound_of_those_that_are(generator, monkeypatch, known):
    finite = 0
    for number in range(60):
        matrix = kernel(generator)
        if not MarkovChain(matrix).is_irreducible:
            continue
        curve = DobrushinBounds({1: 1.0, 3: 0.5}, {2: 0.9, 5: 0.3})
        way = sweep.members_of((curve, MarkovChain(THETA), BOUNDS, AnyInitial([matrix]))[number % 4])[0]
        way = way.forward if generator.integers(2) else way.backward
        thin, dense = (float(generator.uniform(*ends)) for ends in ((0.001, 0.2), (0.1, 3.0)))
        state = State.empty(way)
        if number % 3:
            state = Sweeper(way).tails(state, dense, int(generator.integers(1, 4))).leaving
        state = state if known else state.at_change(way)
        slots = int(generator.integers(1, 6))
        # as many as are followed
        whole = Sweeper(way).tails(state, thin, 200)
        with monkeypatch.context() as patch:
            for name, most in (("_LONGEST", slots), ("_SHORT", slots), ("_SETTLING", 0)):
                patch.setattr(sweep, name, most)
            part = Sweeper(way).tails(state, thin, 200)
        assert (whole.near[slots:] <= part.far * (1 + 1e-12)).all(), (way, state, thin, slots)
        assert (whole.leaving.matrix <= part.leaving.matrix * (1 + 1e-12)).all()
        assert whole.leaving.largest.max() <= part.leaving.largest.max() * (1 + 1e-12)
        finite += bool(
            np.isfinite(part.far).all() and not np.isinf(part.far).any() and len(part.near) < len(whole.near)
        )
    assert finite > 5


def loss_followed(monkeypatch, slots, belief, charges):
    """The loss where runs are followed for so many slots only, and what settles there bounds those further on."""
    with monkeypatch.context() as patch:
        patch.setattr(sweep, "_LONGEST", slots)
        patch.setattr(sweep, "_SHORT", slots)
        patch.setattr(sweep, "_SETTLING", 0)
        # what was followed before is not remembered
        for member in sweep.members_of(belief):
            patch.setitem(member.__dict__, "sweepers", (Sweeper(member.forward), Sweeper(member.backward)))
        return loss_of(belief, density_of(charges)).loss


def test_runs_that_are_not_followed_to_their_end_are_bounded_by_enumeration(generator, monkeypatch):
    finite = 0
    for number in range(12):
        matrix = kernel(generator)
        chain = MarkovChain(matrix)
        if not chain.is_irreducible:
            continue
        length = LENGTH[len(matrix)]
        # a dense slot before or behind a thin run, or anything
        rates = generator.uniform(0.01, 2, 2)
        charges = [(0, 1, rates[0]), (1, length, rates[1] / 20)] if number % 3 else some_windows(generator, length, 2.0)
        if number % 2:
            charges = [(length - stop, length - start, rate) for start, stop, rate in charges]
        found = truth(chain.stationary, matrix, charges)
        beliefs = [chain]
        with suppress(ValueError):
            few = DobrushinBounds.of(chain, (2, 3))
            beliefs += [few, DobrushinBounds.of(chain)]
        for belief in beliefs:
            loss = loss_followed(monkeypatch, int(generator.integers(1, 4)), belief, charges)
            followed = loss_of(belief, density_of(charges)).loss
            assert loss >= max(found - TINY, followed * (1 - 1e-4)), (belief, matrix, charges)
            finite += loss < 0.999 * sum((stop - start) * rate for start, stop, rate in charges)
    assert finite


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
            assert truth(start, matrix, charges) - TINY <= loss_of(chain, density_of(charges)).loss, (matrix, charges)


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
            assert found - 1e-6 <= loss_of(chain, density_of(charges)).loss, (matrix, charges)


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
                    assert bound.loss is None or ledger.loss <= bound.loss, (name, held)


def test_corners_are_those_of_a_loop_over_all_points():
    generator = np.random.default_rng(28)
    for turn in range(300):
        points = np.sort(generator.random((generator.integers(1, 60), 2)), axis=1)
        points = np.round(points, 1) if turn % 2 else points
        kept, top = [], -1.0
        for q, p in points[np.lexsort((-points[:, 1], points[:, 0]))].tolist():
            if p > top:
                top = p
                while len(kept) > 1 and (kept[-1][0] - kept[-2][0]) * (p - kept[-2][1]) >= (
                    kept[-1][1] - kept[-2][1]
                ) * (q - kept[-2][0]):
                    kept.pop()
                kept.append([q, p])
        assert sweep._corners(points).tolist() == kept
