"""The page of errors beside the published methods shows what the benchmark printed, which is what the library says."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..loading import load
from .tree import ROOT


def printed() -> list[list[str]]:
    """The rows of the benchmark's table: name, epsilon, a number for each method."""
    text = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    lines = text.partition("## utility.py")[2].split("```")[1].strip().splitlines()
    return [[line[:42].strip(), *line[42:].split()] for line in lines[2:]]


def test_the_page_shows_the_table_of_the_benchmark() -> None:
    page = (ROOT / "docs" / "explanation" / "accuracy.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")]
    assert rows[2:] == printed()


def test_the_table_has_the_numbers_of_the_library(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one histogram, with every method."""
    monkeypatch.setenv("QUILTSTREAM_SHARED_DATA", str(shared_data))
    benchmark = load(ROOT / "benchmarks" / "utility.py")
    task = next(one for one in benchmark.tasks() if one.name == "electricity, 30 homes, a week")
    found = task.errors(1.0)
    assert [task.name, "1", *(benchmark.shown(found[name]) for name in benchmark.NAMES)] in printed()
