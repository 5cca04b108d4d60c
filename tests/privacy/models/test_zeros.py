"""The repair of zeros in transition matrices."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.privacy import MarkovChain
from quiltstream.privacy.models.markov_chain import TAU, smooth_zeros

from ...depth import examples
from ..strategies import transitions


@settings(max_examples=examples(80), deadline=None)
@given(matrix=transitions(zeros=True), tau=st.floats(1e-8, 0.2))
def test_zeros_are_filled_and_the_rest_keeps_its_proportions(matrix, tau):
    chain = MarkovChain(matrix)
    found = smooth_zeros(chain, tau)
    for before, after in zip(chain.transition, found.transition, strict=True):
        zeros = before == 0
        assert after[zeros] == pytest.approx(tau, rel=1e-12)
        assert after[~zeros] == pytest.approx(before[~zeros] * (1 - tau * zeros.sum()), rel=1e-12)
    assert found.is_irreducible
    if (matrix > 0).all():
        assert found == chain


def test_the_value_of_the_paper_is_the_default_and_the_start_is_kept():
    chain = MarkovChain([[0.5, 0.5, 0], [0, 1, 0], [0.2, 0.3, 0.5]], [0.2, 0.3, 0.5])
    found = smooth_zeros(chain)
    assert TAU == 1e-5
    assert found.transition[1].tolist() == pytest.approx([1e-5, 1 - 2e-5, 1e-5])
    assert found.initial is not None
    assert found.initial.tolist() == [0.2, 0.3, 0.5]
