"""Every fault that a live job is to survive, and what was found after it, counted.

Run as ``python benchmarks/faults.py [WORDS]``, with words of pytest's own to choose among the tests, or as
``python benchmarks/faults.py --reports XML...`` over what pytest's ``--junitxml`` wrote of them before. Each test of a
fault ends with the same examination of the ledger (``tests/examined.py``); what they found is printed as one table.
Rows "again" left a job once more and were the same in every bit; rows "differing" left a job, or were on record, with
other values than those of record. "Ledger" says whether the account is the one that the core works out from the rows
alone, and "retries" how often a test began a job anew because the runner had shown a known symptom. Faults whose
servers are not here are listed as not run (``.ci/run e2e`` says how to get them).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from functools import reduce
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parent.parent

_spec = spec_from_file_location("examined", ROOT / "tests" / "examined.py")
assert _spec is not None
assert _spec.loader is not None
examined: Any = module_from_spec(_spec)
sys.modules["examined"] = examined
_spec.loader.exec_module(examined)

#: Files of tests. Of a test the beginning of its name is enough.
STREAM = "tests/transforms/sources/test_live_faults.py"
TWICE = "tests/transforms/sources/test_bundles_twice.py"
FLINK = "tests/e2e/test_live_flink.py"
PRISM = "tests/e2e/test_live_prism.py"
SQLITE = "tests/store/test_faults.py"
SQLITE_STORE = "tests/store/test_sqlite_store.py"
POSTGRES_STORE = "tests/e2e/test_postgres_store.py"
POSTGRES = "tests/e2e/test_postgres_faults.py"
POSTGRES_FULL = "tests/e2e/test_postgres_full.py"
PRISM_POSTGRES = "tests/e2e/test_live_postgres.py"
LIVE = "tests/pipelines/live/test_live.py"
FAILED = "tests/pipelines/live/test_failed_jobs.py"
ORPHANS = "tests/e2e/test_orphans.py"
RESTART = "tests/e2e/test_live_restart.py"
GONE = "tests/e2e/test_live_continuity.py"
DAMAGE = "tests/store/test_damage.py"
CONTINUITY = "tests/pipelines/test_continuity.py"
SECOND = "tests/store/test_second_draws.py"
KAFKA = "tests/e2e/test_kafka_live.py"

_REPEATED = "test_a_stream_that_repeats_reorders_or_stalls_gives_every_window_once"
_LATE = "test_readings_delivered_some_windows_late_change_nothing"
_CONTRACT = {
    "shuffled within the lateness, a third twice": "test_files_that_arrive_shuffled_within_the_lateness",
    "late by 0, 1 and 10 windows, damaged files": "test_late_damaged_and_unknown_readings_are_counted",
    "a clock that jumps ten years ahead": "test_a_meter_whose_clock_jumps_ten_years_ahead",
    "silence of weeks": "test_empty_windows_and_silent_series_are_published_once_idle_has_passed",
    "job killed twice, begun from the ledger": "test_a_job_killed_twice_resumes_from_the_ledger_alone",
    "two jobs racing": "test_two_jobs_that_race_publish_every_window_once",
}


@dataclass
class Fault:
    """A line of the table.

    Attributes:
        runner: where the fault strikes.
        name: what it is.
        test: the file, how the name of the test begins, and what its parameters contain.
        found: what its tests found.
        state: ``passed`` or ``failed``; empty if no test ran.
        reason: why none did.
    """

    runner: str
    name: str
    test: tuple[str, str, str]
    found: list[Any] = field(default_factory=list)
    state: str = ""
    reason: str = "no such test was chosen"


def faults() -> list[Fault]:
    """All of them."""
    named = [
        Fault(
            "bundles",
            "every bundle that releases run twice",
            (STREAM, "test_every_bundle_that_releases_is_run_twice", ""),
        ),
        *(
            Fault(
                "bundles",
                f"every bundle of {how} run twice",
                (STREAM, "test_every_bundle_that_encodes_or_counts_is_run_twice", how),
            )
            for how in ("encoding", "counting")
        ),
        Fault("bundles", "every bundle of sums and panes run twice", (TWICE, "test_every_bundle_that_collects", "")),
        Fault(
            "bundles",
            "every bundle of a sink run twice",
            (TWICE, "test_bundles_run_twice_leave_each_row_of_record_once_in_the_sink", ""),
        ),
        Fault(
            "bundles",
            "every call of a reader made twice",
            (TWICE, "test_every_readers_call_repeated_after_a_failure_changes_nothing", ""),
        ),
        *(
            Fault("bundles", f"readings and declarations {how}", (STREAM, _REPEATED, how))
            for how in ("duplicated", "reordered")
        ),
        *(
            Fault("bundles", f"readings late by {n} windows", (STREAM, _LATE, how))
            for n, how in (("no", "at-once"), ("some", "long-after"))
        ),
        Fault("bundles", "stalled watermark", (STREAM, _REPEATED, "stalled")),
        Fault("bundles", "one part silent", (STREAM, "test_a_silent_partition_holds_the_windows_until_it_resumes", "")),
        *(
            Fault(runner, what, (file, test, ""))
            for runner, file in (("Prism", PRISM), ("Flink", FLINK))
            for what, test in _CONTRACT.items()
        ),
        Fault(
            "command",
            "runner, ledger and a part of the job lost in turn",
            (FAILED, "test_a_job_whose_runner_fails_some_times_publishes_everything_once", ""),
        ),
        *(
            Fault(
                "Prism",
                words,
                (GONE, "test_a_ledger_that_vanishes_under_a_live_job", f"[{how}]"),
            )
            for how, words in {
                "moved": "ledger moved, or its volume unmounted",
                "emptied": "ledger emptied",
                "truncated": "ledger cut off in place",
                "another": "ledger replaced by another",
                "older": "ledger replaced by an older copy",
            }.items()
        ),
        *(
            Fault("command", f"ledger restored from a backup, {told}", (CONTINUITY, test, ""))
            for told, test in {
                "memory": "test_an_older_copy_of_the_ledger_is_detected_without_reading_the_sink",
                "sink's ids": "test_sink_releases_missing_in_an_older_copy_are_reported",
                "of any moment": "test_an_older_copy_from_the_middle_of_a_run_is_detected",
            }.items()
        ),
        Fault(
            "command",
            "ledger restored from a backup, a live job's memory",
            (LIVE, "test_an_older_copy_of_the_ledger_stops_the_next_run_after_a_kill", ""),
        ),
        Fault(
            "command",
            "copies of a ledger where two jobs meet",
            (CONTINUITY, "test_diverged_ledger_copies_of_two_jobs_are_detected_at_a_shared_output", ""),
        ),
        *(
            Fault("SQLite", what, (SECOND, test, ""))
            for what, test in {
                "ledger with two names": "test_a_ledger_with_two_names_is_refused",
                "ledger mounted by itself, or over a network": "test_a_file_whose_log_would_be_elsewhere",
                "older copy under a bundle tried again": "test_a_process_detects_an_older_copy",
                "backup put under a log that stayed": "test_a_backup_beside_a_leftover_log_draws_nothing_again",
            }.items()
        ),
        *(
            Fault(
                "Prism, PG",
                f"ledger's schema {how}",
                (PRISM_POSTGRES, "test_a_ledger_dropped_under_a_live_job", f"[{how}]"),
            )
            for how in ("dropped", "made anew", "restored")
        ),
        Fault(
            "command",
            "ledger damaged under the job",
            (FAILED, "test_a_ledger_damaged_during_a_job_stops_it_permanently", ""),
        ),
        Fault(
            "Prism",
            "command killed alone 50 times",
            (ORPHANS, "test_a_command_killed_alone_leaves_no_process", "[50-"),
        ),
        Fault(
            "Flink",
            "command killed alone 50 times",
            (ORPHANS, "test_a_command_killed_alone_leaves_nothing", "[50-"),
        ),
        Fault("Prism", "Prism itself killed twice", (RESTART, "test_a_job_whose_prism_is_killed", "")),
        Fault(
            "Flink",
            "killed -9 thrice; savepoint; ledger alone",
            (FLINK, "test_killed_machines_a_savepoint_and_the_ledger_alone_lose_and_change_no_row", ""),
        ),
        *(
            Fault(
                "Flink",
                f"database {what}",
                (FLINK, "test_a_database_killed_within_a_release_loses_no_row_of_the_running_job", how),
            )
            for what, how in (("killed within a release", "back"), ("away for 30 s", "away"))
        ),
        Fault(
            "Prism",
            "sink's broker away longer than messages wait",
            (KAFKA, "test_a_sink_unavailable_beyond_the_delivery_timeout_loses_no_row", ""),
        ),
    ]
    for engine, file in (("SQLite", SQLITE), ("PostgreSQL", POSTGRES)):
        named += [
            Fault(
                engine,
                "connection cut at every boundary",
                (file, "test_a_connection_cut_at_any_boundary_of_publishing", ""),
            ),
            Fault(engine, "jobs racing, one killed", (file, "test_racing_jobs_of_which_one_is_killed", "")),
        ]
    for engine, file in (("SQLite", SQLITE_STORE), ("PostgreSQL", POSTGRES_STORE)):
        named += [
            Fault(
                engine,
                "every bit of a block flipped",
                (file, "test_every_flipped_bit_of_a_block_is_detected_and_not_published", ""),
            ),
            Fault(
                engine,
                "every row of every table removed once",
                (file, "test_a_removed_or_moved_row_is_detected_and_nothing_is_drawn_or_charged_again", ""),
            ),
            Fault(
                engine,
                "any value of any column changed",
                (file, "test_a_changed_value_of_any_column_is_detected_or_has_no_effect", ""),
            ),
            Fault(
                engine,
                "ledger vanished under an open store",
                (file, "test_no_store_call_recreates_a_known_ledger", "the same store"),
            ),
            Fault(engine, "another ledger under an open store", (file, "test_another_ledger_at_the_address", "")),
            Fault(
                engine,
                "older copy under an open store",
                (file, "test_an_older_copy_is_detected_by_any_process_with_newer_entries", ""),
            ),
        ]
    named += [
        *(
            Fault(
                "SQLite",
                f"{words} moved before a commit",
                (
                    SQLITE_STORE,
                    "test_a_file_moved_before_a_commit_stops_the_job_before_a_row_is_published",
                    f"-{file}]",
                ),
            )
            for file, words in (("ledger.db", "file"), ("ledger.db-wal", "log"))
        ),
        Fault(
            "SQLite",
            "bits flipped anywhere in the file",
            (DAMAGE, "test_a_bit_flipped_anywhere_in_the_file_is_detected_or_has_no_effect", ""),
        ),
        Fault(
            "SQLite",
            "disk full at every size",
            (SQLITE, "test_a_full_disk_at_any_size_of_the_files_stops_the_job_and_loses_nothing", ""),
        ),
        Fault(
            "PostgreSQL",
            "restarted within a transaction",
            (POSTGRES, "test_a_server_restarted_inside_a_transaction", ""),
        ),
        Fault(
            "PostgreSQL",
            "restarted under racing jobs",
            (POSTGRES, "test_a_server_restarted_under_running_jobs_causes_only_a_retry", ""),
        ),
        Fault(
            "PostgreSQL",
            "disk of its tables full at every size",
            (POSTGRES_FULL, "test_a_full_disk_of_the_servers_tables", ""),
        ),
        Fault(
            "PostgreSQL",
            "disk of its log full",
            (POSTGRES_FULL, "test_a_full_disk_of_the_server_log_loses_no_row", ""),
        ),
        *(
            Fault("Prism, PG", what, (PRISM_POSTGRES, test, how))
            for what, (test, how) in {
                "database killed within two releases": ("test_a_server_killed_within_two_releases", ""),
                "database stands still": ("test_a_server_that_stands_still_is_told_and_waited_for", ""),
            }.items()
        ),
    ]
    return named


def run(lines: list[Fault], words: list[str]) -> None:
    """Run the tests and note what they found."""
    names = sorted({line.test[1] for line in lines})
    files = sorted({line.test[0] for line in lines})
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            *(
                str(Path(sys.executable).with_name("pytest")),
                "-q",
                "-n0",
                "-p",
                "no:cacheprovider",
                "-m",
                "",
            ),
            *(f"--junitxml={report}", "-k", " or ".join(names), *files, *words),
        ]
        subprocess.run(command, cwd=ROOT, check=False, stdout=sys.stderr)  # noqa: S603 - the tests' own runner
        if not report.exists():
            sys.exit("the tests could not be run; pytest said why")
        read(lines, report)


def read(lines: list[Fault], report: Path) -> None:
    """Note what tests found that pytest reports."""
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest wrote it
        name, place = str(case.get("name")), str(case.get("classname"))
        for line in lines:
            file, test, parameters = line.test
            if (
                place.startswith(file.removesuffix(".py").replace("/", "."))
                and name.startswith(test)
                and parameters in name
            ):
                note(line, case)


def note(line: Fault, case: ET.Element) -> None:
    """Take what one test found."""
    skipped = case.find("skipped")
    if skipped is not None:
        line.reason = str(skipped.get("message"))
        return
    failed = case.find("failure") is not None or case.find("error") is not None
    line.state = "failed" if failed or line.state == "failed" else "passed"
    line.found += [
        examined.counted(str(one.get("value"))) for one in case.iter("property") if one.get("name") == "fault"
    ]


#: What is printed of a test that examines what it needs by itself.
_UNSEEN = {"passed": " passed", "failed": " failed before it was examined"}


def show(lines: list[Fault]) -> None:
    """Print the table."""
    print(
        f"{'where':11}{'fault':44}{'windows':>9}{'missing':>9}{'rows':>8}{'again':>8}{'differing':>11}{'ledger':>8}"
        f"{'loss':>9}{'budget':>8}{'retries':>9}"
    )
    for line in lines:
        begin = f"{line.runner:11}{line.name:44}"
        if not line.found:
            print(begin + (_UNSEEN[line.state] if line.state else f" not run: {line.reason}"))
            continue
        found = asdict(reduce(lambda one, other: one + other, line.found))
        print(
            begin
            + "{windows:9,}{missing:9,}{rows:8,}{again:8,}{differing:11,}{ledger_equal:8d}{loss:9.4f}"
            "{budget:8.2f}{retries:9}".format(**found)
            + ("" if line.state == "passed" else "  failed")
        )


def main(words: list[str]) -> None:
    """Run and print; it is a failure if a fault was not survived."""
    lines = faults()
    if words[:1] == ["--reports"]:
        for report in words[1:]:
            read(lines, Path(report))
    else:
        run(lines, words)
    show(lines)
    if any(line.state == "failed" for line in lines):
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
