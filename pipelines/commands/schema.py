"""The JSON Schema of the settings, and the tables of ``docs/settings.md`` that are made from it."""

from __future__ import annotations

import json
from typing import Any

from ...schemas.settings.job import Settings

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def settings_schema() -> dict[str, Any]:
    """The schema for editors; every mistake it lets through is still found before a job runs."""
    return {"$schema": _DIALECT, **Settings.model_json_schema(by_alias=True)}


def settings_tables() -> str:
    """Every field of the settings as Markdown: one table for the document and one for each of its sections."""
    schema = settings_schema()
    sections = [("The document", schema)]
    names = [name for name in schema["$defs"] if schema["$defs"][name].get("type") == "object"]
    sections += [(f"`{name}`", schema["$defs"][name]) for name in names]
    return "\n".join(_table(title, form) for title, form in sections)


def _table(title: str, form: dict[str, Any]) -> str:
    about = "" if "$schema" in form else " ".join(form.get("description", "").split())
    required = set(form.get("required", ()))
    lines = [f"### {title}", ""]
    if about:
        lines += [about, ""]
    lines += ["| field | what it takes | left out | meaning |", "| --- | --- | --- | --- |"]
    for name, field in form["properties"].items():
        default = "required" if name in required else _default(field)
        meaning = " ".join(field.get("description", "").split())
        lines.append(f"| `{name}` | {_kind(field)} | {default} | {meaning} |")
    return "\n".join([*lines, ""])


def _default(field: dict[str, Any]) -> str:
    value = field.get("default")
    if value is None or value in ("", []):
        return "empty" if "default" in field and value is not None else "nothing"
    return f"`{value}`"


def _kind(field: dict[str, Any]) -> str:
    if "$ref" in field:
        return f"`{field['$ref'].rpartition('/')[2]}`"
    if "anyOf" in field or "oneOf" in field:
        kinds = [_kind(one) for one in field.get("anyOf") or field["oneOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in field:
        return " or ".join(f"`{value}`" for value in field["enum"])
    if "const" in field:
        value = field["const"]
        return f"`{json.dumps(value) if isinstance(value, bool) else value}`"
    if field.get("type") == "array":
        return f"list of {_kind(field['items'])}"
    kind = {"string": "text", "number": "number", "integer": "whole number", "boolean": "yes or no"}.get(
        field.get("type", ""), "anything"
    )
    return kind + _limits(field)


def _limits(field: dict[str, Any]) -> str:
    parts = [
        f"{words} {field[key]:g}"
        for key, words in (
            ("exclusiveMinimum", "above"),
            ("minimum", "at least"),
            ("exclusiveMaximum", "below"),
            ("maximum", "at most"),
        )
        if key in field
    ]
    examples = [f"`{one}`" for one in field.get("examples", ())]
    return (" " + ", ".join(parts) if parts else "") + (f" such as {' or '.join(examples)}" if examples else "")
