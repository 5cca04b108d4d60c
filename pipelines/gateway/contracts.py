"""What the directions of the gateway share: messages, delivery targets, the broker line, and stall reports."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from ...schemas.errors import QuiltstreamError

__all__ = ["REFUSED", "DeliveryError", "DeliveryTarget", "Line", "Message", "Outlet", "Stall", "refused_options"]


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


#: Why a next hop refuses a message for ever.
REFUSED: Final = "refused-by-next-hop"


class DeliveryError(QuiltstreamError):
    """The next hop cannot be used until an operator changes something; the message is for them."""


class DeliveryTarget(ABC):
    """A place that messages go to. All calls come from one thread; none waits, but :meth:`close`.

    A message that was offered is in exactly one of three states: the hop is at work on it, however long that takes; the
    hop has it, so that no crash of any process loses it; or the hop refuses it for ever.
    """

    @abstractmethod
    def offer(self, number: int, message: Message) -> bool:
        """Hand a message over.

        Args:
            number: the message's name, given by the caller and never used twice.
            message: the message.

        Returns:
            Whether it was taken; if not, offer it again later.
        """

    @abstractmethod
    def had(self) -> list[int]:
        """The messages that the hop has since the last call.

        Raises:
            DeliveryError: an operator has to change something first.
        """

    @abstractmethod
    def refused(self) -> list[int]:
        """The messages that the hop refused for ever since the last call."""

    def fileno(self) -> int | None:
        """Something that can be read from when :meth:`had` may have news; ``None`` if one has to look now and then."""
        return None

    @abstractmethod
    def close(self, seconds: float) -> None:
        """Finish what is under way if that is possible in so many seconds, and let go of everything.

        :meth:`had` and :meth:`refused` may be asked afterwards, once.
        """


def refused_options(field: str, error: Exception) -> DeliveryError:
    """What is said where librdkafka does not take options; its own text quotes the value of one, maybe a secret.

    Args:
        field: the setting.
        error: what librdkafka raised.
    """
    return DeliveryError(
        f"{field}: librdkafka does not take them ({type(error).__name__}); check their names and values against "
        "librdkafka's"
    )


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
