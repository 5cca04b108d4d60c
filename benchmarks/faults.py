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

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parent.parent

#: Lines without an indent say where a fault strikes, and the file of its tests; the others name a fault, how the name
#: of its test begins, and what its parameters contain.
FAULTS = """\
bundles: transforms/sources/test_live_faults.py
  every bundle that releases run twice | every_bundle_that_releases_is_run_twice
  readings and declarations duplicated | a_stream_that_repeats_reorders_or_stalls | duplicated
  readings and declarations reordered | a_stream_that_repeats_reorders_or_stalls | reordered
  readings late by no windows | readings_delivered_some_windows_late_change_nothing | at-once
  readings late by some windows | readings_delivered_some_windows_late_change_nothing | long-after
  stalled watermark | a_stream_that_repeats_reorders_or_stalls | stalled
  one part silent | a_silent_partition_holds_the_windows_until_it_resumes
bundles: transforms/sources/test_bundles_twice.py
  every bundle of sums and panes run twice | every_bundle_of_a_step_is_run_twice | collecting
  every bundle of encoding run twice | every_bundle_of_a_step_is_run_twice | encoding
  every bundle of counting run twice | every_bundle_of_a_step_is_run_twice | counting
  every bundle of a sink run twice | bundles_run_twice_leave_each_row_of_record_once_in_the_sink
  every call of a reader made twice | every_readers_call_repeated_after_a_failure_changes_nothing
Prism: e2e/test_live_prism.py, Flink: e2e/test_live_flink.py
  shuffled within the lateness, a third twice | files_that_arrive_shuffled_within_the_lateness
  late by 0, 1 and 10 windows, damaged files | late_damaged_and_unknown_readings_are_counted
  a clock that jumps ten years ahead | a_meter_whose_clock_jumps_ten_years_ahead
  silence of weeks | empty_windows_and_silent_series_are_published_once_idle_has_passed
  job killed twice, begun from the ledger | a_job_killed_twice_resumes_from_the_ledger_alone
  two jobs racing | two_jobs_that_race_publish_every_window_once
Flink: e2e/test_live_flink.py
  killed -9 thrice; then the ledger alone | killed_machines_and_the_ledger_alone
  database killed within a release | a_database_killed_within_a_release_loses_no_row | back
  database away for 30 s | a_database_killed_within_a_release_loses_no_row | away
Prism, PG: e2e/test_live_postgres.py
  database killed within two releases | a_server_killed_within_two_releases
  database stands still | a_server_that_stands_still_is_told_and_waited_for
  ledger's schema dropped | a_ledger_dropped_under_a_live_job | [dropped]
  ledger's schema made anew | a_ledger_dropped_under_a_live_job | [made anew]
  ledger's schema restored | a_ledger_dropped_under_a_live_job | [restored]
Prism: e2e/test_live_continuity.py
  ledger moved, or its volume unmounted | a_ledger_that_vanishes_under_a_live_job | [moved]
  ledger emptied | a_ledger_that_vanishes_under_a_live_job | [emptied]
  ledger cut off in place | a_ledger_that_vanishes_under_a_live_job | [truncated]
  ledger replaced by another | a_ledger_that_vanishes_under_a_live_job | [another]
  ledger replaced by an older copy | a_ledger_that_vanishes_under_a_live_job | [older]
Prism: e2e/test_live_restart.py
  Prism itself killed twice | a_job_whose_prism_is_killed
Prism: e2e/test_orphans.py
  command killed alone 50 times | a_command_killed_alone_leaves_no_process | [50-
Flink: e2e/test_orphans.py
  command killed alone 50 times | a_command_killed_alone_leaves_nothing | [50-
Prism: e2e/test_kafka_live.py
  sink's broker away longer than messages wait | a_sink_unavailable_beyond_the_delivery_timeout
Kafka, Flink: e2e/test_whole_way.py
  gateway, TaskManager and Kafka killed | readings_sent_by_mqtt_become_correct_rows_despite_kills
random: e2e/test_random_actions.py
  ten actions on Prism, four times | rows_after_random_actions_on_prism
  ten actions on Flink, twice | rows_after_random_actions_on_flink
command: pipelines/live/test_failed_jobs.py
  runner, ledger and a part of the job lost | a_job_whose_runner_fails_some_times_publishes_everything_once
  ledger damaged under the job | a_ledger_damaged_during_a_job_stops_it_permanently
command: pipelines/test_continuity.py
  ledger from a backup, memory | an_older_copy_of_the_ledger_is_detected_without_reading_the_sink
  ledger from a backup, sink's ids | sink_releases_missing_in_an_older_copy_are_reported
  copies of a ledger where two jobs meet | diverged_ledger_copies_of_two_jobs_are_detected_at_a_shared_output
command: pipelines/live/test_live.py
  ledger from a backup, a live job's memory | an_older_copy_of_the_ledger_stops_the_next_run_after_a_kill
SQLite: store/test_second_draws.py
  ledger with two names | a_ledger_with_two_names_is_refused
  ledger mounted by itself, or over a network | a_file_whose_log_would_be_elsewhere
  older copy under a bundle tried again | a_process_detects_an_older_copy
  backup put under a log that stayed | a_backup_beside_a_leftover_log_draws_nothing_again
SQLite: store/test_faults.py, PostgreSQL: e2e/test_postgres_faults.py
  connection cut at every boundary | a_connection_cut_at_any_boundary_of_publishing
  jobs racing, one killed | racing_jobs_of_which_one_is_killed
SQLite: store/test_sqlite_store.py, PostgreSQL: e2e/test_postgres_store.py
  every bit of a block flipped | every_flipped_bit_of_a_block_is_detected_and_not_published
  every row of every table removed once | a_removed_or_moved_row_is_detected
  any value of any column changed | a_changed_value_of_any_column_is_detected_or_has_no_effect
  ledger vanished under an open store | no_store_call_recreates_a_known_ledger | the same store
  another ledger under an open store | another_ledger_at_the_address
  older copy under an open store | an_older_copy_is_detected_by_any_process_with_newer_entries
SQLite: store/test_sqlite_store.py
  file moved before a commit | a_file_moved_before_a_commit_stops_the_job | -ledger.db]
  log moved before a commit | a_file_moved_before_a_commit_stops_the_job | -ledger.db-wal]
SQLite: store/test_damage.py
  bits flipped anywhere in the file | a_bit_flipped_anywhere_in_the_file_is_detected_or_has_no_effect
SQLite: store/test_faults.py
  disk full at every size | a_full_disk_at_any_size_of_the_files_stops_the_job_and_loses_nothing
PostgreSQL: e2e/test_postgres_faults.py
  restarted within a transaction | a_server_restarted_inside_a_transaction
  restarted under racing jobs | a_server_restarted_under_running_jobs_causes_only_a_retry
PostgreSQL: e2e/test_postgres_full.py
  disk of its tables full at every size | a_full_disk_of_the_servers_tables
  disk of its log full | a_full_disk_of_the_server_log_loses_no_row
"""

