"""The images are made of what is there, in the versions that CI installs and that the tests run."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from ..e2e.installed import installed
from .flink_files import ROOT, dockerfile_argument, run, services, text

IMAGES = ("command", "flink", "gateway")


def file_of(image: str) -> Path:
    return ROOT / "deploy" / image / "Dockerfile"


def copied(image: str) -> set[str]:
    """Every path that the Dockerfile takes from the repository."""
    lines = re.findall(r"^COPY (?!--from)((?:.|\\\n)*?)$", text(file_of(image)), re.MULTILINE)
    return {word for line in lines for word in line.split()[:-1]} - {"\\"}


@pytest.mark.parametrize("image", IMAGES)
def test_the_dockerfile_breaks_no_rule(image: str, tool: Callable[[str], str]) -> None:
    assert run([tool("hadolint"), "--failure-threshold", "style", str(file_of(image))]) == ""


@pytest.mark.parametrize("image", IMAGES)
def test_the_build_context_holds_every_package_and_what_the_image_copies(image: str) -> None:
    ignored = text(file_of(image).with_name("Dockerfile.dockerignore")).splitlines()
    assert ignored[1] == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == copied(image)
    assert [path for path in copied(image) if not (ROOT / path).exists()] == []
    packages = tomllib.loads(text(ROOT / "pyproject.toml"))["tool"]["setuptools"]["package-dir"]
    assert {path.split("/")[0] for path in packages.values()} <= copied(image)


@pytest.mark.parametrize("image", IMAGES)
def test_the_image_has_the_versions_and_extras_of_the_package(image: str) -> None:
    said, words = tomllib.loads(text(ROOT / "pyproject.toml"))["project"], text(file_of(image))
    (constraints,) = (path for path in copied(image) if path.startswith(".ci/constraints"))
    (python,) = re.findall(r"^ARG PYTHON_VERSION=(\S+)$", words, re.MULTILINE)
    assert text(ROOT / constraints).splitlines()[0].endswith(f"Python {python}.")
    (extras,) = re.findall(r"'\.\[([\w,]+)\]'", words)
    every = set(said["optional-dependencies"]) - {"dev", "docs", "gcp", "test"}
    assert set(extras.split(",")) <= every
    assert image != "command" or set(extras.split(",")) == every
    assert set(re.findall(r"quiltstream(?:-\w+)?:([\d.]+)", words)) == {said["version"]}
    for beam in re.findall(r"^ARG BEAM_VERSION=(\S+)$", words, re.MULTILINE):
        assert f"\napache-beam=={beam}\n" in text(ROOT / constraints)
    assert set(re.findall(r"^RUN .*cmd/prism@v(\S+)$", words, re.MULTILINE)) <= {"${BEAM_VERSION}"}


def test_images_of_compose_are_built_by_its_dockerfile_in_the_versions_of_the_end_to_end_tests() -> None:
    made = set(re.findall(r"--target (\w+) +--tag (\S+) \.", text(file_of("flink"))))
    assert {(one["build"]["target"], one["image"]) for one in services().values() if "build" in one} == made
    assert dockerfile_argument("BEAM_VERSION") == installed("job-server").version
    assert dockerfile_argument("FLINK_VERSION") == installed("flink").version
    assert services()["kafka"]["image"] == f"apache/kafka:{installed('kafka').version}"
