"""Segments: Avro files of messages that grow by synced blocks, and are whole when they have their name.

A segment is written under a hidden name. Its last bytes may be torn when the process or the machine dies; up to the
last whole block they are sound, and everything that was synced is in whole blocks. :func:`recover` cuts off the rest
and gives the file its name.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import fastavro
from fastavro.write import Writer

from ...schemas.files import open_private, open_regular, sync_folder
from .message import Message

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


__all__ = ["SEGMENT_AVRO", "Segment", "left_over", "recover", "segment_name", "whole_blocks"]
