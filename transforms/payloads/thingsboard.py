"""ThingsBoard: telemetry of a device, and of the devices behind a gateway.

A device sends ``{"ts": 1700000000000, "values": {"power": 1.5}}``, an array of these, or only ``{"power": 1.5}``, whose
time is that of its arrival. A gateway sends ``{"Device A": [{"ts": ..., "values": {...}}]}``. A device's own telemetry
does not say which device it is of: the topic, a header or the key does.
"""

from __future__ import annotations

from typing import Any

from ..messages import Messages
from .documents import Wanted, an_array, an_object, stamp_in, walk
from .parsing import Parsed
from .rows import RowList

_MS = 1_000


def thingsboard_rows(messages: Messages, parsed: Parsed, wanted: Wanted) -> RowList:
    """The readings of telemetry messages; times are milliseconds."""

    def item(rows: RowList, message: int, series: Any, one: Any) -> None:
        if "ts" in one and "values" in one:
            values, time = an_object(one["values"]), one["ts"]
        else:
            values, time = one, stamp_in(messages, message, _MS)
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
                    item(rows, message, device, an_object(one))
        else:
            item(rows, message, wanted.series_of(message, None), document)

    return walk(parsed, visit)


def _is_gateway(document: dict[Any, Any]) -> bool:
    """Whether every field is a device: an array of objects."""
    return bool(document) and all(
        type(items) is list and all(type(one) is dict for one in items) for items in document.values()
    )
