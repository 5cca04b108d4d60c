"""The section ``readings``: where the parts of a reading are in a file or message, and how they are read.

A place is a path in the payload, a column of it, a level of the topic, a header, the key, or the broker's own stamp.
A plain string is a column of a file, and a path in the payload of a message.

>>> path_steps("readings[*].value")
('readings', None, 'value')
>>> Place(topic=2).text
'topic level 2'
"""

from __future__ import annotations

import math
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

from .base import Name, Number, Positive, Section, SettingsError
from .pseudonyms import Pseudonyms

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
    "Wide",
    "column_of",
    "path_steps",
    "place_text",
    "steps_of",
    "wildcards",
]


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

    constant: Name = Field(description="name of the only series of a source without a column of names")


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


class Wide(Section):
    """A table whose line has many readings: in a column for each series, or for each time of the day."""

    columns: Literal["series", "times"] = Field(
        description="what the columns of values are named by: series, each the name of one, or times, each a time of "
        "the day such as 00:30, with the date in time"
    )
    without: list[Name] = Field(default_factory=list[Name], description="columns that are none of them, and not read")


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


#: Settings that only messages have; left out of what is frozen where they are not used.
MESSAGE_FIELDS = frozenset(
    {
        "preset",
        "payload",
        "series",
        "time",
        "value",
        "attributes",
        "pseudonyms",
        "avro_schemas",
        "max_bytes",
        "remember",
    }
)

#: Presets whose messages say themselves which series they are of, or may.
_UNNAMED_VALUE = "green-button"


def check_readings(readings: Readings) -> None:
    """Check a mapping as far as it does not depend on the source.

    Raises:
        ValueError: a part is missing, or does not fit another.
    """
    preset = readings.preset
    problems: list[str] = []
    if preset in NAMED:
        problems += _named_problems(readings)
    else:
        given = {} if preset is None else MAPPED[preset]
        parts = {None: ("series", "time", "value"), "series": ("time",), "times": ("series", "time")}[
            None if readings.wide is None else readings.wide.columns
        ]
        missing = [one for one in parts if getattr(readings, one) is None and one not in given]
        problems += [
            f"readings.{one} is missing; add it (see `quiltstream init` for a commented example)" for one in missing
        ]
    problems += _wide_problems(readings)
    if isinstance(readings.time, Place) and readings.time.level is not None:
        problems.append("readings.time: a level holds no time; name the whole header or key")
    if (isinstance(readings.series, Place) and readings.series.stamp) or _is_stamp(readings.value):
        problems.append("the broker's stamp is a time; name it in readings.time only")
    if isinstance(readings.series, Constant) and readings.pseudonyms is not None:
        problems.append(
            "readings.pseudonyms: the only series is named in readings.series, in clear; write a pseudonym there and "
            "leave pseudonyms out"
        )
    if readings.avro_schemas and readings.payload != "avro-single":
        problems.append("readings.avro_schemas is of payload: avro-single; leave it out, or set the payload")
    if readings.payload == "avro-single" and not readings.avro_schemas:
        problems.append("readings.avro_schemas is missing: avro-single payloads only name the digest of their schema")
    if problems:
        raise ValueError("; ".join(problems))


def _wide_problems(readings: Readings) -> list[str]:
    """What does not fit a wide table."""
    wide = readings.wide
    if wide is None:
        return []
    problems = [
        f"readings.{name} is set, and with readings.wide a message has none of it; leave one of them out"
        for name in ("preset", "attributes", "avro_schemas")
        if getattr(readings, name)
    ]
    if readings.value is not None:
        problems.append("readings.value is set, and readings.wide says which columns hold values; leave it out")
    if wide.columns == "series" and readings.series is not None:
        problems.append(
            "readings.series is set, and with readings.wide: {columns: series} the columns are the series; leave it out"
        )
    return problems


def _is_stamp(place: object) -> bool:
    return isinstance(place, Place) and place.stamp is not None


