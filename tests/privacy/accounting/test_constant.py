"""The ledger by its largest density: never below the definition, never above the quilts, one float for each state."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from quiltstream.privacy import (
    AnyInitial,
    BinaryInterval,
    FiniteClass,
    Ledger,
    MarkovChain,
    MixingBounds,
    PeriodicChain,
    Quilt,
    Schedule,
    forward_backward,
    mqm_approx,
    mqm_exact,
    pairwise,
)
from quiltstream.privacy.accounting import lower_bound
from quiltstream.privacy.models import ChainError, certify

from ...depth import examples
from .. import reference
from ..strategies import distributions, transitions, windows

THETA1 = [[0.9, 0.1], [0.4, 0.6]]
THETA2 = [[0.8, 0.2], [0.3, 0.7]]
# its reversal is another chain
BOUNDS = MixingBounds(0.2, 0.75)

# slots enumerated: 2^8 sequences of two states, 3^5 of three
LENGTH = {2: 8, 3: 5}
TINY = 1e-9


def sharp(belief, budget=None, **options):
    return Ledger(belief, budget, **options)


def by_density(belief, charges):
    """What the largest density of all slots bounds."""
    ledger = Ledger(belief)
    ledger.replay(charges)
    return ledger.ceiling(math.nextafter(max(run.density for run in ledger.runs), math.inf))


def truth(start, matrix, charges):
    return reference.true_loss(start, matrix, LENGTH[len(matrix)], charges)


@pytest.mark.night
@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_the_largest_density_bounds_the_loss_of_every_stationary_chain(data):
    matrix = data.draw(transitions(zeros=data.draw(st.booleans()), least=1e-2))
    chain = MarkovChain(matrix)
    assume(chain.is_irreducible and chain.period == 1 and chain.gap > 1e-2)
    charges = data.draw(windows(LENGTH[len(matrix)], epsilon=(0.01, 0.5)))
    found = truth(reference.stationary(matrix), matrix, charges)
    both = FiniteClass([chain, MarkovChain(np.full_like(matrix, 1 / len(matrix)))])
    for belief in (chain, AnyInitial([matrix]), MixingBounds.of(chain), both):
        assert found - TINY <= by_density(belief, charges)


@settings(max_examples=examples(30), deadline=None)
@given(st.data())
def test_the_largest_density_bounds_the_loss_of_every_chain_with_a_fixed_start(data):
    matrix = data.draw(transitions(least=1e-2))
    start = data.draw(distributions(len(matrix)))
    charges = data.draw(windows(LENGTH[len(matrix)], epsilon=(0.01, 0.5)))
    assert truth(start, matrix, charges) - TINY <= by_density(MarkovChain(matrix, start), charges)


@settings(max_examples=examples(15), deadline=None)
@given(windows(8, epsilon=(0.01, 0.5)), st.floats(0.05, 0.5), st.floats(0.5, 0.95))
def test_the_largest_density_bounds_the_loss_of_every_chain_of_an_interval(charges, low, high):
    belief = BinaryInterval((low, high), (0.3, 0.9))
    for stays in ((low, 0.3), (high, 0.9), (low, 0.9), ((low + high) / 2, 0.5)):
        matrix = np.array([[stays[0], 1 - stays[0]], [1 - stays[1], stays[1]]])
        found = truth(reference.stationary(matrix), matrix, charges) - TINY
        assert found <= Ledger(belief).loss_of(charges) <= by_density(belief, charges)


@pytest.mark.parametrize(
    ("belief", "printed"),
    [
        (MarkovChain(THETA1), 3.336),
        (MarkovChain(THETA2), 3.024),
        (MixingBounds(0.2, 0.75, "multiplicative"), 8.517),
        (BOUNDS, 12.958),
        (FiniteClass([MarkovChain(THETA1), MarkovChain(THETA2)]), 3.336),
    ],
)
def test_the_noise_is_the_published_one_within_the_grid(belief, printed):
    found = forward_backward(belief, 1.0)
    assert printed - 6e-4 <= found.sigma <= printed * (1 + 2.0**-11)
    assert (found.method, found.length, found.node) == ("forward-backward", None, None)
    pairs = belief.pairs
    assert all(certify(pair, one) for pair, one in zip(pairs, found.certificates, strict=True))
    assert sharp(belief).ceiling(found.epsilon_dp) <= 1
    assert sharp(belief).density_for(1.0) >= found.epsilon_dp


def test_a_calibration_has_the_lower_bound_of_the_noise_where_known():
    chains = [MarkovChain(one) for one in (THETA1, THETA2)]
    assert forward_backward(chains[0], 1.0).lower_bound == lower_bound(chains[0], 1.0)
    assert forward_backward(FiniteClass(chains), 1.0).lower_bound == lower_bound(chains[0], 1.0)
    assert forward_backward(AnyInitial([THETA1]), 1.0).lower_bound == lower_bound(chains[0], 1.0)
    assert forward_backward(BOUNDS, 1.0).lower_bound is None
    assert forward_backward(chains[0], 1.0, 3).lower_bound is None


def test_a_window_has_the_noise_of_a_stream_or_of_group_privacy():
    chain, periodic = MarkovChain(THETA1), MarkovChain([[0.0, 1.0], [1.0, 0.0]])
    stream = forward_backward(chain, 1.0)
    assert forward_backward(chain, 1.0, 100).sigma == stream.sigma
    for belief, length in ((chain, 2), (periodic, 10)):
        found = forward_backward(belief, 1.0, length)
        assert found.sigma == pytest.approx(length, rel=1e-11)
        assert sharp(belief).loss_of([(0, length, found.epsilon_dp)]) <= 1
    with pytest.raises(ChainError, match=r"no bound for an endless stream.*group privacy"):
        forward_backward(periodic, 1.0)
    assert forward_backward(MarkovChain([[1.0]]), 1.0).sigma == 0


def test_chains_of_many_states_are_priced_by_the_variation_of_their_powers():
    rng = np.random.default_rng(7)
    chain = MarkovChain(0.3 * np.eye(14) + 0.7 * rng.dirichlet(np.full(14, 3.0), size=14))
    found = forward_backward(chain, 1.0)
    assert sharp(chain).ceiling(found.epsilon_dp) <= 1
    assert found.lower_bound is None
    assert 1 / found.sigma <= 1 / lower_bound(chain, 1.0)
    assert found.sigma < 2 * lower_bound(chain, 1.0)


@pytest.mark.night
@pytest.mark.parametrize("states", [2, 5])
@pytest.mark.parametrize("epsilon", [1e-9, 1e-6, 3e-4, 1e-3])
def test_a_tiny_epsilon_has_noise_and_its_stream_is_within_it(states, epsilon):
    drawn = np.random.default_rng(1).dirichlet(np.ones(states), states)
    chain = MarkovChain(0.2 * np.eye(states) + 0.8 * drawn)
    found = forward_backward(chain, epsilon)
    assert lower_bound(chain, epsilon) <= found.sigma * (1 + 1e-9)
    assert 1 / found.sigma >= epsilon / 8
    assert Ledger(chain).ceiling(1 / found.sigma) <= epsilon


@pytest.mark.night
@pytest.mark.parametrize(
    "belief",
    [
        MarkovChain(THETA1),
        FiniteClass([MarkovChain(THETA1)]),
        PeriodicChain([THETA1, THETA1]),
        AnyInitial([THETA1]),
        BinaryInterval((0.8, 0.9), (0.5, 0.6)),
    ],
    ids=lambda belief: type(belief).__name__,
)
@pytest.mark.parametrize("epsilon", [1e-5, 3e-6, 2e-7, 1e-7, 1e-8])
def test_noise_grows_in_proportion_where_epsilon_is_tiny(belief, epsilon):
    """Couplings of double precision prove next to nothing there; total variations lose nothing to first order."""
    proportion = forward_backward(belief, 1e-3).sigma * 1e-3
    assert forward_backward(belief, epsilon).sigma * epsilon == pytest.approx(proportion, rel=2e-3)


@pytest.mark.parametrize("epsilon", [8.0, 1e3, 1e6, 1e300])
def test_a_huge_epsilon_has_at_most_the_noise_of_a_slot_that_loses_3(epsilon):
    found = forward_backward(MarkovChain(THETA1), epsilon)
    assert found.sigma <= 1 / 3
    assert found.sigma == pytest.approx(pairwise(MarkovChain(THETA1), epsilon).sigma, rel=1e-9)
    assert not found.certificates
    assert "the best quilt of each pair" in found.assumptions[-1]


def _beliefs(data):
    states = st.just(data.draw(st.sampled_from([2, 2, 3])))
    chain, other = (MarkovChain(data.draw(transitions(states, least=0.05))) for _ in range(2))
    kind = data.draw(st.sampled_from(["chain", "class", "any start", "fixed start", "bounds"]))
    start = np.eye(chain.states)[0]
    return chain, {
        "chain": chain,
        "class": FiniteClass([chain, other]),
        "any start": AnyInitial([chain.transition]),
        "fixed start": MarkovChain(chain.transition, start),
        "bounds": MixingBounds.of(chain),
    }[kind]


@pytest.mark.night
@settings(max_examples=examples(60), deadline=None)
@given(st.data(), st.floats(0.05, 30.0))
def test_an_endless_stream_needs_no_more_noise_than_by_quilts_and_the_ledger_agrees(data, epsilon):
    chain, belief = _beliefs(data)
    methods = [mqm_approx] if belief.states is None else [mqm_approx, mqm_exact, pairwise]
    found = forward_backward(belief, epsilon)
    for method in methods:
        assert found.sigma <= method(belief, epsilon).sigma * (1 + 1e-9)
    density = found.epsilon_dp
    ledger = Ledger(belief)
    assert ledger.ceiling(density) <= epsilon
    assert ledger.extended_loss([Schedule(3, 3, 0, None, density)]) <= epsilon
    assert Ledger(belief, budget=epsilon).admitted_prefix(Schedule(5, 5, 0, None, density)) is None
    assert (found.quilt == Quilt(None, None)) == bool(found.certificates)
    length = {2: 7, 3: 5}[chain.states]
    start = reference.stationary(chain.transition)
    truth = reference.response_loss(start, chain.transition, length, [(0, 2, density), (2, length, density)])
    assert truth <= epsilon


def test_a_window_has_the_noise_of_the_quilts_where_they_decide():
    chain = MarkovChain(THETA1)
    found, endless_one = (forward_backward(chain, 8.0, length) for length in (5_000, None))
    assert (found.sigma, found.quilt) == (endless_one.sigma, endless_one.quilt)
    assert Ledger(chain).charge(0, 5_000, found.epsilon_dp).loss_after <= 8.0


@pytest.mark.night
@pytest.mark.parametrize("gap", [1e-6, 1e-9, 1e-17, 5e-324])
def test_a_class_that_forgets_next_to_nothing_loses_all_in_little_memory(gap):
    tracemalloc.start()
    try:
        assert Ledger(MixingBounds(0.1, gap)).charge(0, 48, 0.001).loss_after == pytest.approx(0.048)
        with pytest.raises(ChainError, match="mixes too slowly"):
            forward_backward(MixingBounds(0.1, gap), 1.0)
        assert tracemalloc.get_traced_memory()[1] < 800e6
    finally:
        tracemalloc.stop()
