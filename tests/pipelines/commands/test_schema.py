"""The JSON Schema of the settings and the tables of the documentation agree with the settings themselves."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from quiltstream.pipelines.commands.schema import settings_schema
from quiltstream.schemas.settings.job import load_settings

from ...loading import load
from ..jobs import call, readings, write_csv


def test_the_schema_is_printed_as_json() -> None:
    done = call("schema").ended(0)
    assert json.loads(done.out) == settings_schema()


def test_the_schema_forbids_other_keys_everywhere() -> None:
    schema = settings_schema()
    forms = [schema, *schema["$defs"].values()]
    assert all(form["additionalProperties"] is False for form in forms if form.get("type") == "object")


def test_the_tables_of_the_documentation_are_those_of_the_schema(repository: Path) -> None:
    writer, page = (
        load(repository / "docs" / "settings_table.py"),
        (repository / "docs" / "settings.md").read_text("utf-8"),
    )
    assert writer.unmarked(page) == set()
    assert writer.with_tables(page) == page, "run docs/settings_table.py"


def test_each_example_of_the_documentation_is_a_section_of_the_settings(repository: Path) -> None:
    page = (repository / "docs" / "settings.md").read_text("utf-8")
    whole = next(found for found in re.findall(r'write_text\("""\\\n(.*?)"""\)', page, re.DOTALL))
    examples = re.findall(r"^```yaml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert len(examples) == page.count("<!-- fields: ")
    for example in map(yaml.safe_load, examples):
        given = yaml.safe_load(whole) | example
        if "categories" in example.get("states", ()):
            del given["readings"]["unit"]
        if "model" in example:
            given["privacy"] = {"epsilon": 1.0, "mechanism": "mqm-approx"}
        load_settings(yaml.safe_dump(given))


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
