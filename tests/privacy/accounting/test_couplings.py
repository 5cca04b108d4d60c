"""The largest ratio of two expectations: couplings against the vertices and a linear programme over all functions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from quiltstream.privacy.models.directions import couple, load_bound


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


def over_vertices(p, q, ratios):
    """The same over the vertices of the polytrope: spanning trees of tight inequalities, those that are feasible."""
    k = len(p)
    best = 0.0
    edges = list(itertools.permutations(range(k), 2))
    for tree in itertools.combinations(edges, k - 1):
        value = {0: 1.0}
        for _ in range(k):
            for y, z in tree:
                if z in value and y not in value:
                    value[y] = ratios[y, z] * value[z]
                elif y in value and z not in value:
                    value[z] = value[y] / ratios[y, z]
        if len(value) == k:
            g = np.array([value[y] for y in range(k)])
            if (g[:, None] <= ratios * g[None, :] * (1 + 1e-9)).all():
                best = max(best, p @ g / (q @ g))
    return best


@st.composite
def problems(draw, most=5):
    k = draw(st.integers(2, most))
    weight = st.one_of(st.floats(1e-3, 1.0), st.just(0.0))
    full = st.floats(1e-3, 1.0)
    p = np.array(draw(st.lists(weight, min_size=k, max_size=k).filter(any)))
    q = np.array(draw(st.lists(full, min_size=k, max_size=k)))
    logs = np.array(draw(st.lists(st.floats(0.0, 3.0), min_size=k * k, max_size=k * k))).reshape(k, k)
    return p / p.sum(), q / q.sum(), closed(np.exp(logs))


@settings(max_examples=40, deadline=None)
@given(problems())
def test_couplings_reach_the_optimum_of_the_linear_programme(problem):
    p, q, ratios = problem
    found = couple(p[None], q[None], ratios[None])
    truth = primal(p, q, ratios)
    assert found.theta[0] == pytest.approx(truth, rel=1e-7)
    assert load_bound(p[None], q[None], ratios[None], found.mass)[0] >= truth * (1 - 1e-9)


@settings(max_examples=10, deadline=None)
@given(problems(most=4))
def test_couplings_reach_the_best_vertex_of_the_polytrope(problem):
    p, q, ratios = problem
    assert couple(p[None], q[None], ratios[None]).theta[0] == pytest.approx(over_vertices(p, q, ratios), rel=1e-7)


@settings(max_examples=40, deadline=None)
@given(problems(), st.integers(0, 2**32 - 1))
def test_any_mass_whatever_proves_a_bound(problem, seed):
    p, q, ratios = problem
    rng = np.random.default_rng(seed)
    mass = rng.random(ratios.shape) * (rng.random(ratios.shape) < 0.5) - 0.1
    assert load_bound(p[None], q[None], ratios[None], mass[None])[0] >= primal(p, q, ratios) * (1 - 1e-9)


def test_a_state_that_only_the_numerator_reaches_is_coupled_elsewhere():
    p, q = np.array([[0.5, 0.5]]), np.array([[1.0, 0.0]])
    ratios = np.array([[[1.0, 3.0], [4.0, 1.0]]])
    # G(1) is at most 4 G(0)
    found = couple(p, q, ratios)
    assert found.theta[0] == pytest.approx(2.5)
    assert load_bound(p, q, ratios, found.mass)[0] == pytest.approx(2.5)


def test_a_gap_that_grows_before_it_falls_is_followed_to_the_end():
    p, q = np.array([[0.5, 0.4, 0.1]]), np.array([[0.1, 0.5, 0.4]])
    for size in np.linspace(0.5, 4.0, 30):
        ratios = closed(np.exp(size * np.array([[0.0, 0.86, 0.89], [0.94, 0.0, 0.97], [0.93, 0.9, 0.0]])))
        assert couple(p, q, ratios[None]).theta[0] == pytest.approx(primal(p[0], q[0], ratios), rel=1e-6)


def test_a_batch_is_solved_as_each_pair_alone():
    rng = np.random.default_rng(7)
    rows = rng.dirichlet(np.full(6, 0.3), size=40)
    ratios = np.stack([closed(np.exp(rng.random((6, 6)) * 2)) for _ in range(20)])
    together = couple(rows[:20], rows[20:], ratios)
    for place in range(20):
        alone = couple(rows[[place]], rows[[20 + place]], ratios[[place]])
        assert together.theta[place] == pytest.approx(alone.theta[0], rel=1e-8)


def test_rare_states_and_large_ratios_keep_the_bound():
    p = np.array([[1 - 3e-12, 1e-12, 2e-12]])
    q = np.array([[0.5, 0.5 - 1e-13, 1e-13]])
    ratios = closed(np.exp(np.array([[0.0, 20.0, 9.0], [15.0, 0.0, 4.0], [8.0, 30.0, 0.0]])))[None]
    found = couple(p, q, ratios)
    assert load_bound(p, q, ratios, found.mass)[0] >= primal(p[0], q[0], ratios[0]) * (1 - 1e-9)
