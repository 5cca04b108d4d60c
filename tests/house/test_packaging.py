"""pyproject.toml lists every package, and every file of a portion is shipped."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from .tree import PORTIONS, ROOT, all_modules, tracked_files


@pytest.fixture(scope="module")
def setuptools_table() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]


def package_of(folder: Path) -> str:
    return ".".join(("quiltstream", *folder.relative_to(ROOT).parts))


def test_every_folder_with_modules_is_a_listed_package(setuptools_table: dict[str, Any]) -> None:
    assert sorted(setuptools_table["packages"]) == sorted({package_of(file.parent) for file in all_modules()})


def test_every_package_is_mapped_to_its_folder(setuptools_table: dict[str, Any]) -> None:
    mapped = setuptools_table["package-dir"]
    assert sorted(mapped) == sorted(setuptools_table["packages"])
    assert {name: package_of(ROOT / folder) for name, folder in mapped.items()} == {name: name for name in mapped}


def test_every_non_module_file_of_a_portion_is_package_data(setuptools_table: dict[str, Any]) -> None:
    data: dict[str, list[str]] = setuptools_table["package-data"]
    others = [f for f in tracked_files() if f.relative_to(ROOT).parts[0] in PORTIONS and f.suffix != ".py"]
    assert others, "the portions hold at least their py.typed"
    folders: dict[str, str] = setuptools_table["package-dir"]
    shipped = {
        file for package, patterns in data.items() for one in patterns for file in (ROOT / folders[package]).glob(one)
    }
    assert [str(file.relative_to(ROOT)) for file in others if file not in shipped] == []


@pytest.mark.parametrize("portion", PORTIONS)
def test_a_portion_is_a_typed_package(portion: str) -> None:
    assert (ROOT / portion / "__init__.py").is_file()
    assert (ROOT / portion / "py.typed").is_file()


def test_the_namespace_package_has_no_init_module() -> None:
    assert not (ROOT / "quiltstream").exists()
    assert not (ROOT / "__init__.py").exists()


def test_the_sources_include_the_security_policy_and_pages_link_it() -> None:
    assert "SECURITY.md" in (ROOT / "MANIFEST.in").read_text(encoding="utf-8")
    more = (ROOT / "README.md").read_text(encoding="utf-8").partition("## More")[2]
    assert "](SECURITY.md)" in more
    for page in (more, (ROOT / "SECURITY.md").read_text(encoding="utf-8")):
        assert "](docs/threat-model.md)" in page
    assert "](threat-model.md)" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
