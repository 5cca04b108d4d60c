"""Messages: what a broker hands over, as columns; their decoders.

A :class:`MessageDecoder` parses a message, whichever broker it came from. One message may hold no reading, one or many;
a message that cannot be read is one reject, counted once.
"""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...schemas.errors import ExitCode, QuiltstreamError
from ...schemas.readings import LONGEST_NAME, RejectReason
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


#: The header in which the gateway keeps the MQTT topic.
MQTT_TOPIC = "mqtt-topic"

#: Bytes of a payload that is a name or a number as a whole.
_LONGEST_WHOLE = 4 * LONGEST_NAME

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def whole_text(payload: bytes | None) -> Any:
    """A payload as text without the blanks around it; what is no text, or a long one, is no name and no number."""
    try:
        return bytes(payload or b"").decode("utf-8").strip() if len(payload or b"") <= _LONGEST_WHOLE else []
    except UnicodeDecodeError:
        return []


def topics(messages: Messages, chosen: Sequence[int]) -> list[str]:
    """The topic of each message; the MQTT one where a gateway noted it."""
    found: list[str] = []
    for one in chosen:
        given = last_header(messages.headers[one], MQTT_TOPIC) if messages.headers[one] else None
        topic = messages.topics[one]
        if given is not None:
            try:
                topic = given.decode("utf-8")
            except UnicodeDecodeError:
                topic = ""
        found.append(topic)
    return found


def last_header(given: Headers, name: str) -> bytes | None:
    """The last header of a name: who writes one anew appends it."""
    for key, value in reversed(given):
        if key == name:
            return value
    return None


def instant_of(stamp_us: int) -> dt.datetime | None:
    """The instant of a broker's stamp; ``None`` without one."""
    if stamp_us < 0:
        return None
    try:
        return _EPOCH + dt.timedelta(microseconds=stamp_us)
    except OverflowError:
        return None


def text_of(value: bytes | None) -> str | None:
    """The bytes of a header or key as text; ``None`` if they are none."""
    try:
        return value.decode("utf-8") if value else None
    except UnicodeDecodeError:
        return None


class SourceAwayError(QuiltstreamError, RuntimeError):
    """What a decoder needs, such as a registry of schemas, does not answer now: the messages wait, none is rejected."""

    exit_code = ExitCode.AWAY


class MessageDecoder(ABC):
    """Parses messages; a plain value that travels to any worker, and remembers no message."""

    @abstractmethod
    def decode(self, messages: Messages) -> list[Decoded]:
        """The readings of some messages, and what could not be read; never raises for a message's content.

        Raises:
            SourceAwayError: something else is needed for it and is away; the same messages are given again later.
        """
