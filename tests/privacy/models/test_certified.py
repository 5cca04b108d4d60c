"""Certificates that are kept with a belief: checked against it, and what a domain calibrated to 1 is accounted as."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest

from quiltstream.privacy import FiniteClass, Ledger, MarkovChain, Schedule, belief_from_dict, forward_backward
from quiltstream.privacy.accounting.calibration import certified
from quiltstream.privacy.accounting.forward_backward import constant_loss, grid_density
from quiltstream.privacy.models import Certified, ChainError, certify

SLOW, FAST = MarkovChain([[0.9, 0.1], [0.4, 0.6]]), MarkovChain([[0.7, 0.3], [0.2, 0.8]])
THREE = MarkovChain([[0.6, 0.3, 0.1], [0.2, 0.6, 0.2], [0.1, 0.2, 0.7]])


def many() -> MarkovChain:
    """A chain of more states than the account computes exactly, which moves to its neighbours."""
    near = np.abs(np.subtract.outer(np.arange(13), np.arange(13))) <= 1
    rows = np.where(near, 0.2, 0.0) + 0.03
    return MarkovChain(rows / rows.sum(axis=1, keepdims=True))


def read(belief: Certified) -> Certified:
    found = belief_from_dict(json.loads(json.dumps(belief.to_dict())))
    assert isinstance(found, Certified)
    return found


def test_what_was_calibrated_to_1_with_many_states_is_accounted_as_1() -> None:
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
    assert kept.members == (THREE,)
    assert kept.to_dict()["kind"] == "markov-chain"


def altered(change: str) -> dict[str, object]:
    form = json.loads(json.dumps(certified(THREE).to_dict()))
    one = form["certificates"][0]
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
    return form


@pytest.mark.parametrize(
    "change",
    [
        "of another belief",
        "of a smaller density",
        "with a smaller entry",
        "of fewer states",
        "with NaN",
        "of two members",
    ],
)
def test_a_certificate_that_does_not_hold_is_refused(change: str) -> None:
    with pytest.raises(ChainError, match="a certificate does not hold for this belief"):
        Ledger(belief_from_dict(altered(change)), budget=1.0).charge(0, 1000, 0.05)
    with pytest.raises(ChainError, match="a certificate does not hold for this belief"):
        forward_backward(belief_from_dict(altered(change)), 1.0)


def test_a_certificate_without_its_fields_is_refused() -> None:
    form = altered("")
    form["certificates"] = [{"density": 1.0}]
    with pytest.raises(ChainError, match=r"of kind markov-chain has a field that is missing"):
        belief_from_dict(form)
