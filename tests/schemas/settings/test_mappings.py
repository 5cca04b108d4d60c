from __future__ import annotations

import pickle
from typing import Any

import pytest
from pydantic import ValidationError

from quiltstream.schemas.settings.base import SettingsError, problems_of
from quiltstream.schemas.settings.job import EXAMPLE, load_settings
from quiltstream.schemas.settings.mappings import Readings
from quiltstream.schemas.settings.places import Place, path_steps

from ...present import present

PLAIN = {"series": "id", "time": "ts", "value": "kwh"}


@pytest.mark.parametrize(
    ("path", "steps"),
    [
        ("power", ("power",)),
        ("values.power", ("values", "power")),
        ("readings[*].value", ("readings", None, "value")),
        ("[*].v", (None, "v")),
        ("[*]", (None,)),
        ("t[0][12]", ("t", 0, 12)),
        ('values["kWh.in [1]"].now', ("values", "kWh.in [1]", "now")),
        ('["a.b"]', ("a.b",)),
        ("power (kW)", ("power (kW)",)),
        ("a-b/c:d", ("a-b/c:d",)),
    ],
)
def test_a_field_path_is_parsed(path: str, steps: tuple[str | int | None, ...]):
    assert path_steps(path) == steps


@pytest.mark.parametrize(
    "path",
    [
        *(
            "",
            ".",
            ".a",
            "a.",
            "a..b",
            "a.[0]",
            "a[",
            "a]",
            "a[*",
            "a[*]b",
            "a[x]",
            "a[-1]",
            'a"b',
            'a[""]',
            "a[1234567]",
        ),
        ".".join("a" * 21),
        "a[*].b[*].c[*].d[*]",
    ],
)
def test_an_invalid_field_path_is_refused(path: str):
    with pytest.raises(ValueError, match="write for example values"):
        path_steps(path)


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
        (PLAIN | {"series": {"topic": 0}}, "0 is no level"),
        (PLAIN | {"series": {"topic": 1, "key": True}}, "2 are given"),
        (PLAIN | {"series": {"topic": 1, "level": 2}}, "level is of a header or key, and topic is given"),
        (PLAIN | {"series": {"path": "a["}}, "'a[' is no path at character 2"),
        (PLAIN | {"series": {"stamp": True}}, "the broker's stamp is a time"),
        (
            PLAIN | {"value": {"register": {}}},
            "value.register is not a setting",
        ),
        (PLAIN | {"avro_schemas": [{}]}, "avro_schemas is of payload: avro-single"),
        (PLAIN | {"payload": "avro-single"}, "avro_schemas is missing"),
        (PLAIN | {"max_bytes": 0}, "max_bytes is 0"),
        (PLAIN | {"pseudonyms": {"file": "key"}}, "file is not an absolute path"),
        (PLAIN | {"pseudonyms": {"env": "K"}, "series": {"constant": "a"}}, "write a pseudonym there"),
        ({"preset": "nothing", "value": "p"}, "preset: 'nothing' is no preset"),
        ({"preset": "dsmr"}, "readings.value is missing: the name"),
        ({"preset": "edgex"}, "readings.where is missing"),
        ({"each": "payload", "time": "t", "value": "v"}, "readings.series is missing"),
        (PLAIN | {"each": "payload", "series": {"topic": 1}}, "readings.series is no text; beside readings.each"),
        (PLAIN | {"where": "a"}, "readings.where is JMESPath, and readings.each is missing"),
        (PLAIN | {"each": "payload", "where": [{"path": "a", "exists": True}]}, "readings.where is a list"),
        (PLAIN | {"each": "payload", "units": "unit"}, "readings.unit is missing"),
        ({"preset": "cim", "value": "p", "series": {"path": "id"}}, "under preset cim it is a topic level"),
        (
            {"preset": "cim", "value": "p", "payload": "cbor"},
            "readings.payload is cbor, and preset cim has its own",
        ),
        ({"preset": "cim", "value": {"path": "p"}}, "under preset cim it is a name, in plain text"),
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
        PLAIN | {"series": {"topic": 2}, "time": {"stamp": True}, "value": {"path": "a[*].b"}},
        PLAIN | {"attributes": {"feeder": {"topic": 1}, "area": "where.area"}},
        PLAIN | {"register": {"over_end": 100_000.0}},
        PLAIN | {"pseudonyms": {"env": "KEY"}, "max_bytes": 5},
        PLAIN | {"payload": "avro-single", "avro_schemas": [{"type": "int"}]},
        {"preset": "dsmr", "value": "1-0:1.7.0", "series": {"key": True, "level": 1}},
        {"preset": "thingsboard", "value": "values.power", "series": "key"},
        PLAIN | {"each": "payload.a", "of": "b", "where": "topic[1]", "units": "u", "unit": "W"},
        {"preset": "green-button"},
        {"preset": "azure-iot", "value": "power"},
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
    one = Readings.model_validate(PLAIN | {"series": {"topic": 1}})
    assert one.canonical() != one.model_copy(update={"series": Place(topic=2)}).canonical()
    assert one.canonical() == one.model_copy(update={"max_bytes": 7}).canonical()
    assert one.canonical() != one.model_copy(update={"hold": "1h"}).canonical()


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (PLAIN | {"series": {"topic": 1}}, "readings.series is topic level 1, and the source is files"),
        (PLAIN | {"series": {"key": True}}, "readings.series is the key"),
        (PLAIN | {"time": {"stamp": True}}, "readings.time is the broker's stamp"),
        (PLAIN | {"payload": "cbor"}, "readings.payload is set"),
    ],
)
def test_message_fields_are_refused_for_files(document: dict[str, Any], message: str):
    with pytest.raises(SettingsError) as caught:
        Readings.model_validate(document).check_columns()
    assert message in str(caught.value)
