"""Random chains and windows for hypothesis."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

TWO_OR_THREE = st.integers(2, 3)


@st.composite
def transitions(draw, states=TWO_OR_THREE, zeros=False, least=0.01):
    """A transition matrix; with ``zeros`` some entries are 0, so it may be reducible or periodic."""
    k = draw(states)
    weight = st.floats(least, 1.0)
    if zeros:
        weight = st.one_of(weight, st.just(0.0))
    rows = [draw(st.lists(weight, min_size=k, max_size=k).filter(lambda row: sum(row) > 0)) for _ in range(k)]
    matrix = np.array(rows)
    return matrix / matrix.sum(axis=1, keepdims=True)


@st.composite
def distributions(draw, states):
    row = draw(
        st.lists(st.one_of(st.just(0.0), st.floats(0.01, 1.0)), min_size=states, max_size=states).filter(
            lambda w: sum(w) > 0
        )
    )
    return np.array(row) / sum(row)


@st.composite
def windows(draw, length, most=3, epsilon=(0.001, 3.0)):
    """Some windows within ``[0, length)`` in random order and overlap."""
    found = []
    for _ in range(draw(st.integers(1, most))):
        start = draw(st.integers(0, length - 1))
        stop = draw(st.integers(start + 1, length))
        found.append((start, stop, draw(st.floats(*epsilon))))
    return found
