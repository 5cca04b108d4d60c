"""The portions import each other in one direction, and third parties where they belong."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .tree import PORTIONS, ROOT, all_modules

ONLY_IN = {
    "apache_beam": {"transforms", "pipelines"},
    "sqlalchemy": {"store"},
    "psycopg": {"store"},
    "click": {"pipelines"},
    "rich": {"pipelines"},
    "duckdb": {"transforms"},
    "jmespath": {"transforms"},
}
PRIVACY_MAY_USE = {"numpy", "scipy"}


def imports(source: str) -> Iterator[tuple[int, str, int]]:
    """Each import in a source text, nested ones too: (relative level, module, line)."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{a.name}" if node.module else a.name for a in node.names] if node.level else []
            yield from ((node.level, name, node.lineno) for name in names or [node.module or ""])


def problems(file: Path, source: str) -> Iterator[str]:
    """What is wrong with the imports of one file, given by its place below the root."""
    portion, package = file.parts[0], file.parent.parts
    for level, name, line in imports(source):
        where = f"{file}:{line}"
        if level == 0:
            top = name.partition(".")[0]
            if top == "quiltstream":
                yield f"{where}: imports {name} by its absolute name; inside the portions imports are relative"
            if portion not in ONLY_IN.get(top, {portion}):
                yield f"{where}: {portion} imports {top}, which only {sorted(ONLY_IN[top])} may"
            if portion == "privacy" and top not in PRIVACY_MAY_USE | set(sys.stdlib_module_names) | {"quiltstream"}:
                yield f"{where}: privacy imports {top}; it may use {sorted(PRIVACY_MAY_USE)}, Python's own and schemas"
            continue
        base = package[: len(package) - level + 1]
        target = (*base, *name.split("."))[0]
        if target not in PORTIONS:
            yield f"{where}: the relative import of {name} leaves the namespace"
        elif PORTIONS.index(target) > PORTIONS.index(portion):
            yield f"{where}: {portion} imports {target}; the direction is {' <- '.join(PORTIONS)}"


@pytest.mark.night
def test_every_module_imports_only_what_its_portion_may() -> None:
    files = all_modules()
    found = [
        problem for file in files for problem in problems(file.relative_to(ROOT), file.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)
    assert {file.relative_to(ROOT).parts[0] for file in files} == set(PORTIONS)


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("schemas/x.py", "from ..privacy import chains"),
        ("privacy/x.py", "def f():\n    from ..store.records import Records"),
        ("schemas/settings/x.py", "from ...transforms.decode.steps import decode"),
        ("privacy/x.py", "import pyarrow as pa"),
        ("pipelines/x.py", "from sqlalchemy import select"),
        ("pipelines/x.py", "from quiltstream.schemas.slots import SlotGrid"),
        ("privacy/x.py", "from ..tests import tree"),
    ],
)
def test_a_wrong_import_is_found(file: str, source: str) -> None:
    assert len(list(problems(Path(file), source))) == 1


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("privacy/x.py", "import math\nfrom scipy.linalg import eigh\nfrom ..schemas.slots import SlotGrid"),
        ("pipelines/live/x.py", "import click\nfrom ..console import facts\nfrom ...schemas import x"),
        ("pipelines/x.py", "from . import data\nfrom ..transforms import PrivateHistograms\nimport apache_beam"),
    ],
)
def test_a_right_import_passes(file: str, source: str) -> None:
    assert list(problems(Path(file), source)) == []


@pytest.mark.parametrize("portion", PORTIONS)
def test_a_portion_is_not_importable_by_its_bare_name(portion: str) -> None:
    """A bare `schemas` on the path would be found in place of Beam's and others' modules of that name."""
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(portion)
