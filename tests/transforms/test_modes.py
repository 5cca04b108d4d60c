"""Modes of runners under which the promise would not hold are refused, however they are asked for."""

from __future__ import annotations

from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

from quiltstream.schemas.settings.base import SettingsError
from quiltstream.transforms import PrivateHistograms
from quiltstream.transforms.checks import check_modes

from .sources.feed import feed
from .test_histograms import EMPTY, batches, settings

TWICE = "an at-least-once mode may hand a sum over twice"
KEYS = "the runner would write keys into its log as they are"


@pytest.mark.parametrize(
    ("words", "written", "why"),
    [
        (
            ["--dataflow_service_options=streaming_mode_at_least_once"],
            "--dataflow_service_options=streaming_mode_at_least_once",
            TWICE,
        ),
        (
            ["--dataflow_service_options", "x=1,streaming_mode_at_least_once"],
            "--dataflow_service_options=streaming_mode_at_least_once",
            TWICE,
        ),
        (["--experiments=streaming_mode_at_least_once"], "--experiments=streaming_mode_at_least_once", TWICE),
        (["--experiment", "streaming-mode-at-least-once"], "--experiments=streaming-mode-at-least-once", TWICE),
        (
            ["--additional_experiments=a,streaming_mode_at_least_once"],
            "--additional_experiments=streaming_mode_at_least_once",
            TWICE,
        ),
        (["--checkpointing_mode=AT_LEAST_ONCE"], "--checkpointing_mode=AT_LEAST_ONCE", TWICE),
        (["--enable_hot_key_logging"], "--enable_hot_key_logging", KEYS),
        (
            ["--dataflow_service_options=enable_hot_key_logging"],
            "--dataflow_service_options=enable_hot_key_logging",
            KEYS,
        ),
        (["--experiments=enable_hot_key_logging"], "--experiments=enable_hot_key_logging", KEYS),
        (["--additional_experiments", "enable_hot_key_logging"], "--additional_experiments=enable_hot_key", KEYS),
    ],
)
def test_a_mode_is_refused_in_every_spelling_with_the_reason(words: list[str], written: str, why: str) -> None:
    with pytest.raises(SettingsError) as caught:
        check_modes(PipelineOptions(words))
    (problem,) = caught.value.problems
    assert problem.startswith(written)
    assert why in problem


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--runner=DataflowRunner", "--project=p", "--streaming", "--experiments=use_runner_v2"],
        ["--dataflow_service_options=streaming_mode_exactly_once", "--checkpointing_mode=EXACTLY_ONCE"],
    ],
)
def test_other_options_are_accepted(words: list[str]) -> None:
    check_modes(PipelineOptions(words))


def test_unsafe_modes_of_a_user_pipeline_are_refused(tmp_path: Path) -> None:
    pipeline = beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions(["--enable_hot_key_logging"]))
    with pytest.raises(SettingsError, match="--enable_hot_key_logging: the runner would write keys"):
        _ = pipeline | feed(tmp_path, batches(EMPTY, 1)) | PrivateHistograms(settings(tmp_path))
