"""The contract of rosters on SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .rosters import RosterContract


class TestSqliteRosters(RosterContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/store/ledger.db"

    @pytest.fixture
    def fresh_urls(self, tmp_path: Path) -> Iterator[str]:
        return (f"sqlite:///{tmp_path}/fresh/ledger-{number}.db" for number in range(10_000))
