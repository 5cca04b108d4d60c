"""What a push leaves out of the tests, in one place; nightly everything runs (``tiers.py`` says which it is).

A test that is asked for by its whole name (``file.py::test_name``) or by a word (``-k``) runs on a push, too.
"""

from __future__ import annotations

_DEPLOY = ".ci/run deploy"
_DOCS = "tests/house/test_docs.py::test_the_examples_of_a_page_run_as_documented"
_ACCOUNTING = "tests/privacy/accounting"
_COMMANDS = "tests/pipelines/commands"
_PLACES = "tests/pipelines/connectors"
_LIVE = "tests/transforms/sources"
_TRANSFORMS = "tests/transforms"
_SAMPLING = "tests/privacy/mechanisms/test_sampling.py"
_SAMPLED = "tests/transforms/aggregate/test_sampled_loss.py"
_60_HOMES = "tests/transforms/test_histograms.py::test_histograms_of_60_homes_equal_a_plain_computation_in_any_order"

#: Tests that run nightly alone -> the test of a push that would notice the same mistake, if less of it, or the step of
#: a push that runs the test itself.
NIGHTLY: dict[str, str] = {
    "tests/deploy/test_flink_images.py::test_a_pool_without_a_port_prints_the_missing_argument": _DEPLOY,
    "tests/deploy/test_flink_images.py::test_a_second_pool_on_the_same_port_reports_that_the_port_is_taken": _DEPLOY,
    "tests/deploy/test_flink_settings.py::test_kafka_accepts_its_configuration": _DEPLOY,
    "tests/deploy/test_prometheus.py::test_each_ledger_alert_fires_only_on_a_page_with_its_fault": _DEPLOY,
    "tests/deploy/test_prometheus.py::test_every_alert_fires_on_its_fault_and_none_on_a_healthy_deployment": _DEPLOY,
    f"{_DOCS}[docs/ledger.md]": f"{_COMMANDS}/test_demo.py::test_the_demo_settings_run_without_the_demo",
    f"{_DOCS}[docs/merging.md]": (
        "tests/store/test_merging_files.py::test_the_command_merges_ledgers_and_reports_each_domain"
    ),
    f"{_DOCS}[docs/model.md]": (
        f"{_COMMANDS}/test_fit.py::test_a_class_of_most_series_is_fitted_with_its_noise_and_coverage"
    ),
    "tests/house/test_mutants.py::test_killed_surviving_and_broken_mutants_are_distinguished": (
        "tests/house/test_mutants.py::test_every_mutant_still_fits_the_source"
    ),
    "tests/house/test_types.py::test_a_wrong_call_fails_the_type_check_and_the_right_one_passes": ".ci/run types",
    f"{_COMMANDS}/test_demo.py::test_homes_that_lose_more_are_counted_by_their_own_chains": (
        f"{_COMMANDS}/test_demo.py::test_the_demo_prints_the_covered_series_and_what_is_private"
    ),
    f"{_COMMANDS}/test_examples.py::test_the_model_of_the_london_example_equals_a_fit_of_its_settings": (
        f"{_COMMANDS}/test_demo.py::test_the_demo_shows_the_noise_that_belongs_to_its_data"
    ),
    f"{_COMMANDS}/test_sampled_loss.py::test_the_sampled_loss_of_a_killed_and_repeated_command_is_within_the_bound": (
        f"{_SAMPLED}::test_the_sampled_loss_of_rerun_bundles_is_within_the_bound"
    ),
    f"{_COMMANDS}/test_scale.py::test_ten_million_readings_are_counted_right_within_the_memory": _60_HOMES,
    "tests/pipelines/test_wrong_beliefs.py::test_the_page_states_the_loss_of_the_schedule_under_richer_beliefs": (
        "tests/privacy/estimation/test_belief_checks.py::test_a_memory_of_two_slots_loses_no_more_than_its_bound"
    ),
    "tests/privacy/quilts/test_real_chains.py::test_one_house_by_the_minute_needs_the_noise_of_the_theory": (
        "tests/privacy/quilts/test_real_chains.py::test_sixty_pooled_homes_need_the_noise_of_the_theory"
    ),
    "tests/privacy/quilts/test_real_chains.py::test_the_methods_are_in_order_on_pooled_homes_and_on_every_home": (
        "tests/privacy/quilts/test_real_chains.py::test_the_methods_are_in_order_on_persons_and_hours"
    ),
    "tests/store/test_merging_algebra.py::test_merging_is_associative_commutative_and_idempotent": (
        "tests/store/test_merging.py::test_a_ledger_merged_with_itself_is_unchanged"
    ),
    "tests/store/test_interleaver.py::test_a_block_of_a_transaction_that_was_not_committed_is_found": (
        "tests/store/test_interleaver.py::test_a_missing_lock_is_found"
    ),
    f"{_SAMPLED}::test_the_sampled_loss_with_uncommitted_draws_is_within_the_bound": (
        f"{_SAMPLED}::test_the_sampled_loss_of_rerun_bundles_is_within_the_bound"
    ),
    f"{_SAMPLED}::test_the_sampled_loss_of_groups_with_known_members_is_within_the_bound": (
        f"{_SAMPLED}::test_the_sampled_loss_of_rows_is_within_and_near_the_printed_loss"
    ),
    f"{_SAMPLED}::test_the_sampled_loss_of_late_readings_is_within_the_bound": (
        f"{_SAMPLED}::test_the_sampled_loss_of_rerun_bundles_is_within_the_bound"
    ),
    "tests/transforms/formats/test_avro.py::test_rows_of_a_large_block_are_emitted_before_all_of_them_are_read": (
        "tests/transforms/formats/test_avro.py::test_blocks_of_every_codec_have_the_same_limit"
    ),
    "tests/transforms/test_histograms.py::test_uci_by_the_minute_equals_a_plain_computation": _60_HOMES,
}

