"""Noticing that nothing moves: said after a while, and said again now and then, so that nothing hangs in silence."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Stall:
    """Knows when something last moved, and when it was last said that nothing does.

    Attributes:
        after: seconds without a move after which it is to be said.
        repeat: seconds after which it is to be said again.
        clock: seconds of a clock that only goes forward; the tests' own.
    """

    after: float = 15.0
    repeat: float = 60.0
    clock: Callable[[], float] = time.monotonic
    _since: float = field(init=False)
    _told: float = field(init=False, default=float("-inf"))

    def __post_init__(self) -> None:
        """Begin now."""
        self.moved()

    def moved(self) -> None:
        """Something moved, or something that may move began."""
        self._since = self.clock()

    def to_tell(self) -> float | None:
        """Seconds since the last move if they are to be said now, else nothing.

        >>> now = [0.0]
        >>> stall = Stall(clock=lambda: now[0])
        >>> told = []
        >>> for now[0] in (0.0, 15.0, 16.0, 17.0, 76.0, 77.0):
        ...     told.append(stall.to_tell())
        >>> told
        [None, None, 16.0, None, None, 77.0]
        """
        now = self.clock()
        if now - self._since <= self.after or now - self._told <= self.repeat:
            return None
        self._told = now
        return now - self._since


__all__ = ["Stall"]
