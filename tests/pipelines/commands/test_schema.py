"""The JSON Schema of the settings and the tables of the documentation agree with the settings themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quiltstream.pipelines.commands.schema import settings_schema

from ...loading import load
from ..jobs import call, readings, write_csv


def test_the_schema_is_printed_as_json() -> None:
    done = call("schema").ended(0)
    assert json.loads(done.out) == settings_schema()


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


@pytest.mark.night
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
