"""Files of messages: Avro segments as the gateway writes them, decoded as a broker's messages are.

A segment's record is a message: ``topic``, ``payload``, and ``received``, which stands for the broker's stamp. So a
spool folder can be followed by a live job, and read again by a batch job, with the mapping of the settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ...schemas.mapping_checks import columns_problems
from ...schemas.readings import RejectReason
from ...schemas.settings import Readings, SettingsError
from ..files import open_bytes
from ..messages import Messages
from ..payloads import PayloadDecoder
from ..rejects import Rejects
from . import avro
from .rows import Columns, Decoded, RawRows, RowReader
from .steps import FileDecoder, FileTask

TOPIC, PAYLOAD, RECEIVED = "topic", "payload", "received"

#: Says that a message may have come before, so that ``received`` is not when it came first. Files may lack it.
DUP = "dup"

#: Messages that are decoded at a time; a payload may be large.
_BATCH = 1_000


def are_messages(format_: str, readings: Readings) -> bool:
    """Whether a source of files holds messages: it is Avro, and the mapping names what only messages have."""
    return format_ == "avro" and bool(columns_problems(readings))


@dataclass(frozen=True)
class MessageFileDecoder(FileDecoder):
    """Decodes segments; a plain value that travels to any machine."""

    def check(self) -> None:
        """See whether files of messages can serve the mapping.

        Raises:
            SettingsError: they cannot, or a library for it is missing.
        """
        if self.readings.payload == "avro":
            raise SettingsError(
                ["readings.payload is avro, whose schemas a registry has, and files name none; use avro-single"]
            )
        self.payloads.check()

    @property
    def payloads(self) -> PayloadDecoder:
        """What takes the messages apart."""
        return PayloadDecoder(self.readings, timezone=self.timezone, group=self.group)

    def rows(self, memory: str = "") -> RowReader:
        """What turns messages into readings.

        Args:
            memory: what it remembers at the beginning: that of another one.
        """
        return MessageRows(self.payloads.fresh(memory))

    def tasks(self, path: str) -> list[FileTask]:
        """Check a file's columns; it is read as a whole.

        Raises:
            SettingsError: it lacks a column.
            SourceFileError: it cannot be read.
        """
        with open_bytes(path) as stream:
            avro.check_columns(stream, path, _COLUMNS)
        return [FileTask(path)]

    def raw_rows(self, task: FileTask, parquet: Any = None) -> Iterator[RawRows]:  # noqa: ARG002 - the base's signature
        """The messages of a file.

        Raises:
            SourceFileError: the file is damaged.
        """
        with open_bytes(task.path) as stream:
            columns = _WITH_DUP if avro.has_column(stream, task.path, DUP) else _COLUMNS
            yield from avro.avro_rows(stream, task.path, columns, min(self.batch_rows, _BATCH))


class _MessageColumns(Columns):
    """The columns of a segment, which no setting names."""

    @property
    def settings(self) -> tuple[tuple[str, str], ...]:
        """(what needs it, column) of each, for messages."""
        return tuple(("source.avro, read as messages", name) for name in (TOPIC, RECEIVED, PAYLOAD))


class _ColumnsWithDup(_MessageColumns):
    """The columns of a segment that says which messages may have come before."""

    @property
    def settings(self) -> tuple[tuple[str, str], ...]:
        """(what needs it, column) of each, for messages."""
        return (*super().settings, ("source.avro, read as messages", DUP))


_COLUMNS = _MessageColumns(TOPIC, (RECEIVED,), PAYLOAD)
_WITH_DUP = _ColumnsWithDup(TOPIC, (RECEIVED,), PAYLOAD)


class MessageRows:
    """Messages of files to readings; it belongs to one worker.

    Args:
        decoder: what takes the messages apart.
    """

    columns: Columns = _COLUMNS

    def __init__(self, decoder: PayloadDecoder) -> None:
        self._decoder = decoder

    @property
    def memory(self) -> str:
        """What a position must carry of the messages before it."""
        return self._decoder.memory

    def decode(self, raw: RawRows) -> Decoded:
        """Decode some messages.

        Raises:
            SettingsError: a key or library is missing on this machine, or the columns are no messages'.
        """
        parts = self._decoder.decode(_messages(raw)) if len(raw.positions) else []
        rejects = [one for part in parts for one in part.rejects]
        if len(raw.malformed):
            rejects.append(Rejects(RejectReason.MALFORMED_ROW, raw.malformed))
        batches = [part.readings for part in parts if part.readings is not None]
        if not batches:
            return Decoded(None, 0, tuple(rejects))
        whole = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks().to_batches()[0]
        earliest = min(part.earliest_us for part in parts if part.readings is not None)
        return Decoded(whole, earliest, tuple(rejects))


def _messages(raw: RawRows) -> Messages:
    count = len(raw.positions)
    try:
        stamps = raw.columns[RECEIVED].cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
        if DUP in raw.columns:
            again = raw.columns[DUP].cast(pa.bool_()).fill_null(fill_value=False).to_numpy(zero_copy_only=False)
            stamps = np.where(again, -1, stamps)
        payloads = raw.columns[PAYLOAD].cast(pa.binary()).to_pylist()
        topics = raw.columns[TOPIC].cast(pa.utf8()).fill_null("").to_pylist()
    except pa.ArrowException as error:
        raise SettingsError(
            [
                f"source.avro: a column of the messages is of another type ({type(error).__name__}); {PAYLOAD} is "
                f"bytes, {TOPIC} text, {RECEIVED} a time stamp in microseconds, and {DUP} a truth value"
            ]
        ) from None
    return Messages(
        payloads=payloads,
        topics=topics,
        keys=[None] * count,
        headers=[()] * count,
        stamps_us=stamps.astype(np.int64),
        positions=raw.positions,
    )


__all__ = ["MessageFileDecoder", "MessageRows", "are_messages"]
