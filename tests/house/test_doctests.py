"""The examples in the docstrings are true."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

from .tree import all_modules, module_name


def test_the_examples_of_every_module_are_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: dict[str, str] = {}
    names = [module_name(file) for file in all_modules() if ">>> " in file.read_text(encoding="utf-8")]
    for number, name in enumerate(names):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        result = doctest.testmod(
            importlib.import_module(name), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        )
        if not result.attempted:
            wrong[name] = "it shows >>>, but doctest finds no example in a docstring"
        elif result.failed:
            wrong[name] = f"{result.failed} examples have other results: see the captured output"
    assert wrong == {}
    assert len(names) > 50
