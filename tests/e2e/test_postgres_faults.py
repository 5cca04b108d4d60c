"""The faults on a real PostgreSQL server: its connections cut, and the server restarted under a job."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql

from quiltstream.store import NoisyBlock, Store
from quiltstream.store.errors import StoreAway, StoreConflict, StoreError
from quiltstream.store.specs import BlockToPublish

from ..examined import Tally
from ..store.faults import FaultContract, whole
from ..store.nursery import Nursery
from ..store.samples import block, domain, drafts, query, seen
from .postgres import PostgresServer
from .postgres_schemas import OnPostgres, execute, new_schema


def restart(server: PostgresServer, stop: Callable[[], None]) -> None:
    """Stop a server in one of the ways there are, and start it."""
    stop()
    server.start()


class TestPostgresFaults(OnPostgres, FaultContract):
    def sever(self, url: str, connection: Any) -> None:
        """End the server's process for this connection, as an operator or a lost network would."""
        pid = connection.info.backend_pid
        with psycopg.connect(url.replace("postgresql+psycopg", "postgresql"), autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))

    def lost(self) -> Exception:
        return psycopg.OperationalError("the connection is lost")


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_server_restarted_inside_a_transaction_undoes_it_and_a_retry_completes(
    postgres_server: PostgresServer, postgres_url: str, how: str, tally: Tally
) -> None:
    """In the middle of publishing: the windows are charged and a block is drawn when the server goes."""
    with new_schema(postgres_url) as url, Store(url, wait=30, create=True) as store:
        held = store.register(domain(), query())
        windows = list(held.query.schedule.windows())
        published = seen(store.publish(held, drafts(held, windows[:2])))

        def drawn() -> NoisyBlock:
            restart(postgres_server, getattr(postgres_server, how))
            return block(held, 0)

        with pytest.raises(StoreAway, match="nothing is published that is not on record"):
            store.publish(held, [*drafts(held, windows[2:4]), BlockToPublish(windows[4], 0, drawn)])
        assert len(store.entries()) == 2
        tally.take(whole(store, held, published))


def test_a_server_restarted_under_running_jobs_causes_only_a_retry(
    postgres_server: PostgresServer, postgres_url: str, tally: Tally
) -> None:
    """Two jobs over one query in two processes; the server goes in their middle, once in order and once by a kill."""
    nursery = Nursery()
    try:
        with new_schema(postgres_url) as url:
            with Store(url, wait=30, create=True) as store:
                held = store.register(domain(), query(windows=120))
            job = {"url": url, "batch": 1, "spec": {"windows": 120}}
            answers: list[dict[str, Any]] = []

            def work() -> None:
                answers.extend(nursery.run({**job, "order": "random"}, {**job, "order": "backward"}))

            for at, stop in ((5, postgres_server.stop), (60, postgres_server.kill)):
                jobs = threading.Thread(target=work)
                jobs.start()
                with Store(url, wait=30, create=True) as store:
                    deadline = time.monotonic() + 60
                    while 240 - len(list(store.missing(held))) < at:
                        assert time.monotonic() < deadline
                        time.sleep(0.01)
                restart(postgres_server, stop)
                jobs.join(timeout=60)
                assert not jobs.is_alive()
            errors = {answer["error"] for answer in answers if "error" in answer}
            assert errors
            assert errors <= {"StoreAway"}
            with Store(url, wait=30, create=True) as store:
                held = store.register(domain(), query(windows=120))
                published = [answer["rows"] for answer in answers if "rows" in answer]
                tally.take(whole(store, held, published[0] if published else {}))
                assert all(rows == seen(store.records("homes", "weekly")) for rows in published)
    finally:
        nursery.close()


def test_a_transaction_that_hangs_keeps_the_others_waiting_and_no_longer(postgres_url: str) -> None:
    with new_schema(postgres_url) as url, Store(url, wait=30, create=True) as store:
        held = store.register(domain(), query())
        with psycopg.connect(url.replace("postgresql+psycopg", "postgresql")) as other:
            other.execute("SELECT * FROM quiltstream_heads FOR UPDATE")
            with Store(url, wait=0.2, create=True) as waiting, pytest.raises(StoreAway):
                waiting.publish(held, drafts(held))
        whole(store, held, {})


@pytest.fixture
def role(postgres_url: str) -> Iterator[str]:
    """The name of a new role and of a new database, to which that role alone may not connect."""
    name = f"r{secrets.token_hex(8)}"
    for statement in (
        "create role {} password 'secret'",
        "create database {}",
        "revoke connect on database {} from public",
    ):
        execute(postgres_url, sql.SQL(statement).format(sql.Identifier(name)))
    yield name
    for statement in ("drop database {}", "drop role {}"):
        execute(postgres_url, sql.SQL(statement).format(sql.Identifier(name)))


