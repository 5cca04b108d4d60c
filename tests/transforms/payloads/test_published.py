"""Payloads as others have published them, with what their publishers say that they hold.

Each names its source. The samples of the recipes are made by hand after the same documents; they go further, but nobody
outside has seen them.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from quiltstream.schemas.settings.readings import Readings

from .payloads import decode, dumped, messages


def recipe(name: str, value: str | None = None, **more: Any) -> Readings:
    return Readings.model_validate({"recipe": name, **({} if value is None else {"value": value}), **more})


def dsmr(value: str, **more: Any) -> Readings:
    said = {"payload": "dsmr", "each": "payload", "series": "meter", "time": "time", "value": value}
    return Readings.model_validate(said | more)


def micros(text: str) -> int:
    """An instant in ISO 8601 as microseconds since 1970."""
    return round(dt.datetime.fromisoformat(text).timestamp() * 1e6)


# DSMR. Netbeheer Nederland, Dutch Smart Meter Requirements, P1 Companion Standard, version 5: Example P1 telegram, as
# the tests of several other readers of P1 quote it; the standard itself was not at hand. They have two checksums behind
# it: EF2F is not that of these lines by the algorithm of the standard, and E47C is.

TELEGRAM = (
    "/ISk5\\2MT382-1000",
    "",
    "1-3:0.2.8(50)",
    "0-0:1.0.0(101209113020W)",
    "0-0:96.1.1(4B384547303034303436333935353037)",
    "1-0:1.8.1(123456.789*kWh)",
    "1-0:1.8.2(123456.789*kWh)",
    "1-0:2.8.1(123456.789*kWh)",
    "1-0:2.8.2(123456.789*kWh)",
    "0-0:96.14.0(0002)",
    "1-0:1.7.0(01.193*kW)",
    "1-0:2.7.0(00.000*kW)",
    "0-0:96.7.21(00004)",
    "0-0:96.7.9(00002)",
    "1-0:99.97.0(2)(0-0:96.7.19)(101208152415W)(0000000240*s)(101208151004W)(0000000301*s)",
    "1-0:32.32.0(00002)",
    "1-0:52.32.0(00001)",
    "1-0:72.32.0(00000)",
    "1-0:32.36.0(00000)",
    "1-0:52.36.0(00003)",
    "1-0:72.36.0(00000)",
    f"0-0:96.13.0({'303132333435363738393A3B3C3D3E3F' * 5})",
    "1-0:32.7.0(220.1*V)",
    "1-0:52.7.0(220.2*V)",
    "1-0:72.7.0(220.3*V)",
    "1-0:31.7.0(001*A)",
    "1-0:51.7.0(002*A)",
    "1-0:71.7.0(003*A)",
    "1-0:21.7.0(01.111*kW)",
    "1-0:41.7.0(02.222*kW)",
    "1-0:61.7.0(03.333*kW)",
    "1-0:22.7.0(04.444*kW)",
    "1-0:42.7.0(05.555*kW)",
    "1-0:62.7.0(06.666*kW)",
    "0-1:24.1.0(003)",
    "0-1:96.1.0(3232323241424344313233343536373839)",
    "0-1:24.2.1(101209112500W)(12785.123*m3)",
)


def telegram(checksum: str, lines: tuple[str, ...] = TELEGRAM) -> bytes:
    return "".join(f"{line}\r\n" for line in lines).encode() + f"!{checksum}\r\n".encode()


def test_the_example_telegram_of_the_p1_companion_standard_is_read():
    given, read_at = messages(telegram("E47C")), micros("2010-12-09T11:30:20+01:00")
    meter, gas = "K8EG004046395507", "2222ABCD123456789"
    assert decode(dsmr('it."1-0:1.7.0"'), given) == ([(meter, read_at, 1.193)], [])
    assert decode(dsmr('sum([to_number("1-0:1.8.1"), to_number("1-0:1.8.2")])'), given) == (
        [(meter, read_at, 246913.578)],
        [],
    )
    assert decode(dsmr('it."1-0:61.7.0"', units='it."1-0:61.7.0 unit"', unit="kW"), given) == (
        [(meter, read_at, 3.333)],
        [],
    )
    more = {"series": 'it."0-1:96.1.0"', "time": 'it."0-1:24.2.1 time"'}
    of_gas = dsmr('it."0-1:24.2.1"', units='it."0-1:24.2.1 unit"', unit="m3", **more)
    expected = [(gas, micros("2010-12-09T11:25:00+01:00"), 12785.123)]
    assert decode(of_gas, given) == (expected, [])


def test_the_example_telegram_with_a_checksum_that_is_not_its_own_is_a_reject():
    assert decode(dsmr('it."1-0:1.7.0"'), messages(telegram("EF2F"))) == ([], [(0, "malformed-row")])


# ThingsBoard. Documentation, MQTT Device API and HTTP Device API, uploading telemetry with a client's time stamp, of
# which the latter says that it is Friday, 1 January 2016, 12:00:00.512 GMT; and MQTT Gateway API, telemetry upload.

THINGSBOARD = {"ts": 1451649600512, "values": {"temperature": 42, "humidity": 73}}
THINGSBOARD_GATEWAY = {
    "Device A": [
        {"ts": 1483228800000, "values": {"temperature": 42, "humidity": 80}},
        {"ts": 1483228801000, "values": {"temperature": 43, "humidity": 82}},
    ],
    "Device B": [{"ts": 1483228800000, "values": {"temperature": 42, "humidity": 80}}],
}


def test_the_telemetry_of_thingsboards_documentation_is_read():
    given = dumped(THINGSBOARD, topics=["v1/devices/me/telemetry"], keys=[b"meter"])
    expected = ("meter", micros("2016-01-01T12:00:00.512+00:00"), 42.0)
    assert decode(recipe("thingsboard", "values.temperature", series="key"), given) == ([expected], [])
    start = micros("2017-01-01T00:00:00+00:00")
    rows = [("Device A", start, 80.0), ("Device A", start + 1_000_000, 82.0), ("Device B", start, 80.0)]
    assert decode(recipe("thingsboard", "values.humidity"), dumped(THINGSBOARD_GATEWAY)) == (rows, [])


# EdgeX. Documentation, a full Ubuntu Core image: what core data answers once the virtual device runs, with the origin
# in nanoseconds.

EDGEX = {
    "apiVersion": "v2",
    "statusCode": 200,
    "totalCount": 133,
    "readings": [
        {
            "id": "f6a53b5c-045f-4913-ae45-4e32642f6102",
            "origin": 1660923144514370300,
            "deviceName": "Random-Float-Device",
            "resourceName": "Float64",
            "profileName": "Random-Float-Device",
            "valueType": "Float64",
            "value": "1.436784e+308",
        },
        {
            "id": "95b5aa9c-e80d-488c-ab5d-1b625a9d0f76",
            "origin": 1660923114513963300,
            "deviceName": "Random-Float-Device",
            "resourceName": "Float64",
            "profileName": "Random-Float-Device",
            "valueType": "Float64",
            "value": "7.737701e+307",
        },
    ],
}


def test_the_readings_of_edgexs_documentation_are_read():
    device, later = "Random-Float-Device", micros("2022-08-19T15:32:24.514370+00:00")
    rows = [(device, micros("2022-08-19T15:31:54.513963+00:00"), 7.737701e307), (device, later, 1.436784e308)]
    assert decode(recipe("edgex", None, where="resourceName == 'Float64'"), dumped(EDGEX)) == (rows, [])


# Eclipse Hono. Telemetry API Specification for Kafka: topic, key and headers. The values are those that Hono's command
# line client 2.0.1 printed for the request of its getting started guide, as a book on the Eclipse projects of the
# Internet of Things shows it in its chapter on integration and data.


def test_the_kafka_message_of_the_hono_getting_started_guide_is_read():
    device = "53a3b746-d138-4f3c-8087-b580e241c9d2"
    headers = {
        "orig_adapter": "hono-http",
        "qos": "0",
        "device_id": device,
        "creation-time": "1660328357552",
        "traceparent": "00-fbc396794954547a68db4c1e0a6b8831-cfd5b098412f5788-01",
        "content-type": "application/json",
        "orig_address": "/telemetry",
    }
    given = messages(
        '{"temp": 5}',
        topics=["hono.telemetry.6e3eec20-3795-4f35-812a-4b45dabaffdf"],
        keys=[device.encode()],
        headers=[[(name, value.encode()) for name, value in headers.items()]],
    )
    row = (device, micros("2022-08-12T18:19:17.552+00:00"), 5.0)
    assert decode(recipe("hono", "temp"), given) == ([row], [])


# Azure IoT Hub. IoT Plug and Play, service developer guide for Python: the telemetry of the thermostat, with the
# properties that the hub sets. A bridge hands them on as text.


@pytest.mark.parametrize("time", [b"1603288810715", b"2020-10-21T14:00:10.715Z"], ids=["milliseconds", "iso"])
def test_the_thermostat_of_azures_developer_guide_is_read(time: bytes):
    properties = [
        ("content-type", b"application/json"),
        ("content-encoding", b"utf-8"),
        ("iothub-connection-device-id", b"my-pnp-device"),
        ("iothub-connection-auth-method", b'{"scope":"device","type":"sas","issuer":"iothub"}'),
        ("iothub-connection-auth-generation-id", b"637388855582764406"),
        ("iothub-enqueuedtime", time),
        ("iothub-message-source", b"Telemetry"),
        ("dt-dataschema", b"dtmi:com:example:Thermostat;1"),
    ]
    row = ("my-pnp-device", micros("2020-10-21T14:00:10.715+00:00"), 12.0)
    assert decode(recipe("azure-iot", "temperature"), dumped({"temperature": 12}, headers=[properties])) == ([row], [])


# AWS IoT. The rule of the CDK's documentation, SELECT topic(2) as device_id, timestamp() as timestamp, temperature FROM
# 'device/+/data', and what it makes of the message on device/22/data of the developer guide's tutorial on rules, where
# timestamp() is the value that the SQL reference has as its example.


def test_the_output_of_the_rule_of_the_aws_documentation_is_read():
    given = dumped({"device_id": "22", "timestamp": 1481825251155, "temperature": 28})
    row = ("22", micros("2016-12-15T18:07:31.155+00:00"), 28.0)
    assert decode(recipe("aws-iot", "temperature"), given) == ([row], [])


# NGSI-LD. FIWARE, tutorials, Subscriptions: the notification of a barn that is half empty. Its attributes are in the
# short form, so its time is that of the notification.


def test_the_notification_of_fiwares_tutorial_is_read():
    given = dumped(
        {
            "id": "urn:ngsi-ld:Notification:5fd0f3824eb81930c97005d8",
            "type": "Notification",
            "subscriptionId": "urn:ngsi-ld:Subscription:5fd0ee554eb81930c97005c1",
            "notifiedAt": "2020-12-09T15:55:46.520Z",
            "data": [
                {
                    "id": "urn:ngsi-ld:Device:filling001",
                    "type": "FillingLevelSensor",
                    "controlledAsset": "urn:ngsi-ld:Building:farm001",
                    "filling": 0.59,
                }
            ],
        }
    )
    row = ("urn:ngsi-ld:Device:filling001", micros("2020-12-09T15:55:46.520+00:00"), 0.59)
    assert decode(recipe("ngsi-ld", None, of="filling"), given) == ([row], [])
