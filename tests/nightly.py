"""What a push leaves out of the tests, in one place; nightly everything runs (``tiers.py`` says which it is).

A test that is asked for by its whole name (``file.py::test_name``) or by a word (``-k``) runs on a push, too.
"""

from __future__ import annotations

_DEPLOY = ".ci/run deploy"
_DOCS = "tests/house/test_docs.py::test_a_page_does_what_it_says"
_ACCOUNTING = "tests/privacy/accounting"
_COMMANDS = "tests/pipelines/commands"
_PLACES = "tests/pipelines/connectors"
_RESTARTS = "tests/pipelines/live/test_restarts.py"
_LIVE = "tests/transforms/sources"
_LIVE_JOBS = "tests/pipelines/live"
_TRANSFORMS = "tests/transforms"
_FUZZ = "tests/transforms/payloads/test_fuzz.py"
_SAMPLING = "tests/privacy/mechanisms/test_sampling.py"
_SAMPLED = "tests/transforms/aggregate/test_sampled_loss.py"
_DISTRIBUTION = "tests/privacy/distribution/test_noise_distribution.py"
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
    "tests/transforms/formats/test_avro_blocks.py::"
    "test_rows_of_a_large_block_are_passed_on_before_all_of_them_are_read": (
        "tests/transforms/formats/test_avro_blocks.py::test_blocks_of_every_codec_have_the_same_limit"
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
    f"{_TRANSFORMS}/sources/test_pipeline.py",
    f"{_LIVE}/test_bundles_twice.py",
    f"{_LIVE}/test_contract.py",
    f"{_LIVE}/test_live.py",
    f"{_LIVE}/test_live_faults.py",
    f"{_TRANSFORMS}/pubsub/test_sink.py",
    f"{_TRANSFORMS}/kafka/test_sink.py",
    f"{_TRANSFORMS}/completeness/test_punctuation.py",
    f"{_TRANSFORMS}/common/test_coders.py",
    f"{_TRANSFORMS}/sources/test_counters.py",
    f"{_TRANSFORMS}/test_histograms.py",
    f"{_TRANSFORMS}/common/test_modes.py",
    f"{_TRANSFORMS}/aggregate/test_panes.py",
    f"{_TRANSFORMS}/sinks/test_sinks.py",
)

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

