"""The contract of rosters on SQLite."""

from __future__ import annotations

from .engines import OnSqlite
from .rosters import RosterContract


class TestSqliteRosters(OnSqlite, RosterContract):
    """All of it."""
