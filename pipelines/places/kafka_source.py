"""Kafka topics as the source of a live job: where it begins, and how messages are taken apart."""

from __future__ import annotations

import time
from collections.abc import Mapping

import click

from ...schemas.kafka import KafkaSource
from ...schemas.secrets import SecretError, located, resolved
from ...schemas.settings import Settings, SettingsError
from ...schemas.slots import parse_duration, parse_instant
from ...store.records import Store
from ...store.sources import SourceId
from ...store.specs import Registration
from ...transforms.kafka.client import Cluster, KafkaUnavailableError
from ...transforms.kafka.feed import KafkaFeed
from ...transforms.kafka.identity import KnownTopic, TopicIds
from ...transforms.kafka.look import look
from ...transforms.kafka.registry import RegistrySchemas
from ...transforms.kafka.start import EARLIEST, Start
from ...transforms.live.reader import Pace
from ...transforms.messages import MessageDecoder
from ...transforms.payloads import PayloadDecoder
from .kafka import check_written

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
    written is another matter (see :func:`.kafka.check_written`).

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


__all__ = ["TopicRecord", "check_source", "decoder_of", "kafka_feed", "start_of", "topic_record"]
