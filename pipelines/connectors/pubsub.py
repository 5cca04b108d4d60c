"""Pub/Sub as the places of a live job: where a run begins in a subscription, and what a topic gets again."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, ClassVar

import click
from apache_beam.options.pipeline_options import PipelineOptions

from ...schemas.settings.base import SettingsError
from ...schemas.settings.connectors import PubSubSink, PubSubSource
from ...schemas.settings.job import Settings
from ...schemas.slots import format_instant, parse_duration
from ...store.exports import rows_of
from ...store.specs import Registration
from ...store.store import Store
from ...transforms.payloads import PayloadDecoder
from ...transforms.private_histograms import goes_on
from ...transforms.pubsub import ReadSubscription, SendRows, with_attributes
from ...transforms.sinks import release_messages
from ...transforms.sources.reader import PollingPolicy
from ..errors import CommandError, ExitCode
from .job_io import Field
from .live import LiveSink, LiveSource, needed_us

#: Seconds that the service may take to answer.
_ANSWER_S = 60.0

#: Errors by their class in google.api_core.exceptions or google.auth.exceptions: the operator must mend them.
_WRONG = {
    "NotFound": "it is not there; make it, or check its name",
    "PermissionDenied": "the account may not use it; give it roles/pubsub.subscriber, publisher or viewer",
    "Unauthenticated": "the credentials are not accepted",
    "InvalidArgument": "the service refuses the request; a topic that has a schema takes only messages of it",
    "FailedPrecondition": "it is not in a state for that; a push subscription cannot be read",
    "DefaultCredentialsError": "there are no credentials here; set GOOGLE_APPLICATION_CREDENTIALS, or use an account "
    "of the machine",
}


def library() -> Any:
    """Google's client.

    Raises:
        SettingsError: it is not installed.
    """
    try:
        return import_module("google.cloud.pubsub_v1")
    except ImportError:
        raise SettingsError(
            ["Pub/Sub needs Google's client, which is not installed here; pip install 'quiltstream[gcp]'"]
        ) from None


@contextmanager
def _asking(what: str) -> Generator[None]:
    """Errors of the client as ours; what the service says may quote anything, and is not repeated.

    Raises:
        SettingsError: it cannot be done.
        CommandError: the service does not answer.
    """
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith(("google.", "grpc", "concurrent.futures")) and not isinstance(
            error, TimeoutError
        ):
            raise
        name = type(error).__name__
        if name in _WRONG:
            raise SettingsError([f"{what}: {_WRONG[name]}"]) from error
        raise CommandError(f"{what}: Pub/Sub says {name}", ExitCode.AWAY) from error


class Subscription(LiveSource):
    """A subscription that a live job reads; the runner's watermark says when its windows are complete.

    Raises:
        SettingsError: the messages cannot be used in this way.
    """

    declares: ClassVar[bool] = False

    def __init__(self, settings: Settings, given: PubSubSource, group: str | None = None) -> None:
        if settings.live.idle is not None:
            raise SettingsError(
                "live.idle is of sources whose windows end by what they declare, and of Pub/Sub they end by the "
                "runner's watermark, which does not wait for silent devices; leave it out"
            )
        self._settings, self._given = settings, given
        self._decoder = PayloadDecoder.of(settings, group=group)

    def begin(
        self,
        pace: PollingPolicy,
        options: PipelineOptions,
        *,
        client: Callable[[], Any] = lambda: library().SubscriberClient(),
        now_us: int | None = None,
    ) -> int | None:
        """Seek to where a run without a runner's state begins, with ``reread``.

        What another run acknowledged is gone for this one, unless the subscription keeps it and is sought back. The
        begin of ``pace`` is in the first missing window.

        Returns:
            Windows that start before this instant may lack readings; ``None``: none does.

        Raises:
            SettingsError: the subscription cannot be read again, or is not there.
            CommandError: the service does not answer.
        """
        if goes_on(options):
            return None
        now = time.time_ns() // 1_000 if now_us is None else now_us
        window_us, before_us = needed_us(self._settings, pace)
        whole_us = now + before_us
        if self._given.reread is not None:
            back = parse_duration(self._given.reread) + before_us
            kept_us = now - self._sought(min(now, max(0, window_us - back)), client)
            whole_us = window_us if kept_us <= window_us - back else kept_us + back
        if whole_us <= window_us:
            return None
        if self._settings.schedule.start is not None:
            click.echo(
                f"source.pubsub: windows that start before {format_instant(whole_us)} may lack readings that an "
                "earlier run took, and say unavailable"
                + ("" if self._given.reread is not None else "; with source.pubsub.reread a run reads them again"),
                err=True,
            )
        return whole_us

    def _sought(self, at_us: int, client: Callable[[], Any]) -> int:
        """Seek to an instant; for how many microseconds the subscription keeps messages."""
        name = self._given.subscription
        with _asking(f"source.pubsub: {name}"), client() as service:
            found = service.get_subscription(request={"subscription": name}, timeout=_ANSWER_S)
            kept = [found.message_retention_duration] if found.retain_acked_messages else []
            kept += [found.topic_message_retention_duration] if found.topic_message_retention_duration else []
            if not kept:
                raise SettingsError(
                    [
                        f"source.pubsub.reread: {name} keeps nothing that was acknowledged; set retain_acked_messages "
                        "for it, or message_retention_duration for its topic, or leave reread out"
                    ]
                )
            when = datetime.fromtimestamp(at_us / 1e6, UTC)
            service.seek(request={"subscription": name, "time": when}, timeout=_ANSWER_S)
        return int(max(one.total_seconds() for one in kept) * 1e6)

    def read(self, pace: PollingPolicy) -> ReadSubscription:
        """The reading of the subscription."""
        given = self._given
        return ReadSubscription(
            given.subscription,
            self._decoder,
            pace.steps,
            timestamp_attribute=given.timestamp_attribute,
            id_attribute=given.id_attribute,
        )


class SinkTopic(LiveSink):
    """A topic, whose content cannot be read: the last windows on record are sent again when a run begins."""

    def __init__(self, given: PubSubSink, publisher: Callable[[], Any] = lambda: library().PublisherClient()) -> None:
        self._given, self._publisher = given, publisher

    def releases(self) -> SendRows:
        """The sending of releases."""
        return SendRows(self._given.topic, self._given.format)

    def rejects(self) -> SendRows:
        """The sending of rejects."""
        return SendRows(self._given.topic, self._given.format, rejects=True)

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
        given, names = self._given, (registration.domain.name, registration.query.name)
        entries = store.entries(names[0]) if given.resend else []
        starts = sorted(one.window_start for one in entries if one.query == names[1] and one.decision == "charged")
        if not starts:
            return 0
        sent, blocks, what = list[Any](), 0, f"sink.pubsub: {given.topic}"
        try:
            with _asking(what):
                client = self._publisher()
                for record in store.records(*names, after=(starts[-given.resend :][0], -1)):
                    if record.block is not None:
                        rows = release_messages(rows_of(registration, record), given.format)
                        sent += [client.publish(given.topic, body, **more) for body, more in with_attributes(rows)]
                        blocks += 1
                for one in sent:
                    one.result(timeout=_ANSWER_S)
        except SettingsError as error:
            raise CommandError(f"{error}. What was charged is on record: mend it and run again") from error
        return blocks


def sink(settings: Settings, field: Field, given: PubSubSink) -> LiveSink:  # noqa: ARG001 - as every connector's
    """A sink of settings that name a topic."""
    return SinkTopic(given)


source = Subscription
