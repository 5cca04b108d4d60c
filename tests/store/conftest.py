"""A ledger in a file, for tests that ask nothing of other stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quiltstream.store import Store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store(f"sqlite:///{path}", create=True) as store:
        yield store
