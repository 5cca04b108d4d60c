"""The page of deployments' sizes has the numbers that follow from the constants that the benchmark measured."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from ..loading import load
from .tree import ROOT

RESULTS = ROOT / "benchmarks" / "RESULTS.md"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    return load(ROOT / "benchmarks" / "scale.py")


def printed(script: str) -> str:
    """What a benchmark printed, by its section of the results."""
    return RESULTS.read_text(encoding="utf-8").partition(f"\n## {script}")[2].split("```")[1]


def page_tables(page: Path) -> list[str]:
    """The tables of a page."""
    blocks = page.read_text(encoding="utf-8").split("\n\n")
    return [block.strip() for block in blocks if block.startswith("| ")]


def test_tables_of_scale_page_follow_from_measured_constants(benchmark: ModuleType) -> None:
    constants = benchmark.read(printed("scale.py"))
    assert list(constants) == list(benchmark.MEANING)
    page = page_tables(ROOT / "docs" / "explanation" / "scale.md")
    computed = benchmark.tables(constants, benchmark.SLOWEST)
    assert page[: len(computed)] == computed


def test_rates_of_scale_page_are_those_of_the_benchmarks(benchmark: ModuleType) -> None:
    text = RESULTS.read_text(encoding="utf-8").split()
    for shown, rate in benchmark.RATES.values():
        number = float(shown.replace(",", ""))
        assert shown in text
        assert any(abs(rate - number * unit) < 1e-6 * rate for unit in (1, 1e3, 1e6)), shown


def test_growth_of_the_ledger_on_the_page_equals_the_benchmark_output(benchmark: ModuleType) -> None:
    lines = [line.split() for line in printed("ledger_growth.py").splitlines() if line.strip()[:1].isdigit()]
    rows = [line for line in lines if len(line) == 10]
    cells = [row[:4] + row[5:7] for row in rows]
    table = page_tables(ROOT / "docs" / "explanation" / "scale.md")[-1].splitlines()[2:]
    assert [[cell.strip() for cell in line.strip("|").split("|")] for line in table] == cells
    assert min(float(row[5]) for row in rows) == benchmark.SLOWEST
