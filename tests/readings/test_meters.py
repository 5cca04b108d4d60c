"""DSMR telegrams and CIM documents, as payloads of messages and as files."""

from __future__ import annotations

import datetime as dt
import json
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from quiltstream.schemas.settings.readings import Readings
from quiltstream.transforms.payloads import PayloadDecoder

from ..pipelines.jobs import call, job
from ..transforms.payloads.damage import Steps
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


def test_old_telegrams_have_no_checksum_and_others_may_have_lost_their_carriage_returns():
    bare = telegram(*LINES).replace(b"\r", b"")
    given = messages(telegram(*LINES[1:], checksum=""), bare, bare.replace(b"01.193", b"01.194"))
    assert decode(dsmr(), given) == (POWER * 2, [(2, "malformed-row")])


def test_two_telegrams_in_a_message_are_two_readings_each_for_itself():
    first = telegram(*LINES)
    second = telegram(*(line.replace("130000W", "130010W").replace("01.193", "02.5") for line in LINES))
    given = messages(first + second, first.replace(b"01.193", b"01.194") + second, first + second[:-20])
    two = ("EXAMPLE-0007", NOON_US + 10_000_000, 2.5)
    assert decode(dsmr(), given) == ([*POWER * 2, two, two], [(1, "malformed-row"), (2, "malformed-row")])


def test_the_identifier_of_luxembourg_and_codes_with_255_are_read():
    lines = ("1-3:0.2.8(42)", "0-0:1.0.0(260105130000W)", "0-0:42.0.0(53414731303330)")
    lines += ("1-0:1.7.0*255(00.5*kW)", "1-0:1.7.0*1(9*kW)")
    assert decode(dsmr(), messages(telegram(*lines))) == ([("SAG1030", NOON_US, 0.5)], [])


def test_the_gas_of_old_telegrams_stands_in_two_lines_and_their_time_may_be_the_stamp():
    lines = ("0-0:96.1.1(4558414D504C452D30303037)", "1-0:1.7.0(0000.98*kW)", "0-1:96.1.0(4741532D3031)")
    lines += ("0-1:24.3.0(260105130000)(00)(60)(1)(0-1:24.2.1)(m3)", "(00024.123)")
    given = messages(telegram(*lines, checksum=""), telegram(*LINES), stamps_us=[NOON_US + 7, NOON_US + 7])
    rows = [*POWER, ("EXAMPLE-0007", NOON_US + 7, 0.98)]
    assert decode(dsmr(time="time || stamp"), given) == (rows, [])
    assert decode(dsmr(), given)[1] == [(0, "unparsable-time")]
    gas = {"series": '"0-1:96.1.0"', "time": '"0-1:24.2.1 time"', "units": '"0-1:24.2.1 unit"', "unit": "m3"}
    assert decode(dsmr('"0-1:24.2.1"', **gas), given) == (
        [("GAS-01", NOON_US - 300_000_000, 2785.123), ("GAS-01", NOON_US, 24.123)],
        [],
    )


@pytest.mark.parametrize(
    ("stamp", "utc"),
    [
        ("260705130000S", "2026-07-05T11:00:00+00:00"),
        ("261025023000S", "2026-10-25T00:30:00+00:00"),
        ("261025023000W", "2026-10-25T01:30:00+00:00"),
        ("260105130000S", None),
        ("261305130000W", None),
        ("2601051300W", None),
    ],
)
def test_stamps_carry_their_summer_time_flag(stamp: str, utc: str | None):
    rows, rejects = decode(dsmr(), messages(telegram("0-0:1.0.0(" + stamp + ")", *LINES[2:])))
    times = [] if utc is None else [int(dt.datetime.fromisoformat(utc).timestamp()) * 1_000_000]
    assert ([row[1] for row in rows], [reason for _, reason in rejects]) == (times, ["unparsable-time"][len(times) :])


