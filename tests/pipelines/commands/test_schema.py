"""The JSON Schema of the settings and the tables of the documentation agree with the settings themselves."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from quiltstream.pipelines.commands.schema import settings_schema
from quiltstream.schemas.releases import RELEASE_SCHEMA
from quiltstream.schemas.settings.job import EXAMPLE, Settings

from ...loading import load
from ..jobs import call, readings, write_csv


def test_the_schema_is_printed_as_json() -> None:
    done = call("schema").ended(0)
    assert json.loads(done.out) == settings_schema()


def sections(schema: dict[str, Any], document: dict[str, Any]) -> list[str]:
    """The keys of a document that the schema does not know, one level deep and in the sections it names."""
    unknown = [key for key in document if key not in schema["properties"]]
    for key, value in document.items():
        names = [one["$ref"].rpartition("/")[2] for one in _members(schema["properties"].get(key, {})) if "$ref" in one]
        if isinstance(value, dict) and names:
            known = {field for name in names for field in schema["$defs"][name]["properties"]}
            unknown += [f"{key}.{field}" for field in value if field not in known]
    return unknown


def _members(field: dict[str, Any]) -> list[dict[str, Any]]:
    return field.get("anyOf", [field])


def test_the_schema_contains_every_key_of_the_example() -> None:
    assert sections(settings_schema(), yaml.safe_load(EXAMPLE)) == []
    assert sections(settings_schema(), {"colour": 1, "slots": {"every": 1}}) == ["colour", "slots.every"]


def test_the_schema_forbids_other_keys_everywhere() -> None:
    schema = settings_schema()
    forms = [schema, *schema["$defs"].values()]
    assert all(form["additionalProperties"] is False for form in forms if form.get("type") == "object")


@pytest.fixture(scope="module")
def table(repository: Path) -> str:
    return load(repository / "docs" / "settings_table.py").settings_table()


def test_the_table_of_the_documentation_is_that_of_the_schema(repository: Path, table: str) -> None:
    page = (repository / "docs" / "settings-fields.md").read_text(encoding="utf-8")
    shown = page.split("<!-- generated: settings -->\n")[1].split("<!-- end: settings -->")[0]
    assert shown == table, "put what docs/settings_table.py prints between the marks of docs/settings-fields.md"


def test_the_table_holds_every_field_once(table: str) -> None:
    assert [name for name in Settings.model_fields if f"| `{name}` |" not in table] == []
    shown = [path for row in table.splitlines() for path in re.findall(r"`([\w.*]+)`", row.split(" | ")[0])]
    fields = {name for form in settings_schema()["$defs"].values() for name in form.get("properties", ())}
    assert fields - {path.rpartition(".")[2] for path in shown} == set()
    assert len(set(shown)) == len(shown)


def test_the_documentation_explains_every_column_of_a_release(repository: Path) -> None:
    page = (repository / "docs" / "releases.md").read_text(encoding="utf-8")
    named = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    assert named == RELEASE_SCHEMA.names


@pytest.mark.parametrize(
    "page", ["settings.md", "settings-fields.md", "guarantee.md", "ledger.md", "model.md", "releases.md", "cli.md"]
)
def test_the_index_links_every_page(repository: Path, page: str) -> None:
    assert f"({page})" in (repository / "docs" / "index.md").read_text(encoding="utf-8")


def test_init_names_a_schema_file_that_editors_read(tmp_path: Path) -> None:
    data, settings, schema = tmp_path / "data.csv", tmp_path / "settings.yaml", tmp_path / "settings.schema.json"
    write_csv(data, readings(2))
    assert call("init", data, "-o", settings).code == 0
    first = settings.read_text(encoding="utf-8").splitlines()[0]
    assert first == f"# yaml-language-server: $schema={schema.name}"
    written = json.loads(schema.read_text(encoding="utf-8"))
    assert written.pop("$comment").startswith("Written by `quiltstream init`")
    assert written == settings_schema()
    # one that was written by an earlier version is replaced, another file is not
    schema.write_text(json.dumps({"$comment": json.loads(schema.read_text(encoding="utf-8"))["$comment"]}))
    assert call("init", data, "-o", settings, "--force").code == 0
    assert json.loads(schema.read_text(encoding="utf-8"))["properties"]
    schema.write_text("{}", encoding="utf-8")
    for path in (settings, tmp_path / "roster.csv"):
        path.unlink()
    refused = call("init", data, "-o", settings).ended(2)
    assert "settings.schema.json: it exists already" in refused.err
    assert not settings.exists()
    assert schema.read_text(encoding="utf-8") == "{}"
