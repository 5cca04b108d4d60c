"""Which end-to-end tests run on a push, and which files begin: the longest, so that none is left to run alone."""

from __future__ import annotations

#: The longest first; the others follow in the order of their names.
LONGEST = (
    "test_live_flink.py",
    "test_random_actions.py",
    "test_live_prism.py",
    "test_alerts_flink.py",
    "test_alerts.py",
    "test_live_postgres.py",
    "test_whole_way.py",
    "test_flink_deployment.py",
    "test_flink_cancel.py",
    "test_kafka_live.py",
    "test_live_memory.py",
    "test_orphans.py",
    "test_postgres_faults.py",
)

#: What a push runs, in a minute and a half: kills of the gateway, the whole way from MQTT by Kafka and Flink to Kafka
#: with kills, a job on Prism that is killed and resumes, faults of the ledger's server, TLS, and what a killed command
#: leaves behind. The rest runs at night.
SMOKE = (
    "test_gateway.py::test_a_gateway_killed_and_a_broker_restarted_under_load_lose_nothing[3-1-6000]",
    "test_kafka_tls.py::test_readings_and_rows_are_transferred_by_tls_without_leaking_the_password",
    "test_live_prism.py::TestPrism::test_a_job_killed_twice_resumes_from_the_ledger_alone",
    "test_orphans.py::test_a_command_killed_alone_leaves_no_process_on_prism[3-1]",
    "test_postgres_faults.py::test_a_connection_that_is_refused_is_waited_for_only_where_that_may_pass",
    "test_postgres_faults.py::test_a_server_restarted_inside_a_transaction_undoes_it_and_a_retry_completes",
    "test_postgres_store.py::test_jobs_that_register_queries_of_new_and_known_domains_at_once_all_succeed",
    "test_whole_way.py",
)


def is_smoke(name: str) -> bool:
    """Whether a test runs on a push, by its name behind the folder."""
    return any(name == one or name.startswith((f"{one}::", f"{one}[")) for one in SMOKE)


def rank(name: str) -> int:
    """The place of a file in that order."""
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)
