"""Partitions of a Kafka topic: offsets, where reading begins, gaps, and the identity of the topic.

*Start.* Latest, an instant and a group's offsets mean something else each time they are looked up, so they are looked
up once and kept as offsets. A partition that appears later is read from its beginning: all of it is new.

*Gaps.* What lies before the first message that is read of a partition is missing, and so is what retention took while
the reader was away. It came before the first message that is read behind it, and a reading is not taken after it came.
So where the broker stamps messages when they come, windows that start after the stamp of that message miss nothing,
nor do windows that start after an instant at which a run begins. Until that message is there, and where it is the
producers who stamp, whose clocks may be wrong, the gap goes to the moment at which it was found. All of this is offsets
and stamps; nothing of it depends on what messages hold.

>>> gaps = Gaps()
>>> gaps.found(("load", 0), 9_000_000)
>>> gaps.until_us
9000000
>>> gaps.read(("load", 0), 4_000_000)
>>> gaps.until_us
4000000

*Identity.* A topic that is deleted and made anew has the same name and another id, which only an administrator's client
gets. The consumer fetches by name and offset: where the new topic has grown past an offset of the old one, it goes on
in the middle of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import TimeoutError as TooLate
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from ...schemas.settings.base import SettingsError
from .client import (
    LOG,
    Cluster,
    KafkaUnavailableError,
    as_unavailable,
    is_kafkas,
    meaning_of,
    topic_partition,
    unavailable,
)

Partition = tuple[str, int]
"""A topic and a partition of it."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where a first run begins."""

    # ``instant`` is the first message that the broker stamped at an instant or later; ``group`` where a consumer group
    # has committed, or the earliest message where it has not
    kind: Literal["earliest", "latest", "group", "instant"] = "earliest"
    instant_us: int = 0

    def __post_init__(self) -> None:
        if self.kind == "instant" and self.instant_us < 0:
            raise ValueError(f"a start at {self.instant_us} us is before 1970, where no broker stamps messages")


#: In the place of an instant: the offset behind the last message.
_THE_END = -1

#: Where partitions that appear later begin.
EARLIEST = Start()


