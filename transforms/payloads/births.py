"""Births of Sparkplug: what they told of the wanted metric, kept with their time, and as text with a reader's position.

A message looks for the latest birth that is not after it, so what it says does not depend on the order in which births
came, and a birth that is read again changes nothing. Of a birth only this is kept: which aliases mean the wanted
metric, its type, and which other aliases there are, as runs of numbers. Nodes choose them one after another, so a birth
of a thousand metrics is a few numbers.

Whose births were forgotten for those of others is not remembered, but the time of the latest one that ever was. A node
that is heard of for the first time, or again, behind that may have had any birth up to that time: messages up to it,
and births before it, say nothing until the node is born anew. Nodes that are remembered lose nothing. A birth ahead of
the broker's clock counts as of that clock, so that a clock far ahead, or an invention, stops no node that is born
later.
"""

from __future__ import annotations

import base64
import json
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .bounded import Bounded

#: Births of a node or device that are remembered.
_REMEMBERED = 8
#: Runs of other aliases that are remembered of a birth.
_MOST_RUNS = 10_000

#: What the text begins with; another version begins with something else.
_HEAD = "births-1:"

#: The kind of what stands in the place of all births up to a time, any of which may have been forgotten.
_FORGOTTEN = -1

Who = tuple[str, ...]
"""Group, node and perhaps device."""


@dataclass(frozen=True, slots=True)
class Birth:
    """What a birth told.

    Attributes:
        time: when, in milliseconds.
        wanted: the aliases of the wanted metric, and the type that each has.
        kind: the type that the metric has by its name; 0 without one.
        others: runs of the other aliases, increasing: the first and last of each.
    """

    time: int
    wanted: Mapping[int, int]
    kind: int
    others: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, time: int, wanted: Mapping[int, int], kind: int, others: Iterable[int]) -> Birth:
        """A birth, its other aliases one by one."""
        runs: list[tuple[int, int]] = []
        for one in sorted(set(others)):
            if runs and runs[-1][1] == one - 1:
                runs[-1] = (runs[-1][0], one)
            else:
                runs.append((one, one))
        return cls(time, wanted, kind, tuple(runs[:_MOST_RUNS]))

    def told(self, alias: int) -> bool:
        """Whether it told what an alias means."""
        if alias in self.wanted:
            return True
        at = bisect_right(self.others, (alias, 1 << 64))
        return at > 0 and alias <= self.others[at - 1][1]


_Kept = tuple[Birth, ...]


def _weight(births: _Kept) -> int:
    return sum(1 + len(one.wanted) + len(one.others) for one in births)


class Births:
    """The births that were seen; it belongs to one reader, and what it lacks makes rejects, never wrong readings.

    Args:
        wanted: the name of the metric.
        most: how much is remembered: births, and what each told.
        text: what another one remembered, as its :attr:`text`; of another metric or version nothing is taken.
    """

    def __init__(self, wanted: str, most: int, text: str = "") -> None:
        self._wanted = wanted
        self._known: Bounded[Who, _Kept] = Bounded(most, _weight, self._forget)
        self._text: str | None = None
        self._now: int | None = None
        known, self._forgotten = _read(text, wanted)
        for who, births in known:
            self._known.keep(who, births, proved=True)

    def learn(self, who: Who, birth: Birth, now: int | None = None) -> None:
        """Take a birth in, in the order of their times.

        Args:
            who: whose.
            birth: what it told.
            now: the broker's clock in milliseconds; ``None`` without one.
        """
        if now is not None:
            self._now = now if self._now is None else max(self._now, now)
        births = self._known.get(who) or self._begun
        if births and births[0].kind == _FORGOTTEN and birth.time <= births[0].time:
            return
        at = bisect_right(births, birth.time, key=_time)
        again = at > 0 and births[at - 1].time == birth.time
        if again and births[at - 1] == birth:
            return
        births = (*births[: at - again], birth, *births[at:])
        self._known.keep(who, births[-_REMEMBERED:])
        self._text = None

    def before(self, who: Who, time: int, *, spoken: bool = False) -> Birth | None:
        """The latest birth of a node or device that is not after a time.

        Args:
            who: the node or device.
            time: in milliseconds.
            spoken: whether it has something to say, and is not only born.
        """
        births = self._known.get(who) or ()
        at = bisect_right(births, time, key=_time)
        if spoken and births:
            self._known.keep(who, births, proved=True)
        return births[at - 1] if at and births[at - 1].kind != _FORGOTTEN else None

    @property
    def _begun(self) -> _Kept:
        """What a node or device begins with, of which nothing is remembered."""
        return () if self._forgotten is None else (Birth(self._forgotten - 1, {}, _FORGOTTEN, ()),)

    def _forget(self, births: _Kept) -> None:
        latest = births[-1].time if self._now is None else min(births[-1].time, self._now)
        self._forgotten = latest if self._forgotten is None else max(self._forgotten, latest)

    @property
    def text(self) -> str:
        """All that is remembered; empty if nothing is."""
        if self._text is None:
            known = zip(self._known.names(), self._known.values(), strict=True)
            self._text = _written(self._wanted, known, self._forgotten)
        return self._text


def _time(birth: Birth) -> int:
    return birth.time


def _written(wanted: str, known: Iterable[tuple[Who, _Kept]], forgotten: int | None) -> str:
    plain = [
        [list(who), [[one.time, list(one.wanted.items()), one.kind, one.others] for one in births]]
        for who, births in known
    ]
    if not plain:
        return ""
    # what was forgotten stands there only if something was, so that a memory without it is what it always was
    whole = [wanted, plain] if forgotten is None else [wanted, plain, forgotten]
    packed = zlib.compress(json.dumps(whole, separators=(",", ":")).encode(), 1)
    return _HEAD + base64.b64encode(packed).decode("ascii")


def _read(text: str, wanted: str) -> tuple[list[tuple[Who, _Kept]], int | None]:
    """What is remembered, and the time of the latest birth that was forgotten."""
    if not text.startswith(_HEAD):
        return [], None
    name, plain, *forgotten = json.loads(zlib.decompress(base64.b64decode(text[len(_HEAD) :])))
    if name != wanted:
        return [], None
    return [(tuple(who), tuple(map(_birth, births))) for who, births in plain], forgotten[0] if forgotten else None


def _birth(plain: Any) -> Birth:
    time, aliases, kind, others = plain
    return Birth(time, dict(aliases), kind, tuple((first, last) for first, last in others))


__all__ = ["Birth", "Births", "Who"]
