"""Presets of platforms: payloads made by hand after the platforms' own documents, and what is read of them.

Those that others have published are in :mod:`.test_published`.
"""

from __future__ import annotations

import base64
import json
import sys
from typing import Any

import pytest

from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.mappings import Readings
from quiltstream.transforms.payloads import PayloadDecoder

from .payloads import NOON_MS, NOON_NS, NOON_US, decode, dumped, preset

NOON_TEXT = "2026-01-05T12:00:00Z"
THINGSBOARD = preset("thingsboard", "values.power || false")
EDGEX = preset("edgex", None, where="resourceName == 'power'")
NGSI = preset("ngsi-ld", None, of="power")


def test_thingsboard_telemetry_of_a_device():
    """Key-value pairs with the time of arrival, one stamped object, or an array of them."""
    readings = preset("thingsboard", "values.power || power || false", series="header.deviceName")
    given = dumped(
        {"power": 1, "temperature": 20},
        {"ts": NOON_MS, "values": {"power": 2.5, "temperature": 20}},
        [{"ts": NOON_MS + 1, "values": {"power": "3"}}, {"ts": NOON_MS + 2, "values": {"temperature": 20}}],
        {"temperature": 21},
        {"ts": NOON_MS, "values": 3},
        5,
        headers=[(("deviceName", b"meter A"),)] * 6,
        stamps_us=[NOON_US + 5_000] * 6,
    )
    assert decode(readings, given) == (
        [("meter A", NOON_US, 2.5), ("meter A", NOON_US + 1_000, 3.0), ("meter A", NOON_US + 5_000, 1.0)],
        [],
    )


def test_thingsboard_telemetry_that_nothing_names_is_a_reject():
    given = dumped({"ts": NOON_MS, "values": {"power": 2.5}})
    assert decode(THINGSBOARD, given) == ([], [(0, "missing-series")])


def test_thingsboard_telemetry_of_a_gateway():
    given = dumped(
        {
            "Meter A": [{"ts": NOON_MS, "values": {"power": 1}}, {"ts": NOON_MS + 60_000, "values": {"power": 2}}],
            "Meter B": [{"ts": NOON_MS, "values": {"power": 3, "state": "on"}}],
            "Sensor": [{"ts": NOON_MS, "values": {"humidity": 40}}],
        },
        {"Meter A": [], "Meter B": []},
    )
    assert decode(THINGSBOARD, given) == (
        [("Meter A", NOON_US, 1.0), ("Meter A", NOON_US + 60_000_000, 2.0), ("Meter B", NOON_US, 3.0)],
        [],
    )


def test_a_series_of_the_settings_holds_for_thingsboard_gateways_too():
    """A device that may publish to one topic must not write for every home."""
    gateway = {"victim": [{"ts": NOON_MS, "values": {"power": 9}}]}
    given = dumped({"power": 1}, gateway, topics=["site/m7/up"] * 2, stamps_us=[NOON_US] * 2)
    rows, rejects = decode(preset("thingsboard", "values.power || power", series="topic[1]"), given)
    assert ([row[0] for row in rows], rejects) == (["m7", "m7"], [])


EVENT = {
    "apiVersion": "v3",
    "id": "0d9b8c1c-1d5b-4b29-9a7b-6f5a3c2e1d00",
    "deviceName": "feeder-meter-3",
    "profileName": "three-phase-meter",
    "sourceName": "totals",
    "origin": NOON_NS,
    "readings": [
        {
            "id": "1",
            "origin": NOON_NS + 5_000,
            "deviceName": "feeder-meter-3",
            "resourceName": "power",
            "profileName": "three-phase-meter",
            "valueType": "Float64",
            "value": "1.250000e+01",
        },
        {"id": "2", "origin": NOON_NS, "resourceName": "phase", "valueType": "Int32", "value": "3"},
    ],
}


@pytest.mark.parametrize(
    "document",
    [
        EVENT,
        {"apiVersion": "v3", "requestId": "r", "event": EVENT},
        {"apiVersion": "v3", "correlationID": "c", "contentType": "application/json", "payload": {"event": EVENT}},
        {
            "correlationID": "c",
            "contentType": "application/json",
            "payload": base64.b64encode(json.dumps({"event": EVENT}).encode()).decode(),
        },
    ],
    ids=["event", "request", "envelope", "envelope in base64"],
)
def test_edgex_events_are_read_bare_in_requests_and_in_envelopes(document: dict[str, Any]):
    assert decode(EDGEX, dumped(document)) == ([("feeder-meter-3", NOON_US + 5, 12.5)], [])


