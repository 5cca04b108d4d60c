"""NGSI: notifications of a context broker, with one or more entities.

A notification is ``{"subscriptionId": ..., "notifiedAt": ..., "data": [entity]}``, over MQTT inside ``body``. In an
NGSI-LD entity an attribute is ``{"type": "Property", "value": 1.5, "observedAt": "2026-01-01T00:00:00Z"}``, an array of
these, or only the value; in NGSI-v2 ``observedAt`` or ``TimeInstant`` is in ``metadata``. Without any of these the time
is that of the notification.
"""

from __future__ import annotations

from typing import Any

from ..messages import Messages
from .documents import MixedUnitsError, Wanted, an_array, an_object, field_of, walk
from .parsing import Parsed
from .rows import RowList
from .units import plain

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
        if len(units) > 1:
            raise MixedUnitsError("several units")

    return walk(parsed, visit)


def _instance(instance: Any) -> tuple[Any, Any]:
    """The time, if it says one, and the value of an attribute's instance."""
    if type(instance) is not dict:
        return None, instance
    metadata = instance.get("metadata")
    for name in _TIMES:
        time = instance.get(name, field_of(metadata, name))
        if time is not None:
            return field_of(time, "value") or time, instance.get("value")
    return None, instance.get("value")
