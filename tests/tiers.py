"""How deep the tests go: on a push a share of what they could try, nightly all of it.

``QUILTSTREAM_TESTS=nightly`` asks for the second. The share of a push begins at a place that the commit decides, so
that a few pushes go through all of it. What is left out by name stands in ``nightly.py``.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from .nightly import EXAMPLES, LOWER, NIGHTLY, SOME_CASES

TIERS = ("push", "nightly")
TIER = os.environ.get("QUILTSTREAM_TESTS", "push")
if TIER not in TIERS:
    raise ValueError(f"QUILTSTREAM_TESTS: {TIER!r} is no tier of the tests; use one of {', '.join(TIERS)}")

#: Far more than any task of the store crosses.
_MOST = 1_000

#: Boundaries from one that is tried to the next.
STRIDE = 1 if TIER == "nightly" else 5

#: Of the examples that a property asks for, one in so many is tried, but not fewer than the least.
EXAMPLES_STRIDE = 1 if TIER == "nightly" else 5
LEAST_EXAMPLES = 5


@cache
def _commit() -> int:
    """A number that the commit decides; 0 where the tests are in no checkout."""
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return int(done.stdout[:8] or "0", 16)


def boundaries() -> Iterator[int]:
    """Numbers of the boundaries to break at, from the first on, for a test that returns behind the last one.

    Raises:
        AssertionError: there is no last one: each try crosses more of them than the one before.
    """
    yield from range(1 + _commit() % STRIDE, _MOST, STRIDE)
    raise AssertionError(f"{_MOST} boundaries, and none is the last: does each try cross more than the one before?")


def taken(count: int, most: int, place: int) -> set[int]:
    """Which of ``count`` cases run: ``most`` of them, spread evenly, from a place that any number decides."""
    return set(range(count)) if count <= most else {(place + number * count // most) % count for number in range(most)}


def left_out(items: Sequence[pytest.Item], asked: Sequence[str] = ()) -> list[pytest.Item]:
    """The tests that a push leaves out, but those that are asked for by their whole names."""
    cases = Counter(_function(item) for item in items)
    passed: Counter[str] = Counter()
    out: list[pytest.Item] = []
    for item in items:
        name = _function(item)
        most = SOME_CASES.get(name, cases[name])
        if name in NIGHTLY or item.nodeid in NIGHTLY or passed[name] not in taken(cases[name], most, _commit()):
            out += [item] * (not item.nodeid.startswith(tuple(asked)))
        passed[name] += 1
    return out


def on_lowest_beam(item: pytest.Item) -> bool:
    """Whether a push runs a test on the lowest Beam, too."""
    return item.nodeid.partition("::")[0] in LOWER


def shorten(item: pytest.Item) -> None:
    """Let a property try the share of its examples that this tier asks for."""
    test: Any = getattr(item, "obj", None)
    test = getattr(test, "__func__", test)
    # hypothesis has no public way to change what a decorator in the test's file says
    asked: settings | None = getattr(test, "_hypothesis_internal_use_settings", None)
    if asked is not None and not hasattr(test, "_shortened"):
        share = max(LEAST_EXAMPLES, asked.max_examples // EXAMPLES_STRIDE)
        fewer = min(asked.max_examples, EXAMPLES.get(item.nodeid, share) if EXAMPLES_STRIDE > 1 else share)
        test._hypothesis_internal_use_settings = settings(asked, max_examples=fewer)
        test._shortened = True


def _function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]
