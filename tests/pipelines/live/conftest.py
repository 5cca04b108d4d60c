"""A Flink cluster's REST API for live jobs, and a job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

from quiltstream.pipelines.live import command, flink, follow
from quiltstream.pipelines.live import job as build
from quiltstream.pipelines.live.follow import LiveJob

from ..jobs import Job
from ..live_jobs import Pipeline, made
from .flink_api import FlinkApi, flink_api


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[FlinkApi]:
    """A cluster's REST API; nobody waits long for it."""
    monkeypatch.setattr(flink, "_PAUSE_S", 0.01)
    monkeypatch.setattr(flink, "_CANCEL_S", 0.5)
    monkeypatch.setattr(flink, "_AWAY_S", 0.3)
    with flink_api() as found:
        yield found


@pytest.fixture
def one(tmp_path: Path, request: pytest.FixtureRequest) -> Job:
    """A live job that ends."""
    request.getfixturevalue("ending")
    return made(tmp_path)


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[Pipeline]:
    """Runners that take the job's first attempts; the next one is a runner that ends when its schedule does."""
    given: list[Pipeline] = []
    built = build.live_job

    def pipeline(options: PipelineOptions) -> beam.Pipeline:
        return beam.Pipeline(runner=FnApiRunner(), options=options)

    def job_of(*words: Any, **named: Any) -> LiveJob:
        job = built(*words, **named)
        return replace(job, pipeline=given.pop(0)) if given else job

    monkeypatch.setattr(build, "live_pipeline", pipeline)
    monkeypatch.setattr(command, "live_job", job_of)
    monkeypatch.setattr(follow, "_END_S", 0.1)
    monkeypatch.setattr(command, "LOOK_S", 0.01)
    return given
