"""A belief that joins an account for its whole history, and one that follows another from a public slot on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quiltstream.privacy import BudgetExceeded, FiniteClass, Ledger, MarkovChain, MixingBounds, Schedule
from quiltstream.privacy.accounting.certificates import certified
from quiltstream.privacy.models import ChainError, PeriodicChain
from quiltstream.privacy.models.dobrushin import DobrushinBounds
from quiltstream.privacy.models.serialisation import belief_from_dict

from ...depth import examples
from .. import reference
from ..ledgers import quilt_loss
from ..strategies import transitions, windows

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


@pytest.mark.night
def test_the_larger_of_two_stationary_ledgers_is_below_the_truth_of_a_switch():
    # slots count from 0 here: the switch at the third slot is at slot 2
    truth = reference.changing_loss(reference.stationary(OLD), [OLD, OLD, NEW, NEW, NEW], WHOLE)
    chains = [MarkovChain(matrix) for matrix in (OLD, NEW)]
    larger = max(Ledger(chain).loss_of(WHOLE) for chain in chains)
    quilts = max(quilt_loss(chain, WHOLE) for chain in chains)
    assert (round(truth, 2), round(quilts, 2)) == (17.06, 15.91)
    assert larger <= quilts
    assert truth <= switched(MarkovChain(OLD), MarkovChain(NEW), 2, WHOLE).loss <= 18.0 * (1 + TINY)


def test_the_slot_of_a_switch_uses_the_new_kernel_forward():
    even, sticky = np.full((2, 2), 0.5), np.array([[0.9, 0.1], [0.1, 0.9]])
    charges = [(3, 4, 10.0), (4, 6, 1.0)]
    truth = reference.changing_loss(reference.stationary(even), [even] * 3 + [sticky] * 2, charges)
    assert truth > 10.5
    assert switched(MarkovChain(even), MarkovChain(sticky), 3, charges).loss >= truth - TINY


@pytest.mark.night
@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_the_loss_across_a_switch_is_never_below_enumeration(data):
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


@settings(max_examples=examples(30), deadline=None)
@given(st.data())
def test_the_loss_across_two_switches_is_never_below_enumeration(data):
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


@settings(max_examples=examples(12), deadline=None)
@given(st.data())
def test_the_loss_across_a_switch_is_close_to_that_of_quilts_with_both_kernels(data):
    before, after = (data.draw(transitions(st.just(2), least=0.05)) for _ in range(2))
    change = data.draw(st.integers(0, 14))
    charges = data.draw(windows(15, most=4, epsilon=(0.01, 0.3)))
    quilts = reference.changing_rule(before, after, change, charges, 60)
    assert switched(MarkovChain(before), MarkovChain(after), change, charges).loss <= 1.25 * quilts


SLOWEST = MarkovChain([[0.999, 0.001], [0.001, 0.999]])


@pytest.mark.night
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (FAST, SLOWEST),
        (SLOWEST, FAST),
        (FAST, MixingBounds.of(SLOWEST)),
        (DobrushinBounds.of(FAST), SLOWEST),
        (DobrushinBounds({1: 0.9999, 3000: 0.5}, {1: 0.9999, 3000: 0.5}), FAST),
        (PeriodicChain([FAST.transition, SLOW.transition]), SLOWEST),
    ],
)
def test_a_slow_chain_before_or_after_a_switch_costs_little_more_than_alone(before, after):
    density, charges = 1e-5, [(-300, 30_000, 1e-5)]
    alone = max(Ledger(belief).loss_of(charges) for belief in (before, after))
    ledger = Ledger(before, 1.0)
    ledger.replay(charges)
    assert ledger.switch(0, after) <= 1.01 * alone + 4 * density
    assert (
        ledger.loss
        <= ledger.ceiling(density)
        <= 1.01 * max(Ledger(belief).ceiling(density) for belief in (before, after))
    )
    assert ledger.ceiling(ledger.density_for(0.2)) <= 0.2


@pytest.mark.parametrize("bounds", [MixingBounds(0.2, 0.5), MixingBounds(0.27895, 0.235671), MixingBounds(0.05, 0.1)])
def test_a_belief_that_follows_one_like_it_costs_little_more_at_every_density(bounds):
    ledger = Ledger(bounds)
    ledger.switch(0, bounds)
    densities = (bounds.gap * np.geomspace(1e-4, 0.04, 12)).tolist()
    found = [ledger.ceiling(density) for density in densities]
    assert found == sorted(found)
    for density, loss in zip(densities, found, strict=True):
        alone = Ledger(bounds).ceiling(density)
        assert alone <= loss <= 1.4 * alone


@pytest.mark.night
def test_behind_a_switch_to_a_slow_chain_more_density_costs_more():
    three = MarkovChain([[0.995, 0.00492, 0.00008], [0.0036, 0.9947, 0.0017], [0.0013, 0.0013, 0.9974]])
    ledger = Ledger(MarkovChain(np.full((3, 3), 1 / 3)))
    ledger.switch(0, three)
    ceilings = [ledger.ceiling(density) for density in (0.0003, 0.0013, 0.0046, 0.0047)]
    assert ceilings == sorted(ceilings)
    assert ceilings[-1] < 5
    ledger.charge(-10, 100_000, 0.0046)
    before = ledger.loss
    assert ledger.charge(-10, 100_000, 0.0001).loss_before == before
    assert before <= ledger.loss < 5


def test_where_no_density_is_found_none_is_named():
    ledger = Ledger(SLOW)
    ledger.switch(0, MarkovChain([[1.0, 0.0], [0.0, 1.0]]))
    with pytest.raises(ChainError, match="influence"):
        ledger.density_for(1.0)


def test_a_curve_without_the_first_step_is_known_on_both_sides_of_a_switch():
    curve = {4: 0.35, 16: 0.02}
    sparse, full = (DobrushinBounds(one, one) for one in (curve, {1: 1.0, **curve}))
    losses = [switched(belief, MixingBounds(0.2, 0.75), 50, [(0, 100, 0.01)]).loss for belief in (sparse, full)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    assert losses[0] < 0.2  # what is not known of a neighbour costs the whole density, which is 1


def test_far_from_a_switch_nothing_changes():
    charges = [(0, 40, 0.2), (200, 240, 0.2)]
    plain = Ledger(FAST).loss_of(charges)
    assert switched(FAST, SLOW, 1000, charges).loss == pytest.approx(plain, rel=1e-3)
    # behind a switch any start is possible
    later = Ledger(MarkovChain(FAST.transition, [0.5, 0.5])).loss_of(charges)
    assert switched(SLOW, FAST, -1000, charges).loss == pytest.approx(later, rel=1e-3)
    assert switched(FAST, FAST, 120, charges).loss >= plain * (1 - 1e-12)


@pytest.mark.parametrize("order", [1, -1])
def test_charges_around_a_switch_in_any_order_give_the_same_loss(order):
    charges = [(90, 110, 0.1), (0, 30, 0.3), (95, 100, 0.7), (130, 160, 0.2), (40, 90, 0.05), (101, 300, 0.01)][::order]
    ledger = Ledger(FAST)
    ledger.switch(100, SLOW)
    for charge in charges:
        ledger.charge(*charge)
    assert ledger.loss == switched(FAST, SLOW, 100, sorted(charges)).loss == ledger.loss_of(charges)
    assert ledger.histories == (((None, FAST), (100, SLOW)),)


@pytest.mark.night
def test_a_switch_above_the_budget_is_refused_and_changes_nothing():
    ledger = Ledger(MarkovChain(OLD), budget=16.0)
    ledger.replay(WHOLE)
    before = (ledger.loss, ledger.histories)
    with pytest.raises(BudgetExceeded, match="the change of belief would cost"):
        ledger.switch(2, MarkovChain(NEW))
    with pytest.raises(BudgetExceeded, match="the belief that joins would cost"):
        Ledger.add_belief(ledger, MarkovChain([[1 - 1e-6, 1e-6], [1e-6, 1 - 1e-6]]))
    assert (ledger.loss, ledger.histories) == before


@pytest.mark.night
@settings(max_examples=examples(40), deadline=None)
@given(windows(40, most=4), st.booleans())
def test_an_added_belief_reprices_the_whole_history(charges, late):
    ledger = Ledger(FAST)
    cut = 0 if late else len(charges)
    ledger.replay(charges[:cut])
    ledger.add_belief(SLOW)
    for charge in charges[cut:]:
        ledger.charge(*charge)
    assert ledger.loss == max(Ledger(chain).loss_of(charges) for chain in (FAST, SLOW))
    assert ledger.loss == pytest.approx(Ledger(FiniteClass([FAST, SLOW])).loss_of(charges), rel=1e-12)
    assert ledger.density_for(1.0) == min(Ledger(chain).density_for(1.0) for chain in (FAST, SLOW))


@pytest.mark.parametrize(
    ("slot", "belief", "message"),
    [
        (4, SLOW, "slot is 4, but the belief changes at slot 5"),
        (9, MarkovChain(np.full((3, 3), 1 / 3)), "the belief has 3 states, but the account is about 2"),
    ],
)
def test_an_invalid_switch_is_refused(slot, belief, message):
    ledger = Ledger(FAST)
    ledger.switch(5, SLOW)
    with pytest.raises(ValueError, match=message):
        ledger.switch(slot, belief)


def test_a_switch_lies_at_the_start_of_the_chain_or_later():
    ledger = Ledger(MarkovChain(FAST.transition, [1, 0]), start=10)
    with pytest.raises(ValueError, match="slot is 9, but the start of the chain is at 10"):
        ledger.switch(9, SLOW)
    ledger.switch(10, SLOW)


def test_the_loss_of_an_endless_schedule_across_a_switch_equals_its_windows():
    for before, after in ((FAST, SLOW), (SLOW, FAST), (MixingBounds(0.5, 2.0), MixingBounds(0.4, 1.5))):
        ledger = Ledger(before)
        ledger.switch(300, after)
        endless = Schedule(7, 9, 100, None, 0.1)
        written = ledger.loss_of([(100 + 9 * j, 107 + 9 * j, 0.1) for j in range(150)])
        assert written * (1 - 1e-9) <= ledger.extended_loss([endless]) <= written * (1 + 1e-3)
        density = ledger.density_for(1.0)
        assert 1 - 1e-3 < ledger.ceiling(density) <= 1
        assert ledger.loss_of([(0, 600, density)]) <= 1
        assert Ledger(before).density_for(1.0) >= density


@settings(max_examples=examples(25))
@given(
    beliefs=st.lists(
        st.one_of(
            st.builds(MixingBounds, st.floats(0.05, 0.5), st.floats(0.25, 2.0)),
            st.sampled_from([FAST, SLOW, FiniteClass([FAST, SLOW])]),
        ),
        min_size=2,
        max_size=3,
    ),
    changes=st.lists(st.integers(1, 120), min_size=2, max_size=2, unique=True).map(sorted),
    size=st.integers(1, 12),
    every=st.integers(1, 12),
    density=st.floats(0.01, 0.05),
)
@example(beliefs=[MixingBounds(0.15, 0.4), MixingBounds(0.1, 0.3)], changes=[88, 89], size=10, every=10, density=0.0448)
def test_an_endless_schedule_across_switches_loses_no_less_than_a_part_of_it(beliefs, changes, size, every, density):
    """Right after a switch blocks of the new belief reach back to it and no further: a stream does not settle there."""
    ledger = Ledger(beliefs[0])
    for slot, belief in zip(changes, beliefs[1:], strict=False):
        ledger.switch(slot, belief)
    density /= -(-size // every)
    endless = ledger.extended_loss([Schedule(size, every, 0, None, density)])
    parts = [ledger.extended_loss([Schedule(size, every, 0, every * n + size, density)]) for n in (2, 5, 15, 40, 900)]
    assert max(parts) <= endless * (1 + TINY)
    assert endless <= max(parts) * (1 + 1e-2) or endless > 4


ONE_STATE, ANY_NUMBER = MarkovChain([[1.0]]), MixingBounds(0.2, 0.5)


@pytest.mark.parametrize(
    "beliefs",
    [
        (ANY_NUMBER, ONE_STATE),
        (ONE_STATE, ANY_NUMBER),
        (ANY_NUMBER, FAST, MarkovChain(np.full((3, 3), 1 / 3))),
        (FAST, ANY_NUMBER, MarkovChain(np.full((3, 3), 1 / 3))),
    ],
)
def test_beliefs_about_other_numbers_of_states_do_not_follow_or_join(beliefs):
    """Of one state there is no secret, and beside it those of the other belief were priced as if they had none."""
    ledger = Ledger(beliefs[0], budget=50)
    ledger.charge(0, 10, 0.5)
    for slot, belief in enumerate(beliefs[1:-1], 3):
        ledger.switch(slot, belief)
    before = ledger.loss
    with pytest.raises(ValueError, match=r"the belief has .* but the account is about"):
        ledger.switch(5, beliefs[-1])
    with pytest.raises(ValueError, match=r"the belief has .* but the account is about"):
        ledger.add_belief(beliefs[-1])
    assert ledger.loss == before
    assert Ledger(ONE_STATE).add_belief(ONE_STATE) == 0


def test_an_added_belief_whose_certificate_does_not_hold_changes_nothing():
    form = certified(FAST, 1.0).to_dict()
    form["certificates"][0]["density"] *= 1.01
    ledger = Ledger(FAST, budget=50)
    ledger.charge(0, 200, 0.1)
    before = ledger.loss
    with pytest.raises(ChainError, match="does not hold"):
        ledger.add_belief(belief_from_dict(form))
    assert len(ledger.histories) == 1
    assert ledger.charge(0, 200, 0.1).loss_before == before
