"""Sparkplug B: metrics in protobuf, with the births that name them.

The topic is ``spBv1.0/GROUP/TYPE/NODE`` or ``.../NODE/DEVICE``; it is looked for in the gateway's header, the topic and
the key. A metric may be a template instance, whose members are named ``INSTANCE/MEMBER``. A level ``+`` of the wanted
name, as of ``+/Power``, stands for the meters behind one node or device, each a series of its own. No generated code
and no library of Sparkplug: the runtime of protobuf comes with Beam.

A message looks for the latest birth that is not after it, so what it says does not depend on the order in which births
came, and a birth that is read again changes nothing. Of a birth only this is kept: which aliases mean the wanted
metric, its type, and which other aliases there are, as runs of numbers. Nodes choose them one after another, so a birth
of a thousand metrics is a few numbers.

Whose births were forgotten for those of others is not remembered, but the time of the latest one that ever was. A node
that is heard of for the first time, or again, behind that may have had any birth up to that time: messages up to it,
and births before it, say nothing until the node is born anew. One that takes more than a quarter of the memory loses
its own earlier births; the others that are remembered lose nothing. A birth ahead of the broker's clock counts as of
that clock, so that a clock far ahead, or an invention, stops no node that is born later.
"""

from __future__ import annotations

import base64
import json
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from operator import attrgetter
from typing import Any

from google.protobuf.message import DecodeError

from ....schemas.readings import LONGEST_NAME, RejectReason
from ...common.batches import shortest
from ..columns import RowList, text_of, topics
from ..messages import SHARE, Bounded, Messages
from ..parsing import KINDS, ProtobufFields, protobuf_class
from .json_documents import Wanted

_TEMPLATE = "template_value"
_NUMBERS = frozenset({"int_value", "long_value", "float_value", "double_value"})

#: The part of the schema that readings need. Data sets and properties are passed over as unknown fields. Texts are
#: bytes, which look the same: versions of the runtime differ in what they make of a text that is not UTF-8.
_SCHEMA: ProtobufFields = {
    "Metric": (
        ("name", 1, KINDS.TYPE_BYTES, False),
        ("alias", 2, KINDS.TYPE_UINT64, False),
        ("timestamp", 3, KINDS.TYPE_UINT64, False),
        ("datatype", 4, KINDS.TYPE_UINT32, False),
        ("is_historical", 5, KINDS.TYPE_BOOL, False),
        ("is_null", 7, KINDS.TYPE_BOOL, False),
        ("int_value", 10, KINDS.TYPE_UINT32, False),
        ("long_value", 11, KINDS.TYPE_UINT64, False),
        ("float_value", 12, KINDS.TYPE_FLOAT, False),
        ("double_value", 13, KINDS.TYPE_DOUBLE, False),
        ("boolean_value", 14, KINDS.TYPE_BOOL, False),
        ("string_value", 15, KINDS.TYPE_BYTES, False),
        (_TEMPLATE, 18, "Template", False),
    ),
    "Template": (("metrics", 2, "Metric", True), ("is_definition", 5, KINDS.TYPE_BOOL, False)),
    "Payload": (
        ("timestamp", 1, KINDS.TYPE_UINT64, False),
        ("metrics", 2, "Metric", True),
        ("seq", 3, KINDS.TYPE_UINT64, False),
    ),
}
#: The forms of a metric's value.
_VALUES = frozenset({*_NUMBERS, "boolean_value", "string_value", _TEMPLATE})

#: Templates inside one another.
_DEEPEST = 8


@cache
def payload_class() -> Any:
    """The class of payloads."""
    return protobuf_class("quiltstream.sparkplug", "Payload", "proto2", _SCHEMA, _VALUES)


#: Births of a node or device that are remembered.
_REMEMBERED = 8
#: Births that are stamped later than the broker's clock by more than this are wrong about their time.
_AHEAD_MS = 24 * 3_600_000
#: Runs of other aliases that are remembered of a birth.
_MOST_RUNS = 10_000

