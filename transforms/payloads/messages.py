"""Messages: what a broker hands over, as columns, and how they become readings.

A message is taken apart by a :class:`MessageDecoder`, whichever broker it came from. One message may hold no reading,
one or many; a message that cannot be read is one reject, counted once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...schemas.dead_letters import Letters
from ...schemas.errors import QuiltstreamError
from ...schemas.readings import RejectReason
from ..common.rejects import Rejects
from ..formats.rows import Decoded

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages of one source in their order; every column has n entries.

    Attributes:
        payloads: the bodies; ``None`` for a tombstone.
        topics: where each came from.
        keys: the broker's keys; ``None`` without one.
        headers: the broker's headers, or attributes.
        stamps_us: the broker's own time stamps in microseconds since 1970; -1 without one.
        positions: offsets, or numbers in the order of arrival.
    """

    payloads: Sequence[bytes | None]
    topics: Sequence[str]
    keys: Sequence[bytes | None]
    headers: Sequence[Headers]
    stamps_us: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]

    def __len__(self) -> int:
        """How many."""
        return len(self.payloads)


def rejects_of(reason: RejectReason, messages: Messages, numbers: npt.NDArray[np.int64]) -> Rejects:
    """Some messages as rejects, with their sizes.

    Args:
        reason: why.
        messages: all of them.
        numbers: of those that are rejected, in their order, shape (n,).
    """
    payloads = messages.payloads
    sizes = np.fromiter((len(payloads[one] or b"") for one in numbers.tolist()), np.int64, len(numbers))
    return Rejects(reason, messages.positions[numbers], sizes)


class SourceAwayError(QuiltstreamError, RuntimeError):
    """What a decoder needs, such as a registry of schemas, does not answer now: the messages wait, none is rejected."""


class MessageDecoder(ABC):
    """Takes messages apart; a plain value that travels to any worker.

    One that remembers something of earlier messages must not remember what came behind a position to which its reader
    is taken back. So each reader takes a decoder of its own by :meth:`fresh`, begun with the :attr:`memory` that its
    position carries, and reads again what :attr:`lookback_us` says.
    """

    @abstractmethod
    def decode(self, messages: Messages) -> list[Decoded]:
        """The readings of some messages, and what could not be read; never raises for a message's content.

        Raises:
            SourceAwayError: something else is needed for it and is away; the same messages are given again later.
        """

    def fresh(self, memory: str = "") -> MessageDecoder:  # noqa: ARG002 - of those that remember something
        """A decoder of the same kind for one reader, which remembers nothing but what it is given.

        Args:
            memory: what a position carries: the :attr:`memory` of the decoder that read up to it.
        """
        return self

    @property
    def memory(self) -> str:
        """What a position must carry of the messages before it, because it may lie too far back to be read again."""
        return ""

    @property
    def letters(self) -> Letters | None:
        """To whom the content of rejected messages is encrypted; ``None``: it is kept nowhere."""
        return None

    @property
    def lookback_us(self) -> int:
        """How long before a position a reader must begin, by the broker's stamps, to decode what comes behind it.

        Decoders that remember something of earlier messages (registers) say so here. What is read again in this way may
        be passed on again: cells take maxima.
        """
        return 0


__all__ = ["Headers", "MessageDecoder", "Messages", "SourceAwayError", "rejects_of"]
