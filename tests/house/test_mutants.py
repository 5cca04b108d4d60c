"""Each listed error in the source turns the tests red (marker `slow`: run it with `make mutants`)."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from .mutants import MUTANTS, Mutant, MutantError, copy_tree, run_tests, survives
from .tree import ROOT


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_the_tests_fail_on_the_mutant(mutant: Mutant, tmp_path: Path) -> None:
    tree = copy_tree(tmp_path / "tree")
    assert not survives(mutant, tree), f"no test notices: {mutant.old!r} -> {mutant.new!r} in {mutant.file}"


@pytest.mark.slow
@pytest.mark.parametrize("tier", ["push", "nightly"])
def test_the_tests_of_the_mutants_pass_on_an_unchanged_copy(tier: str, tmp_path: Path) -> None:
    tests = dict.fromkeys(test for mutant in MUTANTS if mutant.tier == tier for test in mutant.tests)
    code, output = run_tests(copy_tree(tmp_path / "tree"), tests, tier, seconds=3_600)
    assert code == 0, f"what a failure of these tests says of a mutant is nothing:\n{output[-3000:]}"


def test_every_mutant_still_fits_the_source(tmp_path: Path) -> None:
    wrong: list[str] = []
    for mutant in MUTANTS:
        (tmp_path / mutant.file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / mutant.file, tmp_path / mutant.file)
        try:
            mutant.apply(tmp_path)
        except MutantError as error:
            wrong.append(str(error))
        files = [test.partition("::")[0] for test in mutant.tests]
        wrong += [f"mutant {mutant.name}: no file {file}" for file in files if not (ROOT / file).exists()]
    assert wrong == []


def test_a_mutant_without_exactly_one_match_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\nx = 1\n", encoding="utf-8")
    for old, count in (("y", 0), ("x = 1", 2)):
        with pytest.raises(MutantError, match=f"occurs {count} times"):
            Mutant("m", "a.py", old, "z", ()).apply(tmp_path)


EXAMPLE = Mutant(
    name="an unknown name is taken",
    file="pipelines/data/__init__.py",
    old="if name not in FILES:",
    new="if not name:",
    tests=("tests/pipelines/test_shipped_data.py",),
)


def test_killed_surviving_and_broken_mutants_are_distinguished(tmp_path: Path) -> None:
    tree = copy_tree(tmp_path / "tree")
    source = (tree / EXAMPLE.file).read_text(encoding="utf-8")
    assert survives(dataclasses.replace(EXAMPLE, new="if name not in set(FILES):"), tree)
    (tree / EXAMPLE.file).write_text(source, encoding="utf-8")
    assert not survives(EXAMPLE, tree)
    (tree / EXAMPLE.file).write_text(source, encoding="utf-8")
    with pytest.raises(MutantError, match="did not run"):
        survives(dataclasses.replace(EXAMPLE, new="if if:"), tree)
