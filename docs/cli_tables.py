"""Write the tables of cli.md anew from the code: `.venv/bin/python docs/cli_tables.py`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from quiltstream.pipelines.cli import main
from quiltstream.pipelines.errors import ExitCode

PAGE = Path(__file__).with_name("cli.md")


def with_tables(page: str) -> str:
    """The page with its tables of commands and of exit codes."""
    codes = [(str(code.value), code.text) for code in ExitCode]
    for name, head, rows in (("commands", ("command", "what it does"), list(_commands(main, "quiltstream"))),
                             ("exit codes", ("code", "meaning"), codes)):  # fmt: skip
        lines = [f"| {one} | {other} |" for one, other in (head, ("---", "---"), *rows)]
        text = "\n".join([f"<!-- {name} -->", *lines, "<!-- end -->"])
        page = re.sub(rf"<!-- {name} -->\n.*?<!-- end -->", lambda _, text=text: text, page, flags=re.DOTALL)
    return page


def _commands(command: click.Command, words: str) -> Iterator[tuple[str, str]]:
    if isinstance(command, click.Group):
        for name, one in sorted(command.commands.items()):
            yield from _commands(one, f"{words} {name}")
        return
    arguments = [one.make_metavar(click.Context(command)) for one in command.params if isinstance(one, click.Argument)]
    yield f"`{' '.join([words, *arguments])}`".replace("|", "\\|"), command.get_short_help_str(200).rstrip(".")


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
