"""A ledger is remembered before rows leave, whole and only forward, so that the next run notices another one."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from quiltstream.store import Store
from quiltstream.store.address import forget
from quiltstream.store.errors import StoreAway, StoreReplaced
from quiltstream.store.log import Head
from quiltstream.store.specs import BlockToPublish, Registration
from quiltstream.transforms.aggregate.ledger_access import PatientStore
from quiltstream.transforms.aggregate.memory import Memory, MemoryUnreadableError

from ...store.samples import domain, drafts, query


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(f"sqlite:///{tmp_path}/ledger.db", create=True) as made:
        yield made


@pytest.fixture
def held(store: Store) -> Registration:
    return store.register(domain(), query())


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    return Memory(str(tmp_path / "beside" / ".rows.quiltstream.json"))


def on_shard(held: Registration, window: int, shard: int) -> list[BlockToPublish]:
    return drafts(held, [list(held.query.schedule.windows())[window]], [shard])


def head_in(memory: Memory) -> Head:
    found = memory.read()
    assert found is not None
    return Head.parse(found.heads["homes"])


def copied(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as there, closing(sqlite3.connect(target)) as copy:
        there.backup(copy)


def test_the_head_of_the_ledger_is_remembered_before_records_are_given(
    store: Store, held: Registration, memory: Memory
) -> None:
    patient = PatientStore(store, live=False, memory=memory)
    patient.publish(held, on_shard(held, 0, 0))
    found = memory.read()
    assert found is not None
    assert (found.store_id, head_in(memory)) == (store.store_id, store.head("homes"))
    assert "window until 1970-01-04T00:00:00Z of query 'weekly'" in found.newest
    before = Path(memory.place).read_bytes()
    patient.publish(held, on_shard(held, 0, 0))  # nothing new
    assert Path(memory.place).read_bytes() == before
    assert stat.S_IMODE(Path(memory.place).stat().st_mode) == 0o600


def test_rows_are_withheld_while_the_memory_cannot_be_written(
    store: Store, held: Registration, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    patient = PatientStore(store, live=False, memory=memory)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreAway, match="No space left on device"):
        patient.publish(held, on_shard(held, 0, 0))
    monkeypatch.undo()
    assert memory.read() is None
    (record,) = patient.publish(held, on_shard(held, 0, 0))
    assert not record.fresh
    assert head_in(memory) == store.head("homes")


def test_the_memory_never_goes_back(store: Store, held: Registration, memory: Memory) -> None:
    """Two workers: the one that committed first is the second to write."""
    store.publish(held, on_shard(held, 0, 0))
    with Store(store.address, wait=30) as other:
        other.publish(held, on_shard(held, 1, 0))
        memory.note(other, "homes")
        later = head_in(memory)
        memory.note(store, "homes")
    assert head_in(memory) == later == store.head("homes")
    assert store.known_head("homes") == later


@pytest.mark.parametrize("same_process", [True, False])
def test_a_copy_that_lacks_a_block_that_left_is_refused_when_its_bundle_is_retried(
    store: Store, held: Registration, memory: Memory, tmp_path: Path, same_process: bool
) -> None:
    """The copy has the charge, so the retry draws anew, under the same name; the rows of that draw never leave."""
    first = PatientStore(store, live=False, memory=memory)
    first.publish(held, on_shard(held, 0, 0))
    copied(tmp_path / "ledger.db", tmp_path / "copy.db")
    first.publish(held, on_shard(held, 0, 1))
    remembered = Path(memory.place).read_bytes()
    store.close()
    shutil.copyfile(tmp_path / "copy.db", tmp_path / "ledger.db")
    for _ in range(2):  # what the first retry drew is on record for the second
        if not same_process:
            forget(store.address)
        with Store(f"sqlite:///{tmp_path}/ledger.db") as again:
            retried = PatientStore(again, live=False, memory=memory)
            for place in ((0, 1), (2, 0)):
                with pytest.raises(StoreReplaced, match="older copy"):
                    retried.publish(held, on_shard(held, *place))
    assert Path(memory.place).read_bytes() == remembered


def test_another_ledger_is_refused(store: Store, held: Registration, memory: Memory, tmp_path: Path) -> None:
    PatientStore(store, live=False, memory=memory).publish(held, on_shard(held, 0, 0))
    with Store(f"sqlite:///{tmp_path}/other.db", create=True) as other:
        there = other.register(domain(), query())
        with pytest.raises(StoreReplaced, match="another ledger"):
            PatientStore(other, live=False, memory=memory).publish(there, on_shard(there, 0, 0))


def test_a_memory_that_cannot_be_read_is_not_taken_for_none(memory: Memory) -> None:
    assert memory.read() is None
    Path(memory.place).parent.mkdir()
    for text in ("{", "[]", json.dumps({"store_id": "a"})):
        Path(memory.place).write_text(text, encoding="utf-8")
        with pytest.raises(MemoryUnreadableError, match="cannot be read"):
            memory.read()
