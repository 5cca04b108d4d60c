"""What a push leaves out of the tests, in one place; nightly everything runs (``tiers.py`` says which it is).

Who names a test by its whole name (``file.py::test_name``) gets it on a push, too.
"""

from __future__ import annotations

_DEPLOY = ".ci/run deploy"
_DOCS = "tests/house/test_docs.py::test_a_page_does_what_it_says"
_COMMANDS = "tests/pipelines/commands"

#: Tests that run nightly alone -> the test of a push that would notice the same mistake, if less of it, or the step of
#: a push that runs the test itself.
NIGHTLY: dict[str, str] = {
    "tests/deploy/test_flink_images.py::test_a_pool_without_a_port_says_what_it_wants": _DEPLOY,
    "tests/deploy/test_flink_images.py::test_a_second_pool_on_the_same_port_says_that_it_is_taken": _DEPLOY,
    "tests/deploy/test_flink_settings.py::test_kafka_takes_its_configuration": _DEPLOY,
    "tests/deploy/test_prometheus.py::test_a_rule_that_is_wrong_is_noticed": _DEPLOY,
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
}

#: Tests with many cases -> how many of them a push takes: spread over all, from a place that the commit decides.
SOME_CASES: dict[str, int] = {}