#: Characters of a metric's name that take as much as an alias.
_PLAIN = 16

#: What the text begins with; another version begins with something else.
_HEAD = "births-1:"

#: The kind of what stands in the place of births that were forgotten: all up to a time, or some from a time on.
_FORGOTTEN = -1

Who = tuple[str, ...]
"""Group, node and perhaps device."""


@dataclass(frozen=True, slots=True)
class Birth:
    """What is kept of a birth."""

    time: int
    wanted: Mapping[int, int]  # the aliases of the wanted metric, and the type that each has
    kind: int  # the type that the metric has by its name; 0 without one
    others: tuple[tuple[int, int], ...]  # runs of the other aliases, increasing: the first and last of each
    # of wanted aliases whose metric has another name than the wanted one (a template's, or a meter's), that name
    names: Mapping[int, str] = field(default_factory=dict[int, str])
    kinds: Mapping[str, int] = field(default_factory=dict[str, int])  # likewise the type of each metric by its name

    @classmethod
    def of(
        cls,
        time: int,
        wanted: Mapping[int, int],
        kind: int,
        others: Iterable[int],
        names: Mapping[int, str] | None = None,
        kinds: Mapping[str, int] | None = None,
    ) -> Birth:
        """A birth, its other aliases one by one."""
        runs: list[tuple[int, int]] = []
        for one in sorted(set(others)):
            if runs and runs[-1][1] == one - 1:
                runs[-1] = (runs[-1][0], one)
            else:
                runs.append((one, one))
        return cls(time, wanted, kind, tuple(runs[:_MOST_RUNS]), names or {}, kinds or {})

    def defines(self, alias: int) -> bool:
        """Whether it says what an alias means."""
        if alias in self.wanted:
            return True
        at = bisect_right(self.others, (alias, 1 << 64))
        return at > 0 and alias <= self.others[at - 1][1]


_Kept = tuple[Birth, ...]


