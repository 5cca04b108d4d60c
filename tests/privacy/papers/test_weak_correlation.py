"""Baselines: their numbers, the influence matrix from the definition, and the promise of the bound derived from it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from quiltstream.privacy import MarkovChain
from quiltstream.privacy.papers.weak_correlation import OutsideDomain, gk16, gk16_influence

from ...depth import examples
from .. import reference
from ..strategies import transitions


def literal_influence(initial, transition, length):
    """Gamma from all pairs of sequences that differ in one slot: conditional laws given all the other slots."""
    every, chance = reference.sequences(initial, transition, length)
    index = {tuple(row): place for place, row in enumerate(every.tolist())}
    states = len(transition)
    gamma = np.zeros((length, length))

    def law(row, slot):
        weights = np.array([chance[index[(*row[:slot], state, *row[slot + 1 :])]] for state in range(states)])
        return weights / weights.sum() if weights.sum() > 0 else None

    for row, (i, j) in itertools.product(index, itertools.permutations(range(length), 2)):
        for state in range(states):
            other = (*row[:j], state, *row[j + 1 :])
            p, q = law(row, i), law(other, i)
            if p is not None and q is not None:
                gamma[i, j] = max(gamma[i, j], reference.worst_ratio(p, q) / 2)
    return gamma


@st.composite
def chains(draw, most=3):
    transition = draw(transitions(states=st.integers(2, most), least=0.05))
    start = draw(st.sampled_from(["stationary", "fixed", "certain"]))
    if start == "stationary":
        return MarkovChain(transition)
    row = np.eye(len(transition))[0] if start == "certain" else np.arange(1, len(transition) + 1)
    return MarkovChain(transition, row / row.sum())


def start_of(chain):
    return reference.stationary(chain.transition) if chain.initial is None else chain.initial


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_the_influence_matrix_is_that_of_the_definition(data):
    chain = data.draw(chains())
    length = data.draw(st.integers(1, 4 if chain.states == 2 else 3))
    found = gk16_influence(chain, length)
    assert found == pytest.approx(literal_influence(start_of(chain), chain.transition, length), abs=1e-9)


@settings(max_examples=examples(60), deadline=None)
@given(st.data(), st.floats(0.2, 3.0))
def test_sigma_is_the_solution_of_the_stated_equations(data, epsilon):
    chain = data.draw(chains())
    length = data.draw(st.integers(1, 30))
    gamma = gk16_influence(chain, length)
    norm = np.linalg.norm(gamma, 2)
    if norm >= 1:
        with pytest.raises(
            OutsideDomain, match=rf"over {length} slots has the spectral norm [0-9.e+]+, but"
        ) as refusal:
            gk16(chain, epsilon, length)
        said = str(refusal.value).split("spectral norm ")[1].split(",")[0]
        assert float(said) == pytest.approx(norm, rel=1e-5)
        return
    phi = np.linalg.inv(np.eye(length) - gamma)
    expected = max((phi[:, i] / phi[i, i]).sum() for i in range(length)) / epsilon
    assert gk16(chain, epsilon, length).sigma == pytest.approx(expected, rel=1e-9)


@settings(max_examples=examples(60), deadline=None)
@given(st.data(), st.floats(0.2, 3.0))
def test_releases_with_this_noise_lose_at_most_epsilon(data, epsilon):
    chain = data.draw(chains())
    length = data.draw(st.integers(1, 5 if chain.states == 2 else 4))
    assume(np.linalg.norm(gk16_influence(chain, length), 2) < 1)
    density = gk16(chain, epsilon, length).epsilon_dp
    arguments = (start_of(chain), chain.transition, length, [(0, length, density)])
    assert reference.true_loss(*arguments) <= epsilon + 1e-9


def test_a_transition_that_cannot_be_is_outside_the_domain():
    with pytest.raises(OutsideDomain, match="spectral norm inf"):
        gk16(MarkovChain([[0.0, 1.0], [0.5, 0.5]]), 1.0, 5)
    assert gk16(MarkovChain([[0.0, 1.0], [0.5, 0.5]]), 1.0, 1).sigma == 1
    assert gk16(MarkovChain([[1.0]]), 1.0, 9).sigma == 1
