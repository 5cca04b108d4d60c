"""What a push leaves out of the tests, in one place; nightly everything runs (``tiers.py`` says which it is).

A test that is asked for by its whole name (``file.py::test_name``) or by a word (``-k``) runs on a push, too.
"""

from __future__ import annotations

_DEPLOY = ".ci/run deploy"
_DOCS = "tests/house/test_docs.py::test_a_page_does_what_it_says"
_ACCOUNTING = "tests/privacy/accounting"
_COMMANDS = "tests/pipelines/commands"
_PLACES = "tests/pipelines/connectors"
_LIVE = "tests/transforms/sources"
_TRANSFORMS = "tests/transforms"
_SAMPLING = "tests/privacy/mechanisms/test_sampling.py"
_SAMPLED = "tests/transforms/aggregate/test_sampled_loss.py"
_60_HOMES = (
    "tests/transforms/test_histograms.py::test_histograms_of_60_homes_equal_a_plain_computation_whatever_the_order"
)

#: Tests that run nightly alone -> the test of a push that would notice the same mistake, if less of it, or the step of
#: a push that runs the test itself.
NIGHTLY: dict[str, str] = {
    "tests/deploy/test_flink_images.py::test_a_pool_without_a_port_says_what_it_wants": _DEPLOY,
    "tests/deploy/test_flink_images.py::test_a_second_pool_on_the_same_port_says_that_it_is_taken": _DEPLOY,
    "tests/deploy/test_flink_settings.py::test_kafka_takes_its_configuration": _DEPLOY,
    "tests/deploy/test_prometheus.py::test_a_rule_that_is_wrong_is_noticed": _DEPLOY,
    "tests/deploy/test_prometheus.py::"
    "test_each_alert_of_a_ledger_fires_on_a_page_that_says_so_and_on_no_other": _DEPLOY,
    "tests/deploy/test_prometheus.py::"
    "test_every_alert_fires_on_what_it_is_for_and_none_on_a_deployment_that_is_well": _DEPLOY,
    f"{_DOCS}[docs/ledger.md]": f"{_COMMANDS}/test_demo.py::test_its_settings_run_by_themselves",
    f"{_DOCS}[docs/merging.md]": (
        "tests/store/test_merging_files.py::test_the_command_unites_ledgers_and_says_what_became_of_each_domain"
    ),
    f"{_DOCS}[docs/model.md]": (
        f"{_COMMANDS}/test_fit.py::test_a_class_of_most_series_is_fitted_with_what_it_costs_and_for_whom_it_holds"
    ),
    "tests/house/test_mutants.py::test_the_machinery_tells_a_noticed_mutant_from_a_survivor_and_from_a_wreck": (
        "tests/house/test_mutants.py::test_every_mutant_still_fits_the_source"
    ),
    "tests/house/test_types.py::test_a_wrong_call_fails_the_type_check_and_the_right_one_passes": ".ci/run types",
    f"{_COMMANDS}/test_demo.py::test_homes_that_lose_more_are_counted_by_their_own_chains": (
        f"{_COMMANDS}/test_demo.py::test_the_demo_says_for_whom_it_holds_and_what_is_private"
    ),
    f"{_COMMANDS}/test_examples.py::test_the_model_of_the_london_example_is_what_its_settings_fit": (
        f"{_COMMANDS}/test_demo.py::test_the_demo_shows_the_noise_that_belongs_to_its_data"
    ),
    f"{_COMMANDS}/test_sampled_loss.py::test_files_of_a_command_that_was_killed_and_begun_again_tell_no_more": (
        f"{_SAMPLED}::test_bundles_that_are_lost_and_run_again_on_other_readings_tell_no_more"
    ),
    f"{_COMMANDS}/test_scale.py::test_ten_million_readings_are_counted_right_within_the_memory": _60_HOMES,
    "tests/pipelines/test_wrong_beliefs.py::test_the_page_says_what_the_schedule_loses_where_more_is_believed": (
        "tests/privacy/estimation/test_belief_checks.py::test_a_memory_of_two_slots_loses_no_more_than_its_bound"
    ),
    "tests/privacy/quilts/test_real_chains.py::test_one_house_by_the_minute_needs_the_noise_the_theory_says": (
        "tests/privacy/quilts/test_real_chains.py::test_sixty_homes_pooled_need_the_noise_the_theory_says"
    ),
    "tests/privacy/quilts/test_real_chains.py::test_the_methods_are_in_order_on_pooled_homes_and_on_every_home": (
        "tests/privacy/quilts/test_real_chains.py::test_the_methods_are_in_order_on_persons_and_hours"
    ),
    "tests/store/test_merging_algebra.py::test_merging_is_associative_commutative_and_idempotent": (
        "tests/store/test_merging.py::test_a_ledger_united_with_itself_is_itself"
    ),
    "tests/store/test_interleaver.py::test_a_block_of_a_transaction_that_was_not_committed_is_found": (
        "tests/store/test_interleaver.py::test_a_missing_lock_is_found"
    ),
    "tests/store/test_ten_years.py::test_windows_of_three_sizes_cost_as_much_in_the_tenth_year_as_in_the_first": (
        "tests/store/test_ten_years.py::test_an_hourly_window_costs_as_much_in_the_tenth_year_as_in_the_first"
    ),
    f"{_SAMPLED}::test_a_draw_that_was_not_committed_tells_nothing": (
        f"{_SAMPLED}::test_bundles_that_are_lost_and_run_again_on_other_readings_tell_no_more"
    ),
    f"{_SAMPLED}::test_rows_of_groups_whose_other_members_are_known_tell_no_more": (
        f"{_SAMPLED}::test_rows_tell_of_a_slot_no_more_than_they_print_and_nearly_that"
    ),
    f"{_SAMPLED}::test_late_readings_and_bundles_that_are_run_again_tell_no_more": (
        f"{_SAMPLED}::test_bundles_that_are_lost_and_run_again_on_other_readings_tell_no_more"
    ),
    "tests/transforms/formats/test_avro.py::test_rows_of_a_large_block_are_passed_on_before_all_of_them_are_read": (
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
    f"{_ACCOUNTING}/test_belief_changes.py::test_a_switch_is_never_below_enumeration": 5,
    f"{_ACCOUNTING}/test_ledger_truth.py::test_no_stationary_chain_loses_more_than_the_ledger_says": 15,
    f"{_ACCOUNTING}/test_ledger_truth.py::test_the_admitted_prefix_is_the_longest_that_fits": 8,
    f"{_ACCOUNTING}/test_running.py::test_an_account_entered_at_once_or_one_by_one_is_the_same": 5,
    f"{_ACCOUNTING}/test_sweep.py::test_no_stationary_chain_loses_more_than_the_recursion_says": 12,
    f"{_ACCOUNTING}/test_theorems.py::test_the_ledger_is_never_above_a_bound_of_the_seeds": 15,
    "tests/privacy/analysis/test_audit.py::test_the_true_loss_is_never_above_the_target_of_a_calibration": 8,
}
