"""What is asked of beliefs and methods is asked in one place: no belief for its type, no list of methods twice."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from typing import get_args

import pytest

from quiltstream.privacy.analysis.methods import METHODS
from quiltstream.privacy.models.belief import Belief
from quiltstream.privacy.models.serialisation import KINDS, Certified
from quiltstream.schemas.settings.job import Mechanism

from .tree import ROOT, all_modules, module_name

MODELS = ROOT / "privacy" / "models"

#: The protocol, and every class that answers by it.
BELIEFS = {"Belief", "Certified", *(kind.__name__ for kind in KINDS.values())}


def asked_for_its_type(source: str) -> Iterator[int]:
    """Lines that ask a value whether it is a belief, or of which kind."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            asked: list[ast.AST] = [node.args[1]]
        elif isinstance(node, ast.MatchClass):
            asked = [node.cls]
        elif isinstance(node, ast.Compare) and "type(" in ast.unparse(node.left):
            asked = [*node.comparators]
        else:
            continue
        names = {part.id for one in asked for part in ast.walk(one) if isinstance(part, ast.Name)}
        names |= {part.attr for one in asked for part in ast.walk(one) if isinstance(part, ast.Attribute)}
        if names & BELIEFS:
            yield node.lineno


def listed_methods(source: str) -> Iterator[int]:
    """Lines of lists, mappings and literal types that name more than one method."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            parts: list[ast.expr] = node.elts
        elif isinstance(node, ast.Dict):
            parts = [key for key in node.keys if key is not None]
        else:
            continue
        names = [part.value for part in parts if isinstance(part, ast.Constant) and part.value in METHODS]
        # those without a hyphen may be functions
        if len(names) > 1 and any("-" in str(name) for name in names):
            yield node.lineno


def test_no_module_outside_the_models_checks_the_type_of_a_belief() -> None:
    files = [file for file in all_modules() if MODELS not in file.parents]
    found = [
        f"{file.relative_to(ROOT)}:{line}"
        for file in files
        for line in asked_for_its_type(file.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "isinstance(one, MarkovChain)",
        "issubclass(kind, (models.FiniteClass, int))",
        "type(one) is MixingBounds",
        "match one:\n    case AnyInitial():\n        pass",
    ],
)
def test_a_type_check_of_a_belief_is_found(source: str) -> None:
    assert list(asked_for_its_type(source))


def test_every_belief_of_the_models_has_a_kind() -> None:
    names = [module_name(file) for file in sorted(MODELS.glob("*.py"))]
    defined = {
        one
        for name in names
        for _, one in inspect.getmembers(importlib.import_module(name), inspect.isclass)
        if issubclass(one, Belief) and one is not Certified and not inspect.isabstract(one)
    }
    assert defined == set(KINDS.values())


def test_methods_are_listed_once() -> None:
    found = [
        str(file.relative_to(ROOT)) for file in all_modules() for _ in listed_methods(file.read_text(encoding="utf-8"))
    ]
    assert found == ["schemas/settings/job.py"]
    assert len(list(listed_methods('{"mqm-approx": 1, "pairwise": 2}\n("mqm-exact", "gk16")'))) == 2


def test_the_schema_of_the_settings_has_the_methods_of_the_table() -> None:
    assert get_args(Mechanism) == tuple(name for name, one in METHODS.items() if one.in_settings)


def test_the_page_of_the_settings_has_the_table_of_methods() -> None:
    lines = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8").splitlines()
    rows = [
        f"| `{name}` | {one.noise} | {one.believes} | {one.needs} | {one.leaves} |"
        for name, one in METHODS.items()
        if one.in_settings
    ]
    assert [row for row in rows if row not in lines] == []
