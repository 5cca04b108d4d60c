"""Tables of the front pages name everything that is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from quiltstream.pipelines.cli import main

from .tree import PORTIONS, ROOT


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def first_cells(page: str) -> str:
    """The first cells of all tables of a page, one a line."""
    return "\n".join(line.split(" | ")[0] for line in text(page).splitlines() if line.startswith("| `"))


def commands(group: click.Group, *path: str) -> Iterator[str]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        else:
            yield " ".join((*path, name))


def test_the_page_of_the_command_line_has_every_command() -> None:
    cells = first_cells("docs/cli.md")
    missing = [name for name in commands(main) if not re.search(rf"^\| `quiltstream {name}\b", cells, re.MULTILINE)]
    assert missing == []


def test_the_table_of_steps_has_every_step_of_the_makefile() -> None:
    steps = set(re.findall(r"^\.PHONY: (.+)$", text("Makefile"), re.MULTILINE)[0].split()) - {"check"}
    assert set(re.findall(r"^\| `make (\w+)`", text("CONTRIBUTING.md"), re.MULTILINE)) == steps


def test_the_readme_names_the_folders_of_the_portions() -> None:
    more = text("README.md").split("\n## More\n")[1]
    assert "`import quiltstream.pipelines` is the folder `pipelines/`" in more
    assert "(CONTRIBUTING.md#the-layout)" in more
    layout = text("CONTRIBUTING.md").split("\n## The layout\n")[1].split("\n## ")[0]
    assert all(f"| `quiltstream.{name}`" in layout and Path(ROOT / name).is_dir() for name in PORTIONS)