def test_edgex_readings_take_the_events_origin_and_device_where_they_have_none():
    event = EVENT | {"readings": [{"resourceName": "power", "value": "1"}]}
    assert decode(EDGEX, dumped(event)) == ([("feeder-meter-3", NOON_US, 1.0)], [])


def test_edgex_payloads_of_another_shape_are_rejects():
    texts = ("no base64", "é", "\x80", "e30", "!", "gA==")
    given = dumped(*({"payload": one} for one in (*texts, 5)), {"readings": {}}, {"event": []}, [])
    assert decode(EDGEX, given) == ([], [(at, "malformed-row") for at in range(9)])


def ngsi(*entities: Any) -> dict[str, Any]:
    return {
        "id": "urn:ngsi-ld:Notification:6a1f",
        "type": "Notification",
        "subscriptionId": "urn:ngsi-ld:Subscription:meters",
        "notifiedAt": "2026-01-05T12:00:09Z",
        "data": list(entities),
    }


def entity(power: Any, name: str = "urn:ngsi-ld:Meter:1") -> dict[str, Any]:
    return {"id": name, "type": "Meter", "power": power, "@context": ["https://example.org/meters.jsonld"]}


@pytest.mark.parametrize(
    ("power", "seconds"),
    [
        ({"type": "Property", "value": 12.5, "unitCode": "KWT", "observedAt": NOON_TEXT}, [0]),
        ({"value": 12.5, "observedAt": "2026-01-05T13:00:00.000+01:00"}, [0]),
        (12.5, [9]),
        ({"type": "Property", "value": 12.5}, [9]),
        ({"type": "Number", "value": 12.5, "metadata": {"TimeInstant": {"type": "DateTime", "value": NOON_TEXT}}}, [0]),
        ({"type": "Property", "value": 12.5, "metadata": {"observedAt": NOON_TEXT}}, [0]),
        (
            [
                {"type": "Property", "value": 12.5, "observedAt": NOON_TEXT},
                {"type": "Property", "value": 12.5, "observedAt": "2026-01-05T12:00:05Z", "datasetId": "urn:x"},
            ],
            [0, 5],
        ),
    ],
    ids=["normalised", "concise", "simplified", "no time", "v2", "v2 metadata", "data sets"],
)
def test_ngsi_attributes_are_read_in_every_form(power: Any, seconds: list[int]):
    expected = [("urn:ngsi-ld:Meter:1", NOON_US + 1_000_000 * second, 12.5) for second in seconds]
    assert decode(NGSI, dumped(ngsi(entity(power)))) == (expected, [])
    assert decode(NGSI, dumped({"metadata": {}, "body": ngsi(entity(power))})) == (expected, [])


def test_ngsi_notifications_hold_many_entities_and_none_is_needed():
    given = dumped(
        ngsi(entity(1, "a"), {"id": "x", "type": "Lamp", "brightness": {"value": 1}}, entity(2, "b")),
        ngsi(),
        {"data": {}},
        [],
    )
    rows, rejects = decode(NGSI, given)
    assert [(row[0], row[2]) for row in rows] == [("a", 1.0), ("b", 2.0)]
    assert rejects == [(at, "malformed-row") for at in (2, 3)]


@pytest.mark.parametrize(
    ("readings", "library"),
    [
        (preset("green-button", None), "defusedxml"),
        (preset("cim", "Wh"), "defusedxml"),
        (Readings(series="a", time="t", value="v", payload="cbor"), "cbor2"),
    ],
)
def test_a_library_that_is_missing_is_named_before_any_message(
    readings: Readings, library: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(SettingsError, match=rf"{library}; install quiltstream\[formats\]"):
        PayloadDecoder(readings).check()


def test_the_group_of_a_preset_is_read_from_message_metadata():
    readings = preset("edgex", None, where="resourceName == 'power'", attributes={"feeder": "topic[1]"})
    given = dumped(EVENT, EVENT, topics=["edgex/f1", "edgex/f2"])
    rows, rejects = decode(readings, given, group="feeder")
    assert [(row[0], row[3]) for row in rows] == [("feeder-meter-3", "f1"), ("feeder-meter-3", "f2")]
    assert rejects == []


def test_the_series_of_a_preset_may_be_taken_from_the_topic_instead():
    readings = preset("edgex", None, where="resourceName == 'power'", series="topic[1]")
    assert decode(readings, dumped(EVENT, topics=["edgex/m9"]))[0][0][0] == "m9"
