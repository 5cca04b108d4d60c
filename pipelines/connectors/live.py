"""The connectors of live jobs: what a source and a sink must do, and how those that settings name are loaded.

Each line of ``CONNECTORS`` (``schemas/settings/connectors.py``) names a module with two functions, ``source`` and
``sink``, such as ``kafka`` here; all formats of files and standard input are ``files``. It is imported when the
settings name it, so that a job loads the client and the decoders of its own broker only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, ClassVar

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from ...schemas.releases import release_ids
from ...schemas.settings.base import SettingsError
from ...schemas.settings.connectors import CONNECTORS, FileSink
from ...schemas.settings.job import Settings
from ...schemas.settings.secrets import Option, SecretError, located, resolved
from ...schemas.slots import SlotGrid
from ...store.specs import Record, Registration
from ...store.store import Store
from ...transforms.readings.slots import words_of
from ...transforms.sources.reader import PollingPolicy
from .job_io import Field, sink_of


class LiveSource(ABC):
    """The source of a live job, made once from its settings; a mistake in them is an error when it is made."""

    #: whether it says which windows are complete; else the runner's watermark does
    declares: ClassVar[bool] = True

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


def live_source(settings: Settings, group: str | None = None) -> LiveSource:
    """The source of a live job.

    Raises:
        SettingsError: there is none, or its readings cannot be read so.
    """
    given = settings.source
    if given is None:
        raise SettingsError(["source is missing: it names the files to follow, e.g. {jsonl: inbox/*.jsonl}"])
    return import_module(CONNECTORS[given.kind]).source(settings, given.section or given, group)


def live_sinks(settings: Settings) -> tuple[LiveSink, LiveSink | None]:
    """The sink of a live job, and that of its rejects if they go somewhere.

    Raises:
        SettingsError: there is no sink.
    """

    def made(field: Field, given: FileSink) -> LiveSink:
        return import_module(CONNECTORS[given.kind]).sink(settings, field, given.section or given)

    return made("sink", sink_of(settings, live=True)), settings.rejects and made("rejects", settings.rejects)


def check_secrets(settings: Settings) -> None:
    """See that every secret of a broker's options is here: of a job whose workers are of this process.

    Raises:
        SettingsError: one is not; a line for each.
    """
    problems: list[str] = []
    for field, one in (("source", settings.source), ("sink", settings.sink), ("rejects", settings.rejects)):
        broker = None if one is None else one.kafka
        registry = None if broker is None else broker.registry
        given = {} if broker is None else {f"{field}.kafka.options": broker.options}
        given |= {} if registry is None else {f"{field}.kafka.registry.options": registry.options}
        named = [(place, pair) for place, options in given.items() for pair in located(options, settings.path).items()]
        problems += [f"{place}: {pair[0]}: {why}" for place, pair in named if (why := missing(dict([pair])))]
    if problems:
        raise SettingsError(problems)


def missing(options: Mapping[str, Option]) -> str | None:
    """What secret of some options is not here."""
    try:
        resolved(options)
    except SecretError as error:
        return str(error)
    return None


def needed_us(settings: Settings, pace: PollingPolicy) -> tuple[int, int]:
    """When the first missing window starts, and how long before a window a reading may count in it.

    Only the last slot of that window lies behind the instant at which a run begins.
    """
    grid, words = settings.grid, words_of(settings.readings, settings.slots.of)
    start = settings.schedule.start_before(grid.slots_of(pace.begin_us) + 1)
    return grid.time_of(start), 0 if words is None else words.before_us


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