@pytest.mark.parametrize(
    ("may", "changed", "kind"),
    [
        ("nologin", {}, StoreConflict),
        ("login", {"password": None}, StoreConflict),
        ("login", {"database": "{}"}, StoreConflict),
        ("login connection limit 0", {}, StoreAway),
        ("login", {"sslmode": "verfy-full"}, StoreConflict),
        ("login", {"foo": "bar"}, StoreConflict),
    ],
)
def test_a_connection_that_is_refused_is_waited_for_only_where_that_may_pass(
    postgres_url: str, role: str, may: str, changed: dict[str, str | None], kind: type[StoreError]
) -> None:
    with psycopg.connect(postgres_url.replace("postgresql+psycopg", "postgresql"), autocommit=True) as connection:
        connection.execute(f"alter role {role} {may}".encode())
    parts: dict[str, Any] = {"username": role, "password": "secret"}
    asked = dict[str, str]()
    for name, value in changed.items():
        if name in ("password", "database"):
            parts[name] = None if value is None else value.format(role)
        else:
            asked[name] = value or ""
    url = sa.make_url(postgres_url).set(**parts).update_query_dict(asked)
    with pytest.raises(StoreError) as error:
        Store(url.render_as_string(hide_password=False)).domains()
    assert type(error.value) is kind
    assert ("the job stops" in str(error.value)) is (kind is not StoreAway)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("digits", [0, -15])
def test_a_ledger_is_whole_at_a_server_that_rounds_numbers(postgres_url: str, digits: int) -> None:
    with new_schema(postgres_url) as url:
        with Store(url, create=True) as store:
            store.publish(held := store.register(domain(), query()), drafts(held))
        with Store(f"{url}%20-cextra_float_digits%3D{digits}") as store:
            store.verify()
            assert seen(store.publish(held, drafts(held)))


@pytest.mark.parametrize("undone", [True, False])
def test_a_session_that_may_only_read_is_found_before_work_starts(postgres_url: str, undone: bool) -> None:
    with new_schema(postgres_url) as url:
        with Store(url, create=True) as store:
            store.register(domain(), query())
            store.check_writable(undone=undone)
        with Store(f"{url}%20-cdefault_transaction_read_only%3Don") as store, pytest.raises(StoreAway):
            store.check_writable(undone=undone)


def test_a_second_ledger_is_made_only_in_a_schema_that_the_address_names(postgres_url: str, role: str) -> None:
    """The search path changes at the server, where neither the settings nor the address show it."""
    url = postgres_url.replace("/quiltstream?", f"/{role}?")
    with Store(url, create=True) as store:
        first = store.store_id
    set_path = "alter database {} set search_path = 'other', '$user'"
    for statement in ("create schema other", set_path.format(role)):
        execute(url, sql.SQL(statement))  # pyright: ignore[reportArgumentType] - of this test's own
    for given in ("", "&options=-csearch_path%3Dother,public2", "&options=-cextra_float_digits%3D3"):
        with Store(f"{url}{given}", create=True) as store:
            for call in (store.domains, store.check_writable):
                with pytest.raises(StoreConflict, match=r"'other'.* has one in 'public'.*search_path%3DNAME"):
                    call()
    with Store(f"{url}&options=-csearch_path%3Dpublic", create=True) as store:
        assert store.store_id == first
    with Store(f"{url}&options=-csearch_path%3Dother", create=True) as store:
        store.check_writable()
        assert store.domains() == ()
        assert store.store_id != first
    execute(url, sql.SQL("alter database {} set search_path = nowhere").format(sql.Identifier(role)))
    with (
        Store(url, create=True) as store,
        pytest.raises(StoreConflict, match="no schema of this user's search_path"),
    ):
        store.domains()


@pytest.mark.parametrize(
    ("right", "what"),
    [
        ("select", "quiltstream_log"),
        ("insert", "quiltstream_log"),
        ("update", "quiltstream_heads"),
    ],
)
def test_a_missing_right_is_found_before_work_starts(postgres_url: str, role: str, right: str, what: str) -> None:
    url = postgres_url.replace("/quiltstream?", f"/{role}?")
    with Store(url, create=True) as store:
        store.register(domain(), query())
    for statement in (
        "grant connect on database {0} to {0}",
        "alter role {} login",
        "grant select, insert, update, delete on all tables in schema public to {}",
    ):
        execute(url, sql.SQL(statement).format(sql.Identifier(role)))
    own = sa.make_url(url).set(username=role, password="secret").render_as_string(hide_password=False)  # noqa: S106
    try:
        with Store(own) as store:
            store.check_writable()
            execute(url, sql.SQL(f"revoke {right} on {what} from {{}}").format(sql.Identifier(role)))  # pyright: ignore[reportArgumentType]
            with pytest.raises(StoreConflict, match=f"(?i)no right to {right} on {what};"):
                store.check_writable()
    finally:
        execute(url, sql.SQL("drop owned by {}").format(sql.Identifier(role)))
