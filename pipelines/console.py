r"""What commands print: results and bars on stdout, progress on stderr only where that is a terminal.

Nothing here knows about jobs. Texts from settings and data are never read as markup, and control characters in them
never reach the terminal:

>>> printable("meter\x1b[2J7") == "meter\N{REPLACEMENT CHARACTER}[2J7"
True
"""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

#: Wider lines are hard to read.
_WIDEST = 100

_INDENT = 2

#: What a terminal acts on and does not show: C0 without tabs and ends of lines, DEL, C1, and marks of the direction of
#: writing, which make a text look like another one.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """A text with every control character replaced, so that no message, name or path commands the terminal."""
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)


class _ResultsConsole(Console):
    """A console that prints no control character of a text; those of colours are its own."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for part in super().render(renderable, options):
            yield part if part.control else Segment(printable(part.text), part.style)


def results() -> Console:
    """The console of results."""
    console = _ResultsConsole(markup=False, highlight=False, emoji=False)
    console.width = min(console.width, _WIDEST)
    return console


def print_json(value: Any) -> None:
    """Print a result for machines: indented JSON on stdout."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    # such characters stand inside strings only
    print(_CONTROLS.sub(lambda one: f"\\u{ord(one[0]):04x}", text))  # noqa: T201 - a result


