"""Bounds of the published theorems beside the loss of an account, which is above none of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.privacy import AnyInitial, BinaryInterval, FiniteClass, Ledger, MarkovChain, MixingBounds, mqm_approx
from quiltstream.privacy.quilts import sided_influence

from ...depth import examples
from .. import reference
from ..ledgers import quilt_density
from ..strategies import transitions, windows

ABOVE = 1e-12
QUICK = MixingBounds(pi_min=0.5, gap=2.0)
NAMES = ["quilts", "[SWC17] 4.4", "[SC17] 3.1", "[SC17] 3.3", "[SC17] 3.6", "[SC17] 3.7", "[BHGKM] 6.2"]


def check(ledger):
    found = ledger.bounds()
    assert list(found) == NAMES
    for bound in found.values():
        assert (bound.loss is None) == bool(bound.reason)
        if bound.loss is not None:
            assert ledger.loss <= bound.loss * (1 + ABOVE) + ABOVE or bound.loss > 1
            # each theorem is about quilts that the quilts' account has
            assert found["quilts"].loss <= bound.loss * (1 + ABOVE)
    return {name: bound.loss for name, bound in found.items()}


@st.composite
def beliefs(draw):
    matrix = draw(transitions(zeros=draw(st.booleans()), least=0.02))
    chain = MarkovChain(matrix)
    start = MarkovChain(matrix, np.eye(len(matrix))[0])
    found = [start, FiniteClass([start]), AnyInitial([matrix]), BinaryInterval((0.4, 0.6), (0.3, 0.7))]
    if chain.is_irreducible:
        found += [chain, FiniteClass([chain, start])]
        if chain.period == 1 and chain.gap > 1e-3:
            found += [MixingBounds.of(chain)] * 2
    return draw(st.sampled_from(found))


@st.composite
def patterns(draw):
    """Charges of one window, of several apart or adjacent, or of any."""
    kind = draw(st.sampled_from(["same", "several", "any"]))
    if kind == "any":
        return draw(windows(60, most=6))
    rates = draw(st.lists(st.floats(0.001, 2.0), min_size=2, max_size=4))
    size = draw(st.integers(1, 40))
    if kind == "same":
        return [(3, 3 + size, rate) for rate in rates]
    other = draw(st.integers(1, 40))
    gap = draw(st.sampled_from([0, 0, 1, 5, max(size, other)]))
    found, start = [], 3
    for at, rate in enumerate(rates):
        length = (size, other)[at % 2]
        found.append((start, start + length, rate))
        start += length + gap
    return found


@pytest.mark.night
@settings(max_examples=examples(200), deadline=None)
@given(beliefs(), patterns())
def test_the_ledger_is_never_above_a_bound_of_the_published_theorems(belief, charges):
    ledger = Ledger(belief)
    ledger.replay(charges)
    found = check(ledger)
    # per-entry privacy always adds up
    assert found["[SC17] 3.7"] is not None
    assert found["quilts"] is not None


@settings(max_examples=examples(20), deadline=None)
@given(transitions(st.just(2), least=0.05), patterns(), st.booleans())
def test_no_theorem_is_below_the_loss_by_enumeration(matrix, charges, adjoin):
    charges = [(start % 4, start % 4 + 1 + (stop - start) % 3, rate) for start, stop, rate in charges]
    if adjoin:
        charges = [(2 * at, 2 * at + 2, rate) for at, (*_, rate) in enumerate(charges[:3])]
    ledger = Ledger(MarkovChain(matrix))
    ledger.replay(charges)
    truth = reference.response_loss(reference.stationary(matrix), matrix, 7, charges)
    assert all(bound.loss is None or truth <= bound.loss + 1e-9 for bound in ledger.bounds().values())


def test_many_releases_of_one_window():
    density = mqm_approx(QUICK, 1.0).epsilon_dp
    ledger = Ledger(QUICK)
    ledger.replay([(0, 500, density)] * 3)
    found = check(ledger)
    assert found["[SWC17] 4.4"] == pytest.approx(3.0)
    assert found["[SC17] 3.7"] == pytest.approx(3.0)
    assert found["[BHGKM] 6.2"] is not None
    assert found["[BHGKM] 6.2"] < 3.0
    assert ledger.loss < found["[BHGKM] 6.2"] * (1 + ABOVE)
    assert "1 different windows" in ledger.bounds()["[SC17] 3.1"].reason


@pytest.mark.parametrize("belief", [QUICK, MarkovChain([[0.6, 0.4], [0.3, 0.7]])])
def test_two_adjacent_windows_have_theorem_3_1_and_3_6_and_cost_less(belief):
    density = quilt_density(belief, 1.0)
    ledger = Ledger(belief)
    ledger.replay([(0, 300, density), (300, 600, density)])
    found = check(ledger)
    assert found["quilts"] == pytest.approx(1.0)
    tables = sided_influence(belief)
    ahead, back = (float(side[:, 0].max()) for side in (tables.right, tables.left))
    assert found["[SC17] 3.1"] == pytest.approx(max(min(2.0, 1 + ahead), min(2.0, 1 + back)))
    assert found["[SC17] 3.6"] == pytest.approx(2.0 + 2 * float(tables.right[:, 0].max()))
    assert "2 different windows" in ledger.bounds()["[SWC17] 4.4"].reason


def test_two_distant_windows_have_theorem_3_3():
    calibrations = [mqm_approx(QUICK, epsilon, 200) for epsilon in (1.0, 0.5)]
    charges = [(0, 200, calibrations[0].epsilon_dp), (400, 600, calibrations[1].epsilon_dp)]
    ledger = Ledger(QUICK)
    ledger.replay(charges)
    assert check(ledger)["[SC17] 3.3"] == pytest.approx(1.0)
    assert check(ledger)["[SC17] 3.7"] == pytest.approx(1.5)
    reasons = {name: bound.reason for name, bound in ledger.bounds().items()}
    assert "200 slots lie between the windows" in reasons["[SC17] 3.1"]
    close = Ledger(QUICK)
    close.replay([(0, 200, 0.01), (399, 599, 0.01)])
    assert "the gap is 199" in close.bounds()["[SC17] 3.3"].reason


def test_many_windows_have_theorem_3_1_where_they_adjoin_and_3_3_where_they_are_apart():
    day = mqm_approx(QUICK, 1.0, 200)
    for every, name, said in ((200, "[SC17] 3.1", "3.3"), (400, "[SC17] 3.3", "3.1")):
        ledger = Ledger(QUICK)
        ledger.replay([(every * at, every * at + 200, day.epsilon_dp) for at in range(7)])
        found = check(ledger)
        held, summed = found[name], found["[SC17] 3.7"]
        assert held is not None
        assert summed == pytest.approx(7.0)
        assert held < 7.0
        assert found[f"[SC17] {said}"] is None
        if every == 400:
            assert found[name] == pytest.approx(1.0)
        else:
            tables = sided_influence(QUICK)
            assert found[name] == pytest.approx(1 + sum(float(s[:, 0].max()) for s in (tables.left, tables.right)))


def test_theorems_across_a_switch_have_a_reason():
    changed = Ledger(QUICK)
    changed.charge(0, 100, 0.01)
    changed.switch(50, QUICK)
    assert all("the belief changes at a slot" in bound.reason for bound in changed.bounds().values())
    joined = Ledger(QUICK)
    joined.add_belief(MarkovChain([[0.6, 0.4], [0.3, 0.7]]))
    joined.replay([(0, 100, 0.01), (100, 400, 0.01)])
    check(joined)
