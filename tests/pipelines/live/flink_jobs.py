"""Live jobs of a Flink cluster whose REST API is the tests' own, with runners that do as they are told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from quiltstream.pipelines.live import command, job, monitor
from quiltstream.pipelines.live.command import LiveOptions
from quiltstream.pipelines.live.flink import FlinkJob
from quiltstream.pipelines.live.monitor import LiveJob

from ..jobs import Job
from ..live_jobs import Pipeline, Result, graph_of
from .flink_api import FlinkApi, flink_api

#: Of jobs whose record is looked at without a pause.
AT_ONCE = LiveOptions(look_s=0.0)

FLINK = "--runner=FlinkRunner"


def nowhere() -> str:
    """An address at which nobody listens any more."""
    with flink_api() as found:
        return found.place


def in_flink(one: Job, pipeline: Pipeline, place: str, *, leave: bool = False) -> LiveJob:
    """A job of a cluster whose readers are elsewhere."""
    return replace(graph_of(one), pipeline=pipeline, here=False, flink=FlinkJob(place, "load-1", leave=leave))


def followed(graph: LiveJob) -> tuple[str, list[str]]:
    """The state at the end, and what was said."""
    said: list[str] = []
    progress, _ = monitor.follow(graph, lambda kind, text: said.append(f"{kind}: {text}"), look_s=0.0)
    graph.follower.close()
    return progress.state, said


def begun_jobs(monkeypatch: pytest.MonkeyPatch, api: FlinkApi, *results: Result, leave: bool = False) -> list[LiveJob]:
    """The jobs that a command begins from now on, each with a runner of its own that does as it is told."""
    begun: list[LiveJob] = []
    live_job, left = job.live_job, list(results)

    def graph(*given: Any, **named: Any) -> LiveJob:
        flink = FlinkJob(api.place, f"load-{len(begun) + 1}", leave=leave)
        made = replace(live_job(*given, **named), pipeline=Pipeline(left.pop(0)), flink=flink)
        begun.append(made)
        return made

    monkeypatch.setattr(command, "live_job", graph)
    return begun
