"""The tools that the deployment files are checked with: found, or the test is skipped, or fails where they must be."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from ..e2e.installed import NotInstalledError

#: Set where a missing tool is a mistake; .ci/deploy.sh installs all of them and sets it.
REQUIRE = "QUILTSTREAM_REQUIRE_TOOLS"


def _missing(what: str) -> NoReturn:
    text = f"{what} is not here; .ci/run deploy installs the tools and runs these tests"
    if os.environ.get(REQUIRE):
        pytest.fail(text)
    pytest.skip(text)


def there(find: Callable[[], Path]) -> Path:
    """What the end-to-end tests find of a server."""
    try:
        return find()
    except NotInstalledError as error:
        return _missing(str(error))


@pytest.fixture(scope="session")
def tool() -> Callable[[str], str]:
    """Finds a program, beside this Python or on the path."""

    def find(name: str) -> str:
        found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
        return found if found is not None else _missing(f"the program {name}")

    return find


@pytest.fixture(scope="session")
def module() -> Callable[[str], Any]:
    """Imports a module of an optional package."""

    def find(name: str) -> Any:
        try:
            return importlib.import_module(name)
        except ImportError:
            return _missing(f"the module {name}")

    return find


@pytest.fixture(scope="session")
def deploy(repository: Path) -> Path:
    """The folder of the deployment files."""
    return repository / "deploy"
