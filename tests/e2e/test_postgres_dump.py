"""A ledger that is dumped and restored by the words of the guide is the same ledger: it shows the same, and goes on."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql
from sqlalchemy import make_url

from quiltstream.store import Store

from ..deploy.flink_files import calls
from ..examined import Tally
from ..pipelines.jobs import call as command
from ..store.faults import whole
from ..store.samples import domain, drafts, query, seen
from .postgres_schemas import execute


@pytest.fixture
def database(postgres_url: str) -> Iterator[Callable[[], str]]:
    """Makes empty databases of the server; the address of each."""
    made: list[str] = []

    def make() -> str:
        made.append(f"ledger-{secrets.token_hex(4)}")
        execute(postgres_url, sql.SQL("create database {}").format(sql.Identifier(made[-1])))
        return make_url(postgres_url).set(database=made[-1]).render_as_string(hide_password=False)

    yield make
    for name in made:
        execute(postgres_url, sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


def call(binaries: Path, url: str, program: str, **streams: Any) -> tuple[int, bytes]:
    """Call a program as the guide does, over a database with another name: its code, and what it complained of."""
    address = make_url(url)
    own = {"ledger": str(address.database), "--dbname=ledger": f"--dbname={address.database}"}
    (words,) = (one for one in calls("operate-with-compose", "docker") if program in one)
    # a container asks for no password
    connection = {"PGHOST": str(address.query["host"]), "PGPORT": str(address.query["port"]), "LC_ALL": "C"}
    done = subprocess.run(
        [binaries / program, *(own.get(word, word) for word in words[words.index(program) + 1 :])],
        stderr=subprocess.PIPE,
        check=False,
        timeout=120,
        env=os.environ | connection | {"PGPASSWORD": str(address.password)},
        **streams,
    )
    return done.returncode, done.stderr


def shown(url: str) -> Any:
    """What `ledger show` says of a ledger."""
    return json.loads(command("ledger", "show", url, "--json", "--all").ended(0).out)


def test_a_ledger_dumped_and_restored_by_the_guides_commands_is_the_same(
    postgres_binaries: Path, database: Callable[[], str], tmp_path: Path, tally: Tally
) -> None:
    first, second = database(), database()
    with Store(first, create=True) as store:
        held = store.register(domain(), query())
        published = seen(store.publish(held, drafts(held, list(held.query.schedule.windows())[:3])))
        said = store.summary("homes")
    dump = tmp_path / "ledger.dump"
    with dump.open("wb") as file:
        assert call(postgres_binaries, first, "pg_dump", stdin=subprocess.DEVNULL, stdout=file) == (0, b"")
    with dump.open("rb") as file:
        assert call(postgres_binaries, second, "pg_restore", stdin=file, stdout=subprocess.DEVNULL) == (0, b"")
    (account,) = shown(first)
    assert account["loss"] == said.loss > 0
    assert shown(second) == [account]
    with Store(second, create=True) as store:
        assert store.summary("homes") == said
        assert seen(store.records("homes", "weekly")) == published
        tally.take(whole(store, store.register(domain(), query()), published))
    # the other one knows nothing of it, and over a ledger that is there nothing is restored
    there = shown(second)
    assert shown(first) == [account] != there
    with dump.open("rb") as file:
        code, complaint = call(postgres_binaries, second, "pg_restore", stdin=file, stdout=subprocess.DEVNULL)
    assert code != 0
    assert b"already exists" in complaint
    assert shown(second) == there
