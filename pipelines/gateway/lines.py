"""What the two ways need of a connection to the broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class _Connected(Protocol):
    """What both need.

    Attributes:
        connected: whether there is a connection now.
        generation: its number; a packet id means something within one.
    """

    connected: bool
    generation: int

    def close(self, seconds: float = 2.0) -> None:
        """End the connection."""
        ...


class Line(_Connected, Protocol):
    """What the way forward needs.

    Attributes:
        reconnects: connections after the first.
        fresh: those for which the broker had no session.
    """

    reconnects: int
    fresh: int

    def turn(self, seconds: float, *, room: Callable[[], bool] | None = None, also: int | None = None) -> None:
        """Read and write what can be."""
        ...

    def ack(self, packet: int) -> None:
        """Acknowledge a message."""
        ...


class Outlet(_Connected, Protocol):
    """What the way back needs."""

    def turn(self, seconds: float) -> None:
        """Read and write what can be."""
        ...

    def publish(self, topic: str, payload: bytes, *, retain: bool, properties: Any = None) -> int:
        """Publish a message; its packet id, which is confirmed later if the connection lasts."""
        ...


__all__ = ["Line", "Outlet"]
