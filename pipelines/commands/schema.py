"""``quiltstream schema``: the JSON Schema of the settings, and of a gateway's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...schemas.files import MOST_SETTINGS_BYTES, read_regular
from ...schemas.settings.gateway import GatewaySettings
from ...schemas.settings.job import Settings

#: Name of the file that ``init`` writes beside the settings.
SCHEMA_FILE = "settings.schema.json"

_COMMENT = "Written by `quiltstream init`, as `quiltstream schema` prints it; write it again after an update."

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def settings_schema() -> dict[str, Any]:
    """The schema for editors."""
    return {"$schema": _DIALECT, **Settings.model_json_schema(by_alias=True)}


def gateway_schema() -> dict[str, Any]:
    """The schema of a gateway's settings."""
    return {"$schema": _DIALECT, **GatewaySettings.model_json_schema(by_alias=True)}


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
