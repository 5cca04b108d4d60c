"""A memory by name that a flood of names cannot fill: so much is kept, and what proved itself is kept longest.

Names that were heard of once may be anybody's invention, and come by the million where somebody invents them. They
take at most a quarter of the memory from those that have proved themselves; within each of the two kinds the one that
was not heard of for longest goes first. So names that are gone for good make room in the end.

>>> memory = Bounded[str, int](limit=4)
>>> for name in "ab":
...     _ = memory.keep(name, 1, proved=True)
>>> [memory.keep(f"invented {n}", 0) for n in range(5)]
[0, 0, 1, 1, 1]
>>> memory.names()
['invented 3', 'invented 4', 'a', 'b']
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Generic, TypeVar

Name = TypeVar("Name")
Value = TypeVar("Value")

#: The share of the memory that names without proof may always have is one in so many.
_SHARE = 4


def _one(_value: Any) -> int:
    return 1


class Bounded(Generic[Name, Value]):
    """Values by name; it belongs to one worker.

    Args:
        limit: how much is kept, at least 1.
        weigh: how much of it a value takes.
        forgotten: is given each value that is forgotten for another.
    """

    def __init__(
        self, limit: int, weigh: Callable[[Value], int] = _one, forgotten: Callable[[Value], None] | None = None
    ) -> None:
        self._limit = limit
        self._weigh = weigh
        self._forgotten = forgotten
        # a plain dictionary looks for its oldest entry through all that were taken out before it
        self._fresh: OrderedDict[Name, Value] = OrderedDict()
        self._proved: OrderedDict[Name, Value] = OrderedDict()
        self._tiers = (self._fresh, self._proved)
        self._weights = [0, 0]

    def __len__(self) -> int:
        """How many names."""
        return len(self._fresh) + len(self._proved)

    def get(self, name: Name) -> Value | None:
        """The value of a name; ``None`` without one."""
        found = self._proved.get(name)
        return self._fresh.get(name) if found is None else found

    def names(self) -> list[Name]:
        """The names, those first that would go first."""
        return [*self._fresh, *self._proved]

    def values(self) -> Iterator[Value]:
        """The values, in the same order."""
        return chain(self._fresh.values(), self._proved.values())

    def keep(self, name: Name, value: Value, *, proved: bool = False) -> int:
        """Keep a value; its name is the one that was heard of last.

        Args:
            name: whose.
            value: what; of the name's last value nothing is left.
            proved: whether the name has proved itself; once it has, it has for as long as it is remembered.

        Returns:
            How many other names were forgotten for it.
        """
        if name in self._proved:
            proved = True
            self._drop(1, name)
        elif name in self._fresh:
            self._drop(0, name)
        weights = self._weights
        self._tiers[proved][name] = value
        weights[proved] += self._weigh(value)
        forgotten = 0
        while weights[0] + weights[1] > self._limit:
            tier = self._weights[0] * _SHARE <= self._limit
            oldest = self._oldest(tier, name)
            if oldest is None:
                tier = not tier
                oldest = self._oldest(tier, name)
            if oldest is None:
                break
            gone = self._drop(tier, oldest)
            if self._forgotten is not None:
                self._forgotten(gone)
            forgotten += 1
        return forgotten

    def _drop(self, tier: int, name: Name) -> Value:
        value = self._tiers[tier].pop(name)
        self._weights[tier] -= self._weigh(value)
        return value

    def _oldest(self, tier: int, but: Name) -> Name | None:
        """The name that was not heard of for longest; ``None`` if there is no other."""
        oldest = next(iter(self._tiers[tier]), None)
        return None if oldest == but else oldest


__all__ = ["Bounded"]
