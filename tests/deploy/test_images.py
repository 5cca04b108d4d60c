"""The images are made of what is there, in the versions that CI installs and that the tests run."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable

from ..e2e.installed import installed
from .flink_files import ROOT, dockerfile_argument, run, services, text

FILE = ROOT / "deploy" / "Dockerfile"


def copied() -> set[str]:
    """Every path that the Dockerfile takes from the repository."""
    lines = re.findall(r"^COPY (?!--from)((?:.|\\\n)*?)$", text(FILE), re.MULTILINE)
    return {word for line in lines for word in line.split()[:-1]} - {"\\"}


def test_the_dockerfile_breaks_no_rule(tool: Callable[[str], str]) -> None:
    assert run([tool("hadolint"), "--failure-threshold", "style", str(FILE)]) == ""


def test_the_build_context_holds_every_package_and_what_the_images_copy() -> None:
    ignored = text(FILE.with_name("Dockerfile.dockerignore")).splitlines()
    assert ignored[1] == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == copied()
    assert [path for path in copied() if not (ROOT / path).exists()] == []
    packages = tomllib.loads(text(ROOT / "pyproject.toml"))["tool"]["setuptools"]["package-dir"]
    assert {path.split("/")[0] for path in packages.values()} <= copied()


def test_the_images_have_the_versions_and_extras_of_the_package() -> None:
    said, words = tomllib.loads(text(ROOT / "pyproject.toml"))["project"], text(FILE)
    (extras,) = re.findall(r"'\.\[([\w,]+)\]'", words)
    assert set(extras.split(",")) == set(said["optional-dependencies"]) - {"dev", "docs", "gcp", "test"}
    assert set(re.findall(r"quiltstream(?:-\w+)?:([\d.]+)", words)) == {said["version"]}
    for beam in (dockerfile_argument("BEAM_VERSION"), *re.findall(r"--build-arg BEAM_VERSION=(\S+?):", words)):
        constraints = text(ROOT / ".ci" / f"constraints-beam-{beam.rpartition('.')[0]}.txt")
        assert constraints.splitlines()[0].endswith(f"Python {dockerfile_argument('PYTHON_VERSION')}.")
        assert f"\napache-beam=={beam}\n" in constraints


def test_images_of_compose_are_targets_in_the_versions_of_the_end_to_end_tests() -> None:
    built = [one for one in services().values() if "build" in one]
    targets = set(re.findall(r"^FROM \S+ AS (\w+)$", text(FILE), re.MULTILINE))
    for one in built:
        assert one["build"]["target"] in targets
        assert one["image"].startswith(f"quiltstream-{one['build']['target']}:")
        assert one["build"].get("args", {}) in ({}, {"BEAM_VERSION": installed("job-server").version})
    assert {one["build"]["target"] for one in built if "args" in one["build"]} == {"flink", "worker"}
    assert dockerfile_argument("FLINK_VERSION") == installed("flink").version
    assert services()["kafka"]["image"] == f"apache/kafka:{installed('kafka').version}"
