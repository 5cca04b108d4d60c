"""The address of a ledger travels unresolved, shows no secret, and refuses what cannot hold a ledger."""

from __future__ import annotations

import copy
import importlib.util
import pickle
from pathlib import Path

import pytest

from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.secrets import SecretError
from quiltstream.store import StoreAddress


def test_a_password_is_never_shown() -> None:
    urls = [
        "postgresql://me:hunter2@host/db",
        "postgresql+psycopg://me@host/db?password=hunter2",
        "postgresql+psycopg://me@host/db?sslpassword=hunter2&application_name=x",
    ]
    for url in urls:
        address = StoreAddress(url)
        assert "hunter2" not in repr(address) + str(address) + f"{address}" + repr([address])
        assert "***" in str(address) or "HIDDEN" in str(address)
        assert address.resolve().render_as_string(hide_password=False).count("hunter2") == 1


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql://me:hunter2@host:port/db", "cannot be read"),
        ("", "cannot be read"),
        ("mysql://me:hunter2@host/db", r"use sqlite:///ledger\.db or postgresql\+psycopg"),
        ("postgresql+asyncpg://host/db", r"use sqlite:///ledger\.db or postgresql\+psycopg"),
        ("sqlite:///:memory:", "sqlite:///"),
        ("sqlite:///file:x.db?uri=true", "sqlite:///"),
        ("sqlite://host/x.db", "without a host"),
        ("sqlite:///x.db?mode=ro", "without parameters"),
        ("postgresql://host", "names no database"),
    ],
)
def test_a_url_that_is_no_ledger_is_refused_without_its_password(url: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words) as caught:
        StoreAddress(url)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_a_relative_path_is_made_absolute_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    address = StoreAddress("sqlite:///out/ledger.db")
    monkeypatch.chdir(tmp_path.parent)
    assert address.resolve().database == str(tmp_path / "out" / "ledger.db")
    assert StoreAddress(address.url) == address


def test_address_parts_are_read_from_the_environment_of_the_connecting_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = StoreAddress("postgresql://${DB_USER}:${DB_PASSWORD}@${DB_HOST}:6432/${DB_NAME}?sslrootcert=${DB_CERT}")
    travelled = pickle.loads(pickle.dumps(address))
    assert travelled == address == copy.deepcopy(address)
    assert hash(travelled) == hash(address)
    awkward = "p@ss/w:rd%20?"
    values = {"USER": "me", "PASSWORD": awkward, "HOST": "db", "NAME": "quilt", "CERT": "/c"}
    for name, value in values.items():
        monkeypatch.setenv(f"DB_{name}", value)
    for name, value in values.items():
        monkeypatch.delenv(f"DB_{name}")
        with pytest.raises(SecretError, match=f"DB_{name} is not set"):
            travelled.resolve()
        monkeypatch.setenv(f"DB_{name}", value)
    for name in ("PASSWORD", "CERT"):
        monkeypatch.delenv(f"DB_{name}")
    with pytest.raises(SecretError, match="DB_PASSWORD and DB_CERT"):
        travelled.resolve()
    for name in ("PASSWORD", "CERT"):
        monkeypatch.setenv(f"DB_{name}", values[name])
    found = travelled.resolve()
    assert (found.username, found.password, found.host, found.port, found.database) == (
        "me",
        awkward,
        "db",
        6432,
        "quilt",
    )
    assert found.query == {"sslrootcert": "/c"}
    assert awkward not in repr(travelled) + travelled.url
    monkeypatch.setenv("LEDGERS", str(tmp_path))
    assert StoreAddress("sqlite:///${LEDGERS}/x.db").resolve().database == f"{tmp_path}/x.db"


def test_the_password_is_read_from_the_first_line_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "password"
    address = StoreAddress(f"postgresql://me@host/db?password_file={path}")
    with pytest.raises(SecretError, match="No such file or directory"):
        address.resolve()
    path.write_text("", encoding="utf-8")
    with pytest.raises(SecretError, match="no first line"):
        address.resolve()
    path.write_text("hunter2\nsomething else\n", encoding="utf-8")
    assert address.resolve().password == "hunter2"  # noqa: S105 - the test's own
    assert "password_file" not in address.resolve().query
    with pytest.raises(SettingsError, match="once"):
        StoreAddress(f"postgresql://me:other@host/db?password_file={path}").resolve()


def test_a_missing_driver_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    StoreAddress("sqlite:///x.db").check_driver()
    with pytest.raises(SettingsError, match=r"pip install 'quiltstream\[postgres\]'"):
        StoreAddress("postgresql://host/db").check_driver()
