"""Partitions of a Kafka topic: offsets, where reading begins, gaps, the identity of the topic, and who can be read.

*Start.* Latest, an instant and a group's offsets mean something else each time they are looked up, so they are looked
up once and kept as offsets. A partition that appears later is read from its beginning: all of it is new.

*Gaps.* What was sent before the first message that is read of a partition is missing, and so is what retention took
while the reader was away. It came before the first message behind it, and a reading is not taken after it came. So
where the broker stamps messages when they come, windows that start after the stamp of that message miss nothing. Until
that message is there, and where it is the producers who stamp, whose clocks may be wrong, the gap goes to the moment
at which it was found. A start at an instant is no exception: what a producer with a slow clock has just sent is stamped
before it. There the stamp of the last message that was passed over is read. All of this is offsets and stamps;
nothing of it depends on what messages hold.

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

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import TimeoutError as TooLate
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ...schemas.settings.base import SettingsError
from .client import (
    LOG,
    Cluster,
    KafkaUnavailableError,
    as_unavailable,
    is_kafkas,
    meaning_of,
    name_of,
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


def first_offsets(consumer: Any, places: Iterable[Partition], start: Start, timeout_s: float) -> dict[Partition, int]:
    """The offsets where some partitions begin: those of :func:`begins`, alone."""
    return {place: one.offset for place, one in begins(consumer, places, start, timeout_s).items()}


class Begin(NamedTuple):
    """Where a partition begins."""

    offset: int  # where it is read from
    first: int  # the oldest offset that is there
    # the offset of the last message that an instant passes over, which says when all of these came
    last_passed: int | None = None
    cut: bool = False  # whether messages that the start does not leave out are not there any more


def begins(consumer: Any, places: Iterable[Partition], start: Start, timeout_s: float) -> dict[Partition, Begin]:
    """Where some partitions begin."""
    wanted = list(places)
    ends = {
        place: consumer.get_watermark_offsets(topic_partition(*place, -1), timeout=timeout_s, cached=False)
        for place in wanted
    }
    found: dict[Partition, int] = {}
    if start.kind == "instant":
        instants = [topic_partition(*place, start.instant_us // 1_000) for place in wanted]
        found = _offsets(consumer.offsets_for_times(instants, timeout=timeout_s))
        found = {place: ends[place][1] if offset < 0 else offset for place, offset in found.items()}
    elif start.kind == "group":
        found = _offsets(consumer.committed([topic_partition(*place, -1) for place in wanted], timeout=timeout_s))
    elif start.kind == "latest":
        found = {place: end for place, (_, end) in ends.items()}
    begun: dict[Partition, Begin] = {}
    for place, (first, _) in ends.items():
        wanted_from = found.get(place, -1)
        offset = max(wanted_from, first)
        passed = start.kind == "instant" and offset > first
        # at the latest offset nothing is wanted of what was there; a group has read what lies before its offset
        read = start.kind == "latest" or (start.kind == "group" and wanted_from >= first)
        begun[place] = Begin(offset, first, offset - 1 if passed else None, offset == first > 0 and not read)
    return begun


def last_offsets(consumer: Any, places: Iterable[Partition], timeout_s: float) -> dict[Partition, int]:
    """The offsets where some partitions end, as their leaders say now; those without an answer are left out."""
    ends = [topic_partition(*place, _THE_END) for place in places]
    answered = consumer.offsets_for_times(ends, timeout=timeout_s) if ends else []
    return {(one.topic, one.partition): one.offset for one in answered if one.error is None and one.offset >= 0}


def to_the_end(consumer: Any, left: set[Partition], patience_s: float, where: str = "") -> Iterator[Any]:
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


def seek_again(consumer: Any, offsets: Mapping[Partition, int]) -> None:
    """Fetch some partitions that are assigned again from some offsets on."""
    for place, offset in offsets.items():
        # one that was assigned this moment cannot be sought yet
        with suppress(KafkaUnavailableError), as_unavailable(place[0]):
            consumer.seek(topic_partition(*place, offset))


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
        self._open = set[Partition]()
        for topic, partition, until_us, still in plain:
            self._until_us[topic, partition] = until_us
            if still:
                self._open.add((topic, partition))

    @property
    def plain(self) -> list[list[Any]]:
        """The gaps as a position has them."""
        return [[*place, until, place in self._open] for place, until in sorted(self._until_us.items())]

    @property
    def until_us(self) -> int | None:
        """The instant up to which the partition group may not have read everything; ``None`` without a gap."""
        return max(self._until_us.values(), default=None)

    def found(self, place: Partition, now_us: int) -> None:
        """Messages of a partition are gone that were not read."""
        self._until_us[place] = max(now_us, self._until_us.get(place, 0))
        self._open.add(place)

    def begun(self, place: Partition, begin: Begin, start: Start, now_us: int) -> None:
        """A partition group begins in a partition."""
        if not begin.offset:
            return
        self.found(place, now_us)
        if begin.offset > begin.first and start.kind == "latest":
            # what was passed over came before that was said, whenever the next message comes
            self._open.discard(place)

    def read(self, place: Partition, came_us: int | None) -> None:
        """A message behind a gap was read, or the last one within it."""
        if place in self._open:
            self._open.discard(place)
            if came_us is not None:
                self._until_us[place] = min(self._until_us[place], came_us)

    def of_partition(self, place: Partition) -> int | None:
        """The instant up to which a partition may not have been read in full; ``None`` without a gap."""
        return self._until_us.get(place)


def offsets_of(plain: Mapping[str, Any], topics: Sequence[str], lane: int, lanes: int) -> dict[Partition, int]:
    """The offsets of a position; none at the beginning."""
    if not plain:
        return {}
    if plain["lanes"] != lanes:
        raise SettingsError(
            f"source.kafka.lanes is {lanes}, and the runner's state was made with {plain['lanes']}: set it "
            "back, or begin the job anew without the state; it reads the topics again and publishes what is missing"
        )
    offsets = {place: offset for place, offset in from_topics(plain["topics"]).items() if place[0] in topics}
    # another lane would read them from their beginning, and both declare windows by half of what they read
    if moved := [place for place in offsets if lane_of(topics, place, lanes) != lane]:
        raise SettingsError(
            f"source.kafka.topics: the runner's state was made with {moved[0][0]} at another place in their order, "
            "by which lanes share the partitions: set the order back and add topics at the end, or begin the job "
            "anew without the state; it reads the topics again and publishes what is missing"
        )
    return offsets


def lane_of(topics: Sequence[str], place: Partition, lanes: int) -> int:
    """The lane that reads a partition; topics take turns, so that small ones do not all meet in lane 0."""
    return (topics.index(place[0]) + place[1]) % lanes


def from_topics(topics: Mapping[str, Mapping[str, int]]) -> dict[Partition, int]:
    """Numbers of partitions as a position has them."""
    return {(topic, int(one)): value for topic, mine in topics.items() for one, value in mine.items()}


def by_topic(values: Mapping[Partition, int]) -> dict[str, dict[str, int]]:
    """The same the other way round."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), value in sorted(values.items()):
        topics.setdefault(topic, {})[str(partition)] = value
    return topics


