"""Whether a topic is still the one whose offsets a position has: one that is deleted and made anew has the same name.

Brokers give every topic an id of its own, which only an administrator's client is told. The consumer asks for messages
by name and offset: where the new topic has grown past an offset of the old one, it goes on in the middle of it and
notices nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import TimeoutError as TooLate
from dataclasses import dataclass
from typing import Any

from .client import LOG, Cluster, is_kafkas, meaning_of


@dataclass(frozen=True, slots=True)
class KnownTopic:
    """What was known of a topic before a job began.

    Attributes:
        id: the brokers' name of it.
        lost_us: the instant before which readings may be gone with a topic that it replaced; ``None``: none.
    """

    id: str
    lost_us: int | None = None


class TopicIds:
    """The ids of the topics of a lane.

    Args:
        cluster: where the brokers are.
        ids: what is known of them, by their names.
    """

    def __init__(self, cluster: Cluster, ids: Mapping[str, str]) -> None:
        self._cluster = cluster
        self._admin: Any = None
        self.known = dict(ids)

    def made_anew(self, topics: Iterable[str], timeout_s: float) -> frozenset[str]:
        """The topics whose ids are others than they were; from now on the new ones are known.

        Where the brokers do not say, because they are too old or away, nothing is found, and what was known stays.

        Args:
            topics: their names.
            timeout_s: how long it may take.
        """
        found = self._asked(list(topics), timeout_s)
        anew = frozenset(topic for topic, one in found.items() if self.known.get(topic, one) != one)
        self.known |= found
        return anew

    def close(self) -> None:
        """Leave the brokers."""
        self._admin = None

    def _asked(self, topics: list[str], timeout_s: float) -> dict[str, str]:
        from confluent_kafka import TopicCollection  # noqa: PLC0415 - an extra

        try:
            if self._admin is None:
                self._admin = self._cluster.administer({})
            asked = self._admin.describe_topics(TopicCollection(topics), request_timeout=timeout_s)
            ids = {topic: one.result(timeout_s + 1.0).topic_id for topic, one in asked.items()}
        except Exception as error:
            if not (is_kafkas(error) or isinstance(error, TooLate)):
                raise
            LOG.debug("the ids of topics at %s are not told: %s", self._cluster.servers, meaning_of(error))
            return {}
        # brokers before 2.8 have none
        return {topic: str(one) for topic, one in ids.items() if one is not None and _is_given(one)}


def _is_given(one: Any) -> bool:
    return bool(one.get_most_significant_bits() or one.get_least_significant_bits())


__all__ = ["KnownTopic", "TopicIds"]
