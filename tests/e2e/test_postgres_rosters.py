"""The contract of rosters that change, on a real PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..store.rosters import RosterContract
from .test_postgres_store import new_schema, new_schemas


class TestPostgresRosters(RosterContract):
    @pytest.fixture
    def url(self, postgres_url: str) -> Iterator[str]:
        with new_schema(postgres_url) as address:
            yield address

    @pytest.fixture
    def fresh_urls(self, postgres_url: str) -> Iterator[Iterator[str]]:
        schemas = new_schemas(postgres_url)
        yield schemas
        schemas.close()
