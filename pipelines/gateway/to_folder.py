"""Delivery to a folder: messages in Avro segments, synced before they count as delivered.

Segments: Avro files of messages that grow by synced blocks, and are whole when they have their name.

A segment is written under a hidden name. Its last bytes may be torn when the process or the machine dies; up to the
last whole block they are sound, and everything that was synced is in whole blocks. :func:`recover` cuts off the rest
and gives the file its name.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, BinaryIO

import fastavro
from fastavro.write import Writer

from ...schemas.files import open_private, open_regular, reason, sync_folder
from .contracts import DeliveryError, DeliveryTarget, Message

__all__ = ["SEGMENT_AVRO", "FolderDelivery", "Segment", "left_over", "recover", "segment_name", "whole_blocks"]


#: One message a record; plain columns, so that any reader of Avro takes them.
SEGMENT_AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Message",
    "namespace": "quiltstream.v1",
    "fields": [
        {"name": "topic", "type": "string"},
        {"name": "payload", "type": "bytes"},
        {"name": "received", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "dup", "type": "boolean"},
        {"name": "retain", "type": "boolean"},
        {"name": "content_type", "type": "string"},
    ],
}

_PARSED = fastavro.parse_schema(SEGMENT_AVRO)

_OPEN = re.compile(r"\.(?P<name>[\w.-]+\.avro)\.open")


def segment_name(began_us: int) -> str:
    """A name for a new segment; names sort by the time at which segments were begun.

    >>> segment_name(1_700_000_000_000_000)[:24]
    '20231114T221320.000000Z-'
    """
    when = datetime.fromtimestamp(began_us // 1_000_000, timezone.utc).strftime("%Y%m%dT%H%M%S")
    return f"{when}.{began_us % 1_000_000:06}Z-{uuid.uuid4().hex[:8]}.avro"


class Segment:
    """A segment that is being written.

    Args:
        folder: where.
        began_us: the time, for its name.

    Raises:
        OSError: it cannot be begun.
    """

    def __init__(self, folder: Path, began_us: int) -> None:
        name = segment_name(began_us)
        self.path = folder / f".{name}.open"
        # payloads are raw: for the owner of the process
        self._file = os.fdopen(open_private(self.path, os.O_WRONLY | os.O_EXCL), "wb")
        try:
            self._writer = Writer(self._file, _PARSED, codec="null")
            self._file.flush()
            self.size = self._sync()
            # the name itself must outlive a power cut, or the synced blocks would be nowhere
            sync_folder(folder)
        except BaseException:
            self.abandon()
            # a full disk would be tried again and again, each time under another name
            with suppress(OSError):
                self.path.unlink()
            raise

    def add(self, messages: Iterable[Message]) -> None:
        """Write messages and wait until they are on the disk.

        Raises:
            OSError: they may be there or not, and the segment is not to be added to; seal it with :func:`recover`.
        """
        write = self._writer.write
        for topic, payload, received_us, dup, retain, content_type in messages:
            write(
                {
                    "topic": topic,
                    "payload": payload,
                    "received": received_us,
                    "dup": dup,
                    "retain": retain,
                    "content_type": content_type,
                }
            )
        self._writer.flush()
        self.size = self._sync()

    def seal(self) -> Path:
        """Close the file and give it its name.

        Raises:
            OSError: it has kept its hidden name, and :func:`recover` can seal it later.
        """
        self._file.close()
        return _named(self.path)

    def abandon(self) -> None:
        """Let go of the file as it is; what a failed disk does not take is no reason to stop."""
        with suppress(OSError):
            self._file.close()

    def _sync(self) -> int:
        os.fsync(self._file.fileno())
        return self._file.tell()


def left_over(folder: Path) -> list[Path]:
    """Segments of a folder that were never sealed, in the order of their names."""
    return sorted(path for path in folder.iterdir() if _OPEN.fullmatch(path.name))


def recover(path: Path, upto: int | None = None) -> Path | None:
    """Seal a segment that was left over: cut off what is torn, and give it its name.

    Args:
        path: its hidden name.
        upto: bytes that are known to be on the disk, if a write failed behind them.

    Returns:
        The file, or ``None`` if it held no message and was removed.

    Raises:
        OSError: the file cannot be read, cut or renamed.
    """
    messages, sound = whole_blocks(path, upto)
    if not messages:
        path.unlink()
        sync_folder(path.parent)
        return None
    with path.open("rb+") as file:
        file.truncate(sound)
        os.fsync(file.fileno())
    return _named(path)


def whole_blocks(path: Path, upto: int | None = None) -> tuple[int, int]:
    """How many messages are in whole blocks at the start of a segment, and the bytes up to there."""
    messages, sound = 0, 0
    size = path.stat().st_size if upto is None else upto
    with open_regular(path) as file:
        try:
            blocks = fastavro.block_reader(file)
            for block in blocks:
                end = file.tell()
                if end > size:
                    break
                messages, sound = messages + block.num_records, end
        except (ValueError, EOFError, StopIteration, OverflowError, MemoryError, IndexError, KeyError, TypeError):
            # a torn tail shows as any of these
            pass
    return messages, sound


def _named(path: Path) -> Path:
    match = _OPEN.fullmatch(path.name)
    if match is None:
        raise ValueError(f"{path} is not the hidden name of a segment")
    named = path.with_name(match["name"])
    path.rename(named)
    sync_folder(path.parent)
    return named


_LOG = logging.getLogger("quiltstream.gateway")

#: Seconds that a first message waits for others, so that one sync serves many.
_GATHER_S = 0.003

#: Seconds to the next try after the disk failed.
_RETRY_S = 1.0


class FolderDelivery(DeliveryTarget):
    """Writes segments, in a thread of its own: the disk may take its time.

    Args:
        folder: where; it is made if needed. Two gateways cannot share one.
        size: bytes at which a segment is sealed.
        age: seconds after which it is.
        begin: how a segment is begun; the tests' own.

    Raises:
        DeliveryError: the folder cannot be used.
    """

    def __init__(self, folder: Path, *, size: int, age: float, begin: Callable[[Path, int], Segment] = Segment) -> None:
        self._folder = folder
        self._size = size
        self._age = age
        self._begin = begin
        self._lock = _locked(folder)
        self._segment: Segment | None = None
        self._began = 0.0
        self._torn: list[tuple[Path, int | None]] = []
        self._waiting: list[tuple[int, Message]] = []
        self._had: list[int] = []
        self._guard = threading.Condition()
        self._stop = False
        self._give_up = float("inf")
        self._ear, self._mouth = socket.socketpair()
        self._ear.settimeout(0)
        self._mouth.settimeout(0)
        self.sealed = 0
        self.failures = 0
        try:
            for path in left_over(folder):
                self._recover(path, None)
        except OSError as error:
            self._let_go()
            raise DeliveryError(
                f"forward.to.folder {folder}: what a former run left cannot be sealed ({reason(error)})"
            ) from None
        self._thread = threading.Thread(target=self._work, name="quiltstream-segments", daemon=True)
        self._thread.start()

    def offer(self, number: int, message: Message) -> bool:
        """Take a message."""
        with self._guard:
            self._waiting.append((number, message))
            if len(self._waiting) == 1:
                self._guard.notify()
        return True

    def had(self) -> list[int]:
        """The messages that are on the disk since the last call."""
        # nothing to read, or closed
        with suppress(OSError):
            self._ear.recv(4096)
        with self._guard:
            had, self._had = self._had, []
        return had

    def refused(self) -> list[int]:
        """None: a folder takes everything."""
        return []

    def fileno(self) -> int | None:
        """Something that can be read from when messages are on the disk."""
        return self._ear.fileno() if self._ear.fileno() >= 0 else None

    def close(self, seconds: float) -> None:
        """Write what waits, seal the segment and end the thread."""
        with self._guard:
            self._stop = True
            self._give_up = time.monotonic() + seconds
            self._guard.notify()
        self._thread.join(seconds + 1)
        if not self._thread.is_alive():
            self._let_go()

    def _let_go(self) -> None:
        self._lock.close()
        self._ear.close()
        self._mouth.close()

    def _work(self) -> None:
        batch: list[tuple[int, Message]] = []
        while True:
            with self._guard:
                if not batch and not self._waiting and not self._stop:
                    self._guard.wait(self._patience())
                idle = not batch and not self._waiting
                stop = self._stop
            if not idle and not stop and not batch:
                time.sleep(_GATHER_S)
            if not batch:
                with self._guard:
                    batch, self._waiting = self._waiting, []
            if batch and self._written([message for _, message in batch]):
                with self._guard:
                    self._had += [number for number, _ in batch]
                batch = []
                with suppress(OSError):
                    self._mouth.send(b"!")
            if not batch:
                self._roll(end=stop and not self._waiting)
            if stop and ((not batch and not self._waiting) or time.monotonic() > self._give_up):
                return
            if batch:
                with self._guard:
                    self._guard.wait(min(_RETRY_S, max(0.0, self._give_up - time.monotonic())))

    def _patience(self) -> float | None:
        """How long to wait for messages: until the segment is old enough, or something can be tried again."""
        if self._torn:
            return _RETRY_S
        return None if self._segment is None else max(0.0, self._began + self._age - time.monotonic())

    def _written(self, messages: list[Message]) -> bool:
        """Whether messages are on the disk; if not, the segment they were for is given up."""
        try:
            self._mend()
            if self._segment is None:
                self._segment = self._begin(self._folder, time.time_ns() // 1_000)
                self._began = time.monotonic()
            sound = self._segment.size
        except OSError as error:
            self._failed(error)
            return False
        try:
            self._segment.add(messages)
        except OSError as error:
            self._failed(error)
            # what a failed sync leaves in a file is anyone's guess: it is cut where it was sound, and another is begun
            self._segment.abandon()
            self._torn.append((self._segment.path, sound))
            self._segment = None
            return False
        if self.failures:
            _LOG.warning("folder %s: the disk takes messages again", self._folder)
            self.failures = 0
        return True

    def _roll(self, *, end: bool) -> None:
        """Seal the segment if it is big or old enough, or at the end."""
        segment = self._segment
        if segment is None:
            with suppress(OSError):
                self._mend()
            return
        if end or segment.size >= self._size or time.monotonic() >= self._began + self._age:
            self._segment = None
            try:
                segment.seal()
                self.sealed += 1
            except OSError as error:
                self._failed(error)
                self._torn.append((segment.path, None))

    def _mend(self) -> None:
        """Seal the segments that were given up."""
        while self._torn:
            path, sound = self._torn[-1]
            if path.exists():
                self._recover(path, sound)
            self._torn.pop()

    def _recover(self, path: Path, sound: int | None) -> None:
        self.sealed += recover(path, sound) is not None

    def _failed(self, error: OSError) -> None:
        self.failures += 1
        if self.failures == 1:
            _LOG.error(
                "folder %s: the disk does not take messages (%s); they wait here and at the broker, and nothing is "
                "acknowledged until it does",
                self._folder,
                reason(error),
            )


def _locked(folder: Path) -> BinaryIO:
    """Hold the folder for this process alone, until the file is closed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.fdopen(open_private(folder / ".gateway.lock", os.O_WRONLY | os.O_APPEND), "ab")
    except OSError as error:
        raise DeliveryError(
            f"forward.to.folder {folder}: cannot be written ({reason(error)}); give another, or its rights"
        ) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise DeliveryError(
            f"forward.to.folder {folder}: another gateway writes to it; each has a folder of its own"
        ) from None
    return file
