"""What is committed names no machine."""

from __future__ import annotations

import re

import pytest

from .tree import ROOT, all_modules, tracked_files

# Written in pieces, so that this file passes its own test.
MACHINE_PATHS = [f"/{name}/" for name in ("tmp", "work", "root", "home", "Users")] + ["/opt/" + "wheels"]
PACKAGE_HOSTS = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("npmjs", "org"),
        ("proxy", "golang", "org"),
        ("crates", "io"),
        ("repo1", "maven", "org"),
        ("repo", "maven", "apache", "org"),
        ("deb", "debian", "org"),
    )
]
# A machine path starts a word: "tests/home/x" and "https://host/work/" are something else.
PATTERN = re.compile(
    "|".join([rf"(?<![\w.$}}/-]){re.escape(p)}" for p in MACHINE_PATHS] + list(map(re.escape, PACKAGE_HOSTS)))
)
NOT_TEXT = {".parquet", ".avro", ".png", ".pdf", ".gz", ".db"}


def findings(text: str) -> list[str]:
    return [f"line {text.count(chr(10), 0, m.start()) + 1}: {m.group()}" for m in PATTERN.finditer(text)]


@pytest.mark.night
def test_no_tracked_file_names_a_machine_path_or_a_package_host() -> None:
    texts = [file for file in tracked_files() if file.suffix not in NOT_TEXT]
    assert len(texts) > len(all_modules())
    found = {
        str(file.relative_to(ROOT)): hits
        for file in texts
        if (hits := findings(file.read_text(encoding="utf-8", errors="replace")))  # cases have other encodings
    }
    assert found == {}


@pytest.mark.parametrize(
    "bad", [f"x = '{MACHINE_PATHS[0]}x'", f"cd {MACHINE_PATHS[1]}main", f"https://{PACKAGE_HOSTS[0]}/x"]
)
def test_a_machine_path_or_a_package_host_is_found(bad: str) -> None:
    assert len(findings(bad)) == 1


@pytest.mark.parametrize("good", [f"https://example.org{MACHINE_PATHS[1]}", f"out{MACHINE_PATHS[0]}", "/workers"])
def test_a_path_that_names_no_machine_passes(good: str) -> None:
    assert findings(good) == []
