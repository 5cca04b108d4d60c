"""Each portion's `__init__` is a table of contents: every name is listed, exists and is documented."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType

import pytest

from .tree import PORTIONS, ROOT


def public(portion: str) -> ModuleType:
    if not (ROOT / portion / "__init__.py").is_file():
        pytest.skip(f"{portion} has no __init__.py")
    return importlib.import_module(f"quiltstream.{portion}")


def undocumented(name: str, thing: object) -> list[str]:
    """Which of a public thing and its public methods say nothing about themselves."""
    if not (inspect.isclass(thing) or inspect.isroutine(thing) or inspect.ismodule(thing)):
        return []
    # A dataclass without a docstring is given its signature as one.
    own = (thing.__doc__ or "").strip()
    found = [] if own and not own.startswith(f"{name}(") else [name]
    if inspect.isclass(thing) and thing.__module__.startswith("quiltstream."):
        for key, member in vars(thing).items():
            function = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
            if key.startswith("_") or not (inspect.isfunction(function) or isinstance(function, property)):
                continue
            if not inspect.getdoc(getattr(thing, key)):  # an override may inherit what its base class says
                found.append(f"{name}.{key}")
    return found


@pytest.mark.parametrize("portion", PORTIONS)
def test_a_portion_says_what_it_is_and_lists_its_names(portion: str) -> None:
    module = public(portion)
    assert module.__doc__
    listed = module.__all__
    assert len(set(listed)) == len(listed)
    assert [name for name in listed if not hasattr(module, name)] == []


@pytest.mark.parametrize("portion", PORTIONS)
def test_every_public_name_is_documented(portion: str) -> None:
    module = public(portion)
    assert [gap for name in module.__all__ for gap in undocumented(name, getattr(module, name))] == []


def test_a_thing_without_a_docstring_is_found() -> None:
    def bare() -> None: ...

    class Bare:
        def method(self) -> None: ...

    Bare.__module__ = "quiltstream.example"
    assert undocumented("bare", bare) == ["bare"]
    assert undocumented("Bare", Bare) == ["Bare", "Bare.method"]
