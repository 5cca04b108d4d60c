"""What the words of the command line are read as: one click type for each kind of value, so no command parses text.

What a type needs is imported when a value is read: ``--help`` is quick.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


class Read(click.ParamType):  # pyright: ignore[reportMissingTypeArgument] - generic in some editions alone
    """A value that a function reads from text; its ValueError is what is wrong."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name, self.read = name, read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read a text; what is read already stays."""
        try:
            return self.read(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _duration(text: str) -> int:
    from ..schemas.slots import parse_duration

    return parse_duration(text)


def _share(text: str) -> float:
    match = re.fullmatch(r"\s*(\d{1,6}(?:\.\d{1,9})?|\.\d{1,9})\s*(%?)\s*", text)
    share = 0.0 if match is None else float(match[1]) / (100 if match[2] else 1)
    if match is None or not share > 0:
        raise ValueError(f"{text!r:.40} is no share above 0: write for example 5% or 0.05")
    if not match[2] and share > 1:
        raise ValueError(f"{match[1]} would be {100 * share:g}%: write {match[1]}%, or {100 * share:g}%")
    return share


def _count(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text) or not int(text):
        raise ValueError(f"{text!r:.40} is no whole number of 1 or more")
    return int(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r:.40} is no number") from None


def _several(one: Callable[[str], Any], example: str) -> Callable[[str], tuple[Any, ...]]:
    def read(text: str) -> tuple[Any, ...]:
        try:
            return tuple(one(part.strip()) for part in text.split(","))
        except ValueError as error:
            raise ValueError(f"{error}; several have commas between them, for example {example}") from None

    return read


def _ends(text: str) -> tuple[float, float]:
    try:
        low, high = (part.strip() for part in text.split(","))
        return (float(low) if low else -math.inf, float(high) if high else math.inf)
    except ValueError:
        raise ValueError("give the least and the largest value there can be, e.g. 0,10000, or 0, alone") from None


#: A file or folder.
PATH = click.Path(path_type=Path)

#: ``30min``, in microseconds; and several.
DURATION = Read("duration", _duration)
DURATIONS = Read("duration,...", _several(_duration, "1d,7d,28d"))

#: ``5%`` or ``0.05``.
SHARE = Read("share", _share)

COUNT = click.IntRange(min=1)
COUNTS = Read("number,...", _several(_count, "1,30,100"))
NUMBERS = Read("number,...", _several(_number, "0.5,1,2"))

#: Lower and upper end of values; one that is left empty is infinite.
ENDS = Read("low,high", _ends)
