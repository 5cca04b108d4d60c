"""Avro payloads: framing of schema registries and single objects, and bodies read vectorised or by the library.

The library makes a dictionary of each reading and reads a number byte by byte; with many readings in a message that is
most of a job's work. So the bodies of one schema are read vectorised where that can be done: a cursor stands in the
body of each message, and a step of the schema moves all of them. It is for records within records, one array of
readings, unions with null, and numbers and text without logical types where the mapping looks. Other schemas are unfit.
A message that is not read here without doubt is *irregular* and left to the library, which alone decides what is
damaged: one whose bytes do not end where its record does, or hold no UTF-8, a union without such a type, an array in
blocks with sizes, a time that is null, or an array so long that few others keep it company. A cursor never goes back
and never further than just behind the last body, so whatever the bytes are, reading ends.

>>> fields = [{"name": "t", "type": "long"}, {"name": "v", "type": "double"}]
>>> reading = {"type": "record", "name": "R", "fields": fields}
>>> vectorised = Vectorised({"type": "array", "items": reading}, {"time": (None, "t"), "value": (None, "v")})
>>> body = bytes([4, 1]) + bytes(8) + bytes([6]) + bytes(8) + bytes([0])
>>> found = vectorised.read([body] * 50 + [body[:-1]])
>>> found.columns["time"][:4].to_pylist(), found.at[:4].tolist(), found.irregular.tolist()
([-1, 3, -1, 3], [0, 0, 1, 1], [50])
>>> cursors = Cursors([b"head" + bytes([7, 2, 97]), b"head" + bytes([0x80, 1])], head=4)
>>> numbers, at = cursors.long(cursors.begin, np.arange(2))
>>> numbers.tolist(), (cursors.end - at).tolist()
([-4, 64], [2, 0])
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, cast

import fastavro
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from fastavro.schema import fingerprint, to_parsing_canonical_form

from ...schemas.errors import QuiltstreamError
from ...schemas.readings import LONGEST_NAME, RejectReason
from ...schemas.settings.base import SettingsError
from ...schemas.settings.places import Steps
from ..common.batches import Bools, Floats, Ints, as_floats
from ..formats.avro import BYTES, RECORDS, TIMES, Shapes, bare, decimal_floats, plain_times
from .columns import FIELDS, GROUP, LONGEST_TEXT, SERIES, TIME, VALUE
from .parsing import Parsed, ParsedColumns, parse_each

Bytes = npt.NDArray[np.uint8]

#: Behind the last body: no value is looked at further than so many bytes from where a cursor stands.
_PAD = bytes(32)

_WORD = 8
_MORE = 0x80

#: Of eight bytes of a number of variable length: their highest bits, their lowest, and what is left without the first.
_HIGHEST, _LOWEST, _REST = (np.uint64(int(one * _WORD, 16)) for one in ("80", "01", "7f"))
#: How groups of bits move together: which stay, and which move by how many.
_CLOSER = tuple(
    (np.uint64(int(stay, 16)), np.uint64(int(move, 16)), np.uint64(by))
    for stay, move, by in (
        ("007f007f007f007f", "7f007f007f007f00", 1),
        ("00003fff00003fff", "3fff00003fff0000", 2),
        ("000000000fffffff", "0fffffff00000000", 4),
    )
)
_ONE, _TOP_BYTE = np.uint64(1), np.uint64(56)


class Cursors:
    """Where reading stands in each of n messages; it belongs to one call."""

    def __init__(self, payloads: Sequence[bytes], head: int) -> None:
        sizes = np.fromiter(map(len, payloads), np.int64, len(payloads))
        data = b"".join((*payloads, _PAD))
        self.end = np.cumsum(sizes)
        self.begin = self.end - sizes + head
        self.irregular = np.zeros(len(payloads), dtype=np.bool_)
        # behind every end, so that nothing that goes on for too long stops at one
        self._last = len(data) - len(_PAD) + 1
        self._bytes = np.frombuffer(data, np.uint8)
        places = (len(data) - _WORD + 1,)
        # a value may begin at any byte
        self._words: npt.NDArray[np.uint64] = np.ndarray(places, "<u8", data, strides=(1,))
        self._doubles: Floats = np.ndarray(places, "<f8", data, strides=(1,))
        self._floats: npt.NDArray[np.float32] = np.ndarray(places, "<f4", data, strides=(1,))

    def doubt(self, who: Ints, bad: Bools) -> bool:
        """Mark some of the messages as irregular; whether there are any."""
        if not bad.any():
            return False
        self.irregular[who[bad]] = True
        return True

    def on(self, at: Ints, size: int | Ints) -> Ints:
        """Go on by so many bytes."""
        return np.minimum(at + size, self._last)

    def long(self, at: Ints, who: Ints) -> tuple[Ints, Ints]:
        """Numbers of variable length, and where what is behind them begins."""
        first = self._bytes[at]
        if first.max(initial=0) < _MORE:
            number = first.astype(np.int64)
            return (number >> 1) ^ -(number & 1), self.on(at, 1)
        words = self._words[at]
        last = ~words & _HIGHEST
        # all bits below the highest one of the first byte behind which there is no other; all where there is none
        mine = (last & (~last + _ONE)) - _ONE
        found = words & mine & _REST
        for stay, move, by in _CLOSER:
            found = (found & stay) | ((found & move) >> by)
        size = (((mine & _LOWEST) * _LOWEST) >> _TOP_BYTE).astype(np.int64)
        if not last.all():
            found, size = self._longer(at, who, last == 0, found, size)
        number = (found >> _ONE).astype(np.int64) ^ -(found & _ONE).astype(np.int64)
        return number, self.on(at, size)

    def _longer(
        self, at: Ints, who: Ints, long: Bools, found: npt.NDArray[np.uint64], size: Ints
    ) -> tuple[npt.NDArray[np.uint64], Ints]:
        """The same with the ninth and tenth byte of those that have them."""
        ninth, tenth = (self._bytes[at + _WORD + one].astype(np.uint64) for one in (0, 1))
        more = long & (ninth >= _MORE)
        self.doubt(who, more & (tenth > 1))
        high = ((ninth & np.uint64(0x7F)) << np.uint64(56)) | np.where(more, tenth << np.uint64(63), np.uint64(0))
        return found | np.where(long, high, np.uint64(0)), size + long + more

    def double(self, at: Ints) -> Floats:
        """Numbers of eight bytes."""
        return self._doubles[at]

    def float(self, at: Ints) -> Floats:
        """Numbers of four bytes."""
        return as_floats(pa.array(self._floats[at])).to_numpy(zero_copy_only=False)

    def counted(self, at: Ints, who: Ints) -> tuple[Ints, Ints, Ints]:
        """Bytes behind their number: where they begin, how many they are, and where what is behind them begins."""
        size, begin = self.long(at, who)
        bad = (size < 0) | (size > self._last - begin)
        if self.doubt(who, bad):
            size = np.where(bad, 0, size)
        return begin, size, begin + size

    def joined(self, begin: Ints, size: Ints) -> Bytes:
        """Some parts of the bytes in a row."""
        before = np.cumsum(size) - size
        return self._bytes[np.repeat(begin - before, size) + np.arange(int(size.sum()))]

    def check_texts(self, begin: Ints, size: Ints, who: Ints) -> None:
        """Mark messages as irregular that have other than UTF-8 in a text."""
        high = self.joined(begin, size) >= _MORE
        if not high.any():
            return
        # what is not ASCII is looked at one by one: texts that are no UTF-8 may be when they are joined
        for one in np.unique(np.repeat(np.arange(len(size)), size)[high]).tolist():
            first = int(begin[one])
            try:
                self._bytes[first : first + int(size[one])].tobytes().decode("utf-8")
            except UnicodeDecodeError:
                self.irregular[who[one]] = True


#: Fewer messages, or fewer that are still within an array, are read faster one by one.
FEW = 40

#: Types in a schema: each is a step for all messages, however few of them have it.
_MOST_TYPES = 200

#: Bytes of so many messages; more are not read here at once.
_MOST_BYTES = 1 << 28

_LONGS, _FLOATS = frozenset({"int", "long"}), frozenset({"float", "double"})

#: Types of the leaves that a part of a reading may be.
_FIT = {
    SERIES: _LONGS | {"string"},
    GROUP: _LONGS | {"string"},
    TIME: _LONGS | _FLOATS | {"string"},
    VALUE: _LONGS | _FLOATS,
}

#: The parts of a reading that are in the body, and where.
Wanted = Mapping[str, Steps]


class UnfitError(QuiltstreamError, ValueError):
    """A schema that is not read vectorised, or not for what is wanted."""


@dataclass(frozen=True, slots=True)
class Found:
    """What some messages hold."""

    columns: dict[str, pa.Array]  # what is wanted, an entry for each reading, shape (n,); names as dictionaries
    at: Ints  # number of each reading's message among those that were read, rising, shape (n,)
    read: Ints  # places of the messages that were read
    irregular: Ints  # places of the others


@dataclass(slots=True)
class _Leaf:
    """The values of a part: numbers, or where texts begin and their sizes; it belongs to one batch."""

    rows: list[Ints] = field(default_factory=list[Ints])
    values: list[npt.NDArray[Any]] = field(default_factory=list[npt.NDArray[Any]])
    sizes: list[Ints] = field(default_factory=list[Ints])


class _Batch:
    """What is read of some messages; it belongs to one call."""

    def __init__(self, cursors: Cursors, parts: Mapping[str, str]) -> None:
        self.cursors = cursors
        self.leaves = {part: _Leaf() for part in parts}
        #: texts that are not needed, but must be texts: where they begin, their sizes, and whose they are
        self.texts: tuple[list[Ints], list[Ints], list[Ints]] = ([], [], [])
        #: of each reading in the array the message, and how many of the message are before it
        self.owners: list[Ints] = []
        self.before: list[Ints] = []
        self._count = 0

    def readings(self, who: Ints, before: Ints) -> Ints:
        self.owners.append(who)
        self.before.append(before)
        first, self._count = self._count, self._count + len(who)
        return np.arange(first, self._count)


#: Goes behind a value of each of some messages: from where their cursors stand, which messages they are, and the number
#: under which what is wanted is kept (a reading's, or the message's), to where the cursors stand then.
_Step = Callable[[_Batch, Ints, Ints, Ints], Ints]


class Vectorised:
    """A schema, and what is wanted of it; a plain value."""

    def __init__(self, schema: Any, wanted: Wanted) -> None:
        self._shapes = Shapes(schema)
        self._types = 0
        #: the type of each part, and those that are within the array
        self._parts: dict[str, str] = {}
        self._inside: set[str] = set()
        self._is_array = False
        if not wanted:
            raise UnfitError("nothing is wanted")
        self._step = self._of(schema, wanted, inside=False)

    def type_of(self, part: str) -> str | None:
        """The type of a part of a reading; ``None`` if it is not in the body."""
        return self._parts.get(part)

    def read(self, payloads: Sequence[bytes], head: int = 0) -> Found:
        """Read messages."""
        count = len(payloads)
        everyone = np.arange(count)
        if count < FEW or sum(map(len, payloads)) > _MOST_BYTES:
            return Found({}, everyone[:0], everyone[:0], everyone)
        cursors = Cursors(payloads, head)
        batch = _Batch(cursors, self._parts)
        at = self._step(batch, cursors.begin, everyone, everyone)
        cursors.irregular |= at != cursors.end
        return self._found(batch, count)

    # What was found

    def _found(self, batch: _Batch, count: int) -> Found:
        irregular = batch.cursors.irregular
        # each reading's message
        inside = _joined(batch.owners) if self._is_array else np.arange(count)
        whose = {part: inside if part in self._inside else np.arange(count) for part in self._parts}
        leaves = {
            part: (_joined(one.rows), _joined(one.values), _joined(one.sizes)) for part, one in batch.leaves.items()
        }
        self._doubt(batch, leaves, whose)
        keep = ~irregular
        read = np.flatnonzero(keep)
        number = np.cumsum(keep) - 1
        if self._is_array:
            counts = np.bincount(inside[keep[inside]], minlength=count)
            place = (np.cumsum(counts) - counts)[inside] + _joined(batch.before)
            at = np.repeat(number, counts)
        else:
            place, at = number, np.arange(len(read))
        columns: dict[str, pa.Array] = {}
        for part, (rows, values, sizes) in leaves.items():
            # nothing of an irregular message is looked at: it may be as long as all messages
            kept = keep[whose[part][rows]]
            mine = (values[kept], sizes[kept] if len(sizes) else sizes)
            if part in self._inside:
                columns[part] = self._column(part, batch.cursors, place[rows[kept]], *mine, len(at))
            else:
                each = self._column(part, batch.cursors, number[rows[kept]], *mine, len(read))
                columns[part] = each.take(pa.array(at)) if self._is_array else each
        return Found(columns, at, read, np.flatnonzero(irregular))

    def _doubt(
        self, batch: _Batch, leaves: Mapping[str, tuple[Ints, npt.NDArray[Any], Ints]], whose: Mapping[str, Ints]
    ) -> None:
        """Mark messages as irregular for what is not seen while they are read."""
        cursors = batch.cursors
        texts = [tuple(map(_joined, batch.texts))]
        for part, (rows, values, sizes) in leaves.items():
            who = whose[part][rows]
            if self._parts[part] == "string":
                # it may have no more letters than it may have, but bytes
                cursors.doubt(who, sizes > (LONGEST_TEXT if part == TIME else LONGEST_NAME))
                texts.append((values, sizes, who))
            if part == TIME:
                missing = np.ones(len(whose[part]), dtype=np.bool_)
                missing[rows] = False
                cursors.doubt(whose[part], missing)
        for begin, size, who in texts:
            kept = ~cursors.irregular[who]
            cursors.check_texts(begin[kept], size[kept], who[kept])

    def _column(
        self, part: str, cursors: Cursors, places: Ints, values: npt.NDArray[Any], sizes: Ints, count: int
    ) -> pa.Array:
        """Values at their places as a column of so many; the others are null."""
        kind = self._parts[part]
        missing: Bools | None = None
        if len(places) < count:
            missing = np.ones(count, dtype=np.bool_)
            missing[places] = False
        dtype = np.float64 if part == VALUE else values.dtype
        spread = np.zeros(count, dtype=dtype)
        spread[places] = values
        if kind == "string":
            lengths = np.zeros(count, dtype=np.int64)
            lengths[places] = sizes
            ends = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
            buffers = [None, pa.py_buffer(ends), pa.py_buffer(cursors.joined(spread, lengths))]
            column = pa.Array.from_buffers(pa.utf8(), count, buffers)
            if missing is not None:
                column = column.take(pa.array(np.arange(count), mask=missing))
        else:
            column = pa.array(spread, mask=missing)
        if part not in {SERIES, GROUP}:
            return column
        return (column if kind == "string" else column.cast(pa.utf8())).dictionary_encode()

    # The steps of a schema

    def _of(self, kind: Any, wanted: Wanted, *, inside: bool) -> _Step:
        self._types += 1
        if self._types > _MOST_TYPES:
            raise UnfitError("too many types")
        if isinstance(kind, list):
            return self._union(cast("list[Any]", kind), wanted, inside=inside)
        kind, name = self._whole(kind)
        if name in RECORDS:
            return self._record(kind["fields"], wanted, inside=inside)
        if name == "array":
            return self._array(kind["items"], wanted, inside=inside)
        if wanted:
            return self._leaf(name, wanted, inside=inside)
        if name == "map":
            value = self._of(kind["values"], {}, inside=inside)
            return _rounds(_in_turn([_pass_text, value]), 1 + self._shapes.fewest(kind["values"]), is_wanted=False)
        return _single(name, kind)

    def _whole(self, kind: Any) -> tuple[Any, Any]:
        """A type with its name replaced by what it stands for, and which kind of type it is."""
        kind = self._shapes.whole(kind)
        if not isinstance(kind, dict):
            return kind, kind
        found = cast("dict[str, Any]", kind)
        if "logicalType" in found:
            raise UnfitError("a logical type")
        return found, found["type"]

    def _record(self, fields: Any, wanted: Wanted, *, inside: bool) -> _Step:
        names = [one["name"] for one in fields]
        if len(set(names)) < len(names) or any(not steps or steps[0] not in names for steps in wanted.values()):
            raise UnfitError("a path to a record, or to no field")
        if inside and VALUE in wanted and not FIELDS.isdisjoint(names):
            raise UnfitError("a unit beside the value, which is compared")
        steps: list[_Step] = []
        for one in fields:
            mine = {part: path[1:] for part, path in wanted.items() if path[0] == one["name"]}
            steps.append(self._of(one["type"], mine, inside=inside))
        return _in_turn(steps)

    def _array(self, items: Any, wanted: Wanted, *, inside: bool) -> _Step:
        if not wanted:
            return _rounds(self._of(items, {}, inside=inside), self._shapes.fewest(items), is_wanted=False)
        if inside or self._is_array or any(not steps or steps[0] is not None for steps in wanted.values()):
            raise UnfitError("a path to an array, to one element, or through two arrays")
        self._is_array = True
        each = self._of(items, {part: path[1:] for part, path in wanted.items()}, inside=True)
        return _rounds(each, self._shapes.fewest(items), is_wanted=True)

    def _leaf(self, name: Any, wanted: Wanted, *, inside: bool) -> _Step:
        for part, path in wanted.items():
            if path or name not in _FIT[part] or part in self._parts:
                raise UnfitError("a part of a reading that is of no fitting type")
            self._parts[part] = name
            if inside:
                self._inside.add(part)
        parts = tuple(wanted)

        def read(batch: _Batch, at: Ints, who: Ints, rows: Ints) -> Ints:
            cursors, sizes = batch.cursors, None
            if name in _LONGS:
                values, behind = cursors.long(at, who)
            elif name == "string":
                values, sizes, behind = cursors.counted(at, who)
            else:
                values = cursors.double(at) if name == "double" else cursors.float(at)
                behind = cursors.on(at, BYTES[name])
            for part in parts:
                leaf = batch.leaves[part]
                leaf.rows.append(rows)
                leaf.values.append(values)
                if sizes is not None:
                    leaf.sizes.append(sizes)
            return behind

        return read

    def _union(self, kinds: list[Any], wanted: Wanted, *, inside: bool) -> _Step:
        others = [one for one in kinds if one != "null"]
        if wanted and len(others) != 1:
            raise UnfitError("a part of a reading that may be of several types")
        # without its array a message is no message of readings
        needed = any(None in path for path in wanted.values())
        nothing = _doubted if needed else _single("null", "null")
        steps = [nothing if one == "null" else self._of(one, wanted, inside=inside) for one in kinds]

        def read(batch: _Batch, at: Ints, who: Ints, rows: Ints) -> Ints:
            place, at = batch.cursors.long(at, who)
            batch.cursors.doubt(who, (place < 0) | (place >= len(steps)))
            behind = at
            for number, step in enumerate(steps):
                chosen = place == number
                if chosen.all():
                    return step(batch, at, who, rows)
                if chosen.any():
                    behind = behind.copy() if behind is at else behind
                    behind[chosen] = step(batch, at[chosen], who[chosen], rows[chosen])
            return behind

        return read


def _joined(given: list[Any]) -> npt.NDArray[Any]:
    return np.concatenate(given) if given else np.empty(0, dtype=np.int64)


def _in_turn(steps: list[_Step]) -> _Step:
    def read(batch: _Batch, at: Ints, who: Ints, rows: Ints) -> Ints:
        for step in steps:
            at = step(batch, at, who, rows)
        return at

    return read


def _single(name: Any, kind: Any) -> _Step:
    """The step over a single value that is not needed."""
    if name == "string":
        return _pass_text
    if name == "bytes":
        return lambda batch, at, who, _: batch.cursors.counted(at, who)[2]
    if name in _LONGS:
        return lambda batch, at, who, _: batch.cursors.long(at, who)[1]
    if name == "enum":
        symbols = len(kind["symbols"])

        def read(batch: _Batch, at: Ints, who: Ints, _: Ints) -> Ints:
            place, at = batch.cursors.long(at, who)
            batch.cursors.doubt(who, (place < 0) | (place >= symbols))
            return at

        return read
    size = kind["size"] if name == "fixed" else BYTES.get(name)
    # the library takes any size, also one below nothing, by which a cursor would go back
    if not isinstance(size, int) or not 0 <= size <= _MOST_BYTES:
        raise UnfitError("a type of another kind, or of a size that no message has")

    def go_on(batch: _Batch, at: Ints, _who: Ints, _: Ints) -> Ints:
        return batch.cursors.on(at, size)

    return go_on


def _pass_text(batch: _Batch, at: Ints, who: Ints, _: Ints) -> Ints:
    begin, size, behind = batch.cursors.counted(at, who)
    for column, one in zip(batch.texts, (begin, size, who), strict=True):
        column.append(one)
    return behind


def _doubted(batch: _Batch, at: Ints, who: Ints, _: Ints) -> Ints:
    batch.cursors.irregular[who] = True
    return at


def _rounds(item: _Step, least: int, *, is_wanted: bool) -> _Step:
    """The step over an array: of every message that has one the first thing, then the second, and so on.

    A message that claims more items than fit into what is left of its body is irregular, and so is one that has read
    behind its body: so there are no more rounds and no more things than the bodies have bytes.
    """

    def read(batch: _Batch, at: Ints, who: Ints, _: Ints) -> Ints:
        cursors = batch.cursors
        at, live, taken = at.copy(), np.arange(len(at)), np.zeros(len(at), dtype=np.int64)
        while len(live):
            mine = who[live]
            count, here = cursors.long(at[live], mine)
            bad = (count < 0) | (count > (cursors.end[mine] - here) // max(1, least))
            cursors.doubt(mine, bad)
            at[live] = here
            more = ~bad & (count > 0)
            begun = live = live[more]
            here, mine, before, count = at[live], who[live], taken[live], count[more]
            taken[live] += count
            for number in range(int(count.max(initial=0))):
                going = (count > number) & ~cursors.irregular[mine]
                if not going.all():
                    at[live] = here
                    live, here, mine, before, count = (one[going] for one in (live, here, mine, before, count))
                if len(live) < FEW:
                    cursors.irregular[mine] = True
                    break
                rows = batch.readings(mine, before + number) if is_wanted else mine
                here = item(batch, here, mine, rows)
                cursors.doubt(mine, here > cursors.end[mine])
            at[live] = here
            live = begun[~cursors.irregular[who[begun]]]
        return at

    return read


def is_bounded(schema: Any) -> bool:
    """Whether a body's size bounds the work of reading it: no type inside itself, no array of things without bytes."""
    return Shapes(fastavro.parse_schema(bare(schema))).is_plain


