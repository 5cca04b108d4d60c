"""Growing pauses between the tries to reach something that is away."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that double from the first one up to the longest, both in seconds."""

    first_s: float
    longest_s: float

    def pauses(self) -> Iterator[float]:
        """The pauses of one outage, without end.

        >>> pauses = Backoff(0.5, 10.0).pauses()
        >>> [next(pauses) for _ in range(7)]
        [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
        """
        pause = self.first_s
        while True:
            yield pause
            pause = min(2 * pause, self.longest_s)
