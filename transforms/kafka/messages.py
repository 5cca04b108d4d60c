"""Messages of confluent-kafka as columns, what a decoder makes of them, and the last ones of a topic."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import methodcaller
from typing import Any

import numpy as np

from ...schemas.readings import RejectReason
from ...schemas.slots import YEAR_1971_US
from ..formats.rows import Decoded
from ..payloads.messages import Headers, MessageDecoder, Messages, rejects_of
from .client import (
    LOOK_S,
    LOOKING,
    Cluster,
    KafkaUnavailableError,
    as_unavailable,
    look,
    name_of,
    topic_partition,
    unavailable,
)

#: The kind of a stamp that the broker made; ``TIMESTAMP_LOG_APPEND_TIME`` of confluent-kafka, which is an extra.
_THE_BROKERS = 2

#: The headers by which the gateway says that the MQTT broker may have sent a message before, or had kept it.
REPEATED = frozenset({("mqtt-dup", b"1"), ("mqtt-retain", b"1")})

#: The header by which the gateway says when it took a message.
_RECEIVED = "mqtt-received-us"

#: confluent-kafka gives a broken list and an error at once for headers that it cannot read: Python notices that where a
#: method is called in this way, and not always where it is called by its name.
_HEADERS = methodcaller("headers")

#: In the place of headers that cannot be read; they must not be read again.
_ILLEGIBLE: list[tuple[str, bytes | None]] = [("illegible", None)]


def headers_of(message: Any) -> Headers | None:
    """The headers of a message of confluent-kafka; ``None`` if one has a name that is no UTF-8, which loses all."""
    try:
        found = _HEADERS(message)
    except (UnicodeDecodeError, SystemError):
        message.set_headers(_ILLEGIBLE)
        return None
    return None if found is _ILLEGIBLE else found or ()


def decoded_by(decoder: MessageDecoder, group: Sequence[Any]) -> tuple[Messages, list[Decoded]]:
    """Messages of confluent-kafka as columns, and what a decoder makes of them.

    Those whose headers cannot be read are rejects: it is unknown what they say of series and time, nor whether they say
    that the message may have come before. Tombstones are none, whatever their headers.
    """
    headers = [headers_of(one) for one in group]
    messages = messages_of(group, headers)
    legible = np.array(
        [had is not None or body is None for had, body in zip(headers, messages.payloads, strict=True)], np.bool_
    )
    if legible.all():
        return messages, decoder.decode(without_second_times(messages))
    readable = messages.some(np.flatnonzero(legible).tolist())
    decoded = decoder.decode(without_second_times(readable)) if len(readable) else []
    bad = rejects_of(RejectReason.MALFORMED_ROW, messages, np.flatnonzero(~legible))
    return messages, [*decoded, Decoded(None, 0, (bad,))]


def messages_of(group: Sequence[Any], headers: Sequence[Headers | None] | None = None) -> Messages:
    """Messages of confluent-kafka as columns; their headers are read unless they are given."""
    count = len(group)
    stamps = np.fromiter((one.timestamp()[1] for one in group), np.int64, count)
    return Messages(
        payloads=[one.value() for one in group],
        topics=[group[0].topic()] * count if group else [],
        keys=[one.key() for one in group],
        headers=[one or () for one in (map(headers_of, group) if headers is None else headers)],
        stamps_us=np.where(stamps < 0, -1, stamps * 1_000),
        positions=np.fromiter((one.offset() for one in group), np.int64, count),
    )


def came_us(group: Sequence[Any]) -> int | None:
    """When the last of some messages of confluent-kafka came, by the broker's clock.

    ``None`` unless the broker stamped them all: other stamps are the producers', and say nothing for certain.
    """
    # stamps cost a call each: in most topics they are all the producers', and the first message says so
    if not group or group[0].timestamp()[0] != _THE_BROKERS:
        return None
    stamps = [one.timestamp() for one in group]
    return _set(1_000 * max(at for _, at in stamps)) if all(kind == _THE_BROKERS for kind, _ in stamps) else None


def sent_us(messages: Messages) -> int | None:
    """When the last of some messages was stamped; ``None`` without a stamp, or by a clock that was never set."""
    return _set(int(messages.stamps_us.max(initial=-1)))


def _set(latest_us: int) -> int | None:
    return latest_us if latest_us >= YEAR_1971_US else None


def without_second_times(messages: Messages) -> Messages:
    """The same, but for the times of arrival of those that may have come before: the stamp, and the gateway's header.

    Such a time is not when the message came first: a reading without a time of its own would be counted in two slots,
    and the second is a copy, which no belief about the series explains. So it has none, and is rejected.
    """
    repeated = [not REPEATED.isdisjoint(one) for one in messages.headers]
    if not any(repeated):
        return messages
    headers = [
        [pair for pair in one if pair[0] != _RECEIVED] if again else one
        for one, again in zip(messages.headers, repeated, strict=True)
    ]
    return replace(messages, headers=headers, stamps_us=np.where(repeated, -1, messages.stamps_us))


def to_the_end(consumer: Any, left: set[tuple[str, int]], patience_s: float, where: str) -> Iterator[Any]:
    """The messages of partitions until none is left, which they leave at their ends."""
    heard = time.monotonic()
    while left:
        got = consumer.consume(1_000, 0.2)
        if got:
            heard = time.monotonic()
        elif time.monotonic() - heard > patience_s:
            raise KafkaUnavailableError(f"{where}: no broker answered in time", passing=True)
        for one in got:
            if one.error() is None:
                yield one
            elif name_of(one.error()) == "_PARTITION_EOF":
                left.discard((one.topic(), one.partition()))
            else:
                raise unavailable(where, one.error())


#: Seconds without a message before the last ones of topics are given up.
_LAST_S = 10.0


def last_messages(cluster: Cluster, topics: Sequence[str], count: int) -> Messages:
    """The last messages of topics, by their stamps; nothing is committed, and no offset is kept."""
    look(cluster, topics)
    where = f"brokers {cluster.servers}"
    consumer = cluster.consume(LOOKING)
    try:
        with as_unavailable(where):
            found = list(_last(consumer, topics, count, where))
    finally:
        consumer.close()
    found.sort(key=lambda one: one.timestamp()[1])
    last = found[-count:]
    return replace(messages_of(last), topics=[one.topic() for one in last])


def _last(consumer: Any, topics: Sequence[str], count: int, where: str) -> Iterator[Any]:
    ends: dict[tuple[str, int], int] = {}
    starts: list[Any] = []
    for topic in topics:
        for number in consumer.list_topics(topic, timeout=LOOK_S).topics[topic].partitions:
            place = topic_partition(topic, number, -1)
            first, end = consumer.get_watermark_offsets(place, timeout=LOOK_S, cached=False)
            if first < end:
                ends[topic, number] = end
                starts.append(topic_partition(topic, number, max(first, end - count)))
    consumer.assign(starts)
    left = set(ends)
    for one in to_the_end(consumer, left, _LAST_S, where):
        place = (one.topic(), one.partition())
        if one.offset() < ends[place]:
            yield one
        if one.offset() >= ends[place] - 1:
            left.discard(place)
