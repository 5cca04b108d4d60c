"""A history that an operator declares lost is marked in the account for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiltstream.store import Store
from quiltstream.store.errors import StoreConflict

from .samples import domain, drafts, query


def test_a_lost_history_is_recorded_with_its_size_and_changes_no_loss(tmp_path: Path) -> None:
    with Store(f"sqlite:///{tmp_path / 'ledger.db'}", create=True) as store:
        held = store.register(domain(), query())
        before = store.summary("homes")
        assert not before.history_lost
        after = store.note_history_lost("homes", releases=7)
        assert after.history_lost
        assert [event[:4] for event in after.events] == [("history-lost", None, "0", "7")]
        assert (after.loss, after.reserved_loss, after.budget) == (before.loss, before.reserved_loss, before.budget)
        store.publish(held, drafts(held))
        store.raise_budget("homes", before.budget * 2)
    with Store(f"sqlite:///{tmp_path / 'ledger.db'}", create=True) as store:
        assert store.register(domain(budget=before.budget), query()).digest == held.digest
        assert store.summary("homes").history_lost


def test_only_a_registered_domain_can_have_a_lost_history(tmp_path: Path) -> None:
    with Store(f"sqlite:///{tmp_path / 'ledger.db'}", create=False) as store, pytest.raises(StoreConflict):
        store.note_history_lost("homes", releases=1)
    with Store(f"sqlite:///{tmp_path / 'ledger.db'}", create=True) as store:
        store.register(domain(), query())
        with pytest.raises(StoreConflict):
            store.note_history_lost("streets", releases=1)
        assert not store.summary("homes").history_lost
