"""Kafka topics as source and sink of a live job."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TypeVar

import click
import numpy as np
import numpy.typing as npt

from ...schemas.settings.base import SettingsError
from ...schemas.settings.brokers import KafkaSink, KafkaSource
from ...schemas.settings.job import FileSink, Settings
from ...schemas.settings.secrets import Option, SecretError, located, resolved
from ...schemas.slots import parse_duration, parse_instant
from ...schemas.table_files import RELEASES
from ...store.errors import StoreMissing
from ...store.source_ids import SourceId
from ...store.specs import Record, Registration
from ...store.store import Store
from ...transforms.kafka.client import Cluster, KafkaUnavailableError
from ...transforms.kafka.partitions import EARLIEST, KnownTopic, Start, TopicIds
from ...transforms.kafka.schema_registry import RegistryNumbers, RegistrySchemas
from ...transforms.kafka.sink import Topic
from ...transforms.kafka.source import KafkaFeed
from ...transforms.kafka.topics import look, look_to_write, read_ids
from ...transforms.payloads import PayloadDecoder
from ...transforms.payloads.messages import MessageDecoder
from ...transforms.sinks.files import LETTERS
from ...transforms.sources.reader import Pace
from ..errors import AwayError, CommandError, ExitCode
from .undelivered import recorded_blocks, send_blocks

__all__ = [
    "SinkTopic",
    "TopicRecord",
    "check_source",
    "check_written",
    "cluster_of",
    "decoder_of",
    "kafka_feed",
    "patiently",
    "start_of",
    "topic_of",
    "topic_record",
]


#: Seconds that brokers may be away when a job begins, and the longest pause between two attempts.
_PATIENCE_S = 60.0
_LONGEST_PAUSE_S = 10.0

_Made = TypeVar("_Made")


def cluster_of(settings: Settings, servers: str, options: KafkaSink) -> Cluster:
    """The brokers of a sink; secrets in files are found from the settings' folder."""
    return Cluster(servers, located(options.options, settings.path))


def topic_of(settings: Settings, sink: FileSink) -> Topic | None:
    """The topic that a sink is; ``None`` where it is files."""
    given = sink.kafka
    if given is None:
        return None
    registry = given.registry
    numbers = None
    if registry is not None:
        options = located(registry.options, settings.path)
        numbers = RegistryNumbers(registry.url, options, auto_register=registry.auto_register)
    return Topic(cluster_of(settings, given.servers, given), given.topic, given.format, numbers)


def patiently(field: str, attempt: Callable[[], _Made], *, patience_s: float = _PATIENCE_S) -> _Made:
    """Try something with brokers until they answer, and say so meanwhile.

    Args:
        field: the setting, for messages.
        attempt: what to try.
        patience_s: for how long.

    Raises:
        CommandError: they do not answer for so long, or it cannot be done at all.
    """
    deadline, pause = time.monotonic() + patience_s, 1.0
    while True:
        try:
            return attempt()
        except KafkaUnavailableError as error:
            text = f"{field}: {error}. Nothing was charged: mend it and run again"
            if not error.passing:
                raise CommandError(text, ExitCode.FAILURE) from error
            if time.monotonic() + pause > deadline:
                raise AwayError(text, ExitCode.FAILURE, "sink") from error
            click.echo(f"{field}: {error}; trying again in {pause:g} s", err=True)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def check_written(settings: Settings, *, patience_s: float = _PATIENCE_S) -> None:
    """Look whether the topics of sink and rejects are there and may be written, before anything is on record.

    Where their rows are Avro with the number of a schema, it is asked for, and given to the registry if need be.

    What cannot be sent fails its bundle, and the one after every restart: by then windows may be charged. Where a
    secret is with the workers only, that is said, and the job begins.

    Args:
        settings: the job.
        patience_s: how long the brokers may be away.

    Raises:
        CommandError: one is not, or its brokers do not answer for so long.
    """
    for place, sink in (("sink", settings.sink), ("rejects", settings.rejects)):
        topic = None if sink is None else topic_of(settings, sink)
        if topic is None:
            continue
        field = f"{place}.{topic.kind}"
        if _has_secrets(field, topic.cluster.options, "the topic is not looked at"):
            patiently(field, partial(look_to_write, topic), patience_s=patience_s)
        if topic.numbers is not None and _has_secrets(field, topic.numbers.options, "the schema registry is not asked"):
            ask = partial(topic.head, RELEASES.avro if place == "sink" else LETTERS.avro)
            patiently(field, ask, patience_s=patience_s)


