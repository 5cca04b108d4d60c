"""The contract of beliefs that change, on a real PostgreSQL server."""

from __future__ import annotations

from ..store.beliefs import BeliefContract
from .postgres_schemas import OnPostgres


class TestPostgresBeliefs(OnPostgres, BeliefContract):
    """All of it."""
