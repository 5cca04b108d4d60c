"""Live jobs of the tests, which end, and pipelines that do as they are told."""

from __future__ import annotations

import datetime as dt
import itertools
import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from apache_beam.runners.runner import PipelineState

from quiltstream.pipelines.live import follow as following
from quiltstream.pipelines.live import job as build
from quiltstream.pipelines.live.follow import LiveJob
from quiltstream.pipelines.live.watch import Cause, Health
from quiltstream.pipelines.on_record import LiveProgress
from quiltstream.schemas.settings.job import Settings, read_settings
from quiltstream.store import BlockToPublish, NoisyBlock
from quiltstream.store.errors import StoreDamaged
from quiltstream.store.specs import Registration, layout_of
from quiltstream.transforms import PrivateHistograms

from .jobs import Done, Job, Row, call, job, readings, write_csv

WINDOWS = {"size": "1d", "start": "2024-03-01", "stop": "2024-03-06"}


def made(folder: Path, days: int = 6, **changes: Any) -> Job:
    """A live job over a folder with one file of some days."""
    (folder / "inbox").mkdir()
    write_csv(folder / "inbox" / "0.csv", readings(days))
    given: dict[str, Any] = {
        "source": {"csv": "inbox/*.csv"},
        "windows": WINDOWS,
        "sink": {"parquet": "releases"},
        "rejects": {"csv": "rejects"},
        "live": {"poll": "10ms"},
    }
    return job(folder, **(given | changes))


def run(one: Job, *words: str) -> Done:
    return call("run", "--live", one.settings, *words)


def files(one: Job) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (one.folder / "releases").iterdir()}


def published(one: Job) -> dict[tuple[int, str], list[int]]:
    """Day of the month and key of every row in the sink -> its counts; each is there once."""
    rows = [row for path in (one.folder / "releases").iterdir() for row in pq.read_table(path).to_pylist()]
    found = {(row["window_start"].day, row["key"]): row["counts"] for row in rows}
    assert len(found) == len(rows)
    return found


def true_counts(rows: list[Row], days: int) -> dict[tuple[int, str], list[int]]:
    """The same, worked out from the readings alone."""
    found = {(day, street): [0] * 5 for day in range(1, days + 1) for street in ("north", "south")}
    for home, stamp, kwh in rows:
        day = dt.datetime.fromisoformat(stamp).day
        if day <= days:
            level = sum(kwh * 2000 >= edge for edge in (250, 500, 1000, 2000))
            found[day, "north" if home < "m4" else "south"][level] += 1
    return found


class TrueHistograms(PrivateHistograms):
    """Without noise, which no setting of a command reaches."""

    def __init__(self, settings: Settings, **given: Any) -> None:
        super().__init__(settings, noise="none", **given)


def drafts(histograms: PrivateHistograms, registration: Registration) -> list[BlockToPublish]:
    """Blocks of zeros for the first windows of a query."""
    schedule, bins = registration.query.schedule, histograms.plan.space.bins
    windows = list(itertools.islice(schedule.windows(), 5))
    made: list[BlockToPublish] = []
    for window in windows:
        layout = layout_of(registration, window)
        for shard in layout.occupied:
            keys = layout.keys(shard)
            counts = np.zeros((len(keys), bins), dtype=np.int64)
            block = NoisyBlock(keys, counts.sum(axis=1), counts, "live")
            made.append(BlockToPublish(window, shard, lambda block=block: block))
    return made


def told(error: BaseException) -> str:
    """An error as the end of a traceback."""
    return "".join(traceback.format_exception_only(error))


class Result:
    """What a runner's handle of a job says, one state after the other, and the last one again and again."""

    def __init__(self, *states: str | BaseException) -> None:
        self.states = list(states)
        self.cancelled = False

    @property
    def state(self) -> str:
        if self.cancelled:
            return PipelineState.CANCELLED
        found = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if isinstance(found, BaseException):
            raise found
        return found

    def cancel(self) -> None:
        self.cancelled = True

    def wait_until_finish(self) -> None:
        raise RuntimeError(f"Pipeline failed: Traceback\n{told(StoreDamaged('it is damaged'))}\nTraceback")


class Interrupted(Result):
    """Somebody stops the job when its last state was told."""

    number: int = signal.SIGINT
    told: int = 0

    @property
    def state(self) -> str:
        self.told += 1
        if self.told == 2:  # the handler runs in the main thread, whichever asks
            os.kill(os.getpid(), self.number)
        return super().state


class Pipeline:
    def __init__(self, result: Result, begun: Callable[[], None] = lambda: None) -> None:
        self.result = result
        self.begun = begun

    def run(self) -> Result:
        self.begun()
        return self.result


def graph_of(one: Job) -> LiveJob:
    settings = read_settings(one.settings)
    return build.live_job(settings, PrivateHistograms(settings), [])


def publish_all(one: Job) -> None:
    """Put on record what a job waits for."""
    follower = graph_of(one).follower
    histograms = PrivateHistograms(read_settings(one.settings))
    follower.store.publish(follower.registration, drafts(histograms, follower.registration))
    follower.close()


class Said(list[str]):
    """What a job tells, a line each."""

    def __call__(self, kind: str, text: str, cause: Cause | None = None) -> None:
        self.append(f"{kind}: {text}" if cause is None else f"{kind}: {cause}: {text}")


def followed(graph: LiveJob) -> tuple[LiveProgress, Said]:
    """Where a job stands at its end, and what was said."""
    said = Said()
    tallies, _ = following.follow(graph, said, Health(), look_s=0.0)
    progress = graph.follower.look()
    graph.follower.close()
    assert tallies is None
    return progress, said


def follow(one: Job, pipeline: Pipeline) -> tuple[LiveProgress, Said]:
    """The same of a job whose runner is the test's."""
    return followed(replace(graph_of(one), pipeline=pipeline))
