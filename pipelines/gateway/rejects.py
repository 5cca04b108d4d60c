"""Dropped messages as lines of JSON: reason, digest of the topic, size and time; never a topic, never content.

The digest is keyed with a number drawn when the process starts. A topic names a device and can be guessed, so a plain
digest of it would name the device as well; with the key one still sees whether one device is behind a thousand rejects
or a thousand are.

With an operator's public key a line has a letter as well, which holds the message: see :mod:`...schemas.dead_letters`.
In a minute so many are written and no more, because a device that floods would push all others out of the files, and
because sealing costs time that the messages behind it wait for.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from ...schemas.dead_letters import Content, Letters, letter_of
from ...schemas.files import open_private, reason
from ..errors import CommandError
from .metrics import Dropped

_BYTES = 16 << 20
_FILES = 4

#: Letters that are written in a minute; the rejects above it are told without.
MOST_LETTERS = 100
_MINUTE_S = 60.0


class RejectFile:
    """A file that is begun anew at 16 MiB, with the four before it kept.

    Args:
        path: the file, or ``None`` to keep nothing.
        letters: to whom the content is encrypted; ``None``: it is kept nowhere.
        clock: seconds of a clock that only goes forward; the tests' own.

    Raises:
        CommandError: it cannot be written.
    """

    def __init__(
        self, path: Path | None, letters: Letters | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._key = secrets.token_bytes(16)
        self._letters = letters
        self._clock = clock
        self._source = f"mqtt/{secrets.token_hex(8)}"
        self._number = 0
        self._since, self._written = float("-inf"), 0
        self._guard = threading.Lock()
        self._handler: _File | None = None
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._handler = _File(path, maxBytes=_BYTES, backupCount=_FILES, encoding="utf-8")
        except OSError as error:
            raise CommandError(f"forward.rejects {path}: cannot be written ({reason(error)})") from None

    @property
    def wants_content(self) -> bool:
        """Whether what is rejected has to be kept until it is."""
        return self._handler is not None and self._letters is not None

    def add(self, reason: Dropped, topic: bytes, size: int, content: Content | None = None) -> None:
        """Write a line; a disk that is full costs the line and nothing else.

        Args:
            reason: why.
            topic: under its pseudonym, where the gateway makes one.
            size: bytes of the message.
            content: the message, for its letter; without a public key nothing is done with it.
        """
        if self._handler is None:
            return
        line: dict[str, Any] = {"reason": reason.value, "topic": self.digest(topic), "bytes": size}
        line["time"] = round(time.time(), 3)
        if self._letters is not None:
            line |= self._sealed(reason, size, content, self._letters)
        record = logging.LogRecord("rejects", logging.INFO, "", 0, json.dumps(line), None, None)
        self._handler.handle(record)

    def _sealed(self, reason: Dropped, size: int, content: Content | None, letters: Letters) -> dict[str, Any]:
        """What names the reject within this run of the process, and its letter if there is one."""
        # both ways of a gateway reject
        with self._guard:
            self._number += 1
            number = self._number
            now = self._clock()
            if now - self._since >= _MINUTE_S:
                self._since, self._written = now, 0
            room = content is not None and self._written < MOST_LETTERS
            self._written += room
        named = {"source": self._source, "position": number}
        if content is None or not room:
            return named | {"letter": None}
        return named | {"letter": letter_of({"reason": reason.value, **named, "size": size}, content, letters)}

    def digest(self, topic: bytes) -> str:
        """A topic's name within this run of the process."""
        return hashlib.blake2b(topic, key=self._key, digest_size=8).hexdigest()

    def close(self) -> None:
        """Close the file."""
        if self._handler is not None:
            self._handler.close()


class _File(RotatingFileHandler):
    def _open(self) -> TextIOWrapper:
        handle = open_private(Path(self.baseFilename), os.O_WRONLY | os.O_APPEND)
        return TextIOWrapper(os.fdopen(handle, "ab"), encoding=self.encoding)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - its base class calls it so
        """Pass over an error of the disk: the counts tell of the drop anyway."""


__all__ = ["MOST_LETTERS", "RejectFile"]
