"""What a writer's schema says beforehand: whether its bodies can be read safely, and what its times are."""

from __future__ import annotations

from typing import Any

import fastavro
import pyarrow as pa

from ...schemas.mappings import Steps
from ..decode.avro_shapes import NAMED, Shapes
from ..decode.avro_times import TIMES, bare

_Names = dict[str, Any]


def is_bounded(schema: Any) -> bool:
    """Whether a body's size bounds the work of reading it: no type inside itself, no array of things without bytes.

    Raises:
        Exception: it is no schema, or a very deep one.
    """
    return Shapes(fastavro.parse_schema(bare(schema))).is_plain


def _find(schema: Any, named: _Names) -> None:
    """Note the named types of a schema."""
    for one in schema if isinstance(schema, list) else [schema]:
        if not isinstance(one, dict):
            continue
        if one["type"] in NAMED:
            named[_short(one["name"])] = one
        fields = [field["type"] for field in one.get("fields", ())]
        for inner in (*fields, one.get("items"), one.get("values"), one["type"]):
            _find(inner, named)


def _short(name: Any) -> Any:
    """A name without its namespace."""
    return name.rpartition(".")[2] if isinstance(name, str) else name


def stamps_at(schema: Any, steps: Steps) -> pa.DataType | None:
    """What the integers at the end of a path are; ``None`` if the schema does not say that they are time stamps.

    Raises:
        KeyError: a part of the schema is missing.
    """
    named: _Names = {}
    _find(schema, named)
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
