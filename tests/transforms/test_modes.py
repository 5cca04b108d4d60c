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


LISTS = ("dataflow_service_options", "experiments", "additional_experiments")
MODES = {"streaming_mode_at_least_once": TWICE, "streaming-mode-at-least-once": TWICE, "enable_hot_key_logging": KEYS}


@pytest.mark.parametrize(
    ("words", "written", "why"),
    [
        (["--checkpointing_mode=AT_LEAST_ONCE"], "--checkpointing_mode=AT_LEAST_ONCE", TWICE),
        (["--enable_hot_key_logging"], "--enable_hot_key_logging", KEYS),
        (["--experiment", "streaming_mode_at_least_once"], "--experiments=streaming_mode_at_least_once", TWICE),
        *[([f"--{one}", f"x=1,{mode}"], f"--{one}={mode}", why) for one in LISTS for mode, why in MODES.items()],
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
