"""The faults on SQLite, and what only a file can suffer: a full disk at any moment, and damage anywhere."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from quiltstream.store import Store, StoreAddress, StoreError
from quiltstream.store.engines import explained
from quiltstream.store.errors import StoreAway, StoreConflict, StoreDamaged

from ..depth import STRIDE
from ..examined import Tally
from ..pipelines.jobs import Job, call, job, readings, write_as
from .engines import OnSqlite
from .faults import FaultContract, whole
from .nursery import Nursery
from .samples import domain, drafts, query, seen

PAGE = 4096


class TestSqliteFaults(OnSqlite, FaultContract):
    def sever(self, url: str, connection: Any) -> None:  # noqa: ARG002 - a file has no other end
        raise self.lost()

    def lost(self) -> Exception:
        return sqlite3.OperationalError("disk I/O error")


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


def test_a_full_disk_at_any_size_of_the_files_stops_the_job_and_loses_nothing(
    tmp_path: Path, nursery: Nursery, tally: Tally
) -> None:
    """A limit on the size of a file, a page more each time: the log of SQLite or its file cannot grow any further."""
    path = tmp_path / "ledger.db"
    with Store(f"sqlite:///{path}", create=True) as store:
        store.domains()
    room, stopped = 2 * PAGE, 0
    while True:
        name = f"homes-{room}"
        spec = {"windows": 6}
        command = {"url": f"sqlite:///{path}", "domain": name, "spec": spec, "batch": 2, "order": "backward"}
        (answer,) = nursery.run({**command, "most_bytes": max(PAGE, room)})
        with Store(f"sqlite:///{path}", create=True) as store:
            if "rows" in answer:
                assert stopped > 5 / STRIDE
                assert len(answer["rows"]) == 12
                return
            assert answer["error"] == "StoreAway", answer
            assert "nothing is published that is not on record" in answer["text"]
            stopped += 1
            held = store.register(domain(name), query(domain=name, windows=6))
            tally.take(whole(store, held, answer.get("said", {})))
        room += 2 * STRIDE * PAGE


def test_a_new_ledger_without_room_at_any_size_is_reported_and_leaves_no_file(tmp_path: Path, nursery: Nursery) -> None:
    path = tmp_path / "ledger.db"
    room = 0
    while True:
        (answer,) = nursery.run({"url": f"sqlite:///{path}", "spec": {"windows": 1}, "most_bytes": room})
        if path.exists():
            break
        assert answer["error"] == "StoreAway", (room, answer)
        assert "nothing is published that is not on record" in answer["text"]
        assert list(tmp_path.iterdir()) == []
        room += PAGE if room else 100
    assert room > 5 * PAGE


def test_a_truncated_file_stops_the_job_and_the_restored_one_continues(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    url = f"sqlite:///{path}"
    with Store(url, create=True) as store:
        held = store.register(domain(), query())
        published = seen(store.publish(held, drafts(held, list(held.query.schedule.windows())[:3])))
    data = path.read_bytes()
    cuts = [100, PAGE, *range(2 * PAGE, len(data), PAGE)]
    for cut in cuts:
        path.write_bytes(data[:cut])
        with Store(url, create=True) as store, pytest.raises(StoreError, match="ledger"):
            store.register(domain(), query())
        assert path.stat().st_size <= cut + PAGE
        for beside in tmp_path.glob("ledger.db-*"):
            beside.unlink()
    path.write_bytes(data)
    with Store(url, create=True) as store:
        whole(store, store.register(domain(), query()), published)


def unreadable(folder: Path, **changes: Any) -> Job:
    """A job over a Parquet file with a good footer and no readable row: whoever reads it ends with exit code 5."""
    made = job(folder, source={"parquet": "readings.parquet"}, **changes)
    path = write_as("parquet", folder / "readings.parquet", readings())
    data = bytearray(path.read_bytes())
    data[4 : len(data) // 3] = b"\xff" * (len(data) // 3 - 4)
    path.write_bytes(data)
    return made


FROM_DATA: dict[str, Any] = {"windows": {"size": "1d"}, "roster": None, "group_by": None}


@pytest.mark.parametrize("fault", ["folder", "damaged", "cut", "version", "none"])
def test_a_ledger_that_cannot_be_used_stops_the_job_before_it_reads(tmp_path: Path, fault: str) -> None:
    """Nor does the first pass over the data begin, which gives schedule and roster."""
    made = unreadable(tmp_path / "job", **FROM_DATA, **({"ledger": "sqlite:///file/x.db"} if fault == "folder" else {}))
    (made.folder / "file").touch()
    if fault in ("damaged", "cut", "version"):
        with Store(f"sqlite:///{made.ledger}", create=True) as store:
            held = store.register(domain(), query())
            store.publish(held, drafts(held))
        if fault == "version":
            with closing(sqlite3.connect(made.ledger)) as connection, connection:
                connection.execute("UPDATE quiltstream_heads SET version = 9999")
    if fault == "damaged":
        made.ledger.write_bytes(b"not a database" * 1000)
    elif fault == "cut":
        made.ledger.write_bytes(made.ledger.read_bytes()[: 5 * PAGE])
    files = {path.name for path in made.folder.iterdir()}
    done = call("run", made.settings)
    assert done.code == (5 if fault == "none" else 4), done.err
    if fault != "none":
        assert {path.name for path in made.folder.iterdir()} == files


@pytest.mark.parametrize(
    ("said", "state", "kind"),
    [
        ('server certificate for "a" (and 1 other name) does not match host name "b"', None, StoreAway),
        ("SSL SYSCALL error: EOF detected", None, StoreAway),
        ('FATAL:  sorry, too many clients already\nFATAL:  no pg_hba.conf entry for "h"', None, StoreAway),
        ("FATAL:  the database system is starting up", None, StoreAway),
        ('FATAL:  no pg_hba.conf entry for host "h"', None, StoreConflict),
        ("FATAL:  no such database: db", None, StoreConflict),
        ("a secret", "25006", StoreAway),
        ("a secret", "57P01", StoreAway),
        ("a secret", "53100", StoreAway),
        ("a secret", "28P01", StoreConflict),
        ("a secret", "XX001", StoreDamaged),
    ],
)
def test_an_error_of_a_server_is_waited_for_only_where_it_may_pass(
    said: str, state: str | None, kind: type[StoreError]
) -> None:
    psycopg = pytest.importorskip("psycopg")
    own = type("OperationalError", (psycopg.OperationalError,), {"sqlstate": state})
    found = explained(OperationalError("SELECT 1", None, own(said)), StoreAddress("postgresql://me:hunter2@host/db"))
    assert type(found) is kind
    assert said not in str(found)
    assert ("the job stops" in str(found)) is (kind is not StoreAway)


def test_each_new_connection_to_a_server_has_the_password_that_is_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    psycopg = pytest.importorskip("psycopg")
    given: list[tuple[str | None, str | None]] = []

    def refused(*_: object, **parameters: str) -> None:
        given.append((parameters.get("password"), parameters.get("sslpassword")))
        raise psycopg.OperationalError("connection refused")

    monkeypatch.setattr(psycopg, "connect", refused)
    file = tmp_path / "password"
    key = tmp_path / "key"
    with Store(f"postgresql://me@host/db?password_file={file}&sslkey={key}") as store:
        for text in ("old", "new", None, "newest"):
            if text is None:
                file.unlink()
            else:
                file.write_text(f"{text}\n", encoding="utf-8")
            with pytest.raises(StoreAway):
                store.domains()
    monkeypatch.setenv("PASSWORD", "among the parameters")
    for parameter in ("?password=${PASSWORD}", ""):
        with Store(f"postgresql://me@host/db{parameter}") as store, pytest.raises(StoreAway):
            store.domains()
    assert given[4:] == [("among the parameters", "none"), (None, "none")]
    given = given[:4]
    # while the file is being replaced the one read before is used; a key with a password never asks for it
    assert given == [("old", "none"), ("new", "none"), ("new", "none"), ("newest", "none")]