def stamps_at(schema: Any, steps: Steps) -> pa.DataType | None:
    """What the integers at the end of a path are; ``None`` if the schema does not say that they are time stamps."""
    shapes = Shapes(fastavro.parse_schema(schema))
    kind = _only(shapes, shapes.schema)
    for step in steps:
        if not isinstance(kind, dict):
            return None
        if isinstance(step, str):
            kind = next((one["type"] for one in kind.get("fields", ()) if one["name"] == step), None)
        else:
            kind = kind.get("items")
        kind = _only(shapes, kind)
    return TIMES.get(kind.get("logicalType", "")) if isinstance(kind, dict) else None


def _only(shapes: Shapes, kind: Any) -> Any:
    """A type without the null of a union, and with a name replaced by what it stands for."""
    if isinstance(kind, list):
        others = [one for one in cast("list[Any]", kind) if one != "null"]
        kind = others[0] if len(others) == 1 else None
    return shapes.whole(kind)


#: An id to the writer's schema; ``LookupError`` where there is none, and any other error where that is unknown.
SchemaLookup = Callable[[int], Any]

_MAGIC = 0
_HEAD = 5
_SINGLE_MAGIC = b"\xc3\x01"
_SINGLE_HEAD = 10
_NOTHING: Wanted = MappingProxyType({})


