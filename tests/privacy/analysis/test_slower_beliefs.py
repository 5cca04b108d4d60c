"""Beliefs in which states change less often: what stays the same, and that everything costs at least as much."""

from __future__ import annotations

import numpy as np
import pytest

from quiltstream.privacy import DobrushinBounds, Ledger, MarkovChain, MixingBounds
from quiltstream.privacy.accounting.certificates import certified
from quiltstream.privacy.analysis.slower import slowed
from quiltstream.privacy.models.belief import Belief
from quiltstream.privacy.models.serialisation import belief_from_dict

CHAIN = {"kind": "markov-chain", "transition": [[0.9, 0.1], [0.4, 0.6]], "initial": None}
BELIEFS = [
    CHAIN,
    {"kind": "finite-class", "chains": [CHAIN, CHAIN | {"transition": [[0.8, 0.2], [0.5, 0.5]]}]},
    {"kind": "any-initial", "transitions": [CHAIN["transition"]]},
    {"kind": "mixing-bounds", "pi_min": 0.2, "gap": 0.6, "gap_kind": "unknown"},
    {"kind": "dobrushin-bounds", "forward": [[1, 0.9], [4, 0.5], [16, 0.05]], "backward": [[2, 0.8], [16, 0.05]]},
]


@pytest.mark.night
@pytest.mark.parametrize("belief", BELIEFS, ids=lambda belief: belief["kind"])
def test_the_same_charges_cost_more_the_less_often_states_change(belief: dict[str, object]) -> None:
    losses: list[float] = []
    for factor in (1.0, 2.5):
        form = slowed(belief, factor)
        assert form is not None
        ledger = Ledger(belief_from_dict(form))
        losses.append(ledger.replay([(start, start + 48, 0.02) for start in range(0, 240, 48)]))
    assert losses[0] == pytest.approx(Ledger(belief_from_dict(belief)).replay([(0, 240, 0.02)]))
    assert losses == sorted(losses)
    assert losses[-1] > losses[0]
    assert losses[-1] <= 240 * 0.02 * (1 + 1e-9)  # what a series that never changes would lose


def test_a_slowed_chain_keeps_its_stationary_distribution_and_divides_its_gap() -> None:
    form = slowed(CHAIN, 3)
    assert form is not None
    kernel, slow = np.array(CHAIN["transition"]), np.array(form["transition"])
    assert np.array([0.8, 0.2]) @ slow == pytest.approx([0.8, 0.2])
    assert (1 - np.sort(np.linalg.eigvals(slow).real)[0]) * 3 == pytest.approx(
        1 - np.sort(np.linalg.eigvals(kernel).real)[0]
    )


@pytest.mark.parametrize("factor", [1.5, 2, 4, 37])
def test_slowed_contraction_bounds_hold_for_the_slowed_chain(factor: float) -> None:
    for rows in ([[0.9, 0.1], [0.4, 0.6]], [[0.1, 0.9], [0.8, 0.2]], [[0.5, 0.5, 0], [0, 0.2, 0.8], [0.7, 0.1, 0.2]]):
        form, bounds = slowed(CHAIN | {"transition": rows}, factor), DobrushinBounds.of(MarkovChain(rows)).to_dict()
        slow = slowed(bounds, factor)
        assert form is not None
        assert slow is not None
        chain = MarkovChain(form["transition"])
        assert DobrushinBounds.from_dict(slow).covers(chain), rows


@pytest.mark.parametrize("belief", [MarkovChain([[0.8, 0.2], [0.3, 0.7]]), MixingBounds(0.2, 0.5)])
def test_a_slowed_belief_has_no_certificates_of_the_faster_one(belief: Belief) -> None:
    form = slowed(certified(belief, 1.0).to_dict(), 2)
    assert form is not None
    assert "certificates" not in form
    assert belief_from_dict(form) == belief_from_dict(slowed(belief.to_dict(), 2))
    assert Ledger(belief_from_dict(form)).loss_of([(0, 48, 0.1)]) < 48 * 0.1
