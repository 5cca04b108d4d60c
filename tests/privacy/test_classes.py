"""Classes of chains: bounds that hold for all members, and who is a member."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings

from quiltstream.privacy import ChainError, FiniteClass, MarkovChain, MixingBounds, belief_from_dict

from .strategies import transitions
from .test_chains import CYCLE, THETA1, primitive_with_reducible_product

THETA2 = [[0.8, 0.2], [0.3, 0.7]]


def test_the_papers_class_has_pi_min_a_fifth_and_gap_three_quarters():
    bounds = MixingBounds.of([MarkovChain(THETA1, [1, 0]), MarkovChain(THETA2, [0.9, 0.1])])
    assert bounds.pi_min == pytest.approx(0.2, rel=1e-14)
    assert bounds.gap == pytest.approx(0.75, rel=1e-14)
    assert bounds.kind == "multiplicative"
    assert MixingBounds.of(MarkovChain(THETA1), reversible=True).gap == pytest.approx(1.0, rel=1e-14)


def test_the_rate_depends_on_the_kind_of_gap():
    assert MixingBounds(0.2, 0.75, kind="multiplicative").rho == pytest.approx(0.5)
    assert MixingBounds(0.2, 0.75, kind="reversible").rho == pytest.approx(0.625)
    assert MixingBounds(0.2, 0.75).rho == pytest.approx(0.625)
    assert MixingBounds(0.5, 2.0, kind="reversible").rho == 0


@settings(max_examples=60, deadline=None)
@given(transitions())
def test_bounds_cover_the_chains_they_were_made_of(matrix):
    chain = MarkovChain(matrix)
    bounds = MixingBounds.of(chain)
    assert bounds.covers(chain)
    assert MixingBounds(bounds.pi_min, bounds.gap).covers(chain)
    assert not MixingBounds(min(0.5, bounds.pi_min * 1.01), bounds.gap).covers(chain) or bounds.pi_min * 1.01 > 0.5
    assert not MixingBounds(bounds.pi_min, min(1.0, bounds.gap * 1.01), "multiplicative").covers(chain) or (
        bounds.gap * 1.01 > 1
    )


def test_gaps_are_compared_with_gaps_of_their_kind_only():
    chain = MarkovChain(THETA1)  # gap of P P* 0.75, twice the gap of P 1
    assert not MixingBounds(0.19, 0.9, "multiplicative").covers(chain)
    assert MixingBounds(0.19, 0.9, "reversible").covers(chain)
    assert MixingBounds(0.19, 0.9).covers(chain)
    turning = MarkovChain([[0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1]])
    assert not MixingBounds(0.1, 0.01, "reversible").covers(turning)
    assert MixingBounds(0.1, 0.01).covers(turning)


def test_a_chain_that_never_mixes_is_covered_by_no_bounds():
    bounds = MixingBounds(1e-6, 1e-6)
    assert not bounds.covers(MarkovChain(CYCLE))
    assert not bounds.covers(MarkovChain([[1, 0], [0, 1]]))
    assert not bounds.covers(primitive_with_reducible_product())
    assert bounds.covers(MarkovChain([[1.0]]))


def test_a_chain_of_one_state_has_bounds_too():
    assert MixingBounds.of([MarkovChain([[1.0]]), MarkovChain(THETA1)]).pi_min == pytest.approx(0.2)
    assert MixingBounds.of(MarkovChain([[1.0]])).pi_min == 0.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pi_min": 0.0, "gap": 0.5}, "pi_min is 0.0.*above 0.*floor"),
        ({"pi_min": 0.6, "gap": 0.5}, "pi_min is 0.6.*at most 0.5"),
        ({"pi_min": float("nan"), "gap": 0.5}, "pi_min is nan"),
        ({"pi_min": 0.2, "gap": 0.0}, "gap of kind unknown is 0.0.*merge rare bins, or smooth"),
        ({"pi_min": 0.2, "gap": -1.0}, "gap of kind unknown is -1.0"),
        ({"pi_min": 0.2, "gap": 1.5, "kind": "multiplicative"}, "at most 1"),
        ({"pi_min": 0.2, "gap": 2.5, "kind": "reversible"}, "at most 2"),
        ({"pi_min": 0.2, "gap": 0.5, "kind": "fast"}, "kind is 'fast'.*unknown, multiplicative, reversible"),
    ],
)
def test_bounds_out_of_range_are_refused(arguments, message):
    with pytest.raises(ChainError, match=message):
        MixingBounds(**arguments)


def test_chains_without_bounds_say_why_and_what_to_do():
    with pytest.raises(ChainError, match=r"P P\* is reducible though P is not.*2 classes.*merge rare bins"):
        MixingBounds.of(primitive_with_reducible_product())
    with pytest.raises(ChainError, match="periodic with period 3"):
        MixingBounds.of(MarkovChain(CYCLE))
    with pytest.raises(ChainError, match=r"reducible.*\{0\}, \{1\}"):
        MixingBounds.of(MarkovChain([[1, 0], [0, 1]]))
    with pytest.raises(ChainError, match="cannot be told from 0"):
        MixingBounds.of(MarkovChain([[1 - 1e-14, 1e-14], [1e-14, 1 - 1e-14]]))
    with pytest.raises(ChainError, match="no chain"):
        MixingBounds.of([])


def test_a_finite_class_needs_chains_over_the_same_states():
    with pytest.raises(ChainError, match="no chain"):
        FiniteClass([])
    with pytest.raises(ChainError, match=r"\[1, 2\] states.*same bins"):
        FiniteClass([MarkovChain(THETA1), MarkovChain([[1.0]])])
    assert FiniteClass(iter([MarkovChain(THETA1)])).states == 2


@pytest.mark.parametrize(
    "belief",
    [
        MarkovChain(THETA1, [1, 0]),
        MixingBounds(0.2, 0.75, "reversible"),
        FiniteClass([MarkovChain(THETA1), MarkovChain(THETA2)]),
    ],
)
def test_beliefs_survive_json_by_their_kind(belief):
    again = belief_from_dict(json.loads(json.dumps(belief.to_dict())))
    assert again == belief
    assert hash(again) == hash(belief)


def test_an_unknown_or_unfinished_belief_is_refused():
    with pytest.raises(ChainError, match="belief kind is None"):
        belief_from_dict({})
    with pytest.raises(ChainError, match="field gap"):
        belief_from_dict({"kind": "mixing-bounds", "pi_min": 0.2})
    with pytest.raises(ChainError, match="field chains"):
        belief_from_dict({"kind": "finite-class"})
