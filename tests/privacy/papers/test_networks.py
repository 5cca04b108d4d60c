"""Bayesian networks: separation against the moral graph, inference and calibration against joint laws written out."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.privacy import MarkovChain
from quiltstream.privacy.papers.networks import (
    BayesianNetwork,
    log_marginal,
    max_influence,
    network_mqm,
    network_quilts,
)

from ...depth import examples
from .. import reference

RAIN = BayesianNetwork(
    {"rain": [], "sprinkler": ["rain"], "grass": ["rain", "sprinkler"]},
    {
        "rain": [0.8, 0.2],
        "sprinkler": [[0.6, 0.4], [0.99, 0.01]],
        "grass": [[[1.0, 0.0], [0.1, 0.9]], [[0.2, 0.8], [0.01, 0.99]]],
    },
)
COLLIDER = BayesianNetwork(
    {"a": [], "b": [], "c": ["a", "b"], "d": ["c"]},
    {
        "a": [0.5, 0.5],
        "b": [0.3, 0.7],
        "c": [[[0.9, 0.1], [0.5, 0.5]], [[0.4, 0.6], [0.2, 0.8]]],
        "d": [[0.7, 0.3], [0.2, 0.8]],
    },
)


@st.composite
def networks(draw, most=5, zeros=True):
    """A random network; its variables come in an order that is not that of the arrows."""
    size = draw(st.integers(1, most))
    names = draw(st.permutations([f"V{place}" for place in range(size)]))
    states = {name: draw(st.integers(1, 3)) for name in names}
    parents, tables = {}, {}
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    for place, name in enumerate(names):
        above = draw(st.lists(st.sampled_from(names[:place]), unique=True, max_size=3)) if place else []
        table = generator.dirichlet(np.ones(states[name]), size=[states[other] for other in above])
        if zeros and draw(st.booleans()):
            table = np.where((table < 0.2) & (table < table.max(axis=-1, keepdims=True)), 0, table)
        parents[name], tables[name] = above, table / table.sum(axis=-1, keepdims=True)
    order = draw(st.permutations(names))
    return BayesianNetwork({name: parents[name] for name in order}, tables)


def joint_law(network):
    """The joint law with one axis per variable, summed up combination by combination."""
    place = {name: axis for axis, name in enumerate(network.names)}
    law = np.ones([network.states(name) for name in network.names])
    for row in np.ndindex(law.shape):
        for name in network.names:
            above = tuple(row[place[other]] for other in network.parents[name])
            law[row] *= network.tables[name][(*above, row[place[name]])]
    return law


def separated_in_the_moral_graph(network, name, other, known):
    """d-separation by the moralised ancestral graph (Lauritzen and others)."""
    wanted, stack = set(), [name, other, *known]
    while stack:
        here = stack.pop()
        if here not in wanted:
            wanted.add(here)
            stack.extend(network.parents[here])
    edges = set()
    for child in wanted:
        family = [*network.parents[child], child]
        edges |= {frozenset(pair) for pair in itertools.combinations(family, 2)}
    reached, stack = set(), [name]
    while stack:
        here = stack.pop()
        if here not in reached and here not in known:
            reached.add(here)
            stack.extend(end for edge in edges if here in edge for end in edge)
    return other not in reached


@settings(max_examples=examples(120), deadline=None)
@given(st.data())
def test_the_bayes_ball_agrees_with_the_moral_graph(data):
    network = data.draw(networks(most=6))
    name = data.draw(st.sampled_from(network.names))
    known = data.draw(st.sets(st.sampled_from(network.names))) - {name}
    found = network.separated_from(name, known)
    expected = [
        other
        for other in network.names
        if other != name and other not in known and separated_in_the_moral_graph(network, name, other, known)
    ]
    assert list(found) == expected


def test_a_collider_opens_where_it_or_something_below_it_is_known():
    assert COLLIDER.separated_from("a", []) == ("b",)
    assert COLLIDER.separated_from("a", ["c"]) == ("d",)
    assert COLLIDER.separated_from("a", ["d"]) == ()
    assert COLLIDER.separated_from("a", ["b"]) == ()
    assert RAIN.separated_from("rain", ["sprinkler"]) == ()


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_elimination_gives_the_marginals_of_the_joint_law(data):
    network = data.draw(networks())
    kept = data.draw(st.lists(st.sampled_from(network.names), unique=True))
    law = joint_law(network)
    axes = [network.names.index(name) for name in kept]
    rest = tuple(axis for axis in range(law.ndim) if axis not in axes)
    expected = np.transpose(law.sum(axis=rest), [sorted(axes).index(axis) for axis in axes])
    assert np.exp(log_marginal(network, kept)) == pytest.approx(expected, abs=1e-13)


def influence_of(law, node, quilt):
    """Max-influence from a joint law with one axis per variable."""
    rest = tuple(axis for axis in range(law.ndim) if axis != node and axis not in quilt)
    table = np.moveaxis(law.sum(axis=rest, keepdims=True), node, 0).reshape(law.shape[node], -1)
    laws = [row / row.sum() for row in table if row.sum() > 0]
    return max((reference.worst_ratio(p, q) for p, q in itertools.permutations(laws, 2)), default=0.0)


@settings(max_examples=examples(60), deadline=None)
@given(st.data(), st.floats(0.5, 8.0))
def test_calibration_is_that_of_every_quilt_tried_on_the_joint_law(data, epsilon):
    network = data.draw(networks(most=4))
    law = joint_law(network)
    worst = 0.0
    for node, name in enumerate(network.names):
        best = math.inf
        others = [axis for axis in range(law.ndim) if axis != node]
        for size in range(law.ndim):
            for quilt in itertools.combinations(others, size):
                known = {network.names[axis] for axis in quilt}
                away = sum(
                    separated_in_the_moral_graph(network, name, network.names[axis], known)
                    for axis in others
                    if axis not in quilt
                )
                influence = influence_of(law, node, quilt)
                assert max_influence(network, name, known) == pytest.approx(influence, abs=1e-9)
                if influence < epsilon - 1e-9:
                    best = min(best, (law.ndim - size - away) / (epsilon - influence))
        worst = max(worst, best)
    found = network_mqm(network, epsilon)
    assert found.sigma == pytest.approx(worst, rel=1e-6)
    assert found.quilt.score == found.sigma
    assert found.epsilon_dp == 1 / found.sigma


@settings(max_examples=examples(40), deadline=None)
@given(st.data(), st.floats(0.5, 5.0))
def test_answers_of_every_variable_with_this_noise_lose_at_most_epsilon(data, epsilon):
    """Each variable is answered by randomised response of the calibration's eps_dp; all outputs are tried."""
    network = data.draw(networks(most=4))
    law = joint_law(network)
    rate = network_mqm(network, epsilon).epsilon_dp
    rows = list(np.ndindex(law.shape))
    agree = np.array([[sum(x == y for x, y in zip(row, output, strict=True)) for row in rows] for output in rows])
    likelihood = np.exp(rate * agree)
    chance = law.ravel()
    for node in range(law.ndim):
        laws = []
        for state in range(law.shape[node]):
            here = np.array([row[node] == state for row in rows])
            if chance[here].sum() > 0:
                laws.append(likelihood[:, here] @ chance[here] / chance[here].sum())
        for p, q in itertools.permutations(laws, 2):
            assert reference.worst_ratio(p, q) <= epsilon + 1e-9


