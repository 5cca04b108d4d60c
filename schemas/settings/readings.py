"""The section ``readings``: columns of a file, or JMESPath over a message, and how they are read.

With ``each`` the source has messages, and the parts of a reading are expressions
(:mod:`quiltstream.transforms.payloads.expressions` evaluates them); without it they are columns. A recipe
(:mod:`.recipes`) names such expressions; the settings may say every part otherwise. This module also has what of
them fits what, and what a ledger freezes.
"""

from __future__ import annotations

import math
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, Literal, cast

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

from ..errors import ArgumentError
from ..slots import parse_duration
from .base import Duration, Name, Number, Positive, Section, SettingsError
from .recipes import RECIPES
from .secrets import Pseudonyms

#: Fields that say how the times of the recipe are written: they are of its own ``time`` only.
_OF_TIME = ("time_unit", "time_format")


def with_recipe(given: dict[str, Any]) -> dict[str, Any]:
    """The section ``readings`` with what its recipe adds; what the settings say goes before it."""
    name = given.get("recipe")
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


Payload = Literal["json", "ndjson", "csv", "cbor", "msgpack", "avro", "avro-single", "cim", "dsmr"]
"""How the payload of a message is written."""


def _known(name: str) -> str:
    if name not in RECIPES:
        near = get_close_matches(name, RECIPES, 3)
        raise ArgumentError(f"{name!r} is no recipe; {'did you mean ' + ' or '.join(near) if near else _SEE_RECIPES}")
    return name


_SEE_RECIPES = "docs/messages.md lists them"

RecipeName = Annotated[str, AfterValidator(_known), WithJsonSchema({"type": "string", "enum": list(RECIPES)})]
"""The name of a recipe."""

Expression = Annotated[str, Field(min_length=1, max_length=2_000)]
"""A JMESPath expression over a message."""


class Constant(Section):
    """A name for the only series of a source that has no column of names."""

    constant: Name = Field(description="name of the only series of a source without a column of names")


def _form(given: Any) -> str:
    """Which form of a part is meant, so that a mistake in it is reported as one of that form."""
    if isinstance(given, (list, tuple)):
        return "list[str]"
    if isinstance(given, Constant) or (isinstance(given, dict) and "constant" in given):
        return "Constant"
    return "str"


_Text = Annotated[str, Tag("str")]
_Series = Annotated[_Text | Annotated[Constant, Tag("Constant")], Discriminator(_form)]
_Time = Annotated[_Text | Annotated[list[str], Tag("list[str]")], Discriminator(_form)]


