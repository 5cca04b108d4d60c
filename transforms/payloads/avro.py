"""Avro payloads: framing of schema registries and single objects, and which schemas are safe to read.

The bodies of one schema are read abreast where that can be done (see :mod:`.avro_vectorised`). The others are glued
together and read as one block of a container file, which is faster than reading each by itself. A guard of random bytes
stands behind every body: should one of them be damaged, a guard is missing, and all of them are read by themselves.
"""

from __future__ import annotations

import io
import secrets
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import fastavro
import pyarrow as pa
from fastavro.schema import fingerprint, to_parsing_canonical_form

from ...schemas.readings import RejectReason
from ...schemas.settings.base import SettingsError
from ...schemas.settings.places import Steps
from ..formats.avro_schemas import NAMED, TIMES, Shapes, bare, plain_times
from .avro_vectorised import FEW, Abreast, UnfitError, Wanted
from .columns import TIME
from .parsing import Apart, Parsed, parse_each

__all__ = ["AvroParser", "SchemaLookup", "is_bounded", "known_schemas", "schema_fingerprint", "stamps_at"]


_Names = dict[str, Any]


def is_bounded(schema: Any) -> bool:
    """Whether a body's size bounds the work of reading it: no type inside itself, no array of things without bytes.

    Raises:
        Exception: it is no schema, or a very deep one.
    """
    return Shapes(fastavro.parse_schema(bare(schema))).is_plain


def _find(schema: Any, named: _Names) -> None:
    """Note the named types of a schema."""
    for one in schema if isinstance(schema, list) else [schema]:
        if not isinstance(one, dict):
            continue
        if one["type"] in NAMED:
            named[_short(one["name"])] = one
        fields = [field["type"] for field in one.get("fields", ())]
        for inner in (*fields, one.get("items"), one.get("values"), one["type"]):
            _find(inner, named)


def _short(name: Any) -> Any:
    """A name without its namespace."""
    return name.rpartition(".")[2] if isinstance(name, str) else name


def stamps_at(schema: Any, steps: Steps) -> pa.DataType | None:
    """What the integers at the end of a path are; ``None`` if the schema does not say that they are time stamps.

    Raises:
        KeyError: a part of the schema is missing.
    """
    named: _Names = {}
    _find(schema, named)
    for step in steps:
        schema = _only(schema, named)
        if not isinstance(schema, dict):
            return None
        if isinstance(step, str):
            schema = next((one["type"] for one in schema.get("fields", ()) if one["name"] == step), None)
        else:
            schema = schema.get("items")
    schema = _only(schema, named)
    return TIMES.get(schema.get("logicalType", "")) if isinstance(schema, dict) else None


def _only(schema: Any, named: _Names) -> Any:
    """A schema without the null of a union, and with a name replaced by what it stands for."""
    if isinstance(schema, list):
        others = [one for one in schema if one != "null"]
        schema = others[0] if len(others) == 1 else None
    if isinstance(schema, dict) and isinstance(schema.get("type"), (dict, list)):
        return _only(schema["type"], named)
    return named.get(_short(schema), schema) if isinstance(schema, str) else schema


#: Gives the writer's schema of an id; ``LookupError`` where there is none, and anything else where it cannot tell.
SchemaLookup = Callable[[int], Any]

_MAGIC = 0
_HEAD = 5
_SINGLE_MAGIC = b"\xc3\x01"
_SINGLE_HEAD = 10
_GUARD_BYTES = 16
_SYNC = b"quiltstream-sync"
#: Fewer bodies are read by themselves.
_FEW = 8
_NOTHING: Wanted = MappingProxyType({})


class AvroParser:
    """Parses Avro; it belongs to one worker.

    Args:
        lookup: gives the writer's schema of an id, or of a fingerprint.
        wanted: the parts of a reading that are in the payloads; a time stamp is read as the integer that it is, which
            takes half the time.
        single: whether payloads are single objects.
        abreast: whether the parts of readings may be taken out of many bodies at once, without their other values.
    """

    def __init__(
        self, lookup: SchemaLookup, wanted: Wanted = _NOTHING, *, single: bool = False, abreast: bool = True
    ) -> None:
        self._lookup = lookup
        self._wanted = wanted
        self._single = single
        self._may_abreast = abreast
        self._known: dict[int, _Schema | None] = {}

    def __call__(self, payloads: Sequence[bytes], numbers: Sequence[int]) -> Sequence[Parsed | Apart]:
        """Parse payloads, those of one schema together.

        Raises:
            Exception: the lookup could not tell whether there is such a schema.
        """
        lost = Parsed()
        found: list[Parsed | Apart] = [lost]
        alike: dict[bytes, list[int]] = {}
        size, name_of = (_SINGLE_HEAD, _single_id) if self._single else (_HEAD, _wire_id)
        for place, payload in enumerate(payloads):
            alike.setdefault(payload[:size], []).append(place)
        for head, places in alike.items():
            mine = [numbers[place] for place in places]
            name = name_of(head)
            schema = None if name is None else self._schema(name)
            if schema is None:
                why = RejectReason.MALFORMED_ROW if name is None else RejectReason.UNKNOWN_SCHEMA
                lost.bad.update(dict.fromkeys(mine, why))
            else:
                found += schema.read([payloads[place] for place in places], mine, size)
        return found

    def _schema(self, name: int) -> _Schema | None:
        if name not in self._known:
            try:
                self._known[name] = _Schema.of(self._lookup(name), self._wanted, abreast=self._may_abreast)
            except LookupError:
                # not remembered: it may be registered later
                return None
        return self._known[name]


