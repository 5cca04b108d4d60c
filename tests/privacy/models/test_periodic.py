"""A kernel for every slot of a period: published numbers, the definition at every phase, and chains with no rhythm."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from quiltstream.privacy import MarkovChain
from quiltstream.privacy.accounting import endless
from quiltstream.privacy.models import ChainError, NotContracting, PeriodicChain, certify

from ...depth import examples
from .. import reference
from ..homes import table_by_slot
from ..strategies import transitions, windows

LENGTH = {2: 7, 3: 5}
TINY = 1e-9


@pytest.mark.night
def test_the_half_hours_of_london_need_the_printed_noise(shared_data):
    table = np.sum(list(table_by_slot(shared_data).values()), axis=0)
    chain = PeriodicChain(table / table.sum(axis=2, keepdims=True))
    found = endless(chain, 1.0)
    assert 1 / found.density == pytest.approx(13.61, abs=6e-3)
    (pair,), (good,) = chain.pairs, found.certificates
    assert certify(pair, good)
    assert good.loss <= 1
    # one entry of one half-hour is too small, and each direction in the place of the other
    for name in ("forward", "backward"):
        matrices = getattr(good, name).copy()
        matrices[17, 3, 1] *= 1 - 1e-4
        assert not certify(pair, replace(good, **{name: matrices}))
    assert not certify(pair, replace(good, forward=np.roll(good.forward, 1, axis=0)))
    assert not certify(pair, replace(good, forward=good.backward, backward=good.forward))
    assert not certify(pair, replace(good, forward=good.forward[0]))


@pytest.mark.night
@settings(max_examples=examples(15), deadline=None)
@given(st.data())
def test_no_periodic_chain_loses_more_than_its_certificate_at_any_phase(data):
    k = data.draw(st.integers(2, 3))
    n = data.draw(st.integers(1, 3))
    zeros = data.draw(st.booleans())
    kernels = [data.draw(transitions(states=st.just(k), zeros=zeros, least=0.05)) for _ in range(n)]
    try:
        chain = PeriodicChain(kernels)
        found = endless(chain, data.draw(st.floats(0.1, 4.0)))
    except (ChainError, NotContracting):
        assume(condition=False)
        raise
    assert all(certify(pair, one) for pair, one in zip(chain.pairs, found.certificates, strict=True))
    charges = data.draw(windows(LENGTH[k], epsilon=(0.001, 1.0)))
    scale = found.density / sum(one for _, _, one in charges)
    charges = [(first, last, one * scale) for first, last, one in charges]
    marginals = reference_marginals(kernels)
    for phase in range(n):
        steps = [kernels[(phase + slot) % n] for slot in range(LENGTH[k] - 1)]
        start = np.where(chain.live[phase], marginals[phase], 0.0)
        start = start / start.sum()
        truth = max(
            reference.changing_loss(start, steps, charges), reference.changing_loss(start, steps, charges, counts=True)
        )
        assert truth <= found.certificates[0].loss + TINY


def reference_marginals(kernels):
    whole = np.linalg.multi_dot([*kernels, np.eye(len(kernels[0]))]) if len(kernels) > 1 else kernels[0]
    found = [np.clip(reference.stationary(whole), 0, None)]
    for kernel in kernels[:-1]:
        found.append(found[-1] @ kernel)
    return found


def test_the_past_is_the_future_of_the_chain_that_runs_back_in_time():
    chain = PeriodicChain(np.random.default_rng(6).dirichlet(np.ones(3), size=(5, 3)))
    order = -np.arange(5) % 5
    # slot j of the other is slot -j of the first
    other = PeriodicChain(chain.reversals[order])
    assert np.allclose(other.marginals, chain.marginals[order])
    (one,), (back,) = endless(chain, 1.0).certificates, endless(other, 1.0).certificates
    assert back.density == pytest.approx(one.density, rel=1e-6)
    assert np.allclose(back.forward[order], one.backward, atol=1e-5)
    assert np.allclose(back.backward[order], one.forward, atol=1e-5)
    assert one.backward.std(axis=0).max() > 1e-3


def test_a_rhythm_may_cost_more_than_any_of_its_kernels():
    slow, fast = [[0.97, 0.03], [0.03, 0.97]], [[0.6, 0.4], [0.4, 0.6]]
    mixed = endless(PeriodicChain([slow, slow, fast]), 1.0).density
    assert endless(MarkovChain(slow), 1.0).density < mixed < endless(MarkovChain(fast), 1.0).density


def test_a_state_impossible_in_a_phase_is_not_a_secret_there():
    # state 2 is left at once and entered by day only
    day = [[0.5, 0.3, 0.2], [0.3, 0.5, 0.2], [0.3, 0.3, 0.4]]
    night = [[0.6, 0.4, 0.0], [0.4, 0.6, 0.0], [0.5, 0.5, 0.0]]
    chain = PeriodicChain([day, night])
    assert chain.live.tolist() == [[True, True, False], [True, True, True]]
    assert chain.reversals.sum(axis=2) == pytest.approx(np.ones((2, 3)))
    found = endless(chain, 1.0)
    assert certify(chain.pairs[0], found.certificates[0])
    start = reference_marginals([np.array(day), np.array(night)])[0]
    truth = reference.changing_loss(
        start, [np.array(day), np.array(night), np.array(day), np.array(night)], [(0, 5, found.density)]
    )
    assert 0.7 < truth <= 1 + TINY


@pytest.mark.parametrize(
    ("transitions", "said"),
    [
        ([], "0 matrices"),
        (3, "transitions is a int, but must be a list of transition matrices"),
        ([[[0.5, 0.5], [0.5, 0.6]]], r"transitions\[0\]: transition row 1 sums to"),
        ([[[1.0]], [[0.5, 0.5], [0.5, 0.5]]], r"transitions\[1\] has 2 states and transitions\[0\] has 1"),
    ],
)
def test_invalid_kernels_are_refused(transitions, said):
    with pytest.raises(ChainError, match=said):
        PeriodicChain(transitions)


@pytest.mark.parametrize(("slots", "minutes"), [(47, 30), (96, 30), (335, 30), (7, 60)])
def test_a_period_that_does_not_divide_the_day_is_refused(slots, minutes):
    chain = PeriodicChain([np.full((2, 2), 0.5)] * slots)
    with pytest.raises(ChainError, match=f"{slots} matrices, one a slot, but a day has {1440 // minutes} slots"):
        chain.check_interval(minutes * 60_000_000)
