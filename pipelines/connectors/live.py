"""The connectors of live jobs: what a source and a sink must do, and how those that settings name are loaded.

Each line of ``CONNECTORS`` (``schemas/settings/connectors.py``) names a module with two functions, ``source`` and
``sink``: those of this package are in this folder, and ``source.kafka`` and ``sink.kafka`` are ``kafka``; all formats
of files and standard input are ``files``. The
module is imported when the settings name it, so that a job loads the client and the decoders of its own broker only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from importlib import import_module
from typing import Any, ClassVar, Literal

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from ...schemas.releases import release_ids
from ...schemas.settings.base import SettingsError
from ...schemas.settings.connectors import CONNECTORS, FileSink
from ...schemas.settings.job import Settings
from ...schemas.slots import SlotGrid
from ...store.specs import Record, Registration
from ...store.store import Store
from ...transforms.sources.reader import PollingPolicy
from .job_io import sink_of


class LiveSource(ABC):
    """The source of a live job, made once from its settings; a mistake in them is an error when it is made."""

    #: whether it says which windows are complete; else the runner's watermark does
    declares: ClassVar[bool] = True

    def missing_secrets(self) -> list[str]:
        """A line for each secret of the settings that is not in this process."""
        return []

    def check(self) -> None:
        """Look whether the source is there, before anything is on record.

        A source that does not answer here may answer the workers: that is said, and the job begins.

        Raises:
            SettingsError: it is not there, or may not be read.
        """
        return

    def begin(self, pace: PollingPolicy, options: PipelineOptions) -> int | None:  # noqa: ARG002 - of sources that seek
        """Go to where a run without a runner's state begins; the begin of ``pace`` is in the first missing window.

        Returns:
            Windows that start before this instant may lack readings; ``None``: the source says so itself.

        Raises:
            SettingsError: the source cannot be read again, or is not there.
            CommandError: it does not answer.
        """
        return None

    @abstractmethod
    def read(self, pace: PollingPolicy) -> beam.PTransform[Any, Any]:
        """The reading of the source."""


class LiveSink(ABC):
    """Where a live job writes released rows or rejects, and what is there of the record."""

    def missing_secrets(self) -> list[str]:
        """A line for each secret of the settings that is not in this process."""
        return []

    def check(self) -> None:
        """Look whether rows can be written there, before anything is on record.

        Raises:
            CommandError: they cannot, or the sink does not answer.
        """
        return

    @abstractmethod
    def releases(self) -> beam.PTransform[Any, Any]:
        """The writing of batches of releases."""

    @abstractmethod
    def rejects(self) -> beam.PTransform[Any, Any]:
        """The writing of batches of rejects."""

    @abstractmethod
    def unknown_ids(self, store: Store) -> list[str]:
        """The names of the releases in the sink that are not of blocks on record.

        The ledger may not be there yet, or not know the query.

        Raises:
            SettingsError: the sink holds another query's rows.
            CommandError: it cannot be read, or holds something else.
        """

    @abstractmethod
    def complete(self, store: Store, registration: Registration) -> int:
        """Write the blocks on record that are not in the sink: a job that was killed may have left some out.

        Returns:
            How many were written.

        Raises:
            CommandError: the sink cannot be read or written.
        """


def _sink(settings: Settings, field: Literal["sink", "rejects"], given: FileSink) -> LiveSink:
    return import_module(CONNECTORS[given.kind]).sink(settings, field, given)


def live_source(settings: Settings, group: str | None = None) -> LiveSource:
    """The source of a live job.

    Raises:
        SettingsError: there is none, or its readings cannot be read so.
    """
    if settings.source is None or settings.readings is None:
        raise SettingsError(["source is missing: it names the files to follow, e.g. {jsonl: inbox/*.jsonl}"])
    return import_module(CONNECTORS[settings.source.kind]).source(settings, group)


def live_sink(settings: Settings) -> LiveSink:
    """The sink of a live job.

    Raises:
        SettingsError: there is none.
    """
    sink = sink_of(settings, live=True)
    return _sink(settings, "sink", sink)


def live_sinks(settings: Settings) -> tuple[LiveSink, LiveSink | None]:
    """The sink of a live job, and that of its rejects if they go somewhere.

    Raises:
        SettingsError: there is no sink.
    """
    rejects: FileSink | None = settings.rejects
    made = None if rejects is None else _sink(settings, "rejects", rejects)
    return live_sink(settings), made


def check_runner(settings: Settings, runner: str | None) -> None:
    """See that a runner has the source.

    Raises:
        SettingsError: it has not: Beam reads Pub/Sub on Dataflow, and has nothing for Python on other runners.
    """
    source = settings.source
    if source is not None and source.pubsub is not None and (runner or "").lower() != "dataflowrunner":
        raise SettingsError(
            [
                f"source.pubsub: Beam reads Pub/Sub on Dataflow, and the runner is {runner or 'Prism'}: give --runner="
                "DataflowRunner after --, or bring the messages to Kafka"
            ]
        )


def check_secrets(*places: LiveSource | LiveSink | None) -> None:
    """See that every secret of a broker's options is here: of a job whose workers are of this process.

    Raises:
        SettingsError: one is not; a line for each.
    """
    problems = [problem for place in places if place is not None for problem in place.missing_secrets()]
    if problems:
        raise SettingsError(problems)


def recorded_blocks(
    store: Store, registration: Registration, after: tuple[int, int] | None = None
) -> Iterator[tuple[Record, int, list[str]]]:
    """Each block behind a window and shard, when its window starts in microseconds, and the ids of its rows."""
    names = (registration.domain.name, registration.query.name)
    grid = SlotGrid(**registration.domain.grid)
    for record in store.records(*names, after=after):
        if record.block is not None:
            window = (grid.time_of(record.window.start), grid.time_of(record.window.stop))
            yield record, window[0], release_ids(*names, registration.digest, window, record.block.keys)
