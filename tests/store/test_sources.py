"""The ids of the topics that a domain's readings come from are on record, and so is when one of them became another."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from quiltstream.store import Store
from quiltstream.store import registration as clock
from quiltstream.store.address import StoreAddress
from quiltstream.store.domain_changes import SourceId
from quiltstream.store.merge import merge

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


def test_a_merged_ledger_keeps_the_order_of_ids_whatever_their_times(tmp_path: Path, at: list[int]) -> None:
    path = tmp_path / "ledger.db"
    with Store(f"sqlite:///{path}", create=True) as store:
        held = store.register(domain(), query())
        store.note_source_ids(held, {"meters": "a"})
    earlier = shutil.copy(path, tmp_path / "earlier.db")
    with Store(f"sqlite:///{path}") as store:
        at[0] = 500
        known = store.note_source_ids(held, {"meters": "b"})
    for name, sources in (("one.db", [path]), ("both.db", [earlier, path]), ("turned.db", [path, earlier])):
        merge([StoreAddress(f"sqlite:///{source}") for source in sources], tmp_path / name)
        with Store(f"sqlite:///{tmp_path / name}") as store:
            assert store.source_ids("homes") == known, name


def test_a_ledger_merged_again_keeps_the_order_of_ids(tmp_path: Path, at: list[int]) -> None:
    """In a merged ledger events of another one stand between: their places tell nothing."""
    first, other = (f"sqlite:///{tmp_path / name}" for name in ("first.db", "other.db"))
    with Store(first, create=True) as store:
        held = store.register(domain(), query())
        store.note_source_ids(held, {"meters": "a"})
        at[0] = 500
        store.note_source_ids(held, {"meters": "x"})
    with Store(other, create=True) as store:
        strange = store.register(domain(), query())
        for at[0], name in ((600, "more"), (650, "most")):
            store.note_source_ids(strange, {name: "z"})
    merge([StoreAddress(first), StoreAddress(other)], tmp_path / "merged.db")
    with Store(first) as store:
        at[0] = 700
        known = store.note_source_ids(held, {"meters": "y"})
    merge([StoreAddress(first), StoreAddress(f"sqlite:///{tmp_path / 'merged.db'}")], tmp_path / "again.db")
    with Store(f"sqlite:///{tmp_path / 'again.db'}") as store:
        assert store.source_ids("homes")["meters"] == known["meters"]


def test_source_ids_are_shared_by_queries_of_a_domain_only(tmp_path: Path, at: list[int]) -> None:
    with Store(f"sqlite:///{tmp_path / 'ledger.db'}", create=True) as store:
        store.note_source_ids(store.register(domain(budget=3.0), query()), {"meters": "a"})
        at[0] = 2_000
        store.note_source_ids(store.register(domain(budget=3.0), query(name="second")), {"meters": "b"})
        assert store.source_ids("homes") == {"meters": SourceId("b", 2_000, replaced=True)}
        assert store.source_ids("streets") == {}
