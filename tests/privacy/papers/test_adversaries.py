"""Close adversaries: the divergence against sequences written out, and the promise from the definition."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.privacy import FiniteClass, MarkovChain
from quiltstream.privacy.papers.adversaries import adversary_divergence, adversary_epsilon
from quiltstream.privacy.papers.joint import JointTable

from ...depth import examples
from .. import reference
from ..models.test_chains import THETA1
from ..strategies import distributions, transitions

TABLE = JointTable(itertools.product((0, 1), repeat=2), [0.4, 0.1, 0.1, 0.4])


def literal_divergence(theirs, ours, length):
    """Delta between two chains given as (initial, transition), from all sequences."""
    every, first = reference.sequences(theirs[0], theirs[1], length)
    _, second = reference.sequences(ours[0], ours[1], length)
    worst = 0.0
    for slot, state in itertools.product(range(length), range(len(theirs[1]))):
        here = every[:, slot] == state
        if first[here].sum() > 0:
            if second[here].sum() == 0:
                return math.inf
            p, q = first[here] / first[here].sum(), second[here] / second[here].sum()
            worst = max(worst, reference.worst_ratio(p, q), reference.worst_ratio(q, p))
    return worst


@settings(max_examples=examples(80), deadline=None)
@given(st.data(), st.booleans())
def test_two_chains_are_as_far_apart_as_their_sequences(data, zeros):
    states = data.draw(st.integers(2, 3))
    length = data.draw(st.integers(1, 5 if states == 2 else 4))
    laws = [
        (data.draw(distributions(states)), data.draw(transitions(states=st.just(states), zeros=zeros)))
        for _ in range(2)
    ]
    chains = [MarkovChain(transition, initial) for initial, transition in laws]
    found = adversary_divergence(chains[0], chains[1], length)
    assert found == pytest.approx(literal_divergence(laws[0], laws[1], length), abs=1e-9)
    tables = [JointTable.from_chain(chain, length) for chain in chains]
    assert adversary_divergence(tables[0], tables[1]) == pytest.approx(found, abs=1e-9)


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_the_loss_to_a_close_adversary_is_at_most_epsilon_and_twice_the_divergence(data):
    length = 4
    laws = [(data.draw(distributions(2)), data.draw(transitions(states=st.just(2)))) for _ in range(2)]
    chains = [MarkovChain(transition, initial) for initial, transition in laws]
    delta = adversary_divergence(chains[0], chains[1], length)
    windows = [(0, length, data.draw(st.floats(0.05, 2.0))), (1, 3, data.draw(st.floats(0.05, 2.0)))]
    for loss in (reference.response_loss, reference.count_loss):
        under_the_class, against = (loss(law[0], law[1], length, windows) for law in (laws[1], laws[0]))
        assert against <= under_the_class + 2 * delta + 1e-9


def test_the_nearest_member_of_a_class_counts():
    adversary = MarkovChain([[0.9, 0.1], [0.42, 0.58]], [0.8, 0.2])
    far, near = MarkovChain([[0.5, 0.5], [0.5, 0.5]], [0.8, 0.2]), MarkovChain(THETA1, [0.8, 0.2])
    alone = adversary_divergence(adversary, near, 6)
    assert 0 < alone < adversary_divergence(adversary, far, 6)
    for belief in (FiniteClass([far, near]), [far, near]):
        assert adversary_divergence(adversary, belief, 6) == alone
    assert adversary_epsilon(1.0, adversary, FiniteClass([far, near]), 6) == 1 + 2 * alone


def test_an_outcome_impossible_for_one_belief_gives_infinite_divergence():
    certain, open_ = MarkovChain([[1.0, 0.0], [0.4, 0.6]], [0.5, 0.5]), MarkovChain(THETA1, [0.5, 0.5])
    assert adversary_divergence(certain, open_, 3) == math.inf
    assert adversary_divergence(open_, certain, 3) == math.inf
    # the secret itself: the member never enters state 1
    assert adversary_divergence(open_, MarkovChain([[1.0, 0.0], [0.4, 0.6]], [1, 0]), 1) == math.inf
    # the other way round it is no secret for the adversary, and nothing has to hold
    assert adversary_divergence(MarkovChain(THETA1, [1, 0]), MarkovChain(THETA1, [0.5, 0.5]), 1) == 0


def test_probabilities_below_the_range_of_floats_keep_their_ratios():
    chains = [MarkovChain([[1 - tiny, tiny], [0.5, 0.5]], [1, 0]) for tiny in (1e-200, 2e-200)]
    cycles = [
        MarkovChain([[1 - tiny, tiny, 0], [0, 1 - tiny, tiny], [0.5, 0, 0.5]], [1, 0, 0]) for tiny in (1e-200, 2e-200)
    ]
    # the first slot is certain, so all the rare steps of 0101 and of 01201 count
    assert adversary_divergence(chains[0], chains[1], 4) == pytest.approx(2 * math.log(2), abs=1e-9)
    assert adversary_divergence(cycles[0], cycles[1], 5) == pytest.approx(3 * math.log(2), abs=1e-9)


def test_divergence_of_joint_tables_of_records_without_a_chain():
    other = JointTable(itertools.product((0, 1), repeat=2), [0.25] * 4)
    assert adversary_divergence(TABLE, other) == pytest.approx(math.log(0.5 / 0.2))
    assert adversary_epsilon(0.5, TABLE, [other, TABLE]) == 0.5
