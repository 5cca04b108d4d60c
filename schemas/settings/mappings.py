"""The section ``readings``: where the parts of a reading are in a file or message, and how they are read.

Where a part is says a place (:mod:`.places`). This module has the section as a whole: the presets, what of a mapping
fits what, and which of it a ledger freezes. A recipe is a preset that is a mapping: a file of the folder ``recipes``
that says, in JMESPath, where the parts are in the messages of a platform or a device, and has some of these messages;
the settings may name every part otherwise. A published recipe keeps its meaning, because ledgers freeze its name:
another form of the messages is a recipe of another name.

>>> RECIPES["zigbee2mqtt"].readings["time"]
'last_seen || stamp'
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Literal, cast

import yaml
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    Tag,
    WithJsonSchema,
    field_validator,
    model_serializer,
    model_validator,
)

from ..slots import parse_duration
from .base import Duration, Name, Number, Positive, Section, SettingsError
from .places import (
    Condition,
    Constant,
    FieldPlace,
    Place,
    SeriesPlace,
    Steps,
    TimePlace,
    ValuePlace,
    column_of,
    levels_of,
    parts_of,
    paths_of,
    place_text,
)
from .secrets import Pseudonyms

#: Fields that say how the times of the recipe are written: they are of its own ``time`` only.
_OF_TIME = ("time_unit", "time_format")


@dataclass(frozen=True)
class Recipe:
    """A preset that is a mapping."""

    name: str  # what the settings call it
    called: tuple[str, ...]  # names under which people search for it
    about: str  # what it reads, in a sentence or two
    topic: str  # the topics that its messages are on; empty where that does not matter
    readings: Mapping[str, Any]  # what it says of ``readings``
    named: tuple[str, ...]  # what else the settings must name
    messages: Sequence[Mapping[str, Any]]  # some that it reads, with values of our own: topic, headers, payload

    @property
    def missing(self) -> tuple[str, ...]:
        """The parts of a reading that the settings must name."""
        return tuple(part for part in ("series", "time", "value", *self.named) if part not in self.readings)


class _Recipes(Mapping[str, Recipe]):
    """The recipes by name. A file is read when its recipe is asked for: most jobs use none."""

    def __init__(self) -> None:
        found = [file for file in files(__package__ or "").joinpath("recipes").iterdir() if file.name.endswith(".yaml")]
        self._files = dict(sorted((file.name.removesuffix(".yaml"), file) for file in found))
        self._read: dict[str, Recipe] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def __getitem__(self, name: str) -> Recipe:
        found = self._read.get(name)
        if found is None:
            given = yaml.safe_load(self._files[name].read_text(encoding="utf-8"))
            found = self._read[name] = Recipe(
                name=name,
                called=tuple(given["called"]),
                about=" ".join(given["about"].split()),
                topic=given.get("topic", ""),
                readings=given["readings"],
                named=tuple(given.get("named", ())),
                messages=given["messages"],
            )
        return found


#: The recipes by name.
RECIPES: Mapping[str, Recipe] = _Recipes()


def with_recipe(given: dict[str, Any]) -> dict[str, Any]:
    """The section ``readings`` with what its recipe adds; what the settings say goes before it."""
    name = given.get("preset")
    recipe = RECIPES.get(name) if isinstance(name, str) else None
    if recipe is None:
        return given
    added = dict(recipe.readings)
    if given.get("time") is not None:
        for field in _OF_TIME:
            added.pop(field, None)
    else:
        given = {field: value for field, value in given.items() if field not in _OF_TIME}
    return added | {field: value for field, value in given.items() if value is not None}


Payload = Literal["json", "ndjson", "csv", "cbor", "msgpack", "avro", "avro-single"]
"""How the payload of a message is written."""

#: Presets that take the payload apart by a convention of its own, whose values have names.
NAMED = ("green-button", "cim", "dsmr")

#: Conventions that are known by name: those, and the recipes.
PRESETS = (*NAMED, *RECIPES)


def _known(name: str) -> str:
    if name not in PRESETS:
        near = get_close_matches(name, PRESETS, 3)
        raise ValueError(f"{name!r} is no preset; {'did you mean ' + ' or '.join(near) if near else _SEE_PRESETS}")
    return name


_SEE_PRESETS = "docs/mappings.md and docs/recipes.md list the presets"

Preset = Annotated[str, AfterValidator(_known), WithJsonSchema({"type": "string", "enum": list(PRESETS)})]
"""Conventions that are known by name."""


Expression = Annotated[str, Field(min_length=1, max_length=2_000)]
"""A JMESPath expression over a message."""

_Where = Annotated[
    Annotated[Expression, Tag("Expression")] | Annotated[list[Condition], Field(max_length=20), Tag("Conditions")],
    Discriminator(lambda given: "Expression" if isinstance(given, str) else "Conditions"),
]

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
        "columns",
        "compression",
        "delimiter",
        "max_bytes",
        "where",
        "each",
        "of",
        "units",
    }
)

#: Presets whose messages say themselves which series they are of, or may.
_UNNAMED_VALUE = "green-button"

#: The preset some of whose versions have no time.
_OWN_TIME = "dsmr"


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
        parts = ("series", "time", "value")
        parts += RECIPES[preset].missing if preset is not None else ()
        missing = [one for one in dict.fromkeys(parts) if getattr(readings, one) in (None, [])]
        problems += [
            f"readings.{one} is missing; add it (see `quiltstream init` for a commented example)" for one in missing
        ]
    if readings.ambiguous == "in-order" and readings.until is not None:
        problems.append(
            "readings.ambiguous is in-order, and intervals have not both hours one after the other; set earliest or "
            "latest"
        )
    problems += _expression_problems(readings)
    if isinstance(readings.time, Place) and readings.time.level is not None:
        problems.append("readings.time: a level holds no time; name the whole header or key")
    problems += _misplaced(readings)
    if isinstance(readings.series, Constant) and readings.pseudonyms is not None:
        problems.append(
            "readings.pseudonyms: the only series is named in readings.series, in clear; write a pseudonym there and "
            "leave pseudonyms out"
        )
    if readings.avro_schemas and readings.payload != "avro-single":
        problems.append("readings.avro_schemas is of payload: avro-single; leave it out, or set the payload")
    if readings.payload == "avro-single" and not readings.avro_schemas:
        problems.append("readings.avro_schemas is missing: avro-single payloads only name the digest of their schema")
    problems += [
        f"readings.{name} is of payload: csv; leave it out, or set the payload"
        for name in ("columns", "delimiter")
        if readings.payload != "csv" and getattr(readings, name) != _default(name)
    ]
    if problems:
        raise ValueError("; ".join(problems))


def _expression_problems(readings: Readings) -> list[str]:
    """What does not fit JMESPath, which says all of a message where it says ``each``."""
    if readings.each is None:
        given = [name for name in ("of", "units") if getattr(readings, name) is not None]
        given += ["where"] if isinstance(readings.where, str) else []
        return [f"readings.{name} is JMESPath, and readings.each is missing; add it" for name in given]
    said: dict[str, object] = {"time": readings.time, "value": readings.value}
    if not isinstance(readings.series, Constant):
        said["series"] = readings.series
    said |= {f"attributes.{name}": one for name, one in readings.attributes.items()}
    problems = [
        f"readings.{name} is no text; beside readings.each it is JMESPath, for example {_EXAMPLES.get(name, 'room')!r}"
        for name, one in said.items()
        if not isinstance(one, str) and getattr(readings, name, one) is not None
    ]
    if readings.where and not isinstance(readings.where, str):
        problems.append('readings.where is a list; beside readings.each it is JMESPath, for example "power != null"')
    if readings.units is not None and not readings.unit.strip():
        problems.append("readings.unit is missing: the unit that the units in the messages are converted to")
    return problems


_EXAMPLES = {"series": "topic[1]", "time": "stamp", "value": "value"}


def _misplaced(readings: Readings) -> list[str]:
    """Operators that stand at a part of the reading that they are not for."""
    problems: list[str] = []
    named = [("series", readings.series), ("time", readings.time), ("value", readings.value)]
    for name, place in [*named, *((f"attributes.{one}", place) for one, place in readings.attributes.items())]:
        if name != "time" and any(isinstance(one, Place) and one.stamp for one in parts_of(place)):
            problems.append("the broker's stamp is a time; name it in readings.time only")
        if not isinstance(place, Place):
            continue
        if place.every is not None and name != "time":
            problems.append(f"readings.{name}.every is of readings.time only; leave it out")
        if (place.unit is not None or place.sum is not None) and name != "value":
            problems.append(f"readings.{name}: unit and sum are of readings.value only")
        if place.join is not None and name in {"time", "value"}:
            problems.append(f"readings.{name}.join makes a name; {name} is none")
        if place.unit is not None and not readings.unit.strip():
            problems.append("readings.unit is missing: the unit that the units in the messages are converted to")
    return problems


def _named_time_problems(readings: Readings) -> list[str]:
    """What does not fit the time of such a preset: only telegrams of DSMR may lack one of their own."""
    time = readings.time
    if time is None:
        return []
    if readings.preset != _OWN_TIME or not isinstance(time, Place):
        return [f"readings.time is set, and preset {readings.preset} has its own; leave it out"]
    if time.is_plain and time.steps is None:
        return []
    return [
        f"readings.time is {time.text}; under preset {readings.preset}, for telegrams that have no stamp, it is the "
        "broker's stamp, a header or the key"
    ]


def _named_problems(readings: Readings) -> list[str]:
    """What does not fit a preset that takes the payload apart by its own convention."""
    problems: list[str] = []
    preset = readings.preset
    if readings.payload != "json":
        problems.append(f"readings.payload is {readings.payload}, and preset {preset} has its own; leave it out")
    problems += _named_time_problems(readings)
    if readings.time_format is not None or readings.time_unit != "s":
        problems.append(f"readings.time_unit or time_format is set, and preset {preset} has its own; leave it out")
    if readings.value is None and preset != _UNNAMED_VALUE:
        problems.append(f"readings.value is missing: the name that the value has under preset {preset}")
    if readings.where:
        problems.append(f"readings.where is of mappings, and preset {preset} has its own; leave it out")
    if isinstance(readings.value, Place):
        problems.append(f"readings.value is {readings.value.text}; under preset {preset} it is a name, in plain text")
    for name, place in (("series", readings.series), *(readings.attributes.items())):
        if isinstance(place, str) or (
            isinstance(place, Place) and (place.steps is not None or place.stamp or not place.is_plain)
        ):
            problems.append(
                f"readings.{name} is {place_text(place)!r}; under preset {preset} it is a topic level, a header or "
                "the key"
            )
    return problems


def _net(given: Any) -> Any:
    return {"net": True} if given == "net" else given


def check_message(readings: Readings, group: str | None) -> None:
    """Check the paths of a mapping: plain strings become paths only where the source has messages.

    Raises:
        ValueError: a plain string is no path, or two paths run over different arrays.
    """
    if readings.ambiguous == "in-order":
        raise ValueError(
            "readings.ambiguous is in-order, which is the order of a file's rows, and the source has messages; set "
            "earliest or latest"
        )
    if readings.select is not None:
        raise ValueError("readings is a SELECT, which reads files, and the source has messages; name places in them")
    if readings.cell == "rank" or (readings.length is not None and readings.length_us is None):
        word = "cell" if readings.cell == "rank" else "length"
        raise ValueError(f"readings.{word} names a column, and the source has messages; leave it out")
    if readings.preset in NAMED or readings.each is not None:
        if group is not None and group not in readings.attributes:
            raise ValueError(f"group_by is {group!r}, which is not among readings.attributes; say there where it is")
        return
    if isinstance(readings.time, list):
        raise ValueError("readings.time is a list of columns, which only files have; name one place")  # noqa: TRY004 - a setting
    levels_of(payload_paths(readings, group))
    parts = [steps for name in ("series", "time", "value") for steps in _paths_at(name, getattr(readings, name))]
    deepest = len(levels_of(parts))
    for number, one in enumerate(readings.conditions):
        path = one.place.steps
        if path is not None and len(levels_of([path])) > deepest:
            raise ValueError(
                f"readings.where[{number}] is {one.place.text}, which runs over an array that neither series, time nor "
                "value runs over, so a reading would come once for each element that it holds for; ask for one "
                "element ([0]), or for a field outside the array"
            )


def payload_paths(readings: Readings, group: str | None) -> list[Steps]:
    """The paths in the payload that a mapping names.

    Raises:
        ValueError: a plain string is no path.
    """
    places: dict[str, object] = {f"readings.{name}": getattr(readings, name) for name in ("series", "time", "value")}
    if group is not None:
        places["group_by"] = readings.attributes.get(group, group)
    places |= {f"readings.where[{number}]": one.place for number, one in enumerate(readings.conditions)}
    return [steps for setting, place in places.items() for steps in _paths_at(setting, place)]


def _paths_at(setting: str, place: object) -> list[Steps]:
    try:
        return paths_of(place)
    except ValueError as error:
        raise ValueError(f"{setting}: {error}") from None


def columns_problems(readings: Readings) -> list[str]:
    """What a file cannot serve, one line for every setting."""
    problems = [
        f"readings.{name} is set, and only messages have it; the source is files: leave it out"
        for name in ("preset", "avro_schemas", "attributes", "where", "each", "compression", "columns")
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


class Meter(Section):
    """A cumulative counter: its rise between two stands is shared out over the slots between them."""

    gap: Duration = Field(default="2h", description="stands further apart are not compared")
    most: Positive | None = Field(default=None, description="a larger rise is none")
    over_end: Positive | None = Field(default=None, description="what it counts to before it begins at 0 again")
    net: bool = Field(default=False, description="whether it may fall")


class Readings(Section):
    """Where the parts of a reading are, and how to read them: columns of a file, or places in a message."""

    select: str | None = Field(
        default=None,
        max_length=20_000,
        description="a row-wise SELECT over `files` that makes series, time and value; readings may be this text",
    )
    preset: Preset | None = Field(default=None, description="a convention of messages that is known by name")
    payload: Payload = Field(default="json", description="how the payload of a message is written")
    compression: Literal["gzip"] | None = Field(
        default=None, description="how the payload of a message is packed; unpacked it has at most max_bytes"
    )
    columns: list[Name] = Field(
        default_factory=list[Name],
        max_length=1_000,
        description="names of the columns of csv payloads; left out: the first line of each has them",
    )
    delimiter: Literal[",", ";", "\t", "|"] = Field(default=",", description="between the columns of csv payloads")
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
    until: Name | None = Field(
        default=None,
        description="column with the end of an interval that begins at time, of labels: each slot has the label that "
        "covers most of it; only of files that are all there",
    )
    length: Name | None = Field(
        default=None, description="what a reading covers, such as 30min, or the column with it: a duration, or seconds"
    )
    stamps: Literal["begin", "end"] = Field(
        default="begin", description="which end of what it covers a reading has as time"
    )
    register_: Annotated[Meter | None, BeforeValidator(_net)] = Field(
        default=None, alias="register", description="the value is a cumulative counter; net: one that may fall"
    )
    hold: Duration | None = Field(
        default=None, description="a value on change holds until the next one of its series, at most so long"
    )
    absent: Number | None = Field(
        default=None,
        description="value of a slot without a reading while its series is in the roster, in the unit of the edges",
    )
    cell: Literal["latest", "rank"] = Field(
        default="latest", description="of two readings of a slot the latest counts, or that with the higher column rank"
    )
    attributes: dict[Name, FieldPlace] = Field(
        default_factory=dict[Name, FieldPlace], description="names for places in a message that group_by may name"
    )
    where: _Where = Field(
        default_factory=list[Condition],
        description="what messages and elements of arrays are read; the others are passed over, which is no reject",
    )
    each: Expression | None = Field(
        default=None,
        description="JMESPath to the object that is a reading, or the array of them; then series, time, value and "
        "where are JMESPath too",
    )
    of: Expression | None = Field(default=None, description="JMESPath to the readings in each")
    units: Expression | None = Field(
        default=None, description="JMESPath to what a reading says of its unit; the value is converted to unit"
    )
    unit: str = Field(
        default="", description="unit of the column, for people; units that messages say are converted to it"
    )
    scale: Number = Field(default=1.0, description="factor from the column's unit to the unit of states.edges")
    time_format: str | None = Field(default=None, description="strptime format of text times; left out: ISO 8601")
    time_unit: Literal["s", "ms", "us", "ns"] = Field(
        default="s", description="unit of times given as numbers since 1970"
    )
    ambiguous: Literal["earliest", "latest", "in-order"] = Field(
        default="earliest",
        description="which of two instants a local time doubled by a clock change means; in-order: the later one from "
        "the row on whose time does not rise above the one before of its series, in a file of rising times",
    )
    pseudonyms: Pseudonyms | None = Field(
        default=None, description="replace the names of series by keyed hashes; where the key is"
    )
    avro_schemas: list[dict[str, Any]] = Field(
        default_factory=list[dict[str, Any]], description="the writers' schemas of avro-single payloads"
    )
    max_bytes: int = Field(default=1_000_000, gt=0, description="a larger message is a reject, packed or unpacked")

    @field_validator("scale")
    @classmethod
    def _scale(cls, value: float) -> float:
        if not math.isfinite(value) or value == 0:
            raise ValueError(
                f"{value} must be finite and not 0; write how much of the unit of states.edges one unit of the value "
                "is, or leave it out: it is then 1"
            )
        return value

    @field_validator("time")
    @classmethod
    def _time(cls, value: str | list[str] | Place | None) -> str | list[str] | Place | None:
        if value is not None and not value:
            raise ValueError("name at least one column")
        return value

    @model_validator(mode="before")
    @classmethod
    def _with_recipe(cls, given: Any) -> Any:
        given = {"select": given} if isinstance(given, str) else given
        if isinstance(given, dict) and given.get("select") is not None:
            given = _of_select(cast("dict[str, Any]", given))
        return with_recipe(cast("dict[str, Any]", given)) if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _complete(self) -> Readings:
        check_readings(self)
        return self

    @model_serializer(mode="wrap")
    def _said(self, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        """What messages added is left out where it is not used: what is frozen of a job on files stays the same.

        What a recipe says is left out as well: its name stands for it.
        """
        # the field has an underscore, and the setting none
        said = {f"{name}_" if name == "register" else name: value for name, value in handler(self).items()}
        added = _said_by(self.preset) if self.preset in RECIPES else {}
        if "register" in added and self.register_ == Meter.model_validate(added["register"]):
            said.pop("register_", None)
        if "time" in added and said.get("time") == added["time"]:
            # the unit and format of the recipe's own time
            of_time = {name: _default(name) for name in ("time_unit", "time_format") if name in said and name in added}
            said = {name: of_time.get(name, value) for name, value in said.items()}
        return {
            name.rstrip("_"): value
            for name, value in said.items()
            if value != _default(name)
            or not (name in {*MESSAGE_FIELDS, *WORDS, "select", "until"} or info.exclude_defaults)
            if name not in MESSAGE_FIELDS or name not in added or value != added[name]
        }

    def canonical(self) -> dict[str, Any]:
        """What a ledger freezes of the readings: the mapping, and a fingerprint of the key instead of its place.

        Raises:
            SettingsError: the key of the pseudonyms is not where the settings say.
        """
        form = self.model_dump(mode="json", exclude={"max_bytes"})
        return form if self.pseudonyms is None else form | {"pseudonyms": self.pseudonyms.key().fingerprint}

    @property
    def length_us(self) -> int | None:
        """What each reading covers, in microseconds; ``None`` where a column says it, or nothing."""
        try:
            return None if self.length is None else parse_duration(self.length)
        except ValueError:
            return None

    @property
    def conditions(self) -> list[Condition]:
        """The conditions of a mapping by places."""
        return [] if isinstance(self.where, str) else self.where

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

    def check_followed(self) -> None:
        """See whether files that are followed, or standard input, can serve the mapping.

        Raises:
            SettingsError: it needs what is known only when all readings of a series are there.
        """
        if self.ambiguous == "in-order":
            raise SettingsError(
                "readings.ambiguous is in-order, and files that are followed may be read from their middle on; set "
                "earliest or latest"
            )
        if self.until is not None:
            raise SettingsError(
                "readings.until: which label covers most of a slot is known when all of a series are there, and files "
                "that are followed are read as they appear: use quiltstream run without --live"
            )


#: The words about several rows of a series.
WORDS = ("length", "stamps", "register_", "hold", "cell", "absent")

#: What goes beside a SELECT: how the times and values that it makes are read.
_BESIDE_SELECT = {"select", "unit", "scale", "time_format", "time_unit", "ambiguous", "pseudonyms", "register", *WORDS}


def _of_select(given: dict[str, Any]) -> dict[str, Any]:
    """The columns that a SELECT makes."""
    columns = {name: name for name in ("series", "time", "value")}
    if more := [name for name in given if name not in _BESIDE_SELECT and given[name] != columns.get(name)]:
        raise ValueError(f"readings.{more[0]} is beside readings.select, whose columns are the readings; leave it out")
    return columns | given


def _default(name: str) -> Any:
    return Readings.model_fields[name].get_default(call_default_factory=True)


@cache
def _said_by(recipe: str) -> dict[str, Any]:
    """What a recipe says, in the form in which the settings are written."""
    given = dict(RECIPES[recipe].readings)
    stand_in = dict.fromkeys(RECIPES[recipe].missing, "x")
    whole = Readings.model_validate(stand_in | given).model_dump(mode="json")
    return {name: whole[name] for name in given if name in whole}
