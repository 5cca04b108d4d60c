"""The files of a merge: what is there already, what is not there, what is older; and the command."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from quiltstream.pipelines.cli import main
from quiltstream.schemas.models import hash_of_series
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
from .samples import OTHER, BeliefChange, domain, drafts, query


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


def of_version_0004(path: Path) -> Path:
    """Make a ledger one of version 0004, which did not keep whether a charge holds only given a model."""
    with Store(address(path)) as store, store._database().write() as connection:
        for table in (tables.charges, tables.flagged_charges):
            connection.exec_driver_sql(f"ALTER TABLE {table.name} DROP COLUMN given_model")
        connection.execute(schema._version.update().values(version_num="0004"))
    return path


def migrated(path: Path) -> Path:
    with Store(address(path)) as store:
        store.migrate()
    return path


def loss(path: Path) -> float:
    with Store(address(path)) as store:
        return store.summary("homes").loss


def published_rows(path: Path) -> list[dict[str, Any]]:
    with Store(address(path)) as store:
        return [row for batch in store.releases("homes", "weekly") for row in batch.to_pylist()]


def flags(path: Path) -> list[bool]:
    with Store(address(path)) as store:
        return [entry.given_model for entry in store.entries()]


def test_a_charge_whose_flag_an_older_version_did_not_keep_is_one_charge_and_the_cautious_flag_holds(
    tmp_path: Path,
) -> None:
    """One copy made with the flag, and one that was migrated from a version without it: no charge costs twice."""
    first = fill(tmp_path / "a.db", windows=2, share=0.25, budget=3.0)
    with Store(address(first)) as store:
        store.change_belief("homes", BeliefChange("joined", OTHER.to_dict(), "model-2", given_model=True))
    fill(first, windows=4, share=0.25, budget=3.0)
    old = of_version_0004(Path(shutil.copy(first, tmp_path / "old.db")))
    with pytest.raises(SchemaVersionError, match="ledger migrate"):
        united(tmp_path / "early.db", first, old)
    assert (flags(first), flags(migrated(old))) == ([False] * 2 + [True] * 2, [True] * 4)
    rows = published_rows(first)
    for number, sources in enumerate([(first, old), (old, first), (old, first, old)]):
        both = united(tmp_path / f"both{number}.db", *sources)
        assert content(both) == content(old)
        with Store(address(both)) as store:
            said = store.summary("homes")
            assert (said.flagged_charges, said.flagged_blocks, said.closed) == (0, 0, False)
            assert said.loss == loss(first) == loss(old)
        assert flags(both) == [True] * 4
        # all else of the rows is as it was published
        assert [dict(row, given_model=True) for row in rows] == published_rows(both)
    again = united(tmp_path / "again.db", tmp_path / "both0.db", first)
    assert content(again) == content(old)


def test_a_copy_that_never_heard_of_the_estimated_belief_does_not_take_the_flag_away(tmp_path: Path) -> None:
    """The copy was made and migrated before the belief joined; the other is migrated after it."""
    first = fill(tmp_path / "a.db", windows=2, share=0.25, budget=3.0)
    early = Path(shutil.copy(first, tmp_path / "early.db"))
    assert flags(migrated(of_version_0004(early))) == [False] * 2
    with Store(address(first)) as store:
        store.change_belief("homes", BeliefChange("joined", OTHER.to_dict(), "model-2", given_model=True))
    assert flags(migrated(of_version_0004(first))) == [True] * 2
    fill(early, windows=3, share=0.25, budget=3.0)
    for number, sources in enumerate([(first, early), (early, first)]):
        both = united(tmp_path / f"both{number}.db", *sources)
        assert flags(both) == [True, True, False]
        with Store(address(both)) as store:
            said = store.summary("homes")
            assert (said.flagged_charges, said.flagged_blocks, said.given_model) == (0, 0, True)
            assert said.loss >= max(loss(first), loss(early))


def test_a_belief_of_one_ledger_that_rests_on_a_series_of_the_other_is_given_the_model(tmp_path: Path) -> None:
    first = fill(tmp_path / "a.db", windows=2, share=0.25, budget=3.0)
    copy = Path(shutil.copy(first, tmp_path / "copy.db"))
    with Store(address(first)) as store:
        hashes = (hash_of_series("joins"),)
        store.change_belief("homes", BeliefChange("joined", OTHER.to_dict(), "model-2", series_hashes=hashes))
        assert not store.summary("homes").given_model
    with Store(address(copy)) as store:
        held = store.registered("homes", "weekly")
        assert held is not None
        store.join(held, [("joins", None)])
    for number, sources in enumerate([(first, copy), (copy, first)]):
        with Store(address(united(tmp_path / f"both{number}.db", *sources))) as store:
            assert store.summary("homes").given_model


def test_a_charge_that_differs_in_more_than_the_flag_is_two_charges_still(tmp_path: Path) -> None:
    first = fill(tmp_path / "a.db", windows=2, share=0.25, budget=3.0)
    copy = Path(shutil.copy(first, tmp_path / "copy.db"))
    with Store(address(copy)) as store, store._database().write() as connection:
        changed = tables.charges.update().where(tables.charges.c.sequence == 1)
        connection.execute(changed.values(epsilon_dp=tables.charges.c.epsilon_dp * 2, given_model=True))
    both = united(tmp_path / "both.db", first, copy)
    with Store(address(both)) as store:
        said = store.summary("homes")
        assert said.flagged_charges == 1
        assert said.loss > max(loss(first), loss(copy))
        # that of record first, as it was
        assert sorted(entry.given_model for entry in store.entries()) == [False, False, True]
        assert not store.entries()[0].given_model


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
