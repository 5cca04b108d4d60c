"""Write the tables of settings.md anew from the schema of the settings: `.venv/bin/python docs/settings_table.py`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quiltstream.pipelines.commands.schema import settings_schema

PAGE = Path(__file__).with_name("settings.md")

_MARKED = re.compile(r"(?<=<!-- fields: )(?P<names>[^>]*)( -->\n)(?P<table>.*?)(?=<!-- end -->)", re.DOTALL)

#: Longer lists of values are on a page of their own.
_LISTED = 10


def with_tables(page: str) -> str:
    """The page with a table of the fields of each group of sections that a mark names."""
    tables = _tables()
    return _MARKED.sub(lambda mark: f"{mark['names']}{mark[2]}{_table(tables, mark['names'].split())}", page)


def unmarked(page: str) -> set[str]:
    """The sections of the settings that the page has no table of."""
    return _tables().keys() - {name for mark in _MARKED.finditer(page) for name in mark["names"].split()}


def _table(tables: dict[str, list[tuple[str, str]]], names: list[str]) -> str:
    rows: list[tuple[list[str], str]] = []
    for path, cells in (row for name in names for row in tables[name]):
        if rows and rows[-1][1] == cells and rows[-1][0][0].rpartition(".")[0] == path.rpartition(".")[0]:
            rows[-1][0].append(path)
        else:
            rows.append(([path], cells))
    lines = [f"| {', '.join(f'`{path}`' for path in paths)} | {cells} |" for paths, cells in rows]
    return "\n".join(["| field | takes | meaning |", "| --- | --- | --- |", *lines, ""])


def _tables() -> dict[str, list[tuple[str, str]]]:
    schema = settings_schema()
    found: dict[str, list[tuple[str, str]]] = {}
    for path, cells in _fields(schema, "", schema["$defs"], {}):
        found.setdefault(path.partition(".")[0], []).append((path, cells))
    return found


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
        yield path, f"{'; '.join(one for one in (_kind(field, forms), default) if one)} | {meaning}"
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
        return ""
    return f"else `{json.dumps(value) if isinstance(value, bool) else value}`"


def _kind(field: dict[str, Any], forms: dict[str, Any]) -> str:
    if "$ref" in field:
        form = forms[field["$ref"].rpartition("/")[2]]
        return "section" if form.get("type") == "object" else _kind(form, forms)
    if "anyOf" in field or "oneOf" in field:
        kinds = [_kind(one, forms) for one in field.get("anyOf") or field["oneOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in field:
        values = field["enum"]
        return f"one of {len(values)} names" if len(values) > _LISTED else ", ".join(f"`{value}`" for value in values)
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
            ("exclusiveMinimum", ">"),
            ("minimum", ">="),
            ("exclusiveMaximum", "<"),
            ("maximum", "<="),
        )
        if key in field
    ]
    examples = field.get("examples", ())
    return (" " + ", ".join(parts) if parts else "") + (f" such as `{examples[0]}`" if examples else "")


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