def _named_problems(readings: Readings) -> list[str]:
    """What does not fit a preset that takes the payload apart by its own convention."""
    problems: list[str] = []
    preset = readings.preset
    if readings.payload != "json":
        problems.append(f"readings.payload is {readings.payload}, and preset {preset} has its own; leave it out")
    if readings.time is not None:
        problems.append(f"readings.time is set, and preset {preset} has its own; leave it out")
    if readings.time_format is not None or readings.time_unit != "s":
        problems.append(f"readings.time_unit or time_format is set, and preset {preset} has its own; leave it out")
    if readings.value is None and preset != _UNNAMED_VALUE:
        problems.append(f"readings.value is missing: the name that the value has under preset {preset}")
    if isinstance(readings.value, Place):
        problems.append(f"readings.value is {readings.value.text}; under preset {preset} it is a name, in plain text")
    if isinstance(readings.value, RegisterValue) and readings.value.register_.name is None:
        problems.append(f"readings.value.register: under preset {preset} give its name, not its path")
    for name, place in (("series", readings.series), *(readings.attributes.items())):
        if isinstance(place, str) or (isinstance(place, Place) and (place.steps is not None or place.stamp)):
            problems.append(
                f"readings.{name} is {place_text(place)!r}; under preset {preset} it is a topic level, a header or "
                "the key"
            )
    return problems


def check_message(readings: Readings, group: str | None) -> None:
    """Check the paths of a mapping: plain strings become paths only where the source has messages.

    Raises:
        ValueError: a plain string is no path, or two paths run over different arrays.
    """
    if readings.wide is not None:
        raise ValueError("readings.wide is of files of CSV and Parquet, and the source has messages; leave it out")
    if readings.preset in NAMED:
        if group is not None and group not in readings.attributes:
            raise ValueError(
                f"group_by is {group!r}, which is not among readings.attributes; under preset {readings.preset} say "
                "there where it is: a topic level, a header or the key"
            )
        return
    if isinstance(readings.time, list):
        raise ValueError("readings.time is a list of columns, which only files have; name one place")  # noqa: TRY004 - a setting
    over: Steps = ()
    for steps in payload_paths(readings, group):
        mine = wildcards(steps)
        longer, shorter = (mine, over) if len(mine) > len(over) else (over, mine)
        if longer[: len(shorter)] != shorter:
            raise ValueError(
                "the paths of readings run over different arrays ([*]); one message is one table, so each array must "
                "be inside the one before"
            )
        over = longer


def payload_paths(readings: Readings, group: str | None) -> list[Steps]:
    """The paths in the payload that a mapping names.

    Raises:
        ValueError: a plain string is no path.
    """
    given = {} if readings.preset is None else MAPPED[readings.preset]
    places: dict[str, object] = {
        f"readings.{name}": getattr(readings, name) or given.get(name) for name in ("series", "time", "value")
    }
    if group is not None:
        places["group_by"] = readings.attributes.get(group, group)
    found = [_path_of(setting, place) for setting, place in places.items()]
    return [one for one in found if one is not None]


def _path_of(setting: str, place: object) -> Steps | None:
    if isinstance(place, RegisterValue):
        return place.register_.steps
    if isinstance(place, dict):
        place = Place(**place)
    try:
        return steps_of(place) if isinstance(place, (str, Place)) else None
    except ValueError as error:
        raise ValueError(f"{setting}: {error}") from None


def columns_problems(readings: Readings) -> list[str]:
    """What a file cannot serve, one line for every setting."""
    problems = [
        f"readings.{name} is set, and only messages have it; the source is files: leave it out"
        for name in ("preset", "avro_schemas", "attributes")
        if getattr(readings, name)
    ]
    if readings.payload != "json":
        problems.append("readings.payload is set, and the source is files, whose format says how they are written")
    for name in ("series", "time", "value"):
        place = getattr(readings, name)
        if place is None or isinstance(place, (Constant, list)) or column_of(place) is not None:
            continue
        problems.append(
            f"readings.{name} is {place_text(place)}, and the source is files, which have columns: write the column's "
            "name (Avro files of messages have places too: docs/mappings.md)"
        )
    return problems