def check_secrets(settings: Settings) -> None:
    """See that every secret of a broker's options is here: of a job whose workers are of this process.

    Raises:
        SettingsError: one is not; a line for each.
    """
    source = None if settings.source is None else settings.source.kafka
    named = (
        ("source.kafka", source),
        ("sink.kafka", None if settings.sink is None else settings.sink.kafka),
        ("rejects.kafka", None if settings.rejects is None else settings.rejects.kafka),
    )
    problems: list[str] = []
    for field, broker in named:
        if broker is None:
            continue
        given = [(f"{field}.options", broker.options)]
        if broker.registry is not None:
            given.append((f"{field}.registry.options", broker.registry.options))
        for place, options in given:
            problems += [
                f"{place}: {name}: {why}"
                for name, option in located(options, settings.path).items()
                if (why := _missing({name: option})) is not None
            ]
    if problems:
        raise SettingsError(problems)


def _missing(options: Mapping[str, Option]) -> str | None:
    """What secret of some options is not here."""
    try:
        resolved(options)
    except SecretError as error:
        return str(error)
    return None


def _has_secrets(field: str, options: Mapping[str, Option], left: str) -> bool:
    """Whether the secrets among some options are here; where they are not, say what is left to the workers."""
    why = _missing(options)
    if why is not None:
        click.echo(f"{field}: {why}; {left} from here", err=True)
    return why is None


class SinkTopic:
    """What is in the topic that a live job sends its rows to.

    The topic is read to its end once. What is kept of it in memory is eight bytes a row.

    Args:
        settings: the job.
        topic: its sink.
        patience_s: how long the brokers may be away.
    """

    def __init__(self, settings: Settings, topic: Topic, *, patience_s: float = _PATIENCE_S) -> None:
        self._settings = settings
        self._topic = topic
        self._patience_s = patience_s
        self._there: npt.NDArray[np.uint64] | None = None
        self._trimmed = False

    def unknown_ids(self, store: Store) -> list[str]:
        """The names of the releases in the topic that are not of blocks on record.

        Args:
            store: the ledger; it may not be there yet, or not know the query.

        Raises:
            CommandError: the topic cannot be read, or holds something else.
        """
        there = self._look()
        registration = None
        with suppress(StoreMissing):
            registration = store.registered(self._settings.domain, self._settings.query)
        if registration is not None:
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
        return send_blocks(self._topic, registration, self._missed(store, registration))

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
            self._trimmed = self._read(lambda one: marks.append(_mark(one)), marks)
            self._there = np.unique(np.frombuffer(marks, dtype=np.uint64)) if marks else np.empty(0, dtype=np.uint64)
        return self._there

    def _read(self, take: Callable[[str], None], marks: array[int] | None = None) -> bool:
        names = (self._settings.domain, self._settings.query)

        def attempt() -> bool:
            if marks is not None:
                del marks[:]
            return read_ids(self._topic, *names, take, patience_s=self._patience_s)

        return patiently("sink.kafka", attempt, patience_s=self._patience_s)


def _mark(release_id: str) -> int:
    """The first half of a release id, as a number."""
    try:
        return int(release_id[:16], 16)
    except ValueError:
        raise KafkaUnavailableError("the topic holds messages that are no releases of quiltstream") from None


def _marks(ids: list[str]) -> npt.NDArray[np.uint64]:
    return np.array([_mark(one) for one in ids], dtype=np.uint64)


#: When this process first began the job of a domain and query, and how far the broker's clock may be from ours.
_BEGUN: dict[tuple[str, str], int] = {}
_MARGIN_US = 60_000_000

#: How long a question for the ids of topics may take, and seconds from one to the next.
_ANSWER_S = 2.0
_IDS_S = 30.0


class TopicRecord:
    """Keeps on record which topics a job reads, by the ids that brokers give them.

    A job that begins from the ledger compares: a topic that was made anew has another id, and what the first one held
    is gone.

    Args:
        settings: the job.
        given: its source.
        store: the ledger.
        registration: the query on record.
    """

    def __init__(self, settings: Settings, given: KafkaSource, store: Store, registration: Registration) -> None:
        self._topics = given.all_topics
        self._ids = TopicIds(_cluster_of(settings, given), {})
        self._store = store
        self._registration = registration
        self._known: dict[str, SourceId] | None = None
        self._look_at = 0.0

    def look(self) -> None:
        """Ask the brokers, if it is time to, and put on record what is new; brokers that do not answer change nothing.

        Raises:
            StoreError: the ledger of record cannot be used.
        """
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + _IDS_S
        try:
            self._ids.made_anew(self._topics, _ANSWER_S)
        except KafkaUnavailableError:
            return  # a secret is with the workers only
        seen, known = self._ids.known, self._on_record
        if any(topic not in known or known[topic].id != one for topic, one in seen.items()):
            self._known = self._store.note_source_ids(self._registration, seen)

    @property
    def known(self) -> dict[str, KnownTopic]:
        """What is on record of the topics.

        Raises:
            StoreError: the ledger of record cannot be used.
        """
        return {topic: KnownTopic(one.id, one.lost_us) for topic, one in self._on_record.items()}

    @property
    def _on_record(self) -> dict[str, SourceId]:
        if self._known is None:
            self._known = self._store.source_ids(self._registration.domain.name)
        return self._known


