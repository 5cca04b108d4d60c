"""How long to wait before the next try: doubling with jitter, so that many gateways do not come back at one moment."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Backoff:
    """Counts tries.

    Attributes:
        first: seconds that the first wait has at most.
        longest: seconds that any wait has at most.
        draw: a number in [0, 1); the tests' own.
        tries: how many waits there were in a row.
    """

    first: float = 0.5
    longest: float = 30.0
    draw: Callable[[], float] = random.random
    tries: int = 0

    def wait(self) -> float:
        """Seconds to wait before the next try: between half of the current length and all of it.

        >>> patience = Backoff(draw=lambda: 0.0)
        >>> [patience.wait() for _ in range(8)]
        [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0]
        """
        # the exponent is bounded, because a broker may be away for weeks
        length = min(self.longest, self.first * 2 ** min(self.tries, 32))
        self.tries += 1
        return length * (0.5 + 0.5 * self.draw())

    def reset(self) -> None:
        """Begin anew: the last try went well."""
        self.tries = 0


__all__ = ["Backoff"]
