"""Gaps: what a lane did not read of its partitions, because it was gone or because it began behind it.

What was sent before the first message that a lane reads of a partition is not read, nor is what retention took while
the lane was away. What is gone came before the first message behind it, and a reading is not taken after it came. So
where the broker stamps messages when they come, windows that start after the stamp of that message miss nothing. Until
that message is there, and where it is the producers who stamp, whose clocks may be wrong, the gap goes to the moment
at which it was found. A start at an instant is no exception: what a producer with a slow clock has just sent is stamped
before it, and is passed over. There the last message that was passed over is asked for its stamp. All of this is
offsets and stamps; nothing of it depends on what messages hold.

>>> gaps = Gaps.of("")
>>> gaps.found(("load", 0), 9_000_000)
>>> gaps.until_us
9000000
>>> gaps.read(("load", 0), 4_000_000)
>>> gaps.until_us
4000000
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from .start import Begin, Place, Start


class Gaps:
    """The last gap of each partition of a lane.

    Args:
        until_us: of each partition with a gap, the instant up to which messages may not have been read.
        open_: the partitions of which no message behind the gap was read.
    """

    def __init__(self, until_us: dict[Place, int], open_: Iterable[Place]) -> None:
        self._until_us = until_us
        self._open = set(open_)

    @classmethod
    def of(cls, position: str) -> Gaps:
        """The gaps that a position of a lane tells of; those of older versions tell of none."""
        plain: list[list[Any]] = json.loads(position).get("gaps", []) if position else []
        return cls(
            {(topic, partition): until for topic, partition, until, _ in plain},
            [(topic, partition) for topic, partition, _, still in plain if still],
        )

    @property
    def plain(self) -> list[list[Any]]:
        """The gaps as a position tells them."""
        return [[*place, until, place in self._open] for place, until in sorted(self._until_us.items())]

    @property
    def until_us(self) -> int | None:
        """The instant up to which the lane may not have read everything; ``None`` without a gap."""
        return max(self._until_us.values(), default=None)

    def found(self, place: Place, now_us: int) -> None:
        """Messages of a partition are gone that were not read."""
        self._until_us[place] = max(now_us, self._until_us.get(place, 0))
        self._open.add(place)

    def begun(self, place: Place, begin: Begin, start: Start, now_us: int) -> None:
        """A lane begins in a partition.

        Args:
            place: the partition.
            begin: where it begins.
            start: why it begins there.
            now_us: the wall clock.
        """
        if not begin.offset:
            return
        self.found(place, now_us)
        if begin.offset > begin.first and start.kind == "latest":
            # what was passed over came before that was said, whenever the next message comes
            self._open.discard(place)

    def read(self, place: Place, came_us: int | None) -> None:
        """A message behind a gap was read, or the last one within it.

        Args:
            place: the partition.
            came_us: when it came, by the broker's clock; ``None`` if the broker does not say.
        """
        if place in self._open:
            self._open.discard(place)
            if came_us is not None:
                self._until_us[place] = min(self._until_us[place], came_us)


__all__ = ["Gaps"]
