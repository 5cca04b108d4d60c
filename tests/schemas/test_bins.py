from __future__ import annotations

from decimal import Decimal
from itertools import pairwise

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from quiltstream.schemas.states import ROUNDING, StateSpace

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def lowest_of(edges: list[float]) -> list[float]:
    """The lowest value that counts as each edge: rounding is a thousandth of the bin below at most."""
    below = [np.inf, *((b - a) / 1024 for a, b in pairwise(edges))]
    return [edge - min(abs(edge) * ROUNDING, share) for edge, share in zip(edges, below, strict=True)]


def around(edge: float, lowest: float) -> list[float]:
    return [
        one for at in (lowest, edge) for one in (float(np.nextafter(at, -np.inf)), at, float(np.nextafter(at, np.inf)))
    ]


@given(st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=60, unique=True).map(sorted), st.lists(FINITE))
@example([200.0 * i for i in range(1, 101)], [0.0, 1e308, -1e308])
@example([0.0, 5e-324], [])
@example([-1.7e308, 1.7e308], [])
@example([1.0, 1.0 + 2**-52, 4.0], [])
@example([1e15, 1e15 + 1], [1e15 - 1])
def test_a_value_is_in_the_bin_behind_all_edges_that_it_reaches(edges, values):
    lowest = lowest_of(edges)
    probes = [*values, *(probe for pair in zip(edges, lowest, strict=True) for probe in around(*pair))]
    probes = [p for p in probes if np.isfinite(p)]
    truth = [sum(one <= value for one in lowest) for value in probes]
    assert StateSpace(tuple(edges)).encode(np.array(probes)).tolist() == truth


@given(st.integers(-(10**6), 10**6), st.integers(0, 6), st.sampled_from([1, 60, 1000, 2000, 4000, 12000]))
@example(115, 2, 12000)
@example(3, 2, 60)
@example(-115, 2, 12000)
def test_a_decimal_at_an_edge_is_never_below_it_and_the_next_one_down_always_is(digits, places, scale):
    edge = float(Decimal(digits) * scale / 10**places)
    values = np.array([float(Decimal(one) / 10**places) for one in (digits - 1, digits)]) * scale
    assert StateSpace((edge, edge + 1)).encode(values).tolist() == [0, 1]
    assert StateSpace((edge,)).encode(values).tolist() == [0, 1]