class Readings(Section):
    """Where the parts of a reading are, and how to read them: columns of a file, or places in a message."""

    preset: Preset | None = Field(default=None, description="a convention of messages that is known by name")
    payload: Payload = Field(default="json", description="how the payload of a message is written")
    series: SeriesPlace | None = Field(
        default=None,
        description="column with the name of the meter or wearer, {constant: NAME}, or a place in a message; "
        "needed, as time and value are, unless a preset says where it is",
    )
    time: TimePlace | None = Field(
        default=None,
        description="column with the event time, or a place in a message; several columns are joined with a blank",
    )
    value: ValuePlace | None = Field(
        default=None, description="column with the measured value, a place in a message, or its name under a preset"
    )
    wide: Wide | None = Field(
        default=None,
        description="a table with a column for each series, or for each time of the day, instead of one for the value",
    )
    attributes: dict[Name, FieldPlace] = Field(
        default_factory=dict[Name, FieldPlace], description="names for places in a message that group_by may name"
    )
    unit: str = Field(default="", description="unit of the column, for people")
    scale: Number = Field(default=1.0, description="factor from the column's unit to the unit of states.edges")
    decimal: Literal[".", ","] = Field(default=".", description="mark before the decimals of numbers in files of text")
    time_format: str | None = Field(default=None, description="strptime format of text times; left out: ISO 8601")
    time_unit: Literal["s", "ms", "us", "ns"] = Field(
        default="s", description="unit of times given as numbers since 1970"
    )
    ambiguous: Literal["earliest", "latest"] = Field(
        default="earliest", description="which of two instants a local time doubled by a clock change means"
    )
    pseudonyms: Pseudonyms | None = Field(
        default=None, description="replace the names of series by keyed hashes; where the key is"
    )
    avro_schemas: list[dict[str, Any]] = Field(
        default_factory=list[dict[str, Any]], description="the writers' schemas of avro-single payloads"
    )
    max_bytes: int = Field(default=1_000_000, gt=0, description="a larger message is a reject")
    remember: int = Field(
        default=200_000,
        ge=100,
        description="series whose counters, and births of devices, each reader of messages remembers at most",
    )

    @field_validator("scale")
    @classmethod
    def _scale(cls, value: float) -> float:
        if not math.isfinite(value) or value == 0:
            raise ValueError(f"{value} must be finite and not 0")
        return value

    @field_validator("time")
    @classmethod
    def _time(cls, value: str | list[str] | Place | None) -> str | list[str] | Place | None:
        if value is not None and not value:
            raise ValueError("name at least one column")
        return value

    @model_validator(mode="after")
    def _complete(self) -> Readings:
        check_readings(self)
        return self

    @model_serializer(mode="wrap")
    def _said(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What messages added is left out where it is not used: what is frozen of a job on files stays the same."""
        return {
            name: value
            for name, value in handler(self).items()
            if name not in (*MESSAGE_FIELDS, "decimal", "wide")
            or value != Readings.model_fields[name].get_default(call_default_factory=True)
        }

    def canonical(self) -> dict[str, Any]:
        """What a ledger freezes of the readings: the mapping, and a fingerprint of the key instead of its place.

        Raises:
            SettingsError: the key of the pseudonyms is not where the settings say.
        """
        form = self.model_dump(mode="json", exclude={"max_bytes", "remember", "decimal", "wide"})
        if self.wide is not None:  # the columns that are left out are part of the file, as the others are
            form["wide"] = self.wide.columns
        return form if self.pseudonyms is None else form | {"pseudonyms": self.pseudonyms.key().fingerprint}

    @property
    def time_columns(self) -> tuple[str, ...]:
        """The columns of the event time."""
        if isinstance(self.time, list):
            return tuple(self.time)
        column = column_of(self.time)
        return () if column is None else (column,)

    def check_columns(self) -> None:
        """See whether a file can serve the mapping.

        Raises:
            SettingsError: it names what only messages have; one line for every such setting.
        """
        problems = columns_problems(self)
        if problems:
            raise SettingsError(problems)
