"""The JSON Schema of the settings, and the table of ``docs/settings-fields.md`` that is made from it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...schemas.files import MOST_SETTINGS_BYTES, read_regular
from ...schemas.settings.base import Section, SettingsError
from ...schemas.settings.job import Settings
from ...schemas.settings.plugins import CONNECTOR_PLUGINS, PAYLOAD_PLUGINS, Connector, Plugin

#: Name of the file that ``init`` writes beside the settings.
SCHEMA_FILE = "settings.schema.json"

_COMMENT = "Written by `quiltstream init`, as `quiltstream schema` prints it; write it again after an update."

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def settings_schema(left_out: list[str] | None = None) -> dict[str, Any]:
    """The schema for editors, with the sections of plug-ins; a line of each that cannot be used is added to a list."""
    schema: dict[str, Any] = {"$schema": _DIALECT, **Settings.model_json_schema(by_alias=True)}
    forms = schema["$defs"]
    errors: list[str] = []
    for name, found in CONNECTOR_PLUGINS.all():
        if isinstance(found, SettingsError):
            errors += found.problems
            continue
        made: Connector = found.made
        ends = (("source", made.source, ("FileSource",)), ("sink", made.sink, ("FileSink", "RejectSink")))
        for end, section, owners in ends:
            if section is None:
                continue
            field = _added(found, section, forms, end)
            for owner in owners:
                forms[owner]["properties"].setdefault(name, field)
    payload = forms["Readings"]["properties"]["payload"]
    for name, found in PAYLOAD_PLUGINS.all():
        if isinstance(found, SettingsError):
            errors += found.problems
            continue
        own = payload.setdefault("anyOf", [{key: payload.pop(key) for key in ("type", "enum")}])
        inside = {"type": "object", "properties": {name: _added(found, found.made.section, forms, "payload")}}
        own += [{"const": name}, {**inside, "required": [name], "additionalProperties": False}]
    if left_out is not None:
        left_out += errors
    return schema


def _added(plugin: Plugin[Any], section: type[Section], forms: dict[str, Any], end: str) -> dict[str, Any]:
    """A reference to the form of a plug-in's section, which is added to the others under names of its own."""
    form = section.model_json_schema(by_alias=True, ref_template=f"#/$defs/{plugin.name}.{{model}}")
    forms.update({f"{plugin.name}.{name}": one for name, one in form.pop("$defs", {}).items()})
    forms[f"{plugin.name}.{end}"] = form
    return {"$ref": f"#/$defs/{plugin.name}.{end}", "description": f"of {plugin.distribution}"}


def schema_file() -> str:
    """The text of a file with the schema, which says where it is from."""
    return json.dumps({"$comment": _COMMENT, **settings_schema()}, indent=1, ensure_ascii=False) + "\n"


def is_schema_of_settings(path: Path) -> bool:
    """Whether a file is one that ``schema_file`` made, of this version or another, so that it may be replaced."""
    try:
        form = json.loads(read_regular(path, MOST_SETTINGS_BYTES))
    except (OSError, ValueError):
        return False
    return isinstance(form, dict) and form.get("$comment") == _COMMENT


def settings_table() -> str:
    """Every field of the settings by its path, as one Markdown table; a section that comes twice is shown once."""
    schema = settings_schema()
    rows: list[tuple[list[str], str]] = []
    for path, cells in _fields(schema, "", schema["$defs"], {}):
        if rows and rows[-1][1] == cells and rows[-1][0][0].rpartition(".")[0] == path.rpartition(".")[0]:
            rows[-1][0].append(path)
        else:
            rows.append(([path], cells))
    lines = [f"| {', '.join(f'`{path}`' for path in paths)} | {cells} |" for paths, cells in rows]
    return "\n".join(["| field | what it takes | left out | meaning |", "| --- | --- | --- | --- |", *lines, ""])


def _fields(
    form: dict[str, Any], prefix: str, forms: dict[str, Any], shown: dict[str, str]
) -> Iterator[tuple[str, str]]:
    """Path and other cells of each field of a section, those of its own sections after it, unless they were shown."""
    required = set(form.get("required", ()))
    for name, field in form["properties"].items():
        path = f"{prefix}{name}"
        sections = [each for each in _references(field) if forms[each].get("type") == "object"]
        meaning = field.get("description", "") or " ".join(forms[each].get("description", "") for each in sections)
        again = dict.fromkeys(f"fields as of `{shown[each]}`" for each in sections if each in shown)
        meaning = "; ".join(part for part in (re.sub(r"(?<!\.)\.$", "", " ".join(meaning.split())), *again) if part)
        default = "required" if name in required else _default(field)
        yield path, f"{_kind(field, forms)} | {default} | {meaning}"
        for each in sections:
            if each not in shown:
                inner = f"{path}.*" if "additionalProperties" in str(field) and "properties" not in field else path
                shown[each] = inner
                yield from _fields(forms[each], f"{inner}.", forms, shown)


def _references(field: dict[str, Any]) -> Iterator[str]:
    """Names of the sections that a field takes."""
    if "$ref" in field:
        yield field["$ref"].rpartition("/")[2]
    for each in (*field.get("anyOf", ()), *field.get("oneOf", ())):
        yield from _references(each)
    for key in ("items", "additionalProperties"):
        if isinstance(field.get(key), dict):
            yield from _references(field[key])


def _default(field: dict[str, Any]) -> str:
    value = field.get("default")
    if value is None or value in ("", []):
        return "empty" if "default" in field and value is not None else "nothing"
    return f"`{json.dumps(value) if isinstance(value, bool) else value}`"


def _kind(field: dict[str, Any], forms: dict[str, Any]) -> str:
    if "$ref" in field:
        form = forms[field["$ref"].rpartition("/")[2]]
        return "section" if form.get("type") == "object" else _kind(form, forms)
    if "anyOf" in field or "oneOf" in field:
        kinds = [_kind(one, forms) for one in field.get("anyOf") or field["oneOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in field:
        return " or ".join(f"`{value}`" for value in field["enum"])
    if "const" in field:
        value = field["const"]
        return f"`{json.dumps(value) if isinstance(value, bool) else value}`"
    if field.get("type") == "array":
        return f"list of {_kind(field['items'], forms)}"
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
