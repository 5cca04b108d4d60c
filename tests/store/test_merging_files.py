"""The files of a merge: what is there already, what is not there, what is older; and the command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from quiltstream.pipelines.cli import main
from quiltstream.store import (
    ExportError,
    SchemaVersionError,
    Store,
    StoreDamaged,
    StoreMissing,
    schema,
    tables,
)

from .merges import address, content, fill, united
from .samples import domain, drafts, query


def test_a_file_that_exists_and_a_ledger_that_is_not_there_or_damaged_stop_a_merge(tmp_path: Path) -> None:
    first = fill(tmp_path / "a.db")
    with pytest.raises(ExportError, match="never replaces"):
        united(first, first, first)
    with pytest.raises(StoreMissing):
        united(tmp_path / "both.db", first, tmp_path / "none.db")
    (tmp_path / "broken.db").write_bytes(b"not a database" * 100)
    with pytest.raises(StoreDamaged):
        united(tmp_path / "both.db", first, tmp_path / "broken.db")
    with pytest.raises(ExportError, match="cannot be written"):
        united(tmp_path / "a.db" / "both.db", first)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.db", "broken.db"]


def test_an_error_while_writing_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fill(tmp_path / "a.db")

    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("quiltstream.store.merged.NewLedger.finish", broken)
    with pytest.raises(ZeroDivisionError):
        united(tmp_path / "both.db", first, first)
    assert [path.name for path in tmp_path.iterdir()] == ["a.db"]


def older(path: Path) -> None:
    """Make a ledger one of version 0001."""
    with Store(address(path)) as store, store._database().write() as connection:
        for table in (tables.flagged_charges, tables.flagged_releases, tables.roster_versions):
            table.drop(connection)
        for table, column in (
            ("domains", "merged_loss"),
            ("domains", "changes"),
            ("queries", "belief"),
            ("queries", "successor"),
            ("releases", "paid_by"),
            ("charges", "given_model"),
        ):
            connection.exec_driver_sql(f"ALTER TABLE quiltstream_{table} DROP COLUMN {column}")
        connection.execute(schema._version.update().values(version_num="0001"))


def test_a_ledger_of_an_older_version_is_migrated_first_and_keeps_everything(tmp_path: Path) -> None:
    path = fill(tmp_path / "a.db", windows=3)
    before = content(path)
    older(path)
    with pytest.raises(SchemaVersionError, match="ledger migrate"):
        united(tmp_path / "both.db", path, path)
    with Store(address(path)) as store:
        store.migrate()
    assert content(path) == before
    with Store(address(path)) as store:
        held = store.register(domain(), query())
        assert [record.fresh for record in store.publish(held, drafts(held))] == [False] * 6 + [True] * 6


def test_charges_of_an_older_version_are_given_the_model_where_their_query_was(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Store(address(path)) as store:
        for name, given in (("weekly", False), ("other", True)):
            held = store.register(domain(), query(name, given_model=given, share=0.25))
            store.publish(held, drafts(held, list(held.query.schedule.windows())[:2]))
    older(path)
    with Store(address(path)) as store:
        store.migrate()
        found = [(entry.query, entry.given_model) for entry in store.entries()]
    assert sorted(found) == [("other", True)] * 2 + [("weekly", False)] * 2


def test_the_command_unites_ledgers_and_says_what_became_of_each_domain(tmp_path: Path) -> None:
    first, second = fill(tmp_path / "a.db", windows=3), fill(tmp_path / "b.db", windows=3)
    run: Callable[..., Any] = CliRunner().invoke
    target = tmp_path / "new" / "both.db"
    done = run(main, ["ledger", "merge", str(first), address(second), "-o", str(target)])
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "2 ledgers in one" in said
    assert "flagged: 3 charges, 6 blocks; closed" in said
    assert "quiltstream ledger budget" in said
    assert run(main, ["ledger", "merge", str(first), str(second), "-o", str(target)]).exit_code == 4
    assert run(main, ["ledger", "merge", str(first), "-o", str(tmp_path / "c.db")]).exit_code == 2
    assert run(main, ["ledger", "merge", str(first), "none.db", "-o", str(tmp_path / "c.db")]).exit_code == 2
    assert run(main, ["ledger", "merge", str(first), str(second), "-o", str(tmp_path / "c.yaml")]).exit_code == 2
    with Store(address(tmp_path / "d.db")) as store:
        store.register(domain(), query(shards=7))
    done = run(main, ["ledger", "merge", str(first), str(tmp_path / "d.db"), "-o", str(tmp_path / "c.db")])
    assert done.exit_code == 4
    assert "shards is 2" in " ".join(done.output.split())
