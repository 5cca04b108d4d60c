"""Certificates that are kept with a belief: checked against it, and what a domain calibrated to 1 is accounted as."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from quiltstream.privacy import (
    FiniteClass,
    Ledger,
    MarkovChain,
    MixingBounds,
    Schedule,
    belief_from_dict,
    forward_backward,
)
from quiltstream.privacy.accounting import endless
from quiltstream.privacy.accounting.certificates import certified, constant_loss
from quiltstream.privacy.accounting.forward_backward import grid_density
from quiltstream.privacy.models import ChainError, certify
from quiltstream.privacy.models.belief import Belief
from quiltstream.privacy.models.certificates import Proof
from quiltstream.privacy.models.couplings import Couplings

from ...depth import examples, some
from .. import reference

SLOW, FAST = MarkovChain([[0.9, 0.1], [0.4, 0.6]]), MarkovChain([[0.7, 0.3], [0.2, 0.8]])
THREE = MarkovChain([[0.6, 0.3, 0.1], [0.2, 0.6, 0.2], [0.1, 0.2, 0.7]])
# its reversal is another chain
CIRCLING = MarkovChain([[0.5, 0.4, 0.1], [0.1, 0.5, 0.4], [0.5, 0.2, 0.3]])


def many() -> MarkovChain:
    """A chain of more states than the account computes exactly, which moves to its neighbours."""
    near = np.abs(np.subtract.outer(np.arange(13), np.arange(13))) <= 1
    rows = np.where(near, 0.2, 0.0) + 0.03
    return MarkovChain(rows / rows.sum(axis=1, keepdims=True))


def read(belief: Belief) -> Belief:
    return belief_from_dict(json.loads(json.dumps(belief.to_dict())))


@pytest.mark.night
def test_noise_certified_for_epsilon_1_with_many_states_is_accounted_as_1() -> None:
    chain = many()
    kept = read(certified(chain))
    found = forward_backward(kept, 1.0)
    assert found.sigma < 0.85 * forward_backward(chain, 1.0).sigma
    density = grid_density(kept, 1.0)
    ledger = Ledger(kept, budget=1.0)
    assert 0.999 < ledger.charge(0, 10_000, density).loss_after <= 1
    assert ledger.admitted_prefix(Schedule(48, 48, 10_000, None, density)) is None
    # without its certificate the account is that of a larger class
    assert constant_loss(chain, density) > 1.1


def least_theta(p: np.ndarray, q: np.ndarray, ratios: np.ndarray) -> float:
    """The least theta over gamma >= 0 with rows that sum to p and sum_y W[y,z] gamma(y,z) <= theta q(z)."""
    k = len(p)
    rows = np.kron(np.eye(k), np.ones(k))
    loads = np.hstack([np.einsum("yz,zw->wyz", ratios, np.eye(k)).reshape(k, -1), -q[:, None]])
    found = linprog(np.append(np.zeros(k * k), 1.0), loads, np.zeros(k), np.hstack([rows, np.zeros((k, 1))]), p)
    assert found.status == 0
    return float(found.fun)


@pytest.mark.parametrize("seed", some(range(10), 5))
def test_a_stored_certificate_is_proved_by_a_linear_programme_that_knows_nothing_of_couplings(seed: int) -> None:
    generator = np.random.default_rng(seed)
    states = 2 + seed % 4
    matrix = generator.dirichlet(np.ones(states), states) + np.eye(states) * generator.uniform(0, 3)
    matrix /= matrix.sum(axis=1, keepdims=True)
    start = reference.stationary(matrix)
    reversal = start[None] * matrix.T / start[:, None]
    kept = read(certified(MarkovChain(matrix)))
    (stored,) = kept.certificates
    for kernel, bound in ((matrix, stored.forward), (reversal, stored.backward)):
        ratios = np.exp(bound)
        for first, second in permutations(range(states), 2):
            told = np.log(least_theta(kernel[first], kernel[second], ratios))
            assert stored.density + told <= bound[first, second] + 1e-9
    off = ~np.eye(states, dtype=bool)
    assert (stored.forward + stored.backward - stored.density)[off].max() <= 1


@pytest.mark.parametrize("belief", [SLOW, THREE, FiniteClass([SLOW, FAST])])
def test_a_certificate_holds_at_every_smaller_density(belief: MarkovChain | FiniteClass) -> None:
    kept = certified(belief)
    for share in (1.0, 0.999, 0.5, 0.1, 1e-6):
        for pair, one in zip(belief.directions(), kept.certificates, strict=True):
            lower = one.at(share * one.density)
            assert certify(pair, lower)
            assert lower.loss == pytest.approx(one.loss - (1 - share) * one.density, abs=1e-12)
            if share == 1.0:
                assert not certify(pair, replace(lower, density=lower.density * (1 + 1e-4)))


@pytest.mark.night
def test_a_target_below_that_of_the_certificate_has_the_sharper_density() -> None:
    kept = certified(THREE)
    for epsilon in (0.3, 0.9, 1.0, 2.0):
        assert grid_density(kept, epsilon) >= grid_density(THREE, epsilon)
        assert constant_loss(kept, grid_density(kept, epsilon)) <= epsilon


def test_a_certificate_is_read_as_it_was_written() -> None:
    kept = certified(THREE)
    assert read(kept) == kept
    assert hash(read(kept)) == hash(kept)
    assert pickle.loads(pickle.dumps(kept)) == kept
    assert kept != THREE
    assert kept.to_dict()["kind"] == "markov-chain"


def altered(change: str, *, couplings: bool = True) -> dict[str, object]:
    form = json.loads(json.dumps(certified(THREE).to_dict()))
    one = form["certificates"][0]
    if not couplings:
        del one["couplings"]
    if change == "of another belief":
        form["transition"] = [[0.7, 0.2, 0.1], [0.2, 0.6, 0.2], [0.1, 0.2, 0.7]]
    elif change == "of a smaller density":
        one["density"] *= 1.001
    elif change == "with a smaller entry":
        one["backward"][0][1] *= 0.999
    elif change == "of fewer states":
        one["forward"] = [row[:2] for row in one["forward"][:2]]
    elif change == "with NaN":
        one["forward"][0][1] = float("nan")
    elif change == "of two members":
        form["certificates"].append(one)
    elif change in ("of another shape", "flat"):
        for side in ("forward", "backward"):
            numbers = np.array(one[side])
            one[side] = numbers.reshape(-1 if change == "flat" else (numbers.size, 1, 1)).tolist()
    return form


@pytest.mark.night
@pytest.mark.parametrize("couplings", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        "of another belief",
        "of a smaller density",
        "with a smaller entry",
        "of fewer states",
        "with NaN",
        "of two members",
        "of another shape",
        "flat",
    ],
)
def test_a_certificate_that_does_not_hold_is_refused(change: str, *, couplings: bool) -> None:
    # the genuine one was checked before: its verdict is not that of another
    assert belief_from_dict(altered("", couplings=couplings)).certificates
    form = altered(change, couplings=couplings)
    with pytest.raises(ChainError, match="a certificate does not hold for this belief"):
        Ledger(belief_from_dict(form), budget=1.0).charge(0, 1000, 0.05)
    with pytest.raises(ChainError, match="a certificate does not hold for this belief"):
        forward_backward(belief_from_dict(form), 1.0)


FORWARD, BACKWARD = (str(text) for text in certified(CIRCLING).kept[0].couplings)


@pytest.mark.night
@pytest.mark.parametrize(
    "proof",
    [
        pytest.param(certified(THREE).kept[0].couplings, id="of another belief"),
        pytest.param((BACKWARD, FORWARD), id="of the other direction"),
        pytest.param(certified(FAST).kept[0].couplings, id="of fewer states"),
        pytest.param((FORWARD, BACKWARD[:-8]), id="cut off"),
        pytest.param((Couplings(6, 3, np.zeros(0, dtype=np.int64), np.zeros(0)).text(), BACKWARD), id="empty"),
    ],
)
def test_a_certificate_whose_couplings_do_not_prove_it_is_refused(proof: tuple[Proof, Proof]) -> None:
    form = certified(CIRCLING).to_dict()
    assert belief_from_dict(form).certificates
    form["certificates"][0]["couplings"] = list(proof)
    with pytest.raises(ChainError, match="a certificate does not hold for this belief"):
        Ledger(belief_from_dict(form), budget=1.0).charge(0, 1000, 0.05)


@pytest.mark.night
@pytest.mark.parametrize("belief", [THREE, FiniteClass([SLOW, FAST]), many(), MixingBounds(0.2, 0.75)])
@pytest.mark.parametrize("epsilon", [1.0, 1e-3])
def test_stored_couplings_require_almost_no_additional_noise(belief: Belief, epsilon: float) -> None:
    kept, sharp = certified(belief, epsilon), endless(belief, epsilon)
    for one, best in zip(kept.certificates, sharp.certificates, strict=True):
        assert best.density * (1 - 1e-5) <= one.density <= best.density * (1 + 1e-5)
        assert one.loss <= epsilon
    forms = kept.to_dict()["certificates"]
    assert all(("couplings" in one) == bool(belief.members) for one in forms)


@pytest.mark.night
@settings(max_examples=examples(50), deadline=None)
@given(st.data())
def test_no_couplings_make_a_smaller_matrix_hold(data: st.DataObject) -> None:
    (pair,), (good,) = THREE.directions(), certified(THREE).kept
    forward = good.forward.copy()
    row, column = data.draw(st.sampled_from([(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)]))
    forward[row, column] *= 1 - data.draw(st.sampled_from([1e-4, 1e-2, 0.5, 1.0]))
    places = np.array(sorted(data.draw(st.sets(st.integers(0, 6 * 9 - 1)))), dtype=np.int64)
    numbers = st.floats(width=32)
    mass = np.array(data.draw(st.lists(numbers, min_size=len(places), max_size=len(places))), dtype=np.float64)
    made = Couplings(6, 3, places, mass)
    best, back = (
        one.kernel.couple(matrix)[0] if one.kernel else None
        for one, matrix in zip(pair, (forward, good.backward), strict=True)
    )
    assert certify(pair, replace(good, couplings=(None, back)))
    for proof in (made, best):
        assert not certify(pair, replace(good, forward=forward, couplings=(proof, back)))
