"""How deep a search goes: on a push a fixed share of its tries, at night (``QUILTSTREAM_TESTS=night``) all.

Which tests run is fixed, too: those marked ``night`` are left out unless ``-m`` asks for them, as ``.ci/run night``
does. A test is marked where it takes long and others notice the same mistakes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

NIGHT = os.environ.get("QUILTSTREAM_TESTS") == "night"

#: Boundaries from one that is tried to the next.
STRIDE = 1 if NIGHT else 5

#: Far more than any task of the store crosses.
_MOST = 1_000


def examples(number: int) -> int:
    """Of the examples that a property asks for at night, those of a push."""
    return number if NIGHT else min(number, max(5, number // 5))


def boundaries(apart: int = 1) -> Iterator[int]:
    """Numbers of the boundaries to break at, for a test that returns after the last one.

    Args:
        apart: on a push, of those that other tests try, one in so many is tried, where a try takes long.

    Raises:
        AssertionError: there is no last one: each try crosses more of them than the one before.
    """
    yield from range(1, _MOST, STRIDE if NIGHT else STRIDE * apart)
    raise AssertionError(f"{_MOST} boundaries, and none is the last: does each try cross more than the one before?")


def some(things: Sequence[T], stride: int) -> Sequence[T]:
    """Of what one test goes through: on a push one in so many, at night all."""
    return things if NIGHT else things[::stride]