def partition_name(place: Partition) -> str:
    """The name of a partition, as clocks and rejects have it."""
    return f"{place[0]}/{place[1]}"


class TopicIdentities:
    """The ids of the topics of a partition group."""

    def __init__(self, cluster: Cluster, ids: Mapping[str, str]) -> None:
        self._cluster = cluster
        self._admin: Any = None
        self.known = dict(ids)

    def made_anew(self, topics: Iterable[str], timeout_s: float) -> frozenset[str]:
        """The topics whose ids are others than they were; from now on the new ones are known.

        Where the brokers do not say, because they are too old or away, nothing is found, and what was known stays.
        """
        found = self._described(list(topics), timeout_s)
        anew = frozenset(topic for topic, one in found.items() if self.known.get(topic, one) != one)
        self.known |= found
        return anew

    def close(self) -> None:
        """Leave the brokers."""
        self._admin = None

    def _described(self, topics: list[str], timeout_s: float) -> dict[str, str]:
        from confluent_kafka import TopicCollection  # noqa: PLC0415 - an extra

        try:
            if self._admin is None:
                self._admin = self._cluster.administer()
            described = self._admin.describe_topics(TopicCollection(topics), request_timeout=timeout_s)
            ids = {topic: one.result(timeout_s + 1.0).topic_id for topic, one in described.items()}
        except Exception as error:
            if not (is_kafkas(error) or isinstance(error, TooLate)):
                raise
            LOG.debug("the ids of topics at %s are not told: %s", self._cluster.servers, meaning_of(error))
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

    asked = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    found: list[str] = []
    # held until it has answered: one that is dropped takes its answers along
    admin = cluster.administer()
    for topic, told in admin.describe_configs(asked, request_timeout=timeout_s).items():
        # not every user may see it
        with suppress(KafkaUnavailableError, TooLate), as_unavailable(topic.name):
            if "compact" in told.result(timeout_s + 1.0)["cleanup.policy"].value:
                found.append(topic.name)
    return found


