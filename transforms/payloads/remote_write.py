"""Prometheus remote write 1.0: a ``WriteRequest`` in protobuf, packed by snappy's block format.

Each time series becomes a document ``{"labels": {NAME: VALUE}, "samples": [{"value": V, "timestamp": MS}]}``, so that
paths mean the same in it as in JSON; the metric's name is the label ``__name__``. A sample with the staleness marker
says that a series has ended and is left out. Snappy comes with pyarrow and protobuf with Beam; the block says how many
bytes it holds before any of them is unpacked, and no more than a message may have ever are.

In the language of protobuf the part of the schema that is read is::

    message WriteRequest {
      repeated TimeSeries timeseries = 1;
      repeated string symbols = 4;  // of version 2, which is refused
    }
    message TimeSeries { repeated Label labels = 1; repeated Sample samples = 2; }
    message Label { string name = 1; string value = 2; }
    message Sample { double value = 1; int64 timestamp = 2; }
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from ...schemas.readings import RejectReason
from ...schemas.settings.base import SettingsError
from .containers import TooLargeError
from .parsing import Parsed, Parser

__all__ = ["remote_write_parser"]

_KINDS = descriptor_pb2.FieldDescriptorProto
_PACKAGE = "quiltstream.remotewrite"

#: Of each message the fields: name, number, kind or the name of a message, and whether there are many.
_FIELDS: dict[str, tuple[tuple[str, int, Any, bool], ...]] = {
    "Label": (("name", 1, _KINDS.TYPE_STRING, False), ("value", 2, _KINDS.TYPE_STRING, False)),
    "Sample": (("value", 1, _KINDS.TYPE_DOUBLE, False), ("timestamp", 2, _KINDS.TYPE_INT64, False)),
    "TimeSeries": (("labels", 1, "Label", True), ("samples", 2, "Sample", True)),
    "WriteRequest": (("timeseries", 1, "TimeSeries", True), ("symbols", 4, _KINDS.TYPE_BYTES, True)),
}

#: The bits of the value that says that a series has ended.
_STALE = struct.pack("<Q", 0x7FF0_0000_0000_0002)

#: Bytes of the length before a block at most.
_LENGTH = 5


@cache
def _request_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="quiltstream/remote_write.proto", package=_PACKAGE, syntax="proto3")
    for message, fields in _FIELDS.items():
        made = file.message_type.add(name=message)
        for name, number, kind, many in fields:
            label = _KINDS.LABEL_REPEATED if many else _KINDS.LABEL_OPTIONAL
            if isinstance(kind, str):
                made.field.add(
                    name=name, number=number, type=_KINDS.TYPE_MESSAGE, label=label, type_name=f".{_PACKAGE}.{kind}"
                )
            else:
                made.field.add(name=name, number=number, type=kind, label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.WriteRequest"))


def remote_write_parser(most: int) -> Parser:
    """The parser of write requests.

    Args:
        most: bytes that one may have, unpacked.

    Raises:
        SettingsError: this pyarrow has no snappy.
    """
    if not pa.Codec.is_available("snappy"):
        raise SettingsError(["readings.payload is prometheus-remote-write, and this pyarrow has no snappy"])
    codec, parse = pa.Codec("snappy"), _request_class().FromString

    def parse_all(payloads: Sequence[bytes], numbers: Sequence[int]) -> Parsed:
        parsed = Parsed()
        for number, payload in zip(numbers, payloads, strict=True):
            try:
                body = codec.decompress(payload, decompressed_size=_held(payload, most), asbytes=True)
                documents = _documents(parse(body))
            except TooLargeError:  # noqa: PERF203 - each message is read by itself
                parsed.bad[number] = RejectReason.TOO_LARGE
            except Exception:  # noqa: BLE001 - whatever a library raises is about this message alone
                parsed.bad[number] = RejectReason.MALFORMED_ROW
            else:
                parsed.values.extend(documents)
                parsed.message.extend([number] * len(documents))
        return parsed

    return parse_all


def _held(payload: bytes, most: int) -> int:
    """How many bytes a block holds, as it says itself; the library refuses one that holds others.

    Raises:
        TooLargeError: more than there may be.
        ValueError: it does not say.
    """
    found = 0
    for place, byte in enumerate(payload[:_LENGTH]):
        found |= (byte & 0x7F) << 7 * place
        if byte < 0x80:  # noqa: PLR2004 - its top bit says that more follows
            if found > most:
                raise TooLargeError("too many bytes")
            return found
    raise ValueError("no length")


def _documents(request: Any) -> list[dict[str, Any]]:
    if request.symbols:
        raise ValueError("remote write 2")
    # a series without samples takes two bytes, and its document hundreds
    return [_document(series) for series in request.timeseries if series.samples]


def _document(series: Any) -> dict[str, Any]:
    labels = {one.name: one.value for one in series.labels}
    if len(labels) != len(series.labels):
        raise ValueError("a label twice")
    samples = [
        {"value": one.value, "timestamp": one.timestamp}
        for one in series.samples
        # any number that is none may be the marker; which one it is say its bits
        if one.value == one.value or struct.pack("<d", one.value) != _STALE
    ]
    return {"labels": labels, "samples": samples}
