"""Kafka topics as source and sinks of a live job."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TypeVar

import click
import numpy as np
import numpy.typing as npt

from ...schemas.settings.base import SettingsError
from ...schemas.settings.connectors import KafkaSink, KafkaSource
from ...schemas.settings.job import Settings
from ...schemas.settings.secrets import Option, located
from ...schemas.slots import parse_duration, parse_instant
from ...schemas.table_files import RELEASES
from ...store.exports import rows_of
from ...store.specs import Record, Registration
from ...store.store import Store
from ...transforms.kafka.client import LOOK_S, Cluster, KafkaUnavailableError, look
from ...transforms.kafka.partitions import EARLIEST, Start, compacted
from ...transforms.kafka.schema_registry import RegistryNumbers, RegistrySchemas
from ...transforms.kafka.sink import SendRejects, SendReleases, Topic, look_to_write, read_ids
from ...transforms.kafka.source import KafkaPartitions
from ...transforms.payloads import PayloadDecoder
from ...transforms.sinks import REJECTS, release_messages
from ...transforms.sources.contract import BrokerUnavailableError
from ...transforms.sources.reader import PollingPolicy, ReadLive
from ..errors import CommandError, ExitCode
from .job_io import Field
from .live import LiveSink, LiveSource, missing, needed_us, recorded_blocks

_Made = TypeVar("_Made")


def _cluster_of(settings: Settings, given: KafkaSource | KafkaSink) -> Cluster:
    """The brokers of a source or sink; secrets in files are found from the settings' folder."""
    return Cluster(given.servers, located(given.options, settings.path))


def topic_of(settings: Settings, given: KafkaSink) -> Topic:
    """The topic that a sink is."""
    registry = given.registry
    numbers = None
    if registry is not None:
        options = located(registry.options, settings.path)
        numbers = RegistryNumbers(registry.url, options, auto_register=registry.auto_register)
    return Topic(_cluster_of(settings, given), given.topic, given.format, numbers)


def asked(field: str, attempt: Callable[[], _Made]) -> _Made:
    """Ask brokers before a job begins.

    Raises:
        CommandError: they do not answer, or it cannot be done at all.
    """
    try:
        return attempt()
    except KafkaUnavailableError as error:
        code = ExitCode.AWAY if error.passing else ExitCode.FAILURE if error.login else ExitCode.SINK
        raise CommandError(f"{field}: {error}. Nothing was charged by this run", code) from error


def _has_secrets(field: str, options: Mapping[str, Option], left: str) -> bool:
    """Whether the secrets among some options are here; where they are not, say what is left to the workers."""
    why = missing(options)
    if why is not None:
        click.echo(f"{field}: {why}; {left} from here", err=True)
    return why is None


class SinkTopic(LiveSink):
    """A topic that a live job sends its rows or rejects to.

    The topic is read to its end once. What is kept of it in memory is eight bytes a row.
    """

    def __init__(self, settings: Settings, topic: Topic, field: Field = "sink") -> None:
        self._settings, self._topic = settings, topic
        self._field: Field = field
        self._there: npt.NDArray[np.uint64] | None = None
        self._trimmed = False

    def check(self) -> None:
        """Look whether the topic is there and may be written, before anything is on record.

        The number of an Avro schema is looked up in the registry, and the schema registered there if need be.
        What cannot be sent fails its bundle, and the one after every restart: by then windows may be charged. Where a
        secret is with the workers only, that is said, and the job begins.

        Raises:
            CommandError: it is not, or its brokers do not answer.
        """
        topic, field = self._topic, f"{self._field}.kafka"
        if _has_secrets(field, topic.cluster.options, "the topic is not looked at"):
            asked(field, partial(look_to_write, topic))
        if topic.numbers is not None and _has_secrets(field, topic.numbers.options, "the schema registry is not asked"):
            asked(field, partial(topic.head, RELEASES.avro if self._field == "sink" else REJECTS.avro))

    def releases(self) -> SendReleases:
        """The sending of releases."""
        return SendReleases(self._topic)

    def rejects(self) -> SendRejects:
        """The sending of rejects."""
        return SendRejects(self._topic)

    def unknown_ids(self, store: Store) -> list[str]:
        """The names of the releases in the topic that are not of blocks on record.

        Raises:
            CommandError: the topic cannot be read, or holds something else.
        """
        there = self._look()
        names = (self._settings.domain, self._settings.query)
        if store.is_there() and (registration := store.registered(*names)) is not None:
            known = [_marks(ids) for _, _, ids in recorded_blocks(store, registration)]
            there = np.setdiff1d(there, np.concatenate(known)) if known else there
        if not len(there):
            return []
        strange, found = set(there.tolist()), dict[str, None]()
        self._read(lambda one: found.update({one: None} if _mark(one) in strange else {}))
        return sorted(found)

    def complete(self, store: Store, registration: Registration) -> int:
        """Send the blocks on record that are not there as a whole: a job that was killed may have left some out.

        Of a topic that has lost its beginning to retention, what is older than the first block that is there is not
        missed.

        Returns:
            How many were sent.

        Raises:
            CommandError: the topic cannot be read or written.
        """
        sender, sent = self._topic.sender("sink.kafka"), 0
        try:
            for sent, record in enumerate(self._missed(store, registration), 1):  # noqa: B007 - how many there were
                sender.send(release_messages(rows_of(registration, record), self._topic.format, sender.head))
            sender.finish()
        except BrokerUnavailableError as error:
            text = f"{error}. What was charged is on record, and is sent when the job begins again"
            raise CommandError(text, ExitCode.AWAY if error.passing else ExitCode.SINK) from error
        finally:
            sender.close()
        return sent

    def _missed(self, store: Store, registration: Registration) -> Iterator[Record]:
        there = self._look()
        begun = not self._trimmed or not len(there)
        for record, _, ids in recorded_blocks(store, registration):
            present = np.isin(_marks(ids), there)
            begun = begun or bool(present.any())
            if begun and not present.all():
                yield record

    def _look(self) -> npt.NDArray[np.uint64]:
        if self._there is None:
            marks = array("Q")
            self._trimmed = self._read(lambda one: marks.append(_mark(one)))
            self._there = np.unique(np.frombuffer(marks, dtype=np.uint64)) if marks else np.empty(0, dtype=np.uint64)
        return self._there

    def _read(self, take: Callable[[str], None]) -> bool:
        names = (self._settings.domain, self._settings.query)
        return asked("sink.kafka", partial(read_ids, self._topic, *names, take))


