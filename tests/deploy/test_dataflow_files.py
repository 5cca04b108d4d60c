"""The files of deploy/dataflow: each by its own tool."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quiltstream.schemas.settings.job import Settings, read_settings

from ..present import present

Find = Callable[[str], Any]


@pytest.fixture(scope="module")
def folder(deploy: Path) -> Path:
    return deploy / "dataflow"


@pytest.fixture(scope="module")
def terraform(folder: Path, module: Find) -> dict[str, Any]:
    """All files as one document: kind of block -> type -> name -> body."""
    hcl2 = module("hcl2")
    found: dict[str, Any] = {"resource": {}, "variable": {}, "terraform": []}
    for path in sorted(folder.glob("*.tf")):
        document = plain(hcl2.loads(path.read_text(encoding="utf-8")))
        for block in document.get("resource", []):
            for kind, named in block.items():
                found["resource"].setdefault(kind, {}).update(named)
        for block in document.get("variable", []):
            found["variable"].update(block)
        found["terraform"] += document.get("terraform", [])
    return found


def plain(value: Any) -> Any:
    """What python-hcl2 makes, without its quotation marks and notes."""
    if isinstance(value, dict):
        return {plain(name): plain(one) for name, one in value.items() if name != "__is_block__"}
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, str) and len(value) > 1 and value[0] == value[-1] == '"':
        return value[1:-1]
    return value


def test_the_dockerfile_passes_hadolint(folder: Path, tool: Callable[[str], str]) -> None:
    done = subprocess.run([tool("hadolint"), str(folder / "Dockerfile")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_pins_the_beam_and_package_versions_that_ci_tests(folder: Path, repository: Path) -> None:
    pinned = dict(
        line.split("==")
        for line in (repository / ".ci" / "constraints-beam-2.77.txt").read_text(encoding="utf-8").lower().splitlines()
        if "==" in line and not line.startswith("#")
    )
    text = (folder / "Dockerfile").read_text(encoding="utf-8")
    assert re.search(r"ARG BEAM_VERSION=(\S+)", text)[1] == pinned["apache-beam"]  # type: ignore[index]
    wanted = [
        line.split("==")
        for line in (folder / "requirements.txt").read_text(encoding="utf-8").lower().splitlines()
        if line and not line.startswith("#")
    ]
    assert all(len(one) == 2 for one in wanted)
    for name, version in wanted:
        plain_name = re.sub(r"\[.*\]", "", name)
        assert pinned.get(plain_name, version) == version, plain_name


def test_the_template_metadata_parses_as_a_dataflow_template_message(folder: Path, module: Find) -> None:
    dataflow, json_format = module("google.cloud.dataflow_v1beta3"), module("google.protobuf.json_format")
    given = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))
    metadata = json_format.ParseDict(given, dataflow.TemplateMetadata.pb(dataflow.TemplateMetadata()))
    assert metadata.name == "quiltstream"
    assert [one.name for one in metadata.parameters] == ["settings"]
    # not all versions of the client know these
    assert given["streaming"] is True
    assert given["supportsAtLeastOnce"] is False
    assert given["supportsExactlyOnce"] is True
    assert given["defaultStreamingMode"] == "EXACTLY_ONCE"
    with pytest.raises(json_format.ParseError):
        json_format.ParseDict(given | {"nmae": "x"}, dataflow.TemplateMetadata.pb(dataflow.TemplateMetadata()))


def test_the_job_waits_for_every_right_of_its_account(terraform: dict[str, Any]) -> None:
    resources = terraform["resource"]
    job = resources["google_dataflow_flex_template_job"]["live"]
    rights = {f"${{{kind}.{name}}}" for kind in resources if kind.endswith("_iam_member") for name in resources[kind]}
    assert set(job["depends_on"]) == rights


def test_everything_that_terraform_names_is_declared(terraform: dict[str, Any], folder: Path) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.tf"))
    assert set(re.findall(r"\bvar\.(\w+)", text)) == set(terraform["variable"])
    for kind, name in re.findall(r"\b(google_\w+)\.(\w+)(?:\.\w+)?", text):
        assert name in terraform["resource"][kind]
    assert all(one.get("description") for one in terraform["variable"].values())


def test_the_example_gives_every_variable_that_must_be_given(
    terraform: dict[str, Any], folder: Path, module: Find
) -> None:
    given = plain(module("hcl2").loads((folder / "example.tfvars").read_text(encoding="utf-8")))
    given = {name: value for name, value in given.items() if not name.startswith("__")}
    variables = terraform["variable"]
    assert set(given) == {name for name, one in variables.items() if "default" not in one}
    (digest,) = re.findall(r'regex\("([^"]+)", var\.image', (folder / "variables.tf").read_text(encoding="utf-8"))
    assert re.search(digest, given["image"])


@pytest.fixture
def settings(folder: Path) -> Settings:
    return read_settings(folder / "settings.yaml")


def test_the_example_settings_name_the_subscription_and_topics_of_terraform(
    settings: Settings, terraform: dict[str, Any]
) -> None:
    given = present(present(settings.source).pubsub)
    resources = terraform["resource"]
    assert given.subscription.endswith("/" + resources["google_pubsub_subscription"]["readings"]["name"])
    for sink, topic in ((settings.sink, "releases"), (settings.rejects, "rejects")):
        assert sink is not None
        assert sink.pubsub is not None
        assert sink.pubsub.topic.endswith("/" + resources["google_pubsub_topic"][topic]["name"])
    assert "password_file=/run/quiltstream/ledger" in settings.ledger
