"""The Wasserstein Mechanism: distances against brute force, the paper's example, the promise from its definition."""

from __future__ import annotations

import itertools
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from quiltstream.privacy import FiniteClass, Ledger, MarkovChain
from quiltstream.privacy.mechanisms.discrete_laplace import rational_scale
from quiltstream.privacy.papers.joint import JointTable
from quiltstream.privacy.papers.wasserstein import (
    NotComposable,
    WassersteinMechanism,
    clique_of_four,
    wasserstein_infinity,
    wasserstein_of_count,
    wasserstein_of_table,
)

from ...depth import examples
from .. import reference
from ..models.test_chains import THETA1
from ..models.test_classes import THETA2

TWELFTHS = st.lists(st.integers(0, 4), min_size=4, max_size=4).filter(any)


def hall_distance(p: list[Fraction], q: list[Fraction], support: list[int]) -> int:
    """The least w such that every set of values has, within w of it, at least its mass (Strassen's theorem)."""
    for w in sorted({abs(a - b) for a in support for b in support}):
        sets = itertools.chain.from_iterable(
            itertools.combinations(range(len(support)), size) for size in range(1, len(support) + 1)
        )
        if all(
            sum(p[a] for a in chosen)
            <= sum(q[b] for b, value in enumerate(support) if any(abs(value - support[a]) <= w for a in chosen))
            for chosen in sets
        ):
            return w
    raise AssertionError


@settings(max_examples=examples(150), deadline=None)
@given(TWELFTHS, TWELFTHS, st.lists(st.integers(-5, 9), min_size=4, max_size=4, unique=True))
def test_the_quantile_distance_is_the_least_distance_over_all_couplings(p, q, support):
    first = [Fraction(value, sum(p)) for value in p]
    second = [Fraction(value, sum(q)) for value in q]
    expected = hall_distance(first, second, support)
    assert wasserstein_infinity(first, second, support) == expected
    assert wasserstein_infinity(second, first, support) == expected


def test_decimals_that_sum_to_the_same_meet_exactly():
    # as floats 0.1 + 0.2 misses 0.3 by 5e-17, and that much mass would have to go the whole way
    assert wasserstein_infinity([0.1, 0.2, 0.7], [0.3, 0, 0.7], [0, 1, 100]) == 1
    assert wasserstein_infinity([1 / 3, 1 / 3, 1 / 3], [1 / 3, 1 / 3, 1 / 3], [0, 1, 100]) == 0


def test_the_clique_of_the_paper_has_distance_two_where_group_privacy_needs_four():
    table = clique_of_four()
    assert [float(mass) for mass in table.law_given(table.values_of(sum), 0, 0)[1]] == [0.2, 0.225, 0.5, 0.075]
    assert [float(mass) for mass in table.law_given(table.values_of(sum), 0, 1)[1]] == [0.075, 0.5, 0.225, 0.2]
    worst = wasserstein_of_table(table, sum)
    assert (worst.value, worst.pair) == (2.0, (0, 1))
    assert table.records == 4  # group privacy: all members of the clique change


def literal_distance(initial, transition, state, length):
    """W from all sequences; cumulative sums closer than 1e-12 are taken as equal."""
    every, chance = reference.sequences(initial, transition, length)
    counts = (every == state).sum(axis=1)
    worst = 0
    for slot in range(length):
        laws = []
        for x in range(len(transition)):
            here = every[:, slot] == x
            if chance[here].sum() > 0:
                law = np.bincount(counts[here], chance[here] / chance[here].sum(), minlength=length + 1)
                laws.append(law)
        for p, q in itertools.permutations(laws, 2):
            for w in range(length + 1):
                ahead = np.concatenate([q.cumsum()[w:], np.ones(w)])
                if (p.cumsum() <= ahead + 1e-12).all():
                    worst = max(worst, w)
                    break
    return worst


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_the_programme_agrees_with_all_sequences_written_out(data):
    states = data.draw(st.integers(2, 3))
    length = data.draw(st.integers(1, 6 if states == 2 else 4))
    hundredths = st.lists(st.integers(0, 20), min_size=states, max_size=states).filter(any)
    rows = [data.draw(hundredths) for _ in range(states)]
    if data.draw(st.booleans()):
        rows = [rows[0]] * states  # independent slots: all cumulative sums meet
    matrix = np.array([np.array(row) / sum(row) for row in rows])
    start = data.draw(st.one_of(st.none(), hundredths))
    chain = MarkovChain(matrix, None if start is None else np.array(start) / sum(start))
    assume(start is not None or chain.is_irreducible)
    state = data.draw(st.integers(0, states - 1))
    found = wasserstein_of_count(chain, state, length)
    written_out = wasserstein_of_table(JointTable.from_chain(chain, length), lambda row: row.count(state))
    assert found == written_out
    initial = reference.stationary(matrix) if chain.initial is None else chain.initial
    assert found.value == literal_distance(initial, matrix, state, length)


