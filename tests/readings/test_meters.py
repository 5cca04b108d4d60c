"""DSMR telegrams and CIM documents, as payloads of messages and as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quiltstream.schemas.settings.readings import Readings

from ..pipelines.jobs import call, job
from ..transforms.payloads.payloads import NOON_US, decode, messages


def crc(data: bytes) -> int:
    """CRC16 bit by bit, as the specification of P1 words it."""
    found = 0
    for byte in data:
        found ^= byte
        for _ in range(8):
            found = (found >> 1) ^ 0xA001 if found & 1 else found >> 1
    return found


def telegram(*lines: str, checksum: str | None = None) -> bytes:
    text = ("/EXA5\\2METER-1\r\n\r\n" + "".join(f"{line}\r\n" for line in lines) + "!").encode()
    return text + (f"{crc(text):04X}" if checksum is None else checksum).encode() + b"\r\n"


LINES = (
    "1-3:0.2.8(50)",
    "0-0:1.0.0(260105130000W)",
    "0-0:96.1.1(4558414D504C452D30303037)",
    "1-0:1.8.1(001234.500*kWh)",
    "1-0:1.8.2(000765.250*kWh)",
    "0-0:96.14.0(0002)",
    "1-0:1.7.0(01.193*kW)",
    "1-0:99.97.0(1)(0-0:96.7.19)(251209152415W)(0000000240*s)",
    "0-0:96.13.0()",
    "0-1:24.1.0(003)",
    "0-1:96.1.0(4741532D3031)",
    "0-1:24.2.1(260105125500W)(02785.123*m3)",
)


def dsmr(value: str = '"1-0:1.7.0"', **more: Any) -> Readings:
    said = {"payload": "dsmr", "each": "payload", "series": "meter", "time": "time", "value": value}
    return Readings.model_validate(said | more)


POWER = [("EXAMPLE-0007", NOON_US, 1.193)]


def test_telegrams_with_another_checksum_or_cut_short_are_rejects():
    good = telegram(*LINES)
    given = messages(
        good.replace(b"01.193", b"01.194"),
        good[:-20],
        good[: good.index(b"!") + 1],
        good[: good.index(b"!") + 3],
        good[1:],
        b"!/",
        good.lower().replace(b"exa5", b"EXA5"),
        good,
    )
    assert decode(dsmr(), given) == (POWER, [(at, "malformed-row") for at in range(7)])


def test_two_telegrams_in_a_message_are_two_readings_each_for_itself():
    first = telegram(*LINES)
    second = telegram(*(line.replace("130000W", "130010W").replace("01.193", "02.5") for line in LINES))
    given = messages(first + second, first.replace(b"01.193", b"01.194") + second, first + second[:-20])
    two = ("EXAMPLE-0007", NOON_US + 10_000_000, 2.5)
    assert decode(dsmr(), given) == ([*POWER * 2, two, two], [(1, "malformed-row"), (2, "malformed-row")])


#: kWh of fifteen minutes, forward; the voltage.
DELTA, VOLTS = "0.0.2.4.1.1.12.0.0.0.0.0.0.0.0.3.72.0", "0.0.0.12.0.1.54.0.0.0.0.0.0.0.224.0.29.0"


SMALL = f"""\
<MeterReadings xmlns="http://iec.ch/TC57/2011/MeterReadings#"><MeterReading>
<IntervalBlocks><IntervalReadings><timeStamp>2026-01-05T12:15:00Z</timeStamp><value>0.25</value></IntervalReadings>
<IntervalReadings><timeStamp>2026-01-05T12:30:00Z</timeStamp><value>0.5</value></IntervalReadings>
<ReadingType ref="{DELTA}"/></IntervalBlocks><Meter><mRID>MTR-7</mRID></Meter>
<Readings><timeStamp>2026-01-05T12:00:00Z</timeStamp><value>231.4</value><ReadingType ref="{VOLTS}"/></Readings>
</MeterReading></MeterReadings>
"""


def cim(condition: str = "unit == 'Wh' && flow == '1' && length == `900`") -> Readings:
    said = {"payload": "cim", "each": f"payload[?{condition}]", "series": "meter", "time": "time", "value": "value"}
    return Readings.model_validate(said)


def test_a_reading_type_may_be_defined_in_the_document():
    defined = SMALL.replace(f'ref="{DELTA}"', 'ref="kwh15"').replace(
        "</MeterReadings>",
        f"<ReadingType><mRID>kwh15</mRID><Names><name>{DELTA}</name></Names></ReadingType></MeterReadings>",
    )
    assert decode(cim(), messages(defined)) == decode(cim(), messages(SMALL))


QUERIES = {
    "dsmr": 'select meter as series, time, num("1-0:1.8.1") + num("1-0:1.8.2") as value from files',
    "cim": "select meter as series, time, num(value) as value from files where unit = 'Wh' and length = '900'",
}


@pytest.mark.parametrize(
    ("kind", "body", "readings"),
    [
        ("dsmr", telegram(*LINES) + telegram(*LINES).replace(b"01.193", b"01.194") + telegram(*LINES), (2, 1)),
        ("cim", SMALL.encode(), (2, 0)),
    ],
)
def test_files_of_them_are_read_by_a_select(kind: str, body: bytes, readings: tuple[int, int], tmp_path: Path):
    (tmp_path / "given").write_bytes(body)
    more = {"rejects": None, "group_by": None, "slots": {"interval": "15min", "of": "last"}}
    made = job(tmp_path, [], source={kind: "given"}, readings=QUERIES[kind], **more)
    found = json.loads(call("check", made.settings, "--json").out)
    assert (found["readings"], sum(one["rows"] for one in found["rejected"])) == readings
    assert found["first"] == "2026-01-05T12:00:00Z"
