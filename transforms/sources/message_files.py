"""Files of messages: Avro segments as the gateway writes them, decoded as a broker's messages are.

A segment's record is a message: ``topic``, ``payload``, and ``received``, which stands for the broker's stamp. So a
spool folder can be followed by a live job, and read again by a batch job, with the mapping of the settings.

A column of such a file may have a type of several kinds, and then each record has its own: one whose topic or payload
is neither text nor bytes is a reject at its row, and one without a time of receipt has no stamp. A column that can hold
nothing of what it is for is a mistake of the file as a whole: it holds no messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from ...schemas.readings import RejectReason
from ...schemas.settings.base import SettingsError
from ..common.batches import Rejects
from ..formats import avro
from ..formats.avro import KEPT
from ..formats.columns import Columns, RawRows, check_columns
from ..formats.paths import open_bytes
from ..formats.rows import Decoded, RowReader
from ..payloads import PayloadDecoder
from ..payloads.messages import Messages
from .files import FileDecoder, FileTask

TOPIC, PAYLOAD, RECEIVED = "topic", "payload", "received"

#: Say that a message may have come before, so that ``received`` is not when it came first. Files may lack them.
REPEATED = DUP, RETAIN = "dup", "retain"

#: Messages that are decoded at a time; a payload may be large.
_BATCH = 1_000


@dataclass(frozen=True)
class MessageFileDecoder(FileDecoder):
    """Decodes segments; a plain value that travels to any machine."""

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
            types = avro.types_of(stream, path)
        check_columns(pa.schema([(name, pa.utf8()) for name in types]), path, _COLUMNS)
        _check_types(types, path)
        return [FileTask(path)]

    def raw_rows(self, task: FileTask) -> Iterator[RawRows]:
        """The messages of a file."""

        def columns(types: dict[str, Any]) -> Columns:
            # a file that is followed may be another than the one that was checked
            _check_types(types, task.path)
            return replace(_COLUMNS, more=tuple(one for one in REPEATED if one in types))

        with open_bytes(task.path) as stream:
            yield from avro.avro_rows(stream, task.path, columns, min(self.batch_rows, _BATCH), _Held)


@dataclass(frozen=True, slots=True)
class _MessageColumns(Columns):
    """The columns of a segment, which no setting names."""

    more: tuple[str, ...] = ()

    @property
    def settings(self) -> tuple[tuple[str, str], ...]:
        return tuple(("source.avro, read as messages", name) for name in (TOPIC, RECEIVED, PAYLOAD, *self.more))


_COLUMNS = _MessageColumns(TOPIC, (RECEIVED,), PAYLOAD)


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


#: What the columns are for, and the types of Avro that may hold it.
_KINDS = {
    TOPIC: frozenset({"string", "bytes", "enum", "fixed"}),
    PAYLOAD: frozenset({"bytes", "string", "enum", "fixed"}),
    RECEIVED: frozenset({"long", "int"}),
    **dict.fromkeys(REPEATED, frozenset({"boolean"})),
}

_UNITS_US = {"ms": (1_000, 1), "us": (1, 1), "ns": (1, 1_000)}
_LONG = 1 << 63


def _check_types(types: dict[str, Any], path: str) -> None:
    for name, kinds in _KINDS.items():
        given = types.get(name, "null")
        of = {one["type"] if isinstance(one, dict) else one for one in (given if isinstance(given, list) else [given])}
        if of != {"null"} and not of & kinds:
            raise SettingsError(
                f"source.avro: {path}: a column of the messages is of another type; {PAYLOAD} is bytes, {TOPIC} "
                f"text, {RECEIVED} a time stamp, {DUP} and {RETAIN} truth values"
            )


class _Held:
    def __init__(self, name: str, kind: Any) -> None:
        self._name = name
        stamps = [avro.type_of(one) for one in avro.kinds_of(kind) if one["type"] in _KINDS[RECEIVED]]
        # a plain number is of microseconds, as the gateway writes it; days and times of day are no stamps
        self._stamps = all(one == pa.int64() or pa.types.is_timestamp(one) for one in stamps)
        self._unit = _UNITS_US.get(getattr(stamps[0], "unit", "us") if stamps else "us", (1, 1))

    def __call__(self, values: list[Any]) -> tuple[pa.Array, list[int]]:
        """Values as an array, shape (n,), and the places of topics and payloads that are none."""
        if self._name == RECEIVED:
            return pa.array([self._stamp(one) for one in values], pa.int64()), []
        if self._name in REPEATED:
            # whatever else says something of it, it may have come before
            return pa.array([one is not None and one is not False for one in values], pa.bool_()), []
        if self._name == TOPIC:
            found, kind = [_topic(one) for one in values], pa.utf8()
        else:
            found, kind = [_payload(one) for one in values], pa.binary()
        bad = [place for place, one in enumerate(found) if one is _NOTHING]
        return pa.array([None if one is _NOTHING else one for one in found], kind), bad

    def _stamp(self, value: Any) -> int:
        if type(value) is not int or not self._stamps:
            return -1
        times, parts = self._unit
        found = value * times // parts
        return found if -_LONG <= found < _LONG else -1


#: Stands for what is no topic or payload.
_NOTHING = object()


def _topic(value: Any) -> Any:
    if value is None:
        return ""
    try:
        # bytes that were no UTF-8 stand in a text as surrogates
        return (value.encode("utf-8") if isinstance(value, str) else value).decode("utf-8")
    except (UnicodeError, AttributeError):
        return _NOTHING


def _payload(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", KEPT)
    return value if value is None or isinstance(value, bytes) else _NOTHING


def _messages(raw: RawRows) -> Messages:
    count = len(raw.positions)
    stamps = raw.columns[RECEIVED].to_numpy(zero_copy_only=False)
    for name in raw.columns.keys() & set(REPEATED):
        stamps = np.where(raw.columns[name].to_numpy(zero_copy_only=False), -1, stamps)
    return Messages(
        payloads=raw.columns[PAYLOAD].to_pylist(),
        topics=raw.columns[TOPIC].to_pylist(),
        keys=[None] * count,
        headers=[()] * count,
        stamps_us=stamps.astype(np.int64),
        positions=raw.positions,
    )