def test_tariffs_are_added_and_units_converted_or_rejects():
    def of(old: str, new: str) -> bytes:
        return telegram(*(line.replace(old, new) for line in LINES))

    both = 'sum([to_number("1-0:1.8.1"), to_number("1-0:1.8.2")])'
    assert decode(dsmr(both), messages(telegram(*LINES)))[0][0][2] == 1999.75
    in_kw = dsmr(units='"1-0:1.7.0 unit"', unit="kW")
    given = messages(of("*kW)", "*W)"), of("*kW)", "*MW)"), of("*kW)", "*V)"), of("*kW)", ")"), telegram(*LINES))
    rows, rejects = decode(in_kw, given)
    assert sorted(value for _, _, value in rows) == [0.001193, 1.193, 1193.0]
    assert rejects == [(2, "mixed-units"), (3, "mixed-units")]


#: kWh and Wh of fifteen minutes, forward; a register of kWh; the voltage.
DELTA, DELTA_WH = "0.0.2.4.1.1.12.0.0.0.0.0.0.0.0.3.72.0", "0.0.2.4.1.1.12.0.0.0.0.0.0.0.0.0.72.0"
BULK, VOLTS = "0.0.0.1.1.1.12.0.0.0.0.0.0.0.0.3.72.0", "0.0.0.12.0.1.54.0.0.0.0.0.0.0.224.0.29.0"
QUARTER_US = 900_000_000

#: A message of a head end: two meters, one by its id and one by its names, with interval data, a register and voltage.
EVENT = f"""\
<?xml version="1.0" encoding="UTF-8"?>
<ns0:EventMessage xmlns:ns0="http://iec.ch/TC57/2011/schema/message">
  <ns0:Header><ns0:Verb>created</ns0:Verb><ns0:Timestamp>2026-01-05T12:46:02Z</ns0:Timestamp></ns0:Header>
  <ns0:Payload>
    <m:MeterReadings xmlns:m="http://iec.ch/TC57/2011/MeterReadings#">
      <m:MeterReading>
        <m:IntervalBlocks>
          <m:IntervalReadings><m:timeStamp>2026-01-05T12:15:00Z</m:timeStamp><m:value>0.25</m:value>
            <m:ReadingQualities><m:ReadingQualityType ref="3.0.0"/></m:ReadingQualities></m:IntervalReadings>
          <m:IntervalReadings><m:timeStamp>2026-01-05T12:30:00Z</m:timeStamp><m:value>0.5</m:value>
            <m:ReadingQualities><m:ReadingQualityType ref="3.8.0"/></m:ReadingQualities></m:IntervalReadings>
          <m:IntervalReadings><m:timeStamp>2026-01-05T12:45:00Z</m:timeStamp><m:value>0</m:value>
            <m:ReadingQualities><m:ReadingQualityType ref="3.5.259"/></m:ReadingQualities></m:IntervalReadings>
          <m:ReadingType ref="{DELTA}"/>
        </m:IntervalBlocks>
        <m:Meter><m:mRID>a9f4c1d2-0001</m:mRID><m:Names><m:name>MTR-1</m:name></m:Names></m:Meter>
        <m:Readings><m:timeStamp>2026-01-05T12:00:00Z</m:timeStamp><m:value>10400.5</m:value>
          <m:ReadingType ref="{BULK}"/></m:Readings>
        <m:Readings><m:timeStamp>2026-01-05T12:00:00Z</m:timeStamp><m:value>231.4</m:value>
          <m:ReadingType ref="{VOLTS}"/></m:Readings>
      </m:MeterReading>
      <m:MeterReading>
        <m:IntervalBlocks>
          <m:IntervalReadings><m:timeStamp>2026-01-05T13:15:00+01:00</m:timeStamp><m:value>750</m:value></m:IntervalReadings>
          <m:ReadingType ref="{DELTA_WH}"/>
        </m:IntervalBlocks>
        <m:Meter><m:Names><m:name>MTR-2</m:name></m:Names></m:Meter>
      </m:MeterReading>
    </m:MeterReadings>
  </ns0:Payload>
</ns0:EventMessage>
"""

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