def _weight(births: _Kept) -> int:
    return sum(
        1
        + len(one.wanted)
        + len(one.others)
        + sum(1 + len(name) // _PLAIN for name in (*one.names.values(), *one.kinds))
        for one in births
    )


class Births:
    """The births that were seen; it belongs to one reader, and what it lacks makes rejects, never wrong readings.

    Args:
        wanted: the name of the metric.
        most: how much is remembered: births, and the aliases and names of each; of one node or device a quarter.
        text: what another one remembered, as its :attr:`text`; of another metric or version nothing is taken.
    """

    def __init__(self, wanted: str, most: int, text: str = "") -> None:
        self._wanted, self._share = wanted, most // SHARE
        self._known: Bounded[Who, _Kept] = Bounded(most, _weight, self._forget)
        self._text: str | None = None
        self._now: int | None = None
        known, self._forgotten = _read(text, wanted)
        for who, births in known:
            self._known.keep(who, births, proved=True)

    def learn(self, who: Who, birth: Birth, now: int | None = None) -> None:
        """Take a birth in, in the order of their times."""
        if now is not None:
            self._now = now if self._now is None else max(self._now, now)
        births = self._known.get(who) or self._begun
        if births and births[0].kind == _FORGOTTEN and birth.time <= births[0].time:
            return
        at = bisect_right(births, birth.time, key=attrgetter("time"))
        again = at > 0 and births[at - 1].time == birth.time
        if again and births[at - 1] == birth:
            return
        later = births[at:]
        births = (*births[: at - again], birth, *later)
        if len(later) >= _REMEMBERED and self._now is not None and later[0].time > self._now + _AHEAD_MS:
            # a clock that was ahead left them: they must not keep those out that are stamped right
            births = (birth, Birth(later[0].time, {}, _FORGOTTEN, ()))
        self._known.keep(who, self._light(births[-_REMEMBERED:]))
        self._text = None

    def before(self, who: Who, time: int, *, spoken: bool = False) -> Birth | None:
        """The latest birth of a node or device that is not after a time."""
        births = self._known.get(who) or ()
        at = bisect_right(births, time, key=attrgetter("time"))
        if spoken and births:
            self._known.keep(who, births, proved=True)
        return births[at - 1] if at and births[at - 1].kind != _FORGOTTEN else None

    def _light(self, births: _Kept) -> _Kept:
        """The latest births of a node that leave the others their memory; what came before them is forgotten."""
        if _weight(births) <= self._share:
            return births
        first = next(at for at in range(1, len(births) + 1) if 1 + _weight(births[at:]) <= self._share)
        return (Birth(self._clocked(births[first - 1].time), {}, _FORGOTTEN, ()), *births[first:])

    def _clocked(self, time: int) -> int:
        return time if self._now is None else min(time, self._now)

    @property
    def _begun(self) -> _Kept:
        return () if self._forgotten is None else (Birth(self._forgotten - 1, {}, _FORGOTTEN, ()),)

    def _forget(self, births: _Kept) -> None:
        latest = self._clocked(births[-1].time)
        self._forgotten = latest if self._forgotten is None else max(self._forgotten, latest)

    @property
    def text(self) -> str:
        """All that is remembered; empty if nothing is."""
        if self._text is None:
            known = zip(self._known.names(), self._known.values(), strict=True)
            self._text = _written(self._wanted, known, self._forgotten)
        return self._text


def _written(wanted: str, known: Iterable[tuple[Who, _Kept]], forgotten: int | None) -> str:
    plain = [[list(who), [_plain_birth(one) for one in births]] for who, births in known]
    if not plain:
        return ""
    # what was forgotten stands there only if something was, so that a memory without it is what it always was
    whole = [wanted, plain] if forgotten is None else [wanted, plain, forgotten]
    packed = zlib.compress(json.dumps(whole, separators=(",", ":")).encode(), 1)
    return _HEAD + base64.b64encode(packed).decode("ascii")


def _plain_birth(one: Birth) -> list[Any]:
    # names stand there only where there are some, so that a memory without them is what it always was
    named = [list(one.names.items()), list(one.kinds.items())] if one.names or one.kinds else []
    return [one.time, list(one.wanted.items()), one.kind, one.others, *named]


def _read(text: str, wanted: str) -> tuple[list[tuple[Who, _Kept]], int | None]:
    """What is remembered, and the time of the latest birth that was forgotten."""
    if not text.startswith(_HEAD):
        return [], None
    name, plain, *forgotten = json.loads(zlib.decompress(base64.b64decode(text[len(_HEAD) :])))
    if name != wanted:
        return [], None
    known = [(tuple(who), tuple(map(_birth_of_text, births))) for who, births in plain]
    return known, forgotten[0] if forgotten else None


def _birth_of_text(plain: Any) -> Birth:
    time, aliases, kind, others, *named = plain
    names, kinds = named or ((), ())
    return Birth(time, dict(aliases), kind, tuple((first, last) for first, last in others), dict(names), dict(kinds))


#: The level of a wanted name that stands for the meters behind a node or device.
EVERY = "+"


@dataclass(frozen=True, slots=True)
class _Metrics:
    """The metrics of a wanted name: one, or one for each meter."""

    name: str
    levels: tuple[str, ...]  # of the name between slashes, :data:`EVERY` for any; empty where it is of one metric

    @classmethod
    def of(cls, wanted: str) -> _Metrics:
        levels = tuple(wanted.split("/"))
        return cls(wanted, levels if EVERY in levels else ())

    def meter(self, name: str) -> str | None:
        """What stands in the place of :data:`EVERY` in a metric's name, if at all; ``None`` if it is another metric's.

        >>> _Metrics.of("+/Power").meter("Meter 1/Power"), _Metrics.of("Power").meter("Power")
        ('Meter 1', '')
        """
        if not self.levels:
            return "" if name == self.name else None
        levels = name.split("/")
        if len(name) > LONGEST_NAME or len(levels) != len(self.levels) or not self._fits(levels) or not all(levels):
            return None
        return "/".join(one for one, wanted in zip(levels, self.levels, strict=True) if wanted == EVERY)

    def begins(self, name: str) -> bool:
        """Whether members of a template instance of a name may be wanted."""
        if not self.levels:
            return self.name.startswith(f"{name}/")
        levels = name.split("/")
        return len(name) <= LONGEST_NAME and len(levels) < len(self.levels) and self._fits(levels)

    def _fits(self, levels: list[str]) -> bool:
        return all(wanted in (EVERY, one) for one, wanted in zip(levels, self.levels, strict=False))

    def birth(self, payload: Any) -> Birth:
        wanted, names, kinds, others = dict[int, int](), dict[int, str](), dict[str, int](), list[int]()
        for metric in payload.metrics[:_MOST_METRICS]:
            name = metric.name.decode("utf-8")
            if not name:
                continue
            found = [(full, one) for full, one in _named(metric, name) if self.meter(full) is not None]
            kinds |= {full: one.datatype for full, one in found}
            is_template = metric.WhichOneof("value") == _TEMPLATE
            if not metric.HasField("alias"):
                continue
            if found or (is_template and self.begins(name)):
                wanted[metric.alias], names[metric.alias] = 0 if is_template else metric.datatype, name
            else:
                others.append(metric.alias)
        # the wanted name itself is known, and a birth is kept without it
        kind = kinds.pop(self.name, 0)
        names = {alias: name for alias, name in names.items() if name != self.name}
        return Birth.of(payload.timestamp, wanted, kind, others, names, kinds)

    def add(self, rows: RowList, message: int, series: Any, payload: Any, birth: Birth | None) -> bool:
        """Add the readings of a payload, those of each meter under its name; whether each metric had a name."""
        metrics, whole = self._defined(payload, birth)
        for metric, name, kind in metrics:
            for full, one in _named(metric, name):
                meter = self.meter(full)
                if meter is None:
                    continue
                by_name = 0 if birth is None else birth.kind if full == self.name else birth.kinds.get(full, 0)
                mine = (kind if one is metric else one.datatype) or by_name
                stamped = next((each for each in (one, metric) if each.HasField("timestamp")), payload)
                own = f"{series}/{meter}" if meter and series is not None else series
                rows.add(message, own, stamped.timestamp, _value(one, mine))
        return whole

    def _defined(self, payload: Any, birth: Birth | None) -> tuple[list[tuple[Any, str, int]], bool]:
        """The metrics with a name or a wanted alias, each with its name and type; whether the birth defines all."""
        found: list[tuple[Any, str, int]] = []
        whole = True
        for metric in payload.metrics:
            name, kind = metric.name.decode("utf-8"), metric.datatype
            if name:
                found.append((metric, name, kind))
            elif birth is None or not birth.defines(metric.alias):
                whole = False
            elif metric.alias in birth.wanted:
                found.append((metric, birth.names.get(metric.alias, self.name), kind or birth.wanted[metric.alias]))
        return found, whole


def _named(metric: Any, name: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """A metric by its name, or the members of a template instance by theirs."""
    if metric.WhichOneof("value") != _TEMPLATE:
        yield name, metric
        return
    template = metric.template_value
    if template.is_definition or depth >= _DEEPEST or len(name) > LONGEST_NAME:
        return
    for one in template.metrics:
        # a name that is not UTF-8 is no series' name: where it is wanted its reading is rejected; the others are read
        own = one.name.decode("utf-8", "surrogateescape")
        if own:
            yield from _named(one, f"{name}/{own}", depth + 1)


_NAMESPACE = "spBv1.0"
_NODE_PARTS, _DEVICE_PARTS = 4, 5
_BIRTHS, _DATA = ("NBIRTH", "DBIRTH"), ("NDATA", "DDATA")
_OTHERS = ("NDEATH", "DDEATH", "NCMD", "DCMD")
#: Where host applications say whether they are there.
_HOSTS = ("spBv1.0/STATE/", "STATE/")

#: Metrics of a birth that are remembered.
_MOST_METRICS = 100_000

#: Bits of the signed integers, by the number of their type; they travel as unsigned ones.
_SIGNED = {1: 32, 2: 32, 3: 32, 4: 64}


def sparkplug_rows(messages: Messages, chosen: list[int], births: Births, wanted: Wanted) -> RowList:
    """The readings of births and data; times are milliseconds."""
    rows, parse, metrics = RowList(), payload_class().FromString, _Metrics.of(wanted.name)
    for message, topic in zip(chosen, _sparkplug_topics(messages, chosen), strict=True):
        if topic is not None and topic.startswith(_HOSTS):
            continue
        who = _who(topic)
        if who is None:
            rows.bad[message] = RejectReason.MALFORMED_ROW
            continue
        kind, name = who
        if kind in _OTHERS:
            continue
        mine = RowList()
        try:
            payload = parse(messages.payloads[message])
            if kind in _BIRTHS:
                stamp = int(messages.stamps_us[message])
                births.learn(name, metrics.birth(payload), None if stamp < 0 else stamp // 1_000)
            series = wanted.series_of(message, "/".join(name))
            birth = births.before(name, payload.timestamp, spoken=kind in _DATA)
            whole = metrics.add(mine, message, series, payload, birth)
        except (DecodeError, ValueError):  # the latter of text that is not UTF-8
            rows.bad[message] = RejectReason.MALFORMED_ROW
            continue
        rows.extend(mine)
        if not whole:
            rows.bad[message] = RejectReason.UNKNOWN_ALIAS
    return rows


def numeric_metrics(payloads: Iterable[bytes]) -> set[str]:
    """The names of metrics that are numbers, those of members of templates too; what is no payload is passed over."""
    found: set[str] = set()
    parse = payload_class().FromString
    for payload in payloads:
        with suppress(DecodeError, ValueError):
            named = ((one.name.decode("utf-8"), one) for one in parse(payload).metrics)
            inside = [pair for name, one in named if name for pair in _named(one, name)]
            found |= {name for name, one in inside if one.WhichOneof("value") in _NUMBERS}
    return found


def _sparkplug_topics(messages: Messages, chosen: list[int]) -> list[str | None]:
    found: list[str | None] = []
    for message, topic in zip(chosen, topics(messages, chosen), strict=True):
        key = None if topic.startswith(_NAMESPACE) else text_of(messages.keys[message])
        found.append(topic if key is None else str(key))
    return found


def _who(topic: str | None) -> tuple[str, Who] | None:
    """The type of a message, and its node or device; ``None`` if the topic is none of Sparkplug's."""
    parts = [] if topic is None else topic.split("/")
    if len(parts) not in {_NODE_PARTS, _DEVICE_PARTS} or parts[0] != _NAMESPACE or not all(parts):
        return None
    group, kind, *name = parts[1:]
    # a birth of a device is no birth of its node
    if kind not in {*_BIRTHS, *_DATA, *_OTHERS} or (kind[0] == "D") is (len(name) == 1):
        return None
    return kind, (group, *name)


def _value(metric: Any, kind: int) -> Any:
    """The value of a metric; ``None`` without one."""
    field_name = metric.WhichOneof("value")
    if metric.is_null or field_name is None or field_name == _TEMPLATE:
        return None
    value = getattr(metric, field_name)
    if field_name == "float_value":
        return shortest(value)
    bits = _SIGNED.get(kind)
    if bits is not None and type(value) is int and value >> (bits - 1):
        return value - (1 << bits)
    return value.decode("utf-8") if type(value) is bytes else value
