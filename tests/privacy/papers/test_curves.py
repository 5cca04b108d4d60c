"""Influence curves: closed forms against the definition, the best loss per entry, and composition."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.privacy import Ledger, MarkovChain, MixingBounds
from quiltstream.privacy.papers.curves import (
    binary_curve,
    gaussian_curve,
    table_curve,
)

from ...depth import examples
from .. import reference
from ..strategies import transitions

TINY = 1e-9
STAY = st.floats(0.02, 0.98)


def influence_by_definition(matrix, slots):
    """The least over the splits of the largest over the pairs of log P(X_Q | x) / P(X_Q | x'), from joint laws."""
    weights = reference.stationary(matrix)
    found = []
    for before in range(1, slots + 1):
        after = slots + 1 - before
        told = [
            reference.joint_influence(weights, matrix, slots + 2, node=before, quilt=[0, before + after], pair=pair)
            for pair in itertools.permutations(range(len(matrix)), 2)
        ]
        found.append(max(told))
    return min(found)


@settings(max_examples=examples(60), deadline=None)
@given(STAY, STAY)
def test_the_binary_closed_form_equals_the_definition_for_any_sign(p, q):
    matrix = np.array([[p, 1 - p], [1 - q, q]])
    curve = binary_curve(p, q, size=5)
    for slots in range(1, 6):
        least = min(influence_by_definition(matrix, fewer) for fewer in range(1, slots + 1))
        assert curve.at(slots) == pytest.approx(least, rel=1e-7, abs=1e-9)


@settings(max_examples=examples(30), deadline=None)
@given(transitions(least=0.05), st.integers(1, 4))
def test_the_general_curve_is_the_definition(matrix, slots):
    least = min(influence_by_definition(matrix, fewer) for fewer in range(1, slots + 1))
    assert table_curve(MarkovChain(matrix), size=4).at(slots) == pytest.approx(least, rel=1e-7, abs=1e-9)


@settings(max_examples=examples(60), deadline=None)
@given(STAY, STAY, st.floats(0.05, 20.0), st.integers(1, 60))
def test_the_best_loss_per_entry_is_the_largest_and_never_below_the_trivial_one(p, q, epsilon, length):
    curve = binary_curve(p, q, size=50)
    best = curve.epsilon_dp(epsilon, length)
    assert best >= epsilon / length * (1 - 1e-12)
    assert epsilon * (1 - 1e-12) <= curve.epsilon(best, length) <= epsilon
    assert curve.epsilon(best * (1 + 1e-9), length) > epsilon
    by_hand = [(epsilon - a) / b for b, a in enumerate(curve.values, 1) if a < epsilon] + [epsilon / length]
    assert best == pytest.approx(max(by_hand))


@pytest.mark.night
@settings(max_examples=examples(25), deadline=None)
@given(st.data())
def test_mechanisms_on_one_curve_compose_above_the_truth_and_the_ledger(data):
    matrix = data.draw(transitions(st.just(2), least=0.05))
    rates = data.draw(st.lists(st.floats(0.01, 3.0), min_size=1, max_size=3))
    chain = MarkovChain(matrix)
    curve = table_curve(chain)
    truth = reference.response_loss(reference.stationary(matrix), matrix, 7, [(0, 7, rate) for rate in rates])
    for length in (None, 7):
        bound = curve.composed(rates, length)
        assert truth <= bound + TINY
        assert Ledger(chain).loss_of([(0, 7, rate) for rate in rates]) <= bound + 1e-12  # which is rounded up
        points = [curve.best(rate, length) for rate in rates]
        eps = [slots * rate + a for (slots, a), rate in zip(points, rates, strict=True)]
        by_theorem = sum(eps) - sum(a for _, a in points) + max(a for _, a in points)
        assert bound == pytest.approx(by_theorem)
        assert bound <= sum(eps) * (1 + 1e-12)
        assert curve.epsilon(rates[0], length) == pytest.approx(eps[0])


def test_a_curve_of_mixing_bounds_is_lemma_4_8_on_both_sides():
    curve = table_curve(MixingBounds(0.2, 0.75), size=40)
    for slots in (12, 20, 40):
        values = [
            2 * reference.lemma_f(0.2, 0.75, a) + reference.lemma_f(0.2, 0.75, slots + 1 - a)
            for a in range(1, slots + 1)
        ]
        assert curve.at(slots) == pytest.approx(min(values), rel=1e-9)
    assert table_curve(MarkovChain([[1.0]]), size=3).values.tolist() == [0, 0, 0]


def gaussian_by_quadrature(scale, gamma, delta, far, node, points=121):
    """Influence of a coordinate on two others, from their joint density restricted to the box, on a grid."""
    grid = np.linspace(-gamma, gamma, points)
    at = [*far, node]
    matrix = np.exp(-(np.subtract.outer(at, at) ** 2) / scale)
    inverse = np.linalg.inv(matrix)
    axes = np.meshgrid(*[grid] * len(at), indexing="ij")
    stacked = np.stack([axis.ravel() for axis in axes], axis=1)
    density = np.exp(-0.5 * np.einsum("ni,ij,nj->n", stacked, inverse, stacked)).reshape([points] * len(at))
    edges = np.arange(round(2 * gamma / delta) + 1) * (points - 1) // round(2 * gamma / delta)
    laws = []
    for low, high in itertools.pairwise(edges):
        # trapezoids along the secret coordinate
        inside = np.trapezoid(density[..., low : high + 1], dx=1.0, axis=-1)
        laws.append(inside / inside.sum())
    return max(np.log(one / other).max() for one, other in itertools.permutations(laws, 2))


@pytest.mark.night
@pytest.mark.parametrize(("scale", "delta"), [(0.5, 0.5), (1.0, 1.0), (2.0, 0.5)])
def test_the_gaussian_curve_is_just_above_the_influence_by_quadrature(scale, delta):
    curve = gaussian_curve(3, scale, 1.0, delta)
    truth = gaussian_by_quadrature(scale, 1.0, delta, far=[0, 2], node=1)
    # the law of the far coordinates is bounded by its extremes, so the curve is above, by a little
    assert truth * (1 - 1e-3) <= curve.at(1) <= 1.5 * truth
    assert curve.at(3) == 0
    one = gaussian_by_quadrature(scale, 1.0, delta, far=[2], node=0)
    assert curve.at(2) >= one * (1 - 1e-3)
