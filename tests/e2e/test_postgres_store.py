"""The contract of the ledger of record on a real PostgreSQL server, and what only a server can do wrong."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from quiltstream.store import Store
from quiltstream.store.errors import StoreAway, StoreConflict

from ..store.contract import StoreContract
from ..store.damage import rewriting
from ..store.samples import domain, drafts, query
from .postgres_schemas import OnPostgres, new_schema


class TestPostgres(OnPostgres, StoreContract):
    def refuse_blocks(self, store: Store) -> None:
        with rewriting(store) as connection:
            connection.exec_driver_sql("ALTER TABLE quiltstream_log ADD CHECK (key NOT LIKE 'block/%%')")


def test_a_server_without_durable_commits_is_refused(postgres_url: str) -> None:
    for level in ("off", "local", "remote_write"):
        weak = f"{postgres_url}&options=-csynchronous_commit%3D{level}"
        with Store(weak, create=True) as store, pytest.raises(StoreConflict, match=f"synchronous_commit = {level}"):
            store.register(domain(), query())
    with new_schema(postgres_url, "%20-csynchronous_commit%3Dremote_apply") as url, Store(url, create=True) as store:
        assert store.register(domain(), query()).fresh


def test_jobs_that_register_queries_of_new_and_known_domains_at_once_all_succeed(postgres_url: str) -> None:
    names = ("homes", "flats", "farms")

    def registered(number: int) -> bool:
        with Store(url, wait=30.0) as store:
            name = names[number % 3]
            return store.register(domain(name), query(f"q{number}", name, share=0.1)).fresh

    with new_schema(postgres_url) as url:
        with Store(url, create=True) as store:
            store.domains()
        with ThreadPoolExecutor(6) as jobs:
            assert all(jobs.map(registered, range(15), timeout=120))
        with Store(url) as store:
            assert [len(store.summary(name).queries) for name in names] == [5, 5, 5]
            assert store.verify().defects == ()


def test_a_server_that_takes_writes_again_is_used_by_a_new_connection(postgres_url: str) -> None:
    """A session stays what it was when it began: one that was refused a write is not used again."""
    plain = postgres_url.replace("postgresql+psycopg", "postgresql")
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute("CREATE DATABASE failed_over")
        try:
            with Store(postgres_url.replace("/quiltstream?", "/failed_over?"), create=True) as store:
                held = store.register(domain(), query())
                store.close()
                connection.execute("ALTER DATABASE failed_over SET default_transaction_read_only = on")
                for _ in range(2):
                    with pytest.raises(StoreAway):
                        store.publish(held, drafts(held))
                connection.execute("ALTER DATABASE failed_over RESET default_transaction_read_only")
                assert len(store.publish(held, drafts(held))) == len(drafts(held))
        finally:
            connection.execute("DROP DATABASE failed_over WITH (FORCE)")
