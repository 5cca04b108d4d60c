"""Where a lane begins in partitions that it has no offset of.

Latest, an instant and a group's offsets mean something else each time they are looked up, so they are looked up once
and kept as offsets from then on. A partition that appears later is read from its beginning: all of it is new.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from .client import is_kafkas, topic_partition

Place = tuple[str, int]
"""A topic and a partition of it."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where a first run begins.

    Attributes:
        kind: ``instant`` is the first message that the broker stamped at an instant or later; ``group`` where a
            consumer group has committed, or the earliest message where it has not.
        instant_us: that instant.
    """

    kind: Literal["earliest", "latest", "group", "instant"] = "earliest"
    instant_us: int = 0

    def __post_init__(self) -> None:
        if self.kind == "instant" and self.instant_us < 0:
            raise ValueError(f"a start at {self.instant_us} us is before 1970, where no broker stamps messages")


#: In the place of an instant it asks for the offset behind the last message.
_THE_END = -1

#: Where partitions that appear later begin.
EARLIEST = Start()


def first_offsets(consumer: Any, places: Iterable[Place], start: Start, timeout_s: float) -> dict[Place, int]:
    """The offsets where some partitions begin: those of :func:`begins`, alone."""
    return {place: one.offset for place, one in begins(consumer, places, start, timeout_s).items()}


class Begin(NamedTuple):
    """Where a partition begins.

    Attributes:
        offset: where it is read from.
        first: the oldest offset that is there.
        last_passed: the offset of the last message that an instant passes over, which says when all of these came.
    """

    offset: int
    first: int
    last_passed: int | None = None


def begins(consumer: Any, places: Iterable[Place], start: Start, timeout_s: float) -> dict[Place, Begin]:
    """Where some partitions begin.

    Args:
        consumer: of confluent-kafka; for ``group`` it has the group's name.
        places: the partitions.
        start: where.
        timeout_s: how long one question to the broker may take.

    Raises:
        Exception: confluent-kafka's, if the broker does not answer.
    """
    wanted = list(places)
    ends = {
        place: consumer.get_watermark_offsets(topic_partition(*place, -1), timeout=timeout_s, cached=False)
        for place in wanted
    }
    found: dict[Place, int] = {}
    if start.kind == "instant":
        asked = [topic_partition(*place, start.instant_us // 1_000) for place in wanted]
        found = _offsets(consumer.offsets_for_times(asked, timeout=timeout_s))
        found = {place: ends[place][1] if offset < 0 else offset for place, offset in found.items()}
    elif start.kind == "group":
        found = _offsets(consumer.committed([topic_partition(*place, -1) for place in wanted], timeout=timeout_s))
    elif start.kind == "latest":
        found = {place: end for place, (_, end) in ends.items()}
    return {place: _begin(max(found.get(place, -1), first), first, start) for place, (first, _) in ends.items()}


def _begin(offset: int, first: int, start: Start) -> Begin:
    passed = start.kind == "instant" and offset > first
    return Begin(offset, first, offset - 1 if passed else None)


def last_offsets(consumer: Any, places: Iterable[Place], timeout_s: float) -> dict[Place, int]:
    """The offsets where some partitions end, as their leaders say now; those without an answer are left out.

    Args:
        consumer: of confluent-kafka.
        places: the partitions.
        timeout_s: how long it may take.

    Raises:
        Exception: confluent-kafka's, if a broker does not answer.
    """
    asked = [topic_partition(*place, _THE_END) for place in places]
    answered = consumer.offsets_for_times(asked, timeout=timeout_s) if asked else []
    return {(one.topic, one.partition): one.offset for one in answered if one.error is None and one.offset >= 0}


def seek_again(consumer: Any, offsets: Mapping[Place, int]) -> None:
    """Have some partitions that are assigned asked for again from some offsets on."""
    for place, offset in offsets.items():
        try:
            consumer.seek(topic_partition(*place, offset))
        except Exception as error:  # noqa: PERF203 - each partition for itself
            # one that was assigned this moment cannot be sought yet
            if not is_kafkas(error):
                raise


def _offsets(answered: Iterable[Any]) -> dict[Place, int]:
    found: dict[Place, int] = {}
    for one in answered:
        if one.error is not None:
            raise _failed(one.error)
        found[one.topic, one.partition] = one.offset
    return found


def _failed(error: Any) -> Exception:
    from confluent_kafka import KafkaException  # noqa: PLC0415 - an extra; the consumer came from it

    return KafkaException(error)


__all__ = ["EARLIEST", "Begin", "Place", "Start", "begins", "first_offsets", "last_offsets", "seek_again"]
