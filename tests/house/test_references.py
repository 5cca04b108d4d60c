"""Every file that the documents name is there."""

from __future__ import annotations

import re
from pathlib import Path

from .tree import PORTIONS, ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = "|".join([*PORTIONS, "tests", "benchmarks", "examples", "docs"])
NAMED = re.compile(rf"`((?:{FOLDERS})/[^`\s]*)`")
LINKED = re.compile(r"\]\((?![a-z]+:)([^)#\s]+)(?:#[^)\s]*)?\)")


def absent(page: Path, text: str) -> list[str]:
    """The files that a page names and that are not there: from the root in code, from the page in links."""
    names = [name for name in NAMED.findall(text) if not (ROOT / name).exists()]
    return names + [name for name in LINKED.findall(text) if not (page.parent / name).exists()]


def test_every_file_named_by_a_page_exists() -> None:
    found = {page.name: names for page in PAGES if (names := absent(page, page.read_text(encoding="utf-8")))}
    assert found == {}
    assert len(PAGES) > 10


def test_a_missing_file_named_by_a_page_is_found() -> None:
    text = "`privacy/mechanisms/discrete_laplace.py` `privacy/nothing.py` [a](guarantee.md#here) [b](nothing.md) [c](https://a.example/b)"
    assert absent(ROOT / "docs" / "page.md", text) == ["privacy/nothing.py", "nothing.md"]
