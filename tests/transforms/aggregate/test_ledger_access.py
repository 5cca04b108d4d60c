"""Blocks are logged before their rows leave, so that the next run notices an older copy of the ledger."""

from __future__ import annotations

import errno
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
from quiltstream.store.errors import StoreReplaced
from quiltstream.store.specs import BlockToPublish, Record, Registration
from quiltstream.transforms.aggregate.ledger_access import (
    BlockLog,
    BlockLogError,
    LoggedBlock,
    LogWriter,
    PatientStore,
    begin,
    compact,
    read,
)

from ...store.samples import domain, drafts, query


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(f"sqlite:///{tmp_path}/ledger.db", create=True) as made:
        yield made


@pytest.fixture
def held(store: Store) -> Registration:
    return store.register(domain(), query())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


def on_shard(held: Registration, window: int, shard: int) -> list[BlockToPublish]:
    return drafts(held, [list(held.query.schedule.windows())[window]], [shard])


def places(path: Path) -> list[tuple[str, int]]:
    return [(one.entry_id, one.shard) for one in read(path)]


def of(records: list[Record]) -> list[tuple[str, int]]:
    return [(one.entry.entry_id, one.shard) for one in records]


def test_a_transaction_is_logged_before_its_records_are_given(store: Store, held: Registration, path: Path) -> None:
    """One block stands for all that a transaction put on record; those of earlier ones are logged each."""
    patient = PatientStore(store, live=False, log=BlockLog((str(path),)))
    first = patient.publish(held, on_shard(held, 0, 0))
    second = patient.publish(held, [*on_shard(held, 0, 0), *on_shard(held, 1, 1), *on_shard(held, 2, 1)])
    again = patient.publish(held, [*on_shard(held, 0, 0), *on_shard(held, 1, 1)])
    assert places(path) == [*of(first), of(second)[1], *of(again)]
    assert read(path)[0].query == "weekly"
    assert read(path)[0].until == "1970-01-04T00:00:00Z"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_rows_are_withheld_while_no_block_log_can_be_written(
    store: Store, held: Registration, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    patient = PatientStore(store, live=False, log=BlockLog((str(path), str(path.with_name("other")))))
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(BlockLogError, match="No space left on device") as raised:
        patient.publish(held, on_shard(held, 0, 0))
    monkeypatch.undo()
    assert raised.value.passing
    (record,) = patient.publish(held, on_shard(held, 0, 0))
    assert not record.fresh
    assert places(path) == of([record])


def test_one_file_that_can_be_written_is_enough_and_is_synced(
    store: Store, held: Registration, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fdatasync", lambda handle: synced.append(str(Path(f"/proc/self/fd/{handle}").readlink())))
    missing, other = path.with_name("no folder") / "log", path.with_name("other")
    log = LogWriter(BlockLog((str(missing), str(path), str(other))), store)
    records = store.publish(held, on_shard(held, 0, 0))
    log.append(held, records)
    assert places(path) == places(other) == of(records)
    assert synced == [str(path)]
    assert not begin(missing.parent.parent / "ledger.db" / "log")


def test_remote_workers_write_only_to_existing_block_logs(
    store: Store, held: Registration, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = store.publish(held, on_shard(held, 0, 0))
    LogWriter(BlockLog((str(path),), here=False), store).append(held, records)
    assert not path.exists()
    assert begin(path)
    LogWriter(BlockLog((str(path),), here=False), store).append(held, records)
    assert places(path) == of(records)

    numbers = [errno.EROFS, errno.EACCES, errno.ENOSPC]

    def refused(*_: Any) -> int:
        raise OSError(numbers.pop(0), "refused")

    monkeypatch.setattr(os, "open", refused)
    for _ in range(2):
        LogWriter(BlockLog((str(path),), here=False), store).append(held, records)
    with pytest.raises(BlockLogError, match="No space left on device"):
        LogWriter(BlockLog((str(path),), here=False), store).append(held, records)


def test_compaction_keeps_the_newest_and_unrecorded_blocks(store: Store, held: Registration, path: Path) -> None:
    log = LogWriter(BlockLog((str(path),)), store)
    other = store.register(domain(budget=1.0), query("daily", share=0.0001))
    newest: list[tuple[str, int]] = []
    for window, shard in ((3, 0), (0, 1), (1, 0)):
        for one in (held, other):
            records = store.publish(one, on_shard(one, window, shard))
            log.append(one, records)
            newest = [*newest, *of(records)][-2:]
    strange = LoggedBlock("0" * 32, 1, "weekly", "2024-01-01T00:00:00Z")
    # in any order: what is replayed is appended again
    log.append(held, store.publish(held, on_shard(held, 3, 0)))
    compact(path, store, also=[strange])
    assert places(path) == [(strange.entry_id, 1), *newest]
    compact(path, store, forget=True)
    assert places(path) == newest


def test_a_truncated_line_hides_no_other_line(store: Store, held: Registration, path: Path) -> None:
    log = LogWriter(BlockLog((str(path),)), store)
    first = store.publish(held, on_shard(held, 0, 0))
    log.append(held, first)
    for rest in (b'{"entry_id":"00', b"\0" * 40):
        with path.open("ab") as file:
            file.write(rest)
        second = store.publish(held, on_shard(held, 1, 0))
        log.append(held, second)
        assert set(places(path)) == {*of(first), *of(second)}
    path.write_bytes(b"something else\n")
    with pytest.raises(ValueError, match="it holds no block"):
        read(path)
    path.write_bytes(b'\n{"entry_id":"0"')  # the first line, which was cut off
    assert read(path) == []
    path.write_bytes(b'{"entry_id":"0"')  # of a file that was compacted, and is written whole
    with pytest.raises(ValueError, match="it holds no block"):
        read(path)


def test_a_symbolic_link_is_not_followed(store: Store, held: Registration, path: Path) -> None:
    path.symlink_to(path.with_name("elsewhere"))
    assert not begin(path)
    with pytest.raises(BlockLogError):
        LogWriter(BlockLog((str(path),)), store).append(held, store.publish(held, on_shard(held, 0, 0)))
    assert not path.with_name("elsewhere").exists()


def test_a_copy_that_lacks_a_drawn_block_is_refused_when_its_bundle_is_retried(
    store: Store, held: Registration, path: Path, tmp_path: Path
) -> None:
    """The copy has the charge, so the retry draws anew, under the same name; the rows of that draw never leave."""
    log = BlockLog((str(path),))
    first = PatientStore(store, live=False, log=log)
    first.publish(held, on_shard(held, 0, 0))
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as there:
        with closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
            there.backup(copy)
        left = of(first.publish(held, on_shard(held, 0, 1)))
    other = LogWriter(log, store)
    other.append(held, store.publish(held, on_shard(held, 0, 0)))
    store.close()
    # in place: a process that has the file open goes on with it
    shutil.copyfile(tmp_path / "copy.db", tmp_path / "ledger.db")
    for _ in range(2):  # what the first retry drew is on record for the second
        with Store(f"sqlite:///{tmp_path}/ledger.db") as again:
            retried = PatientStore(again, live=False, log=log)
            with pytest.raises(StoreReplaced, match=r"lacks rows that have left the job, shard 1 of the window"):
                retried.publish(held, on_shard(held, 0, 1))
            assert of(list(again.records("homes", "weekly")))[:2] == [(left[0][0], 0), *left]
            with pytest.raises(StoreReplaced):  # whatever else its jobs would publish there
                retried.publish(held, on_shard(held, 2, 0))
    with pytest.raises(StoreReplaced):  # and a worker that has read the log before
        first.publish(held, on_shard(held, 0, 1))
    path.unlink()
    with pytest.raises(StoreReplaced):
        other.append(held, store.publish(held, on_shard(held, 3, 0)))


def test_a_worker_without_a_block_log_file_detects_a_replaced_ledger(
    store: Store, held: Registration, tmp_path: Path
) -> None:
    log = BlockLog((str(tmp_path / "nowhere" / "log"),), here=False)
    remote = PatientStore(store, live=False, log=log)
    remote.publish(held, on_shard(held, 0, 0))
    with (
        closing(sqlite3.connect(tmp_path / "ledger.db")) as there,
        closing(sqlite3.connect(tmp_path / "copy.db")) as copy,
    ):
        there.backup(copy)
    remote.publish(held, on_shard(held, 0, 1))
    store.close()
    shutil.copyfile(tmp_path / "copy.db", tmp_path / "ledger.db")
    # a runner that tries a bundle again makes what publishes anew, in the same process
    for one in (remote, PatientStore(Store(store.address), live=False, log=log)):
        for shard in (1, 0):
            with pytest.raises(StoreReplaced, match="as this worker remembers"):
                one.publish(held, on_shard(held, 0, shard))
        one.close()
