"""The guide for Dataflow and the page of Pub/Sub: their commands and settings are those of the files."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from quiltstream.schemas.settings.connectors import FileSink, FileSource
from quiltstream.schemas.settings.job import Windows
from quiltstream.schemas.settings.mappings import Readings

from ..house.pages import blocks, commands


@pytest.fixture
def guide(repository: Path) -> str:
    return (repository / "docs" / "guides" / "dataflow.md").read_text(encoding="utf-8")


def calls(guide: str) -> list[list[str]]:
    return [
        shlex.split(one)
        for block in blocks("dataflow", guide)
        if block.language == "console"
        for one in commands(block.body)
    ]


def test_the_commands_of_the_guide_name_existing_files_and_parameters(guide: str, repository: Path) -> None:
    found = calls(guide)
    made = {words[-1] for words in found if words[0] == "cp"}
    (parameter,) = json.loads((repository / "deploy" / "dataflow" / "metadata.json").read_text("utf-8"))["parameters"]
    dockerfile = (repository / "deploy" / "dataflow" / "Dockerfile").read_text(encoding="utf-8")
    for words in found:
        copied = words[:3] == ["gcloud", "storage", "cp"]
        for one in words[3 * copied :]:
            path = one.rpartition("=")[2]
            if one.startswith("-var-file="):
                path = f"deploy/dataflow/{path}"  # from where -chdir goes
            if re.match(r"(--\S+=)?deploy/dataflow", one) and "wheels" not in one:
                assert path in made or (repository / path).exists(), one
            if one.startswith("-var-file=") or (copied and not one.startswith("gs://")):
                assert path in made or (repository / path).exists(), one
            name, _, value = one.removeprefix("--parameters=").partition("=")
            if name == "sdk_container_image":
                assert f'"{value}"\n' in (repository / "deploy" / "dataflow" / "example.tfvars").read_text("utf-8")
            elif one.startswith("--parameters="):
                assert name == parameter["name"]
                assert re.fullmatch(parameter["regexes"][0], value)
        if words[:2] == ["docker", "build"]:
            (argument,) = [one.partition("=")[0] for one in words if one.startswith("LEDGER")]
            assert f"ARG {argument}\n" in dockerfile


def test_the_guide_builds_and_runs_one_image_and_one_template(guide: str) -> None:
    text = "\n".join(" ".join(one) for one in calls(guide))
    assert len(set(re.findall(r"europe-west1-docker\.pkg\.dev/[\w/-]+", text))) == 1
    assert len(set(re.findall(r"gs://\S+template\.json", text))) == 1
    # everything beside the settings is fetched with them
    assert "gs://my-bucket/quiltstream/job/settings.yaml" in text


def test_a_job_by_gcloud_has_what_a_job_by_terraform_has(guide: str, repository: Path) -> None:
    run, update = (words for words in calls(guide) if words[2:4] == ["flex-template", "run"])
    assert update == [*run, "--update"]
    terraform = (repository / "deploy" / "dataflow" / "main.tf").read_text(encoding="utf-8")
    said = {one.removeprefix("--parameters=").lstrip("-").partition("=")[0].replace("-", "_") for one in run}
    # public addresses are turned off by another name; numbers of workers have values that Dataflow chooses
    for name in re.findall(
        r"^  (sdk_container_image|service_account_email|subnetwork|\w+_location|enable_\w+) ", terraform, re.MULTILINE
    ):
        assert name in said
    assert {"settings", "disable_public_ips"} <= said


def test_every_file_of_the_folder_is_in_the_guide(guide: str, repository: Path) -> None:
    there = {one.name for one in (repository / "deploy" / "dataflow").iterdir() if one.is_file()}
    table = guide.split("| file | what it is |\n")[1].split("\n\n", maxsplit=1)[0]
    assert set(re.findall(r"`([\w.]+)`", table)) == there


def test_the_settings_of_the_page_are_settings(repository: Path) -> None:
    page = (repository / "docs" / "pubsub.md").read_text(encoding="utf-8")
    (block,) = [one for one in blocks("pubsub", page) if one.language == "yaml"]
    given = yaml.safe_load(block.body)
    source = FileSource.model_validate(given["source"])
    assert source.pubsub is not None
    assert source.setting == "source.pubsub"
    Readings.model_validate(given["readings"])
    Windows.model_validate(given["windows"] | {"start": str(given["windows"]["start"])})
    for name in ("sink", "rejects"):
        assert not FileSink.model_validate(given[name]).is_files
