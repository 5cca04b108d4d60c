"""What the theorems of the sources say beside an account: numbers by hand, and when they are left out.

At the density that loses 1 for ever the worst slot's quilt is (15, 13): 27 slots inside, so of the loss 27 / sigma is
density and the rest is influence, which [BHGKM] 6.2 counts once for all charges.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from quiltstream.store.accounts import priced_anew
from quiltstream.store.specs import BlockToPublish
from quiltstream.store.store import Store

from .samples import SIGMA, block, domain, query

NAMES = ["quilts", "[SWC17] 4.4", "[SC17] 3.1", "[SC17] 3.3", "[SC17] 3.6", "[SC17] 3.7", "[BHGKM] 6.2"]
INSIDE = 27 / 31.7098


@pytest.mark.parametrize(
    ("windows", "found"),
    [
        (1, {"quilts": 1.0, "[SWC17] 4.4": 1.0, "[SC17] 3.7": 1.0, "[BHGKM] 6.2": 1.0}),
        (2, {"quilts": 1.0, "[SC17] 3.1": 2.0, "[SC17] 3.7": 2.0, "[BHGKM] 6.2": 1 + INSIDE}),
        (6, {"quilts": 1.0, "[SC17] 3.1": 6.0, "[SC17] 3.7": 6.0, "[BHGKM] 6.2": 1 + 5 * INSIDE}),
    ],
)
def test_each_theorem_has_its_number_or_its_reason(tmp_path: Path, windows: int, found: dict[str, float]) -> None:
    assert pytest.approx(31.7098, abs=1e-4) == SIGMA
    with Store(f"sqlite:///{tmp_path / 'ledger.db'}", create=True) as store:
        held = store.register(domain(), query(windows=windows, shards=1))
        last = list(held.query.schedule.windows())[-1]
        store.publish(held, [BlockToPublish(last, 0, lambda: block(held, 0))])
        bounds = priced_anew(held.domain, [entry.span for entry in store.entries()])[2]
        loss = store.summary("homes").loss
    assert list(bounds) == NAMES
    assert {name: bound.loss for name, bound in bounds.items() if bound.loss is not None} == pytest.approx(
        found, abs=1e-4
    )
    # what an endless stream of windows loses; one alone a little less
    assert loss == pytest.approx(0.3841, abs=2e-3)
    assert all(loss <= bound.loss for bound in bounds.values() if bound.loss is not None)
    reasons = {name: bound.reason for name, bound in bounds.items() if bound.loss is None}
    assert set(reasons) == set(NAMES) - set(found)
    assert all(reason.startswith("does not apply: ") for reason in reasons.values())
