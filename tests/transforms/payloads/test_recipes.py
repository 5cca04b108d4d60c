"""The recipes, each by messages of its device or platform as they come, and by the same messages damaged.

The messages are shipped with the recipes: what the vendors' documents say of their form, with values of our own. The
right answers are files of the folder ``readings/messages``.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.schemas.settings.readings import Readings
from quiltstream.schemas.settings.recipes import RECIPES
from quiltstream.schemas.slots import parse_instant
from quiltstream.transforms.payloads import PayloadDecoder
from quiltstream.transforms.payloads.expressions import samples_of
from quiltstream.transforms.payloads.messages import Messages

from ...depth import NIGHT, examples
from .damage import accounted_for, counted_once, damaged
from .payloads import FIRST, NOON_S, NOON_US, outcome

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


def damaged_of(one: Case, chance: random.Random, count: int) -> Messages:
    seeds = [payload or b"" for payload in one.given.payloads]
    at = [chance.randrange(len(seeds)) for _ in range(count)]
    return Messages(
        payloads=[damaged(seeds[number], chance) for number in at],
        topics=[one.given.topics[number] for number in at],
        keys=[None] * count,
        headers=[one.given.headers[number] for number in at],
        stamps_us=np.full(count, NOON_US),
        positions=np.arange(FIRST, FIRST + count),
    )


@pytest.mark.parametrize("name", RECIPES)
def test_damaged_messages_of_a_recipe_raise_nothing_and_count_once(name: str):
    one, chance = case(name), random.Random(NOON_US)
    counted_once(lambda: one.decoder, damaged_of(one, chance, 4_000 if NIGHT else 40))


@pytest.mark.night
@pytest.mark.parametrize("name", RECIPES)
def test_a_million_damaged_messages_over_all_recipes_count_once(name: str):
    one, chance, most = case(name), random.Random(NOON_S), 1_000
    left = -(-1_000_000 // len(RECIPES)) if NIGHT else most
    while left > 0:
        given = damaged_of(one, chance, min(left, most))
        accounted_for(given, one.decoder.decode(given))
        left -= most


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


def replaced(document: Any, path: list[int], value: Any) -> Any:
    if not path or not isinstance(document, (dict, list)) or not document:
        return value
    if isinstance(document, dict):
        key = list(document)[path[0] % len(document)]
        return document | {key: replaced(document[key], path[1:], value)}
    at = path[0] % len(document)
    return [*document[:at], replaced(document[at], path[1:], value), *document[at + 1 :]]


@pytest.mark.night
@settings(max_examples=examples(300))
@given(data=st.data())
def test_documents_with_other_values_raise_nothing_and_count_once(data: st.DataObject):
    one = case(data.draw(st.sampled_from(sorted(RECIPES))))
    payloads: list[bytes] = []
    for payload in one.given.payloads:
        try:
            document = json.loads(payload or b"")
        except ValueError:
            payloads.append(payload or b"")
            continue
        document = replaced(document, data.draw(st.lists(st.integers(0, 9), max_size=7)), data.draw(JSON))
        payloads.append(json.dumps(document).encode())
    given = one.given
    counted_once(
        lambda: one.decoder,
        Messages(payloads, given.topics, given.keys, given.headers, given.stamps_us, given.positions),
    )
