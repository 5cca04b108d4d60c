"""What the pages say a test holds, and what a table counts, is held by a test of that name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

NAMED = re.compile(r"`(test_\w{20,})`")


def names(repository: Path) -> set[str]:
    """Of every test."""
    texts = (path.read_text(encoding="utf-8") for path in (repository / "tests").rglob("test_*.py"))
    shared = (path.read_text(encoding="utf-8") for path in (repository / "tests").rglob("*contract.py"))
    store = (
        (repository / "tests" / "store" / f"{name}.py").read_text(encoding="utf-8") for name in ("faults", "beliefs")
    )
    return set(re.findall(r"def (test_\w+)\(", "".join([*texts, *shared, *store])))


@pytest.mark.parametrize("page", ["docs/streaming.md", "docs/merging.md", "docs/estimates.md"])
def test_every_test_that_a_page_names_is_there(repository: Path, page: str) -> None:
    named = set(NAMED.findall((repository / page).read_text(encoding="utf-8")))
    assert named
    assert named - names(repository) == set()


def test_every_fault_of_the_table_has_a_test(repository: Path) -> None:
    text = (repository / "benchmarks" / "faults.py").read_text(encoding="utf-8")
    begun = set(re.findall(r'"(test_\w{20,})"', text))
    known = names(repository)
    assert len(begun) > 12
    assert {one for one in begun if not any(name.startswith(one) for name in known)} == set()
