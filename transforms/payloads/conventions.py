"""Conventions by the settings: what finds the readings of messages, for each preset and each kind of payload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...schemas.mappings import MAPPED, NAMED, Constant, Place, RegisterValue
from ...schemas.settings import Readings, SettingsError
from ..messages import Messages
from .avro import AvroParser, SchemaLookup, known_schemas
from .births import Births
from .documents import Wanted
from .dsmr import check_codes, dsmr_rows
from .edgex import edgex_rows
from .espi import DEFAULT_UNIT, check_unit, espi_rows, xml_parser
from .fields import field_column
from .mapped import Mapping, mapped_rows
from .ngsi import ngsi_rows
from .parsing import Apart, Parsed, cbor_parser, parse_json
from .rows import RowList, Rows
from .senml import parse_senml, senml_rows
from .sparkplug import sparkplug_rows
from .thingsboard import thingsboard_rows

#: From messages, and the numbers of those with a payload, to their readings.
Convention = Callable[[Messages, list[int]], list[Rows]]

#: Units of the times of the presets that have numbers.
_UNITS = {"thingsboard": "ms", "edgex": "ns", "sparkplug": "ms"}


def time_unit_of(readings: Readings) -> Any:
    """The unit of times given as numbers: the settings', or that of a preset's own times."""
    if readings.preset in NAMED:
        return _UNITS.get(readings.preset, "s")
    if readings.preset is not None and readings.time is None:
        return MAPPED[readings.preset].get("time_unit", readings.time_unit)
    return readings.time_unit


def births_of(readings: Readings, memory: str) -> Births | None:
    """What is remembered of births; ``None`` under conventions that have none.

    Args:
        readings: the mapping.
        memory: what another one remembered, as text.
    """
    return Births(_name_of(readings), readings.remember, memory) if readings.preset == "sparkplug" else None


def convention_of(
    readings: Readings,
    timezone: str,
    group: str | None,
    schemas: SchemaLookup | None,
    births: Births | None,
) -> Convention:
    """What takes messages apart.

    Args:
        readings: the mapping.
        timezone: zone of stamps without an offset.
        group: the attribute, or path, with the group; ``None`` without groups.
        schemas: gives the schema of an id of Avro's wire format.
        births: those of :func:`births_of`.

    Raises:
        SettingsError: a library or schema for it is missing, or the name of the value is none.
    """
    if readings.preset in NAMED:
        return _named(readings, timezone, None if group is None else readings.attributes[group], births)
    mapping = Mapping.of(readings, group)
    parse = _parser(readings, mapping, schemas)

    def rows(messages: Messages, chosen: list[int]) -> list[Rows]:
        return [mapped_rows(messages, parsed, mapping) for parsed in parse(_payloads(messages, chosen), chosen)]

    return rows


def _parser(
    readings: Readings, mapping: Mapping, schemas: SchemaLookup | None
) -> Callable[[Sequence[bytes], Sequence[int]], Sequence[Parsed | Apart]]:
    if readings.payload == "avro-single":
        return AvroParser(known_schemas(readings.avro_schemas), mapping.paths, single=True)
    if readings.payload == "avro":
        if schemas is None:
            raise SettingsError(["readings.payload is avro, which needs a schema registry; name it in the source"])
        return AvroParser(schemas, mapping.paths)
    parse = cbor_parser() if readings.payload == "cbor" else parse_json
    return lambda payloads, numbers: [parse(payloads, numbers)]


def _payloads(messages: Messages, chosen: list[int]) -> list[Any]:
    payloads = messages.payloads
    return [payloads[number] for number in chosen]


def _name_of(readings: Readings) -> str:
    """The name that the value has under a preset."""
    value = readings.value
    name = value.register_.name if isinstance(value, RegisterValue) else value
    return DEFAULT_UNIT if name is None else str(name)


def _named(readings: Readings, timezone: str, group: str | Place | None, births: Births | None) -> Convention:
    """The convention of a preset that takes payloads apart by itself."""
    name, place, unit = _name_of(readings), readings.series, readings.unit.strip()
    find = _finder(readings, name, births)

    def rows(messages: Messages, chosen: list[int]) -> list[Rows]:
        series = (
            dict(zip(chosen, field_column(place, messages, chosen), strict=True))
            if isinstance(place, (Place, Constant))
            else None
        )
        groups: list[Any] | None = None
        if isinstance(group, Place):
            groups = [None] * len(messages)
            for number, one in zip(chosen, field_column(group, messages, chosen), strict=True):
                groups[number] = one
        return [find(messages, chosen, Wanted(name, series, timezone, unit)).rows(groups)]

    return rows


def _finder(readings: Readings, name: str, births: Births | None) -> Callable[[Messages, list[int], Wanted], RowList]:
    """What finds the readings of a preset."""
    preset = str(readings.preset)
    if births is not None:
        return lambda messages, chosen, wanted: sparkplug_rows(messages, chosen, births, wanted)
    if preset == "dsmr":
        check_codes(name, readings.unit.strip())
        return lambda messages, chosen, wanted: dsmr_rows(_payloads(messages, chosen), chosen, wanted)
    if preset == "green-button":
        check_unit(name)
        xml = xml_parser()
        return lambda messages, chosen, wanted: espi_rows(xml(_payloads(messages, chosen), chosen), wanted)
    if preset == "senml":
        cbor = cbor_parser()
        return lambda messages, chosen, wanted: senml_rows(
            messages, parse_senml(_payloads(messages, chosen), chosen, cbor), wanted
        )
    walk = {"thingsboard": thingsboard_rows, "edgex": edgex_rows, "ngsi-ld": ngsi_rows}[preset]
    return lambda messages, chosen, wanted: walk(messages, parse_json(_payloads(messages, chosen), chosen), wanted)


__all__ = ["Convention", "births_of", "convention_of", "time_unit_of"]
