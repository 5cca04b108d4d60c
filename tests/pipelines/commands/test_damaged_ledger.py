"""A ledger that is damaged: every command that reads it says so and ends with exit code 4, and nothing is published."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from quiltstream.store import Store

from ...store.damage import rewriting
from ...store.forging import forge
from ...store.forging import said as rewritten
from ..jobs import Job, call, job

Damage = Callable[[sqlite3.Connection], object]


def flipped(column: str, kind: str) -> Damage:
    """One bit of a value of a row of a kind."""

    def damage(connection: sqlite3.Connection) -> None:
        chosen = f"SELECT rowid, {column} FROM quiltstream_log WHERE key LIKE ? LIMIT 1 OFFSET 2"  # noqa: S608
        number, value = connection.execute(chosen, (f"{kind}/%",)).fetchone()
        value = bytes([value[0] ^ 4, *value[1:]]) if isinstance(value, bytes) else chr(ord(value[0]) ^ 4) + value[1:]
        connection.execute(f"UPDATE quiltstream_log SET {column} = ? WHERE rowid = ?", (value, number))  # noqa: S608

    return damage


def said(text: str) -> Damage:
    return lambda connection: connection.execute(text)


DAMAGES: dict[str, Damage] = {
    "a block": flipped("blob", "block"),
    "a charge": flipped("body", "entry"),
    "a key": flipped("key", "block"),
    "a text that is none": said("UPDATE quiltstream_log SET body = CAST(x'72ff' AS TEXT) WHERE seq = 4"),
    "a removed block": said("DELETE FROM quiltstream_log WHERE key = (SELECT min(key) FROM quiltstream_log)"),
    "the last row": said("DELETE FROM quiltstream_log WHERE seq = (SELECT max(seq) FROM quiltstream_log)"),
    "a removed query": said("DELETE FROM quiltstream_log WHERE key LIKE 'query/%'"),
    "a removed head": said("DELETE FROM quiltstream_heads WHERE domain != ''"),
    "text in a column of numbers": said("UPDATE quiltstream_heads SET seq = 'x' WHERE domain != ''"),
}


def damaged(ran: Job, folder: Path, damage: Damage) -> Job:
    """A copy of a job that has run, whose ledger is damaged."""
    copy = job(folder)
    shutil.copy(ran.ledger, copy.ledger)
    with closing(sqlite3.connect(copy.ledger)) as connection:
        damage(connection)
        connection.commit()
    return copy


@pytest.mark.night
@pytest.mark.parametrize("what", DAMAGES)
def test_every_command_reports_damage_with_exit_code_4(ran: Job, tmp_path: Path, what: str) -> None:
    copy = damaged(ran, tmp_path / "copy", DAMAGES[what])
    before = copy.ledger.read_bytes()
    export = ("ledger", "export", copy.ledger, "-o", tmp_path / "public")
    for command in (("ledger", "show", copy.ledger), export, ("ledger", "verify", copy.ledger), ("run", copy.settings)):
        done = call(*command)
        assert done.code == 4, (command, done.out, done.err)
        assert "damaged" in done.err, (command, done.err)
        assert "Traceback" not in done.err
    assert rows(copy.ledger.read_bytes(), tmp_path) == rows(before, tmp_path)


def test_a_loss_that_its_charges_do_not_cost_is_not_shown(ran: Job, tmp_path: Path) -> None:
    copy = damaged(ran, tmp_path, lambda _: None)
    with Store(f"sqlite:///{copy.ledger}") as store, rewriting(store) as connection:
        forge(connection, rewritten("entry/", after=0.25))
    call("ledger", "show", copy.ledger).ended(4, "says that 0.25 is lost, and its charges cost")


def rows(ledger: bytes, folder: Path) -> list[tuple[object, ...]]:
    """How many rows each of its tables has."""
    (folder / "counted.db").write_bytes(ledger)
    with closing(sqlite3.connect(folder / "counted.db")) as connection:
        tables = ("quiltstream_heads", "quiltstream_log")
        return [connection.execute(f"SELECT count(*) FROM {table}").fetchone() for table in tables]  # noqa: S608


def test_an_intact_ledger_is_verified_and_its_heads_verify_later_ledgers(ran: Job, tmp_path: Path) -> None:
    done = call("ledger", "verify", ran.ledger).ended(0, "Every row is as it was written")
    found = json.loads(call("ledger", "verify", ran.settings, "--json").out)
    head = found["heads"]["streets"]
    assert head in done.out
    assert (found["mode"], found["defects"]) == ("private", [])
    assert call("ledger", "verify", ran.ledger, "--expect", f"streets={head}").code == 0
    assert call("ledger", "export", ran.ledger, "-o", tmp_path).code == 0
    assert json.loads((tmp_path / "domains.json").read_text(encoding="utf-8"))[0]["head"] == head
    other = head[:-1] + ("0" if head[-1] != "0" else "1")
    call("ledger", "verify", ran.ledger, "--expect", f"streets={other}").ended(4, "is not on record as it was")
    call("ledger", "verify", ran.ledger, "--expect", "streets").ended(
        2, "--expect streets: there is no `=` in it; give DOMAIN=HEAD"
    )
    call("ledger", "verify", ran.ledger, "--expect", str(head)).ended(2, "there is no `=` in it")
