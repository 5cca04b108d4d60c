"""Lazy imports of a package's names: ``__init__`` lists them, and each is imported at its first use (PEP 562).

The list stands once, as imports that a type checker reads and the interpreter does not::

    if TYPE_CHECKING:
        from .accounting.ledger import Ledger as Ledger
    else:
        __getattr__, __dir__, __all__ = lazy_imports(__name__)

So ``import quiltstream.privacy`` imports neither numpy nor scipy, a module may import any other module of the package
without a circle through its ``__init__``, and a type checker still refuses a name that is not in the table.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy_imports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """What a package's ``__init__`` needs to import its names at their first use.

    Returns:
        The functions ``__getattr__`` and ``__dir__`` of the module, and its ``__all__``, sorted.

    Raises:
        ImportError: the package's source cannot be read, or has no table.
    """
    module = sys.modules[package]
    table = _table_of(module.__spec__.loader.get_source(package) or "")  # type: ignore[union-attr] - of every file
    if not table:
        raise ImportError(f"{package} imports no names under `if TYPE_CHECKING:`")
    names = sorted(table)

    def attribute(name: str) -> Any:
        if name not in table:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(f".{table[name]}", package), name)
        setattr(module, name, found)
        return found

    return attribute, lambda: names, names


def _table_of(source: str) -> dict[str, str]:
    """The module of each name that a source imports under ``if TYPE_CHECKING:``."""
    return {
        name.name: imported.module or ""
        for block in ast.parse(source).body
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for imported in block.body
        if isinstance(imported, ast.ImportFrom)
        for name in imported.names
    }
