"""How deep the tests go: on a push every fifth boundary of a fault, nightly all of them.

``QUILTSTREAM_TESTS=nightly`` asks for the second. The boundaries of a push begin at a place that the commit decides, so
that a few pushes go through all of them.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TIERS = ("push", "nightly")
TIER = os.environ.get("QUILTSTREAM_TESTS", "push")
if TIER not in TIERS:
    raise ValueError(f"QUILTSTREAM_TESTS: {TIER!r} is no tier of the tests; use one of {', '.join(TIERS)}")

#: Far more than any task of the store crosses.
_MOST = 1_000

#: Boundaries from one that is tried to the next.
STRIDE = 1 if TIER == "nightly" else 5


@cache
def _offset() -> int:
    """0 to STRIDE - 1, from the commit; 0 where the tests are in no checkout."""
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return int(done.stdout[:8] or "0", 16) % STRIDE


def boundaries() -> Iterator[int]:
    """Numbers of the boundaries to break at, from the first on, for a test that returns behind the last one.

    Raises:
        AssertionError: there is no last one: each try crosses more of them than the one before.
    """
    yield from range(1 + _offset(), _MOST, STRIDE)
    raise AssertionError(f"{_MOST} boundaries, and none is the last: does each try cross more than the one before?")
