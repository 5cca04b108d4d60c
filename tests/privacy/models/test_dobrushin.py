"""Contraction in both directions of time: published numbers, the definition on chains that change, and bad curves."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quiltstream.privacy import Ledger, MarkovChain
from quiltstream.privacy.accounting import endless
from quiltstream.privacy.models import ChainError, DobrushinBounds, NotContracting, certify

from ...depth import examples
from .. import reference
from ..homes import moves, runs_by_home
from ..strategies import distributions, transitions, windows

LENGTH = {2: 7, 3: 5}
TINY = 1e-9


def sigma(belief, epsilon=1.0):
    found = endless(belief, epsilon)
    assert all(certify(pair, one) for pair, one in zip(belief.pairs, found.certificates, strict=True))
    return 1 / found.density


def curves_of(initial, steps):
    """The least curves that hold for one chain that changes in time, from its joint distribution."""
    length, states = len(steps) + 1, len(initial)
    every = np.array(list(itertools.product(range(states), repeat=length)))
    chance = np.asarray(initial, dtype=float)[every[:, 0]]
    for slot, matrix in enumerate(steps):
        chance = chance * matrix[every[:, slot], every[:, slot + 1]]

    def law(slot, state, other):
        here = every[:, slot] == state
        weight = chance[here].sum()
        return np.bincount(every[here, other], chance[here], minlength=states) / weight if weight > 0 else None

    found = []
    for sign in (1, -1):
        curve = {}
        for m in range(1, length):
            laws = [
                [one for x in range(states) if (one := law(slot, x, slot + sign * m)) is not None]
                for slot in range(length)
                if 0 <= slot + sign * m < length
            ]
            curve[m] = max(
                (0.5 * np.abs(p - q).sum() for slot in laws for p, q in itertools.combinations(slot, 2)), default=0.0
            )
        values = np.maximum.accumulate(list(curve.values())[::-1])[::-1]
        found.append({m: min(1.0, float(value) + 1e-12) for m, value in zip(curve, values, strict=True)})
    return found


@pytest.fixture(scope="module")
def homes(shared_data):
    return runs_by_home(shared_data)


def number(direction, density):
    try:
        return float(direction.approach(np.zeros(()), 0.0).at(density)[0])
    except NotContracting:
        return math.inf


def rows(table):
    return table / table.sum(axis=-1, keepdims=True)


def test_a_pooled_chain_needs_the_printed_noise(homes):
    history = sum(moves(homes[name]) for name in sorted(homes)[::2])
    assert sigma(DobrushinBounds.of(MarkovChain(rows(history)))) == pytest.approx(16.01, abs=6e-3)


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_no_chain_of_the_class_loses_more_though_it_changes_in_time(data):
    k = data.draw(st.integers(2, 3))
    start = data.draw(distributions(k))
    steps = [data.draw(transitions(states=st.just(k), zeros=True)) for _ in range(LENGTH[k] - 1)]
    forward, backward = curves_of(start, steps)
    if forward[max(forward)] >= 1 or backward[max(backward)] >= 1:
        return
    density = endless(DobrushinBounds(forward, backward), data.draw(st.floats(0.1, 4.0)))
    charges = data.draw(windows(LENGTH[k], epsilon=(0.001, 1.0)))
    scale = density.density / sum(one for _, _, one in charges)
    charges = [(first, last, one * scale) for first, last, one in charges]
    truth = max(
        reference.changing_loss(start, steps, charges), reference.changing_loss(start, steps, charges, counts=True)
    )
    assert truth <= density.certificates[0].loss + TINY


@settings(max_examples=examples(25), deadline=None)
@given(st.data())
def test_the_ledger_bounds_the_loss_of_every_chain_of_the_class(data):
    k = data.draw(st.integers(2, 3))
    start = data.draw(distributions(k))
    steps = [data.draw(transitions(states=st.just(k), least=0.1)) for _ in range(LENGTH[k] - 1)]
    belief = DobrushinBounds(*curves_of(start, steps))
    # a window of the whole length has one density, so that the class and not the sum of all decides at times
    charges = [*data.draw(windows(LENGTH[k], epsilon=(0.001, 0.3))), (0, LENGTH[k], data.draw(st.floats(0.01, 0.5)))]
    ledger = Ledger(belief)
    for charge in charges:
        ledger.charge(*charge)
    assert reference.changing_loss(start, steps, charges) <= ledger.loss + TINY
    assert ledger.loss <= Ledger(belief).loss_of(charges) * (1 + 1e-9)


def test_the_forward_curve_does_not_bound_the_past():
    worst = 0.0
    rng = np.random.default_rng(11)
    for _ in range(400):
        start = rng.dirichlet([0.3, 0.3])
        steps = [rng.dirichlet([0.4, 0.4], size=2) for _ in range(4)]
        forward, backward = curves_of(start, steps)
        if forward[4] >= 1 or backward[4] >= 1:
            continue
        density = 0.3
        (ahead, back), (twice, _) = (
            DobrushinBounds(first, second).directions()[0]
            for first, second in ((forward, backward), (forward, forward))
        )
        truth = reference.changing_loss(start, steps, [(0, 5, density)])
        assert truth <= number(ahead, density) + number(back, density) - density + TINY
        worst = max(worst, truth - (2 * number(twice, density) - density))
    # taken for both directions, the forward curve claims less than the truth
    assert worst > 0.05


@settings(max_examples=examples(50), deadline=None)
# rounded up to one decimal a curve stays below 1: a class that need not forget is refused
@given(st.lists(st.floats(0.0, 0.89), min_size=1, max_size=6), st.integers(1, 12))
@example([0.123456], 2)
def test_rounding_never_makes_a_class_smaller(values, digits):
    curve = dict(enumerate(sorted(values, reverse=True), start=1))
    exact = DobrushinBounds(curve, curve)
    rounded = exact.rounded(digits)
    for side in ("forward", "backward"):
        for (m, eta), (same, larger) in zip(getattr(exact, side), getattr(rounded, side), strict=True):
            assert m == same
            assert eta <= larger <= eta + 10.0**-digits + 1e-15
            assert larger == round(larger, digits)


@pytest.mark.parametrize(
    ("forward", "backward", "said"),
    [
        ({1: 0.5, 2: 0.6}, {1: 0.5}, r"forward: eta_2 is 0\.6, above eta_1 = 0\.5"),
        ({1: 0.5}, {1: 0.5, 3: 0.51}, r"backward: eta_3 is 0\.51"),
        ({1: 0.5}, {}, "backward is empty, and the curve of forward"),
        ({1: 1.0, 64: 1.0}, {1: 0.5}, "forward: every eta is 1"),
        ({1: 1.2}, {1: 0.5}, r"eta_1 is 1\.2"),
        ({1: math.nan}, {1: 0.5}, "eta_1 is nan"),
        ({0: 0.5}, {1: 0.5}, "m is 0"),
        ([(1, 0.5), (1, 0.4)], {1: 0.5}, "eta_1 is given twice|above"),
        ("0.5", {1: 0.5}, "pairs of slots"),
    ],
)
def test_a_curve_that_no_chain_has_is_refused(forward, backward, said):
    with pytest.raises(ChainError, match=said):
        DobrushinBounds(forward, backward)
