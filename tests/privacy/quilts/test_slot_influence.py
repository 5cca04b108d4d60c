"""The influence tables of one slot against the printed formulas, written out here."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiltstream.privacy import AnyInitial, MarkovChain, mqm_exact
from quiltstream.privacy.quilts import slot_influence

from ..strategies import distributions, transitions

MATRIX = np.array([[0.9, 0.1], [0.4, 0.6]])


def log_ratio(above, below):
    """log(above / below) with 0 / 0 no constraint and x / 0 infinite."""
    if above <= 0:
        return -np.inf
    return np.log(above / below) if below > 0 else np.inf


def formula(matrix, initial, slot, length, kind):
    """R and F per pair and lag, from the printed definitions; kind is support, literal or any."""
    k = len(matrix)
    powers = [np.linalg.matrix_power(matrix, n) for n in range(length)]
    marginals = [initial @ power for power in powers]
    found = {}
    for x, other in np.ndindex(k, k):
        here = marginals[slot - 1]
        if x == other or (kind != "any" and min(here[x], here[other]) <= 0):
            continue
        left, right = np.full(length - 1, np.inf), np.full(length - 1, np.inf)
        for b in range(1, length - slot + 1):
            right[b - 1] = max(log_ratio(powers[b][x, y], powers[b][other, y]) for y in range(k))
        for a in range(1, slot):
            if kind == "any":
                first = max(log_ratio(powers[slot - 1][y, other], powers[slot - 1][y, x]) for y in range(k))
                left[a - 1] = first + max(log_ratio(powers[a][y, x], powers[a][y, other]) for y in range(k))
                continue
            before = marginals[slot - 1 - a]
            left[a - 1] = max(
                log_ratio(powers[a][y, x] * here[other], powers[a][y, other] * here[x])
                for y in range(k)
                if kind == "literal" or before[y] > 0
            )
        found[0, x, other] = left, right
    return found


def check(tables, wanted):
    assert set(tables.pairs) == set(wanted)
    for row, pair in enumerate(tables.pairs):
        for side, own in zip((tables.left[row], tables.right[row]), wanted[pair], strict=True):
            np.testing.assert_allclose(side, np.maximum(own, 0), rtol=1e-9, atol=1e-11)


@st.composite
def cases(draw, zeros=False):
    matrix = np.array(draw(transitions(zeros=zeros, least=0.05)))
    length = draw(st.integers(1, 7))
    return MarkovChain(matrix).transition, length, draw(st.integers(1, length))


@pytest.mark.night
@given(cases(zeros=True), st.data(), st.booleans())
def test_a_fixed_start_has_the_influence_of_the_printed_formula(case, data, literal):
    matrix, length, slot = case
    initial = np.array(data.draw(st.one_of(distributions(len(matrix)), st.just(np.eye(len(matrix))[0]))))
    chain = MarkovChain(matrix, initial)
    wanted = formula(matrix, chain.initial, slot, length, "literal" if literal else "support")
    check(slot_influence(chain, slot, length, literal=literal), wanted)


@pytest.mark.night
@given(cases())
def test_any_start_has_the_influence_of_the_appendix(case):
    matrix, length, slot = case
    start = np.full(len(matrix), 1 / len(matrix))
    check(slot_influence(AnyInitial([matrix]), slot, length), formula(matrix, start, slot, length, "any"))


def test_the_quilt_that_decides_has_this_influence():
    chain = MarkovChain(MATRIX, [1, 0])
    for literal in (True, False):
        found = mqm_exact(chain, 1.0, 30, literal=literal)
        tables = slot_influence(chain, found.node or 0, 30, literal=literal)
        told = tables.left[:, (found.quilt.left or 0) - 1] + tables.right[:, (found.quilt.right or 0) - 1]
        assert told.max() == pytest.approx(found.influence, rel=1e-9)
