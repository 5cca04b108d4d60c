"""Places: where a part of a reading is in a file or a message, and the operators that make one part of several places.

A place is a path in the payload, a column, a level of the topic, a header, the key, the payload as a whole, or the
broker's own stamp; ``first``, ``sum`` and ``join`` combine places. A plain string is a column of a file, and a path in
the payload of a message. This module has the language; :mod:`quiltstream.transforms.payloads.mapped` evaluates it, and
the page on mappings has its table.

>>> path_steps("readings[*].value")
('readings', None, 'value')
>>> path_steps("$.body[json].power")
('body', <Do.JSON: 'json'>, 'power')
>>> Place(topic=2).text
'topic level 2'
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    field_validator,
    model_serializer,
    model_validator,
)

from ..slots import parse_duration
from .base import Name, Section


class Do(Enum):
    """A step of a path that is no field and no number of an element."""

    JSON = "json"
    """The text here is JSON: go on in what it holds."""
    BASE64 = "base64"
    """The text here is Base64: go on with the text that it holds."""
    FIELDS = "fields"
    """Every field of the object is a reading, as ``[*]`` is every element of an array."""
    NAME = "name"
    """The name of the field that ``[fields]`` is at."""
    NTH = "n"
    """The element of the same number as in the other arrays with ``[n]``: arrays that run side by side."""


#: One step of a path: a field, the number of an element, ``None`` for every element, or something to do.
Step = str | int | None | Do
Steps = tuple[Step, ...]

_TOKEN = re.compile(
    r'(?P<dot>\.)?(?:(?P<name>[^.\[\]"]+)|\["(?P<quoted>[^"]+)"\]|\[(?P<every>\*)\]|\[(?P<index>\d{1,6})\]'
    r"|\[(?P<do>json|base64|fields|name|n)\])"
)

#: Steps that make many readings of one message.
_MANY = (None, Do.FIELDS, Do.NTH)

MOST_STEPS = 20
MOST_WILDCARDS = 3
#: Places that one operator takes, and operators inside one another.
MOST_PARTS, MOST_DEPTH = 20, 3


def path_steps(path: str) -> Steps:
    """Take a path apart: fields between dots, ``["any name"]``, ``[0]`` for one element, ``[*]`` for every one.

    ``$`` is the whole document, and may stand before any path. The other steps are those of :class:`Do`.

    Raises:
        ValueError: it is no path.
    """
    steps: list[Step] = []
    at = 1 if path == "$" or path.startswith(("$.", "$[")) else 0
    start = at
    while at < len(path):
        token = _TOKEN.match(path, at)
        # a dot stands between two steps and before a name, and nowhere else
        if token is None or (token["dot"] is None) is not (token["name"] is None or at == 0):
            raise ValueError(f"{path!r} is no path at character {at + 1}; {_PATH_HELP}")
        if token["do"] is not None:
            step: Step = Do(token["do"])
            if step is Do.NAME and (not steps or steps[-1] is not Do.FIELDS):
                raise ValueError(f"{path!r}: [name] stands behind [fields] only; {_PATH_HELP}")
        else:
            step = None if token["every"] else int(token["index"]) if token["index"] else token["name"]
            step = token["quoted"] or step
        steps.append(step)
        at = token.end()
    many = sum(one in _MANY for one in steps)
    if (not steps and not start) or len(steps) > MOST_STEPS or many > MOST_WILDCARDS:
        raise ValueError(
            f"{path!r} has {len(steps)} steps with {many} wildcards; a path has 1 to {MOST_STEPS} and at "
            f"most {MOST_WILDCARDS}; {_PATH_HELP}"
        )
    if Do.NAME in steps and steps[-1] is not Do.NAME:
        raise ValueError(f"{path!r}: nothing is inside a name; end the path with [name]")
    return tuple(steps)


def path_text(steps: Steps) -> str:
    """The path of some steps, none of whose names has a double quote in it.

    >>> path_text(("a", None, "b.c", Do.NAME))
    'a[*]["b.c"][name]'
    """
    said = ""
    for step in steps:
        if isinstance(step, str):
            plain = step != "$" and not set(".[]") & set(step)
            said += (f".{step}" if said else step) if plain else f'["{step}"]'
        else:
            said += f"[{'*' if step is None else step.value if isinstance(step, Do) else step}]"
    return said or "$"


_PATH_HELP = 'write for example values.power, readings[*].value or values["name with a dot"]'


@dataclass(frozen=True, slots=True)
class Level:
    """One wildcard of a mapping: the arrays, or the fields of an object, whose elements are the objects of a level."""

    kind: Step  # ``None`` for the elements of an array, :attr:`Do.FIELDS` or :attr:`Do.NTH`
    # the beginnings of paths that lead to the level, the wildcard being the last step of each; several only where
    # arrays run side by side
    starts: tuple[Steps, ...]


def wildcards(steps: Steps) -> Steps:
    """The beginning of a path up to its last wildcard."""
    return steps[: max((at + 1 for at, step in enumerate(steps) if step in _MANY), default=0)]


def levels_of(paths: Iterable[Steps]) -> tuple[Level, ...]:
    """The wildcards of some paths, from the outermost to the innermost.

    Raises:
        ValueError: the paths run over different arrays.
    """
    levels: list[Level] = []
    for steps in paths:
        ends = [at + 1 for at, step in enumerate(steps) if step in _MANY]
        for number, end in enumerate(ends):
            kind, start = steps[end - 1], steps[:end]
            if kind is Do.NTH and end != ends[-1]:
                raise ValueError("[n] is the last wildcard of a path: name the array in it that [n] runs over")
            if number == len(levels):
                levels.append(Level(kind, (start,)))
                continue
            level = levels[number]
            beside = (
                kind is Do.NTH and level.kind is Do.NTH and wildcards(start[:-1]) == wildcards(level.starts[0][:-1])
            )
            if start not in level.starts and not beside:
                raise ValueError(
                    "the paths of readings run over different arrays ([*]); one message is one table, so each array "
                    "must be inside the one before, and arrays that run side by side have [n] instead of [*]"
                )
            if start not in level.starts:
                levels[number] = Level(kind, (*level.starts, start))
    if any(level.kind is Do.NTH for level in levels[:-1]):
        raise ValueError("[n] is the last wildcard of a path, and another path goes on behind it")
    return tuple(levels)


class Constant(Section):
    """A name for the only series of a source that has no column of names."""

    constant: Name = Field(description="name of the only series of a source without a column of names")


class _Compact(Section):
    """A section that is written without what is left out, so that its text says what was meant and nothing else."""

    @model_serializer(mode="wrap")
    def _said(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value is not None}


def _form(given: Any) -> str:
    """Which form of a place is meant, so that a mistake in it is reported as one of that form."""
    if isinstance(given, (list, tuple)):
        return "list[str]"
    if isinstance(given, Constant) or (isinstance(given, dict) and "constant" in given):
        return "Constant"
    return "Place" if isinstance(given, (dict, Place)) else "str"


class Place(_Compact):
    """Where one part of a reading is found: exactly one place, or one operator over places."""

    #: What a place is exactly one of.
    KINDS: ClassVar[tuple[str, ...]] = (
        *("column", "path", "topic", "header", "key", "stamp", "payload", "first", "sum", "join"),
    )

    column: str | None = Field(default=None, min_length=1, description="a column of a file, or a field of the payload")
    path: str | None = Field(default=None, description="a path in the payload, e.g. `readings[*].value`")
    topic: int | None = Field(default=None, description="a level of the topic, from 1; -1 is the last")
    header: Name | None = Field(default=None, description="a header of the message; the last one of that name")
    key: Literal[True] | None = Field(default=None, description="the key of the message")
    stamp: Literal[True] | None = Field(default=None, description="the broker's own time stamp; for time only")
    payload: Literal[True] | None = Field(default=None, description="the payload as a whole, as text or a number")
    first: list[Part] | None = Field(
        default=None, min_length=1, max_length=MOST_PARTS, description="the first of these places that has something"
    )
    sum: list[Part] | None = Field(
        default=None, min_length=1, max_length=MOST_PARTS, description="the numbers at these places added; for value"
    )
    join: list[Part] | None = Field(
        default=None,
        min_length=1,
        max_length=MOST_PARTS,
        description="the texts at these places as one name, with `/` between them",
    )
    level: int | None = Field(default=None, description="only this level of the header or key, between slashes")
    optional: Literal[True] | None = Field(
        default=None, description="a message or element that has nothing here is passed over and no reject"
    )
    unit: Literal[True] | Part | None = Field(
        default=None,
        description="where the value's unit is, or true where it stands behind the number in its text; the value is "
        "converted to readings.unit",
    )
    every: Part | None = Field(
        default=None,
        description="for time: the place is the time of the first element, and this is from each to the next: a "
        "duration such as `15min`, or where one is, in seconds or ISO 8601",
    )

    @field_validator("path")
    @classmethod
    def _readable(cls, path: str | None) -> str | None:
        if path is not None:
            path_steps(path)
        return path

    @model_validator(mode="after")
    def _one(self) -> Place:
        kinds = self.KINDS
        given = [kind for kind in kinds if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(f"name exactly one of {', '.join(kinds)}; {len(given)} are given")
        alien = [kind for kind in Place.KINDS if kind not in kinds and getattr(self, kind) is not None]
        if alien:
            raise ValueError(f"{alien[0]} is of no counter; leave it out")
        if self.level is not None and given[0] not in {"header", "key"}:
            raise ValueError(f"level is of a header or key, and {given[0]} is given; leave it out")
        if self.topic == 0 or self.level == 0:
            raise ValueError("0 is no level; the first level is 1, the last is -1")
        if _depth(self) > MOST_DEPTH:
            raise ValueError(f"at most {MOST_DEPTH} operators stand inside one another")
        inner = [*self.parts, *(one for one in (self.unit, self.every) if isinstance(one, Place))]
        for part in inner:
            if isinstance(part, Place) and (part.unit or part.every or part.optional):
                raise ValueError("unit, every and optional are of a whole place, and not of one inside another")
            if isinstance(part, Place) and part.stamp and self.first is None:
                raise ValueError("the broker's stamp is a time, and no part of another place but first")
            if isinstance(part, str):
                path_steps(part)
        return self

    @property
    def parts(self) -> tuple[str | Place | Constant, ...]:
        """The places that an operator takes; empty for a plain place."""
        return tuple(self.first or self.sum or self.join or ())

    @property
    def steps(self) -> Steps | None:
        """The path in the payload; ``None`` for what is beside the payload."""
        return _steps_of(self.column, self.path)

    @property
    def is_plain(self) -> bool:
        """Whether it is one place without an operator."""
        return not (self.parts or self.payload or self.optional or self.unit or self.every)

    @property
    def text(self) -> str:
        """The place in words."""
        if self.topic is not None:
            return f"topic level {self.topic}"
        if self.payload:
            return "the payload"
        if self.key or self.stamp:
            return "the key" if self.key else "the broker's stamp"
        for name, given in (("first", self.first), ("sum", self.sum), ("join", self.join)):
            if given is not None:
                return f"{name} of {', '.join(place_text(one) for one in given)}"
        kind = "column" if self.column is not None else "path" if self.path is not None else "header"
        return f"{kind} {self.column or self.path or self.header}"


def _steps_of(column: str | None, path: str | None) -> Steps | None:
    if column is not None:
        return (column,)
    return None if path is None else path_steps(path)


def _depth(place: object) -> int:
    if not isinstance(place, Place):
        return 0
    inner = max((_depth(part) for part in place.parts), default=0)
    return inner + bool(place.parts)


class Condition(_Compact):
    """What a message or an element must say to be read; others are passed over, which is no reject."""

    path: str | None = Field(default=None, description="a path in the payload")
    topic: int | None = Field(default=None, description="a level of the topic, from 1; -1 is the last")
    header: Name | None = Field(default=None, description="a header of the message")
    key: Literal[True] | None = Field(default=None, description="the key of the message")
    payload: Literal[True] | None = Field(default=None, description="the payload as a whole, as text")
    level: int | None = Field(default=None, description="only this level of the header or key, between slashes")
    equals: Scalar | list[Scalar] = Field(
        default_factory=list[Any], description="what stands there, or a list of what may; null is for nothing"
    )
    differs: Scalar | list[Scalar] = Field(
        default_factory=list[Any], description="what does not stand there, or a list of what may not"
    )
    exists: bool | None = Field(default=None, description="whether there is anything but null")

    @model_validator(mode="after")
    def _whole(self) -> Condition:
        self.place  # noqa: B018 - checked as a place is
        asked = [name for name in ("equals", "differs", "exists") if name in self.model_fields_set]
        if len(asked) != 1:
            raise ValueError(f"say exactly one of equals, differs and exists; {len(asked)} are given")
        return self

    @model_serializer(mode="wrap")
    def _said(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if name in self.model_fields_set}

    @property
    def place(self) -> Place:
        """Where it looks.

        Raises:
            ValueError: it names no place, or several.
        """
        names = ("path", "topic", "header", "key", "payload", "level")
        return Place(**{name: getattr(self, name) for name in names})

    @property
    def values(self) -> tuple[Any, ...]:
        """The values of ``equals`` or ``differs``."""
        given = self.equals if "equals" in self.model_fields_set else self.differs
        return tuple(given) if isinstance(given, list) else (given,)

    @property
    def negated(self) -> bool:
        """Whether a value that is among :attr:`values` passes a message over."""
        return "differs" in self.model_fields_set

    @property
    def is_of_one_value(self) -> bool:
        """Whether everything that is read says one value here, or nothing, which then stands for this value."""
        return "equals" in self.model_fields_set and len({one for one in self.values if one is not None}) == 1


Scalar = str | int | float | bool | None


_Text = Annotated[str, Tag("str")]
_Place = Annotated[Place, Tag("Place")]
_Constant = Annotated[Constant, Tag("Constant")]
Part = Annotated[_Text | _Constant | _Place, Discriminator(_form)]
SeriesPlace = Part
TimePlace = Annotated[_Text | Annotated[list[str], Tag("list[str]")] | _Place, Discriminator(_form)]
ValuePlace = Annotated[_Text | _Place, Discriminator(_form)]
FieldPlace = Annotated[_Text | _Place, Discriminator(_form)]

for _kind in (Place, Condition):
    _kind.model_rebuild()


def column_of(place: object) -> str | None:
    """The column of a file that a place means; ``None`` for places that only messages have."""
    if isinstance(place, Place):
        return place.column if place.is_plain else None
    return place if isinstance(place, str) else None


def place_text(place: object) -> str:
    """A place in words, for messages."""
    return place.text if isinstance(place, Place) else str(place)


def steps_of(place: str | Place) -> Steps | None:
    """The path of a place in the payload of a message; ``None`` for what is beside the payload, and for operators.

    Raises:
        ValueError: a plain string is no path.
    """
    return path_steps(place) if isinstance(place, str) else place.steps


def parts_of(place: object) -> Iterator[object]:
    """A place and all places inside it."""
    yield place
    if isinstance(place, Place):
        inner = [*place.parts, *(one for one in (place.unit, place.every) if one is not None and one is not True)]
        if isinstance(place.every, str) and duration_of(place.every) is not None:
            inner.remove(place.every)
        for part in inner:
            yield from parts_of(part)


def duration_of(every: object) -> int | None:
    """The microseconds of a duration; ``None`` for what is a place."""
    try:
        return parse_duration(every) if isinstance(every, str) else None
    except ValueError:
        return None


def paths_of(place: object) -> list[Steps]:
    """The paths in the payload that a place names.

    Raises:
        ValueError: a plain string is no path.
    """
    found = [steps_of(one) for one in parts_of(place) if isinstance(one, (str, Place))]
    return [one for one in found if one is not None]
