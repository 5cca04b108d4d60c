"""Mapped payloads: readings at the places that the settings name, all in one unit.

The payloads of many messages are taken apart column by column: what runs once for each reading is C, and Python's own
loops run only where a message lacks a field.

What makes many readings of one message, and what passes elements over, is here; :mod:`.operators` has what combines
places.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...schemas.readings import RejectReason
from ...schemas.settings.mappings import Readings, payload_paths
from ...schemas.settings.places import (
    Condition,
    Constant,
    Do,
    Level,
    Place,
    RegisterValue,
    Step,
    Steps,
    levels_of,
    parts_of,
    paths_of,
    steps_of,
)
from .columns import GROUP, SERIES, TIME, VALUE, Column, Repeated, Rows, field_column
from .messages import Messages
from .operators import UNPACKED, UNREADABLE, answers, combined, finished, unreadable
from .parsing import Apart, Parsed
from .unit_names import differing

__all__ = ["Mapping", "Tables", "follow", "mapped_rows"]


Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Mapping:
    """Where the parts of a reading are; made once of the settings.

    Attributes:
        series: a path, or a place beside the payload, or operators.
        time: likewise.
        value: likewise.
        group: likewise; ``None`` without groups.
        levels: the wildcards of all paths.
        where: what messages and elements must say to be read, by the level that each is asked at.
        beside: what must stand beside the payload; a message that is passed over for it need not be parsed.
        wanted: unit that the messages' units are converted to.
        decimal: mark before the decimals of numbers in text.
        unpacks: whether a path unpacks a text inside the payload.
    """

    series: Steps | Place | Constant
    time: Steps | Place | Constant
    value: Steps | Place | Constant
    group: Steps | Place | Constant | None
    levels: tuple[Level, ...]
    where: tuple[tuple[Condition, ...], ...] = ((),)
    beside: tuple[Condition, ...] = ()
    wanted: str = ""
    decimal: str = "."
    unpacks: bool = False

    @classmethod
    def of(cls, readings: Readings, group: str | None) -> Mapping:
        """The mapping of the settings."""
        places: dict[str, Any] = {name: getattr(readings, name) for name in ("series", "time", "value")}
        paths = payload_paths(readings, group)
        levels = levels_of(paths)
        asked: list[list[Condition]] = [[] for _ in range(len(levels) + 1)]
        for one in readings.where:
            if one.place.steps is not None:
                asked[_level_of(levels, one.place.steps)].append(one)
        return cls(
            series=_source(places["series"]),
            time=_source(places["time"]),
            value=_source(places["value"]),
            group=None if group is None else _source(readings.attributes.get(group, group)),
            levels=levels,
            where=tuple(map(tuple, asked)),
            beside=tuple(one for one in readings.where if one.place.steps is None),
            wanted=readings.unit.strip(),
            decimal=readings.decimal,
            unpacks=any(step in UNPACKED for steps in paths for step in steps),
        )

    @property
    def paths(self) -> dict[str, Steps]:
        """The parts of a reading that are in the payload, and where."""
        named = {SERIES: self.series, TIME: self.time, VALUE: self.value, GROUP: self.group}
        return {part: source for part, source in named.items() if isinstance(source, tuple)}

    @property
    def is_plain(self) -> bool:
        """Whether every part is one plain place: no operator, no condition, and of wildcards only ``[*]``."""
        sources = (self.series, self.time, self.value, self.group)
        return (
            self.decimal == "."
            and not any(self.where)
            and not any(level.kind is not None for level in self.levels)
            and not any(isinstance(one, Place) and not one.is_plain for one in sources)
            and not any(isinstance(step, Do) or not steps for steps in self.paths.values() for step in steps or (None,))
        )

    @property
    def needs_payload(self) -> bool:
        """Whether something inside the payload is named, so that it must be one of the format."""
        sources = (
            self.series,
            self.time,
            self.value,
            self.group,
            *(one.place for asked in (*self.where, self.beside) for one in asked),
        )
        inside = any(paths_of(one) if isinstance(one, Place) else isinstance(one, tuple) for one in sources)
        return inside or not any(isinstance(part, Place) and part.payload for one in sources for part in parts_of(one))


def _source(place: str | Place | Constant | RegisterValue) -> Steps | Place | Constant:
    if isinstance(place, RegisterValue):
        place = place.register_
    if isinstance(place, Constant) or (isinstance(place, Place) and not place.is_plain):
        return place
    steps = steps_of(place)
    return place if steps is None else steps  # type: ignore[return-value] - a plain text is a path


def _level_of(levels: tuple[Level, ...], steps: Steps) -> int:
    """The number of the level that a path starts from, 0 for the document."""
    found = 0
    for number, level in enumerate(levels):
        if any(steps[: len(start)] == start for start in level.starts):
            found = number + 1
    return found


def asked_beside(conditions: Sequence[Condition], messages: Messages, chosen: list[int]) -> list[int]:
    """The messages beside whose payloads stands what is asked.

    Args:
        conditions: what is asked.
        messages: the messages.
        chosen: the numbers of those that count.
    """
    for one in conditions:
        said = answers(one, field_column(one.place, messages, chosen))
        chosen = [number for number, good in zip(chosen, said.tolist(), strict=True) if good]
    return chosen


def mapped_rows(messages: Messages, parsed: Parsed | Apart, mapping: Mapping) -> Rows:
    """The readings of some parsed messages.

    Args:
        messages: the messages.
        parsed: what their payloads hold.
        mapping: where the parts of a reading are.
    """
    return _rows(messages, parsed, mapping) if isinstance(parsed, Parsed) else _rows_apart(messages, parsed, mapping)


def _rows_apart(messages: Messages, apart: Apart, mapping: Mapping) -> Rows:
    """The readings of messages that were taken apart already, with what stands beside their payloads."""

    def column(part: str, source: Steps | Place | Constant) -> Column:
        if isinstance(source, tuple):
            return apart.columns[part]
        return Repeated(field_column(source, messages, apart.message), apart.at)

    return Rows(
        message=np.array(apart.message, dtype=np.int64)[apart.at],
        series=column(SERIES, mapping.series),
        times=column(TIME, mapping.time),
        values=column(VALUE, mapping.value),
        groups=None if mapping.group is None else column(GROUP, mapping.group),
    )


def _rows(messages: Messages, parsed: Parsed, mapping: Mapping) -> Rows:
    """The readings of messages whose payloads are values."""
    tables = Tables(parsed, mapping, messages)
    mixed = tables.mixed(mapping)
    if mixed:
        kept = [place for place, number in enumerate(parsed.message) if number not in mixed]
        bad = {**dict.fromkeys(sorted(mixed), RejectReason.MIXED_UNITS), **tables.bad}
        parsed = replace(
            parsed,
            values=[parsed.values[place] for place in kept],
            message=[parsed.message[place] for place in kept],
            bad=parsed.bad | bad,
        )
        tables = Tables(parsed, mapping, messages)
    rows = tables.rows

    def column(source: Steps | Place | Constant) -> Column:
        return tables.column(source) if isinstance(source, tuple) else combined(source, tables, mapping)

    stamps = None if isinstance(mapping.time, Place) and not mapping.time.steps else parsed.stamps
    whole = Rows(
        message=rows,
        series=column(mapping.series),
        times=_stamped(column(mapping.time), stamps),
        values=column(mapping.value),
        groups=None if mapping.group is None else column(mapping.group),
        bad=parsed.bad | tables.bad,
    )
    if mapping.is_plain:
        return whole
    return finished(whole, tables, mapping)


def _stamped(times: Column, kind: pa.DataType | None) -> Column:
    """A column of times whose integers are stamps of a kind."""
    if kind is None or isinstance(times, pa.Array):
        return times
    given = times.values if isinstance(times, Repeated) else times
    try:
        stamps = pa.array(given, pa.int64()).view(kind)
    except (pa.ArrowException, TypeError, OverflowError):
        return times
    return stamps.take(pa.array(times.at)) if isinstance(times, Repeated) else stamps


class Tables:
    """The objects that paths start from: the payloads, and the elements of each array inside them.

    Attributes:
        messages: all messages.
        nodes: the objects of each level.
        message: number of the message of each object, by level.
        down: of each level, the number of the object that each object of the deepest level is in.
        bad: messages without an array where there should be one.
    """

    def __init__(self, parsed: Parsed, mapping: Mapping, messages: Messages) -> None:
        self.messages = messages
        self.nodes: list[list[Any]] = [parsed.values]
        self.message: list[Ints] = [np.array(parsed.message, dtype=np.int64)]
        self.bad: dict[int, RejectReason] = {}
        self._levels = mapping.levels
        self._names: list[list[str]] = [[]]
        self._spared = isinstance(mapping.value, Place) and bool(mapping.value.optional)
        #: The object that each element of the innermost arrays is in, and which of the elements are kept.
        self._innermost: tuple[Ints, npt.NDArray[np.bool_] | None] | None = None
        ups: list[Ints] = []
        if mapping.where[0]:
            self._keep(0, self._asked(mapping.where[0]))
        for number, level in enumerate(self._levels):
            found, names, up = self._elements(level)
            ups.append(up)
            self._innermost = (up, None)
            self.nodes.append(found)
            self._names.append(names)
            self.message.append(self.message[-1][up])
            if mapping.where[number + 1]:
                kept = self._asked(mapping.where[number + 1])
                self._keep(number + 1, kept)
                ups[-1], self._innermost = up[kept], (up, kept)
        self.down: list[Ints] = [np.arange(len(self.nodes[-1]))]
        for up in reversed(ups):
            self.down.insert(0, up[self.down[0]])

    @property
    def rows(self) -> Ints:
        """The number of each row's message."""
        return self.message[-1]

    def column(self, steps: Steps) -> Column:
        """What a path leads to, for each row."""
        level, found = self._at(steps)
        return found if level == len(self.nodes) - 1 else Repeated(found, self.down[level])

    def beside(self, place: Place | Constant) -> Column:
        """What stands beside the payload, for each row."""
        found = field_column(place, self.messages, self.message[0].tolist())
        return found if len(self.nodes) == 1 else Repeated(found, self.down[0])

    @property
    def numbers(self) -> Ints:
        """The number of each row among the elements of its innermost array, from 0."""
        if self._innermost is None:
            return np.zeros(len(self.nodes[0]), dtype=np.int64)
        up, kept = self._innermost
        numbers = np.arange(len(up)) - np.searchsorted(up, up)
        return numbers if kept is None else numbers[kept]

    def _at(self, steps: Steps) -> tuple[int, list[Any]]:
        """The level that a path starts from, and what it leads to in each object of this level."""
        level = _level_of(self._levels, steps)
        if not level:
            return 0, follow(self.nodes[0], steps)
        kind = self._levels[level - 1]
        start = next(one for one in kind.starts if steps[: len(one)] == one)
        rest = steps[len(start) :]
        if rest == (Do.NAME,):
            return level, list(self._names[level])
        nodes = self.nodes[level]
        if kind.kind is Do.NTH:
            nodes = list(map(itemgetter(kind.starts.index(start)), nodes))
        return level, follow(nodes, rest)

    def mixed(self, mapping: Mapping) -> set[int]:
        """The messages in which the elements that hold the values say different units.

        A field may differ that names the series or the group, or that a condition holds to one value.
        """
        if not self._levels or (isinstance(mapping.value, Place) and mapping.value.unit is not None):
            return set()
        paths = [mapping.value] if isinstance(mapping.value, tuple) else paths_of(mapping.value)
        told = [one.place.steps for conditions in mapping.where for one in conditions if one.is_of_one_value]
        apart = {path for path in (mapping.series, mapping.group, *told) if isinstance(path, tuple)}
        found: set[int] = set()
        starts = [one.starts[0] for one in self._levels]
        for steps in paths:
            for level, start in enumerate(starts, 1):
                if steps[: len(start)] != start or self._levels[level - 1].kind is Do.NTH:
                    continue
                longer = starts[level] if level < len(starts) else steps
                way = (longer if steps[: len(longer)] == longer else steps)[len(start) : -1]
                objects = self.nodes[level]
                found |= differing(objects, self.message[level], _fields_at(start, apart))
                for number, step in enumerate(way, 1):
                    objects = _step(objects, step)
                    found |= differing(objects, self.message[level], _fields_at((*start, *way[:number]), apart))
        return found

    def _asked(self, conditions: Sequence[Condition]) -> npt.NDArray[np.bool_]:
        """Which objects of the deepest level so far say what is asked."""
        level = len(self.nodes) - 1
        kept = np.ones(len(self.nodes[level]), dtype=np.bool_)
        torn = np.zeros(len(kept), dtype=np.bool_)
        for one in conditions:
            found = self._at(one.place.steps or ())[1]
            unknown = unreadable(found)
            kept &= answers(one, found) | unknown
            torn |= unknown
        # what no condition passes over and one cannot be asked of is damaged
        for number in self.message[level][kept & torn].tolist():
            self.bad.setdefault(number, RejectReason.MALFORMED_ROW)
        return kept & ~torn

    def _keep(self, level: int, kept: npt.NDArray[np.bool_]) -> None:
        if kept.all():
            return
        self.nodes[level] = [one for one, good in zip(self.nodes[level], kept, strict=True) if good]
        self.message[level] = self.message[level][kept]
        if self._names[level]:
            self._names[level] = [one for one, good in zip(self._names[level], kept, strict=True) if good]

    def _elements(self, level: Level) -> tuple[list[Any], list[str], Ints]:
        """The elements of the arrays that a level is about, the names of fields, and the object that each is in."""
        if level.kind is Do.NTH:
            return self._side_by_side(level)
        nodes = self._at(level.starts[0][:-1])[1]
        wanted = list if level.kind is None else dict
        nodes = self._of_kind(nodes, wanted)
        up = np.repeat(np.arange(len(nodes)), np.fromiter(map(len, nodes), np.int64, len(nodes)))
        if level.kind is None:
            return list(chain.from_iterable(nodes)), [], up
        names = list(chain.from_iterable(nodes))
        return list(chain.from_iterable(one.values() for one in nodes)), names, up

    def _of_kind(self, nodes: list[Any], wanted: type) -> list[Any]:
        """Arrays or objects; a message where something else stands is bad, unless nothing does and that is allowed."""
        if not set(map(type, nodes)) - {wanted}:
            return nodes
        for number, one in zip(self.message[-1].tolist(), nodes, strict=True):
            if type(one) is not wanted and not (one is None and self._spared):
                self.bad.setdefault(number, RejectReason.MALFORMED_ROW)
        return [one if type(one) is wanted else wanted() for one in nodes]

    def _side_by_side(self, level: Level) -> tuple[list[Any], list[str], Ints]:
        """The elements of arrays that run side by side; a message where they differ in length is bad."""
        arrays = [self._of_kind(self._at(start[:-1])[1], list) for start in level.starts]
        lengths = [np.fromiter(map(len, one), np.int64, len(one)) for one in arrays]
        same = np.logical_and.reduce([one == lengths[0] for one in lengths])
        for number in self.message[-1][~same].tolist():
            self.bad.setdefault(number, RejectReason.MALFORMED_ROW)
        if not same.all():
            arrays = [[one if good else [] for one, good in zip(each, same, strict=True)] for each in arrays]
        up = np.repeat(np.arange(len(same)), np.where(same, lengths[0], 0))
        return list(zip(*map(chain.from_iterable, arrays), strict=True)), [], up


def _fields_at(start: Steps, paths: Collection[Steps]) -> set[str]:
    """The fields of an object that paths end at."""
    return {str(path[-1]) for path in paths if path and path[:-1] == start}


def follow(nodes: Sequence[Any], steps: Steps) -> list[Any]:
    """What a path without wildcards leads to in each of some values; ``None`` where it leads nowhere."""
    found = list(nodes)
    for step in steps:
        found = _step(found, step)
    return found


def _step(nodes: list[Any], step: Step) -> list[Any]:
    if isinstance(step, str):
        if set(map(type, nodes)) <= {dict}:
            get: Callable[[Any], Any] = itemgetter(step)
            try:
                return list(map(get, nodes))
            except KeyError:
                pass
        return [one.get(step) if type(one) is dict else _nothing_in(one) for one in nodes]
    if isinstance(step, Do):
        return list(map(UNPACKED[step], nodes))
    at = int(step or 0)
    return [one[at] if type(one) is list and at < len(one) else _nothing_in(one) for one in nodes]


def _nothing_in(one: Any) -> Any:
    """What a step finds where it leads nowhere."""
    return UNREADABLE if one is UNREADABLE else None
