"""A ledger that is damaged: every command that reads it says so and ends with exit code 4, and nothing is published."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from ..jobs import Job, call, job

Damage = Callable[[sqlite3.Connection], object]


def flipped(column: str, table: str) -> Damage:
    """One bit of a value in the middle of a table."""

    def damage(connection: sqlite3.Connection) -> None:
        number, value = connection.execute(f"SELECT id, {column} FROM {table} LIMIT 1 OFFSET 3").fetchone()  # noqa: S608
        if isinstance(value, bytes):
            value = bytes([value[0] ^ 4, *value[1:]])
        elif isinstance(value, str):
            value = chr(ord(value[0]) ^ 4) + value[1:]
        else:
            value *= 1 + 2**-52
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE id = ?", (value, number))  # noqa: S608

    return damage


def no_text(connection: sqlite3.Connection) -> None:
    """A byte that is part of no UTF-8 in a text."""
    connection.execute("UPDATE quiltstream_charges SET rule = CAST(x'72ff' AS TEXT) WHERE id = 4")


def said(text: str) -> Damage:
    return lambda connection: connection.execute(text)


DAMAGES: dict[str, Damage] = {
    "a block": flipped("block", "quiltstream_releases"),
    "a loss": flipped("loss_after", "quiltstream_charges"),
    "a text that is none": no_text,
    "a removed block": said("DELETE FROM quiltstream_releases WHERE id = 4"),
    "the last charge and its blocks": said(
        "DELETE FROM quiltstream_charges WHERE id = (SELECT max(id) FROM quiltstream_charges)"
    ),
    "a removed query": said("DELETE FROM quiltstream_queries"),
    "text in a column of numbers": said("UPDATE quiltstream_charges SET window_start = 'x' WHERE id = 4"),
}


def damaged(ran: Job, folder: Path, damage: Damage) -> Job:
    """A copy of a job that has run, whose ledger is damaged."""
    copy = job(folder)
    shutil.copy(ran.ledger, copy.ledger)
    with closing(sqlite3.connect(copy.ledger)) as connection:
        damage(connection)
        orphans = "charge_id NOT IN (SELECT id FROM quiltstream_charges)"
        connection.execute(f"DELETE FROM quiltstream_releases WHERE {orphans}")  # noqa: S608 - a text of this test
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
    with closing(sqlite3.connect(copy.ledger)) as connection:
        charges = connection.execute("SELECT count(*) FROM quiltstream_charges").fetchone()[0]
        blocks = connection.execute("SELECT count(*) FROM quiltstream_releases").fetchone()[0]
    copy.ledger.write_bytes(before)
    with closing(sqlite3.connect(copy.ledger)) as connection:
        assert charges == connection.execute("SELECT count(*) FROM quiltstream_charges").fetchone()[0]
        assert blocks == connection.execute("SELECT count(*) FROM quiltstream_releases").fetchone()[0]


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
