"""When Python's cyclic collector runs: not while a command is being put together, and not at the very end.

Imports and Beam's graph make some hundred thousand objects that stay. Looking through them again and again for cycles,
and once more when the process ends, took a quarter of a job of ten million readings.
"""

from __future__ import annotations

import atexit
import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def held_back() -> Generator[None]:
    """Hold the collector back for a command, until :func:`settled` or the command's end."""
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.enable()


def settled() -> None:
    """What there is now stays: leave it out of every collection from here on, and let the collector run."""
    gc.freeze()
    gc.enable()


def leave_at_exit() -> None:
    """Leave memory to the operating system when the process ends."""
    atexit.register(gc.freeze)
