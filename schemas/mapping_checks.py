"""What is checked of a mapping as a whole: that its parts fit its preset, its payload, and one another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .mappings import (
    MAPPED,
    NAMED,
    Constant,
    Place,
    RegisterValue,
    Steps,
    column_of,
    place_text,
    steps_of,
    wildcards,
)

if TYPE_CHECKING:
    from .reading_settings import Readings

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
        missing = [one for one in ("series", "time", "value") if getattr(readings, one) is None and one not in given]
        problems += [
            f"readings.{one} is missing; add it (see `quiltstream init` for a commented example)" for one in missing
        ]
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
