"""Pub/Sub as the places of a live job: where a run begins in a subscription, and what a topic gets again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import click
from apache_beam.options.pipeline_options import PipelineOptions

from ...schemas.settings.base import SettingsError
from ...schemas.settings.connectors import FileSink, PubSubSource
from ...schemas.settings.job import Settings
from ...schemas.slots import format_instant, parse_duration
from ...store.changes import SourceId
from ...transforms.payloads import PayloadDecoder
from ...transforms.private_histograms import goes_on
from ...transforms.pubsub import (
    PubSubSubscription,
    PubSubTopic,
    ReadSubscription,
    is_clients,
    new_subscriber,
    unavailable,
)
from ...transforms.readings.slots import words_of
from ...transforms.sources.reader import PollingPolicy
from ..errors import NOT_CHARGED, AwayError, ExitCode
from .job_io import Field
from .live import LiveSink, LiveSource, ResentTopic

#: How long the service may take to answer what a run begins with.
_ANSWER_S = 60.0


def pubsub_source(settings: Settings, group: str | None = None) -> PubSubSubscription:
    """The source of the settings' subscription.

    Raises:
        SettingsError: the messages cannot be used in this way.
    """
    given = None if settings.source is None else settings.source.pubsub
    if given is None:
        raise SettingsError(["source.pubsub is missing: it names the subscription to read"])
    decoder = PayloadDecoder.of(settings, group=group)
    if settings.live.idle is not None:
        raise SettingsError(
            "live.idle would close windows because nothing arrives, and from Pub/Sub nothing arrives when the "
            "connection is broken, too; leave it out, and let a scheduler publish an empty message every minute"
        )
    return PubSubSubscription(
        given.subscription,
        decoder,
        timestamp_attribute=given.timestamp_attribute,
        id_attribute=given.id_attribute,
        settle_s=parse_duration(given.settle) / 1e6,
        outstanding=given.outstanding,
    )


def begun_in_subscription(
    settings: Settings,
    pace: PollingPolicy,
    options: PipelineOptions,
    *,
    subscriber: Callable[[], Any] = new_subscriber,
    now_us: int | None = None,
) -> PollingPolicy:
    """Seek to where a run without a runner's state begins, and leave out the windows that cannot be read as a whole.

    What another run acknowledged is gone for this one, unless the subscription keeps it and is sought back. A window of
    which anything may be gone is never declared complete, so it stays missing. The begin of ``pace`` is in the first
    missing window.

    Returns:
        The pace, with a begin that leaves those windows out.

    Raises:
        SettingsError: the subscription cannot be read again, or is not there.
        AwayError: the service does not answer.
    """
    given = None if settings.source is None else settings.source.pubsub
    if given is None or goes_on(options):
        return pace
    now = time.time_ns() // 1_000 if now_us is None else now_us
    schedule, grid = settings.schedule, settings.grid
    window_us = grid.time_of(schedule.start_before(grid.slots_of(pace.begin_us) + 1))
    words = words_of(settings.readings, settings.slots.of)
    # a window needs what came so long before it
    before_us = 0 if words is None else words.before_us
    whole_us = now + before_us
    if given.reread is not None:
        back = parse_duration(given.reread) + before_us
        kept_us = _sought(given, min(now, max(0, window_us - back)), now, subscriber)
        whole_us = window_us if kept_us <= window_us - back else kept_us + back
    if whole_us <= window_us:
        return pace
    if schedule.start is not None:
        click.echo(
            f"source.pubsub: windows that start before {format_instant(whole_us)} cannot be read as a whole by this "
            "run and are not published by it"
            + ("" if given.reread is not None else "; with source.pubsub.reread a run reads them again"),
            err=True,
        )
    if schedule.calendar is None:
        until_us = whole_us + schedule.size * grid.interval_us - 1
    else:
        # windows that end by where the first whole one starts are those before it
        until_us = grid.time_of(replace(schedule, start=grid.slots_of(whole_us - 1) + 1, stop=None).first)
    return replace(pace, begin_us=max(pace.begin_us, until_us))


def _sought(given: PubSubSource, at_us: int, now_us: int, subscriber: Callable[[], Any]) -> int:
    """Seek a subscription to an instant; the instant from which on it keeps messages."""
    try:
        client = subscriber()
        try:
            found = client.get_subscription(request={"subscription": given.subscription}, timeout=_ANSWER_S)
            kept = [0.0]
            if found.retain_acked_messages:
                kept.append(found.message_retention_duration.total_seconds())
            if found.topic_message_retention_duration:
                kept.append(found.topic_message_retention_duration.total_seconds())
            if max(kept) <= 0:
                raise SettingsError(
                    [
                        f"source.pubsub.reread: {given.subscription} keeps nothing that was acknowledged; set "
                        "retain_acked_messages for it, or message_retention_duration for its topic, or leave reread out"
                    ]
                )
            when = datetime.fromtimestamp(at_us / 1e6, UTC)
            client.seek(request={"subscription": given.subscription, "time": when}, timeout=_ANSWER_S)
        finally:
            client.close()
    except Exception as error:
        if not is_clients(error):
            raise
        failure = unavailable(f"source.pubsub: {given.subscription}", error)
        if failure.passing:
            raise AwayError(str(failure), ExitCode.FAILURE, "source", at_first=NOT_CHARGED) from error
        raise SettingsError([str(failure)]) from error
    return now_us - int(max(kept) * 1e6)


class Subscription(LiveSource):
    """A subscription that a live job reads.

    Raises:
        SettingsError: the messages cannot be used in this way.
    """

    def __init__(self, settings: Settings, group: str | None) -> None:
        self._settings = settings
        self._grouped = group is not None
        self._source = pubsub_source(settings, group)

    def begun(self, pace: PollingPolicy, options: PipelineOptions) -> PollingPolicy:
        """Seek to where a run without a runner's state begins: see :func:`begun_in_subscription`."""
        return begun_in_subscription(self._settings, pace, options)

    def read(self, pace: PollingPolicy, known: Mapping[str, SourceId] | None = None) -> ReadSubscription:  # noqa: ARG002 - of topics
        """The reading of the subscription."""
        return ReadSubscription(self._source, pace, grouped=self._grouped)


def source(settings: Settings, group: str | None) -> LiveSource:
    """The source of settings that name a subscription."""
    return Subscription(settings, group)


def sink(settings: Settings, field: Field, given: FileSink) -> LiveSink:  # noqa: ARG001 - the signature is every connector's
    """A sink of settings that name a topic.

    Raises:
        SettingsError: it is none of Pub/Sub.
    """
    if given.pubsub is None:
        raise SettingsError([f"{field}.pubsub is missing: it names the topic to write"])
    return ResentTopic(PubSubTopic(given.pubsub.topic, given.pubsub.format), given.pubsub.resend)
