from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiltstream.schemas.states import StateSpace

EDGES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20, unique=True).map(sorted)


@given(EDGES, st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_a_value_is_in_the_bin_after_the_edges_it_reaches(edges, values):
    space = StateSpace(tuple(edges))
    truth = [sum(edge <= value for edge in edges) for value in values]
    assert space.encode(np.array(values)).tolist() == truth


def test_values_beyond_the_edges_go_to_the_end_bins():
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
    assert StateSpace.size_of(space.to_dict()) == space.size


def test_labels_must_be_as_many_as_bins():
    with pytest.raises(ValueError, match="3 labels for 2 bins"):
        StateSpace((250.0,), names=("a", "b", "c"))
