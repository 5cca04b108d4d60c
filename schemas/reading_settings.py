"""The section ``readings`` of the settings: where the parts of a reading are, and how to read them."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from .mapping_checks import MESSAGE_FIELDS, check_readings, columns_problems
from .mappings import FieldPlace, Payload, Place, Preset, SeriesPlace, TimePlace, ValuePlace, column_of
from .pseudonyms import Pseudonyms
from .sections import Name, Number, Section
from .settings_text import SettingsError


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
    attributes: dict[Name, FieldPlace] = Field(
        default_factory=dict[Name, FieldPlace], description="names for places in a message that group_by may name"
    )
    unit: str = Field(default="", description="unit of the column, for people")
    scale: Number = Field(default=1.0, description="factor from the column's unit to the unit of states.edges")
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
            if name not in MESSAGE_FIELDS or value != Readings.model_fields[name].get_default(call_default_factory=True)
        }

    def canonical(self) -> dict[str, Any]:
        """What a ledger freezes of the readings: the mapping, and a fingerprint of the key instead of its place.

        Raises:
            SettingsError: the key of the pseudonyms is not where the settings say.
        """
        form = self.model_dump(mode="json", exclude={"max_bytes", "remember"})
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
