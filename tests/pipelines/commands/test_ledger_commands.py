"""``quiltstream ledger``: looking at the record, exporting and keeping it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from quiltstream.pipelines.cli import main
from quiltstream.store.store import Store

from ...present import present
from ..jobs import Job, call, change, job


@pytest.mark.night
def test_the_ledger_is_shown_from_a_file_a_url_and_the_settings_alike(ran: Job) -> None:
    shown = [call("ledger", "show", where) for where in (ran.ledger, f"sqlite:///{ran.ledger}", ran.settings)]
    assert {done.code for done in shown} == {0}
    assert len({done.out for done in shown}) == 1
    assert "after 7 windows charged; naive adding says 7" in shown[0].out


def test_the_ledger_as_json_holds_every_entry(ran: Job) -> None:
    (domain,) = json.loads(call("ledger", "show", ran.ledger, "--json").out)
    assert (domain["name"], domain["charged"], len(domain["entries"])) == ("streets", 7, 7)
    assert [entry["sequence"] for entry in domain["entries"]] == list(range(1, 8))
    assert domain["loss"] == domain["entries"][-1]["loss_after"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("show", "bounds"),
        ("verify", "heads"),
        ("export -o out", "log.jsonl"),
        ("backup -o out.db", "out.db"),
        ("budget streets 2 --yes", "before"),
        ("belief streets bounds.yaml --yes", "reserved_after"),
        ("drift streets daily", "judged"),
    ],
)
def test_every_command_tells_a_machine_what_it_did(
    copy: Job, monkeypatch: pytest.MonkeyPatch, words: str, said: str
) -> None:
    monkeypatch.chdir(copy.folder)
    Path("bounds.yaml").write_text("pi_min: 0.2\ngap: 0.5\n", encoding="utf-8")
    command, *more = words.split()
    done = call("ledger", command, copy.ledger, *more, "--json").ended(0)
    assert said in json.dumps(json.loads(done.out))


def test_the_bounds_of_published_theorems_are_shown_beside_the_loss(ran: Job, tmp_path: Path) -> None:
    """A day alone loses 48 slots at 1 / 102.61 each, less than any quilt, and each theorem adds up seven of them."""
    (domain,) = json.loads(call("ledger", "show", ran.ledger, "--json").out)
    bounds = domain["bounds"]
    assert {name: one["loss"] for name, one in bounds.items() if one["loss"] is not None} == pytest.approx(
        {"quilts": 1.0} | dict.fromkeys(("[SC17] 3.1", "[SC17] 3.7", "[BHGKM] 6.2"), 7 * 48 / 102.6105), rel=1e-4
    )
    assert min(one["loss"] for one in bounds.values() if one["loss"] is not None) > domain["loss"]
    assert domain["alone"] == {"daily": domain["loss"]} == {"daily": pytest.approx(0.5550, abs=1e-4)}
    assert call("ledger", "export", ran.ledger, "-o", tmp_path).code == 0
    assert json.loads((tmp_path / "domains.json").read_text(encoding="utf-8"))[0]["bounds"] == bounds


def decided(made: Job, *options: str) -> list[str]:
    """What stands beside the loss about the bound that decided it."""
    done = call("ledger", "show", made.ledger, *options).ended(0)
    return [line for line in done.out.splitlines() if line.split()[:1] == ["decided"]]


def test_which_bound_decided_is_shown_with_all_entries(ran: Job, tmp_path: Path) -> None:
    """Seven days in a row lose less than all their density; two hours lose all of it, which is a bound by itself."""
    short = job(tmp_path / "short", windows={"size": "1h", "start": "2024-03-01", "stop": "2024-03-01T02:00"})
    call("run", short.settings).ended(0)
    for made, slots, named, other in ((ran, 7 * 48, "recursion", "density"), (short, 4, "density", "recursion")):
        (domain,) = json.loads(call("ledger", "show", made.ledger, "--json").out)
        everything = slots * domain["entries"][0]["epsilon_dp"]
        assert (domain["loss"] < 0.9 * everything) == (named == "recursion")
        (line,) = decided(made, "--all")
        assert named in line
        assert other not in line
        assert decided(made) == []


def test_a_missing_domain_exits_with_code_4_and_existing_domains_are_named(ran: Job) -> None:
    for name in ("avenues", "str\udcffeets"):  # the second one is of bytes that are no UTF-8
        call("ledger", "show", ran.ledger, "--domain", name).ended(4, "it has streets")
        call("ledger", "budget", ran.ledger, name, "2", "--yes").ended(4, "it has streets")


@pytest.mark.parametrize(
    "words",
    [
        *(["ledger", "show"], ["ledger", "verify"], ["ledger", "budget", "streets", "2", "--yes"]),
        *(["ledger", "export", "-o", "out"], ["ledger", "backup", "-o", "out"]),
    ],
    ids=" ".join,
)
def test_settings_with_the_id_of_another_ledger_are_refused(
    copy: Job, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(copy.folder)
    change(copy, ledger_id="0" * 32)
    call(*words[:2], "settings.yaml", *words[2:]).ended(4, "The ledger of this job has the id 00000000")
    assert not Path("out").is_file()


@pytest.mark.parametrize(
    ("where", "code", "message"),
    [
        ("nothing.db", 2, "there is no such file"),
        ("/dev/null", 2, "/dev/null: there is no such file; give a SQLite ledger"),
        (".", 2, ".: it is a folder; name the SQLite ledger in it, or a settings file that names one"),
        ("nothing.yaml", 2, "cannot be read"),
        ("sqlite:///nothing.db", 4, "there is none"),
        ("mysql://me:secret@host/db", 2, "mysql"),
    ],
)
def test_a_missing_ledger_is_not_created_and_no_password_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, code: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    call("ledger", "show", where).ended(code, message).hid("secret")
    assert not list(tmp_path.iterdir())


def test_the_audit_trail_is_exported_in_two_formats_and_names_no_series(ran: Job, tmp_path: Path) -> None:
    call("ledger", "export", ran.settings, "-o", tmp_path / "out").ended(0)
    lines = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    table = pq.read_table(tmp_path / "out" / "log.parquet").to_pylist()
    assert [{**row, "body": json.loads(row["body"])} for row in table] == lines
    kinds = Counter(row["key"].partition("/")[0] for row in lines if row["domain"])
    assert kinds == {"domain": 1, "query": 1, "entry": 7, "block": 14}
    with Store(f"sqlite:///{ran.ledger}") as store:
        head = store.head("streets")
        names = present(store.registered(*store.queries()[0])).series
    assert [(row["seq"], row["digest"]) for row in lines if row["domain"]][-1] == head
    assert not any(name in line for name in names for line in map(repr, lines))


def test_a_backup_is_a_ledger_and_never_replaces_a_file(ran: Job, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    call("ledger", "backup", ran.ledger, "-o", copy).ended(0, "it forgets every charge made after now")
    assert call("ledger", "show", copy).out == call("ledger", "show", ran.ledger).out
    assert call("ledger", "backup", ran.ledger, "-o", copy).code == 2


@pytest.mark.parametrize(
    "words",
    [("backup", "-o", "copy.db"), ("budget", "streets", "7", "--yes"), ("belief", "streets", "bounds.yaml", "--yes")],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize("kind", ["block", "query"])
def test_a_flipped_bit_stops_a_backup_and_every_decision(
    ran: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bounds.yaml").write_text("pi_min: 0.2\ngap: 0.5\n", encoding="utf-8")
    shutil.copy(ran.ledger, "ledger.db")
    with closing(sqlite3.connect("ledger.db")) as connection, connection:
        chosen = "SELECT rowid, blob FROM quiltstream_log WHERE key LIKE ?"
        number, blob = connection.execute(chosen, (f"{kind}/%",)).fetchone()
        changed = bytes([blob[0] ^ 1]) + blob[1:]
        connection.execute("UPDATE quiltstream_log SET blob = ? WHERE rowid = ?", (changed, number))
    call("ledger", words[0], "ledger.db", *words[1:]).ended(4, "the record is damaged; restore the newest backup")
    assert not Path("copy.db").exists()
    assert call("ledger", "verify", "ledger.db").code == 4


@pytest.mark.night
def test_a_budget_is_raised_after_confirmation_recorded_and_never_lowered(tmp_path: Path) -> None:
    made = job(tmp_path)
    call("run", made.settings)
    words = ["ledger", "budget", str(made.ledger), "streets", "2"]
    for answer in ("n\n", ""):
        refused = CliRunner().invoke(main, words, input=answer)
        assert (refused.exit_code, refused.stderr) == (130, "nothing was changed\n")
        assert "from 1 to 2?" in refused.output
    agreed = CliRunner().invoke(main, words, input="y\n")
    assert agreed.exit_code == 0
    shown = call("ledger", "show", made.ledger)
    assert shown.said("budget raised: 1.0 to 2.0")
    assert shown.said("2; 1.4450")
    lowered = call("ledger", "budget", made.ledger, "streets", "1.5")
    assert (lowered.code, lowered.out) == (4, "")  # refused without a question
    assert lowered.said("can only be raised")
    for budget, said in (("nan", "nan"), ("1e400", "inf"), ("0", "0.0")):
        wrong = call("ledger", "budget", made.ledger, "streets", budget)
        assert (wrong.code, wrong.out) == (2, "")
        assert wrong.said(f"BUDGET is {said}, but must be a finite number above the budget in force")
    # settings that still say the old budget go on
    assert call("run", made.settings).code == 0


def read_only_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every ledger's disk say that it is mounted read-only, as it does to whoever opens a file for writing."""

    opened = os.open

    def refuse(path: Any, *more: Any, **named: Any) -> int:
        if str(path).endswith("ledger.db"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return opened(path, *more, **named)

    monkeypatch.setattr(os, "open", refuse)
    asked = os.statvfs

    def read_only(path: Any) -> Any:
        found = asked(path)
        return SimpleNamespace(f_flag=found.f_flag | os.ST_RDONLY) if str(path).endswith("ledger.db") else found

    monkeypatch.setattr(os, "statvfs", read_only)


def test_a_ledger_on_a_read_only_mount_can_be_shown_and_not_changed(
    ran: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(ran.folder, tmp_path / "with # and %41")
    shown = call("ledger", "show", folder / "ledger.db")
    before = sorted((one.name, one.read_bytes()) for one in folder.iterdir())
    read_only_disk(monkeypatch)
    assert call("ledger", "show", folder / "ledger.db") == shown
    for words in (
        ("run", "--dry-run", folder / "settings.yaml"),
        ("ledger", "budget", folder / "ledger.db", "streets", "2", "--yes"),
        ("run", folder / "settings.yaml"),
    ):
        done = call(*words)
        assert (done.code, done.said("mounted read-only")) == (4, True), done
    assert sorted((one.name, one.read_bytes()) for one in folder.iterdir()) == before
