"""Time stamps of Avro: what their logical types are in Arrow, and schemas in which they are the integers that they are.

Arrow reads the integers at once, and none of them is out of Python's range.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

#: Logical types of times.
TIMES: dict[str, pa.DataType] = {
    f"{local}timestamp-{name}": pa.timestamp(unit, tz=None if local else "UTC")
    for name, unit in (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
    for local in ("", "local-")
}


def plain_times(schema: Any) -> Any:
    """A schema whose time stamps are integers, without the marks of the library."""
    if isinstance(schema, list):
        return [plain_times(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("logicalType") in TIMES:
        return schema["type"]
    return {name: plain_times(value) for name, value in schema.items() if not name.startswith("__")}


def bare(schema: Any) -> Any:
    """A schema without logical types, and without the marks of the library: all that it says is how bytes are read."""
    if isinstance(schema, list):
        return [bare(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    left = {name: value for name, value in schema.items() if name != "logicalType" and not name.startswith("__")}
    return {name: bare(value) for name, value in left.items()}


__all__ = ["TIMES", "bare", "plain_times"]
