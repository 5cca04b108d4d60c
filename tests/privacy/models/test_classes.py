"""Classes of chains: bounds that hold for all members, and who is a member."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.privacy import MarkovChain, MixingBounds, belief_from_dict
from quiltstream.privacy.models import ChainError
from quiltstream.privacy.models.classes import BinaryInterval, mixing_bounds

from ...depth import examples
from ..strategies import transitions
from .test_chains import THETA1

THETA2 = [[0.8, 0.2], [0.3, 0.7]]


def test_the_papers_class_has_pi_min_a_fifth_and_gap_three_quarters():
    bounds = MixingBounds.of([MarkovChain(THETA1, [1, 0]), MarkovChain(THETA2, [0.9, 0.1])])
    assert bounds.pi_min == pytest.approx(0.2, rel=1e-14)
    assert bounds.gap == pytest.approx(0.75, rel=1e-14)
    assert bounds.kind == "multiplicative"
    assert MixingBounds.of(MarkovChain(THETA1), reversible=True).gap == pytest.approx(1.0, rel=1e-14)


@settings(max_examples=examples(60), deadline=None)
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pi_min": 0.0, "gap": 0.5}, "pi_min is 0.0.*above 0.*floor"),
        ({"pi_min": 0.6, "gap": 0.5}, "pi_min is 0.6.*at most 0.5"),
        ({"pi_min": 0.2, "gap": 0.0}, "gap of kind unknown is 0.0.*merge rare bins, or smooth"),
        ({"pi_min": 0.2, "gap": 1.5, "kind": "multiplicative"}, "at most 1"),
        ({"pi_min": 0.2, "gap": 2.5, "kind": "reversible"}, "at most 2"),
        ({"pi_min": 0.2, "gap": 0.5, "kind": "fast"}, "kind is 'fast'.*unknown, multiplicative, reversible"),
    ],
)
def test_bounds_out_of_range_are_refused(arguments, message):
    with pytest.raises(ChainError, match=message):
        MixingBounds(**arguments)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ((0.9, 0.8), (0.1, 0.2), r"stay_0 is \(0.9, 0.8\).*0 <= least <= largest <= 1"),
        ((0.1, 0.2), (-0.1, 0.2), "stay_1 is"),
        ((float("nan"), 0.2), (0.1, 0.2), "stay_0 is"),
        ((0.1, 0.2, 0.3), (0.1, 0.2), "must be two numbers"),
        (0.5, (0.1, 0.2), "stay_0 is 0.5, but must be two numbers"),
        (("0.1", "0.2"), (0.1, 0.2), "stay_0 is"),
    ],
)
def test_invalid_intervals_are_refused(first, second, message):
    with pytest.raises(ChainError, match=message):
        BinaryInterval(first, second)


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_the_bounds_of_an_interval_cover_every_member(data):
    ends = [sorted(data.draw(st.tuples(st.floats(0.01, 0.99), st.floats(0.01, 0.99)))) for _ in range(2)]
    belief = BinaryInterval(tuple(ends[0]), tuple(ends[1]))
    bounds = mixing_bounds(belief)
    for _ in range(5):
        stays = [min(end[1], max(end[0], end[0] + data.draw(st.floats(0, 1)) * (end[1] - end[0]))) for end in ends]
        chain = MarkovChain([[stays[0], 1 - stays[0]], [1 - stays[1], stays[1]]])
        assert chain.pi_min >= bounds.pi_min
        assert chain.reversible_gap >= bounds.gap * (1 - 1e-9)


def test_an_interval_with_a_member_that_does_not_mix_has_no_bounds():
    with pytest.raises(ChainError, match=r"pi_min is 0\.0"):
        mixing_bounds(BinaryInterval((0.5, 1.0), (0.5, 0.6)))
    with pytest.raises(ChainError, match=r"gap of kind reversible is 0\.0"):
        mixing_bounds(BinaryInterval((0.0, 0.5), (0.0, 0.6)))


CHAIN_FORM = {"kind": "markov-chain", "transition": [[0.6, 0.4], [0.5, 0.5]]}


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (CHAIN_FORM | {"intial": [1, 0]}, "belief of kind markov-chain has an unknown field, 'intial'"),
        (MixingBounds(0.2, 0.5).to_dict() | {"tau": 0.1}, "belief of kind mixing-bounds has an unknown field, 'tau'"),
        ({"kind": "finite-class", "chains": [CHAIN_FORM | {"kind": "periodic-chain"}]}, "of kind 'periodic-chain'"),
        ({"kind": "finite-class", "chains": [CHAIN_FORM | {"tau": 0.1}]}, "with a field 'tau'"),
        ({"kind": "finite-class", "chains": [[[0.6, 0.4], [0.5, 0.5]]]}, "make it with to_dict"),
        ([], "belief is a list, but must be an object"),
        (CHAIN_FORM | {"transition": [[0.5, "0.5"], [0.5, 0.5]]}, "must be an array of numbers"),
        (CHAIN_FORM | {"initial": [True, 0.0]}, "must be an array of numbers"),
    ],
)
def test_a_belief_of_a_file_is_never_read_as_another_one(form, message):
    with pytest.raises(ChainError, match=message):
        belief_from_dict(form)
