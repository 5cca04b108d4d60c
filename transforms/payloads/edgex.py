"""EdgeX: events with readings of a device, bare, in a request, or in an envelope of the message bus.

An event is ``{"deviceName": ..., "origin": ns, "readings": [{"resourceName": ..., "valueType": "Float64", "value":
"1.5", "origin": ns}]}``. Values are text, also of numbers. An envelope carries the event as an object, or as JSON in
Base64.
"""

from __future__ import annotations

import base64
from typing import Any

import orjson

from ..messages import Messages
from .documents import MalformedError, MixedUnitsError, Wanted, an_array, an_object, walk
from .parsing import Parsed
from .rows import RowList
from .units import plain


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
        if len(units) > 1:
            raise MixedUnitsError("several units")

    return walk(parsed, visit)


def _event(document: dict[Any, Any]) -> dict[Any, Any]:
    """The event in a document."""
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
