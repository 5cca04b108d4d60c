"""The contract of beliefs that change, on SQLite."""

from __future__ import annotations

from .beliefs import BeliefContract
from .engines import OnSqlite


class TestSqliteBeliefs(OnSqlite, BeliefContract):
    """All of it."""
