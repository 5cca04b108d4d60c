"""A message as the gateway passes it on."""

from __future__ import annotations

from typing import NamedTuple

#: What a message costs in memory beside its text and body, about.
_OVERHEAD = 512


class Message(NamedTuple):
    """One message of the broker; a tuple, because there are thousands a second.

    Attributes:
        topic: where it was published.
        payload: the body.
        received_us: when the gateway had it, microseconds since 1970.
        dup: whether the broker says that it may have sent it before.
        retain: whether the broker had kept it for new subscribers.
        content_type: what the publisher says the body is, or empty.
    """

    topic: str
    payload: bytes
    received_us: int
    dup: bool = False
    retain: bool = False
    content_type: str = ""

    @property
    def size(self) -> int:
        """Bytes that it holds in memory, about."""
        return len(self.payload) + 2 * len(self.topic) + _OVERHEAD


__all__ = ["Message"]
