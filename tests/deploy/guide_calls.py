"""The commands of the guides, as words."""

from __future__ import annotations

import shlex

from ..house.pages import Block, blocks, commands
from .flink_files import GUIDES, ROOT, text

FOLDER = ROOT / "docs" / "guides"


def pages() -> dict[str, list[Block]]:
    """The blocks of each guide."""
    found = {name: list(blocks(name, text(FOLDER / f"{name}.md"))) for name in GUIDES}
    assert all(found.values())
    return found


def console() -> list[Block]:
    """The blocks with commands, of all guides."""
    return [block for page in pages().values() for block in page if block.language == "console"]


def calls(program: str) -> list[list[str]]:
    """The words of every command of a program, without where the shell takes from or writes to."""
    words = [shlex.split(one.replace("\\\n", " ")) for block in console() for one in commands(block.body)]
    kept = [one[: next((at for at, word in enumerate(one) if word in {"<", ">"}), None)] for one in words]
    return [one for one in kept if one[0] == program]