def test_the_worked_example_of_the_paper():
    network = BayesianNetwork.from_chain(MarkovChain([[0.9, 0.1], [0.4, 0.6]], [0.8, 0.2]), 3)
    found = {entry.quilt: entry for entry in network_quilts(network, "X2", epsilon=10.0)}
    assert found[()].influence == 0
    assert found["X1",].influence == pytest.approx(math.log(6), rel=1e-12)
    assert found["X3",].influence == pytest.approx(math.log(6), rel=1e-12)
    assert found["X1", "X3"].influence == pytest.approx(math.log(36), rel=1e-12)
    assert [round(found[quilt].score, 4) for quilt in ((), ("X1",), ("X3",), ("X1", "X3"))] == [
        0.3,
        0.2437,
        0.2437,
        0.1558,
    ]
    assert found["X1",].nearby == ("X2", "X3")
    assert network_quilts(network, "X2", epsilon=10.0)[0].quilt == ("X1", "X3")


def test_numbers_that_underflow_keep_their_ratios():
    tiny = Fraction(1, 10**200)
    exact = [[1 - tiny, tiny], [1 - 3 * tiny, 3 * tiny]]
    network = BayesianNetwork.from_chain(MarkovChain([[1.0, 1e-200], [1.0, 3e-200]], [0.5, 0.5]), 4)

    def power(steps):
        table = [[Fraction(1), Fraction(0)], [Fraction(0), Fraction(1)]]
        for _ in range(steps):
            table = [[sum(row[m] * exact[m][y] for m in range(2)) for y in range(2)] for row in table]
        return table

    # P(X2 = X4 = 1 | X1) is of the order of 1e-400
    expected = max(
        math.log((power(1)[1][y] * power(2)[y][z]) / (power(1)[0][y] * power(2)[y][z]))
        for y, z in itertools.product(range(2), repeat=2)
    )
    assert np.isfinite(log_marginal(network, ["X2", "X3", "X4"])).all()
    assert log_marginal(network, ["X2", "X3", "X4"]).min() == pytest.approx(
        math.log(2) + 2 * math.log(3) + 3 * math.log(1e-200), rel=1e-12
    )
    assert max_influence(network, "X1", ["X2", "X4"]) == pytest.approx(expected, rel=1e-9)


def test_the_empty_quilt_covers_independent_variables():
    (entry,) = (one for one in network_quilts(COLLIDER, "b", 1.0) if not one.quilt)
    assert (entry.nearby, entry.remote) == (("b", "c", "d"), ("a",))
    apart = BayesianNetwork({"a": [], "b": []}, {"a": [0.5, 0.5], "b": [0.1, 0.9]})
    assert network_mqm(apart, 2.0).sigma == 0.5


def test_a_class_needs_the_noise_of_its_worst_member():
    mild = BayesianNetwork.from_chain(MarkovChain([[0.5, 0.5], [0.4, 0.6]], [0.8, 0.2]), 4)
    strong = BayesianNetwork.from_chain(MarkovChain([[0.9, 0.1], [0.1, 0.9]], [0.8, 0.2]), 4)
    found = network_mqm([mild, strong], 3.0)
    assert (found.sigma, found.member) == (network_mqm(strong, 3.0).sigma, 1)


def test_a_quilt_that_rules_a_state_out_is_unusable_and_no_error():
    copy = BayesianNetwork({"a": [], "b": ["a"]}, {"a": [0.5, 0.5], "b": [[1.0, 0.0], [0.0, 1.0]]})
    assert max_influence(copy, "a", ["b"]) == math.inf
    assert network_quilts(copy, "a", 1.0)[-1].score == math.inf
    assert network_mqm(copy, 1.0).sigma == 2


def test_an_impossible_state_is_not_a_secret():
    network = BayesianNetwork({"a": [], "b": ["a"]}, {"a": [0, 0.5, 0.5], "b": [[1, 0], [0.5, 0.5], [0.5, 0.5]]})
    assert max_influence(network, "a", ["b"]) == 0
