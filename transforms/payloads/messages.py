"""Messages: what a broker hands over, as columns; their decoders.

A :class:`MessageDecoder` parses a message, whichever broker it came from. One message may hold no reading, one or many;
a message that cannot be read is one reject, counted once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...schemas.errors import QuiltstreamError
from ...schemas.readings import RejectReason
from ..common.batches import Rejects
from ..formats.rows import Decoded

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages of one source in their order; every column has n entries."""

    payloads: Sequence[bytes | None]  # the bodies; ``None`` for a tombstone
    topics: Sequence[str]  # where each came from
    keys: Sequence[bytes | None]  # the broker's keys; ``None`` without one
    headers: Sequence[Headers]  # the broker's headers, or attributes
    stamps_us: npt.NDArray[np.int64]  # the broker's own time stamps in microseconds since 1970; -1 without one
    positions: npt.NDArray[np.int64]  # offsets, or numbers in the order of arrival

    def __len__(self) -> int:
        """How many."""
        return len(self.payloads)

    def some(self, numbers: Sequence[int]) -> Messages:
        """Those of some numbers."""
        at = list(numbers)
        payloads, topics = [self.payloads[one] for one in at], [self.topics[one] for one in at]
        keys, headers = [self.keys[one] for one in at], [self.headers[one] for one in at]
        return Messages(payloads, topics, keys, headers, self.stamps_us[at], self.positions[at])


def rejects_of(reason: RejectReason, messages: Messages, numbers: npt.NDArray[np.int64]) -> Rejects:
    """Some messages as rejects, with their sizes."""
    payloads = messages.payloads
    sizes = np.fromiter((len(payloads[one] or b"") for one in numbers.tolist()), np.int64, len(numbers))
    return Rejects(reason, messages.positions[numbers], sizes)


class SourceAwayError(QuiltstreamError, RuntimeError):
    """What a decoder needs, such as a registry of schemas, does not answer now: the messages wait, none is rejected."""


class MessageDecoder(ABC):
    """Parses messages; a plain value that travels to any worker, and remembers no message."""

    @abstractmethod
    def decode(self, messages: Messages) -> list[Decoded]:
        """The readings of some messages, and what could not be read; never raises for a message's content.

        Raises:
            SourceAwayError: something else is needed for it and is away; the same messages are given again later.
        """
