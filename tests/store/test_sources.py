"""The ids of the topics that a domain's readings come from are on record, and so is when one of them became another."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiltstream.store import Store
from quiltstream.store import changes as clock
from quiltstream.store.changes import SourceId

from .samples import domain, query


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The wall clock of the ledger."""
    now = [1_000]
    monkeypatch.setattr(clock, "now_us", lambda: now[0])
    return now


def test_an_id_that_came_later_holds_although_the_clock_was_set_back(tmp_path: Path, at: list[int]) -> None:
    with Store(f"sqlite:///{tmp_path / 'ledger.db'}", create=True) as store:
        held = store.register(domain(), query())
        store.note_source_ids(held, {"meters": "a"})
        at[0] = 500
        assert store.note_source_ids(held, {"meters": "b"}) == {"meters": SourceId("b", 500, replaced=True)}
        store.note_source_ids(held, {"meters": "b"})
        assert len(store.summary("homes").events) == 2
