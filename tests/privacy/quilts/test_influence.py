"""Influence tables against joint distributions by enumeration, and Lemma 4.8 against the exact tables."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from quiltstream.privacy import MarkovChain, MixingBounds
from quiltstream.privacy.models.classes import AnyInitial
from quiltstream.privacy.quilts import lemma_4_8, sided_influence
from quiltstream.privacy.quilts.influence import spectral_influence

from ...depth import examples
from .. import reference
from ..models.test_chains import THETA1, primitive_with_reducible_product
from ..strategies import transitions

# what rounding outward may add at the lags compared
SLACK = 1e-10


def rows(tables):
    return {(x, y): row for row, (_, x, y) in enumerate(tables.pairs)}


@pytest.mark.night
@settings(max_examples=examples(40), deadline=None)
@given(transitions(states=st.integers(2, 3), zeros=True))
def test_a_stationary_chains_tables_are_the_influences_of_its_joint_distribution(matrix):
    chain = MarkovChain(matrix)
    assume(chain.is_irreducible)
    tables = sided_influence(chain)
    row, start, length = rows(tables), reference.stationary(chain.transition), 6
    for pair in itertools.permutations(range(chain.states), 2):
        for node, other in itertools.permutations(range(length), 2):
            lag = abs(node - other)
            assume(lag <= tables.reach)
            exact = reference.joint_influence(start, chain.transition, length, node=node, quilt=[other], pair=pair)
            side = tables.left if other < node else tables.right
            assert side[row[pair], lag - 1] == pytest.approx(exact, abs=SLACK)
            assert side[row[pair], lag - 1] >= exact - 1e-12


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_the_two_sides_of_a_quilt_add_up_to_its_max_influence(data):
    chain = MarkovChain(data.draw(transitions(states=st.just(2))))
    tables = sided_influence(chain)
    row, start = rows(tables), reference.stationary(chain.transition)
    node, back, ahead = 2, data.draw(st.integers(1, 2)), data.draw(st.integers(1, 3))
    assume(max(back, ahead) <= tables.reach)
    for pair in itertools.permutations(range(2), 2):
        exact = reference.joint_influence(
            start, chain.transition, 6, node=node, quilt=[node - back, node + ahead], pair=pair
        )
        total = tables.left[row[pair], back - 1] + tables.right[row[pair], ahead - 1]
        assert exact <= total + 1e-12
    worst = max(
        reference.joint_influence(start, chain.transition, 6, node=node, quilt=[node - back, node + ahead], pair=pair)
        for pair in itertools.permutations(range(2), 2)
    )
    assert worst == pytest.approx(float((tables.left[:, back - 1] + tables.right[:, ahead - 1]).max()), abs=SLACK)


@settings(max_examples=examples(60), deadline=None)
@given(transitions(states=st.integers(2, 4)))
def test_lemma_4_8_bounds_the_exact_tables_of_every_chain_with_any_start(matrix):
    chain = MarkovChain(matrix)
    any_start = MarkovChain(matrix, np.eye(len(matrix))[0])
    kinds = [MixingBounds.of(chain)]
    if chain.is_reversible:
        kinds.append(MixingBounds.of(chain, reversible=True))
    exact = sided_influence(any_start)
    for bounds in kinds:
        single = lemma_4_8(bounds, np.arange(1, exact.reach + 1))
        assert np.all(exact.right <= single + 1e-11)
        # the any-start table bounds every slot; the lemma promises no less
        assert np.all(exact.left <= 2 * single + 1e-11)
        table = sided_influence(bounds)
        assert table.left == pytest.approx(2 * table.right)


@pytest.mark.parametrize(("pi_min", "gap"), [(0.2, 0.75), (0.5, 2.0), (1e-6, 0.03), (0.01, 1.0)])
def test_the_closed_form_is_the_printed_formula(pi_min, gap):
    lags = np.arange(1, 60)
    printed = [reference.lemma_f(pi_min, gap, int(lag)) for lag in lags]
    assert lemma_4_8(MixingBounds(pi_min, gap), lags) == pytest.approx(printed, rel=1e-8)


def test_the_papers_example_chain_has_the_papers_influence():
    # [SWC17] section 4.3: max-influence of one slot ahead is log 6
    tables = sided_influence(MarkovChain(THETA1))
    assert tables.right[:, 0].max() == pytest.approx(math.log(6), rel=1e-13)


def test_a_zero_denominator_is_infinite_and_zero_over_zero_is_ignored():
    tables = sided_influence(primitive_with_reducible_product())
    assert np.isinf(tables.right[:, 0]).any()
    assert np.isfinite(tables.right[:, -1]).all()
    # state 2 is reached from neither of 0 and 1 in one step but from both in two: no pair may be dropped for it
    half = sided_influence(MarkovChain([[0.5, 0.5, 0.0], [0.5, 0.25, 0.25], [0.5, 0.5, 0.0]]))
    assert half.right[rows(half)[0, 2], 0] == pytest.approx(0, abs=1e-12)


def test_entries_that_underflow_are_not_taken_for_zeros():
    # two steps from 0 or 1 to 2 underflow; their ratio is 4, and calling both zero would hide it
    tiny = 1e-200
    chain = MarkovChain([[1 - tiny, tiny, 0.0], [1.0, 0.0, tiny], [1.0, 0.0, 0.0]], [1.0, 0.0, 0.0])
    tables = sided_influence(chain)
    assert np.isinf(tables.right[rows(tables)[0, 1], 1])


@settings(max_examples=examples(80), deadline=None)
@given(transitions(states=st.integers(2, 4)), st.booleans())
def test_the_spectral_bound_lies_between_the_exact_tables_and_lemma_4_8(matrix, reversed_too):
    chain = MarkovChain(matrix)
    if reversed_too:
        chain = MarkovChain((chain.transition + chain.reversal) / 2)
    kinds = [MixingBounds.of(chain)]
    kinds.append(MixingBounds(kinds[0].pi_min, kinds[0].gap))
    if chain.is_reversible:
        kinds.append(MixingBounds.of(chain, reversible=True))
    exact, any_start = sided_influence(chain), sided_influence(AnyInitial([matrix]))
    for bounds in kinds:
        lags = np.arange(1, exact.reach + 1)
        spectral = spectral_influence(bounds, lags)
        assert np.all(exact.right <= spectral + 1e-9)
        # a stationary start needs the factor 2 on neither side
        assert np.all(exact.left <= spectral + 1e-9)
        assert np.all(spectral <= lemma_4_8(bounds, lags) * (1 + 1e-9) + 1e-12)
        if not reversed_too:
            further = np.arange(1, any_start.reach + 1)
            assert np.all(any_start.left <= 2 * spectral_influence(bounds, further) + 1e-9)


def test_the_two_kinds_of_gap_have_two_rates():
    # twice the gap of P is 1.2; taken for the gap of P P* it would make two steps independent, which they are not
    chain = MarkovChain([[0.7, 0.3], [0.3, 0.7]])
    truth = math.log((1 + 0.4**2) / (1 - 0.4**2))
    assert sided_influence(chain).right[:, 1].max() == pytest.approx(truth, rel=1e-12)
    assert truth == pytest.approx(0.3228, abs=5e-5)
    for bounds in (
        MixingBounds.of(chain),
        MixingBounds.of(chain, reversible=True),
        MixingBounds(0.5, 1.2, "reversible"),
        MixingBounds(0.5, 1.2),
    ):
        assert spectral_influence(bounds, 2) >= truth - 1e-12
    assert spectral_influence(MixingBounds.of(chain), 2) == pytest.approx(truth, rel=1e-9)
