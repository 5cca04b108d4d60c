"""Dropped messages as lines of JSON: reason, digest of the topic, size and time; never a topic, never content.

The digest is keyed with a number drawn when the process starts. A topic names a device and can be guessed, so a plain
digest of it would name the device as well; with the key one still sees whether one device is behind a thousand rejects
or a thousand are.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import time
from logging.handlers import RotatingFileHandler
from pathlib import Path

from ..failures import CommandError
from .tally import Dropped

_BYTES = 16 << 20
_FILES = 4


class RejectFile:
    """A file that is begun anew at 16 MiB, with the four before it kept.

    Args:
        path: the file, or ``None`` to keep nothing.

    Raises:
        CommandError: it cannot be written.
    """

    def __init__(self, path: Path | None) -> None:
        self._key = secrets.token_bytes(16)
        self._handler: _File | None = None
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._handler = _File(path, maxBytes=_BYTES, backupCount=_FILES, encoding="utf-8")
        except OSError as error:
            raise CommandError(f"forward.rejects {path}: cannot be written ({type(error).__name__})") from None

    def add(self, reason: Dropped, topic: bytes, size: int) -> None:
        """Write a line; a disk that is full costs the line and nothing else."""
        if self._handler is None:
            return
        line = {"reason": reason.value, "topic": self.digest(topic), "bytes": size, "time": round(time.time(), 3)}
        record = logging.LogRecord("rejects", logging.INFO, "", 0, json.dumps(line), None, None)
        self._handler.handle(record)

    def digest(self, topic: bytes) -> str:
        """A topic's name within this run of the process."""
        return hashlib.blake2b(topic, key=self._key, digest_size=8).hexdigest()

    def close(self) -> None:
        """Close the file."""
        if self._handler is not None:
            self._handler.close()


class _File(RotatingFileHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - its base class calls it so
        """Pass over an error of the disk: the counts tell of the drop anyway."""


__all__ = ["RejectFile"]
