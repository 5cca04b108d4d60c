"""What the contracts of a store have in common: a query on record, and what a ledger has to hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from quiltstream.privacy.accounting.ledger import Ledger
from quiltstream.schemas.ledger import LedgerEntry
from quiltstream.schemas.slots import Window
from quiltstream.store import BlockToPublish, NoisyBlock, Store
from quiltstream.store.specs import Registration

from .engines import OnLedger
from .samples import BELIEF, domain, drafts, query


def never() -> NoisyBlock:
    raise AssertionError("a block is on record, so nothing may be drawn")


def replayed(registration: Registration) -> list[BlockToPublish]:
    return [replace(draft, draw=never) for draft in drafts(registration)]


def windows_of(registration: Registration) -> list[Window]:
    return list(registration.query.schedule.windows())


def partial(**changes: Any) -> Any:
    """A query of short windows of which a budget of 0.5 admits only the first few."""
    return query(size=4, windows=12, **changes)


def prices(entries: list[LedgerEntry], budget: float) -> None:
    """Every loss on record is what the mathematics alone says, and none is above the budget."""
    ledger = Ledger(BELIEF)
    for number, entry in enumerate(entries, start=1):
        assert entry.sequence == number
        assert entry.loss_before == ledger.loss
        if entry.decision == "charged":
            made = ledger.charge(entry.window_start, entry.window_stop, entry.epsilon_dp)
            assert entry.loss_after == made.loss_after <= budget
        else:
            assert entry.loss_after > entry.budget >= entry.loss_before
    assert len({entry.entry_id for entry in entries}) == len(entries)


def registered(store: Store) -> Registration | None:
    """The query of the samples as it is on record."""
    return store.registered("homes", "weekly")


class Registered(OnLedger):
    """A contract that begins with a query on record."""

    @pytest.fixture
    def registration(self, store: Store) -> Registration:
        return store.register(domain(), query())
