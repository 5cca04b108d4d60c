"""Which files of the end-to-end tests begin: those that take longest, so that none of them is left to run alone."""

from __future__ import annotations

#: The longest first; the others follow in the order of their names.
LONGEST = (
    "test_live_flink.py",
    "test_postgres_store.py",
    "test_flink_server.py",
    "test_live_prism.py",
    "test_live_embedded.py",
    "test_live_watchdog.py",
    "test_kafka_live.py",
    "test_whole_way.py",
    "test_postgres_rosters.py",
    "test_postgres_beliefs.py",
    "test_live_memory.py",
    "test_live_postgres.py",
    "test_kafka_flink.py",
    "test_flink_deployment.py",
)


def rank(name: str) -> int:
    """The place of a file in that order."""
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)
