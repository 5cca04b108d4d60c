"""Markov chains: validation, and the quantities that follow from the transition matrix."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings

from quiltstream.privacy import MarkovChain
from quiltstream.privacy.models import ChainError

from ...depth import examples
from .. import reference
from ..strategies import transitions

THETA1 = [[0.9, 0.1], [0.4, 0.6]]
CYCLE = [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
# from 0 only to 1 and 2 evenly, from 1 and 2 only to 0 or 0 and 1: P primitive, P P* reducible
HIDDEN = [[0.0, 0.5, 0.5], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]


def primitive_with_reducible_product(share=0.5):
    """0 -> 1 -> 2 -> {0, 1}: every power from the fifth on is positive, yet no two of rows 0 and 1 share a target."""
    return MarkovChain([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [share, 1 - share, 0.0]])


def test_the_papers_first_chain_has_the_papers_gap_and_rarest_state():
    chain = MarkovChain(THETA1)
    assert chain.stationary == pytest.approx([0.8, 0.2], rel=1e-14)
    assert chain.pi_min == pytest.approx(0.2, rel=1e-14)
    assert chain.gap == pytest.approx(0.75, rel=1e-14)
    assert chain.rho == pytest.approx(0.5, rel=1e-14)
    assert chain.reversible_gap == pytest.approx(1.0, rel=1e-14)
    assert (chain.period, chain.gap_multiplicity, chain.is_reversible) == (1, 1, True)


@pytest.mark.parametrize(
    "matrix",
    [
        [[0.5, 0.5], [5e-324, 1.0]],
        [[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [5e-324, 5e-324, 1.0]],
        [[1 - 1e-200, 1e-200, 0, 0], [0.5, 0.5 - 1e-200, 1e-200, 0], [0, 0.5, 0.5, 1e-310], [0, 0, 0.5, 0.5]],
    ],
)
def test_a_ratio_of_probabilities_beyond_every_float_is_refused(matrix):
    chain = MarkovChain(matrix)
    try:
        found = chain.stationary
    except ChainError as error:
        assert "rarer than double precision" in str(error)  # noqa: PT017 - either is right
    else:
        assert np.isfinite(found).all()
        assert found.sum() == pytest.approx(1.0)


@settings(max_examples=examples(60), deadline=None)
@given(transitions())
def test_the_gap_is_that_of_the_eigenvalues_of_p_times_its_reversal(matrix):
    chain = MarkovChain(matrix)
    weights = reference.stationary(chain.transition)
    reversal = chain.transition.T * weights[np.newaxis, :] / weights[:, np.newaxis]
    values = np.sort(np.abs(np.linalg.eigvals(chain.transition @ reversal)))
    assert chain.stationary == pytest.approx(weights, rel=1e-9)
    assert chain.reversal == pytest.approx(reversal, rel=1e-9)
    assert chain.gap == pytest.approx(1 - values[-2], abs=1e-9)
    assert chain.rho**2 == pytest.approx(values[-2], abs=1e-9)


@pytest.mark.parametrize("share", [0.5, 0.3, 0.123, 0.9])
def test_the_gap_of_a_primitive_chain_with_reducible_product_is_zero(share):
    chain = primitive_with_reducible_product(share)
    assert (chain.is_irreducible, chain.period) == (True, 1)
    assert (chain.gap, chain.rho, chain.gap_multiplicity) == (0.0, 1.0, 2)


def test_a_periodic_chain_has_its_period_and_a_gap_of_zero():
    chain = MarkovChain(CYCLE)
    assert (chain.period, chain.gap, chain.gap_multiplicity) == (3, 0.0, 3)
    assert MarkovChain(HIDDEN).period == 2
    assert MarkovChain([[0.0, 1.0], [1.0, 0.0]]).reversible_gap == 0.0


def test_a_reducible_chain_is_constructed_and_its_properties_name_its_classes():
    chain = MarkovChain([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.1, 0.9]], initial=[0, 0, 1])
    assert not chain.is_irreducible
    for name in ("stationary", "pi_min", "reversal", "gap", "period", "gap_multiplicity", "reversible_gap"):
        with pytest.raises(ChainError, match=r"reducible.*2 classes.*\{0, 1\}, \{2\}.*merge rare bins"):
            getattr(chain, name)


@pytest.mark.parametrize(
    ("transition", "initial", "message"),
    [
        ([[0.5, 0.5]], None, r"shape \(1, 2\).*square"),
        ([], None, r"shape \(0,\).*square"),
        ([[0.5, 0.5], [1.0]], None, "rows of equal length"),
        ([[0.5, 0.5], ["a", 1.0]], None, "array of numbers"),
        ([[0.5, 0.5], [float("nan"), 1.0]], None, r"transition\[1, 0\] is nan.*finite"),
        ([[1.5, -0.5], [0.5, 0.5]], None, r"transition\[0, 1\] is -0.5.*not negative"),
        ([[0.5, 0.5], [0.5, 0.4]], None, r"transition row 1 sums to 0\.9.*1e-09"),
        ([[0.5, 0.5], [0.5, 0.5 + 2e-9]], None, "transition row 1 sums to 1.000000002"),
        (THETA1, [1.0], r"initial has shape \(1,\).*2 states"),
        (THETA1, [0.5, 0.6], "initial sums to 1.1"),
        (THETA1, [1.5, -0.5], r"initial\[1\] is -0.5"),
    ],
)
def test_bad_matrices_are_refused_with_place_value_limit_and_next_step(transition, initial, message):
    with pytest.raises(ChainError, match=message) as caught:
        MarkovChain(transition, initial)
    assert ": " in str(caught.value)


@settings(max_examples=examples(60), deadline=None)
@given(transitions(zeros=True))
def test_a_chain_survives_json_bit_for_bit(matrix):
    chain = MarkovChain(matrix * (1 + 3e-10), initial=matrix[0])
    again = MarkovChain.from_dict(json.loads(json.dumps(chain.to_dict())))
    assert again == chain
    assert hash(again) == hash(chain)
    assert again.transition.tobytes() == chain.transition.tobytes()
