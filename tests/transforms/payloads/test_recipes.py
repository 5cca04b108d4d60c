"""The recipes, each by messages of its device or platform as they come.

The messages are shipped with the recipes: what the vendors' documents say of their form, with values of our own. The
right answers are files of the folder ``readings/messages``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from quiltstream.schemas.settings.readings import Readings
from quiltstream.schemas.settings.recipes import RECIPES
from quiltstream.schemas.slots import parse_instant
from quiltstream.transforms.payloads import PayloadDecoder
from quiltstream.transforms.payloads.expressions import samples_of
from quiltstream.transforms.payloads.messages import Messages

from .payloads import FIRST, outcome

FOLDER = Path(__file__).parents[2] / "readings" / "messages"


@dataclass(frozen=True)
class Case:
    """What a platform sends, and what a recipe makes of it."""

    readings: Readings
    given: Messages
    rows: list[tuple[str, int, float]]
    passed: int

    @property
    def decoder(self) -> PayloadDecoder:
        return PayloadDecoder(self.readings)


def case(name: str) -> Case:
    said = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    sent = samples_of(name)
    return Case(
        readings=Readings.model_validate({"recipe": name, **said.get("settings", {})}),
        given=replace(sent, positions=np.arange(FIRST, FIRST + len(sent))),
        rows=sorted((series, parse_instant(time), float(value)) for series, time, value in said["readings"]),
        passed=said["passed"],
    )


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_reads_what_its_platform_sends(name: str):
    one = case(name)
    rows, rejects = outcome(one.decoder, one.given)
    assert rejects == []
    assert rows == one.rows
    assert sum(part.passed for part in one.decoder.decode(one.given)) == one.passed


def test_every_recipe_has_messages_and_every_file_of_messages_a_recipe():
    assert {file.stem for file in FOLDER.glob("*.yaml")} == set(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_written_as_its_name_and_read_as_itself(name: str):
    readings = case(name).readings
    written = readings.model_dump(mode="json", exclude_defaults=True)
    said = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8")).get("settings", {})
    unit = {"unit": RECIPES[name].readings["unit"]} if "unit" in RECIPES[name].readings else {}
    assert written == {"recipe": name, **said, **unit}
    assert Readings.model_validate(written) == readings


def test_settings_override_the_recipe():
    named = Readings.model_validate({"recipe": "hono", "time": "at", "value": "p", "series": "topic[0]"})
    assert (named.time, named.time_unit) == ("at", "s")
    assert Readings.model_validate({"recipe": "hono", "value": "p", "time_unit": "us"}).time_unit == "ms"
    assert Readings.model_validate({"recipe": "tasmota", "where": "payload"}).where == "payload"


def table_of_recipes() -> str:
    """By the names that people search for."""
    rows = [
        f"| {', '.join(one.called)} | `{one.name}` | {', '.join(f'`{part}`' for part in one.missing) or 'nothing'} |"
        for one in sorted(RECIPES.values(), key=lambda one: one.called[0].lower())
    ]
    return "\n".join(["| you have | `recipe` | you name |", "| --- | --- | --- |", *rows, ""])


def test_the_table_of_recipes_is_that_of_the_folder(repository: Path):
    page = (repository / "docs" / "messages.md").read_text(encoding="utf-8")
    shown = page.split("<!-- generated: recipes -->\n")[1].split("<!-- end: recipes -->")[0]
    assert shown == table_of_recipes(), "put what table_of_recipes() returns between the marks of docs/messages.md"
