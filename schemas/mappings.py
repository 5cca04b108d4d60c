"""Mappings: where the parts of a reading are found in a message, whichever broker it came from.

A place is a path in the payload, a column of it, a level of the topic, a header, the key, or the broker's own stamp.
A plain string is a column of a file, and a path in the payload of a message.

>>> path_steps("readings[*].value")
('readings', None, 'value')
>>> Place(topic=2).text
'topic level 2'
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    field_validator,
    model_serializer,
    model_validator,
)

from .sections import Name, Positive, Section

#: One step of a path: a field, the number of an element, or ``None`` for every element.
Step = str | int | None
Steps = tuple[Step, ...]

Preset = Literal[
    "thingsboard",
    "edgex",
    "hono",
    "azure-iot",
    "aws-iot",
    "senml",
    "sparkplug",
    "ngsi-ld",
    "green-button",
    "dsmr",
]
"""Conventions that are known by name."""

Payload = Literal["json", "cbor", "avro", "avro-single"]
"""How the payload of a message is written."""

#: Presets that only say where the parts are: the payload is what the device or a rule wrote.
MAPPED: dict[str, dict[str, Any]] = {
    "hono": {"series": {"header": "device_id"}, "time": {"header": "creation-time"}, "time_unit": "ms"},
    "azure-iot": {
        "series": {"header": "iothub-connection-device-id"},
        "time": {"header": "iothub-enqueuedtime"},
        "time_unit": "ms",
    },
    "aws-iot": {"series": {"path": "device_id"}, "time": {"path": "timestamp"}, "time_unit": "ms"},
}
#: Presets that take the payload apart by a convention of its own, whose values have names.
NAMED = ("thingsboard", "edgex", "senml", "sparkplug", "ngsi-ld", "green-button", "dsmr")

_TOKEN = re.compile(
    r'(?P<dot>\.)?(?:(?P<name>[^.\[\]"]+)|\["(?P<quoted>[^"]+)"\]|\[(?P<every>\*)\]|\[(?P<index>\d{1,6})\])'
)

MOST_STEPS = 20
MOST_WILDCARDS = 3


def path_steps(path: str) -> Steps:
    """Take a path apart: fields between dots, ``["any name"]``, ``[0]`` for one element, ``[*]`` for every one.

    Raises:
        ValueError: it is no path.
    """
    steps: list[Step] = []
    at = 0
    while at < len(path):
        token = _TOKEN.match(path, at)
        # a dot stands between two steps and before a name, and nowhere else
        if token is None or (token["dot"] is None) is not (token["name"] is None or at == 0):
            raise ValueError(f"{path!r} is no path at character {at + 1}; {_PATH_HELP}")
        steps.append(
            None if token["every"] else int(token["index"]) if token["index"] else token["name"] or token["quoted"]
        )
        at = token.end()
    if not steps or len(steps) > MOST_STEPS or steps.count(None) > MOST_WILDCARDS:
        raise ValueError(
            f"{path!r} has {len(steps)} steps with {steps.count(None)} wildcards; a path has 1 to {MOST_STEPS} and at "
            f"most {MOST_WILDCARDS}; {_PATH_HELP}"
        )
    return tuple(steps)


_PATH_HELP = 'write for example values.power, readings[*].value or values["name with a dot"]'


class Constant(Section):
    """A name for the only series of a source that has no column of names."""

    constant: Name


class _Compact(Section):
    """A section that is written without what is left out, so that its text says what was meant and nothing else."""

    @model_serializer(mode="wrap")
    def _said(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value is not None}


def _steps_of(column: str | None, path: str | None) -> Steps | None:
    if column is not None:
        return (column,)
    return None if path is None else path_steps(path)


class Place(_Compact):
    """Where one part of a reading is found: exactly one of column, path, topic, header, key and stamp."""

    column: str | None = Field(default=None, min_length=1, description="a column of a file, or a field of the payload")
    path: str | None = Field(default=None, description="a path in the payload, e.g. `readings[*].value`")
    topic: int | None = Field(default=None, description="a level of the topic, from 1; -1 is the last")
    header: Name | None = Field(default=None, description="a header of the message; the last one of that name")
    key: Literal[True] | None = Field(default=None, description="the key of the message")
    stamp: Literal[True] | None = Field(default=None, description="the broker's own time stamp; for time only")
    level: int | None = Field(default=None, description="only this level of the header or key, between slashes")

    @field_validator("path")
    @classmethod
    def _readable(cls, path: str | None) -> str | None:
        if path is not None:
            path_steps(path)
        return path

    @model_validator(mode="after")
    def _one(self) -> Place:
        kinds = ("column", "path", "topic", "header", "key", "stamp")
        given = [kind for kind in kinds if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(f"name exactly one of {', '.join(kinds)}; {len(given)} are given")
        if self.level is not None and given[0] not in {"header", "key"}:
            raise ValueError(f"level is of a header or key, and {given[0]} is given; leave it out")
        if self.topic == 0 or self.level == 0:
            raise ValueError("0 is no level; the first level is 1, the last is -1")
        return self

    @property
    def steps(self) -> Steps | None:
        """The path in the payload; ``None`` for what is beside the payload."""
        return _steps_of(self.column, self.path)

    @property
    def text(self) -> str:
        """The place in words."""
        if self.topic is not None:
            return f"topic level {self.topic}"
        if self.key or self.stamp:
            return "the key" if self.key else "the broker's stamp"
        kind = "column" if self.column is not None else "path" if self.path is not None else "header"
        return f"{kind} {self.column or self.path or self.header}"


class Register(_Compact):
    """A meter's counter that only rises: the value of a slot is how much it rose in the slot."""

    path: str | None = Field(default=None, description="its path in the payload")
    column: str | None = Field(default=None, min_length=1, description="its field of the payload")
    name: Name | None = Field(default=None, description="its name under a preset, e.g. an OBIS code")
    rollover: Positive | None = Field(
        default=None, description="where the counter begins at 0 again; left out: a fall is always a reset"
    )

    @model_validator(mode="after")
    def _one(self) -> Register:
        given = [one for one in (self.path, self.column, self.name) if one is not None]
        if len(given) != 1:
            raise ValueError(f"name exactly one of path, column and name; {len(given)} are given")
        if self.path is not None:
            path_steps(self.path)
        return self

    @property
    def steps(self) -> Steps | None:
        """The path in the payload; ``None`` under a preset."""
        return _steps_of(self.column, self.path)


