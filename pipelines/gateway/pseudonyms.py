"""Levels of the topic under pseudonyms: before anything keeps, counts or tells of a message, it has them.

What goes on is the pseudonym that a job with the same key makes of the level (``readings.pseudonyms``). The payload and
the content type are the publisher's own and stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...schemas.gateway import TopicPseudonyms
from ...schemas.pseudonyms import PseudonymKey


class TopicNames:
    """Replaces levels of topics by pseudonyms.

    Args:
        key: the secret key.
        levels: which, counted from 1.

    >>> TopicNames(PseudonymKey(b"a secret of at least 16 bytes"), [2]).of("meters/meter 7/kwh")
    'meters/931fa1428d64447fb552cd7c270c790d/kwh'
    """

    __slots__ = ("_key", "_places")

    def __init__(self, key: PseudonymKey, levels: Sequence[int]) -> None:
        self._key = key
        self._places = [level - 1 for level in levels]

    @classmethod
    def read(cls, given: TopicPseudonyms) -> TopicNames:
        """Read the key where the settings say.

        Raises:
            SettingsError: it is not there, too short or too long.
        """
        return cls(given.key("forward.pseudonyms"), given.level)

    def of(self, topic: str) -> str:
        """A topic under pseudonyms; levels that it does not have, and blank ones, which name nobody, are passed over.

        Nothing is remembered: a name is hashed in less time than it takes to read its message.
        """
        levels = topic.split("/")
        for place in self._places:
            # to a job a blank name is none, and is to stay none
            if place < len(levels) and levels[place].strip():
                levels[place] = self.level(levels[place])
        return "/".join(levels)

    def level(self, name: str) -> str:
        """What a level that has a name goes on as, and what a roster has to hold for it."""
        return self._key.name(name)

    def __repr__(self) -> str:
        return "TopicNames(...)"


__all__ = ["TopicNames"]
