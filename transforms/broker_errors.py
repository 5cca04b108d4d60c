"""What all brokers have in common when they cannot be used."""

from __future__ import annotations


class BrokerUnavailableError(RuntimeError):
    """A broker, or what is at it, cannot be used; the message says what is in the way.

    Attributes:
        passing: whether it may go away by itself, so that another attempt makes sense.
    """

    def __init__(self, text: str, *, passing: bool = False) -> None:
        super().__init__(text)
        self.passing = passing


__all__ = ["BrokerUnavailableError"]
