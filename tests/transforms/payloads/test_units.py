"""Units that messages say beside their values: several in one message are no readings of one series."""

from __future__ import annotations

import io
import struct
from typing import Any

import cbor2
import fastavro
import pytest

from quiltstream.schemas.settings.mappings import Readings

from .payloads import NOON_MS, NOON_S, NOON_US, decode, dumped, messages, preset

MIXED = ([], [(0, "mixed-units")])

#: OCPP 1.6, MeterValues.req: what a charging station sends of one instant.
SAMPLES: list[dict[str, Any]] = [
    {"value": "230.1", "measurand": "Voltage", "unit": "V"},
    {"value": "16.0", "measurand": "Current.Import", "unit": "A"},
    {"value": "3681", "measurand": "Power.Active.Import", "unit": "W"},
    {"value": "1234500", "unit": "Wh"},
]
OCPP = {
    "series": {"topic": -1},
    "time": "meterValue[*].timestamp",
    "value": "meterValue[*].sampledValue[*].value",
}


def ocpp(*samples: dict[str, Any]) -> dict[str, Any]:
    return {"connectorId": 1, "meterValue": [{"timestamp": "2026-01-05T12:00:00Z", "sampledValue": list(samples)}]}


@pytest.mark.assures("payloads", "Volts, amperes and watt-hours of one array are not read as one series")
def test_volts_amperes_and_watt_hours_of_one_array_are_no_readings_of_one_series():
    readings = Readings.model_validate(OCPP)
    assert decode(readings, dumped(ocpp(*SAMPLES), topics=["cs/7"])) == MIXED
    # the units of two measurands may be equal, and a missing one is not the unit of the others
    assert decode(readings, dumped(ocpp(SAMPLES[2], SAMPLES[2] | {"measurand": "Power.Offered"}))) == MIXED
    assert decode(readings, dumped(ocpp(SAMPLES[2], {"value": "5", "measurand": "Power.Active.Import"}))) == MIXED


def test_a_message_of_several_units_harms_no_other():
    readings = Readings.model_validate(OCPP)
    good = ocpp({"value": "3681", "unit": "W"}, {"value": "3682", "unit": "W"})
    given = dumped(good, ocpp(*SAMPLES), good, topics=["cs/1", "cs/2", "cs/3"])
    rows, rejects = decode(readings, given)
    assert rows == [(name, NOON_US, value) for name in ("1", "3") for value in (3681.0, 3682.0)]
    assert rejects == [(1, "mixed-units")]


def test_one_element_of_an_array_of_several_units_can_be_named():
    readings = Readings.model_validate(OCPP | {"value": "meterValue[*].sampledValue[2].value"})
    assert decode(readings, dumped(ocpp(*SAMPLES), topics=["cs/7"])) == ([("7", NOON_US, 3681.0)], [])


PLAIN = {"series": "id", "time": "ts", "time_unit": "ms", "value": "r[*].v"}


def body(*elements: Any) -> dict[str, Any]:
    return {"id": "m1", "ts": NOON_MS, "r": list(elements)}


@pytest.mark.parametrize("field", ["unit", "units", "uom", "unitCode", "unitOfMeasure", "unit_of_measurement"])
def test_every_field_that_conventions_use_for_units_is_compared(field: str):
    readings = Readings.model_validate(PLAIN)
    assert decode(readings, dumped(body({"v": 1, field: "kW"}, {"v": 1000, field: "W"}))) == MIXED
    assert len(decode(readings, dumped(body({"v": 1, field: "kW"}, {"v": 2, field: "kW"})))[0]) == 2


def test_units_may_stand_in_objects_and_within_the_way_to_the_value():
    readings = Readings.model_validate(PLAIN)
    kwh = {"unit": "Wh", "multiplier": 3}
    same = {"multiplier": 3, "unit": "Wh"}
    assert len(decode(readings, dumped(body({"v": 1, "unitOfMeasure": kwh}, {"v": 2, "unitOfMeasure": same})))[0]) == 2
    assert decode(readings, dumped(body({"v": 1, "unitOfMeasure": kwh}, {"v": 2, "unitOfMeasure": {}}))) == MIXED
    inner = Readings.model_validate(PLAIN | {"value": "r[*].power.v"})
    assert decode(inner, dumped(body({"power": {"v": 1, "unit": "W"}}, {"power": {"v": 2, "unit": "kW"}}))) == MIXED
    outer = Readings.model_validate(PLAIN | {"value": "r[*].s[*].v"})
    assert decode(outer, dumped(body({"unit": "W", "s": [{"v": 1}]}, {"unit": "V", "s": [{"v": 1}]}))) == MIXED