def _mark(release_id: str) -> int:
    """The first half of a release id, as a number."""
    try:
        return int(release_id[:16], 16)
    except ValueError:
        raise KafkaUnavailableError("the topic holds messages that are no releases of quiltstream") from None


def _marks(ids: list[str]) -> npt.NDArray[np.uint64]:
    return np.array([_mark(one) for one in ids], dtype=np.uint64)


class Topics(LiveSource):
    """Topics that a live job reads.

    Raises:
        SettingsError: the mapping of the messages cannot be used.
    """

    def __init__(self, settings: Settings, given: KafkaSource, group: str | None = None) -> None:
        self._settings, self._given, registry = settings, given, given.registry
        schemas = None if registry is None else RegistrySchemas(registry.url, located(registry.options, settings.path))
        self._decoder = PayloadDecoder.of(settings, group=group, schemas=schemas)

    def check(self) -> None:
        """Look whether the topics are there, before anything is on record.

        Brokers that do not answer here may answer the workers: that is said, and the job begins.

        Raises:
            SettingsError: a topic is not there, or may not be seen, or an option is wrong.
            CommandError: the brokers do not take the login, or one side does not take the other's certificate.
        """
        cluster = _cluster_of(self._settings, self._given)
        if not _has_secrets("source.kafka", cluster.options, "the topics are not looked at"):
            return
        try:
            look(cluster, self._given.all_topics)
            for topic in compacted(cluster, self._given.all_topics, LOOK_S):
                click.echo(
                    f"source.kafka: topic {topic} is compacted (cleanup.policy): of the messages of one key only the "
                    "newest is kept, so windows may lack readings and be called complete; set cleanup.policy=delete",
                    err=True,
                )
        except KafkaUnavailableError as error:
            if error.login:
                text = f"source.kafka: {error}. Nothing was charged by this run"
                raise CommandError(text, ExitCode.FAILURE) from error
            if not error.passing:
                raise SettingsError([f"source.kafka: {error}"]) from None
            click.echo(f"source.kafka: {error}; the readers keep trying", err=True)

    def partitions(self, pace: PollingPolicy) -> KafkaPartitions:
        """The partitions of the topics, and where a run begins in them."""
        settings, given = self._settings, self._given
        start = start_of(settings, given, pace)
        return KafkaPartitions(
            cluster=_cluster_of(settings, given),
            topics=given.all_topics,
            decoder=self._decoder,
            lanes=given.lanes,
            start=start,
            # a group that a first run began at may be another program's: no run commits to it
            group=given.group if given.start != "group" or start.kind == "group" else None,
            discover_s=parse_duration(given.discover) / 1e6,
        )

    def read(self, pace: PollingPolicy) -> ReadLive:
        """The reading of the topics."""
        return ReadLive(self.partitions(pace), pace)


def start_of(settings: Settings, given: KafkaSource, pace: PollingPolicy) -> Start:
    """Where a run without a runner's state begins.

    What the settings say holds for a query's first run. A later one must find everything of the windows that are still
    missing, and neither the end of a topic nor a group's offsets tell where that is. So it begins at the topic's start,
    or so long before what the first missing window depends on, by the broker's stamps, as ``reread`` says.
    """
    first = Start(given.start) if given.start in ("earliest", "latest", "group") else None
    if first is None:
        first = Start("instant", max(0, parse_instant(given.start, settings.slots.timezone)))
    grid, start = settings.grid, settings.schedule.start
    window_us, before_us = needed_us(settings, pace)
    if start is None or window_us <= grid.time_of(start):
        return first
    if given.reread is None:
        return first if first.kind == "instant" else EARLIEST
    again = Start("instant", max(0, window_us - before_us - parse_duration(given.reread)))
    return max(first, again, key=lambda one: one.instant_us)


def sink(settings: Settings, field: Field, given: KafkaSink) -> LiveSink:
    """A sink of settings that name a topic."""
    return SinkTopic(settings, topic_of(settings, given), field)


source = Topics
