"""What a writer's schema says beforehand: whether its bodies can be read safely, and what its times are."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ...schemas.mappings import Steps
from ..decode.avro_times import TIMES

_RECORDS, _NAMED = ("record", "error"), ("record", "error", "enum", "fixed")

_Names = dict[str, Any]


def is_bounded(schema: Any) -> bool:
    """Whether a body's size bounds the work of reading it: no type inside itself, no array of things without bytes.

    Raises:
        KeyError: a part of the schema is missing.
    """
    return _is_bounded(schema, {})


def _is_bounded(schema: Any, named: _Names) -> bool:
    if isinstance(schema, list):
        return all(_is_bounded(one, named) for one in schema)
    if not isinstance(schema, dict):
        name = _short(schema)
        return name not in named or named[name] is not None
    kind = schema["type"]
    if kind in _RECORDS:
        name = _short(schema["name"])
        named[name] = None  # a type inside itself is met while it is open
        whole = all(_is_bounded(one["type"], named) for one in schema["fields"])
        named[name] = schema
        return whole
    if kind == "array":
        return _is_bounded(schema["items"], named) and _has_bytes(schema["items"], named)
    if kind not in _NAMED:
        return _is_bounded(schema["values"] if kind == "map" else kind, named)
    named[_short(schema["name"])] = schema
    return True


def _short(name: Any) -> Any:
    """A name without its namespace; two types of one name make at most a schema too many be refused."""
    return name.rpartition(".")[2] if isinstance(name, str) else name


def _has_bytes(schema: Any, named: _Names) -> bool:
    """Whether a thing of a schema takes at least a byte."""
    if isinstance(schema, list):
        return True
    if not isinstance(schema, dict):
        found = named.get(_short(schema))
        return schema != "null" if found is None else _has_bytes(found, named)
    kind = schema["type"]
    if kind in _RECORDS:
        return any(_has_bytes(one["type"], named) for one in schema["fields"])
    if kind == "fixed":
        return schema["size"] > 0
    return kind in {"array", "map", "enum"} or _has_bytes(kind, named)


def stamps_at(schema: Any, steps: Steps) -> pa.DataType | None:
    """What the integers at the end of a path are; ``None`` if the schema does not say that they are time stamps.

    Raises:
        KeyError: a part of the schema is missing.
    """
    named: _Names = {}
    _is_bounded(schema, named)
    for step in steps:
        schema = _only(schema, named)
        if not isinstance(schema, dict):
            return None
        if isinstance(step, str):
            schema = next((one["type"] for one in schema.get("fields", ()) if one["name"] == step), None)
        else:
            schema = schema.get("items")
    schema = _only(schema, named)
    return TIMES.get(schema.get("logicalType", "")) if isinstance(schema, dict) else None


def _only(schema: Any, named: _Names) -> Any:
    """A schema without the null of a union, and with a name replaced by what it stands for."""
    if isinstance(schema, list):
        others = [one for one in schema if one != "null"]
        schema = others[0] if len(others) == 1 else None
    if isinstance(schema, dict) and isinstance(schema.get("type"), (dict, list)):
        return _only(schema["type"], named)
    return named.get(_short(schema), schema) if isinstance(schema, str) else schema


__all__ = ["is_bounded", "stamps_at"]
