"""A look at topics before a job begins: whether they are there, and whether rows may be sent to them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .client import NO_GROUP, SPEECHLESS, Cluster, KafkaUnavailableError, is_kafkas, name_of, unavailable
from .sink import Topic

#: How long the look may take.
_ANSWER_S = 5.0

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
    """See that topics are there; whether their messages may be read is only known when somebody reads them.

    Raises:
        KafkaUnavailableError: one is not, the user may not even see it, or the brokers cannot be asked.
    """
    said: list[object] = []
    consumer = cluster.consume(LOOKING, said.append)
    try:
        told = {topic: consumer.list_topics(topic, timeout=_ANSWER_S).topics[topic].error for topic in topics}
    except Exception as error:
        if not is_kafkas(error):
            raise
        consumer.poll(0)  # the client was told why, and says so when it is asked
        found = [unavailable(f"brokers {cluster.servers}", one) for one in (*said, error)]
        lasting = next((one for one in found if not one.passing), None)
        # of a port that speaks something else the client says only that nobody answers
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

    Raises:
        KafkaUnavailableError: it is not, the user may not, or the brokers cannot be asked.
    """
    look(topic.cluster, (topic.name,))
    if not _may_write(topic):
        raise KafkaUnavailableError(f"{topic.text}: the user may not write to it; ask for the right to it")


def _may_write(topic: Topic) -> bool:
    from confluent_kafka import TopicCollection  # noqa: PLC0415 - an extra
    from confluent_kafka.admin import (  # noqa: PLC0415 - an extra
        AclOperation,  # pyright: ignore[reportPrivateImportUsage] - its documented place
    )

    admin = topic.cluster.administer({})
    asked: Any = admin.describe_topics(
        TopicCollection([topic.name]), include_authorized_operations=True, request_timeout=_ANSWER_S
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


__all__ = ["LOOKING", "look", "look_to_write"]
