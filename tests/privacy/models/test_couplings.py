"""The largest ratio of two expectations: couplings against the vertices and a linear programme over all functions."""

from __future__ import annotations

import base64
import itertools
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from quiltstream.privacy.models.couplings import Couplings, couple
from quiltstream.privacy.models.couplings import load_bound as load_bound_of

from ...depth import examples

#: The general solver holds its constraints to this only.
SOLVER = 1e-7


def load_bound(p, q, ratios, mass):
    """What the mass of an array of shape (n, k, k) proves."""
    return load_bound_of(p, q, ratios, Couplings.of(mass))


def closed(matrix):
    """The least matrix of ratios with the triangle inequality below one."""
    found = matrix.copy()
    np.fill_diagonal(found, 1.0)
    for middle in range(len(found)):
        found = np.minimum(found, found[:, [middle]] * found[[middle], :])
    return found


def primal(p, q, ratios):
    """max p.G with q.G = 1 and G(y) <= W[y,z] G(z), by a general solver."""
    k = len(p)
    rows = []
    for y, z in itertools.permutations(range(k), 2):
        row = np.zeros(k)
        row[y], row[z] = 1.0, -ratios[y, z]
        rows.append(row)
    found = linprog(-p, A_ub=np.array(rows), b_ub=np.zeros(len(rows)), A_eq=[q], b_eq=[1.0], bounds=(0, None))
    return -found.fun


@st.composite
def problems(draw, most=5):
    k = draw(st.integers(2, most))
    weight = st.one_of(st.floats(1e-3, 1.0), st.just(0.0))
    full = st.floats(1e-3, 1.0)
    p = np.array(draw(st.lists(weight, min_size=k, max_size=k).filter(any)))
    q = np.array(draw(st.lists(full, min_size=k, max_size=k)))
    logs = np.array(draw(st.lists(st.floats(0.0, 3.0), min_size=k * k, max_size=k * k))).reshape(k, k)
    return p / p.sum(), q / q.sum(), closed(np.exp(logs))


@settings(max_examples=examples(40), deadline=None)
@given(problems())
def test_couplings_reach_the_optimum_of_the_linear_programme(problem):
    p, q, ratios = problem
    found = couple(p[None], q[None], ratios[None])
    truth = primal(p, q, ratios)
    assert found.theta[0] == pytest.approx(truth, rel=1e-7)
    assert load_bound(p[None], q[None], ratios[None], found.mass)[0] >= truth * (1 - SOLVER)


def kept(size=4):
    """Couplings of twelve pairs of rows of four states as a file has them, with what they are of."""
    rng = np.random.default_rng(12)
    p, q = rng.dirichlet(np.full(4, 0.5), size=(2, 12))
    ratios = closed(np.exp(rng.random((4, 4))))[None]
    found = couple(p, q, ratios, 1e-12)
    return p, q, ratios, Couplings.of(found.mass).rounded(size), found.theta


@pytest.mark.parametrize(("size", "least"), [(4, 1e-6), (8, 1e-9)])
def test_couplings_read_from_text_prove_nearly_the_original_bound(size, least):
    p, q, ratios, moved, theta = kept(size)
    read = Couplings.from_text(moved.text(), 12, 4)
    assert (read.places.tolist(), read.mass.tolist()) == (moved.places.tolist(), moved.mass.tolist())
    bound = load_bound_of(p, q, ratios, read)
    assert (theta * (1 - 1e-12) <= bound).all()
    assert (bound <= theta * (1 + least)).all()


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_altered_couplings_never_prove_a_bound_below_the_truth(data):
    p, q, ratios, moved, theta = kept(data.draw(st.sampled_from([4, 8])))
    content = bytearray(zlib.decompress(base64.b64decode(moved.text())))
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(1, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        read = Couplings.from_text(base64.b64encode(zlib.compress(bytes(content))).decode(), 12, 4)
    except ValueError:
        return
    assert (load_bound_of(p, q, ratios, read) >= theta * (1 - 1e-9)).all()