#: Tests with many cases -> how many of them a push takes: spread over all, from a place that the commit decides.
SOME_CASES: dict[str, int] = {
    # what is read of a value or a time is asked of every decoder in tests/transforms/formats
    f"{_COMMANDS}/test_bad_input.py::test_a_time_that_cannot_be_parsed_is_rejected_and_tallied": 1,
    f"{_COMMANDS}/test_bad_input.py::test_a_value_that_is_no_number_is_rejected_and_tallied_without_it": 1,
    f"{_COMMANDS}/test_bad_input.py::test_the_first_line_of_a_file_without_a_header_is_not_shown": 2,
    f"{_COMMANDS}/test_damaged_ledger.py::test_every_command_tells_damage_with_exit_code_4": 4,
    f"{_COMMANDS}/test_examples.py::test_an_example_of_settings_runs": 2,
    f"{_COMMANDS}/test_fit.py::test_a_cover_that_the_history_cannot_give_writes_nothing": 4,
    f"{_COMMANDS}/test_fit.py::test_a_list_that_would_choose_nothing_is_refused_and_not_quoted": 2,
    f"{_COMMANDS}/test_fit.py::test_what_cannot_be_fitted_ends_with_exit_code_2": 5,
    f"{_COMMANDS}/test_init.py::test_settings_from_a_file_of_each_format_run": 1,
    f"{_COMMANDS}/test_mechanisms.py::test_each_mechanism_publishes_its_noise_at_its_price_and_the_same_rows_again": 3,
    f"{_COMMANDS}/test_mechanisms.py::test_the_first_window_costs_at_most_epsilon_but_for_entry_dp": 2,
    f"{_COMMANDS}/test_no_leak.py::test_one_changed_cell_changes_no_log_metric_exit_code_file_or_row_count": 1,
    f"{_COMMANDS}/test_nothing_counts.py::"
    "test_it_stops_with_nothing_on_record_and_can_be_run_again_with_other_settings": 2,
    f"{_COMMANDS}/test_paths.py::test_outputs_of_every_command_refuse_what_is_no_regular_file": 1,
    f"{_COMMANDS}/test_run.py::test_a_lost_history_stays_on_record_for_ever": 1,
    f"{_COMMANDS}/test_run.py::test_releases_unknown_to_the_ledger_stop_the_job_unless_history_is_given_up": 1,
    f"{_COMMANDS}/test_run.py::test_values_that_totals_tell_of_are_said_with_their_number_and_the_assumption": 1,
    f"{_COMMANDS}/test_slot_classes.py::test_every_format_has_the_classes": 1,
    f"{_COMMANDS}/test_same_job_twice.py::test_a_killed_and_repeated_job_publishes_the_record_and_the_rest": 1,
    f"{_DISTRIBUTION}::test_draws_in_bulk_follow_the_discrete_laplace_law": 3,
    f"{_DISTRIBUTION}::test_noise_of_sum_zero_in_bulk_has_the_law_of_its_entries": 2,
    f"{_FUZZ}::test_a_decoder_that_loses_or_doubles_a_part_of_them_is_noticed": 17,
    f"{_FUZZ}::test_a_hundred_thousand_damaged_messages_raise_nothing_and_count_once": 4,
    f"{_FUZZ}::test_a_poison_message_that_comes_for_ever_harms_no_other_and_is_told_each_time": 5,
    f"{_FUZZ}::test_damaged_messages_raise_nothing_and_count_once": 5,
    f"{_FUZZ}::test_json_of_any_shape_raises_nothing_and_counts_once": 3,
    f"{_LIVE}/test_arriving_files.py::test_a_large_file_is_read_in_batches_and_resumes_at_any_offset": 1,
    f"{_LIVE}/test_live.py::test_a_stream_shuffled_within_its_lateness_gives_what_a_plain_computation_gives": 2,
    f"{_LIVE}/test_live_faults.py::test_a_stream_that_repeats_reorders_or_stalls_gives_every_window_once": 1,
    f"{_LIVE}/test_live_faults.py::test_every_bundle_that_encodes_or_counts_is_run_twice_and_changes_nothing": 1,
    f"{_LIVE}/test_live_faults.py::test_every_bundle_that_releases_is_run_twice_and_publishes_one_value": 1,
    f"{_LIVE}/test_live_faults.py::test_readings_that_come_some_windows_late_change_nothing": 1,
    f"{_LIVE}/test_live_samples.py::test_a_sample_as_a_stream_gives_the_windows_of_its_batch_run": 1,
    "tests/pipelines/test_continuity.py::test_a_ledger_that_was_lost_is_not_made_anew_where_the_sink_is_elsewhere": 2,
    "tests/pipelines/test_continuity.py::test_an_older_copy_of_any_moment_of_a_run_is_told": 2,
    f"{_PLACES}/test_files.py::test_a_file_of_the_job_is_never_written_over": 16,
    f"{_PLACES}/test_files.py::test_a_rejects_file_that_holds_something_else_is_not_replaced": 10,
    f"{_PLACES}/test_files.py::test_rejects_and_releases_of_an_earlier_run_are_replaced_in_every_format": 1,
    f"{_RESTARTS}::test_a_job_that_is_begun_again_without_its_ledger_stops_for_good_and_makes_none": 1,
    f"{_RESTARTS}::test_a_ledger_that_is_damaged_under_a_running_job_stops_it_for_good": 1,
    f"{_RESTARTS}::test_an_outage_of_the_ledger_ends_no_job_and_is_no_restart": 1,
    f"{_SAMPLING}::test_a_draw_has_exactly_the_discrete_laplace_law": 1,
    f"{_SAMPLING}::test_bernoulli_exp_has_exactly_the_exponential_probability": 3,
    f"{_SAMPLING}::test_magnitudes_have_exactly_the_geometric_law": 1,
    f"{_SAMPLING}::test_noise_of_sum_zero_has_exactly_its_law": 2,
    f"{_SAMPLING}::test_the_enumeration_turns_red_on_a_wrong_sampler": 3,
    f"{_TRANSFORMS}/formats/test_avro_blocks.py::test_a_block_that_unpacks_to_gigabytes_takes_no_gigabyte": 1,
    f"{_TRANSFORMS}/formats/test_avro_blocks.py::test_a_long_text_in_every_row_of_a_parquet_file_is_in_memory_once": 1,
    f"{_TRANSFORMS}/formats/test_avro_blocks.py::test_what_stands_in_a_column_that_nobody_asked_for_takes_no_memory": 1,
    f"{_TRANSFORMS}/formats/test_avro_shapes.py::test_what_stands_in_a_column_that_nobody_asked_for_costs_no_row": 3,
    f"{_TRANSFORMS}/formats/test_times.py::test_every_local_half_hour_of_two_years_is_placed_as_zoneinfo_places_it": 3,
    f"{_TRANSFORMS}/kafka/test_flood.py::"
    "test_a_device_that_floods_one_slot_is_one_cell_and_costs_the_others_nothing": 1,
    f"{_TRANSFORMS}/payloads/test_avro_vectorised.py::"
    "test_what_is_odd_is_read_or_rejected_as_when_it_comes_alone_and_harms_no_other": 7,
    f"{_TRANSFORMS}/payloads/test_bombs.py::test_many_large_messages_are_parsed_some_at_a_time": 1,
    f"{_TRANSFORMS}/aggregate/test_estimate.py::"
    "test_the_states_of_every_series_have_the_transitions_that_are_counted": 1,
    f"{_TRANSFORMS}/aggregate/test_estimate.py::"
    "test_transitions_of_shuffled_and_doubled_readings_equal_a_plain_count": 1,
    f"{_TRANSFORMS}/test_noise_law.py::test_published_counts_add_up_to_the_total_for_series_and_groups": 2,
    f"{_TRANSFORMS}/aggregate/test_panes.py::"
    "test_a_window_damaged_by_a_runner_stays_missing_and_the_next_job_publishes_it": 1,
    f"{_TRANSFORMS}/aggregate/test_panes.py::test_of_a_source_without_tickets_no_early_pane_releases_anything": 1,
    f"{_TRANSFORMS}/aggregate/test_panes.py::test_whatever_panes_are_fired_every_window_is_on_record_whole_and_once": 2,
    f"{_SAMPLED}::test_each_planted_fault_tells_more_than_is_printed": 1,
    f"{_TRANSFORMS}/aggregate/test_rosters.py::"
    "test_a_job_started_with_an_older_roster_publishes_what_a_newer_one_does": 1,
    f"{_TRANSFORMS}/aggregate/test_rosters.py::test_a_live_job_without_a_roster_takes_series_in_when_it_sees_them": 1,
    f"{_TRANSFORMS}/aggregate/test_rosters.py::test_a_series_that_joins_leaves_or_returns_does_so_with_a_window": 1,
    f"{_TRANSFORMS}/test_slot_classes.py::test_counts_by_class_equal_a_plain_computation": 1,
    f"{_TRANSFORMS}/aggregate/test_discovery.py::"
    "test_one_given_end_or_width_that_is_not_on_record_is_refused_by_name": 7,
    "tests/store/test_faults.py::test_a_ledger_that_cannot_be_used_stops_the_job_before_it_reads": 4,
    "tests/store/test_merging_terms.py::test_other_content_under_one_name_is_refused_naming_the_field": 5,
    f"{_COMMANDS}/test_bad_input.py::test_a_broken_binary_file_ends_with_exit_code_5_and_quotes_nothing": 1,
    f"{_COMMANDS}/test_bad_input.py::test_an_empty_file_publishes_the_whole_schedule_only_where_that_is_meant": 1,
    f"{_COMMANDS}/test_cautions.py::test_two_units_without_a_factor_between_them_are_said": 1,
    f"{_COMMANDS}/test_fit.py::test_a_job_refuses_a_rhythm_that_does_not_fit_the_day": 1,
    f"{_COMMANDS}/test_fuzzed_files.py::test_no_model_file_is_an_unexpected_failure": 1,
    f"{_COMMANDS}/test_fuzzed_files.py::test_no_settings_of_a_job_are_an_unexpected_failure": 1,
    f"{_COMMANDS}/test_sharing.py::test_a_renamed_domain_is_refused_and_publishes_nothing": 1,
    "tests/pipelines/estimation/test_estimates.py::test_rows_of_a_stretch_are_summed_by_key_over_classes_of_slots": 1,
    f"{_LIVE_JOBS}/test_flink_jobs.py::test_a_job_that_outlives_its_schedule_is_cancelled_in_its_cluster": 1,
    f"{_LIVE_JOBS}/test_flink_orphans.py::test_a_job_whose_job_server_is_gone_is_followed_in_its_cluster": 1,
    f"{_LIVE_JOBS}/test_flink_orphans.py::test_a_signal_leaves_a_job_that_is_to_be_left_and_says_where": 1,
    f"{_LIVE_JOBS}/test_flink_orphans.py::test_what_was_to_be_left_is_begun_again_when_it_is_over": 1,
    f"{_LIVE_JOBS}/test_live.py::test_a_file_that_is_not_of_the_record_is_found_also_where_as_many_are_missing": 1,
    f"{_LIVE_JOBS}/test_live.py::test_an_older_copy_stops_the_next_run_though_the_last_one_never_looked_again": 1,
    f"{_LIVE_JOBS}/test_live_bad_input.py::test_a_ledger_that_cannot_be_used_stops_a_live_job_before_it_reads": 2,
    f"{_LIVE_JOBS}/test_live_bad_input.py::test_a_changed_fixed_setting_stops_the_job_early_and_names_both_values": 5,
    "tests/pipelines/test_continuity.py::test_an_older_copy_is_told_without_a_look_at_the_sink": 1,
    f"{_PLACES}/test_files.py::test_a_write_that_fails_in_the_end_says_what_is_on_record": 1,
    f"{_PLACES}/test_model_provenance.py::test_a_model_of_the_one_published_series_is_labelled_whatever_its_name": 1,
    f"{_PLACES}/test_model_provenance.py::"
    "test_series_of_one_file_are_told_apart_by_their_names_if_a_roster_shows_it": 1,
    f"{_RESTARTS}::test_a_failure_that_would_come_again_ends_the_job_at_once": 1,
    f"{_TRANSFORMS}/test_coarser_bins.py::test_a_coarser_query_counts_what_the_finer_one_adds_up_to": 1,
    f"{_TRANSFORMS}/sources/test_counters.py::test_counters_in_columns_of_every_format_give_their_rises": 2,
    f"{_TRANSFORMS}/aggregate/test_estimate.py::test_only_the_series_of_a_list_are_counted_and_all_of_them": 1,
    f"{_TRANSFORMS}/aggregate/test_estimate.py::test_states_of_too_many_or_too_long_series_are_not_kept": 1,
    f"{_TRANSFORMS}/aggregate/test_panes.py::"
    "test_every_pane_whose_gathering_fails_once_is_gathered_again_and_changes_nothing": 1,
    f"{_TRANSFORMS}/sinks/test_sinks.py::test_a_remote_store_is_written_and_read_through_beams_file_systems": 2,
    f"{_TRANSFORMS}/sinks/test_sinks.py::"
    "test_the_transform_gathers_windows_and_batches_into_one_file_and_says_where": 2,
    "tests/privacy/mechanisms/test_exponential.py::test_a_selection_has_exactly_the_exponential_law": 3,
}