def test_a_field_that_names_the_series_may_differ():
    readings = Readings.model_validate(PLAIN | {"series": "r[*].measurand"})
    rows, rejects = decode(readings, dumped(body({"v": 1, "measurand": "a"}, {"v": 2, "measurand": "b"})))
    assert ([row[0] for row in rows], rejects) == (["a", "b"], [])


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ({"path": "r[*].unit", "equals": "kW"}, 1),
        ({"path": "r[*].unit", "equals": ["kW"]}, 1),
        ({"path": "r[*].unit", "equals": ["kW", None]}, 2),
        ({"path": "r[*].unit", "equals": ["W", "kW"]}, 0),
        ({"path": "r[*].unit", "differs": "V"}, 0),
        ({"path": "r[*].unit", "exists": True}, 0),
        ({"path": "r[*].other.unit", "equals": "kW"}, 0),
        ({"path": "unit", "equals": "kW"}, 0),
    ],
)
def test_a_condition_lets_units_differ_only_where_it_holds_this_very_field_to_one(condition: dict[str, Any], rows: int):
    readings = Readings.model_validate(PLAIN | {"where": [condition]})
    elements = [{"v": 500, "unit": "W"}, {"v": 0.5, "unit": "kW"}, {"v": 0.5}]
    given = body(*[one | {"other": {"unit": "kW"}} for one in elements]) | {"unit": "kW"}
    found, rejects = decode(readings, dumped(given))
    assert (len(found), rejects) == (rows, [] if rows else [(0, "mixed-units")])


def test_elements_that_are_no_objects_and_units_of_any_kind_raise_nothing():
    readings = Readings.model_validate(PLAIN)
    assert decode(readings, dumped(body(5, {"v": 1, "unit": "W"}))) == MIXED
    deep: Any = "W"
    for _ in range(900):
        deep = [deep]
    assert decode(readings, dumped(body({"v": 1, "unit": deep}, {"v": 1, "unit": deep}))) == MIXED
    given = [{"v": 1, "unit": one} for one in (b"\x01", {1: 2}, [None], 2.5, True, float("nan"))]
    packed = Readings.model_validate(PLAIN | {"payload": "cbor"})
    assert decode(packed, messages(cbor2.dumps(body(*given)))) == MIXED
    for one in given[2:5]:
        assert len(decode(packed, messages(cbor2.dumps(body(one, one))))[0]) == 2


def test_avro_messages_are_compared_too_however_many_come_together():
    element = {
        "type": "record",
        "name": "E",
        "fields": [{"name": "v", "type": "double"}, {"name": "unit", "type": "string"}],
    }
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "id", "type": "string"},
            {"name": "ts", "type": "long"},
            {"name": "r", "type": {"type": "array", "items": element}},
        ],
    }

    def message(*elements: dict[str, Any]) -> bytes:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, schema, body(*elements))
        return struct.pack(">bI", 0, 7) + stream.getvalue()

    good = message({"v": 1.0, "unit": "W"}, {"v": 2.0, "unit": "W"})
    bad = message({"v": 1.0, "unit": "W"}, {"v": 2.0, "unit": "kW"})
    readings = Readings.model_validate(PLAIN | {"payload": "avro"})
    rows, rejects = decode(readings, messages(*[good] * 60, bad, *[good] * 60), schemas=lambda _: schema)
    assert len(rows) == 240
    assert rejects == [(60, "mixed-units")]


def test_presets_whose_messages_say_units_compare_them():
    pack = [{"bn": "a/", "bt": NOON_S, "bu": "W", "n": "power", "v": 1}, {"n": "power", "u": "kW", "v": 1, "t": 1}]
    assert decode(preset("senml"), dumped(pack)) == MIXED
    assert decode(preset("senml"), dumped([pack[0], pack[1] | {"u": "W"}]))[1] == []
    event = {"deviceName": "m", "origin": NOON_MS * 1_000_000}
    watts = [{"resourceName": "power", "value": "1", "units": unit} for unit in ("W", "kW")]
    assert decode(preset("edgex"), dumped(event | {"readings": watts})) == MIXED
    assert len(decode(preset("edgex"), dumped(event | {"readings": watts[:1] * 2}))[0]) == 2
    data = [
        {"id": f"m{n}", "power": {"value": 1, "unitCode": code, "observedAt": "2026-01-05T12:00:00Z"}}
        for n, code in enumerate(("KWT", "WTT"))
    ]
    assert decode(preset("ngsi-ld"), dumped({"data": data})) == MIXED
    assert decode(preset("ngsi-ld"), dumped({"data": data[:1]}))[1] == []
