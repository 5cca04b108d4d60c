"""The images of command and gateway: made of what is there, in the versions that CI installs, and none ends as root."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from typing import Any

import pytest

from .flink_files import ROOT, run, text

IMAGES = ("command", "gateway")


def dockerfile(image: str) -> str:
    return text(ROOT / "deploy" / image / "Dockerfile")


def project() -> dict[str, Any]:
    return tomllib.loads(text(ROOT / "pyproject.toml"))


def copied(image: str) -> set[str]:
    """Every path that the Dockerfile takes from the repository."""
    lines = re.findall(r"^COPY (?!--from)(.*)$", dockerfile(image), re.MULTILINE)
    return {word for line in lines for word in line.split()[:-1]}


pytestmark = pytest.mark.parametrize("image", IMAGES)


def test_the_dockerfile_breaks_no_rule(image: str, tool: Callable[[str], str]) -> None:
    file = ROOT / "deploy" / image / "Dockerfile"
    assert run([tool("hadolint"), "--failure-threshold", "style", str(file)]) == ""


def test_the_build_context_holds_exactly_the_paths_that_the_image_copies(image: str) -> None:
    ignored = text(ROOT / "deploy" / image / "Dockerfile.dockerignore").splitlines()
    assert ignored[1] == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == copied(image)
    assert [path for path in copied(image) if not (ROOT / path).exists()] == []
    packages = project()["tool"]["setuptools"]["package-dir"]
    assert {path.split("/")[0] for path in packages.values()} <= copied(image)


def test_the_image_has_the_versions_and_extras_of_the_package(image: str) -> None:
    said, words = project()["project"], dockerfile(image)
    (constraints,) = (path for path in copied(image) if path.startswith(".ci/constraints"))
    (python,) = re.findall(r"^ARG PYTHON_VERSION=(\S+)$", words, re.MULTILINE)
    assert text(ROOT / constraints).splitlines()[0].endswith(f"Python {python}.")
    (extras,) = re.findall(r"'\.\[([\w,]+)\]'", words)
    every = set(said["optional-dependencies"]) - {"dev", "docs", "gcp", "test"}
    assert set(extras.split(",")) == every - ({"postgres", "report"} if image == "gateway" else set())
    assert set(re.findall(r"quiltstream-\w+:([\d.]+)", words)) == {said["version"]}
    for beam in re.findall(r"^ARG BEAM_VERSION=(\S+)$", words, re.MULTILINE):
        assert f"\napache-beam=={beam}\n" in text(ROOT / constraints)
    for prism in re.findall(r"^RUN .*cmd/prism@v(\S+)$", words, re.MULTILINE):
        assert prism == "${BEAM_VERSION}"


def test_the_image_runs_the_script_as_a_non_root_user(image: str) -> None:
    last = re.split(r"^FROM ", dockerfile(image), flags=re.MULTILINE)[-1]
    assert re.findall(r"^USER (\S+)$", last, re.MULTILINE) == ["10001"]
    (script,) = project()["project"]["scripts"]
    entry = {"command": f'ENTRYPOINT ["{script}"]', "gateway": f'ENTRYPOINT ["{script}", "gateway"]'}
    assert entry[image] in last
    assert not re.search("password|secret|token", dockerfile(image), re.IGNORECASE)