def first_offsets(
    consumer: Any, places: Iterable[Partition], start: Start, timeout_s: float
) -> dict[Partition, tuple[int, int]]:
    """Where some partitions are read from, and the oldest offset that is there."""
    wanted = list(places)
    bounds = {
        place: consumer.get_watermark_offsets(topic_partition(*place, -1), timeout=timeout_s, cached=False)
        for place in wanted
    }
    found: dict[Partition, int] = {}
    if start.kind == "instant":
        instants = [topic_partition(*place, start.instant_us // 1_000) for place in wanted]
        found = _offsets(consumer.offsets_for_times(instants, timeout=timeout_s))
        found = {place: bounds[place][1] if offset < 0 else offset for place, offset in found.items()}
    elif start.kind == "group":
        found = _offsets(consumer.committed([topic_partition(*place, -1) for place in wanted], timeout=timeout_s))
    elif start.kind == "latest":
        found = {place: end for place, (_, end) in bounds.items()}
    return {place: (max(found.get(place, -1), first), first) for place, (first, _) in bounds.items()}


def last_offsets(consumer: Any, places: Iterable[Partition], timeout_s: float) -> dict[Partition, int]:
    """The offsets where some partitions end, as their leaders say now; those without an answer are left out."""
    ends = [topic_partition(*place, _THE_END) for place in places]
    answered = consumer.offsets_for_times(ends, timeout=timeout_s) if ends else []
    return {(one.topic, one.partition): one.offset for one in answered if one.error is None and one.offset >= 0}


def _offsets(answered: Iterable[Any]) -> dict[Partition, int]:
    found: dict[Partition, int] = {}
    for one in answered:
        if one.error is not None:
            from confluent_kafka import KafkaException  # noqa: PLC0415 - an extra; the consumer came from it

            raise KafkaException(one.error)
        found[one.topic, one.partition] = one.offset
    return found


class Gaps:
    """The last gap of each partition of a partition group."""

    def __init__(self, plain: Iterable[Sequence[Any]] = ()) -> None:
        self._until_us: dict[Partition, int] = {}
        #: those behind which no message was read yet, and before which instant at most it came what is missing there
        self._open: dict[Partition, int | None] = {}
        for topic, partition, until_us, still, *limit in plain:
            self._until_us[topic, partition] = until_us
            if still:
                self._open[topic, partition] = limit[0] if limit else None

    @property
    def plain(self) -> list[list[Any]]:
        """The gaps as a position has them."""
        gaps = sorted(self._until_us.items())
        return [[*place, until, place in self._open, self._open.get(place)] for place, until in gaps]

    @property
    def until_us(self) -> int | None:
        """The instant up to which the partition group may not have read everything; ``None`` without a gap."""
        return max(self._until_us.values(), default=None)

    def found(self, place: Partition, now_us: int, start: Start = EARLIEST) -> None:
        """Messages of a partition are gone that were not read, or are left out by a start."""
        self._until_us[place] = max(now_us, self._until_us.get(place, 0))
        self._open[place] = start.instant_us if start.kind == "instant" else None
        if start.kind == "latest":
            # what is passed over came before that was said, whenever the next message comes
            del self._open[place]

    def read(self, place: Partition, came_us: int | None) -> None:
        """A message behind a gap was read, which came at an instant by the broker's clock."""
        if place in self._open:
            limit_us = self._open.pop(place)
            if came_us is not None:
                self._until_us[place] = min(self._until_us[place], came_us if limit_us is None else limit_us)


def offsets_of(plain: Mapping[str, Any], topics: Sequence[str], lane: int, lanes: int) -> dict[Partition, int]:
    """The offsets of a position; none at the beginning."""
    if not plain:
        return {}
    if plain["lanes"] != lanes:
        raise SettingsError(
            f"source.kafka.lanes is {lanes}, and the runner's state was made with {plain['lanes']}: set it "
            "back, or begin the job anew without the state; it reads the topics again and publishes what is missing"
        )
    kept = {(topic, int(one)): at for topic, mine in plain["topics"].items() for one, at in mine.items()}
    offsets = {place: offset for place, offset in kept.items() if place[0] in topics}
    # another lane would read them from their beginning, and both declare windows by half of what they read
    if moved := [place for place in offsets if lane_of(topics, place, lanes) != lane]:
        raise SettingsError(
            f"source.kafka.topics: the runner's state was made with {moved[0][0]} at another place in their order, "
            "by which lanes share the partitions: set the order back and add topics at the end, or begin the job "
            "anew without the state; it reads the topics again and publishes what is missing"
        )
    return offsets


def by_topic(values: Mapping[Partition, int]) -> dict[str, dict[str, int]]:
    """Numbers of partitions as a position has them."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), value in sorted(values.items()):
        topics.setdefault(topic, {})[str(partition)] = value
    return topics


def lane_of(topics: Sequence[str], place: Partition, lanes: int) -> int:
    """The lane that reads a partition; topics take turns, so that small ones do not all meet in lane 0."""
    return (topics.index(place[0]) + place[1]) % lanes


def partition_name(place: Partition) -> str:
    """The name of a partition, as clocks and rejects have it."""
    return f"{place[0]}/{place[1]}"


def topic_ids(cluster: Cluster, topics: Iterable[str], timeout_s: float) -> dict[str, str]:
    """The ids of topics; none of brokers that do not say, because they are too old or away."""
    from confluent_kafka import TopicCollection  # noqa: PLC0415 - an extra

    try:
        # held until it has answered: one that is dropped takes its answers along
        admin = cluster.administer()
        described = admin.describe_topics(TopicCollection(list(topics)), request_timeout=timeout_s)
        ids = {topic: one.result(timeout_s + 1.0).topic_id for topic, one in described.items()}
    except Exception as error:
        if not (is_kafkas(error) or isinstance(error, TooLate)):
            raise
        LOG.debug("the ids of topics at %s are not told: %s", cluster.servers, meaning_of(error))
        return {}
    # brokers before 2.8 have none
    return {
        topic: str(one)
        for topic, one in ids.items()
        if one is not None and (one.get_most_significant_bits() or one.get_least_significant_bits())
    }


def compacted(cluster: Cluster, topics: Iterable[str], timeout_s: float) -> list[str]:
    """The topics that keep only the newest message of each key, as far as the brokers say."""
    from confluent_kafka.admin import (  # noqa: PLC0415 - an extra
        ConfigResource,  # pyright: ignore[reportPrivateImportUsage] - their documented place
        ResourceType,  # pyright: ignore[reportPrivateImportUsage]
    )

    found: list[str] = []
    admin = cluster.administer()
    asked = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    for topic, told in admin.describe_configs(asked, request_timeout=timeout_s).items():
        # not every user may see it
        with suppress(KafkaUnavailableError, TooLate), as_unavailable(topic.name):
            if "compact" in told.result(timeout_s + 1.0)["cleanup.policy"].value:
                found.append(topic.name)
    return found


def leaders(consumer: Any, topics: Iterable[str], servers: str, timeout_s: float) -> dict[Partition, bool]:
    """The partitions of some topics, and whether a broker leads each."""
    led: dict[Partition, bool] = {}
    for topic in topics:
        metadata = consumer.list_topics(topic, timeout=timeout_s).topics[topic]
        if metadata.error is not None:
            raise unavailable(f"topic {topic} at {servers}", metadata.error)
        led |= {(topic, number): one.leader >= 0 for number, one in metadata.partitions.items()}
    return led
