"""Files of messages: Avro as the gateway writes it, decoded as a broker's messages are.

A record is a message: ``topic``, ``payload``, and ``received``, which stands for the broker's stamp. So a spool folder
can be followed by a live job, and read again by a batch job, with the mapping of the settings. A file whose columns are
of other types holds no messages, and is refused as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from ...schemas.readings import RejectReason
from ...schemas.settings.base import SettingsError
from ..common.batches import Rejects, is_text_type, truths
from ..formats import avro
from ..formats.columns import Columns, RawRows, check_columns
from ..formats.paths import open_bytes
from ..formats.rows import Decoded, RowReader
from ..formats.times import TimeReader
from ..payloads import PayloadDecoder
from ..payloads.messages import Messages
from .files import FileDecoder, FileTask

TOPIC, PAYLOAD, RECEIVED = "topic", "payload", "received"

#: Say that a message may have come before, so that ``received`` is not when it came first. Files may lack them.
REPEATED = "dup", "retain"

#: Messages that are decoded at a time; a payload may be large.
_BATCH = 1_000

#: A plain number is of microseconds, as the gateway writes it.
_STAMPS = TimeReader(time_unit="us")


@dataclass(frozen=True)
class MessageFileDecoder(FileDecoder):
    """Decodes files of messages; a plain value that travels to any machine."""

    def check(self) -> None:
        """See whether files of messages can serve the mapping."""
        if self.readings.payload == "avro":
            raise SettingsError(
                "readings.payload is avro, whose schemas a registry has, and files name none; use avro-single"
            )
        self.payloads.check()

    @property
    def payloads(self) -> PayloadDecoder:
        """What parses the messages."""
        return PayloadDecoder(self.readings, timezone=self.timezone, group=self.group, words=self.words)

    def rows(self) -> RowReader:
        """What turns messages into readings."""
        return MessageRows(self.payloads)

    def tasks(self, path: str) -> list[FileTask]:
        """Check a file's columns; it is read as a whole."""
        with open_bytes(path) as stream:
            _columns_in(stream, path)
        return [FileTask(path)]

    def raw_rows(self, task: FileTask) -> Iterator[RawRows]:
        """The messages of a file."""
        with open_bytes(task.path) as stream:
            # a file that is followed may be another than the one that was checked
            columns = _columns_in(stream, task.path)
            stream.seek(0)
            yield from avro.avro_rows(stream, task.path, columns, min(self.batch_rows, _BATCH))


@dataclass(frozen=True, slots=True)
class _MessageColumns(Columns):
    """The columns of a message, which no setting names."""

    more: tuple[str, ...] = ()

    @property
    def settings(self) -> tuple[tuple[str, str], ...]:
        return tuple(("source.avro, read as messages", name) for name in (TOPIC, RECEIVED, PAYLOAD, *self.more))


_COLUMNS = _MessageColumns(TOPIC, (RECEIVED,), PAYLOAD)


def _columns_in(stream: BinaryIO, path: str) -> Columns:
    """The columns of messages that a file has.

    Raises:
        SettingsError: it lacks one, or one is of another type.
    """
    schema = avro.columns_of(stream, path)
    check_columns(pa.schema([(name, pa.utf8()) for name in schema.names]), path, _COLUMNS)
    received, payload = schema.field(RECEIVED).type, schema.field(PAYLOAD).type
    repeated = tuple(one for one in REPEATED if one in schema.names)
    if not (
        is_text_type(schema.field(TOPIC).type)
        and (is_text_type(payload) or pa.types.is_binary(payload))
        and (received == pa.int64() or pa.types.is_timestamp(received))
        and all(schema.field(one).type == pa.bool_() for one in repeated)
    ):
        raise SettingsError(
            f"source.avro: {path}: a column of the messages is of another type; {PAYLOAD} is bytes, {TOPIC} text, "
            f"{RECEIVED} a time stamp, {' and '.join(REPEATED)} truth values"
        )
    return replace(_COLUMNS, more=repeated)


class MessageRows:
    """Messages of files to readings; it belongs to one worker."""

    columns: Columns = _COLUMNS

    def __init__(self, decoder: PayloadDecoder) -> None:
        self._decoder = decoder

    def decode(self, raw: RawRows) -> Decoded:
        """Decode some messages."""
        parts = self._decoder.decode(_messages(raw)) if len(raw.positions) else []
        rejects = [one for part in parts for one in part.rejects]
        passed = sum(part.passed for part in parts)
        if len(raw.malformed):
            rejects.append(Rejects(RejectReason.MALFORMED_ROW, raw.malformed))
        batches = [part.readings for part in parts if part.readings is not None]
        if not batches:
            return Decoded(None, 0, tuple(rejects), passed=passed)
        whole = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks().to_batches()[0]
        earliest = min(part.earliest_us for part in parts if part.readings is not None)
        return Decoded(whole, earliest, tuple(rejects), passed=passed)


def _messages(raw: RawRows) -> Messages:
    count = len(raw.positions)
    stamps, problems = _STAMPS.read([raw.columns[RECEIVED]])
    without = [one.rows for one in problems]
    without += [truths(raw.columns[one]) for one in REPEATED if one in raw.columns]
    return Messages(
        payloads=raw.columns[PAYLOAD].cast(pa.binary()).to_pylist(),
        topics=[one or "" for one in raw.columns[TOPIC].to_pylist()],
        keys=[None] * count,
        headers=[()] * count,
        stamps_us=np.where(np.logical_or.reduce([np.zeros(count, dtype=np.bool_), *without]), -1, stamps),
        positions=raw.positions,
    )
