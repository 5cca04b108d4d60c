"""Where the ledgers of a contract are: what every contract of the store needs, and SQLite's way of giving it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quiltstream.store import Store, StoreAddress

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

    def vanish(self, url: str) -> None:
        """Take everything of a ledger away, as if it had never been."""
        raise NotImplementedError

    def is_bare(self, url: str) -> bool:
        """Whether nothing of a ledger is at an address."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def nursery(cls) -> Iterator[Nursery]:
        nursery = Nursery()
        yield nursery
        nursery.close()

    @pytest.fixture
    def store(self, url: str) -> Iterator[Store]:
        with Store(url, wait=30, create=True) as store:
            yield store


class OnSqlite(OnLedger):
    """Files of a test's own folder."""

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/store/ledger.db"

    @pytest.fixture
    def fresh_urls(self, tmp_path: Path) -> Iterator[str]:
        return (f"sqlite:///{tmp_path}/fresh/ledger-{number}.db" for number in range(10_000))

    def vanish(self, url: str) -> None:
        for path in _files(url):
            path.unlink()

    def is_bare(self, url: str) -> bool:
        return not list(_files(url))


def _files(url: str) -> Iterator[Path]:
    """The file of a ledger, those beside it, and those that are being made."""
    path = Path(StoreAddress(url).resolve().database or "")
    if path.parent.exists():
        yield from (one for one in path.parent.iterdir() if path.name in one.name)