def topic_record(settings: Settings, store: Store, registration: Registration) -> TopicRecord | None:
    """What keeps the topics of the settings' source on record; ``None`` where it is none of Kafka.

    Args:
        settings: the job.
        store: the ledger.
        registration: the query on record.
    """
    given = None if settings.source is None else settings.source.kafka
    return None if given is None else TopicRecord(settings, given, store, registration)


def kafka_feed(
    settings: Settings,
    given: KafkaSource,
    pace: Pace,
    group: str | None = None,
    known: Mapping[str, KnownTopic] | None = None,
) -> KafkaFeed:
    """The feed of the settings' topics.

    Args:
        settings: the job.
        given: its source.
        pace: when windows close.
        group: where the group of a reading is, if the grouping comes from the data.
        known: what is on record of the topics.

    Raises:
        SettingsError: the mapping of the messages cannot be used.
    """
    decoder = decoder_of(settings, given, group)
    return KafkaFeed(
        cluster=_cluster_of(settings, given),
        topics=given.all_topics,
        decoder=decoder,
        lanes=given.lanes,
        start=_again(settings, start_of(settings, given, pace, decoder.lookback_us), pace),
        group=given.group,
        discover_s=parse_duration(given.discover) / 1e6,
        known=known or {},
    )


def decoder_of(settings: Settings, given: KafkaSource, group: str | None = None) -> MessageDecoder:
    """What takes the messages apart.

    Raises:
        SettingsError: the mapping cannot be used.
    """
    registry = given.registry
    schemas = None if registry is None else RegistrySchemas(registry.url, located(registry.options, settings.path))
    return PayloadDecoder.of(settings, group=group, schemas=schemas)


def start_of(settings: Settings, given: KafkaSource, pace: Pace, lookback_us: int = 0) -> Start:
    """Where a run without a runner's state begins.

    What the settings say holds for a query's first run. A later one must find everything of the windows that are still
    missing, and neither the end of a topic nor a group's offsets tell where that is. So it begins at the topic's start,
    or so long before the first missing window, by the broker's stamps, as ``reread`` says, and before that by what the
    decoder needs to remember.

    Args:
        settings: the job.
        given: its source.
        pace: when windows close.
        lookback_us: how much earlier the decoder must begin.
    """
    first = _first_of(settings, given)
    grid, schedule = settings.grid, settings.schedule
    # of the first missing window only the last slot lies behind the instant at which a run begins
    window_us = pace.begin_us - (schedule.size - 1) * grid.interval_us
    if schedule.start is None or window_us <= grid.time_of(schedule.start):
        return first
    if given.reread is None:
        return first if first.kind == "instant" else EARLIEST
    again = Start("instant", max(0, window_us - parse_duration(given.reread) - lookback_us))
    return max(first, again, key=lambda one: one.instant_us)


def _again(settings: Settings, start: Start, pace: Pace) -> Start:
    """The same start for a job that this process begins once more: the end of a topic is elsewhere by then."""
    if start.kind != "latest" or not pace.begin_us:
        return start
    now = time.time_ns() // 1_000
    begun = _BEGUN.setdefault((settings.domain, settings.query), now)
    return start if begun == now else Start("instant", begun - _MARGIN_US)


def _first_of(settings: Settings, given: KafkaSource) -> Start:
    if given.start == "latest":
        return Start("latest")
    if given.start == "group":
        return Start("group")
    if given.start == "earliest":
        return EARLIEST
    return Start("instant", max(0, parse_instant(given.start, settings.slots.timezone)))


def _cluster_of(settings: Settings, given: KafkaSource) -> Cluster:
    return Cluster(given.servers, located(given.options, settings.path))


def check_source(settings: Settings) -> None:
    """Look whether the topics of the job are there, before anything is on record: those it reads, and those it writes.

    A broker of the source that does not answer here may answer the workers: that is said, and the job begins. What is
    written is another matter (see :func:`check_written`).

    Raises:
        SettingsError: a topic of the source is not there, or may not be seen, or an option is wrong.
        CommandError: a topic of sink or rejects is not there, or may not be written, or its brokers do not answer.
    """
    _check_read(settings)
    check_written(settings)


def _check_read(settings: Settings) -> None:
    given = None if settings.source is None else settings.source.kafka
    if given is None:
        return
    cluster = _cluster_of(settings, given)
    try:
        resolved(cluster.options)
        look(cluster, given.all_topics)
    except SecretError as error:
        click.echo(f"source.kafka: {error}; the topics are not looked at from here", err=True)
    except KafkaUnavailableError as error:
        if not error.passing:
            raise SettingsError([f"source.kafka: {error}"]) from None
        click.echo(f"source.kafka: {error}; the readers keep trying", err=True)
