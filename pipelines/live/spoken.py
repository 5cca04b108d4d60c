"""What a live job says while it runs: a line of text for each piece of news, or a line of JSON."""

from __future__ import annotations

import json
import time
from typing import Any

from rich.console import Console

from ...schemas.slots import format_instant
from .vigil import Say


def speaker(console: Console, *, as_json: bool) -> Say:
    """What tells news: a line each, or a line of JSON each."""

    def line(kind: str, text: str) -> None:
        console.print(f"{now()}  {kind:8}{text}", highlight=False, soft_wrap=True)

    def object_(kind: str, text: str) -> None:
        print_json(console, {"at": now(), "kind": kind, "text": text})

    return object_ if as_json else line


def print_json(console: Console, value: dict[str, Any]) -> None:
    """A value as a line of JSON."""
    console.print(json.dumps(value, ensure_ascii=False), highlight=False, soft_wrap=True, markup=False)


def now() -> str:
    """The second that it is."""
    return format_instant(time.time_ns() // 1_000_000_000 * 1_000_000)


__all__ = ["now", "print_json", "speaker"]
