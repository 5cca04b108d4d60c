"""The files of a merge: what is there already, what is not there, what is older; and the command."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from quiltstream.pipelines.cli import main
from quiltstream.schemas.model_file import hash_of_series
from quiltstream.store import Store, StoreDamaged, StoreMissing
from quiltstream.store.errors import ExportError

from ..present import present
from .merges import address, fill, united
from .samples import OTHER, BeliefChange, domain, query


def test_an_existing_output_or_a_missing_or_damaged_input_stops_a_merge(tmp_path: Path) -> None:
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


def test_no_merge_or_backup_is_written_beside_a_log_that_was_left(tmp_path: Path) -> None:
    first, new = fill(tmp_path / "a.db"), tmp_path / "new.db"
    (tmp_path / "new.db-wal").write_bytes(b"of a ledger that was removed")
    with pytest.raises(ExportError, match=r"new\.db-wal: it exists, and a merge never replaces a file"):
        united(new, first, first)
    with Store(address(first)) as store, pytest.raises(ExportError, match=r"new\.db-wal: it exists, and a backup"):
        store.backup(new)
    assert not new.exists()


def test_an_error_while_writing_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fill(tmp_path / "a.db")

    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("quiltstream.store.merge.NewLedger.finish", broken)
    with pytest.raises(ZeroDivisionError):
        united(tmp_path / "both.db", first, first)
    assert [path.name for path in tmp_path.iterdir()] == ["a.db"]


def test_a_belief_fitted_on_a_series_of_the_other_ledger_is_given_the_model(tmp_path: Path) -> None:
    first = fill(tmp_path / "a.db", windows=2, share=0.25, budget=3.0)
    copy = Path(shutil.copy(first, tmp_path / "copy.db"))
    with Store(address(first), create=True) as store:
        hashes = (hash_of_series("joins"),)
        store.change_belief("homes", BeliefChange("joined", OTHER.to_dict(), "model-2", series_hashes=hashes))
        assert not store.summary("homes").given_model
    with Store(address(copy), create=True) as store:
        held = present(store.registered("homes", "weekly"))
        store.join(held, [("joins", None)])
    for number, sources in enumerate([(first, copy), (copy, first)]):
        with Store(address(united(tmp_path / f"both{number}.db", *sources)), create=True) as store:
            assert store.summary("homes").given_model


def test_the_command_merges_ledgers_and_reports_each_domain(tmp_path: Path) -> None:
    first, second = (fill(tmp_path / f"{name}.db", windows=3, budget=0.5) for name in "ab")
    run: Callable[..., Any] = CliRunner().invoke
    target = tmp_path / "new" / "both.db"
    done = run(main, ["ledger", "merge", str(first), address(second), "-o", str(target)])
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "2 ledgers in one" in said
    assert "flagged: 3 charges, 6 blocks; closed" in said
    assert "quiltstream ledger budget" in said
    assert run(main, ["ledger", "merge", str(first), str(second), "-o", str(target)]).exit_code == 2
    assert run(main, ["ledger", "merge", str(first), "-o", str(tmp_path / "c.db")]).exit_code == 2
    assert run(main, ["ledger", "merge", str(first), "none.db", "-o", str(tmp_path / "c.db")]).exit_code == 2
    assert run(main, ["ledger", "merge", str(first), str(second), "-o", str(tmp_path / "c.yaml")]).exit_code == 2
    with Store(address(tmp_path / "d.db"), create=True) as store:
        store.register(domain(budget=0.5), query(shards=7))
    done = run(main, ["ledger", "merge", str(first), str(tmp_path / "d.db"), "-o", str(tmp_path / "c.db")])
    assert done.exit_code == 4
    assert "shards is 2" in " ".join(done.output.split())
