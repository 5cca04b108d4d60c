"""What is said of settings that cannot be used, and how their text becomes plain data.

>>> read_document("{query: weekly-load}", "settings")
{'query': 'weekly-load'}
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import ValidationError


class SettingsError(ValueError):
    """Settings that cannot be used.

    Attributes:
        problems: one line each: the field, the value, the limit and the next step.
    """

    def __init__(self, problems: Iterable[str] | str) -> None:
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        # one text, so that pickles and exceptions made anew from it by a runner say the same
        super().__init__("\n".join(self.problems))


@dataclass(frozen=True, slots=True)
class Explained:
    """Where it is said what a document's settings are.

    Attributes:
        schema: a command that lists all of them.
        example: where to see what one looks like.
    """

    schema: str
    example: str


#: The settings of a job.
OF_JOBS = Explained("`quiltstream schema`", "`quiltstream init` for a commented example")


def problems_of(error: ValidationError, explained: Explained = OF_JOBS) -> list[str]:
    """One line for every mistake: the field, the value, the limit and the next step.

    Args:
        error: what was found in the document.
        explained: where it is said what its settings are.
    """
    expected = {
        "extra_forbidden": f"is not a setting; remove it or check its spelling against {explained.schema}",
        "missing": f"is missing; add it (see {explained.example})",
    }
    found = error.errors(include_url=False)
    deepest: dict[str, int] = {}
    for one in found:
        deepest[str(one["loc"][:1])] = max(len(one["loc"]), deepest.get(str(one["loc"][:1]), 0))
    problems: list[str] = []
    for one in found:
        if any(str(part) in _VARIANTS for part in one["loc"]) and len(one["loc"]) < deepest[str(one["loc"][:1])]:
            continue  # a union reports every member it tried; the one that got furthest is what was meant
        place = ".".join(str(part) for part in one["loc"] if str(part) not in _VARIANTS) or "settings"
        message = one["msg"].removeprefix("Value error, ")
        if one["type"] in expected:
            line = f"{place} {expected[one['type']]}"
        elif one["type"] == "value_error":
            named = message.startswith(place) or (not one["loc"] and _NAMED.match(message))
            line = message if named else f"{place}: {message}"
        else:
            # the ledger's URL may hold a password
            given = "set" if place.startswith("ledger") else f"{one['input']!r}"
            if one["type"] in _SECTIONS:
                message = "it is a section of settings: give it as {name: value, ...}, or leave it out"
            if place in _NEXT:
                message += f"; {_NEXT[place]}"
            line = f"{place} is {given}: {message[:1].lower()}{message[1:]}"
        if line not in problems:
            problems.append(line)
    return problems


#: a message about the whole document that begins with the name of a setting
_NAMED = re.compile(r"[a-z_]+\.[a-z_]+\b")

#: pydantic's types of the mistake that a section is no mapping, whose messages name classes of this package
_SECTIONS = frozenset({"model_type", "model_attributes_type", "dict_type"})

#: what to do about a setting whose limit alone does not say it
_NEXT = {
    "privacy.epsilon": "write what the query may tell about one slot of one series, for example 1.0",
    "privacy.budget": "write what all queries of the domain may tell together, or leave it out: it is then epsilon",
}

#: what pydantic puts into a location to say which member of a union it tried
_VARIANTS = frozenset(
    {
        "MappingFile",
        "RosterColumn",
        "str",
        "list[str]",
        "Constant",
        "Place",
        "RegisterValue",
        "Bounds",
        "EstimatedModel",
        "RosterFile",
        "RejectsFile",
        "Break",
        "literal['public','state']",
    }
)


class _UniqueKeys(yaml.SafeLoader):
    """YAML as plain data, refusing a key that stands twice: the second would silently win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for place, key in enumerate(keys):
            if key in keys[:place]:
                raise yaml.constructor.ConstructorError(None, None, "a doubled key", node.value[place][0].start_mark)
        return super().construct_mapping(node, deep)


def read_document(text: str, name: str, explained: Explained = OF_JOBS) -> dict[str, Any]:
    """Read a YAML or JSON mapping as plain data.

    Args:
        text: the document.
        name: what messages call it.
        explained: where it is said what its settings are.

    Raises:
        SettingsError: it is not YAML, a key stands twice, or it is not a mapping.
    """
    try:
        document = yaml.load(text, _UniqueKeys)  # noqa: S506 - a safe loader that also refuses doubled keys
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        what = "a setting stands twice" if getattr(error, "problem", "") == "a doubled key" else "not YAML"
        raise SettingsError([f"{name}: {what}{where}; check keys, indentation, brackets and quotes there"]) from None
    if not isinstance(document, dict):
        raise SettingsError([f"{name}: a mapping of settings is expected (see {explained.example})"])
    return document
