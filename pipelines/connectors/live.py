"""The connectors of live jobs: what a source and a sink must do, and how those that settings name are loaded.

Each line of ``CONNECTORS`` (``schemas/settings/connectors.py``) names a module with two functions, ``source`` and
``sink``: those of this package are in this folder, and ``source.kafka`` and ``sink.kafka`` are ``kafka``; all formats
of files and standard input are ``files``. The
module is imported when the settings name it, so that a job loads the client and the decoders of its own broker only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, Literal

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from ...schemas.releases import release_ids
from ...schemas.settings.base import SettingsError
from ...schemas.settings.connectors import CONNECTORS, FileSink
from ...schemas.settings.job import Settings
from ...schemas.slots import SlotGrid
from ...store.changes import SourceId
from ...store.exports import rows_of
from ...store.specs import Record, Registration
from ...store.store import Store
from ...transforms.sinks import MessageTopic, SendRejects, SendReleases, release_messages
from ...transforms.sources.contract import BrokerUnavailableError
from ...transforms.sources.reader import PollingPolicy
from ..errors import AwayError, CommandError, ExitCode
from .job_io import sink_of


class SourceRecord(ABC):
    """Keeps on record what a job reads, so that the next job notices that it was replaced."""

    @abstractmethod
    def look(self) -> None:
        """Ask the source, if it is time to, and put on record what is new; one that does not answer changes nothing.

        Raises:
            StoreError: the ledger of record cannot be used.
        """

    @property
    @abstractmethod
    def known(self) -> Mapping[str, SourceId]:
        """What is on record, by name.

        Raises:
            StoreError: the ledger of record cannot be used.
        """


class LiveSource(ABC):
    """The source of a live job, made once from its settings; a mistake in them is an error when it is made."""

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

    def begun(self, pace: PollingPolicy, options: PipelineOptions) -> PollingPolicy:  # noqa: ARG002 - of sources that seek
        """Seek to where a run without a runner's state begins; the begin of ``pace`` is in the first missing window.

        Returns:
            The pace, with a begin that leaves out the windows that cannot be read as a whole.

        Raises:
            SettingsError: the source cannot be read again, or is not there.
            AwayError: it does not answer.
        """
        return pace

    def record(self, store: Store, registration: Registration) -> SourceRecord | None:  # noqa: ARG002 - as above
        """What keeps the source on record; ``None`` where it has no identity that could change."""
        return None

    @abstractmethod
    def read(self, pace: PollingPolicy, known: Mapping[str, SourceId] | None = None) -> beam.PTransform[Any, Any]:
        """The reading of the source, of which ``known`` is on record."""


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


def send_blocks(topic: MessageTopic, registration: Registration, records: Iterable[Record]) -> int:
    """Send blocks on record to a job's sink; refusals have no block, and are passed over.

    Returns:
        How many were sent.

    Raises:
        CommandError: they cannot be sent; :class:`.AwayError` if they can once the brokers are back.
    """
    sender, sent = topic.sender(f"sink.{topic.kind}"), 0
    try:
        for record in records:
            if record.block is not None:
                sender.send(release_messages(rows_of(registration, record), topic.format, sender.head))
                sent += 1
        sender.finish()
    except BrokerUnavailableError as error:
        text = f"{error}. What was charged is on record: mend it and run again"
        if error.passing:
            raise AwayError(text, ExitCode.FAILURE, "sink") from error
        raise CommandError(text, ExitCode.FAILURE) from error
    finally:
        sender.close()
    return sent


class ResentTopic(LiveSink):
    """A topic whose content is not read: the last windows on record are sent again when a run begins."""

    def __init__(self, topic: MessageTopic, resend: int = 1) -> None:
        self.topic = topic
        self._resend = resend

    def releases(self) -> SendReleases:
        """The sending of releases."""
        return SendReleases(self.topic)

    def rejects(self) -> SendRejects:
        """The sending of rejects."""
        return SendRejects(self.topic)

    def unknown_ids(self, store: Store) -> list[str]:  # noqa: ARG002 - the signature is that of every sink
        """None that could be known."""
        return []

    def complete(self, store: Store, registration: Registration) -> int:
        """Send the blocks of the last windows on record, which a job that was killed may have left out.

        Returns:
            How many were sent.

        Raises:
            CommandError: they cannot be sent.
        """
        domain, query = registration.domain.name, registration.query.name
        entries = store.entries(domain) if self._resend else []
        starts = sorted(one.window_start for one in entries if one.query == query and one.decision == "charged")
        if not starts:
            return 0
        records = store.records(domain, query, after=(starts[-self._resend :][0], -1))
        return send_blocks(self.topic, registration, records)