class AvroParser:
    """Parses Avro; it belongs to one worker.

    Args:
        lookup: gives the writer's schema of an id, or of a fingerprint.
        wanted: the parts of a reading that are in the payloads; a time stamp is read as the integer that it is, which
            takes half the time. ``None``: anything may be asked for, and a time stamp is an instant.
        single: whether payloads are single objects.
        vectorised: whether the parts of readings may be taken out of many bodies at once, without their other values.
    """

    def __init__(
        self, lookup: SchemaLookup, wanted: Wanted | None = _NOTHING, *, single: bool = False, vectorised: bool = True
    ) -> None:
        self._lookup = lookup
        self._wanted = wanted
        self._single = single
        self._may_vectorise = vectorised and wanted is not None
        self._known: dict[int, _Schema | None] = {}

    def __call__(self, payloads: Sequence[bytes], numbers: Sequence[int]) -> Sequence[Parsed | ParsedColumns]:
        """Parse payloads, those of one schema together."""
        lost = Parsed()
        found: list[Parsed | ParsedColumns] = [lost]
        alike: dict[bytes, list[int]] = {}
        size, name_of = (_SINGLE_HEAD, _single_id) if self._single else (_HEAD, _wire_id)
        for place, payload in enumerate(payloads):
            alike.setdefault(payload[:size], []).append(place)
        for head, places in alike.items():
            mine = [numbers[place] for place in places]
            name = name_of(head)
            schema = None if name is None else self._schema(name)
            if schema is None:
                why = RejectReason.MALFORMED_ROW if name is None else RejectReason.UNKNOWN_SCHEMA
                lost.bad.update(dict.fromkeys(mine, why))
            else:
                found += schema.read([payloads[place] for place in places], mine, size)
        return found

    def _schema(self, name: int) -> _Schema | None:
        if name not in self._known:
            try:
                self._known[name] = _Schema.of(self._lookup(name), self._wanted, vectorised=self._may_vectorise)
            except LookupError:
                # not remembered: it may be registered later
                return None
        return self._known[name]


