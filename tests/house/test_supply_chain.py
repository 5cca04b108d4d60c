"""What CI installs is listed with its digests and its licences."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, distribution
from types import ModuleType

import pytest

from ..loading import load
from .tree import ROOT

CI = ROOT / ".ci"
ENDS = ("2.62", "2.77")


@pytest.fixture(scope="module")
def licences() -> ModuleType:
    return load(CI / "licences.py")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def constrained(end: str) -> dict[str, str]:
    """Versions by name, of a file of constraints."""
    text = (CI / f"constraints-beam-{end}.txt").read_text(encoding="utf-8")
    return {normal(name): version for name, version in re.findall(r"^([\w.-]+)==(\S+)$", text, re.MULTILINE)}


def listed(licences: ModuleType) -> dict[str, list[str]]:
    """Licences by name."""
    found: dict[str, list[str]] = {}
    for line in licences.LIST.read_text(encoding="utf-8").splitlines():
        name, licence = line.split(": ", 1)
        found.setdefault(name, []).append(licence)
    return found


@pytest.mark.parametrize("end", ENDS)
def test_every_constraint_has_digests_of_its_version_and_no_other_package_does(end: str) -> None:
    text = (CI / f"hashes-beam-{end}.txt").read_text(encoding="utf-8")
    blocks = re.findall(r"^([\w.-]+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.MULTILINE)
    assert {normal(name): version for name, version, _ in blocks} == constrained(end)


@pytest.mark.parametrize("end", ENDS)
def test_every_constraint_has_a_listed_licence(end: str, licences: ModuleType) -> None:
    assert constrained(end).keys() - listed(licences).keys() == set()


def test_no_listed_licence_is_unread_or_of_a_package_no_longer_installed(licences: ModuleType) -> None:
    found = listed(licences)
    assert {name: all_ for name, all_ in found.items() if any(licences.unknown(one) for one in all_)} == {}
    assert found.keys() - constrained("2.62").keys() - constrained("2.77").keys() == set()


def test_listed_licences_are_those_of_the_installed_packages(licences: ModuleType) -> None:
    compared = 0
    pinned = [constrained(end) for end in ENDS]
    for name, given in listed(licences).items():
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue
        if package.version in (one.get(name) for one in pinned):
            assert licences.licence(package) in given, name
            compared += 1
    assert compared >= 20


@pytest.mark.parametrize("licence", ["AGPL-3.0-only", "MIT AND Proprietary", "unknown", "(MIT OR SSPL-1.0) AND ISC"])
def test_an_unreviewed_licence_is_refused(licence: str, licences: ModuleType) -> None:
    assert licences.unknown(licence)
    assert not licences.unknown("MIT AND (Apache-2.0 OR BSD-3-Clause)")
