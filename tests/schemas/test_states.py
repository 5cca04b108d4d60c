from __future__ import annotations

import math

import numpy as np
import pytest

from quiltstream.schemas.states import StateSpace


def test_values_beyond_the_edges_are_counted_in_the_end_bins():
    space = StateSpace((0.0, 250.0))
    assert space.encode(np.array([-1e308, -0.1, 0.0, 249.9, 250.0, 1e308])).tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ((1.0, 1.0), r"states\.edges\[1\] is 1, not above the one before it"),
        ((2.0, 1.0), r"states\.edges\[1\] is 1"),
        ((math.nan,), r"states\.edges\[0\] is nan"),
        ((0.0, math.inf), r"states\.edges\[1\] is inf"),
    ],
)
def test_edges_that_are_not_increasing_and_finite_are_refused(edges, message):
    with pytest.raises(ValueError, match=message):
        StateSpace(edges)


def test_the_missing_state_is_the_last_one():
    space = StateSpace((250.0,), "W", missing_state=True)
    assert (space.bins, space.size) == (2, 3)
    assert space.labels == ("below 250 W", "250 W and above", "missing")
    assert StateSpace.from_dict(space.to_dict()) == space


def test_categories_are_states_in_their_order():
    space = StateSpace((), categories=("sleep", "sit"), other="other", missing_state=True)
    assert (space.bins, space.size) == (3, 4)
    assert space.labels == ("sleep", "sit", "other", "missing")
    assert space.ends == ((None, None),) * 4
    assert space.encode(np.array([0.0, 1.0, 2.0])).tolist() == [0, 1, 2]
    assert space.are_states(np.array([-1.0, 0.0, 0.5, 2.0, 3.0])).tolist() == [False, True, False, True, False]
    assert StateSpace.from_dict(space.to_dict()) == space
    assert StateSpace.of_row(None, "", "state", space.labels).labels == space.labels


def test_other_may_be_one_of_the_categories_and_may_be_left_out():
    named = StateSpace((), categories=("sleep", "sit"), other="sit")
    assert (named.labels, named.state_of("swim")) == (("sleep", "sit"), 1)
    assert StateSpace((), categories=("sleep", "sit")).state_of("swim") is None


def test_spaces_of_other_categories_are_other_spaces():
    forms = [
        StateSpace((), categories=categories, other=other).to_dict()
        for categories, other in ((("a", "b"), None), (("b", "a"), None), (("a", "b"), "b"), (("a", "b"), "c"))
    ]
    assert len({str(form) for form in forms}) == 4
    assert "categories" not in StateSpace((1.0,)).to_dict()  # digests of before stay


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"categories": ("a", "a")}, r"states\.categories\[1\] is 'a', which stands before it"),
        ({"categories": ("a", " b")}, r"states\.categories\[1\] is ' b'; a label is not empty, and has no blanks"),
        ({"categories": ("a", "b"), "other": ""}, r"states\.other is ''; a label is not empty"),
        ({"categories": ("a", "b"), "edges": (1.0,)}, "labels instead of numbers: leave states.edges"),
        ({"categories": ("a", "b"), "unit": "W"}, "leave states.edges, states.labels and states.unit out"),
        ({"categories": ("a", "missing"), "missing_state": True}, "under missing: state is the state of a cell"),
        ({"categories": ("a",), "other": "missing", "missing_state": True}, "under missing: state is the state"),
        ({"other": "a"}, r"states\.other is the state of labels that are none of states\.categories"),
    ],
)
def test_categories_that_cannot_be_states_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        StateSpace(given.pop("edges", ()), **given)
