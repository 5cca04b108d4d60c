"""Chains near a given one, against the definition on chains that change in time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.privacy import MarkovChain
from quiltstream.privacy.accounting import endless
from quiltstream.privacy.models import ChainError, DobrushinBounds, MixingCurve, Neighbourhood, NotContracting, certify

from ...depth import examples
from .. import reference
from ..strategies import distributions, transitions, windows

LENGTH = {2: 7, 3: 5}
TINY = 1e-9


def apart(rows, others):
    return 0.5 * float(np.abs(rows - others).sum(axis=1).max())


def farthest(chain, start, steps):
    """The least tau whose neighbourhood of a chain holds one that changes in time, in both directions."""
    largest, marginal = 0.0, np.asarray(start)
    for step in steps:
        after = marginal @ step
        backward = (marginal[:, None] * step / after).T
        largest = max(largest, apart(step, chain.transition), apart(backward, chain.reversal))
        marginal = after
    return largest


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_no_chain_of_the_neighbourhood_loses_more_though_it_changes_in_time(data):
    k = data.draw(st.integers(2, 3))
    chain = MarkovChain(data.draw(transitions(states=st.just(k), least=0.1)))
    near = data.draw(st.sampled_from([0.0, 0.02, 0.1, 0.3]))

    def towards(rows, other):
        return (1 - near) * rows + near * np.asarray(other)

    start = towards(chain.stationary, data.draw(distributions(k)))
    steps = [
        towards(chain.transition, data.draw(transitions(states=st.just(k), least=0.1))) for _ in range(LENGTH[k] - 1)
    ]
    belief = Neighbourhood(chain, min(1.0, farthest(chain, start, steps) + 1e-12))
    try:
        found = endless(belief, data.draw(st.floats(0.1, 4.0)))
    except NotContracting:
        return
    assert certify(belief.directions()[0], found.certificates[0])
    charges = data.draw(windows(LENGTH[k], epsilon=(0.001, 1.0)))
    scale = found.density / sum(one for _, _, one in charges)
    charges = [(first, last, one * scale) for first, last, one in charges]
    truth = max(
        reference.changing_loss(start, steps, charges), reference.changing_loss(start, steps, charges, counts=True)
    )
    assert truth <= found.certificates[0].loss + TINY


def test_a_tau_on_the_kernel_alone_does_not_bound_the_reversed_rows():
    chain = MarkovChain([[0.98, 0.02], [0.5, 0.5]])
    # within .02 of P, and its reversed rows are at .45 from those of P*
    step = np.array([[1.0, 0.0], [0.5, 0.5]])
    assert apart(step, chain.transition) == pytest.approx(0.02)
    assert farthest(chain, [0.6, 0.4], [step]) > 0.2


def test_a_neighbourhood_without_width_is_the_class_of_the_chain_and_grows_with_it():
    chain = MarkovChain([[0.5, 0.4, 0.1], [0.2, 0.5, 0.3], [0.3, 0.3, 0.4]])
    narrow = endless(DobrushinBounds.of(chain, steps=range(1, 65)), 1.0).density
    found = [endless(Neighbourhood(chain, tau), 1.0).density for tau in (0.0, 0.01, 0.05, 0.1)]
    assert found[0] == pytest.approx(narrow, rel=1e-9)
    assert found == sorted(found, reverse=True)
    assert found[3] < 0.9 * found[0]
    with pytest.raises(NotContracting, match="need not forget where they were"):
        endless(Neighbourhood(chain, 0.5), 1.0)


@pytest.mark.parametrize(
    ("transition", "tau", "said"),
    [
        ([[0.9, 0.1], [0.4, 0.6]], -0.1, r"tau is -0\.1"),
        ([[0.9, 0.1], [0.4, 0.6]], float("nan"), "tau is nan"),
        ([[0.9, 0.1], [0.4, 0.6]], True, "tau is True"),
        ([[0.9, 0.1], [0.0, 1.0]], 0.1, "reducible"),
    ],
)
def test_an_invalid_neighbourhood_is_refused(transition, tau, said):
    with pytest.raises(ChainError, match=said):
        Neighbourhood(MarkovChain(transition), tau)


def test_the_variation_after_m_slots_is_widened_by_all_slots_between():
    transition = np.array([[0.9, 0.1, 0.0], [0.1, 0.8, 0.1], [0.0, 0.2, 0.8]])
    forward, _ = Neighbourhood(MarkovChain(transition), 0.01).directions()[0]
    assert isinstance(forward, MixingCurve)

    def variation(m):
        rows = np.linalg.matrix_power(transition, m)
        return max(0.5 * np.abs(one - other).sum() for one in rows for other in rows)

    for m, eta in list(forward.eta)[:12]:
        assert eta == pytest.approx(min(1.0, variation(m) + 0.02 * sum(variation(j) for j in range(m))), abs=1e-9)
