"""Recipes: the presets that are mappings, each a file of the folder ``recipes``.

A recipe says where the parts of a reading are in the messages of a platform or a device, in the words of the section
``readings``; the settings name it in ``readings.preset`` and may name every part otherwise. A recipe that was published
keeps its meaning, because ledgers freeze its name: what a platform sends in another form is a recipe of another name.

>>> RECIPES["hono"].readings["time"]
{'header': 'creation-time'}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import yaml

__all__ = ["RECIPES", "Recipe", "recipes_page", "with_recipe"]

#: Fields that say how the times of the recipe are written: they are of its own ``time`` only.
_OF_TIME = ("time_unit", "time_format")


@dataclass(frozen=True)
class Recipe:
    """A preset that is a mapping.

    Attributes:
        name: what the settings call it.
        called: names under which people search for it.
        about: what it reads, in a sentence or two.
        topic: the topics that its messages are on; empty where that does not matter.
        readings: what it says of ``readings``.
    """

    name: str
    called: tuple[str, ...]
    about: str
    topic: str
    readings: Mapping[str, Any]

    @property
    def missing(self) -> tuple[str, ...]:
        """The parts of a reading that the settings must name."""
        return tuple(part for part in ("series", "time", "value") if part not in self.readings)


class _Recipes(Mapping[str, Recipe]):
    """The recipes by name. A file is read when its recipe is asked for: most jobs use none."""

    def __init__(self) -> None:
        found = [file for file in files(f"{__package__}.recipes").iterdir() if file.name.endswith(".yaml")]
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


def recipes_page() -> str:
    """The recipes as a page shows them: a table by the names that people search for, and what each says."""
    rows = [
        f"| {', '.join(one.called)} | [`{one.name}`](#{one.name}) | {_asked(one)} |"
        for one in sorted(RECIPES.values(), key=lambda one: one.called[0].lower())
    ]
    parts = ["\n".join(["| you have | `preset` | you name |", "| --- | --- | --- |", *rows])]
    for one in RECIPES.values():
        topic = f" Topics: `{one.topic}`." if one.topic else ""
        said = yaml.safe_dump({"readings": dict(one.readings)}, sort_keys=False, allow_unicode=True, width=110)
        parts.append(f"### {one.name}\n\n{one.about}{topic}\n\n```yaml\n{said}```")
    return "\n\n".join(parts) + "\n"


def _asked(recipe: Recipe) -> str:
    return ", ".join(f"`{part}`" for part in recipe.missing) or "nothing"
