"""What commands print: results on stdout, progress on stderr only where that is a terminal.

Nothing here knows about jobs; texts from settings and data are never read as markup.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

#: Wider lines are hard to read.
_WIDEST = 100


def results() -> Console:
    """The console of results."""
    console = Console(markup=False, highlight=False, emoji=False)
    if console.width > _WIDEST:
        console.width = _WIDEST
    return console


def print_json(value: Any) -> None:
    """Print a result for machines: indented JSON on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))  # noqa: T201 - a result


def heading(console: Console, text: str) -> None:
    """Print a heading and a blank line before it."""
    console.print()
    console.print(Text(text, style="bold"))


def facts(console: Console, rows: Sequence[tuple[str, str]]) -> None:
    """Print names and what is to be said about them, in two columns."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in rows:
        grid.add_row(name, Text(text))
    console.print(Padding(grid, (0, 0, 0, 2)))


def notes(console: Console, texts: Sequence[str]) -> None:
    """Print sentences as a list."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for text in texts:
        grid.add_row("-", Text(text))
    console.print(Padding(grid, (0, 0, 0, 2)))


@contextmanager
def working(text: str) -> Iterator[None]:
    """Show a spinner, a text and the time on stderr while something long runs; nothing if stderr is no terminal."""
    console = Console(stderr=True, markup=False, highlight=False)
    if not console.is_terminal:
        yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task(text, total=None)
        yield


def number(value: float, digits: int = 4) -> str:
    """A number for people: whole numbers with separators, others with so many significant digits."""
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.{digits}g}" if abs(value) < 10**digits else f"{value:,.0f}"


def plural(count: int, noun: str) -> str:
    """``1 window``, ``52 windows``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
