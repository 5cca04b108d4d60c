"""Avro payloads: the framing of schema registries and single objects, and records by the library within bounds.

A schema whose bodies could keep a reader busy for ever is none: no type within itself, no array of things without
bytes. A time stamp is an instant.

>>> schema = {"type": "record", "name": "R", "fields": [{"name": "v", "type": "double"}]}
>>> parser = AvroParser({7: schema}.__getitem__)
>>> parser([bytes([0, 0, 0, 0, 7, *bytes(8)]), bytes([0, 0, 0, 0, 7, 1])], [0, 1])
Parsed(values=[{'v': 0.0}], message=[0], bad={1: <RejectReason.MALFORMED_ROW: 'malformed-row'>})
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import fastavro
from fastavro.read import LOGICAL_READERS
from fastavro.schema import fingerprint, to_parsing_canonical_form

from ...schemas.readings import RejectReason
from ...schemas.settings.base import SettingsError
from ..common.batches import shortest
from ..formats.avro import is_bounded
from .parsing import Parsed

#: An id to the writer's schema; ``LookupError`` where there is none, and any other error where that is unknown.
SchemaLookup = Callable[[int], Any]

_MAGIC = 0
_HEAD = 5
_SINGLE_MAGIC = b"\xc3\x01"
_SINGLE_HEAD = 10


class AvroParser:
    """Parses Avro; it belongs to one worker.

    Args:
        lookup: gives the writer's schema of an id, or of a fingerprint.
        single: whether payloads are single objects.
    """

    def __init__(self, lookup: SchemaLookup, *, single: bool = False) -> None:
        self._lookup, self._single = lookup, single
        self._known: dict[int, Any] = {}

    def __call__(self, payloads: Sequence[bytes], numbers: Sequence[int]) -> Parsed:
        """Parse payloads; whatever the library says of a bad one stays here, because it may quote it."""
        parsed = Parsed()
        name_of, head = (_single_id, _SINGLE_HEAD) if self._single else (_wire_id, _HEAD)
        for number, payload in zip(numbers, payloads, strict=True):
            name = name_of(payload)
            schema = None if name is None else self._schema(name)
            if schema is None:
                parsed.bad[number] = RejectReason.MALFORMED_ROW if name is None else RejectReason.UNKNOWN_SCHEMA
                continue
            stream = io.BytesIO(payload)
            stream.seek(head)
            try:
                value = fastavro.schemaless_reader(stream, schema, None)
            except Exception:  # noqa: BLE001 - whatever a parser raises is about this message alone
                parsed.bad[number] = RejectReason.MALFORMED_ROW
                continue
            if stream.tell() != len(payload):  # bytes behind the record
                parsed.bad[number] = RejectReason.MALFORMED_ROW
                continue
            parsed.values.append(value)
            parsed.message.append(number)
        return parsed

    def _schema(self, name: int) -> Any:
        if name not in self._known:
            try:
                given = self._lookup(name)
            except LookupError:
                # not remembered: it may be registered later
                return None
            self._known[name] = bounded(given)
        return self._known[name]


def bounded(schema: Any) -> Any:
    """A schema to read by; ``None`` if it is none, or one whose bodies' sizes do not bound the work of reading them."""
    try:
        return fastavro.parse_schema(_decimal_floats(schema)) if is_bounded(schema) else None
    except Exception:  # noqa: BLE001 - whatever fastavro says of a schema, it cannot be read
        return None


#: Decimals of more digits than their precision are rounded, as long as they have no more than this: the time of reading
#: one grows with the square of its digits.
_DIGITS = 4_096
_BITS_PER_DIGIT = 4


def _short_decimal(value: bytes, writer: Any, reader: Any = None) -> Any:
    if 8 * len(value) > _BITS_PER_DIGIT * _DIGITS:
        raise ValueError(_TOO_LONG)
    return LOGICAL_READERS["bytes-decimal"](value, writer, reader)


_TOO_LONG = "a number of so many digits takes too long to read"
_SHORT_DECIMAL = "quiltstream-short-decimal"
LOGICAL_READERS.update({f"{kind}-{_SHORT_DECIMAL}": _short_decimal for kind in ("bytes", "fixed")})

#: A logical type of our own, by which the library makes of a float of 32 bits the decimal that it stands for.
_DECIMAL_FLOAT = {"type": "float", "logicalType": "quiltstream-decimal"}
LOGICAL_READERS["float-quiltstream-decimal"] = lambda value, _writer, _reader: shortest(value)


def _decimal_floats(schema: Any) -> Any:
    """A schema by which the library reads floats of 32 bits as :func:`.batches.as_floats` does, without its marks.

    Decimals of very many digits are an error, also in fields that no mapping names.
    """
    if schema == "float":
        return _DECIMAL_FLOAT
    if isinstance(schema, list):
        return [_decimal_floats(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: value for name, value in cast("dict[str, Any]", schema).items() if not name.startswith("__")}
    if found["type"] == "float":
        return found | _DECIMAL_FLOAT
    if found.get("logicalType") == "decimal":
        found["logicalType"] = _SHORT_DECIMAL
    within = {name: _decimal_floats(found[name]) for name in ("items", "values") if name in found}
    if "fields" in found:
        within["fields"] = [one | {"type": _decimal_floats(one["type"])} for one in found["fields"]]
    return found | within


def _wire_id(payload: bytes) -> int | None:
    if len(payload) < _HEAD or payload[0] != _MAGIC:
        return None
    (number,) = struct.unpack_from(">i", payload, 1)
    # registries' numbers are signed, and to a negative one they answer as a server does that is no registry
    return number if number >= 0 else None


def _single_id(payload: bytes) -> int | None:
    if len(payload) < _SINGLE_HEAD or payload[:2] != _SINGLE_MAGIC:
        return None
    return struct.unpack_from("<Q", payload, 2)[0]


def schema_fingerprint(schema: Any) -> int:
    """CRC-64-AVRO of a schema's canonical form, as single objects carry it."""
    digest = fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO")
    return int.from_bytes(bytes.fromhex(digest), "little")


def known_schemas(schemas: Iterable[Mapping[str, Any]]) -> SchemaLookup:
    """The lookup of schemas that the settings hold."""
    given = [dict(schema) for schema in schemas]
    return {_checked(number, schema): schema for number, schema in enumerate(given)}.__getitem__


def _checked(number: int, schema: dict[str, Any]) -> int:
    try:
        fastavro.parse_schema(schema)
        return schema_fingerprint(schema)
    except Exception as error:  # noqa: BLE001 - whatever fastavro says of a schema, it is none
        raise SettingsError(
            f"readings.avro_schemas[{number}] is no Avro schema ({type(error).__name__}); give the writer's schema"
        ) from None
