"""Recipes: how to read the messages of a platform or a device, known by its name.

A recipe is a file of this folder: what it says of the section ``readings``, in JMESPath, and some messages of that
platform. A published recipe keeps its meaning, because ledgers freeze its name: another form of the messages is a
recipe of another name.

>>> RECIPES["zigbee2mqtt"].readings["time"]
'last_seen || stamp'
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import yaml


@dataclass(frozen=True)
class Recipe:
    """How to read the messages of a platform or a device."""

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
        found = [file for file in files(__package__ or "").iterdir() if file.name.endswith(".yaml")]
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
