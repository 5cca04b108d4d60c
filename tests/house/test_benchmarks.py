"""The benchmarks are whole: one command runs all of them, and the tests that the table of faults names are there."""

from __future__ import annotations

from pathlib import Path

from ..loading import load


def test_one_command_runs_every_benchmark(repository: Path) -> None:
    folder = repository / "benchmarks"
    programs = {one.stem for one in folder.glob("[!_]*.py") if '__name__ == "__main__"' in one.read_text("utf-8")}
    assert set(load(folder / "__main__.py").CALLS) == programs


def test_every_fault_of_the_table_has_its_test(repository: Path) -> None:
    """The program itself refuses a table that names a test which is gone."""
    faults = load(repository / "benchmarks" / "faults.py").faults()
    assert {"Prism", "Flink", "PostgreSQL", "SQLite"} < {one.where for one in faults}
