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

from ..house.assurance import claims
from ..house.pages import blocks, commands

#: Of each program the calls of the guide, with the options that Google's, Docker's and Terraform's references have.
KNOWN = {
    "gcloud dataflow flex-template build": {"--image", "--sdk-language", "--metadata-file"},
    "gcloud dataflow flex-template run": {
        "--template-file-gcs-location",
        "--region",
        "--parameters",
        "--service-account-email",
        "--subnetwork",
        "--disable-public-ips",
        "--update",
    },
    "gcloud dataflow jobs drain": {"--region"},
    "gcloud dataflow jobs cancel": {"--region"},
    "gcloud dataflow snapshots create": {"--job-id", "--region", "--snapshot-sources", "--snapshot-ttl"},
    "gcloud storage cp": set[str](),
    "cp deploy/dataflow/example.tfvars": set[str](),
    "docker build": {"--build-arg", "--tag"},
    "docker push": set[str](),
    "terraform -chdir=deploy/dataflow init": set[str](),
    "terraform -chdir=deploy/dataflow apply": {"-var-file"},
    "python -m build": {"--wheel", "--outdir"},
}


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


@pytest.mark.assures(
    "commands of dataflow",
    "`gcloud dataflow flex-template build`: not run: options and files are looked up, and the metadata is what "
    "Google reads",
)
@pytest.mark.assures(
    "commands of dataflow",
    "`gcloud dataflow jobs drain`, `gcloud dataflow jobs cancel`, `gcloud dataflow snapshots create`: not run: "
    "options are looked up",
)
@pytest.mark.assures(
    "commands of dataflow",
    "`python -m build`: `.ci/run wheel` builds an sdist and from it a wheel, and uses that in an empty environment",
)
def test_the_commands_of_the_guide_name_existing_files_and_parameters(guide: str, repository: Path) -> None:
    found = calls(guide)
    seen: set[str] = set()
    made = {words[-1] for words in found if words[0] == "cp"}
    (parameter,) = json.loads((repository / "deploy" / "dataflow" / "metadata.json").read_text("utf-8"))["parameters"]
    dockerfile = (repository / "deploy" / "dataflow" / "Dockerfile").read_text(encoding="utf-8")
    for words in found:
        text = " ".join(words)
        call = max((one for one in KNOWN if text.startswith(one)), key=len, default=None)
        assert call is not None, text
        seen.add(call)
        rest = shlex.split(text[len(call) :])
        assert {one.partition("=")[0] for one in rest if one.startswith("-")} <= KNOWN[call], text
        for one in rest:
            path = one.rpartition("=")[2]
            if one.startswith("-var-file="):
                path = f"deploy/dataflow/{path}"  # from where -chdir goes
            if re.match(r"(--\S+=)?deploy/dataflow", one) and "wheels" not in one:
                assert path in made or (repository / path).exists(), one
            if one.startswith("-var-file=") or (call == "gcloud storage cp" and not one.startswith("gs://")):
                assert path in made or (repository / path).exists(), one
            name, _, value = one.removeprefix("--parameters=").partition("=")
            if one.startswith("--parameters="):
                assert name == parameter["name"]
                assert re.fullmatch(parameter["regexes"][0], value)
        if call == "docker build":
            (argument,) = [one.partition("=")[0] for one in rest if one.startswith("LEDGER")]
            assert f"ARG {argument}\n" in dockerfile
    assert seen == set(KNOWN)


def test_every_dataflow_command_is_listed_in_a_claim_about_ci() -> None:
    named = "\n".join(claim.text.split(": ")[0] for claim in claims() if claim.area == "commands of dataflow")
    assert set(re.findall(r"`([^`]+)`", named)) == {call.replace(" -chdir=deploy/dataflow", "") for call in KNOWN}


def test_the_guide_builds_and_runs_one_image_and_one_template(guide: str) -> None:
    text = "\n".join(" ".join(one) for one in calls(guide))
    assert len(set(re.findall(r"europe-west1-docker\.pkg\.dev/\S+", text))) == 1
    assert len(set(re.findall(r"gs://\S+template\.json", text))) == 1
    # everything beside the settings is fetched with them
    assert "gs://my-bucket/quiltstream/job/settings.yaml" in text


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


@pytest.mark.parametrize("page", ["docs/pubsub.md", "docs/guides/dataflow.md"])
def test_the_pages_are_linked_and_name_existing_tests_and_pages(repository: Path, page: str) -> None:
    text = (repository / page).read_text(encoding="utf-8")
    source = "\n".join(path.read_text(encoding="utf-8") for path in (repository / "tests").rglob("test_*.py"))
    assert [name for name in re.findall(r"`(test_\w+)`", text) if f"def {name}(" not in source] == []
    for link in re.findall(r"\]\(([^)#]+\.md)", text):
        assert ((repository / page).parent / link).is_file(), link
    index = (repository / "docs" / "index.md").read_text(encoding="utf-8")
    assert f"({page.removeprefix('docs/')})" in index
