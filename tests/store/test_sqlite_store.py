"""The contract on SQLite, and what only a file can do wrong."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.engine.default import DefaultDialect

from quiltstream.store import Store, StoreDamaged
from quiltstream.store.errors import StoreConflict, StoreReplaced

from .contract import StoreContract
from .damage import rewriting
from .engines import OnSqlite
from .faults import whole
from .samples import domain, drafts, query, seen


class TestSqlite(OnSqlite, StoreContract):
    def refuse_blocks(self, store: Store) -> None:
        with rewriting(store) as connection:
            connection.exec_driver_sql(
                "CREATE TRIGGER refuse BEFORE INSERT ON quiltstream_log WHEN new.key LIKE 'block/%' "
                "BEGIN SELECT RAISE(ABORT, 'refused'); END"
            )


def test_the_connection_has_the_durability_settings_of_sqlite(store: Store, path: Path) -> None:
    pragmas: dict[str, Any] = {}

    def asked(connection: Connection, *_: Any) -> None:
        own = connection.connection.cursor()
        for name in ("journal_mode", "synchronous", "secure_delete", "busy_timeout"):
            pragmas[name] = own.execute(f"PRAGMA {name}").fetchone()[0]

    event.listen(Engine, "before_cursor_execute", asked)
    try:
        store.register(domain(), query())
    finally:
        event.remove(Engine, "before_cursor_execute", asked)
    assert pragmas == {
        "journal_mode": "wal",
        "synchronous": 2,
        "secure_delete": 1,
        "busy_timeout": 60_000,
    }
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_closed_store_is_one_file(store: Store, path: Path) -> None:
    held = store.register(domain(), query())
    store.publish(held, drafts(held))
    store.close()
    assert sorted(one.name for one in path.parent.iterdir()) == ["ledger.db"]


@pytest.mark.parametrize("content", [b"not a database" * 100, bytes(range(256)) * 40])
def test_a_file_that_is_not_a_database_is_refused_and_left_unchanged(store: Store, path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreDamaged, match="the job stops; nothing is published that is not on record"):
        store.register(domain(), query())
    assert path.read_bytes() == content


def test_a_foreign_database_is_refused_and_left_unchanged(store: Store, path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute("create table holidays (day text)")
    other.commit()
    other.close()
    with pytest.raises(StoreDamaged, match="something else"):
        store.register(domain(), query())


def test_a_file_replaced_while_the_job_runs_stops_it(store: Store, path: Path) -> None:
    held = store.register(domain(), query())
    path.rename(path.with_name("elsewhere.db"))
    with pytest.raises(StoreReplaced, match="its file vanished while the job ran") as raised:
        store.publish(held, drafts(held))
    assert f"The ledger of this job has the id {store.address.store_id}." in str(raised.value)
    # its log is still there, and would be played into a new file
    with (
        Store(f"sqlite:///{path}", create=True) as fresh,
        pytest.raises(StoreReplaced, match=r"its log ledger\.db-wal is"),
    ):
        fresh.domains()
    with Store(f"sqlite:///{path}", create=True, over=True) as fresh:
        assert fresh.domains() == ()
        with pytest.raises(StoreReplaced, match="its file was replaced while the job ran"):
            store.entries()


@pytest.mark.parametrize("moved", ["ledger.db", "ledger.db-wal"])
@pytest.mark.parametrize("ask", ["publish", "charge_windows"])
def test_a_file_moved_before_a_commit_stops_the_job_before_a_row_is_published(
    store: Store, path: Path, moved: str, ask: str
) -> None:
    """SQLite goes on writing to the files that it has open, which no later job finds."""
    held = store.register(domain(), query())
    windows = list(held.query.schedule.windows())
    published = seen(store.publish(held, drafts(held, windows[:1])))
    commit, file = DefaultDialect.do_commit, path.with_name(moved)

    def move_then_commit(dialect: DefaultDialect, connection: Any) -> None:
        file.rename(file.with_name("elsewhere"))
        commit(dialect, connection)

    asked = {
        "publish": lambda: store.publish(held, drafts(held)),
        "charge_windows": lambda: store.charge_windows(held, windows),
    }[ask]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DefaultDialect, "do_commit", move_then_commit)
        with pytest.raises(StoreReplaced, match=r"was moved"):
            asked()
    with pytest.raises(StoreReplaced):
        asked()
    store.close()
    file.with_name("elsewhere").rename(file)
    with Store(f"sqlite:///{path}") as again:
        whole(again, again.register(domain(), query()), published)


def test_a_ledger_behind_a_symbolic_link_is_made_where_the_link_leads(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "volume" / "other name.db"
    target.parent.mkdir()
    target.touch()
    path.symlink_to(target)
    with Store(f"sqlite:///{path}", create=True, over=True) as store:
        assert store.store_id
    assert path.is_symlink()
    assert target.stat().st_size
    assert not list(target.parent.glob(".*"))


def test_a_ledger_on_a_disk_that_is_mounted_read_only_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(f"sqlite:///{path}", create=True) as store:
        store.publish(held := store.register(domain(), query()), drafts(held))
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    with Store(f"sqlite:///{path}") as store:
        assert store.verify().whole
        with pytest.raises(StoreConflict, match="mounted read-only"):
            store.publish(held, drafts(held))


COUNTED = """
import sys
from quiltstream.store import Store
with Store(sys.argv[1], create=False) as store:
    print(len(store.entries()))
"""


@pytest.mark.night
def test_a_second_connection_of_a_process_leaves_the_locks_of_the_first(store: Store, path: Path) -> None:
    def count_elsewhere() -> int:
        command = [sys.executable, "-c", COUNTED, f"sqlite:///{path}"]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    held = store.register(domain(), query())
    windows = list(held.query.schedule.windows())
    store.publish(held, drafts(held, windows[:1]))
    with Store(f"sqlite:///{path}", wait=30) as other:
        assert other.domains() == store.domains()
        # the last process that closes a ledger takes its log away: this one must see that it is not the last
        assert count_elsewhere() == 1
        assert path.with_name("ledger.db-wal").exists()
        store.publish(held, drafts(held, windows[1:]))
    assert count_elsewhere() == len(windows)


def test_a_backup_opens_and_holds_everything(store: Store, path: Path, tmp_path: Path) -> None:
    held = store.register(domain(), query())
    store.publish(held, drafts(held))
    target = tmp_path / "backups" / "monday.db"
    store.backup(target)
    store.publish(store.register(domain("other"), query(domain="other")), [])
    with Store(f"sqlite:///{target}", create=False) as copy:
        assert copy.entries() == store.entries()
        assert copy.domains() == ("homes",)
        assert [b.to_pylist() for b in copy.releases("homes", "weekly")] == [
            b.to_pylist() for b in store.releases("homes", "weekly")
        ]
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with pytest.raises(ValueError, match="never replaces"):
        store.backup(target)
    assert path.exists()


def test_a_path_with_special_characters_is_accepted(tmp_path: Path) -> None:
    with Store(f"sqlite:///{tmp_path}/50%25 of @it/a b#é.db", create=True) as store:
        assert store.register(domain(), query()).fresh
        assert store.address == type(store.address)(store.address.url)
    assert (tmp_path / "50%25 of @it" / "a b#é.db").exists()
