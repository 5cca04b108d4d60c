"""The largest ratio of two expectations: couplings against the vertices and a linear programme over all functions."""

from __future__ import annotations

import base64
import itertools
import zlib
from fractions import Fraction

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


ANY_MASS = st.one_of(
    st.floats(1e-3, 1.0),
    st.sampled_from([0.0, -1.0, 5e-324, 1e-300, 2.0**99, 1e308, float("inf"), float("-inf"), float("nan")]),
)


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_any_mass_proves_a_bound(data):
    p, q, ratios = data.draw(problems())
    k = len(p)
    places = np.array(sorted(data.draw(st.sets(st.integers(0, k * k - 1)))), dtype=np.int64)
    mass = data.draw(st.lists(ANY_MASS, min_size=len(places), max_size=len(places)))
    moved = Couplings(1, k, places, np.array(mass, dtype=np.float64))
    assert load_bound_of(p[None], q[None], ratios[None], moved)[0] >= primal(p, q, ratios) * (1 - SOLVER)


@pytest.mark.parametrize("mass", [[np.inf, 1.0], [1e308, 1e308], [np.nan, np.inf], [-np.inf, 5e-324], [np.nan, -1.0]])
def test_numbers_that_have_no_sum_let_no_row_vanish(mass):
    p, q = np.array([[0.9, 0.05, 0.05]]), np.array([[0.4, 0.3, 0.3]])
    ratios = closed(np.exp(1.0 - np.eye(3)))[None]
    moved = Couplings(1, 3, np.array([1, 2]), np.array(mass))
    assert load_bound_of(p, q, ratios, moved)[0] >= primal(p[0], q[0], ratios[0]) * (1 - SOLVER)


def exact_load(p, q, ratios, mass):
    """The largest load over q of what the floats say, as a fraction: rows of the mass have the surplus as their sum."""
    k, loads = len(p), [Fraction(min(p[z], q[z])) for z in range(len(p))]
    for y in range(k):
        surplus, whole = max(Fraction(p[y]) - Fraction(q[y]), Fraction(0)), sum(map(Fraction, mass[y]))
        for z in range(k):
            loads[z] += Fraction(ratios[y, z]) * Fraction(mass[y, z]) * surplus / whole
    return max(load / Fraction(one) for load, one in zip(loads, q, strict=True))


def test_a_bound_is_rounded_outward_and_by_little():
    rng = np.random.default_rng(11)
    for k in (2, 3, 5, 9) * 20:
        p, q = rng.dirichlet(np.ones(k), size=2)
        ratios, mass = closed(np.exp(rng.random((k, k)))), rng.random((k, k))
        truth, found = exact_load(p, q, ratios, mass), load_bound(p[None], q[None], ratios[None], mass[None])[0]
        assert truth <= Fraction(found) <= truth * (1 + Fraction(1, 10**13))


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


def test_couplings_of_other_pairs_are_refused():
    p, q, ratios, moved, _ = kept()
    with pytest.raises(ValueError, match="couplings of 12 pairs of 4 states, for 11 of 4"):
        load_bound_of(p[1:], q[1:], ratios, moved)
    with pytest.raises(ValueError, match="outside the pairs"):
        Couplings.from_text(moved.text(), 11, 4)


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


def test_a_state_that_only_the_numerator_reaches_is_coupled_elsewhere():
    p, q = np.array([[0.5, 0.5]]), np.array([[1.0, 0.0]])
    ratios = np.array([[[1.0, 3.0], [4.0, 1.0]]])
    # G(1) is at most 4 G(0)
    found = couple(p, q, ratios)
    assert found.theta[0] == pytest.approx(2.5)
    assert load_bound(p, q, ratios, found.mass)[0] == pytest.approx(2.5)


def test_a_duality_gap_that_grows_before_it_falls_is_followed_to_the_optimum():
    p, q = np.array([[0.5, 0.4, 0.1]]), np.array([[0.1, 0.5, 0.4]])
    for size in np.linspace(0.5, 4.0, 30):
        ratios = closed(np.exp(size * np.array([[0.0, 0.86, 0.89], [0.94, 0.0, 0.97], [0.93, 0.9, 0.0]])))
        assert couple(p, q, ratios[None]).theta[0] == pytest.approx(primal(p[0], q[0], ratios), rel=1e-6)


def test_rare_states_and_large_ratios_keep_the_bound():
    p = np.array([[1 - 3e-12, 1e-12, 2e-12]])
    q = np.array([[0.5, 0.5 - 1e-13, 1e-13]])
    ratios = closed(np.exp(np.array([[0.0, 20.0, 9.0], [15.0, 0.0, 4.0], [8.0, 30.0, 0.0]])))[None]
    found = couple(p, q, ratios)
    assert load_bound(p, q, ratios, found.mass)[0] >= primal(p[0], q[0], ratios[0]) * (1 - SOLVER)


def test_a_state_that_no_column_takes_at_finite_ratios_proves_nothing():
    # G(2) <= 2 G(0) is finite, but q has nothing in column 0
    p, q, ratios = np.array([[0.0, 0.0, 1.0]]), np.array([[0.0, 1.0, 0.0]]), np.ones((1, 3, 3))
    ratios[0, 2] = [2.0, np.inf, 1.0]
    for column in (None, 0, 1):
        mass = np.zeros((1, 3, 3))
        if column is not None:
            mass[0, 2, column] = 1.0
        assert load_bound(p, q, ratios, mass)[0] == np.inf
