"""Each `__init__` lists the names of its package, and every one exists."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator

import pytest

from quiltstream.schemas import QuiltstreamError

from .tree import PORTIONS, all_modules, module_name

PACKAGES = [
    module_name(file)
    for file in all_modules()
    if "lazy_imports(__name__)" in file.read_text(encoding="utf-8") and file.stem == "__init__"
]
"""The packages whose `__init__` lists its names lazily."""

MOST_NAMES = {"quiltstream.privacy": 26, "quiltstream.store": 13}


def test_a_package_has_a_docstring_and_lists_its_names_once() -> None:
    assert {f"quiltstream.{portion}" for portion in PORTIONS} <= set(PACKAGES)
    for name in PACKAGES:
        module = importlib.import_module(name)
        assert module.__doc__
        assert 0 < len(module.__all__) <= MOST_NAMES.get(name, 40)
        assert [one for one in module.__all__ if not hasattr(module, one)] == []
        # importing a module sets its package's attribute, which would hide a name of the table
        assert [one for one in module.__all__ if inspect.ismodule(getattr(module, one))] == []
        with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
            _ = module.no_such_name


def test_each_folder_is_the_table_of_contents_of_its_modules() -> None:
    for init in (file for file in all_modules() if file.stem == "__init__"):
        folders = {one.name for one in init.parent.iterdir() if (one / "__init__.py").exists()}
        modules = {one.stem for one in init.parent.glob("*.py")} - {"__init__"}
        said = re.findall(r"``(?:\w+\.)*(\w+)``", ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or "")
        assert modules | folders <= set(said), f"{init.parent}: {sorted((modules | folders) - set(said))}"


def test_every_error_has_the_one_base_class() -> None:
    for file in all_modules():
        try:
            importlib.import_module(module_name(file))
        except ModuleNotFoundError as error:  # of an extra, which need not be installed
            assert not str(error.name).startswith("quiltstream"), error  # noqa: PT017 - the extra is not what is tested
    found = set(subclasses(Exception))
    ours = {one for one in found if one.__module__.startswith("quiltstream.") and not one.__name__.startswith("_")}
    assert QuiltstreamError in ours
    assert [one for one in ours if not issubclass(one, QuiltstreamError)] == []


def subclasses(kind: type[Exception]) -> Iterator[type[Exception]]:
    for one in kind.__subclasses__():
        yield one
        yield from subclasses(one)