#: What a push runs on the lowest Beam: coders, state and timers, side inputs, splittable readers, watermarks, metrics,
#: options, file systems and the runner's own errors. What else differs between two versions is found nightly.
LOWER = (
    f"{_COMMANDS}/test_counters_run.py",
    f"{_COMMANDS}/test_run.py",
    f"{_COMMANDS}/test_same_releases.py",
    "tests/pipelines/live/test_live.py",
    "tests/pipelines/live/test_live_metrics.py",
    "tests/pipelines/live/test_live_workers.py",
    f"{_PLACES}/test_pubsub.py",
    "tests/pipelines/test_failures.py",
    f"{_TRANSFORMS}/sources/test_files.py",
    f"{_LIVE}/test_bundles_twice.py",
    f"{_LIVE}/test_contract.py",
    f"{_LIVE}/test_live.py",
    f"{_LIVE}/test_live_faults.py",
    f"{_TRANSFORMS}/pubsub/test_sink.py",
    f"{_TRANSFORMS}/kafka/test_sink.py",
    f"{_TRANSFORMS}/test_completeness.py",
    f"{_TRANSFORMS}/common/test_coders.py",
    f"{_TRANSFORMS}/test_histograms.py",
    f"{_TRANSFORMS}/test_modes.py",
    f"{_TRANSFORMS}/aggregate/test_collect.py",
    f"{_TRANSFORMS}/test_sinks.py",
    "tests/schemas/test_released_files.py",  # frames, by the lowest Arrow
)

#: What the lowest Beam need not show again nightly either: what Beam, numpy and Arrow have no part in, and what others
#: of the same parts show there. Both ends have the same SQLAlchemy, alembic, drivers and scipy.
SAME_AT_BOTH_ENDS = (
    # Pipelines on that end run on Flink in the step of this name.
    "tests/e2e",
    # Looks at texts, and runs the commands of the pages, each of which has tests of its own.
    *(f"tests/house/test_{name}.py" for name in ("docs", "mutants", "packaging", "readme", "references", "runners")),
    *(f"tests/house/test_{name}.py" for name in ("text", "tutorials")),
    # These enumerate worlds to show that the theory's bounds hold, which is no matter of versions; what the code
    # computes is compared with exact and published numbers by all the others.
    *(f"{_ACCOUNTING}/test_{name}.py" for name in ("belief_changes", "compaction", "ledger_truth", "running")),
    "tests/privacy/analysis/test_audit.py",
    _SAMPLING,
    "tests/privacy/quilts/test_exact_quilts.py",
    "tests/privacy/quilts/test_real_chains.py",
    # Where a process that is killed or a disk that is full leaves a transaction, how its cost grows and what a merge
    # may do is the store's alone; what is written, which is numpy's and Arrow's, is tested by all the others.
    "tests/store/test_faults.py",
    "tests/store/test_merging_algebra.py",
    "tests/store/test_ten_years.py",
)

#: Folders of which the lowest Beam need show the files alone whose text has one of the words. The gateway uses none of
#: the three in most of its files; ``deploy/`` is read by tools: only the workers of Flink's image run on that end, and
#: what jobs keep there has its shape.
CONCERNED = {"tests/deploy": r"pool|SHAPES", "tests/pipelines/gateway": r"apache_beam|numpy|pyarrow"}

#: Random tests whose examples take long -> how many of them a push tries, where the others try a fifth.
EXAMPLES: dict[str, int] = {
    f"{_ACCOUNTING}/test_belief_changes.py::test_the_loss_across_a_switch_is_never_below_enumeration": 5,
    f"{_ACCOUNTING}/test_ledger_truth.py::test_the_ledger_bounds_the_loss_of_every_stationary_chain": 15,
    f"{_ACCOUNTING}/test_ledger_truth.py::test_the_admitted_prefix_is_the_longest_that_fits": 8,
    f"{_ACCOUNTING}/test_running.py::test_an_account_entered_at_once_or_one_by_one_is_the_same": 5,
    f"{_ACCOUNTING}/test_sweep.py::test_the_recursion_bounds_the_loss_of_every_stationary_chain": 12,
    f"{_ACCOUNTING}/test_theorems.py::test_the_ledger_is_never_above_a_bound_of_the_published_theorems": 15,
    "tests/privacy/analysis/test_audit.py::test_the_true_loss_is_never_above_the_target_of_a_calibration": 8,
}