#: Seconds before the same thing is said again.
_SAID_AGAIN_S = 300.0

#: Partitions that a message names at most.
_SHOWN = 3

_NO_LEADER = "has no leader now, or is not there any more; its brokers may be away"


class Said:
    """The last log line of one matter; the log repeats an equal line only after some minutes."""

    def __init__(self) -> None:
        self._last: tuple[str | None, float] = (None, 0.0)

    def again(self, text: str | None) -> bool:
        """Whether this was said of late, or nothing is still to be said; it counts as said from now on."""
        now, (before, since) = time.monotonic(), self._last
        if text == before and (text is None or now - since < _SAID_AGAIN_S):
            return True
        self._last = text, now
        return False


class Health:
    """The partitions of a partition group that cannot be read."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self.leaderless = frozenset[Partition]()  # those that no broker leads
        self.denied: dict[Partition, str] = {}  # those whose leader refuses to hand messages over, and why
        self._said = Said()

    def __contains__(self, place: Partition) -> bool:
        """Whether a partition cannot be read."""
        return place in self.leaderless or place in self.denied

    @property
    def trouble(self) -> str | None:
        """What is wrong, in words; ``None`` if nothing is."""
        causes: Mapping[Partition, str] = dict.fromkeys(self.leaderless, _NO_LEADER) | self.denied
        by_cause = {
            cause: [partition_name(one) for one in sorted(causes) if causes[one] == cause]
            for cause in sorted(set(causes.values()))
        }
        found = [f"{shown(named)} at {self._servers}: {cause}" for cause, named in by_cause.items()]
        return "; ".join(found) or None

    def looked(self, leaderless: Iterable[Partition]) -> None:
        """The brokers have said which partitions have no leader."""
        self.leaderless = frozenset(leaderless)
        self._tell()

    def deny(self, place: Partition, cause: str) -> None:
        """A leader does not hand over what is in a partition."""
        self.denied[place] = cause
        self._tell()

    def heard(self, place: Partition) -> None:
        """Something came of a partition."""
        if place in self.denied:
            del self.denied[place]
            self._tell()

    def _tell(self) -> None:
        text = self.trouble
        if not self._said.again(text):
            LOG.warning("%s", text or f"every partition at {self._servers} can be read again")


def leaders(consumer: Any, topics: Iterable[str], servers: str, timeout_s: float) -> dict[Partition, bool]:
    """The partitions of some topics, and whether a broker leads each."""
    led: dict[Partition, bool] = {}
    for topic in topics:
        metadata = consumer.list_topics(topic, timeout=timeout_s).topics[topic]
        if metadata.error is not None:
            raise unavailable(f"topic {topic} at {servers}", metadata.error)
        led |= {(topic, number): one.leader >= 0 for number, one in metadata.partitions.items()}
    return led


def reachable(
    consumer: Any, topics: Iterable[str], servers: str, places: Collection[Partition], timeout_s: float
) -> bool:
    """Whether brokers name some topics, and the leaders of some of their partitions answer.

    Neither where the consumer reads nor what it has fetched is touched.
    """
    with suppress(KafkaUnavailableError), as_unavailable(servers):
        led = leaders(consumer, topics, servers, timeout_s)
        return all(led.get(place) for place in places) and set(places) <= set(last_offsets(consumer, places, timeout_s))
    return False


def shown(named: Sequence[str], more: str = "{} more") -> str:
    """Some names, or the first of them and how many more."""
    left = len(named) - _SHOWN
    return ", ".join(named[:_SHOWN]) + (f" and {more.format(left)}" if left > 0 else "")