def _wire_id(head: bytes) -> int | None:
    if len(head) < _HEAD or head[0] != _MAGIC:
        return None
    (number,) = struct.unpack_from(">i", head, 1)
    # registries' numbers are signed, and to a negative one they answer as a server does that is no registry
    return number if number >= 0 else None


def _single_id(head: bytes) -> int | None:
    if len(head) < _SINGLE_HEAD or head[:2] != _SINGLE_MAGIC:
        return None
    return struct.unpack_from("<Q", head, 2)[0]


def schema_fingerprint(schema: Any) -> int:
    """CRC-64-AVRO of a schema's canonical form, as single objects carry it.

    Raises:
        Exception: it is no schema.
    """
    digest = fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO")
    return int.from_bytes(bytes.fromhex(digest), "little")


def known_schemas(schemas: Iterable[Mapping[str, Any]]) -> SchemaLookup:
    """The lookup of schemas that the settings hold.

    Raises:
        SettingsError: one of them is no schema.
    """
    given = [dict(schema) for schema in schemas]
    return {_checked(number, schema): schema for number, schema in enumerate(given)}.__getitem__


def _checked(number: int, schema: dict[str, Any]) -> int:
    try:
        fastavro.parse_schema(schema)
        return schema_fingerprint(schema)
    except Exception as error:  # noqa: BLE001 - whatever fastavro says of a schema, it is none
        raise SettingsError(
            [f"readings.avro_schemas.{number} is no Avro schema ({type(error).__name__}); give the writer's schema"]
        ) from None


class _Schema:
    """A writer's schema, as the bodies of many messages are read by it."""

    def __init__(self, given: Any, wanted: Wanted, *, abreast: bool) -> None:
        self._stamps = stamps_at(given, wanted[TIME]) if TIME in wanted else None
        schema = plain_times(given)
        self._plain = fastavro.parse_schema(schema)
        self._abreast = self._side_by_side(wanted) if abreast else None
        guarded = {
            "type": "record",
            "name": "quiltstream_guarded",
            "fields": [
                {"name": "body", "type": schema},
                {"name": "guard", "type": {"type": "fixed", "name": "quiltstream_guard", "size": _GUARD_BYTES}},
            ],
        }
        stream = io.BytesIO()
        fastavro.writer(stream, guarded, [], sync_marker=_SYNC)
        self._header = stream.getvalue()

    @classmethod
    def of(cls, schema: Any, wanted: Wanted = _NOTHING, *, abreast: bool = True) -> _Schema | None:
        """A schema to read by; ``None`` if it is none, or one whose bodies could keep a reader busy for ever."""
        try:
            return cls(schema, wanted, abreast=abreast) if is_bounded(schema) else None
        except Exception:  # noqa: BLE001 - whatever fastavro says of a schema, it cannot be read
            return None

    def _side_by_side(self, wanted: Wanted) -> Abreast | None:
        try:
            found = Abreast(self._plain, wanted)
        except UnfitError:
            return None
        # what the schema says of times goes for integers
        return None if self._stamps is not None and found.type_of(TIME) not in {"int", "long"} else found

    def read(self, payloads: list[bytes], numbers: list[int], head: int) -> list[Parsed | Apart]:
        """Read messages, abreast if that works.

        Args:
            payloads: n of them.
            numbers: their numbers.
            head: bytes before the body of each.
        """
        if self._abreast is None or len(payloads) < FEW:
            return [self._plainly([one[head:] for one in payloads], numbers)]
        try:
            found = self._abreast.read(payloads, head)
        except Exception:  # noqa: BLE001 - whatever it stumbles over, no message may stop a job
            return [self._plainly([one[head:] for one in payloads], numbers)]
        read: list[Parsed | Apart] = []
        if len(found.read):
            columns = found.columns
            if self._stamps is not None:
                columns = columns | {TIME: columns[TIME].view(self._stamps)}
            read.append(Apart(columns, [numbers[place] for place in found.read.tolist()], found.at))
        odd = found.odd.tolist()
        if odd:
            read.append(self._plainly([payloads[place][head:] for place in odd], [numbers[place] for place in odd]))
        return read

    def _plainly(self, bodies: list[bytes], numbers: list[int]) -> Parsed:
        """Read bodies by the library, together if that works and each by itself if not."""
        if len(bodies) >= _FEW:
            values = self._glued(bodies)
            if values is not None:
                return Parsed(values, numbers, stamps=self._stamps)
        return replace(parse_each(bodies, numbers, self._one), stamps=self._stamps)

    def _glued(self, bodies: list[bytes]) -> list[Any] | None:
        guard = secrets.token_bytes(_GUARD_BYTES)
        block = guard.join((*bodies, b""))
        whole = b"".join((self._header, _long(len(bodies)), _long(len(block)), block, _SYNC))
        try:
            records: list[Any] = list(fastavro.reader(io.BytesIO(whole)))
        except Exception:  # noqa: BLE001 - some body is damaged; each will be read by itself
            return None
        if len(records) != len(bodies) or any(record["guard"] != guard for record in records):
            return None
        return [record["body"] for record in records]

    def _one(self, body: bytes) -> Any:
        stream = io.BytesIO(body)
        value = fastavro.schemaless_reader(stream, self._plain, None)
        if stream.tell() != len(body):
            raise ValueError("bytes behind the record")
        return value


def _long(number: int) -> bytes:
    """A number that is not negative in Avro's variable length."""
    number <<= 1
    found = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - seven bits a byte
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
