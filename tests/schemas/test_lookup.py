from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from quiltstream.schemas.states import StateSpace

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def around(edge: float) -> list[float]:
    return [float(np.nextafter(edge, -np.inf)), edge, float(np.nextafter(edge, np.inf))]


@given(st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=60, unique=True).map(sorted), st.lists(FINITE))
@example([200.0 * i for i in range(1, 51)], [0.0, 1e308, -1e308])
@example([0.1 * i for i in range(1, 30)], [])
@example([0.0, 5e-324], [])
@example([-1.7e308, 1.7e308], [])
@example([1.0, 1.0 + 2**-52, 4.0], [])
def test_the_table_finds_the_same_bins_as_comparing_with_every_edge(edges, values):
    probes = [*values, *(probe for edge in edges for probe in around(edge))]
    probes = [p for p in probes if np.isfinite(p)]
    truth = [sum(edge <= value for edge in edges) for value in probes]
    assert StateSpace(tuple(edges)).encode(np.array(probes)).tolist() == truth