#: The table adds the counts of several examinations up, but for these.
OTHER = {"loss": max, "budget": max, "ledger_equal": min}


@dataclass
class Fault:
    """A line of the table: where it strikes, what it is, its test, and what was found."""

    where: str
    name: str
    file: str  # below ``tests``
    test: str  # how the name of the test begins
    parameters: str  # what its parameters contain
    found: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    state: str = ""  # ``passed`` or ``failed``; empty if no test ran
    reason: str = "no such test was chosen"  # why none did

    def is_of(self, place: str, name: str) -> bool:
        """Whether a test is one of this fault's, by its class's name and its own, as pytest reports them."""
        mine = f"tests.{self.file.removesuffix('.py').replace('/', '.')}"
        return place.startswith(mine) and name.startswith(self.test) and self.parameters in name


def faults() -> list[Fault]:
    """All of them.

    Raises:
        ValueError: a file or a test is not there.
    """
    found, places = list[Fault](), list[tuple[str, str]]()
    for line in FAULTS.splitlines():
        if line.startswith(" "):
            name, test, *parameters = (part.strip() for part in line.split("|"))
            found += [Fault(where, name, file, f"test_{test}", "".join(parameters)) for where, file in places]
        else:
            places = re.findall(r"([A-Z]?[\w, ]+?): (\S+?\.py)(?:, )?", line)
    # a test of a class may be inherited from another file
    defined = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("*.py"))
    gone = [one.test for one in found if f"def {one.test}" not in defined]
    gone += [one.file for one in found if not (ROOT / "tests" / one.file).is_file()]
    if gone:
        raise ValueError(f"there are no tests {', '.join(sorted(set(gone)))}")
    return found


def run(lines: list[Fault], words: list[str]) -> None:
    """Run the tests and note what they found."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [str(Path(sys.executable).with_name("pytest")), "-q", "-n0", "-p", "no:cacheprovider", "-m", ""]
        command += [f"--junitxml={report}", "-k", " or ".join(sorted({line.test for line in lines}))]
        command += [*sorted({f"tests/{line.file}" for line in lines}), *words]
        subprocess.run(command, cwd=ROOT, check=False, stdout=sys.stderr)  # noqa: S603 - the tests' own runner
        if not report.exists():
            sys.exit("the tests could not be run; pytest said why")
        read(lines, report)


def read(lines: list[Fault], report: Path) -> None:
    """Note what tests found that pytest reports."""
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest wrote it
        for line in lines:
            if not line.is_of(str(case.get("classname")), str(case.get("name"))):
                continue
            if (skipped := case.find("skipped")) is not None:
                line.reason = str(skipped.get("message"))
                continue
            failed = case.find("failure") is not None or case.find("error") is not None
            line.state = "failed" if failed or line.state == "failed" else "passed"
            counts = [str(one.get("value")) for one in case.iter("property") if one.get("name") == "fault"]
            line.found += map(json.loads, counts)


def show(lines: list[Fault]) -> None:
    """Print the table."""
    print(
        f"{'where':13}{'fault':44}{'windows':>9}{'missing':>9}{'rows':>8}{'again':>8}{'differing':>11}{'ledger':>8}"
        f"{'loss':>9}{'budget':>8}{'retries':>9}"
    )
    for line in lines:
        begin = f"{line.where:13}{line.name:44}"
        if not line.state:
            print(f"{begin} not run: {line.reason}")
        elif not line.found:  # of a test that examines what it needs by itself
            print(begin + (" passed" if line.state == "passed" else " failed before it was examined"))
        else:
            found = {name: OTHER.get(name, sum)(one[name] for one in line.found) for name in line.found[0]}
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
