"""What a ledger says of charges by the quilts alone, and the density by which a stream of it loses epsilon."""

from __future__ import annotations

from collections.abc import Iterable

from quiltstream.privacy import Ledger, mqm_approx, pairwise
from quiltstream.privacy.accounting.charges import Span
from quiltstream.privacy.models import Belief


def quilt_loss(belief: Belief, charges: Iterable[Span]) -> float:
    ledger = Ledger(belief)
    ledger.replay(charges)
    loss = ledger.bounds()["quilts"].loss
    assert loss is not None
    return loss


def quilt_density(belief: Belief, epsilon: float) -> float:
    return (mqm_approx if belief.states is None else pairwise)(belief, epsilon).epsilon_dp
