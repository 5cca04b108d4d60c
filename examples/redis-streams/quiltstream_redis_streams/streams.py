"""The work: a client that reads a stream by positions, and a sender of rows.

A position is the name of the last entry that was read, and how many entries of the stream lie before it, read or
removed. The server counts the entries that were ever added, so what was removed unread is noticed:

    removed = entries ever added - entries there       lost = removed > counted
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import redis
from redis.exceptions import AuthorizationError

from quiltstream.pipelines.plugins import (
    BrokerUnavailableError,
    Fetched,
    FileSink,
    FollowedMessages,
    LiveSink,
    LiveSource,
    Message,
    MessageClient,
    MessagePartitions,
    Messages,
    MessageSender,
    MessageTopic,
    ResentTopic,
    Settings,
    decoder_of,
)
from quiltstream.schemas.settings.secrets import FromEnvironment, FromFile, SecretError

from . import SinkSection, SourceSection

__all__ = ["Stream", "Streams", "sink", "source"]

#: Entries that are fetched at once, and seconds that the server may take to answer.
_ENTRIES = 5_000
_ANSWER_S = 10.0

#: What the server would say of a stream that no entry was added to.
_NO_STREAM: dict[str, Any] = {"length": 0, "entries-added": 0, "last-generated-id": b"0-0", "first-entry": None}


@dataclass(frozen=True)
class Server:
    """A server and its user; the password is read on the worker that connects."""

    url: str
    username: str | None
    password: FromEnvironment | FromFile | None

    @staticmethod
    def of(settings: Settings, section: SourceSection | SinkSection) -> Server:
        """That of a section; a file with the password is placed beside the settings."""
        password = section.password
        return Server(section.url, section.username, None if password is None else password.located(settings.path))

    def connected(self) -> Any:
        """A client, which connects with its first command."""
        try:
            password = None if self.password is None else self.password.read()
        except SecretError as error:
            raise BrokerUnavailableError(str(error)) from None
        return redis.Redis.from_url(
            self.url,
            username=self.username,
            password=password,
            socket_timeout=_ANSWER_S,
            socket_connect_timeout=_ANSWER_S,
            protocol=2,
        )

    def unavailable(self, place: str, error: redis.RedisError) -> BrokerUnavailableError:
        """An error of the client in words; what a server says of a command may quote it, and is left out."""
        refused = isinstance(error, (redis.AuthenticationError, AuthorizationError))
        away = isinstance(error, (redis.ConnectionError, redis.TimeoutError)) and not refused
        why = "the user or the password is not accepted" if refused else type(error).__name__
        return BrokerUnavailableError(f"{place}: {self.url} cannot be used ({why})", passing=away)


class StreamClient(MessageClient):
    """Reads a stream."""

    def __init__(self, server: Server, key: str, field: str) -> None:
        self._server = server
        self._client = server.connected()
        self._key = key
        self._field = field.encode()

    def fetch(self, position: str) -> Fetched | None:
        """The entries behind a position; what the server counts is of the same moment."""
        after, counted = position.split(" ") if position else ("0-0", "0")
        try:
            asked = self._client.pipeline(transaction=True)
            asked.xread({self._key: after}, count=_ENTRIES)
            asked.xinfo_stream(self._key)
            answers: list[Any] = asked.execute(raise_on_error=False)
        except redis.RedisError as error:
            raise self._server.unavailable(f"source: stream {self._key}", error) from None
        answer, told = answers
        if isinstance(told, redis.ResponseError) and "no such key" in str(told):
            told = _NO_STREAM
        for one in (answer, told):
            if isinstance(one, redis.RedisError):
                raise self._server.unavailable(f"source: stream {self._key}", one)
        about = cast("dict[str, Any]", told)
        entries = answer[0][1] if answer else []
        before, lost_us = self._accounted(int(counted), about)
        if not entries and before == int(counted):
            return None
        behind = before + len(entries)
        last = entries[-1][0].decode() if entries else after
        return Fetched(
            self._messages(entries, before),
            f"{last} {behind}",
            settled=behind >= int(about["entries-added"]),
            came_us=_came_us(last) if entries else None,
            lost_us=lost_us,
        )

    @staticmethod
    def _accounted(counted: int, about: dict[str, Any]) -> tuple[int, int | None]:
        """How many entries lie before those that are there, and before when some were lost, if any were."""
        added, first = int(about["entries-added"]), about["first-entry"]
        removed = added - int(about["length"])
        if counted <= added and removed <= counted:
            return counted, None
        # removed unread, or the stream was made anew
        oldest = first[0] if first else about["last-generated-id"]
        return removed, _came_us(oldest.decode()) + 1_000

    def _messages(self, entries: list[Any], before: int) -> Messages:
        count = len(entries)
        bodies = [fields or {} for _, fields in entries]
        return Messages(
            payloads=[fields.get(self._field, b"") for fields in bodies],
            topics=[self._key] * count,
            keys=[None] * count,
            headers=[
                [(name.decode("utf-8", "replace"), value) for name, value in fields.items() if name != self._field]
                for fields in bodies
            ],
            stamps_us=np.array([_came_us(name.decode()) for name, _ in entries], np.int64),
            positions=np.arange(before, before + count, dtype=np.int64),
        )

    def before(self, position: str, since_us: int) -> Iterator[Messages]:
        """The entries up to a position that the server took from an instant on: their names begin with its clock."""
        last, begin = position.split(" ", maxsplit=1)[0], f"{since_us // 1_000}-0"
        while True:
            try:
                entries: list[Any] = self._client.xrange(self._key, begin, last, count=_ENTRIES)
            except redis.RedisError as error:
                raise self._server.unavailable(f"source: stream {self._key}", error) from None
            if not entries:
                return
            yield self._messages(entries, 0)
            begin = f"({entries[-1][0].decode()}"

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def _came_us(name: str) -> int:
    """When an entry came, by its name: milliseconds and a number."""
    return int(name.partition("-")[0]) * 1_000


@dataclass(frozen=True)
class Streams(MessagePartitions):
    """Streams of one server, each a part."""

    server: Server
    keys: tuple[str, ...]
    field: str

    @property
    def parts(self) -> int:
        """The streams."""
        return len(self.keys)

    def name(self, part: int) -> str:
        """The stream's key."""
        return self.keys[part]

    def client(self, part: int) -> StreamClient:
        """A client of a stream."""
        return StreamClient(self.server, self.keys[part], self.field)


