"""What the author of a connector or a payload format imports, and the base of sources whose messages have positions.

The object of the entry point, a :class:`~quiltstream.schemas.settings.plugins.Connector`, is made of
``quiltstream.schemas.settings`` alone. The module that it names imports this one, and has the functions

``source(settings, group)``
    gives a :class:`LiveSource`: for messages a :class:`FollowedMessages`
``sink(settings, field, given)``
    gives a :class:`LiveSink`: for messages a :class:`ResentTopic`

``quiltstream.pipelines.plugin_contract`` has the tests that an author inherits, and ``docs/guides/plugins.md`` goes
through an example.

A reading counts once because of positions: a :class:`MessageClient` gives messages with the position behind them, the
runner keeps that position, and a client that begins there goes on. What comes twice is harmless, because a cell takes a
maximum over readings; what is left out silently is not, so a client says what it knows to be lost.
"""

from __future__ import annotations

import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from ..schemas.settings.base import SettingsError
from ..schemas.settings.connectors import FileSink
from ..schemas.settings.job import Settings
from ..store.domain_changes import SourceId
from ..transforms.payloads import PayloadDecoder
from ..transforms.payloads.messages import MessageDecoder, Messages, SourceAwayError
from ..transforms.sinks import Message, MessageFormat, MessageSender, MessageTopic
from ..transforms.sources.contract import (
    BEGIN,
    Attempts,
    BrokerUnavailableError,
    PartitionedSource,
    Reader,
    SourceBatch,
    WaitingDecoder,
    damaged,
    source_batch_of,
)
from ..transforms.sources.reader import PollingPolicy, ReadLive
from .connectors.live import LiveSink, LiveSource, ResentTopic, SourceRecord

__all__ = [
    "BEGIN",
    "BrokerUnavailableError",
    "Fetched",
    "FileSink",
    "FollowedMessages",
    "LiveSink",
    "LiveSource",
    "Message",
    "MessageClient",
    "MessageFormat",
    "MessagePartitions",
    "MessageReader",
    "MessageSender",
    "MessageTopic",
    "Messages",
    "PartitionedSource",
    "PayloadDecoder",
    "PollingPolicy",
    "ReadLive",
    "Reader",
    "ResentTopic",
    "Settings",
    "SettingsError",
    "SourceBatch",
    "SourceRecord",
    "decoder_of",
    "source_batch_of",
]

LOG = logging.getLogger("quiltstream.plugins")


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a client fetched at once."""

    messages: Messages  # in their order; there may be none
    position: str  # behind the last of them, as text
    settled: bool  # whether nothing more was there behind them
    # when the last of them came, by the clock of what took it from the producers, in microseconds since 1970; ``None``
    # if only the producers say it
    came_us: int | None = None
    # messages that came before this instant may be lost to this reader for ever, such as those whose retention ended
    # before they were read; ``None`` where none is. The source says it with the first messages behind the loss, and the
    # reader keeps it
    lost_us: int | None = None


class MessageClient(ABC):
    """Fetches the messages of one part of a source; it belongs to one reader."""

    @abstractmethod
    def fetch(self, position: str) -> Fetched | None:
        """The messages behind a position, a bounded number of them, without waiting for some to come.

        Args:
            position: of :class:`Fetched`; ``BEGIN`` where the settings say that a first run begins.

        Returns:
            ``None`` if there is nothing.

        Raises:
            BrokerUnavailableError: the source cannot be read. If that may pass, this client is closed and another one
                goes on from the same position; if not, the job ends.
        """

    def before(self, position: str, since_us: int) -> Iterable[Messages]:
        """The messages up to a position that came from an instant on, in their order, in batches.

        A reader of counters reads them where it begins at a position, and passes nothing of them on: it remembers
        the readings that the differences behind the position need. A source that has this, and whose messages have
        stamps, says so to :func:`decoder_of`; messages that are gone by then cost their series the first difference.

        Args:
            position: of :class:`Fetched`.
            since_us: by the stamps of the messages, in microseconds since 1970.

        Raises:
            BrokerUnavailableError: as of :meth:`fetch`.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no `before`; write it, or give decoder_of no rereads=True"
        )

    @abstractmethod
    def close(self) -> None:
        """Let go of connections; raises nothing."""


@dataclass(frozen=True)
class MessagePartitions(PartitionedSource):
    """A source of messages in parts, each with positions of its own; a plain value that travels to any worker."""

    decoder: MessageDecoder  # from messages to readings, as the settings say

    @abstractmethod
    def client(self, part: int) -> MessageClient:
        """A client for a part; it is made on the worker that reads it.

        Raises:
            BrokerUnavailableError: as of :meth:`MessageClient.fetch`.
        """

    @abstractmethod
    def name(self, part: int) -> str:
        """What rejects and messages call a part, without a secret."""

    def reader(self, part: int, position: str) -> MessageReader:
        """A reader of a part from a position on."""
        return MessageReader(self, part, position)


