"""The contract of live jobs on an embedded Flink, which each job brings with it in the job server that Beam starts.

The job's steps run in the process that submits it, and its Flink dies with it: whatever survives is in the ledger. What
says nothing more of such a Flink than a cluster says is left to the cluster.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quiltstream.store import Store

from ..examined import Tally
from .flink_bench import EmbeddedBench
from .live_bench import DAY, GROUPS, Bench
from .live_contract import LiveContract, begun_again


class TestEmbeddedFlink(LiveContract):
    # asked with counters, it told none
    counts_readings = False
    # of the same kind as what stays, and asked of a cluster, which has the same translation of the graph
    test_a_meter_whose_clock_jumps_ten_years_ahead_closes_no_window_of_today = None  # pyright: ignore[reportAssignmentType]
    test_empty_windows_and_silent_series_are_published_once_idle_has_passed = None  # pyright: ignore[reportAssignmentType]
    test_a_shard_silent_for_weeks_holds_up_no_window_and_may_return = None  # pyright: ignore[reportAssignmentType]
    test_a_series_that_begins_on_the_third_day_joins_at_its_first_reading = None  # pyright: ignore[reportAssignmentType]
    test_one_changed_cell_changes_only_the_noisy_counts = None  # pyright: ignore[reportAssignmentType]
    # the ledger's and not the runner's
    test_a_new_roster_holds_from_the_first_unpublished_window_on = None  # pyright: ignore[reportAssignmentType]
    test_two_jobs_that_race_publish_every_window_once = None  # pyright: ignore[reportAssignmentType]
    test_a_budget_that_ends_in_the_middle_refuses_the_rest_and_exits_with_three = None  # pyright: ignore[reportAssignmentType]
    test_a_ledger_that_cannot_be_written_stops_the_job_before_it_reads = None  # pyright: ignore[reportAssignmentType]

    def new_bench(self, folder: Path, request: pytest.FixtureRequest) -> Bench:
        return EmbeddedBench(folder, request.getfixturevalue("flink_programs"), request.getfixturevalue("postgres_url"))

    # of each of these, one form

    @begun_again
    def test_files_that_arrive_shuffled_within_the_lateness_and_twice_give_every_window(
        self, bench: Bench, tally: Tally
    ) -> None:
        shuffled: Any = LiveContract.test_files_that_arrive_shuffled_within_the_lateness_and_twice_give_every_window
        shuffled(self, bench, tally, {"group_by": "group"}, GROUPS, DAY, DAY)

    @begun_again
    def test_standard_input_is_read_as_it_arrives_and_its_end_completes_past_windows(self, bench: Bench) -> None:
        given: Any = LiveContract.test_standard_input_is_read_as_it_arrives_and_its_end_completes_past_windows
        given(self, bench, "jsonl")

    def test_a_ledger_in_a_file_is_refused_before_anything_is_charged(self, bench: Bench) -> None:
        """Its name is that of a runner which may spread over machines; where it runs is an option of Flink's own."""
        address = f"sqlite:///{bench.folder / 'ledger.db'}"
        bench.settings(ledger=address)
        job = bench.run()
        assert job.process.returncode == 2
        assert "the ledger sqlite:///" in job.err.read_text(encoding="utf-8")
        with Store(address, create=False) as store:
            assert list(store.entries("homes")) == []
