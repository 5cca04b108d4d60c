"""Sparkplug B payloads, encoded byte by byte from its field numbers: no code of protobuf is in them."""

from __future__ import annotations

import struct
from typing import Any


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def integer(field: int, number: int) -> bytes:
    return varint(field << 3) + varint(number)


def block(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(data)) + data


def metric(
    name: str | bytes | None = None,
    alias: int | None = None,
    *,
    time: int | None = None,
    kind: int | None = None,
    null: bool = False,
    **value: Any,
) -> bytes:
    """A metric with a value: int, long, float, double, boolean or text."""
    data = b""
    if name is not None:
        data += block(1, name.encode() if isinstance(name, str) else name)
    for field, number in ((2, alias), (3, time), (4, kind)):
        if number is not None:
            data += integer(field, number)
    if null:
        data += integer(7, 1)
    for sort, given in value.items():
        if sort in {"int", "long", "boolean"}:
            data += integer({"int": 10, "long": 11, "boolean": 14}[sort], int(given))
        elif sort == "float":
            data += varint(12 << 3 | 5) + struct.pack("<f", given)
        elif sort == "double":
            data += varint(13 << 3 | 1) + struct.pack("<d", given)
        else:
            data += block(15, given.encode())
    # properties of the metric, which are not read
    return block(2, data + block(9, block(1, b"unit") + block(2, integer(1, 12))))


def template(name: str | None, *members: bytes, alias: int | None = None, definition: bool = False) -> bytes:
    """A metric that is a template instance, or a definition, with members."""
    data = b"" if name is None else block(1, name.encode())
    data += b"" if alias is None else integer(2, alias)
    inside = block(1, b"v1") + b"".join(members) + block(4, b"Meter") + (integer(5, 1) if definition else b"")
    return block(2, data + integer(4, 19) + block(18, inside))


def payload(time: int, *metrics: bytes, sequence: int = 0) -> bytes:
    return integer(1, time) + b"".join(metrics) + integer(3, sequence)
