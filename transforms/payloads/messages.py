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
from collections.abc import Callable, Iterator, Sequence
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
        """A decoder of the same kind for one reader, which remembers nothing but what it is given."""
        return self

    @property
    def memory(self) -> str:
        """What a position must carry of the messages before it, because it may lie too far back to be read again."""
        return ""

    @property
    def lookback_us(self) -> int:
        """How long before a position a reader must begin, by the broker's stamps, to decode what comes behind it.

        Decoders that remember something of earlier messages (registers) say so here. What is read again in this way may
        be passed on again: cells take maxima.
        """
        return 0


Name = TypeVar("Name")
Value = TypeVar("Value")

#: The share of the memory that names without proof may always have is one in so many. No value may weigh more: a single
#: one would take the place of those that have proved themselves.
SHARE = 4


class Bounded(Generic[Name, Value]):
    """Values by name; it belongs to one worker.

    Args:
        limit: how much is kept, at least 1.
        weigh: how much of it a value takes, at most the limit over :data:`SHARE`.
        forgotten: is given each value that is forgotten for another.
    """

    def __init__(
        self, limit: int, weigh: Callable[[Value], int] = lambda _: 1, forgotten: Callable[[Value], None] | None = None
    ) -> None:
        self._limit, self._weigh, self._forgotten = limit, weigh, forgotten
        # names without proof, and those that have proved themselves; a plain dictionary looks for its oldest entry
        # through all that were taken out before it
        self._tiers: tuple[OrderedDict[Name, Value], OrderedDict[Name, Value]] = OrderedDict(), OrderedDict()
        self._weights = [0, 0]

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

    def values(self) -> Iterator[Value]:
        """The values, in the same order."""
        return chain.from_iterable(tier.values() for tier in self._tiers)

    def keep(self, name: Name, value: Value, *, proved: bool = False) -> int:
        """Keep a value as that of the latest name; how many other names were forgotten for it."""
        proved = proved or name in self._tiers[1]
        for tier in (0, 1):
            if name in self._tiers[tier]:
                self._drop(tier, name)
        self._tiers[proved][name] = value
        self._weights[proved] += self._weigh(value)
        forgotten = 0
        while sum(self._weights) > self._limit:
            tier = int(self._weights[0] * SHARE <= self._limit)
            # the name that did not come for longest; only this one may be left
            found = next(((one, at) for one in (tier, 1 - tier) for at in self._tiers[one] if at != name), None)
            if found is None:
                break
            gone = self._drop(*found)
            if self._forgotten is not None:
                self._forgotten(gone)
            forgotten += 1
        return forgotten

    def _drop(self, tier: int, name: Name) -> Value:
        value = self._tiers[tier].pop(name)
        self._weights[tier] -= self._weigh(value)
        return value
