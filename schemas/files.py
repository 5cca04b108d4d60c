"""Files that appear whole or not at all: written under another name beside their place, flushed and renamed."""

from __future__ import annotations

import os
import uuid
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path


def part_name(name: str) -> str:
    """A name for a file while it is being written; no pattern such as ``*.csv`` matches it."""
    return f".{name}.{uuid.uuid4().hex}.part"


@contextmanager
def whole_file(path: Path) -> Generator[Path]:
    """A name to write to, which becomes the file when the block ends without an error.

    A file that was there is replaced, and a missing folder made. Nobody ever reads half of one, whoever else writes it
    at the same time. The file has the rights that the block gave it.

    Raises:
        OSError: the file or its folder cannot be written; a file that was there is as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(part_name(path.name))
    try:
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        # it is gone where all went well
        with suppress(OSError):
            part.unlink()
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
