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
from click.testing import CliRunner
from psycopg import sql
from sqlalchemy import make_url

from quiltstream.pipelines.cli import main
from quiltstream.store import Store

from ..deploy.flink_files import calls
from ..examined import Tally
from ..store.faults import whole
from ..store.samples import domain, drafts, query, seen
from .postgres_schemas import execute


def words(program: str) -> list[str]:
    """The guide's call of a program in the container of PostgreSQL."""
    (call,) = (call for call in calls("operate-with-compose", "docker") if program in call)
    return call[call.index(program) :]


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


def call(binaries: Path, url: str, program: str, **streams: Any) -> subprocess.CompletedProcess[bytes]:
    """Call a program as the guide does, over a database with another name; a container asks for no password."""
    address = make_url(url)
    environment = os.environ | {"PGHOST": str(address.query["host"]), "PGPORT": str(address.query["port"])}
    return subprocess.run(
        [binaries / program, *(named(word, str(address.database)) for word in words(program)[1:])],
        stderr=subprocess.PIPE,
        check=False,
        timeout=120,
        env=environment | {"PGPASSWORD": str(address.password), "LC_ALL": "C"},
        **streams,
    )


def named(word: str, database: str) -> str:
    """A word with the name of a test's database in place of the guide's."""
    return {"ledger": database, "--dbname=ledger": f"--dbname={database}"}.get(word, word)


def shown(url: str) -> Any:
    """What `ledger show` says of a ledger."""
    done = CliRunner().invoke(main, ["ledger", "show", url, "--json", "--all"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_ledger_dumped_and_restored_by_the_guides_commands_is_the_same(
    postgres_binaries: Path, database: Callable[[], str], tmp_path: Path, tally: Tally
) -> None:
    first, second = database(), database()
    with Store(first, create=True) as store:
        held = store.register(domain(), query())
        published = seen(store.publish(held, drafts(held, list(held.query.schedule.windows())[:3])))
        said = store.summary("homes")
    assert said.charged == 3
    dump = tmp_path / "ledger.dump"
    with dump.open("wb") as file:
        done = call(postgres_binaries, first, "pg_dump", stdin=subprocess.DEVNULL, stdout=file)
    assert (done.returncode, done.stderr) == (0, b"")
    with dump.open("rb") as file:
        done = call(postgres_binaries, second, "pg_restore", stdin=file, stdout=subprocess.DEVNULL)
    assert (done.returncode, done.stderr) == (0, b"")
    (account,) = shown(first)
    assert account["loss"] == said.loss > 0
    assert shown(second) == [account]
    with Store(second, create=True) as store:
        assert store.summary("homes") == said
        assert seen(store.records("homes", "weekly")) == published
        tally.take(whole(store, store.register(domain(), query()), published))
    # the other one knows nothing of it
    assert shown(first) == [account] != shown(second)
    # over a ledger that is there nothing is restored, and nothing of it changes
    there = shown(second)
    with dump.open("rb") as file:
        done = call(postgres_binaries, second, "pg_restore", stdin=file, stdout=subprocess.DEVNULL)
    assert done.returncode != 0
    assert b"already exists" in done.stderr
    assert shown(second) == there
