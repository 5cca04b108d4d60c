"""The fenced blocks of a Markdown page, and how to run them.

A page's blocks run in order, in one temporary folder: ``python`` blocks in one namespace (those that show ``>>>`` as
doctests), and ``console`` blocks with a ``$ quiltstream`` line command by command, the output being for the reader. The
comment ``<!-- no-run: reason -->`` on the line before a block leaves it out, ``<!-- exit: 2 -->`` says that a console
block ends with that exit code.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from ..forked import forker

FENCE = re.compile(r"^```(?P<language>[\w-]*)[^\n`]*\n(?P<body>.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!-- (?P<key>[\w-]+): (?P<value>.*?) -->\s*\Z")
COMMAND_SECONDS = 300


class BlockError(AssertionError):
    """A block of a page does not do what the page says."""


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, the line of its first line, and the comment before it."""

    page: str
    language: str
    body: str
    line: int
    key: str = ""
    value: str = ""

    @property
    def runs(self) -> bool:
        """Whether the runner knows this block and the page does not leave it out."""
        known = self.language == "python" or (
            self.language == "console" and bool(re.search(r"^\$ quiltstream", self.body, re.MULTILINE))
        )
        return known and self.key != "no-run"

    @property
    def where(self) -> str:
        """The place of the block, for messages."""
        return f"{self.page}:{self.line}"


def blocks(page: str, text: str) -> Iterator[Block]:
    """Every fenced block of a page."""
    for fence in FENCE.finditer(text):
        line = text.count("\n", 0, fence.start()) + 2
        comment = COMMENT.search(text[: fence.start()])
        key, value = (comment["key"], comment["value"]) if comment else ("", "")
        yield Block(page, fence["language"], fence["body"], line, key, value)


def commands(body: str) -> list[str]:
    """The commands of a console block: the lines after a ``$``, with those they continue on."""
    found: list[str] = []
    open_line = False
    for line in body.splitlines():
        if line.startswith("$ "):
            found.append(line[2:])
        elif open_line:
            found[-1] += "\n" + line.removeprefix("> ")
        else:
            continue
        open_line = line.endswith("\\")
    return found


def run_python(block: Block, module: ModuleType) -> None:
    """Run a Python block in the page's namespace; a traceback shows the page's own lines."""
    if ">>> " in block.body:
        example = doctest.DocTestParser().get_doctest(block.body, vars(module), block.page, block.page, block.line - 1)
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
        report: list[str] = []
        runner.run(example, out=report.append, clear_globs=False)
        vars(module).update(example.globs)
        if runner.failures:
            msg = f"{block.where}: the page shows other results\n{''.join(report)}"
            raise BlockError(msg)
        return
    code = compile("\n" * (block.line - 1) + block.body, block.page, "exec", dont_inherit=True)
    exec(code, vars(module))  # noqa: S102 - the pages are ours, and running them is the point


def run_console(block: Block, folder: Path, environment: dict[str, str]) -> None:
    """Run the commands of a console block; each must end as the page says, or else with 0."""
    expected = int(block.value) if block.key == "exit" else 0
    todo = commands(block.body)
    for number, command in enumerate(todo):
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_SECONDS,
        )
        wanted = expected if number == len(todo) - 1 else 0
        if done.returncode != wanted:
            msg = f"{block.where}: `{command}` ended with {done.returncode}, not {wanted}\n{done.stdout}{done.stderr}"
            raise BlockError(msg)


def command_environment(folder: Path) -> dict[str, str]:
    """An environment whose `quiltstream` is the package under test, installed or not."""
    folder.mkdir()
    forker().command(folder / "quiltstream")
    return os.environ | {"PATH": os.pathsep.join([str(folder), os.environ.get("PATH", "")])}


def run_page(page: str, text: str, folder: Path) -> int:
    """Run a page's blocks in order, in a folder that is the current one; how many ran."""
    environment: dict[str, str] = {}
    # Registered, so that dataclasses and pickled functions of the page find their module.
    module = ModuleType("page_" + re.sub(r"\W", "_", page))
    sys.modules[module.__name__] = module
    ran = 0
    try:
        for block in blocks(page, text):
            if not block.runs:
                continue
            if block.language == "python":
                run_python(block, module)
            else:
                environment = environment or command_environment(folder / ".bin")
                run_console(block, folder, environment)
            ran += 1
    finally:
        del sys.modules[module.__name__]
    return ran