def _wire_id(head: bytes) -> int | None:
    if len(head) < _HEAD or head[0] != _MAGIC:
        return None
    (number,) = struct.unpack_from(">i", head, 1)
    # registries' numbers are signed, and to a negative one they answer as a server does that is no registry
    return number if number >= 0 else None


def _single_id(head: bytes) -> int | None:
    if len(head) < _SINGLE_HEAD or head[:2] != _SINGLE_MAGIC:
        return None
    return struct.unpack_from("<Q", head, 2)[0]


def schema_fingerprint(schema: Any) -> int:
    """CRC-64-AVRO of a schema's canonical form, as single objects carry it."""
    digest = fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO")
    return int.from_bytes(bytes.fromhex(digest), "little")


def known_schemas(schemas: Iterable[Mapping[str, Any]]) -> SchemaLookup:
    """The lookup of schemas that the settings hold."""
    given = [dict(schema) for schema in schemas]
    return {_checked(number, schema): schema for number, schema in enumerate(given)}.__getitem__


def _checked(number: int, schema: dict[str, Any]) -> int:
    try:
        fastavro.parse_schema(schema)
        return schema_fingerprint(schema)
    except Exception as error:  # noqa: BLE001 - whatever fastavro says of a schema, it is none
        raise SettingsError(
            f"readings.avro_schemas[{number}] is no Avro schema ({type(error).__name__}); give the writer's schema"
        ) from None


