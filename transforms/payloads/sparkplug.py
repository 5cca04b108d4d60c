"""Sparkplug B: metrics in protobuf, which births give names and aliases and data may call by alias alone.

The topic is ``spBv1.0/GROUP/TYPE/NODE`` or ``.../NODE/DEVICE``; it is looked for in the gateway's header, the topic and
the key. What a birth tells is kept (see :mod:`.births`), and a message looks for the latest birth that is not after it:
aliases that a later birth gave anew do not change what an older message says, in whatever order they come.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from ...schemas.readings import RejectReason
from ..messages import Messages
from .births import Birth, Births, Who
from .documents import Wanted
from .fields import text_of, topics
from .rows import RowList
from .sparkplug_schema import payload_class

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
    """The readings of births and data; times are milliseconds.

    Args:
        messages: the messages.
        chosen: the numbers of those that have a payload.
        births: what earlier births told; what these tell is added.
        wanted: the metric.
    """
    rows, parse = RowList(), payload_class().FromString
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
                births.learn(name, _birth(payload, wanted.name), None if stamp < 0 else stamp // 1_000)
            series = wanted.series_of(message, "/".join(name))
            birth = births.before(name, payload.timestamp, spoken=kind in _DATA)
            whole = _add(mine, message, series, payload, birth, wanted.name)
        except (DecodeError, ValueError):  # the latter of text that is not UTF-8
            rows.bad[message] = RejectReason.MALFORMED_ROW
            continue
        rows.extend(mine)
        if not whole:
            rows.bad[message] = RejectReason.UNKNOWN_ALIAS
    return rows


def _sparkplug_topics(messages: Messages, chosen: list[int]) -> list[str | None]:
    """The Sparkplug topic of each message."""
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


def _birth(payload: Any, wanted: str) -> Birth:
    aliases: dict[int, int | None] = {}
    by_name = 0
    for metric in payload.metrics[:_MOST_METRICS]:
        name = metric.name.decode("utf-8")
        if name:
            if name == wanted:
                by_name = metric.datatype
            if metric.HasField("alias"):
                aliases[metric.alias] = metric.datatype if name == wanted else None
    others = [alias for alias, kind in aliases.items() if kind is None]
    own = {alias: kind for alias, kind in aliases.items() if kind is not None}
    return Birth.of(payload.timestamp, own, by_name, others)


def _add(rows: RowList, message: int, series: Any, payload: Any, birth: Birth | None, wanted: str) -> bool:
    """Add the readings of a payload; whether every metric had a name."""
    whole = True
    for metric in payload.metrics:
        name, kind = metric.name.decode("utf-8"), metric.datatype
        if not name:
            if birth is None or not birth.told(metric.alias):
                whole = False
                continue
            if metric.alias not in birth.wanted:
                continue
            kind = kind or birth.wanted[metric.alias]
        elif name != wanted:
            continue
        elif not kind and birth is not None:
            kind = birth.kind
        time = metric.timestamp if metric.HasField("timestamp") else payload.timestamp
        rows.add(message, series, time, _value(metric, kind))
    return whole


def _value(metric: Any, kind: int) -> Any:
    """The value of a metric; ``None`` without one."""
    field_name = metric.WhichOneof("value")
    if metric.is_null or field_name is None:
        return None
    value = getattr(metric, field_name)
    bits = _SIGNED.get(kind)
    if bits is not None and type(value) is int and value >> (bits - 1):
        return value - (1 << bits)
    return value.decode("utf-8") if type(value) is bytes else value