def test_intervals_of_several_meters_are_read_in_one_unit_at_their_begins():
    good = cim("unit == 'Wh' && length == `900` && !contains(quality, '.5.')")
    expected = [("MTR-2", NOON_US, 750.0), ("a9f4c1d2-0001", NOON_US, 250.0)]
    assert decode(good, messages(EVENT)) == ([*expected, ("a9f4c1d2-0001", NOON_US + QUARTER_US, 500.0)], [])
    assert decode(cim(f"code == '{DELTA_WH}'"), messages(EVENT))[0] == expected[:1]
    assert decode(cim(f"code == '{BULK}'"), messages(EVENT)) == ([("a9f4c1d2-0001", NOON_US, 10_400_500.0)], [])
    assert decode(cim("unit == 'V'"), messages(EVENT)) == ([("a9f4c1d2-0001", NOON_US, 231.4)], [])


def test_a_reading_type_may_be_defined_in_the_document():
    defined = SMALL.replace(f'ref="{DELTA}"', 'ref="kwh15"').replace(
        "</MeterReadings>",
        f"<ReadingType><mRID>kwh15</mRID><Names><name>{DELTA}</name></Names></ReadingType></MeterReadings>",
    )
    assert decode(cim(), messages(defined)) == decode(cim(), messages(SMALL))


def test_a_delta_of_unknown_length_has_the_begin_that_it_says_or_none():
    unknown = DELTA.replace("0.0.2.4", "11.0.0.4")
    document = SMALL.replace(VOLTS, unknown)
    assert decode(cim(f"code == '{unknown}'"), messages(document)) == ([], [(0, "unparsable-time")])
    period = "<timePeriod><start>2026-01-05T12:00:00Z</start></timePeriod>"
    begun = document.replace("<value>231.4", f"{period}<value>231.4")
    assert decode(cim(f"code == '{unknown}'"), messages(begun)) == ([("MTR-7", NOON_US, 231_400.0)], [])


@pytest.mark.parametrize("element", ["<a:b{}/>", "<a:b/>"])
def test_a_long_namespace_is_a_reject_before_elements_repeat_it(element: str):
    """In 158 KB of them would be 1.1 GB of names."""
    head, tail = SMALL.split("</MeterReadings>")
    many = "".join(element.format(number) for number in range(4_000))
    for length, rejects in ((200, []), (201, [(0, "malformed-row")]), (60_000, [(0, "malformed-row")])):
        document = f'{head}<r xmlns:a="{"u" * length}">{many}</r></MeterReadings>{tail}'
        tracemalloc.start()
        found = decode(cim(), messages(document))
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (len(found[0]), found[1]) == (0 if rejects else 2, rejects)
        assert held < 200 * len(document)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (DELTA, "0.0.2.4"),
        (f'<ReadingType ref="{DELTA}"/>', ""),
        ("<MeterReadings xmlns", '<!DOCTYPE f [<!ENTITY a "x">]><MeterReadings xmlns'),
        ("</MeterReadings>", ""),
    ],
)
def test_documents_that_cannot_be_read_are_rejects(before: str, after: str):
    assert SMALL.count(before)
    assert decode(cim(), messages(SMALL.replace(before, after))) == ([], [(0, "malformed-row")])


def test_a_reading_with_a_missing_field_is_rejected_with_its_reason():
    given = messages(SMALL.replace("<value>0.25</value>", ""), SMALL.replace("<mRID>MTR-7</mRID>", ""))
    rows, rejects = decode(cim(), given)
    assert ([row[2] for row in rows], rejects) == ([500.0], [(0, "missing-value"), (1, "missing-series")])


def test_nested_readings_are_read_once_in_linear_time():
    """Levels of readings around one another, each with all that is inside, would be read once for each level."""
    head, rest = SMALL.split("<MeterReading>")
    deep = head + "<MeterReading>" * 20_000 + rest.replace("</MeterReading>", "</MeterReading>" * 20_000)
    before = time.process_time()
    assert len(decode(cim(), messages(deep))[0]) == 2
    assert time.process_time() - before < 10


def test_documents_are_decoded_in_linear_time():
    one = SMALL.split("<IntervalReadings>")[1]
    head, tail = SMALL.split(f"<IntervalReadings>{one}")
    small, large = (messages(head + f"<IntervalReadings>{one}" * count + tail) for count in (64, 1_024))
    decoder = PayloadDecoder(cim())
    decoder.decode(small)
    assert Steps(lambda: decoder.decode(large)).count <= 16 * Steps(lambda: decoder.decode(small)).count


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
