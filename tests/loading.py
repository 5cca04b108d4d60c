"""Programs beside the package, such as benchmarks and those of deployments, as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load(path: Path) -> ModuleType:
    """The module of a program; what lies beside it can be imported by it, as where Python runs it."""
    spec = importlib.util.spec_from_file_location(f"loaded_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made  # dataclasses look their module up
    sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(made)
    finally:
        sys.path.remove(str(path.parent))
    return made
