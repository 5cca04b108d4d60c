"""What the counting job should write, worked out without Beam, and what it did write."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .beam_jobs.records import WINDOW_SECONDS, record

Row = tuple[int, str, int]


def lines(folder: Path, name: str) -> list[list[Any]]:
    """The whole lines that all processes appended so far."""
    found: list[list[Any]] = []
    for path in sorted(folder.glob(f"{name}-*.jsonl")):
        text = path.read_text(encoding="utf-8")
        found += [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    return found


def rows(folder: Path) -> Counter[Row]:
    """The rows written so far, and how often each was."""
    return Counter((start, key, total) for start, key, total in lines(folder, "rows"))


def starts(folder: Path) -> list[tuple[int, int]]:
    """Partition and record at which the source took up reading, for each time it did."""
    return [(partition, start) for partition, start in lines(folder, "reads")]


def truth(records: int, partitions: int = 2) -> set[Row]:
    """The sum of every window and key."""
    sums: Counter[tuple[int, str]] = Counter()
    for partition in range(partitions):
        for number in range(records):
            key, value, seconds = record(partition, number)
            sums[int(seconds // WINDOW_SECONDS) * WINDOW_SECONDS, key] += value
    return {(start, key, total) for (start, key), total in sums.items()}


def wait_until(what: str, condition: Callable[[], object], seconds: float, account: Callable[[], str] = str) -> None:
    """Wait until something holds; fail with what is missing and an account of how things are."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}; {account()}"
        time.sleep(0.3)
