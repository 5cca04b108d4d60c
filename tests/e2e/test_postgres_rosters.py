"""The contract of rosters that change, on a real PostgreSQL server."""

from __future__ import annotations

from ..store.rosters import RosterContract
from .postgres_schemas import OnPostgres


class TestPostgresRosters(OnPostgres, RosterContract):
    """All of it."""
