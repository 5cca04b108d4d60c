"""Ratios of matrix powers against exact rational arithmetic, where floats underflow and where they do not."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.privacy import MarkovChain
from quiltstream.privacy.models.classes import AnyInitial
from quiltstream.privacy.quilts import influence, sided_influence
from quiltstream.privacy.quilts.calibration import mqm_exact, pairwise
from quiltstream.privacy.quilts.influence import PowerTables

from ...depth import examples
from ..strategies import transitions


def logarithm(number):
    shift = number.numerator.bit_length() - number.denominator.bit_length()
    return math.log(number / Fraction(2) ** shift) + shift * math.log(2)


def largest(above, below):
    """max log(above / below); zero over zero is passed over."""
    worst = -math.inf
    for one, other in zip(above, below, strict=True):
        if one > 0:
            worst = max(worst, logarithm(one / other) if other > 0 else math.inf)
    return worst


def exact_tables(matrix, lags, sources=None):
    """Right and left table by rational arithmetic, in the order of the ordered pairs."""
    step = [[Fraction(float(entry)) for entry in row] for row in matrix]
    states = range(len(step))
    sources = states if sources is None else sources
    power = [[Fraction(int(x == y)) for y in states] for x in states]
    right, left = [], []
    for _ in range(lags):
        power = [[sum(power[x][z] * step[z][y] for z in states) for y in states] for x in states]
        pairs = [(x, other) for x in states for other in states if x != other]
        right.append([largest(power[x], power[other]) for x, other in pairs])
        left.append([largest([power[y][x] for y in sources], [power[y][other] for y in sources]) for x, other in pairs])
    return np.array(right), np.array(left)


def assert_just_above(found, truth, room=1e-11):
    infinite = ~np.isfinite(truth)
    assert np.array_equal(found[infinite], truth[infinite])
    assert np.all(found[~infinite] >= truth[~infinite])
    assert found[~infinite] == pytest.approx(truth[~infinite], abs=room)


@settings(max_examples=examples(40), deadline=None)
@given(transitions(zeros=True), st.integers(1, 9))
def test_the_tables_are_the_ratios_rounded_up(matrix, lags):
    tables = PowerTables(matrix)
    tables.extend(lags)
    right, left = exact_tables(matrix, lags)
    assert_just_above(tables.right, np.maximum(right, 0))
    assert_just_above(tables.left, left)
    assert np.array_equal(tables.rows[tables.opposite], tables.columns)


@settings(max_examples=examples(30), deadline=None)
@given(transitions(states=st.just(3), zeros=True), st.sampled_from([[0], [2], [0, 1], [1, 2]]))
def test_the_left_table_may_be_confined_to_some_states_before(matrix, sources):
    tables = PowerTables(matrix, np.isin(np.arange(3), sources))
    tables.extend(4)
    assert_just_above(tables.left, exact_tables(matrix, 4, sources)[1])


def ladder(states, up):
    """A chain that climbs with a tiny probability and falls back at once."""
    matrix = np.zeros((states, states))
    for state in range(states):
        matrix[state, max(state - 1, 0)] += 0.5
        matrix[state, min(state + 1, states - 1)] += up
        matrix[state, state] += 1 - matrix[state].sum()
    return matrix


@pytest.mark.parametrize(("states", "up"), [(4, 1e-120), (5, 1e-90), (8, 1e-60), (3, 1e-200), (6, 1e-300)])
def test_powers_that_underflow_keep_their_ratios(states, up):
    matrix = ladder(states, up)
    lags = 2 * states
    tables = PowerTables(matrix)
    tables.extend(lags)
    right, left = exact_tables(matrix / matrix.sum(axis=1, keepdims=True), lags)
    assert_just_above(tables.right, np.maximum(right, 0), room=1e-9)
    assert_just_above(tables.left, left, room=1e-9)
    assert np.isfinite(tables.right[states:]).all()


def test_states_too_rare_for_floats_keep_a_usable_quilt_and_the_others_noise():
    # the rarest state has a stationary probability of about 1e-360, which no float holds
    chain = MarkovChain(ladder(4, 1e-120))
    assert chain.pi_min == 0
    for method in (mqm_exact, pairwise):
        window = method(chain, 2000.0, 50)
        assert window.influence < 2000
        assert window.sigma < 50 / 2000
        assert method(AnyInitial([chain.transition]), 5000.0, 50).sigma < 50 / 5000
    tables = sided_influence(chain)
    assert not np.isnan(tables.left).any()


def test_lags_added_later_equal_lags_computed_at_once():
    rng = np.random.default_rng(5)
    matrix = rng.dirichlet(np.ones(4), size=4)
    once, twice = PowerTables(matrix), PowerTables(matrix)
    once.extend(200)
    for lags in (1, 2, 63, 64, 65, 200, 10):
        twice.extend(lags)
    assert twice.lags == 200
    assert once.right.tobytes() == twice.right.tobytes()
    assert once.left.tobytes() == twice.left.tobytes()
    assert once.margins.tobytes() == twice.margins.tobytes()


def test_shared_powers_are_made_once_and_each_table_has_its_own_lags(monkeypatch):
    matrix = np.random.default_rng(6).dirichlet(np.ones(4), size=4)
    alone = PowerTables(matrix)
    alone.extend(130)
    steps: list[int] = []
    advance = influence._Powers._advance
    monkeypatch.setattr(influence._Powers, "_advance", lambda powers: (steps.append(powers.lags), advance(powers))[1])
    with influence.shared_powers():
        longer, shorter = PowerTables(matrix), PowerTables(matrix)
        longer.extend(100)
        shorter.extend(70)
        assert (longer.lags, shorter.lags, shorter.right.shape) == (100, 70, (70, 12))
        assert steps == list(range(100))
        shorter.extend(130)
        assert steps == list(range(130))
        assert longer.right.tobytes() == alone.right[:100].tobytes()
        for name in ("right", "left", "margins"):
            assert getattr(shorter, name).tobytes() == getattr(alone, name).tobytes()
        with pytest.raises(ValueError, match="read-only"):
            shorter.left[0] = 0.0
        some = PowerTables(matrix, np.array([True, False, True, True]))
        some.extend(1)
        assert (some.left[0] <= alone.left[0]).all()
        assert len(steps) == 131
    PowerTables(matrix).extend(2)
    assert len(steps) == 133
