"""Live jobs of a Flink cluster whose REST API is the tests' own, with runners that do as they are told."""

from __future__ import annotations

from dataclasses import replace

from quiltstream.pipelines.live.flink import FlinkJob
from quiltstream.pipelines.live.follow import LiveJob

from ..jobs import Job
from ..live_jobs import Pipeline, graph_of
from .flink_api import flink_api

FLINK = "--runner=FlinkRunner"


def nowhere() -> str:
    """An address at which nobody listens any more."""
    with flink_api() as found:
        return found.place


def in_flink(one: Job, pipeline: Pipeline, place: str, *, leave: bool = False) -> LiveJob:
    """A job of a cluster whose readers are elsewhere."""
    return replace(graph_of(one), pipeline=pipeline, here=False, flink=FlinkJob(place, "load-1", leave=leave))
