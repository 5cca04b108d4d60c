"""Platforms that send JSON documents: EdgeX, NGSI and ThingsBoard.

EdgeX: an event is ``{"deviceName": ..., "origin": ns, "readings": [{"resourceName": ..., "valueType": "Float64",
"value": "1.5", "origin": ns}]}``, bare, in a request, or in an envelope of the message bus as an object or as JSON in
Base64. Values are text, also of numbers.

NGSI: a notification is ``{"subscriptionId": ..., "notifiedAt": ..., "data": [entity]}``, over MQTT inside ``body``. In
an NGSI-LD entity an attribute is ``{"type": "Property", "value": 1.5, "observedAt": "2026-01-01T00:00:00Z"}``, an array
of these, or only the value; in NGSI-v2 ``observedAt`` or ``TimeInstant`` is in ``metadata``. Without any of these the
time is that of the notification.

ThingsBoard: a device sends ``{"ts": 1700000000000, "values": {"power": 1.5}}``, an array of these, or only ``{"power":
1.5}``, whose time is that of its arrival. A gateway sends ``{"Device A": [{"ts": ..., "values": {...}}]}``. A device's
own telemetry does not say which device it is of: the topic, a header or the key does.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from ....schemas.errors import QuiltstreamError
from ....schemas.readings import RejectReason
from ..columns import RowList, plain
from ..messages import Messages
from ..parsing import Parsed


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of a message is a reading."""

    name: str
    # the series of each message by its number, where the settings say where it is; otherwise the convention says it
    series: dict[int, Any] | None = None
    timezone: str = "UTC"
    unit: str = ""  # of the value, as the settings say it; empty if they do not
    # the time of each message by its number, for what has none of its own; ``None`` if the settings name none
    times: dict[int, Any] | None = None

    def series_of(self, message: int, own: Any) -> Any:
        """The series of a reading."""
        return own if self.series is None else self.series.get(message)


class MalformedError(QuiltstreamError, ValueError):
    """A message does not follow its format."""

    reason = RejectReason.MALFORMED_ROW


class MixedUnitsError(MalformedError):
    """The values of a message are of several units, or of another one than is wanted."""

    reason = RejectReason.MIXED_UNITS


def walk(parsed: Parsed, visit: Callable[[RowList, int, Any], None]) -> RowList:
    """Visit each parsed payload; one that does not follow its format adds no rows and is bad."""
    rows = RowList(bad=dict(parsed.bad))
    for message, value in zip(parsed.message, parsed.values, strict=True):
        mine = RowList()
        try:
            visit(mine, message, value)
        except MalformedError as error:
            rows.bad[message] = error.reason
            continue
        rows.extend(mine)
    return rows


def _check_units(units: set[Any]) -> None:
    if len(units) > 1:
        raise MixedUnitsError("several units")


def field_of(value: Any, name: str) -> Any:
    """A field of an object; ``None`` where there is no such field, or no object."""
    return value.get(name) if type(value) is dict else None


def an_object(value: Any) -> dict[Any, Any]:
    """A value that must be an object."""
    if type(value) is not dict:
        raise MalformedError("no object")
    return value


def an_array(value: Any) -> list[Any]:
    """A value that must be an array."""
    if type(value) is not list:
        raise MalformedError("no array")
    return value


def edgex_rows(messages: Messages, parsed: Parsed, wanted: Wanted) -> RowList:  # noqa: ARG001 - every preset's
    """The readings of events; times are nanoseconds."""

    def visit(rows: RowList, message: int, value: Any) -> None:
        event, units = _event(an_object(value)), set[Any]()
        for one in an_array(event.get("readings")):
            reading = an_object(one)
            if reading.get("resourceName") != wanted.name:
                continue
            series = wanted.series_of(message, reading.get("deviceName", event.get("deviceName")))
            units.add(plain(reading.get("units")))
            rows.add(message, series, reading.get("origin", event.get("origin")), reading.get("value"))
        _check_units(units)

    return walk(parsed, visit)


def _event(document: dict[Any, Any]) -> dict[Any, Any]:
    payload = document.get("payload")
    if payload is not None and "readings" not in document:
        document = an_object(_unpacked(payload) if type(payload) is str else payload)
    inner = document.get("event")
    return document if inner is None else an_object(inner)


def _unpacked(payload: str) -> Any:
    try:
        return orjson.loads(base64.b64decode(payload, validate=True))
    except ValueError as error:  # of either library, and of text that is no ASCII
        raise MalformedError("no JSON in Base64") from error


_TIMES = ("observedAt", "TimeInstant")


def ngsi_rows(messages: Messages, parsed: Parsed, wanted: Wanted) -> RowList:  # noqa: ARG001 - every preset's
    """The readings of notifications; times are ISO 8601 text."""

    def visit(rows: RowList, message: int, value: Any) -> None:
        document = an_object(value)
        document = an_object(document["body"]) if "body" in document else document
        units = set[Any]()
        for one in an_array(document.get("data")):
            entity = an_object(one)
            if wanted.name not in entity:
                continue
            attribute = entity[wanted.name]
            series = wanted.series_of(message, entity.get("id"))
            # an attribute may have several instances, which differ in their data set
            for instance in attribute if type(attribute) is list else [attribute]:
                time, found = _instance(instance)
                units.add(plain(field_of(instance, "unitCode") or field_of(field_of(instance, "metadata"), "unitCode")))
                rows.add(message, series, document.get("notifiedAt") if time is None else time, found)
        _check_units(units)

    return walk(parsed, visit)


def _instance(instance: Any) -> tuple[Any, Any]:
    if type(instance) is not dict:
        return None, instance
    metadata = instance.get("metadata")
    for name in _TIMES:
        time = instance.get(name, field_of(metadata, name))
        if time is not None:
            return field_of(time, "value") or time, instance.get("value")
    return None, instance.get("value")


def thingsboard_rows(messages: Messages, parsed: Parsed, wanted: Wanted) -> RowList:
    """The readings of telemetry messages; times are milliseconds."""

    def item(rows: RowList, message: int, series: Any, one: Any) -> None:
        if "ts" in one and "values" in one:
            values, time = an_object(one["values"]), one["ts"]
        else:
            stamp_us = int(messages.stamps_us[message])
            values, time = one, None if stamp_us < 0 else stamp_us // 1_000
        if wanted.name in values:
            rows.add(message, series, time, values[wanted.name])

    def visit(rows: RowList, message: int, value: Any) -> None:
        if type(value) is list:
            for one in value:
                item(rows, message, wanted.series_of(message, None), an_object(one))
            return
        document = an_object(value)
        if _is_gateway(document):
            for device, items in document.items():
                for one in an_array(items):
                    item(rows, message, wanted.series_of(message, device), an_object(one))
        else:
            item(rows, message, wanted.series_of(message, None), document)

    return walk(parsed, visit)


def _is_gateway(document: dict[Any, Any]) -> bool:
    """Whether every field is a device: an array of objects."""
    return bool(document) and all(
        type(items) is list and all(type(one) is dict for one in items) for items in document.values()
    )