class MessageReader(Reader):
    """Reads one part by its client.

    Args:
        source: the source.
        part: its number.
        position: of the last batch; empty at the beginning.
    """

    def __init__(self, source: MessagePartitions, part: int, position: str) -> None:
        kept: dict[str, Any] = json.loads(position) if position else {}
        self._source = source
        self._part = part
        self._at: str = kept.get("at", BEGIN)
        self._lost_us: int | None = kept.get("lost")
        self._stamp_us: int | None = kept.get("stamp")
        self._decoding = WaitingDecoder(source.decoder)
        self._has_to_look_back = self._decoding.decoder.lookback_us > 0 and self._stamp_us is not None
        self._client: MessageClient | None = None
        self._held: Fetched | None = None
        self._attempts = Attempts(first_s=1.0)

    @property
    def trouble(self) -> str | None:
        """Why nothing can be read now."""
        return self._attempts.trouble or self._decoding.waiting

    def read(self) -> SourceBatch | None:
        """The next messages, as readings."""
        fetched = self._held or self._fetched()
        if fetched is None:
            return None
        messages = fetched.messages
        decoded = self._decoding.decoded(lambda decoder: decoder.decode(messages) if len(messages) else [])
        self._held = fetched if decoded is None else None
        if decoded is None:
            return None
        if fetched.lost_us is not None and fetched.lost_us > (self._lost_us or 0):
            self._lost_us = fetched.lost_us
            decoded = [*decoded, damaged(int(messages.positions[0]) if len(messages) else 0)]
        self._at, stamps = fetched.position, messages.stamps_us
        latest = int(stamps.max()) if len(stamps) else -1
        if self._decoding.decoder.lookback_us and len(stamps) and stamps[-1] > 0:
            # a clock that runs ahead must not make the look back too short
            self._stamp_us = min(int(stamps[-1]), time.time_ns() // 1_000)
        name, came_us = self._source.name(self._part), fetched.came_us
        known = {"came_us": came_us, "sent_us": latest if latest > 0 else None, "lost_us": self._lost_us}
        return self._decoding.batch(name, decoded, self._position, settled=fetched.settled, **known)

    def close(self) -> None:
        """Close the client."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    @property
    def _position(self) -> str:
        more = {"lost": self._lost_us, "stamp": self._stamp_us}
        kept = {"at": self._at} | {name: one for name, one in more.items() if one is not None}
        return json.dumps(kept, separators=(",", ":"))

    def _look_back(self, client: MessageClient) -> None:
        """Remember what the decoder needs of the messages before the position; one that comes twice changes nothing."""
        decoder = self._decoding.decoder
        for messages in client.before(self._at, max(0, (self._stamp_us or 0) - decoder.lookback_us)):
            decoder.decode(messages)
        self._has_to_look_back = False

    def _fetched(self) -> Fetched | None:
        if time.monotonic() < self._attempts.due:
            return None
        try:
            if self._client is None:
                self._client = self._source.client(self._part)
            if self._has_to_look_back:
                self._look_back(self._client)
            fetched = self._client.fetch(self._at)
        except SourceAwayError as error:
            self._attempts.failed(str(error))
            return None
        except BrokerUnavailableError as error:
            self.close()
            if not error.passing:
                raise
            if self._attempts.trouble is None:
                LOG.warning("%s", error)
            self._attempts.failed(str(error))
            return None
        if self._attempts.succeeded():
            LOG.warning("%s can be read again", self._source.name(self._part))
        return fetched


@dataclass(frozen=True)
class FollowedMessages(LiveSource):
    """The live source of messages: inherit it, make the partitions, and say what must be there when a job begins."""

    partitions: MessagePartitions  # the source
    grouped: bool  # whether the settings take the group from the messages
    secrets: Mapping[str, Any] = field(default_factory=dict[str, Any])  # the places of the source's secrets

    def missing_secrets(self) -> list[str]:
        """A line for each secret of the settings that is not in this process."""
        from ..schemas.settings.secrets import SecretError  # noqa: PLC0415 - used here alone

        problems: list[str] = []
        for setting, place in self.secrets.items():
            try:
                place.read()
            except SecretError as error:
                problems.append(f"{setting}: {error}")
        return problems

    def check(self) -> None:
        """See that every part is there; one that does not answer may answer the workers.

        Raises:
            SettingsError: one cannot be read.
        """
        for part in range(self.partitions.parts):
            try:
                with closing(self.partitions.client(part)) as client:
                    client.fetch(BEGIN)
            except BrokerUnavailableError as error:
                if not error.passing:
                    raise SettingsError([str(error)]) from error
                LOG.warning("%s", error)

    def read(self, pace: PollingPolicy, known: Mapping[str, SourceId] | None = None) -> ReadLive:  # noqa: ARG002 - of sources on record
        """The reading of the messages."""
        return ReadLive(self.partitions, pace, grouped=self.grouped)


def decoder_of(settings: Settings, group: str | None, setting: str, *, rereads: bool = False) -> PayloadDecoder:
    """The decoder of a source that is a :class:`MessagePartitions`.

    Args:
        settings: the job.
        group: as ``source`` was given it.
        setting: of the source, for messages.
        rereads: whether its clients have :meth:`MessageClient.before`, which counters need.

    Raises:
        SettingsError: the mapping cannot be used with such a source.
    """
    decoder = PayloadDecoder.of(settings, group=group)
    if decoder.lookback_us and not rereads:
        raise SettingsError(
            [
                f"readings.value is a register, whose differences need messages before a position again, and {setting} "
                "does not read them again: send differences, or bring the readings through Kafka"
            ]
        )
    return decoder
