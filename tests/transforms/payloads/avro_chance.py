"""Avro schemas by chance, messages of them, and damage."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from .payloads import NOON_MS

LEAVES = ["boolean", "int", "long", "float", "double", "string", "bytes"]
TEXTS = ["m1", "m2", "", "é", "\0", "m" * 1001, "é" * 600, "x" * 150]
TIMES = ["2026-01-05T12:00:00Z", "2026-01-05T13:00:00+01:00", "noon", "1" * 101]


def zigzag(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


class Chance:
    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.names = 0

    def name(self) -> str:
        self.names += 1
        return f"N{self.names}"

    def junk(self, depth: int) -> Any:
        makers: list[Callable[[], Any]] = [
            *[lambda: self.chance.choice(LEAVES)] * 5,
            lambda: {"type": "enum", "name": self.name(), "symbols": ["a", "b", "c"]},
            lambda: {"type": "fixed", "name": self.name(), "size": self.chance.randrange(1, 20)},
            lambda: ["null", self.chance.choice(["int", "string"])],
            lambda: {"type": "array", "items": self.junk(depth - 1)},
            lambda: {"type": "map", "values": self.junk(depth - 1)},
            lambda: {"type": "record", "name": self.name(), "fields": self.fields(depth - 1)},
            lambda: ["null", "int", {"type": "map", "values": self.junk(depth - 1)}],
        ]
        return self.chance.choice(makers if depth else makers[:8])()

    def fields(self, depth: int) -> list[dict[str, Any]]:
        return [{"name": f"f{one}", "type": self.junk(depth)} for one in range(self.chance.randrange(1, 4))]

    def optional(self, kind: Any) -> Any:
        return self.chance.choice([kind, kind, ["null", kind], [kind, "null"]])

    def record(self, fields: list[dict[str, Any]], depth: int) -> dict[str, Any]:
        mixed = [*fields, *self.fields(depth)]
        self.chance.shuffle(mixed)
        return {"type": "record", "name": self.name(), "fields": mixed}

    def schema(self) -> tuple[dict[str, Any], dict[str, str]]:
        stamp = {"type": "long", "logicalType": self.chance.choice(["timestamp-millis", "timestamp-micros"])}
        time = {"name": "t", "type": self.optional(self.chance.choice(["long", "double", "string", stamp, stamp]))}
        value = {"name": "v", "type": self.optional(self.chance.choice(["double", "float", "int", "long"]))}
        series = {"name": "id", "type": self.optional(self.chance.choice(["string", "long"]))}
        where = self.chance.choice(["", "", "in.", "r[*].", "r[*].", "r[*].", "in.r[*]."])
        inside, outside = self.chance.choice(
            [
                ([time, value], [series]),
                ([time, value], [series]),
                ([time, value, series], []),
                ([value], [time, series]),
            ]
        )
        fields = [*inside, *outside]
        if where:
            below: Any = self.record(inside, 1)
            if "r[*]" in where:
                below = {"type": "array", "items": self.optional(below)}
                below = self.record([{"name": "r", "type": self.optional(below)}], 1) if "in." in where else below
            fields = [*outside, {"name": "in" if "in." in where else "r", "type": self.optional(below)}]
        paths = {one["name"]: where + one["name"] for one in inside} | {one["name"]: one["name"] for one in outside}
        mapping = {"series": paths["id"], "time": paths["t"], "value": paths["v"]}
        return self.record(fields, 2), mapping

    def value(self, kind: Any, name: str = "") -> Any:
        if isinstance(kind, list):
            return self.value(self.chance.choice(kind), name)
        if isinstance(kind, dict) and kind["type"] in self.compounds:
            return self.compounds[kind["type"]](kind)
        return self.single(kind["type"] if isinstance(kind, dict) else kind, name)

    @property
    def compounds(self) -> dict[str, Callable[[Any], Any]]:
        chance = self.chance
        return {
            "record": lambda kind: {one["name"]: self.value(one["type"], one["name"]) for one in kind["fields"]},
            "array": lambda kind: [self.value(kind["items"]) for _ in range(chance.choice([0, 1, 2, 3, 4, 9]))],
            "map": lambda kind: {f"k{one}": self.value(kind["values"]) for one in range(chance.randrange(3))},
            "enum": lambda kind: chance.choice(kind["symbols"]),
            "fixed": lambda kind: chance.randbytes(kind["size"]),
        }

    def single(self, kind: str, name: str) -> Any:
        chance = self.chance
        usual = NOON_MS + chance.randrange(10**6) if name == "t" else chance.randrange(-3, 50)
        long = chance.choice([usual, usual, usual, chance.getrandbits(63), -chance.getrandbits(40), 0])
        values: dict[str, Any] = {
            "null": None,
            "boolean": chance.random() < 0.5,
            "int": max(-(1 << 31), min(long, (1 << 31) - 1)),
            "long": long,
            "float": usual / 8,
            "double": chance.choice([float(usual), usual / 7, float("nan"), float("inf"), 1e300]),
            "string": chance.choice(TIMES if name == "t" else TEXTS),
            "bytes": chance.randbytes(3),
        }
        return values[kind]

    def damaged(self, payload: bytes) -> bytes:
        found, chance = bytearray(payload), self.chance
        for _ in range(chance.randrange(1, 4)):
            at, size = chance.randrange(5, len(found) + 1), chance.randrange(1, 9)
            kind = chance.randrange(5)
            if kind == 0:
                found[at : at + size] = chance.randbytes(size)
            elif kind == 1:
                del found[at : at + size]
            elif kind == 2:
                found[at:at] = found[at : at + 20 * size]
            elif kind == 3:
                found[at:at] = chance.choice([b"\xff" * 11, b"\0", b"\x80", b"\1", zigzag(1 << 30), zigzag(-5)])
            elif len(found) > 5:
                found[5 + at % (len(found) - 5)] ^= 1 << chance.randrange(8)
        return bytes(found)
