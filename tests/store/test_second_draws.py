"""No way of reaching a ledger leads to a second draw of a window that was drawn, nor to a second account of it."""

from __future__ import annotations

import os
import pickle
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from quiltstream.store import Store, files
from quiltstream.store.address import forget
from quiltstream.store.errors import StoreConflict, StoreError, StoreReplaced
from quiltstream.store.files import misplaced

from .proofs import windows_of
from .samples import domain, drafts, query, seen


def test_a_ledger_with_two_names_is_refused_by_both_and_draws_nothing(store: Store, path: Path, tmp_path: Path) -> None:
    """SQLite keeps one log for each name: two jobs would not see each other's charges."""
    held = store.register(domain(), query())
    first = seen(store.publish(held, drafts(held, windows_of(held)[:1])))
    (tmp_path / "other").mkdir()
    second = tmp_path / "other" / "copy.db"
    os.link(path, second)
    with Store(f"sqlite:///{second}") as other, pytest.raises(StoreConflict, match=r"2 names \(hard links\)"):
        other.register(domain(), query())
    assert list(second.parent.iterdir()) == [second]
    # the job that began with one name alone goes on: the other name was refused
    assert seen(store.publish(held, drafts(held, windows_of(held)[:1]))) == first
    store.close()
    with Store(f"sqlite:///{path}") as again:
        with pytest.raises(StoreConflict, match="remove the other name"):
            again.register(domain(), query())
        second.unlink()
        assert seen(again.publish(held, drafts(held, windows_of(held)[:1]))) == first


def mounts(*lines: str) -> str:
    return "".join(f"{line}\n" for line in ("22 1 254:0 / / rw,relatime - ext4 /dev/vda rw", *lines))


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], None),
        (["30 22 254:0 /srv/ledger.db /data/ledger.db rw - ext4 /dev/vda rw"], "is mounted by itself"),
        (["30 22 0:40 / /data rw - nfs4 server:/data rw"], "network file system (nfs4)"),
        (["30 22 0:40 / /data/ledger.db-wal rw - ext4 /dev/vdb rw"], "log ledger.db-wal is mounted by itself"),
        (["30 22 0:40 / /data rw - nfs4 server:/ rw", "31 22 0:41 / /data rw - ext4 /dev/vdb rw"], None),
        (["garbage", "30 22 0:40"], None),
    ],
)
def test_a_file_whose_log_would_be_elsewhere_or_not_shared_is_misplaced(lines: list[str], words: str | None) -> None:
    found = misplaced(Path("/data/ledger.db"), mounts(*lines))
    assert found is None if words is None else found is not None and words in found


def test_a_misplaced_ledger_is_neither_made_nor_opened(
    store: Store, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.domains() == ()
    store.close()
    text = mounts(f"30 22 0:40 / {tmp_path.resolve()} rw - nfs4 server:/data rw")
    monkeypatch.setattr(files, "mounts", lambda: text)
    for one in (path, tmp_path / "new.db"):
        with Store(f"sqlite:///{one}", create=True) as other, pytest.raises(StoreConflict, match="use PostgreSQL"):
            other.domains()
    assert not (tmp_path / "new.db").exists()


@pytest.mark.parametrize("after", ["an error", "all stores were closed"])
def test_a_process_detects_an_older_copy_after_its_connection_was_closed(
    store: Store, path: Path, tmp_path: Path, after: str
) -> None:
    """A runner that tries a bundle again makes new stores in the same worker."""
    held = store.register(domain(), query())
    store.publish(held, drafts(held, windows_of(held)[:1]))
    store.backup(tmp_path / "early.db")
    store.publish(held, drafts(held, windows_of(held)[:3]))
    travelled = pickle.dumps(store)
    if after == "all stores were closed":
        store.close()
    for one in path.parent.glob("ledger.db*"):
        one.unlink()
    shutil.copy(tmp_path / "early.db", path)
    for _ in range(2):
        worker = pickle.loads(travelled)
        with worker, pytest.raises(StoreReplaced, match="an older copy or a restored backup is there: row "):
            worker.publish(held, drafts(held, windows_of(held)[:3]))
    # by the operator's word
    forget(store.address)
    with pickle.loads(travelled) as worker:
        assert len(worker.publish(held, drafts(held, windows_of(held)[:3]))) == 6


@pytest.mark.parametrize("between", [1, 3])
def test_a_backup_beside_a_leftover_log_draws_nothing_again(
    store: Store, path: Path, tmp_path: Path, between: int
) -> None:
    """SQLite plays the log into whatever file is there, which gives pages of two times."""
    held = store.register(domain(), query())
    windows = windows_of(held)
    store.publish(held, drafts(held, windows[:1]))
    store.backup(tmp_path / "early.db")
    store.publish(held, drafts(held, windows[: 1 + between]))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(RESTART)")
    published = seen(store.publish(held, drafts(held, windows[: 2 + between])))
    log = path.with_name("ledger.db-wal").read_bytes()
    address = store.address
    store.close()
    shutil.copy(tmp_path / "early.db", path)
    path.with_name("ledger.db-wal").write_bytes(log)
    forget(address)  # as another process
    with Store(address) as again, suppress(StoreError):
        again.register(domain(), query())
        assert seen(again.publish(held, drafts(held, windows[: 2 + between]))) == published
