from __future__ import annotations

import pickle
from typing import Any

import pytest
from pydantic import ValidationError

from quiltstream.schemas.settings.base import SettingsError, problems_of
from quiltstream.schemas.settings.job import EXAMPLE, load_settings
from quiltstream.schemas.settings.readings import Readings

from ...present import present

PLAIN = {"series": "id", "time": "ts", "value": "kwh"}


def mistakes(document: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        Readings.model_validate(document)
    return "\n".join(problems_of(caught.value))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "readings.series is missing; add it"),
        ({"series": "id", "time": "ts"}, "readings.value is missing; add it"),
        (PLAIN | {"series": 5}, "series is 5: input should be a valid string"),
        (PLAIN | {"series": {"path": "a"}}, "series is a mapping: input should be a valid string"),
        (PLAIN | {"value": {"register": {}}}, "value is a mapping: input should be a valid string"),
        (PLAIN | {"avro_schemas": [{}]}, "avro_schemas is of payload: avro-single"),
        (PLAIN | {"payload": "avro-single"}, "avro_schemas is missing"),
        (PLAIN | {"max_bytes": 0}, "max_bytes is 0"),
        (PLAIN | {"pseudonyms": {"file": "key"}}, "file is not an absolute path"),
        (PLAIN | {"pseudonyms": {"env": "K"}, "series": {"constant": "a"}}, "write a pseudonym there"),
        ({"recipe": "zigbee"}, "'zigbee' is no recipe; did you mean zigbee2mqtt"),
        ({"recipe": "edgex"}, "readings.where is missing"),
        ({"each": "payload", "time": "t", "value": "v"}, "readings.series is missing"),
        (PLAIN | {"where": "a"}, "readings.where is JMESPath, and readings.each is missing"),
        (PLAIN | {"each": "payload", "time": ["day", "hour"]}, "readings.time is a list of columns"),
        (PLAIN | {"each": "payload", "units": "unit"}, "readings.unit is missing"),
    ],
)
def test_a_wrong_mapping_is_named_with_the_next_step(document: dict[str, Any], message: str):
    assert message in mistakes(document)


@pytest.mark.parametrize(
    "document",
    [
        PLAIN,
        PLAIN | {"time": ["date", "clock"]},
        PLAIN | {"series": {"constant": "only"}},
        PLAIN | {"attributes": {"feeder": "topic[0]", "area": "where.area"}},
        PLAIN | {"register": {"over_end": 100_000.0}},
        PLAIN | {"pseudonyms": {"env": "KEY"}, "max_bytes": 5},
        PLAIN | {"payload": "avro-single", "avro_schemas": [{"type": "int"}]},
        {"recipe": "thingsboard", "value": "values.power", "series": "key"},
        PLAIN | {"each": "payload.a", "of": "b", "where": "topic[1]", "units": "u", "unit": "W"},
        {"recipe": "azure-iot", "value": "power"},
    ],
)
def test_a_mapping_is_written_as_it_was_given(document: dict[str, Any]):
    readings = Readings.model_validate(document)
    written = readings.model_dump(mode="json", exclude_defaults=True)
    assert written == document | ({} if "pseudonyms" not in document else {"pseudonyms": written["pseudonyms"]})
    assert Readings.model_validate(readings.model_dump(mode="json")) == readings
    assert pickle.loads(pickle.dumps(readings)) == readings


def test_the_frozen_mapping_of_files_is_unchanged_by_message_settings():
    readings = present(load_settings(EXAMPLE).readings)
    assert readings.canonical() == {
        "series": "household",
        "time": "ts",
        "value": "kwh",
        "unit": "kWh",
        "scale": 2000.0,
        "time_format": None,
        "time_unit": "s",
        "ambiguous": "earliest",
    }


def test_another_mapping_is_another_text_and_another_limit_is_not():
    one = Readings.model_validate(PLAIN | {"each": "payload"})
    assert one.canonical() != one.model_copy(update={"series": "topic[1]"}).canonical()
    assert one.canonical() == one.model_copy(update={"max_bytes": 7}).canonical()
    assert one.canonical() != one.model_copy(update={"hold": "1h"}).canonical()


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (PLAIN | {"each": "payload"}, "readings.each is set, and only messages have it"),
        ({"recipe": "tasmota"}, "readings.recipe is set, and only messages have it"),
        (PLAIN | {"payload": "cbor"}, "readings.payload is set"),
    ],
)
def test_message_fields_are_refused_for_files(document: dict[str, Any], message: str):
    with pytest.raises(SettingsError) as caught:
        Readings.model_validate(document).check_columns()
    assert message in str(caught.value)


def test_a_recipe_at_the_top_is_that_of_the_readings():
    text = EXAMPLE.replace("parquet: data/feeder.parquet", "avro: spool/*.avro")
    line = next(one for one in text.splitlines(keepends=True) if one.startswith("readings"))
    nested = load_settings(text.replace(line, "readings: {recipe: zigbee2mqtt}\n"))
    assert load_settings(text.replace(line, "recipe: zigbee2mqtt\n")) == nested
    other = load_settings(text.replace(line, "recipe: zigbee2mqtt\nreadings: {value: voltage, unit: V}\n"))
    assert present(other.readings).value == "voltage"
    with pytest.raises(SettingsError, match=r"readings\.preset is gone: write readings\.recipe: NAME"):
        load_settings(text.replace(line, "readings: {preset: zigbee2mqtt}\n"))
    with pytest.raises(SettingsError, match=r"recipe: 'zigbee' is no recipe"):
        load_settings(text.replace(line, "recipe: zigbee\n"))
    with pytest.raises(SettingsError, match="recipe is beside readings that say all themselves"):
        load_settings(text.replace(line, "recipe: hono\nreadings: select 1\n"))
