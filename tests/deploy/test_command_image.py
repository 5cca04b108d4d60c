"""The image of the command is made of what is there, in the versions that CI installs, and does not end as root."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from .flink_files import ROOT, run, text

tomllib = pytest.importorskip("tomllib", reason="needs Python 3.11 or later to read pyproject.toml")

FOLDER = ROOT / "deploy" / "command"
SAID = text(FOLDER / "Dockerfile")


def project() -> dict[str, Any]:
    return tomllib.loads(text(ROOT / "pyproject.toml"))


def copied() -> set[str]:
    """Every path that the Dockerfile takes from the repository."""
    lines = re.findall(r"^COPY (?!--from)(.*)$", SAID, re.MULTILINE)
    return {word for line in lines for word in line.split()[:-1]}


@pytest.mark.assures("deployments", "The image of the command breaks no rule of hadolint, and what it copies is there")
def test_the_dockerfile_of_the_command_breaks_no_rule(tool: Callable[[str], str]) -> None:
    assert run([tool("hadolint"), "--failure-threshold", "style", str(FOLDER / "Dockerfile")]) == ""


@pytest.mark.assures("deployments", "The image of the command breaks no rule of hadolint, and what it copies is there")
def test_the_build_sees_what_the_image_of_the_command_copies_and_no_more() -> None:
    ignored = text(FOLDER / "Dockerfile.dockerignore").splitlines()
    assert ignored[1] == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == copied()
    assert [path for path in copied() if not (ROOT / path).exists()] == []
    packages = project()["tool"]["setuptools"]["package-dir"]
    assert {path.split("/")[0] for path in packages.values()} <= copied()


def test_the_image_of_the_command_has_the_versions_and_extras_of_the_package() -> None:
    said = project()["project"]
    (constraints,) = (path for path in copied() if path.startswith(".ci/constraints"))
    (python,) = re.findall(r"^ARG PYTHON_VERSION=(\S+)$", SAID, re.MULTILINE)
    assert text(ROOT / constraints).splitlines()[0].endswith(f"Python {python}.")
    (extras,) = re.findall(r"'\.\[([\w,]+)\]'", SAID)
    assert set(extras.split(",")) == set(said["optional-dependencies"]) - {"dev", "docs", "gcp", "test"}
    assert set(re.findall(r"quiltstream-command:([\d.]+)", SAID)) == {said["version"]}


def test_the_image_of_the_command_ends_as_no_root_and_runs_the_script() -> None:
    last = re.split(r"^FROM ", SAID, flags=re.MULTILINE)[-1]
    assert re.findall(r"^USER (\S+)$", last, re.MULTILINE) == ["10001"]
    (script,) = project()["project"]["scripts"]
    assert f'ENTRYPOINT ["{script}"]' in last
    assert not re.search("password|secret|token", SAID, re.IGNORECASE)