def finite(value: Any) -> Any:
    """A plain value as JSON has it: numbers that are not finite are null."""
    if isinstance(value, dict):
        return {name: finite(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def heading(console: Console, text: str) -> None:
    """Print a heading and a blank line before it."""
    console.print()
    console.print(Text(text, style="bold"))


def facts(console: Console, said: Mapping[str, str] | Sequence[tuple[str, str]]) -> None:
    """Print names and what is to be said about them, in two columns."""
    rows = list(said.items()) if isinstance(said, Mapping) else said
    left = max((len(name) for name, _ in rows), default=0) + 2
    for name, text in rows:
        lines = _wrapped(text, console.width - _INDENT - left) or [""]
        console.print(Text(" " * _INDENT).append(f"{name:<{left}}", "dim").append(lines[0]), soft_wrap=True)
        for line in lines[1:]:
            console.print(Text(" " * (_INDENT + left) + line), soft_wrap=True)


def notes(console: Console, texts: Iterable[str]) -> None:
    """Print sentences as a list."""
    lines(console, [f"- {text}" for text in texts])


def lines(console: Console, texts: Iterable[str]) -> None:
    """Print paragraphs; those that begin with a dash are items of a list."""
    for text in texts:
        mark = "- " if text.startswith("- ") else ""
        wrapped = _wrapped(text.removeprefix(mark), console.width - _INDENT - 2)
        for begin, line in zip([mark, *[" " * len(mark)] * len(wrapped)], wrapped, strict=False):
            console.print(Text(" " * _INDENT + begin + line), soft_wrap=True)


def paragraph(console: Console, text: str) -> None:
    """Print a blank line and a paragraph."""
    console.print()
    for line in _wrapped(text, console.width - _INDENT):
        console.print(Text(" " * _INDENT + line), soft_wrap=True)


def _wrapped(text: str, width: int) -> list[str]:
    """A text in lines; a path or URL is never cut."""
    return textwrap.wrap(text, max(width, 20), break_long_words=False, break_on_hyphens=False)


@contextmanager
def working(text: str) -> Generator[None]:
    """Show a spinner, a text and the time on stderr while something long runs; nothing if stderr is no terminal."""
    console = Console(stderr=True, markup=False, highlight=False)
    if not console.is_terminal:
        yield
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - seldom, and slow

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


def listed(names: Sequence[str], most: int) -> str:
    """``a, b``; ``a, b and others`` where there are more than so many."""
    return ", ".join(names[:most]) + (" and others" if len(names) > most else "")


def percent(share: float) -> str:
    """A share in percent; of a small one that it is not none."""
    return "<0.1%" if 0 < share < 0.001 else f"{share:.1%}"  # noqa: PLR2004 - as shown


def left(remaining: float, unreserved: float) -> str:
    """What is left of a budget: ``0.4 is left, 0.1 of it promised to no query``."""
    said, free = f"{remaining:.6f} is left", f"{unreserved:.6f}"
    return said if said.startswith(free) else f"{said}, {free} of it promised to no query"


def odds(epsilon: float) -> str:
    """An epsilon as what it makes of a guess, rounded up; ``a guess of 50 % becomes at most 73.2 %``."""
    if not math.isfinite(epsilon):
        return "nothing bounds what a guess becomes"
    thousandths = math.ceil(1000 / (1 + math.exp(-epsilon)) - 1e-9)
    return f"a guess of 50 % becomes at most {thousandths / 10:g} %"


_SURE, _UNSURE, _BAR = "█", "░", "█"
_EIGHTHS = " ▏▎▍▌▋▊▉"


def bar(value: float, largest: float, width: int) -> str:
    """A bar of ``width`` columns for the largest value, in eighths of a column."""
    eighths = round(8 * width * max(0.0, value) / largest) if largest > 0 else 0
    whole, rest = divmod(min(eighths, 8 * width), 8)
    return _BAR * whole + (_EIGHTHS[rest] if rest else "")


def band(value: float, half_width: float, largest: float, width: int) -> str:
    """A bar with its error: full where the value surely reaches, shaded over the 95 % band, a mark at the value."""
    if largest <= 0:
        return ""

    def column(at: float) -> int:
        return min(width, max(0, round(width * at / largest)))

    low, middle, high = column(value - half_width), column(value), column(value + half_width)
    cells = [_SURE] * low + [_UNSURE] * (high - low)
    if cells:
        cells[min(max(middle - 1, 0), len(cells) - 1)] = "┃"
    return "".join(cells)


def comparison(
    labels: Sequence[str], true: Sequence[float], private: Sequence[float], half_width: float, *, width: int
) -> list[Text]:
    """True and private counts under each other, one pair of lines a bin."""
    left = max(len(label) for label in labels)
    numbers = max(len(f"{value:,.0f}") for value in (*true, *private))
    room = max(10, width - left - numbers - 13)
    largest = max(*true, *(value + half_width for value in private), 1.0)
    lines: list[Text] = []
    for label, exact, noisy in zip(labels, true, private, strict=True):
        lines.append(
            Text(f"{label:<{left}}  true     ")
            .append(f"{exact:>{numbers},.0f}  ")
            .append(bar(exact, largest, room), "dim")
        )
        lines.append(
            Text(f"{'':<{left}}  private  ")
            .append(f"{noisy:>{numbers},.0f}  ", "bold")
            .append(band(noisy, half_width, largest, room), "cyan")
        )
    return lines


def banded(
    labels: Sequence[str],
    values: Sequence[float],
    half_width: float | Sequence[float],
    total: float | None,
    *,
    width: int,
    percent: bool = False,
) -> list[Text]:
    """Published numbers with the bands of their noise, one line each."""
    halves = [half_width] * len(values) if isinstance(half_width, (int, float)) else list(half_width)
    said = [_share(value) if percent else f"{value:,.0f}" for value in values]
    off = [f"± {half:.1%}" if percent else f"± {half:,.0f}" for half in halves]
    if total:
        off = [f"{one}  {_share(value / total):>6}" for one, value in zip(off, values, strict=True)]
    left, middle, right = (max(map(len, column)) for column in (labels, said, off))
    room = max(10, width - left - middle - right - 5)
    largest = max([value + half for value, half in zip(values, halves, strict=True)] + [1e-9])
    return [
        Text(f"{label:<{left}}  ")
        .append(f"{number:>{middle}} ", "bold")
        .append(f"{error:<{right}}  ")
        .append(band(value, half, largest, room), "cyan")
        for label, number, error, value, half in zip(labels, said, off, values, halves, strict=True)
    ]


def _share(value: float) -> str:
    """A share that may be noise: where it is rounded to none, it has no sign."""
    return f"{round(100 * value, 1) + 0.0:.1f}%"


def shares(labels: Sequence[str], values: Sequence[float], *, width: int) -> list[Text]:
    """Probabilities as bars, one line a state."""
    left = max(len(label) for label in labels)
    room = max(10, width - left - 12)
    largest = max(values)
    return [
        Text(f"{label:<{left}}  {value:>8.3%}  ").append(bar(value, largest, room), "cyan")
        for label, value in zip(labels, values, strict=True)
    ]
