"""The contract of the ledger of record on a real PostgreSQL server, and what only a server can do wrong."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection, make_url

from quiltstream.store import Store, StoreMissing, recorded_rows, tables
from quiltstream.store.errors import ExportError, NotDurableError, StoreBusy, StoreStandby, StoreUnavailable
from quiltstream.store.registration import Registrar

from ..store.contract import StoreContract
from ..store.samples import domain, drafts, query
from .postgres_schemas import OnPostgres, new_schema


class TestPostgres(OnPostgres, StoreContract):
    def unguarded(self, store: Store) -> None:
        with store._database().write() as connection:
            for table in tables.metadata.sorted_tables:
                for key in sa.inspect(connection).get_foreign_keys(table.name):
                    connection.exec_driver_sql(f'ALTER TABLE {table.name} DROP CONSTRAINT "{key["name"]}"')

    def refuse_releases(self, store: Store) -> None:
        with store._database().write() as connection:
            connection.exec_driver_sql("ALTER TABLE quiltstream_releases ADD CHECK (shard < 0)")


def test_a_server_without_durable_commits_is_refused(postgres_url: str) -> None:
    for level in ("off", "local", "remote_write"):
        weak = f"{postgres_url}&options=-csynchronous_commit%3D{level}"
        with Store(weak, create=True) as store, pytest.raises(NotDurableError, match=f"synchronous_commit = {level}"):
            store.register(domain(), query())
    with new_schema(postgres_url, "%20-csynchronous_commit%3Dremote_apply") as url, Store(url, create=True) as store:
        assert store.register(domain(), query()).fresh


def test_a_domain_registered_between_two_lookups_is_locked(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    look = recorded_rows.domain_row

    with new_schema(postgres_url) as url, Store(url, create=True) as store, Store(url, wait=0.2, create=True) as other:
        store.domains()

        def registered_first(connection: Connection, name: str) -> Any:
            other.register(domain(name, budget=2.0), query(domain=name))
            return look(connection, name)

        monkeypatch.setattr(recorded_rows, "domain_row", registered_first)
        with store._database().write() as connection:
            assert recorded_rows.locked_domain_row(connection, "late")["budget"] == 2.0
            with pytest.raises(StoreBusy):
                other.register(domain("late", budget=2.0), query("another", "late"))
        assert other.register(domain("late", budget=2.0), query("another", "late")).fresh


def test_a_decision_about_another_domain_at_the_same_moment_is_no_damage(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, budgets, deciding = recorded_rows.domain_rows, itertools.count(2), threading.Lock()
    with new_schema(postgres_url) as url, Store(url, create=True) as store, Store(url, wait=5.0) as other:
        store.register(domain(), query(windows=2))

        def and_then_decided(connection: Connection, about: Any = None) -> list[Any]:
            rows = look(connection, about)
            if deciding.acquire(blocking=False):
                try:
                    other.raise_budget("homes", next(budgets))
                finally:
                    deciding.release()
            return rows

        monkeypatch.setattr(recorded_rows, "domain_rows", and_then_decided)
        held = store.register(domain("flats"), query(domain="flats", windows=2))
        assert "joins" in store.join(held, [("joins", None)]).query.roster.series
        assert next(budgets) > 3


@contextmanager
def one_waits(url: str) -> Generator[Callable[[], None]]:
    """Waits until one job waits for a lock of the server."""
    with psycopg.connect(url.replace("postgresql+psycopg", "postgresql"), autocommit=True) as watch:

        def wait() -> None:
            waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
            until = time.monotonic() + 30
            while watch.execute(waiting).fetchone() != (1,):
                assert time.monotonic() < until
                time.sleep(0.01)

        yield wait


def test_jobs_that_register_queries_of_a_new_domain_do_not_wait_for_each_other(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One waits to make a domain that another makes; a third has the domain then, and waits for what the one holds."""
    look, paused, go_on = recorded_rows.domain_rows, threading.Event(), threading.Event()

    def slowly(connection: Connection, about: Any = None) -> list[Any]:
        rows = look(connection, about)
        if threading.current_thread().name.startswith("second") and not paused.is_set():
            paused.set()
            assert go_on.wait(60)
        return rows

    monkeypatch.setattr(recorded_rows, "domain_rows", slowly)
    with new_schema(postgres_url) as url, ExitStack() as open_stores, one_waits(url) as wait_for_a_lock:
        stores = [open_stores.enter_context(Store(url, wait=20.0 + n, create=True)) for n in range(3)]
        stores[0].register(domain("earlier"), query(domain="earlier", share=0.1))
        second = ThreadPoolExecutor(1, thread_name_prefix="second")
        third = ThreadPoolExecutor(1, thread_name_prefix="third")
        with second, third:
            try:
                with stores[0]._database().write() as connection:
                    Registrar(connection).register(domain(), query("first", share=0.1))
                    late = second.submit(stores[1].register, domain(), query("second", share=0.1))
                    wait_for_a_lock()
                assert paused.wait(30)
                last = third.submit(stores[2].register, domain(), query("third", share=0.1))
                wait_for_a_lock()
            finally:
                go_on.set()
            assert late.result(60).fresh
            assert last.result(60).fresh
        assert {one.name for one in stores[0].summary("homes").queries} == {"first", "second", "third"}


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
                    with pytest.raises(StoreStandby):
                        store.publish(held, drafts(held))
                connection.execute("ALTER DATABASE failed_over RESET default_transaction_read_only")
                assert len(store.publish(held, drafts(held))) == len(drafts(held))
        finally:
            connection.execute("DROP DATABASE failed_over WITH (FORCE)")


def test_a_wrong_password_or_database_is_an_error_without_a_secret(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    right = make_url(postgres_url)
    assert right.password is not None
    wrong = right.set(password="not-the-password").render_as_string(hide_password=False)  # noqa: S106 - a wrong one
    nowhere = right.set(database="nowhere").render_as_string(hide_password=False)
    with caplog.at_level(logging.DEBUG):
        for url in (wrong, nowhere):
            with Store(url, create=True) as store, pytest.raises(StoreUnavailable) as caught:
                store.domains()
            shown = f"{caught.value}{caught.value!r}{store!r}{store.address}"
            assert right.password not in shown
            assert "not-the-password" not in shown
    assert right.password not in caplog.text
    assert "not-the-password" not in caplog.text


def test_the_password_is_read_from_the_environment_or_a_file_of_the_worker(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = make_url(postgres_url)
    password = str(right.password)
    (tmp_path / "password").write_text(f"{password}\n", encoding="utf-8")
    monkeypatch.setenv("LEDGER_PASSWORD", password)
    placeholder = right.set(password="${LEDGER_PASSWORD}")  # noqa: S106
    by_file = right._replace(password=None).update_query_dict({"password_file": str(tmp_path / "password")})
    for address in (placeholder, by_file):
        with Store(address.render_as_string(hide_password=False), create=False) as store:
            assert password not in store.address.url
            with pytest.raises(StoreMissing):
                store.domains()


def test_a_backup_of_a_server_ledger_is_refused_in_favour_of_server_tools(postgres_url: str, tmp_path: Path) -> None:
    with Store(postgres_url, create=True) as store, pytest.raises(ExportError, match="pg_dump"):
        store.backup(tmp_path / "copy.db")
