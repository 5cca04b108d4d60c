"""The contract of beliefs that change on SQLite, and what a merge makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiltstream.store import Store, StoreAddress
from quiltstream.store.errors import MergeConflict
from quiltstream.store.merge import merge

from ..present import present
from .beliefs import FASTER, BeliefContract, joined
from .engines import OnSqlite
from .samples import domain, drafts, query


class TestSqliteBeliefs(OnSqlite, BeliefContract):
    """All of it."""


def ledger(path: Path, *changes: object) -> StoreAddress:
    """A ledger with three windows, and belief changes after them."""
    address = StoreAddress(f"sqlite:///{path}")
    with Store(address, create=True) as store:
        held = store.register(domain(budget=9.0), query())
        store.publish(held, drafts(held, list(held.query.schedule.windows())[:3]))
        for change in changes:
            store.change_belief("homes", change)  # type: ignore[arg-type]
    return address


def test_merged_ledgers_have_the_beliefs_of_the_ledger_with_more_changes(tmp_path: Path) -> None:
    first, second = ledger(tmp_path / "a.db", joined()), ledger(tmp_path / "b.db")
    with Store(merge([second, first], tmp_path / "both.db"), create=True) as both, Store(first, create=True) as known:
        held = present(both.registered("homes", "weekly"))
        assert held.domain.changes == (joined(),)
        assert both.summary("homes").loss > known.summary("homes").loss
        assert both.summary("homes").flagged_charges == 3


def test_ledgers_with_diverged_beliefs_are_not_merged(tmp_path: Path) -> None:
    first = ledger(tmp_path / "a.db", joined())
    second = ledger(tmp_path / "b.db", joined(FASTER, model_id="model-3"))
    with pytest.raises(MergeConflict, match="belief"):
        merge([first, second], tmp_path / "both.db")
