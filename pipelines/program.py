"""The program ``quiltstream``: Ctrl-C while it imports ends it with a word, as it ends a command."""

from __future__ import annotations

import os
import signal
from typing import Any


def _stopped(number: int, _frame: Any) -> None:
    os.write(2, b"stopped before it began\n")
    os._exit(128 + number)


def program() -> None:
    """Run the command line."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:  # as a shell begins what runs in its background
        signal.signal(signal.SIGINT, _stopped)
    from .cli import program as begin  # noqa: PLC0415 - it takes a while

    signal.signal(signal.SIGINT, before)
    begin()
