"""Kafka topics before a job begins: whether they can be used, and which rows a sink topic holds.

A job that was killed may have put rows on record that it never sent. So a live job reads its sink to its end before it
begins, and sends what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..payloads.messages import Messages
from ..sinks import DOMAIN, QUERY, SCHEMA
from .client import (
    NO_GROUP,
    SPEECHLESS,
    Cluster,
    KafkaUnavailableError,
    is_kafkas,
    name_of,
    topic_partition,
    unavailable,
)
from .partitions import EARLIEST, Partition, first_offsets
from .sink import Topic
from .source import headers_of, messages_of

#: How long the look may take.
_LOOK_S = 5.0

#: Options of a consumer that keeps no offsets.
LOOKING = {
    "group.id": NO_GROUP,
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
}

#: Names of the errors of brokers that are too old to say what a user may do.
_TOO_OLD = frozenset({"_UNSUPPORTED_FEATURE", "UNSUPPORTED_VERSION"})


def look(cluster: Cluster, topics: Iterable[str]) -> None:
    """See that topics are there; whether their messages may be read is known only when they are read."""
    said: list[object] = []
    consumer = cluster.consume(LOOKING, said.append)
    try:
        told = {topic: consumer.list_topics(topic, timeout=_LOOK_S).topics[topic].error for topic in topics}
    except Exception as error:
        if not is_kafkas(error):
            raise
        consumer.poll(0)  # the client was told why, and says so when it is asked
        found = [unavailable(f"brokers {cluster.servers}", one) for one in (*said, error)]
        lasting = next((one for one in found if not one.passing), None)
        # of a port that speaks something else the client says only that there is no answer
        if name_of(error) in SPEECHLESS and (wrong := cluster.wrong_port) is not None:
            lasting = KafkaUnavailableError(f"brokers {cluster.servers}: {wrong}")
        raise (lasting or found[-1]) from None
    finally:
        consumer.close()
    for topic, error in told.items():
        if error is not None:
            raise unavailable(f"topic {topic} at {cluster.servers}", error)


def look_to_write(topic: Topic) -> None:
    """See that a topic is there and that the user may send to it; nothing is sent.

    Brokers that do not say what a user may do are not asked further: the first message tells.
    """
    look(topic.cluster, (topic.name,))
    if not _may_write(topic):
        raise KafkaUnavailableError(f"{topic.text}: the user may not write to it; ask for the right to it")


def _may_write(topic: Topic) -> bool:
    from confluent_kafka import TopicCollection  # noqa: PLC0415 - an extra
    from confluent_kafka.admin import (  # noqa: PLC0415 - an extra
        AclOperation,  # pyright: ignore[reportPrivateImportUsage] - its documented place
    )

    admin = topic.cluster.administer()
    asked: Any = admin.describe_topics(
        TopicCollection([topic.name]), include_authorized_operations=True, request_timeout=_LOOK_S
    )
    try:
        allowed = asked[topic.name].result().authorized_operations
    except Exception as error:
        if not is_kafkas(error):
            raise
        if name_of(error) in _TOO_OLD:
            return True
        raise unavailable(topic.text, error) from None
    return not allowed or not {AclOperation.WRITE, AclOperation.ALL}.isdisjoint(allowed)


def last_messages(cluster: Cluster, topics: Sequence[str], count: int) -> Messages:
    """The last messages of topics, by their stamps; nothing is committed, and no offset is kept."""
    look(cluster, topics)
    consumer = cluster.consume(LOOKING)
    try:
        found = _last(consumer, topics, count)
    except Exception as error:
        if not is_kafkas(error):
            raise
        raise unavailable(f"brokers {cluster.servers}", error) from None
    finally:
        consumer.close()
    found.sort(key=lambda one: one.timestamp()[1])
    last = found[-count:]
    return replace(messages_of(last), topics=[one.topic() for one in last])


def _last(consumer: Any, topics: Sequence[str], count: int) -> list[Any]:
    places = [
        (topic, one)
        for topic in topics
        for one in consumer.list_topics(topic, timeout=_LOOK_S).topics[topic].partitions
    ]
    ends = {
        place: consumer.get_watermark_offsets(topic_partition(*place, -1), timeout=_LOOK_S, cached=False)
        for place in places
    }
    starts = {place: max(first, end - count) for place, (first, end) in ends.items() if first < end}
    consumer.assign([topic_partition(*place, offset) for place, offset in starts.items()])
    left, found = set(starts), list[Any]()
    for one in _to_the_end(consumer, left, _ANSWER_S):
        last = ends[one.topic(), one.partition()][1] - 1
        if one.offset() <= last:
            found.append(one)
        if one.offset() >= last:
            left.discard((one.topic(), one.partition()))
    return found


def _to_the_end(consumer: Any, left: set[Partition], patience_s: float, where: str = "") -> Iterator[Any]:
    """The messages of partitions until none is left, which they leave at their ends."""
    heard = time.monotonic()
    while left:
        got = consumer.consume(10_000, 0.2)
        if got:
            heard = time.monotonic()
        elif time.monotonic() - heard > patience_s:
            raise KafkaUnavailableError(f"{where}: no broker answered in time".removeprefix(": "), passing=True)
        for one in got:
            if one.error() is None:
                yield one
            elif name_of(one.error()) == "_PARTITION_EOF":
                left.discard((one.topic(), one.partition()))
            else:
                raise unavailable(where or f"topic {one.topic()}", one.error())


_ANSWER_S = 10.0

#: Seconds without a message before it is given up.
_PATIENCE_S = 60.0


def read_ids(
    topic: Topic, domain: str, query: str, take: Callable[[str], None], *, patience_s: float = _PATIENCE_S
) -> bool:
    """Read a topic of releases to its end; rows that are there twice are given twice.

    Returns:
        Whether the topic has lost its beginning, as topics that are not compacted do.

    Raises:
        KafkaUnavailableError: the topic cannot be read, or holds messages that are no releases.
    """
    consumer = topic.cluster.consume(LOOKING)
    try:
        return _read(consumer, topic, (domain.encode(), query.encode()), take, patience_s)
    except KafkaUnavailableError:
        raise
    except Exception as error:
        if not is_kafkas(error):
            raise
        raise unavailable(topic.text, error) from None
    finally:
        consumer.close()


def _read(
    consumer: Any, topic: Topic, names: tuple[bytes, bytes], take: Callable[[str], None], patience_s: float
) -> bool:
    told = consumer.list_topics(topic.name, timeout=_ANSWER_S).topics[topic.name]
    if told.error is not None:
        raise unavailable(topic.text, told.error)
    places: list[Partition] = [(topic.name, one) for one in told.partitions]
    starts = first_offsets(consumer, places, EARLIEST, _ANSWER_S)
    consumer.assign([topic_partition(*place, offset) for place, offset in starts.items()])
    for one in _to_the_end(consumer, set(places), patience_s, topic.text):
        _take(one, topic, names, take)
    return any(starts.values())


def _take(message: Any, topic: Topic, names: tuple[bytes, bytes], take: Callable[[str], None]) -> None:
    if message.value() is None:
        return
    headers = dict(headers_of(message) or ())
    if headers.get(SCHEMA) != b"release" or message.key() is None:
        raise KafkaUnavailableError(f"{topic.text} holds messages that are no releases of quiltstream: name another")
    if (headers.get(DOMAIN), headers.get(QUERY)) == names:
        take(message.key().decode())
