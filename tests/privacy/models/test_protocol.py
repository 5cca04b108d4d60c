"""What every belief answers, whatever its kind."""

from __future__ import annotations

import json
import pickle

import pytest

from quiltstream.privacy import (
    AnyInitial,
    BinaryInterval,
    DobrushinBounds,
    FiniteClass,
    Ledger,
    MarkovChain,
    MixingBounds,
    PeriodicChain,
)
from quiltstream.privacy.accounting import endless
from quiltstream.privacy.models import Belief, ChainError, belief_from_dict, certify
from quiltstream.privacy.models.classes import mixing_bounds
from quiltstream.privacy.models.serialisation import KINDS

SLOW, FAST = MarkovChain([[0.9, 0.1], [0.4, 0.6]]), MarkovChain([[0.7, 0.3], [0.2, 0.8]])
CURVE = {1: 0.6, 4: 0.2}
BELIEFS: list[Belief] = [
    SLOW,
    FiniteClass([SLOW, FAST]),
    MixingBounds(0.2, 0.5),
    AnyInitial([SLOW.transition, FAST.transition]),
    BinaryInterval((0.8, 0.9), (0.5, 0.6)),
    DobrushinBounds(CURVE, CURVE),
    PeriodicChain([SLOW.transition, FAST.transition]),
]


def kind(belief: Belief) -> str:
    return belief.to_dict()["kind"]


@pytest.mark.parametrize("belief", BELIEFS, ids=kind)
class TestEveryBelief:
    def test_it_survives_json_and_pickling_and_its_form_needs_each_field(self, belief: Belief) -> None:
        form = belief.to_dict()
        for again in (belief_from_dict(json.loads(json.dumps(form))), pickle.loads(pickle.dumps(belief))):
            assert (again, hash(again)) == (belief, hash(belief))
        assert type(belief) is KINDS[kind(belief)]
        for field in form.keys() - {"kind", "initial", "gap_kind"}:
            with pytest.raises(ChainError, match=f"needs? the field {field}"):
                belief_from_dict({name: value for name, value in form.items() if name != field})

    def test_each_direction_has_a_certificate(self, belief: Belief) -> None:
        found = endless(belief, 1.0)
        pairs = belief.directions()
        assert all(certify(pair, one) for pair, one in zip(pairs, found.certificates, strict=True))

    @pytest.mark.night
    def test_the_ledger_accounts_for_the_belief_and_its_events(self, belief: Belief) -> None:
        ledger = Ledger(belief, budget=1.0)
        assert 0 < ledger.charge(0, 48, 0.02).loss_after <= ledger.event_loss(4)

    def test_its_bounds_are_those_of_quilts(self, belief: Belief) -> None:
        if belief.has_quilts:
            assert 0 < mixing_bounds(belief).gap <= 2
        else:
            with pytest.raises(ChainError, match="bounds neither the rarest state nor a spectral gap"):
                mixing_bounds(belief)

    def test_its_stationary_range_holds_its_members(self, belief: Belief) -> None:
        if (shares := belief.stationary_range(2)) is not None:
            low, high = shares
            assert all((low - 1e-12 <= chain.stationary).all() for chain in belief.members)
            assert all((chain.stationary <= high + 1e-12).all() for chain in belief.members)

    def test_an_unknown_start_is_replaced_by_any_start_or_refused(self, belief: Belief) -> None:
        assert belief.everywhere == belief
        if belief.members or belief.any_start:
            assert belief.from_any_start().any_start
        else:
            with pytest.raises(ChainError, match=f"{type(belief).__name__} rests on the marginals"):
                belief.from_any_start()


def test_every_belief_kind_is_tested() -> None:
    assert [kind(belief) for belief in BELIEFS] == list(KINDS)


def test_a_fixed_start_is_replaced_by_any() -> None:
    start = MarkovChain(SLOW.transition, [1.0, 0.0])
    assert start.everywhere == AnyInitial([SLOW.transition])
    assert FiniteClass([start, FAST]).everywhere == AnyInitial([SLOW.transition, FAST.transition])


@pytest.mark.parametrize(
    "belief",
    [
        PeriodicChain([SLOW.transition, FAST.transition]),
        DobrushinBounds(CURVE, CURVE),
    ],
    ids=lambda belief: type(belief).__name__,
)
def test_no_account_switches_to_a_belief_about_the_marginals(belief: Belief) -> None:
    """After a switch the marginals are those that the old chain left, and not the believed ones."""
    ledger = Ledger(SLOW, budget=1.0)
    before = ledger.charge(0, 48, 0.01).loss_after
    with pytest.raises(ChainError, match="rests on the marginals of its series"):
        ledger.switch(48, belief)
    assert ledger.loss == before


def test_an_unknown_belief_kind_is_refused_with_the_known_kinds() -> None:
    with pytest.raises(ChainError, match=f"belief kind is 'magic', but must be one of {', '.join(KINDS)}"):
        belief_from_dict({"kind": "magic"})
    with pytest.raises(ChainError, match="belief kind is None"):
        belief_from_dict({})