def test_a_window_of_the_papers_chains_needs_far_less_than_group_privacy():
    both = FiniteClass([MarkovChain(THETA2, [0.9, 0.1]), MarkovChain(THETA1, [1, 0])])
    found = wasserstein_of_count(both, state=1, length=100)
    assert found.value == max(wasserstein_of_count(chain, 1, 100).value for chain in both.chains) == 4
    assert (found.member, found.pair) == (0, (0, 1))
    assert wasserstein_of_count(FiniteClass([MarkovChain([[0.5, 0.5]] * 2), *both.chains]), 1, 100).member == 1


def test_a_count_independent_of_the_secret_needs_no_noise():
    assert wasserstein_of_count(MarkovChain([[1.0]]), 0, 5).value == 0
    assert wasserstein_of_count(MarkovChain(THETA1, [1, 0]), 0, 1).value == 0  # a certain state is no secret
    assert wasserstein_of_table(clique_of_four(), lambda _: 1).value == 0


def test_numbers_that_underflow_are_decided_in_whole_numbers():
    tiny = 1e-300
    chain = MarkovChain([[1 - tiny, tiny], [tiny, 1 - tiny]])
    assert wasserstein_of_count(chain, 1, 20).value == 20


@pytest.mark.parametrize(("epsilon", "length"), [(0.5, 4), (1.0, 6), (3.0, 5)])
def test_a_release_of_a_count_loses_at_most_epsilon(epsilon, length):
    for initial, transition in (([1.0, 0.0], THETA1), ([0.5, 0.5], THETA2), ([0.4, 0.6], [[0.2, 0.8], [0.9, 0.1]])):
        distance = wasserstein_of_count(MarkovChain(transition, initial), 1, length).value
        rate = float(1 / WassersteinMechanism(distance, epsilon).scale)
        lost = reference.count_loss(np.array(initial), np.array(transition), length, [(0, length, rate)])
        assert 0 < lost <= epsilon + 1e-12


def test_a_release_of_the_clique_loses_at_most_epsilon_and_less_noise_would_not_do():
    table, outputs = clique_of_four(), np.arange(-3, 8)
    for distance, epsilon, holds in ((2.0, 1.0, True), (2.0, 10.0, True), (1.0, 10.0, False)):
        scale = float(WassersteinMechanism(distance, epsilon).scale)
        laws = [
            sum(
                float(weight) * np.exp(-np.abs(outputs - sum(who)) / scale)
                for who, weight in zip(table.outcomes, table.weights, strict=True)
                if who[0] == state
            )
            for state in range(2)
        ]
        # both states have probability 1/2
        assert bool(np.abs(np.log(laws[0] / laws[1])).max() <= epsilon + 1e-12) is holds


def test_the_mechanism_adds_noise_of_scale_distance_over_epsilon():
    mechanism = WassersteinMechanism(2.0, epsilon=0.5)
    assert mechanism.scale == rational_scale(4.0, 1)
    counts = np.array([3, 4])
    released = mechanism.randomise(counts)
    assert released.shape == (2,)
    assert released.dtype == np.int64
    assert pickle.loads(pickle.dumps(mechanism)) == mechanism
    assert np.array_equal(WassersteinMechanism(0.0, 1.0).randomise(counts), counts)
    assert not np.shares_memory(WassersteinMechanism(0.0, 1.0).randomise(counts), counts)


def test_a_ledger_refuses_charges_of_the_wasserstein_mechanism():
    ledger = Ledger(MarkovChain(THETA1), budget=2.0)
    mechanism = WassersteinMechanism(4.0, 1.0)
    with pytest.raises(NotComposable, match=r"wasserstein: it has no composition theorem .* or use a quilt mechanism"):
        ledger.charge(0, 10, mechanism.epsilon_dp)
    assert ledger.loss == 0