class Sender(MessageSender):
    """Adds rows to a stream; a bundle is whole when the server has answered."""

    def __init__(self, topic: Stream, setting: str) -> None:
        self._topic = topic
        self._setting = setting
        self._client: Any = None
        self._waiting: list[dict[bytes | str, bytes]] = []

    def send(self, messages: Iterable[Message]) -> None:
        """Keep messages until the bundle ends."""
        for key, value, headers in messages:
            fields: dict[bytes | str, bytes] = {"payload": value, **dict(headers)}
            self._waiting.append(fields if key is None else {"release_id": key, **fields})

    def finish(self) -> None:
        """Add them all at once."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        try:
            if self._client is None:
                self._client = self._topic.server.connected()
            adding = self._client.pipeline(transaction=True)
            for fields in waiting:
                adding.xadd(self._topic.name, fields)
            adding.execute()
        except redis.RedisError as error:
            self.close()
            raise self._topic.server.unavailable(f"{self._setting}: stream {self._topic.name}", error) from None

    def close(self) -> None:
        """Close the connection."""
        client, self._client, self._waiting = self._client, None, []
        if client is not None:
            client.close()


@dataclass(frozen=True)
class Stream(MessageTopic):
    """A stream that rows are added to, as JSON."""

    kind = "redis-streams"
    server: Server
    name: str
    format = "json"

    def sender(self, field: str) -> Sender:
        """What adds rows to it."""
        return Sender(self, field)


def source(settings: Settings, group: str | None) -> LiveSource:
    """The source of settings that name streams."""
    section = settings.source.section if settings.source is not None else None
    assert isinstance(section, SourceSection)
    decoder = decoder_of(settings, group, "source.redis-streams", rereads=True)
    streams = Streams(decoder, Server.of(settings, section), tuple(section.streams), section.field)
    secrets = {} if section.password is None else {"source.redis-streams.password": streams.server.password}
    return FollowedMessages(streams, grouped=group is not None, secrets=secrets)


def sink(settings: Settings, field: str, given: FileSink) -> LiveSink:  # noqa: ARG001 - the signature is every connector's
    """The sink of settings that name a stream."""
    section = given.section
    assert isinstance(section, SinkSection)
    return ResentTopic(Stream(Server.of(settings, section), section.stream), section.resend)
