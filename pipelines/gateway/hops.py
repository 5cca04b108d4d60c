"""The next hop: what a message is handed to before it is acknowledged to the broker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

from .message import Message

#: Why a next hop refuses a message for ever.
REFUSED: Final = "refused-by-next-hop"


class HopError(Exception):
    """The next hop cannot be used until an operator changes something; the message is for them."""


class Hop(ABC):
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
            HopError: an operator has to change something first.
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


def refused_options(field: str, error: Exception) -> HopError:
    """What is said where librdkafka does not take options; its own text quotes the value of one, maybe a secret.

    Args:
        field: the setting.
        error: what librdkafka raised.
    """
    return HopError(
        f"{field}: librdkafka does not take them ({type(error).__name__}); check their names and values against "
        "librdkafka's"
    )


__all__ = ["REFUSED", "Hop", "HopError", "refused_options"]