class _Schema:
    """A writer's schema, as the bodies of many messages are read by it."""

    def __init__(self, given: Any, wanted: Wanted | None, *, vectorised: bool) -> None:
        self._stamps = stamps_at(given, wanted[TIME]) if wanted and TIME in wanted else None
        plain = given if wanted is None else plain_times(given)
        parsed = fastavro.parse_schema(plain) if wanted and vectorised else None
        self._vectorised = None if parsed is None else self._vectorised_schema(parsed, wanted or _NOTHING)
        self._by_library = fastavro.parse_schema(decimal_floats(plain))

    @classmethod
    def of(cls, schema: Any, wanted: Wanted | None = _NOTHING, *, vectorised: bool = True) -> _Schema | None:
        """A schema to read by; ``None`` if it is none, or one whose bodies could keep a reader busy for ever."""
        try:
            return cls(schema, wanted, vectorised=vectorised) if is_bounded(schema) else None
        except Exception:  # noqa: BLE001 - whatever fastavro says of a schema, it cannot be read
            return None

    def _vectorised_schema(self, plain: Any, wanted: Wanted) -> Vectorised | None:
        try:
            found = Vectorised(plain, wanted)
        except UnfitError:
            return None
        # what the schema says of times goes for integers
        return None if self._stamps is not None and found.type_of(TIME) not in {"int", "long"} else found

    def read(self, payloads: list[bytes], numbers: list[int], head: int) -> list[Parsed | ParsedColumns]:
        if self._vectorised is None or len(payloads) < FEW:
            return [self._plainly([one[head:] for one in payloads], numbers)]
        try:
            found = self._vectorised.read(payloads, head)
        except Exception:  # noqa: BLE001 - whatever it stumbles over, no message may stop a job
            return [self._plainly([one[head:] for one in payloads], numbers)]
        read: list[Parsed | ParsedColumns] = []
        if len(found.read):
            columns = found.columns
            if self._stamps is not None:
                columns = columns | {TIME: columns[TIME].view(self._stamps)}
            read.append(ParsedColumns(columns, [numbers[place] for place in found.read.tolist()], found.at))
        irregular = found.irregular.tolist()
        if irregular:
            read.append(
                self._plainly([payloads[place][head:] for place in irregular], [numbers[place] for place in irregular])
            )
        return read

    def _plainly(self, bodies: list[bytes], numbers: list[int]) -> Parsed:
        """Read bodies by the library."""
        return replace(parse_each(bodies, numbers, self._one), stamps=self._stamps)

    def _one(self, body: bytes) -> Any:
        stream = io.BytesIO(body)
        value = fastavro.schemaless_reader(stream, self._by_library, None)
        if stream.tell() != len(body):
            raise ValueError("bytes behind the record")
        return value
