"""What is wrong with single partitions of a lane while the others can be read, in words, and how often it is said."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from .client import LOG, KafkaUnavailableError, is_kafkas, unavailable
from .start import Place, last_offsets

#: Seconds before the same thing is said again.
_REPEAT_S = 300.0

#: Partitions that a message names at most.
_SHOWN = 3

_NO_LEADER = "has no leader now, or is not there any more; its brokers may be away"


class Health:
    """The partitions of a lane that cannot be read.

    Args:
        servers: the brokers, for messages.
    """

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._leaderless: set[Place] = set()
        self._denied: dict[Place, str] = {}
        self._said: tuple[str | None, float] = (None, 0.0)

    @property
    def leaderless(self) -> frozenset[Place]:
        """Those that no broker leads."""
        return frozenset(self._leaderless)

    @property
    def denied(self) -> frozenset[Place]:
        """Those whose leader refuses to hand messages over."""
        return frozenset(self._denied)

    def __contains__(self, place: Place) -> bool:
        """Whether a partition cannot be read."""
        return place in self._leaderless or place in self._denied

    @property
    def trouble(self) -> str | None:
        """What is wrong, in words; ``None`` if nothing is."""
        causes: Mapping[Place, str] = dict.fromkeys(self._leaderless, _NO_LEADER) | self._denied
        found = [
            f"{_named(place for place, one in causes.items() if one == cause)} at {self._servers}: {cause}"
            for cause in sorted(set(causes.values()))
        ]
        return "; ".join(found) or None

    def looked(self, leaderless: Iterable[Place]) -> None:
        """The brokers have said which partitions have no leader."""
        self._leaderless = set(leaderless)
        self._tell()

    def deny(self, place: Place, cause: str) -> None:
        """A leader does not hand over what is in a partition."""
        self._denied[place] = cause
        self._tell()

    def heard(self, place: Place) -> None:
        """Something came of a partition."""
        if place in self._denied:
            del self._denied[place]
            self._tell()

    def _tell(self) -> None:
        """Say it when it changes, and now and then."""
        now, (before, told) = time.monotonic(), self._said
        text = self.trouble
        if text != before or (text is not None and now - told > _REPEAT_S):
            LOG.warning("%s", text or f"every partition at {self._servers} can be read again")
            self._said = (text, now)


def leaders(consumer: Any, topic: str, servers: str, timeout_s: float) -> dict[int, bool]:
    """The partitions of a topic, and whether a broker leads each.

    Args:
        consumer: of confluent-kafka.
        topic: its name.
        servers: the brokers, for messages.
        timeout_s: how long it may take.

    Raises:
        KafkaUnavailableError: the topic cannot be read.
        Exception: confluent-kafka's, if no broker answers.
    """
    told = consumer.list_topics(topic, timeout=timeout_s).topics[topic]
    if told.error is not None:
        raise unavailable(f"topic {topic} at {servers}", told.error)
    return {one: told.partitions[one].leader >= 0 for one in told.partitions}


def reachable(consumer: Any, topics: Iterable[str], servers: str, places: Collection[Place], timeout_s: float) -> bool:
    """Whether brokers name some topics, and the leaders of some of their partitions answer.

    Only questions are asked: neither where the consumer reads nor what it has fetched is touched.

    Args:
        consumer: of confluent-kafka.
        topics: the topics.
        servers: the brokers.
        places: the partitions.
        timeout_s: how long each question may take.
    """
    try:
        led = {
            (topic, one): has for topic in topics for one, has in leaders(consumer, topic, servers, timeout_s).items()
        }
        return all(led.get(place) for place in places) and set(places) <= set(last_offsets(consumer, places, timeout_s))
    except KafkaUnavailableError:
        return False
    except Exception as error:
        if not is_kafkas(error):
            raise
        return False


def _named(places: Iterable[Place]) -> str:
    named = [f"{topic}/{partition}" for topic, partition in sorted(places)]
    return ", ".join(named[:_SHOWN]) + (f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else "")


__all__ = ["Health", "leaders", "reachable"]
