"""What a mapping makes of single messages, and why: for the eyes of whoever writes the mapping.

Each message is decoded as a job decodes it, by itself and in order, so that a birth of Sparkplug holds for what comes
after it. A counter is shown as it stands, and names are shown in clear.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from ...schemas.readings import RejectReason
from ...schemas.settings.mappings import Readings
from ...schemas.settings.places import Condition, Constant, Place, Register, RegisterValue, place_text
from ...schemas.slots import format_instant
from ..formats.rows import Decoded
from .avro import SchemaLookup
from .decoder import PayloadDecoder
from .messages import Messages

#: The part of a reading that a reason is about.
_PART = {
    RejectReason.MISSING_SERIES: "series",
    RejectReason.UNPARSABLE_TIME: "time",
    RejectReason.IMPLAUSIBLE_TIME: "time",
    RejectReason.NONEXISTENT_LOCAL_TIME: "time",
    RejectReason.MISSING_VALUE: "value",
    RejectReason.NOT_A_NUMBER: "value",
    RejectReason.NOT_FINITE: "value",
    RejectReason.MIXED_UNITS: "value",
}


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of one message.

    Attributes:
        readings: series, instant and value of each reading, values times ``readings.scale``.
        places: where series, time and value came from, in words.
        passed: why it was passed over; ``None`` if it was not.
        rejected: why it is a reject, and at which place; ``None`` if it is none.
    """

    topic: str
    size: int
    readings: tuple[tuple[str, str, float], ...]
    places: dict[str, str]
    passed: str | None
    rejected: str | None


class Trial:
    """Tries messages; it belongs to one command."""

    def __init__(
        self, readings: Readings, timezone: str, group: str | None = None, schemas: SchemaLookup | None = None
    ) -> None:
        self._readings = shown(readings)
        self._options: dict[str, Any] = {"timezone": timezone, "group": group, "schemas": schemas}
        self._decoder = self._made(self._readings)
        self._upto = [
            self._made(self._readings.model_copy(update={"where": self._readings.where[: at + 1]}))
            for at in range(len(self._readings.where))
        ]
        self._parts = {
            name: [(part, self._made(self._readings.model_copy(update={name: part}))) for part in place.first]
            for name in ("series", "time", "value")
            if isinstance(place := getattr(self._readings, name), Place) and place.first is not None
        }

    def _made(self, readings: Readings) -> PayloadDecoder:
        decoder = PayloadDecoder(readings, **self._options)
        decoder.check()
        return decoder

    def of(self, messages: Messages) -> Iterator[Tried]:
        """What becomes of each message, in order."""
        for number in range(len(messages)):
            yield self._one(_only(messages, number))

    def _one(self, message: Messages) -> Tried:
        parts = self._decoder.decode(message)
        reasons = [one.reason for part in parts for one in part.rejects]
        rows = tuple(_rows(parts))
        return Tried(
            topic=message.topics[0],
            size=len(message.payloads[0] or b""),
            readings=rows,
            places=self._places(message) if rows else {},
            passed=self._why_passed(message) if not rows and not reasons else None,
            rejected=self._why_rejected(reasons[0]) if reasons else None,
        )

    def _places(self, message: Messages) -> dict[str, str]:
        found: dict[str, str] = {}
        for name in ("series", "time", "value"):
            place = getattr(self._readings, name)
            for part, decoder in self._parts.get(name, ()):
                if any(one.readings is not None for one in decoder.decode(message)):
                    place = part
                    break
            found[name] = self._text(place)
        return found

    def _text(self, place: object) -> str:
        if isinstance(place, Constant):
            return f"constant {place.constant}"
        if place is None or (isinstance(place, str) and self._readings.preset in {"dsmr", "sparkplug"}):
            return f"preset {self._readings.preset}" + ("" if place is None else f", {place}")
        return f"path {place}" if isinstance(place, str) else place_text(place)

    def _why_passed(self, message: Messages) -> str:
        if message.payloads[0] is None:
            return "it has no payload"
        for number, (condition, decoder) in enumerate(zip(self._readings.where, self._upto, strict=True)):
            parts = decoder.decode(message)
            if not any(part.readings is not None or part.rejects for part in parts):
                return f"readings.where.{number} does not hold: {_asked(condition)}"
        return "it holds no value that the mapping asks for"

    def _why_rejected(self, reason: RejectReason) -> str:
        part = _PART.get(reason)
        where = "" if part is None else f" (readings.{part}: {self._text(getattr(self._readings, part))})"
        return f"{reason.value}: {reason.text}{where}"


def shown(readings: Readings) -> Readings:
    """The mapping without what needs slots or a key: a counter as it stands, and names in clear."""
    value = readings.value
    if isinstance(value, RegisterValue):
        value = _standing(value.register_)
    return readings.model_copy(update={"value": value, "pseudonyms": None})


def _standing(register: Register) -> str | Place:
    if register.name is not None:
        return register.name
    given = register.model_dump(exclude_none=True, exclude={"rollover", "name"})
    return Place.model_validate(given)


def _only(messages: Messages, number: int) -> Messages:
    return Messages(*(getattr(messages, column.name)[number : number + 1] for column in fields(messages)))


def _rows(parts: list[Decoded]) -> Iterator[tuple[str, str, float]]:
    for part in parts:
        if part.readings is not None:
            columns = [part.readings.column(name) for name in ("series", "time", "value")]
            times = columns[1].cast("int64").to_pylist()
            for series, time, value in zip(columns[0].to_pylist(), times, columns[2].to_pylist(), strict=True):
                yield series, format_instant(time), value


def _asked(condition: Condition) -> str:
    place = condition.place.text
    if condition.exists is not None:
        return f"{place} {'exists' if condition.exists else 'does not exist'}"
    values = ", ".join("nothing" if one is None else repr(one) for one in condition.values)
    return f"{place} {'differs from' if condition.negated else 'is'} {values}"
