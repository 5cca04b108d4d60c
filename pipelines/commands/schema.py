"""``quiltstream schema``: the JSON Schema of the settings, with those of plug-ins, and of a gateway's settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...schemas.files import MOST_SETTINGS_BYTES, read_regular
from ...schemas.settings.base import Section, SettingsError
from ...schemas.settings.gateway import GatewaySettings
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
        ends = (("source", made.source, ("FileSource",)), ("sink", made.sink, ("FileSink",)))
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


def gateway_schema() -> dict[str, Any]:
    """The schema of a gateway's settings."""
    return {"$schema": _DIALECT, **GatewaySettings.model_json_schema(by_alias=True)}


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
