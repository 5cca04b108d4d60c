"""Where the ledgers of a contract are: what every contract of the store needs, and SQLite's way of giving it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quiltstream.store import Store

from .nursery import Nursery


class OnLedger:
    """A contract inherits it, and the tests of an engine give the fixtures ``url`` and ``fresh_urls``."""

    @pytest.fixture
    def url(self) -> str:
        """The address of an empty place for a ledger, another one each time."""
        raise NotImplementedError

    @pytest.fixture
    def fresh_urls(self) -> Iterator[str]:
        """Addresses of any number of empty places."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def nursery(cls) -> Iterator[Nursery]:
        nursery = Nursery()
        yield nursery
        nursery.close()

    @pytest.fixture
    def store(self, url: str) -> Iterator[Store]:
        with Store(url, wait=30) as store:
            yield store


class OnSqlite(OnLedger):
    """Files of a test's own folder."""

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/store/ledger.db"

    @pytest.fixture
    def fresh_urls(self, tmp_path: Path) -> Iterator[str]:
        return (f"sqlite:///{tmp_path}/fresh/ledger-{number}.db" for number in range(10_000))
