"""Which files of the end-to-end tests begin: those that take longest, so that none of them is left to run alone."""

from __future__ import annotations

#: The longest first; the others follow in the order of their names.
LONGEST = (
    "test_live_flink.py",
    "test_live_watchdog.py",
    "test_live_embedded.py",
    "test_live_prism.py",
    "test_flink_server.py",
    "test_gateway_kafka.py",
    "test_live_postgres.py",
    "test_flink_cancel.py",
    "test_kafka_flink.py",
    "test_kafka_live.py",
    "test_flink_watchdog.py",
    "test_postgres_store.py",
    "test_gateway.py",
    "test_whole_way.py",
    "test_postgres_rosters.py",
    "test_flink_deployment.py",
    "test_live_memory.py",
)


def rank(name: str) -> int:
    """The place of a file in that order."""
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)
