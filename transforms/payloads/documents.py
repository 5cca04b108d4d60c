"""What the presets share: which value is wanted, and how documents are walked through without trusting their shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...schemas.readings import RejectReason
from ..messages import Messages
from .parsing import Parsed
from .rows import RowList

_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of a message is a reading.

    Attributes:
        name: the name of the value.
        series: the series of each message by its number, where the settings say where it is; otherwise the convention
            says it.
        timezone: zone of stamps without an offset.
        unit: of the value, as the settings say it; empty if they do not.
    """

    name: str
    series: dict[int, Any] | None = None
    timezone: str = "UTC"
    unit: str = ""

    def series_of(self, message: int, own: Any) -> Any:
        """The series of a reading."""
        return own if self.series is None else self.series.get(message)


class MalformedError(ValueError):
    """A message does not follow its convention."""

    reason = RejectReason.MALFORMED_ROW


class MixedUnitsError(MalformedError):
    """The values of a message are of several units, or of another one than is wanted."""

    reason = RejectReason.MIXED_UNITS


def walk(parsed: Parsed, visit: Callable[[RowList, int, Any], None]) -> RowList:
    """Visit each parsed payload; one that does not follow its convention adds no rows and is bad.

    Args:
        parsed: the payloads.
        visit: adds the rows of a message: (where to, its number, what it holds).

    Raises:
        Exception: none but :class:`MalformedError` is the message's.
    """
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


def field_of(value: Any, name: str) -> Any:
    """A field of an object; ``None`` where there is no such field, or no object."""
    return value.get(name) if type(value) is dict else None


def an_object(value: Any) -> dict[Any, Any]:
    """A value that must be an object.

    Raises:
        MalformedError: it is none.
    """
    if type(value) is not dict:
        raise MalformedError("no object")
    return value


def an_array(value: Any) -> list[Any]:
    """A value that must be an array.

    Raises:
        MalformedError: it is none.
    """
    if type(value) is not list:
        raise MalformedError("no array")
    return value


def stamp_in(messages: Messages, message: int, per_second: int) -> int | None:
    """The broker's stamp of a message in a unit; ``None`` without one."""
    found = int(messages.stamps_us[message])
    return None if found < 0 else found * per_second // _US