#: Settings that only messages have; left out of what is frozen where they are not used.
MESSAGE_FIELDS = frozenset(
    {
        "recipe",
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


def check_readings(readings: Readings) -> None:
    """Check a mapping as far as it does not depend on the source.

    Raises:
        ValueError: a part is missing, or does not fit another.
    """
    recipe = readings.recipe
    parts = ("series", "time", "value")
    parts += RECIPES[recipe].missing if recipe is not None else ()
    missing = [one for one in dict.fromkeys(parts) if getattr(readings, one) is None]
    problems = [
        f"readings.{one} is missing; add it (see `quiltstream init` for a commented example)" for one in missing
    ]
    problems += _expression_problems(readings)
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
        raise ArgumentError("; ".join(problems))


def _expression_problems(readings: Readings) -> list[str]:
    """What does not fit JMESPath, which says all of a message where it says ``each``."""
    if readings.each is None:
        given = [name for name in ("of", "units", "where") if getattr(readings, name) is not None]
        return [f"readings.{name} is JMESPath, and readings.each is missing; add it" for name in given]
    problems: list[str] = []
    if isinstance(readings.time, list):
        problems.append("readings.time is a list of columns; beside readings.each it is JMESPath, for example 'stamp'")
    if readings.units is not None and not readings.unit.strip():
        problems.append("readings.unit is missing: the unit that the units in the messages are converted to")
    return problems


def _net(given: Any) -> Any:
    return {"net": True} if given == "net" else given


def check_message(readings: Readings, group: str | None) -> None:
    """Check a mapping of messages.

    Raises:
        ValueError: it has what only files have, or names no readings in a message.
    """
    if readings.ambiguous == "in-order":
        raise ArgumentError(
            "readings.ambiguous is in-order, which is the order of a file's rows, and the source has messages; set "
            "earliest or latest"
        )
    if readings.select is not None:
        raise ArgumentError("readings is a SELECT, which reads files, and the source has messages: write readings.each")
    if readings.each is None:
        raise ArgumentError(
            "readings.each is missing: JMESPath to what is a reading in a message, for example payload; series, time "
            "and value begin there"
        )
    if group is not None and group not in readings.attributes:
        raise ArgumentError(f"group_by is {group!r}, which is not among readings.attributes; say there where it is")


def columns_problems(readings: Readings) -> list[str]:
    """What a file cannot serve, one line for every setting."""
    problems = [
        f"readings.{name} is set, and only messages have it; the source is files: leave it out"
        for name in ("recipe", "avro_schemas", "attributes", "each", "compression", "columns")
        if getattr(readings, name)
    ]
    if readings.payload != "json":
        problems.append("readings.payload is set, and the source is files, whose format says how they are written")
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
    recipe: RecipeName | None = Field(default=None, description="messages of a platform or device, known by its name")
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
    series: _Series | None = Field(
        default=None,
        description="column with the name of the meter or wearer, {constant: NAME}, or JMESPath in a message; needed, "
        "as time and value are, unless a recipe says it",
    )
    time: _Time | None = Field(
        default=None,
        description="column with the event time, or JMESPath in a message; several columns are joined with a blank",
    )
    value: str | None = Field(default=None, description="column with the measured value, or JMESPath in a message")
    length: Name | None = Field(
        default=None,
        description="what a reading covers, such as 30min, or the column or JMESPath with it: a duration, or seconds",
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
    fill: Literal["before"] | None = Field(
        default=None,
        description="a slot without a value has that of the last one with a value, at most 26 hours before; absent is "
        "that of the others",
    )
    cell: Literal["latest", "rank"] = Field(
        default="latest", description="of two readings of a slot the latest counts, or that with the higher rank"
    )
    attributes: dict[Name, Expression] = Field(
        default_factory=dict[Name, Expression], description="names for JMESPath in a message that group_by may name"
    )
    where: Expression | None = Field(
        default=None,
        description="JMESPath that holds for messages and elements that are read; others are passed over, no reject",
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
        description="which instant a local time doubled by a clock change means; in-order: by a file of rising times",
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
            raise ArgumentError(
                f"{value} must be finite and not 0; write how much of the unit of states.edges one unit of the value "
                "is, or leave it out: it is then 1"
            )
        return value

    @field_validator("time")
    @classmethod
    def _time(cls, value: str | list[str] | None) -> str | list[str] | None:
        if value is not None and not value:
            raise ArgumentError("name at least one column")
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
        added = {} if self.recipe is None else _said_by(self.recipe)
        if "register" in added and self.register_ == Meter.model_validate(added["register"]):
            said.pop("register_", None)
        if "time" in added and said.get("time") == added["time"]:
            # the unit and format of the recipe's own time
            of_time = {name: _default(name) for name in ("time_unit", "time_format") if name in said and name in added}
            said = {name: of_time.get(name, value) for name, value in said.items()}
        return {
            name.rstrip("_"): value
            for name, value in said.items()
            if value != _default(name) or not (name in {*MESSAGE_FIELDS, *WORDS, "select"} or info.exclude_defaults)
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
    def time_columns(self) -> tuple[str, ...]:
        """The columns of the event time."""
        if isinstance(self.time, list):
            return tuple(self.time)
        return () if self.time is None else (self.time,)

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


#: The words about several rows of a series.
WORDS = ("length", "stamps", "register_", "hold", "cell", "absent", "fill")

#: What goes beside a SELECT: how the times and values that it makes are read.
_BESIDE_SELECT = {"select", "unit", "scale", "time_format", "time_unit", "ambiguous", "pseudonyms", "register", *WORDS}


def _of_select(given: dict[str, Any]) -> dict[str, Any]:
    """The columns that a SELECT makes."""
    columns = {name: name for name in ("series", "time", "value")}
    if more := [name for name in given if name not in _BESIDE_SELECT and given[name] != columns.get(name)]:
        raise ArgumentError(
            f"readings.{more[0]} is beside readings.select, whose columns are the readings; leave it out"
        )
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
