"""Which end-to-end tests run on a push, and which files begin: the longest, so that none is left to run alone."""

from __future__ import annotations

#: The longest first; the others follow in the order of their names.
LONGEST = (
    "test_live_flink.py",
    "test_random_actions.py",
    "test_random_actions_flink.py",
    "test_live_watchdog.py",
    "test_live_embedded.py",
    "test_live_prism.py",
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

#: What a push runs: the whole way from MQTT by Kafka and Flink to Kafka with kills, jobs on Prism and Flink, the ledger
#: on a server and its faults, TLS, alerts, and what a killed command leaves behind. The rest runs at night.
SMOKE = (
    "test_gateway_kafka.py",
    "test_kafka_live.py::test_a_restarted_job_continues_the_record_and_sends_missing_rows",
    "test_kafka_tls.py",
    "test_live_continuity.py",
    "test_live_flink.py::TestFlink::test_files_that_arrive_shuffled_within_the_lateness_and_twice_give_every_window[groups]",
    "test_live_flink.py::TestFlink::test_two_jobs_that_race_publish_every_window_once",
    "test_live_prism.py::TestPrism::test_a_job_killed_twice_resumes_from_the_ledger_alone",
    "test_live_prism.py::TestPrism::test_ctrl_c_ends_a_job_within_seconds_and_the_next_run_resumes",
    "test_live_prism.py::TestPrism::test_files_that_arrive_shuffled_within_the_lateness_and_twice_give_every_window",
    "test_orphans.py",
    "test_panes_prism.py",
    "test_postgres_faults.py",
    "test_postgres_store.py",
    "test_prometheus.py",
    "test_random_actions.py::test_results_after_a_short_run_of_actions_equal_plain_counting",
    "test_whole_way.py",
)


def is_smoke(name: str) -> bool:
    """Whether a test runs on a push, by its name behind the folder."""
    return any(name == one or name.startswith((f"{one}::", f"{one}[")) for one in SMOKE)


def rank(name: str) -> int:
    """The place of a file in that order."""
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)
