"""How deep the tests go: on a push a share of what they could try, nightly all of it.

``QUILTSTREAM_TESTS=nightly`` asks for the second, ``QUILTSTREAM_TESTS=every`` for each test at the depth of a push: so
the lowest Beam runs nightly, because how deep a search goes is no matter of versions. The share of a push begins at a
place that the commit decides, so that many pushes go through all of it by chance. Light tests run on every push. Of the
heavy ones, which ``heavy.txt`` lists with their seconds, a push runs one in ``HEAVY_STRIDE``, and the shortest where
else a file, or a claim of docs/assurance.md, would have none. What is left out by name stands in ``nightly.py``.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Hashable, Iterator, Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import pytest
from hypothesis import settings

from .nightly import CONCERNED, EXAMPLES, LOWER, NIGHTLY, SAME_AT_BOTH_ENDS

T = TypeVar("T")

ROOT = Path(__file__).resolve().parent.parent

TIERS = ("push", "every", "nightly")
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

#: Heavy tests from one that a push runs to the next.
HEAVY_STRIDE = 40

#: What one case takes, in seconds, of the tests whose cases take long together, and what cases take that take longer
#: than the others of their test; written by ``heavy.py``.
HEAVY = {
    name: float(seconds)
    for seconds, name in (
        line.split(maxsplit=1)
        for line in Path(__file__).with_name("heavy.txt").read_text(encoding="utf-8").splitlines()
    )
}

#: What a fixture takes, in seconds, that tests of a file share: a report charges the first of them alone with it.
SHARED = {
    ("tests/pipelines/commands/test_demo.py", "first"): 5.0,
    ("tests/pipelines/commands/test_fit.py", "leveled"): 1.5,
}


@cache
def _commit() -> int:
    """A number that the commit decides; 0 where the tests are in no checkout."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return int(done.stdout[:8] or "0", 16)


def boundaries(apart: int = 1) -> Iterator[int]:
    """Numbers of the boundaries to break at, from the first on, for a test that returns behind the last one.

    Args:
        apart: on a push, of those that other tests try, one in so many is tried, where a try takes long.

    Raises:
        AssertionError: there is no last one: each try crosses more of them than the one before.
    """
    stride = STRIDE if TIER == "nightly" else STRIDE * apart
    yield from range(1 + _commit() % stride, _MOST, stride)
    raise AssertionError(f"{_MOST} boundaries, and none is the last: does each try cross more than the one before?")


def some(things: Sequence[T], stride: int) -> Sequence[T]:
    """Of what one test goes through: on a push one in so many, nightly all."""
    return things if TIER == "nightly" else things[_commit() % min(stride, len(things)) :: stride]


def left_out(items: Sequence[pytest.Item], asked: Sequence[str] = ()) -> set[pytest.Item]:
    """The tests that a push leaves out.

    Args:
        items: what was collected.
        asked: words of the command line. What is named by its whole name runs in any case, and of a file that is named
            all that does not run nightly alone.
    """
    named = tuple(word for word in asked if "::" in word)
    left = [item for item in items if not item.nodeid.startswith(named)]
    able = [item for item in left if not {item.nodeid, _function(item)} & NIGHTLY.keys()]
    heavy = [item for item in able if _seconds(item) and _file(item) not in asked]
    # sorted, so that each push gets of the long ones and of the short ones
    heavy.sort(key=_seconds)
    kept = set(able).difference(heavy).union(heavy[_commit() % HEAVY_STRIDE :: HEAVY_STRIDE])
    promises: dict[Hashable, list[pytest.Item]] = {}
    for item in able:
        for promise in (_file(item), *(claim.args for claim in item.iter_markers("assures"))):
            promises.setdefault(promise, []).append(item)
    added: list[pytest.Item] = []
    for tests in promises.values():
        if kept.isdisjoint(tests):
            added.append(min(tests, key=_seconds))
            kept.add(added[-1])
    # one that was added for a later promise may do for an earlier one, too
    for item in sorted(added, key=_seconds, reverse=True):
        if all(not kept.isdisjoint(set(tests) - {item}) for tests in promises.values() if item in tests):
            kept.remove(item)
    return set(left) - kept


def on_lowest_beam(item: pytest.Item) -> bool:
    """Whether a test runs on the lowest Beam, too."""
    file = _file(item)
    if TIER == "push":
        return file in LOWER
    return not file.startswith(SAME_AT_BOTH_ENDS) and "killed_at_any_boundary" not in item.nodeid and _concerned(file)


@cache
def _concerned(file: str) -> bool:
    words = CONCERNED.get(str(PurePosixPath(file).parent))
    return words is None or re.search(words, (ROOT / file).read_text(encoding="utf-8")) is not None


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


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _seconds(item: pytest.Item) -> float:
    """What a heavy test takes; 0 for a light one, and for one end to end: which of those run, order.py says."""
    if item.nodeid.startswith("tests/e2e/"):
        return 0
    # a test keeps its name where its file gets another
    function = _function(item)
    name = function.rpartition("::")[2]
    shared = (SHARED.get((_file(item), fixture), 0) for fixture in getattr(item, "fixturenames", ()))
    return max(HEAVY.get(name + item.nodeid[len(function) :], HEAVY.get(name, 0)), *shared, 0)
