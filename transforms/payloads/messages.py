"""Messages: what a broker hands over, as columns; their decoders, with a bounded memory.

A :class:`MessageDecoder` parses a message, whichever broker it came from. One message may hold no reading, one or many;
a message that cannot be read is one reject, counted once.

What a decoder remembers by name is :class:`Bounded`, which a flood of names cannot fill. Names that came once
may be invented by the million. They take at most a quarter of the memory from those that have proved themselves; within
each of the two kinds the one that did not come for longest goes first.

>>> memory = Bounded[str, int](limit=4)
>>> for name in "ab":
...     _ = memory.keep(name, 1, proved=True)
>>> [memory.keep(f"invented {n}", 0) for n in range(5)]
[0, 0, 1, 1, 1]
>>> memory.names()
['invented 3', 'invented 4', 'a', 'b']
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeVar

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
    """Parses messages; a plain value that travels to any worker.

    One that remembers something of earlier messages must not remember what came behind a position to which its reader
    is taken back. So each reader takes a decoder of its own by :meth:`fresh`, and reads again what :attr:`lookback_us`
    says.
    """

    @abstractmethod
    def decode(self, messages: Messages) -> list[Decoded]:
        """The readings of some messages, and what could not be read; never raises for a message's content.

        Raises:
            SourceAwayError: something else is needed for it and is away; the same messages are given again later.
        """

    def fresh(self) -> MessageDecoder:
        """A decoder of the same kind for one reader, which remembers nothing."""
        return self

    @property
    def lookback_us(self) -> int:
        """How long before a position a reader must begin, by the broker's stamps, to decode what comes behind it.

        Decoders that remember something of earlier messages (registers) say so here. What is read again in this way may
        be passed on again: cells take maxima.
        """
        return 0


Name = TypeVar("Name")
Value = TypeVar("Value")

#: The share of the memory that names without proof may always have is one in so many.
_SHARE = 4


class Bounded(Generic[Name, Value]):
    """Values by name; it belongs to one worker.

    Args:
        limit: how many are kept, at least 1.
        forgotten: is given each value that is forgotten for another.
    """

    def __init__(self, limit: int, forgotten: Callable[[Value], None] | None = None) -> None:
        self._limit, self._forgotten = limit, forgotten
        # names without proof, and those that have proved themselves; a plain dictionary looks for its oldest entry
        # through all that were taken out before it
        self._tiers: tuple[OrderedDict[Name, Value], OrderedDict[Name, Value]] = OrderedDict(), OrderedDict()

    def __len__(self) -> int:
        """How many names."""
        return sum(map(len, self._tiers))

    def get(self, name: Name) -> Value | None:
        """The value of a name; ``None`` without one."""
        fresh, proved = self._tiers
        found = proved.get(name)
        return fresh.get(name) if found is None else found

    def names(self) -> list[Name]:
        """The names, those first that would go first."""
        return list(chain(*self._tiers))

    def keep(self, name: Name, value: Value, *, proved: bool = False) -> int:
        """Keep a value as that of the latest name; how many other names were forgotten for it."""
        proved = proved or name in self._tiers[1]
        for one in self._tiers:
            one.pop(name, None)
        self._tiers[proved][name] = value
        forgotten = 0
        while len(self) > self._limit:
            tier = int(len(self._tiers[0]) * _SHARE <= self._limit)
            # the name that did not come for longest
            of, gone = next((one, at) for one in (tier, 1 - tier) for at in self._tiers[one] if at != name)
            value = self._tiers[of].pop(gone)
            if self._forgotten is not None:
                self._forgotten(value)
            forgotten += 1
        return forgotten