class RegisterValue(Section):
    """A value that is the rise of a counter over each slot."""

    register_: Register = Field(alias="register")

    @model_serializer(mode="plain")
    def _said(self) -> dict[str, Any]:
        return {"register": self.register_.model_dump(mode="json")}


def _form(given: Any) -> str:
    """Which form of a place is meant, so that a mistake in it is reported as one of that form."""
    if isinstance(given, (list, tuple)):
        return "list[str]"
    for kind, key in ((Constant, "constant"), (RegisterValue, "register")):
        if isinstance(given, kind) or (isinstance(given, dict) and key in given):
            return kind.__name__
    return "Place" if isinstance(given, (dict, Place)) else "str"


_Text = Annotated[str, Tag("str")]
_Place = Annotated[Place, Tag("Place")]
SeriesPlace = Annotated[_Text | Annotated[Constant, Tag("Constant")] | _Place, Discriminator(_form)]
TimePlace = Annotated[_Text | Annotated[list[str], Tag("list[str]")] | _Place, Discriminator(_form)]
ValuePlace = Annotated[_Text | _Place | Annotated[RegisterValue, Tag("RegisterValue")], Discriminator(_form)]
FieldPlace = Annotated[_Text | _Place, Discriminator(_form)]


def column_of(place: object) -> str | None:
    """The column of a file that a place means; ``None`` for places that only messages have."""
    if isinstance(place, RegisterValue):
        return place.register_.column
    if isinstance(place, Place):
        return place.column
    return place if isinstance(place, str) else None


def place_text(place: object) -> str:
    """A place in words, for messages."""
    return place.text if isinstance(place, Place) else "a register" if isinstance(place, RegisterValue) else str(place)


def steps_of(place: str | Place) -> Steps | None:
    """The path of a place in the payload of a message; ``None`` for what is beside the payload.

    Raises:
        ValueError: a plain string is no path.
    """
    return path_steps(place) if isinstance(place, str) else place.steps


def wildcards(steps: Steps) -> Steps:
    """The beginning of a path up to its last wildcard."""
    return steps[: max((at + 1 for at, step in enumerate(steps) if step is None), default=0)]


__all__ = [
    "MAPPED",
    "NAMED",
    "Constant",
    "FieldPlace",
    "Payload",
    "Place",
    "Preset",
    "Register",
    "RegisterValue",
    "SeriesPlace",
    "Step",
    "Steps",
    "TimePlace",
    "ValuePlace",
    "column_of",
    "path_steps",
    "place_text",
    "steps_of",
    "wildcards",
]
