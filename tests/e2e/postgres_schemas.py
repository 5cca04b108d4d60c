"""Empty schemas of a real PostgreSQL server: where the contracts of the store have their ledgers."""

from __future__ import annotations

import secrets
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress

import psycopg
import pytest
from psycopg import sql

from ..store.engines import OnLedger


def execute(url: str, statement: sql.Composed) -> None:
    """Run one statement of the tests' own, outside a transaction."""
    with psycopg.connect(url.replace("postgresql+psycopg", "postgresql"), autocommit=True) as connection:
        connection.execute(statement)


@contextmanager
def new_schema(url: str, options: str = "") -> Generator[str]:
    """The address of an empty schema of its own, which is dropped at the end.

    Hundreds of them would be ten thousand files, and a server that recovers from a crash flushes every one.
    """
    name = f"s{secrets.token_hex(8)}"
    execute(url, sql.SQL("create schema {}").format(sql.Identifier(name)))
    try:
        yield f"{url}&options=-csearch_path%3D{name}{options}"
    finally:
        dropped = sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(name))
        with suppress(psycopg.errors.DeadlockDetected):  # with a job that has not ended yet: one of the two goes on
            execute(url, dropped)
        execute(url, dropped)


def new_schemas(url: str) -> Generator[str]:
    """One schema after the other; each is dropped when the next one is asked for."""
    while True:
        with new_schema(url) as address:
            yield address


class OnPostgres(OnLedger):
    """Schemas of the server."""

    @pytest.fixture
    def url(self, postgres_url: str) -> Iterator[str]:
        with new_schema(postgres_url) as address:
            yield address

    @pytest.fixture
    def fresh_urls(self, postgres_url: str) -> Iterator[Iterator[str]]:
        schemas = new_schemas(postgres_url)
        yield schemas
        schemas.close()

    def vanish(self, url: str) -> None:
        bare, name = _parts(url)
        execute(bare, sql.SQL("drop schema {} cascade").format(sql.Identifier(name)))
        execute(bare, sql.SQL("create schema {}").format(sql.Identifier(name)))

    def is_bare(self, url: str) -> bool:
        bare, name = _parts(url)
        with psycopg.connect(bare.replace("postgresql+psycopg", "postgresql")) as connection:
            found = connection.execute("select count(*) from pg_tables where schemaname = %s", (name,)).fetchone()
        return found == (0,)


def _parts(url: str) -> tuple[str, str]:
    """The address of the server, and the name of the schema."""
    bare, _, name = url.partition("&options=-csearch_path%3D")
    return bare, name
