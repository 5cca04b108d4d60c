"""What is in a topic of releases: the ids of the rows that a query has there.

A job that was killed may have put rows on record that it never sent. So a live job reads its sink to its end before it
begins, and sends what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..message_sink import DOMAIN, QUERY, SCHEMA
from .client import KafkaUnavailableError, is_kafkas, name_of, topic_partition, unavailable
from .look import LOOKING
from .messages import headers_of
from .sink import Topic
from .start import EARLIEST, Place, first_offsets

_ANSWER_S = 10.0

#: Seconds without a message before it is given up.
_PATIENCE_S = 60.0


def read_ids(
    topic: Topic, domain: str, query: str, take: Callable[[str], None], *, patience_s: float = _PATIENCE_S
) -> bool:
    """Read a topic of releases to its end; rows that are there twice are given twice.

    Args:
        topic: the topic; releases of other queries in it are passed over, and so are tombstones.
        domain: the query's domain.
        query: its name.
        take: is given the release id of each row.
        patience_s: how long nothing may come.

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
    places: list[Place] = [(topic.name, one) for one in told.partitions]
    starts = first_offsets(consumer, places, EARLIEST, _ANSWER_S)
    consumer.assign([topic_partition(*place, offset) for place, offset in starts.items()])
    left, heard = set(places), time.monotonic()
    while left:
        messages = consumer.consume(10_000, 0.2)
        if messages:
            heard = time.monotonic()
        elif time.monotonic() - heard > patience_s:
            raise KafkaUnavailableError(f"{topic.text}: no broker answered in time", passing=True)
        for one in messages:
            if one.error() is None:
                _take(one, topic, names, take)
            elif name_of(one.error()) == "_PARTITION_EOF":
                left.discard((one.topic(), one.partition()))
            else:
                raise unavailable(topic.text, one.error())
    return any(starts.values())


def _take(message: Any, topic: Topic, names: tuple[bytes, bytes], take: Callable[[str], None]) -> None:
    if message.value() is None:
        return
    headers = dict(headers_of(message) or ())
    if headers.get(SCHEMA) != b"release" or message.key() is None:
        raise KafkaUnavailableError(f"{topic.text} holds messages that are no releases of quiltstream: name another")
    if (headers.get(DOMAIN), headers.get(QUERY)) == names:
        take(message.key().decode())


__all__ = ["read_ids"]
