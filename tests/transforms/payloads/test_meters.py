"""Presets of what meters and utilities send themselves: DSMR telegrams and Green Button feeds, made by hand.

Those that others have published are in :mod:`.test_published`.
"""

from __future__ import annotations

import datetime as dt

import pytest

from .payloads import NOON_S, NOON_US, decode, messages, preset

# DSMR


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


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("1-0:1.7.0", ("EXAMPLE-0007", NOON_US, 1.193)),
        ("1-0:1.8.1+1-0:1.8.2", ("EXAMPLE-0007", NOON_US, 1999.75)),
        ("0-1:24.2.1", ("GAS-01", NOON_US - 300_000_000, 2785.123)),
    ],
)
def test_dsmr_telegrams_give_the_wanted_code(code: str, expected: tuple[str, int, float]):
    assert decode(preset("dsmr", code), messages(telegram(*LINES))) == ([expected], [])


def test_a_known_telegram_has_the_checksum_that_is_published_for_its_algorithm():
    """CRC-16/ARC of the nine digits is BB3D in every catalogue of checksums."""
    assert crc(b"123456789") == 0xBB3D


def test_dsmr_telegrams_with_another_checksum_or_cut_short_are_rejects():
    good = telegram(*LINES)
    given = messages(
        good.replace(b"01.193", b"01.194"),
        good[:-20],
        good[: good.index(b"!") + 1],
        good[: good.index(b"!") + 3],
        good[1:],
        b"",
        b"!/",
        good.lower().replace(b"exa5", b"EXA5"),
        good,
    )
    rows, rejects = decode(preset("dsmr", "1-0:1.7.0"), given)
    assert rows == [("EXAMPLE-0007", NOON_US, 1.193)]
    assert rejects == [(at, "malformed-row") for at in range(8)]


def test_dsmr_telegrams_of_old_versions_have_no_checksum():
    given = messages(telegram(*LINES[1:], checksum=""))
    assert decode(preset("dsmr", "1-0:1.7.0"), given)[0] == [("EXAMPLE-0007", NOON_US, 1.193)]


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
def test_dsmr_stamps_say_themselves_whether_summer_time_held(stamp: str, utc: str | None):
    given = messages(telegram("0-0:1.0.0(" + stamp + ")", *LINES[2:]))
    rows, rejects = decode(preset("dsmr", "1-0:1.7.0"), given)
    if utc is None:
        assert (rows, rejects) == ([], [(0, "unparsable-time")])
    else:
        assert [row[1] for row in rows] == [int(dt.datetime.fromisoformat(utc).timestamp()) * 1_000_000]


def test_dsmr_telegrams_without_the_code_hold_no_reading_and_half_a_sum_is_none():
    code = "1-0:1.8.1+1-0:1.8.2"
    lines = [line for line in LINES if not line.startswith("1-0:1.8.2")]
    assert decode(preset("dsmr", "1-0:21.7.0"), messages(telegram(*LINES))) == ([], [])
    assert decode(preset("dsmr", code), messages(telegram(*lines))) == ([], [(0, "missing-value")])


# Green Button

ESPI = """\
<?xml version="1.0" encoding="UTF-8"?>
<feed xmlns="http://www.w3.org/2005/Atom">
  <id>urn:uuid:8c7f0f0a-0000-4000-8000-000000000001</id><title>Usage of an example</title>
  <entry>
    <link rel="self" href="https://utility.example/espi/1_1/resource/RetailCustomer/9/UsagePoint/house-1"/>
    <link rel="related" href="https://utility.example/espi/1_1/resource/RetailCustomer/9/UsagePoint/house-1/MeterReading"/>
    <content><UsagePoint xmlns="http://naesb.org/espi"><ServiceCategory><kind>0</kind></ServiceCategory></UsagePoint></content>
  </entry>
  <entry>
    <link rel="self" href="https://utility.example/espi/1_1/resource/RetailCustomer/9/UsagePoint/house-1/MeterReading/in"/>
    <link rel="up" href="https://utility.example/espi/1_1/resource/RetailCustomer/9/UsagePoint/house-1/MeterReading"/>
    <link rel="related" href="https://utility.example/espi/1_1/resource/ReadingType/1"/>
    <content><MeterReading xmlns="http://naesb.org/espi"/></content>
  </entry>
  <entry>
    <link rel="self" href="https://utility.example/espi/1_1/resource/RetailCustomer/9/UsagePoint/house-1/MeterReading/out"/>
    <link rel="related" href="https://utility.example/espi/1_1/resource/ReadingType/2"/>
    <content><MeterReading xmlns="http://naesb.org/espi"/></content>
  </entry>
  <entry>
    <link rel="self" href="https://utility.example/espi/1_1/resource/ReadingType/1"/>
    <content><ReadingType xmlns="http://naesb.org/espi"><accumulationBehaviour>4</accumulationBehaviour>
      <flowDirection>1</flowDirection><intervalLength>900</intervalLength>
      <powerOfTenMultiplier>{power}</powerOfTenMultiplier><uom>72</uom></ReadingType></content>
  </entry>
  <entry>
    <link rel="self" href="https://utility.example/espi/1_1/resource/ReadingType/2"/>
    <content><ReadingType xmlns="http://naesb.org/espi"><flowDirection>19</flowDirection>
      <powerOfTenMultiplier>0</powerOfTenMultiplier><uom>72</uom></ReadingType></content>
  </entry>
  <entry>
    <link rel="self" href="https://utility.example/espi/1_1/resource/RetailCustomer/9/UsagePoint/house-1/MeterReading/in/IntervalBlock/1"/>
    <link rel="up" href="https://utility.example/espi/1_1/resource/RetailCustomer/9/UsagePoint/house-1/MeterReading/in/IntervalBlock"/>
    <content><IntervalBlock xmlns="http://naesb.org/espi">
      <interval><duration>1800</duration><start>{noon}</start></interval>
      <IntervalReading><timePeriod><duration>900</duration><start>{noon}</start></timePeriod><value>974</value></IntervalReading>
      <IntervalReading><timePeriod><duration>900</duration><start>{later}</start></timePeriod><value> 965 </value></IntervalReading>
      <IntervalReading><timePeriod><duration>900</duration><start>{later}</start></timePeriod></IntervalReading>
    </IntervalBlock></content>
  </entry>
  <entry>
    <link rel="up" href="https://utility.example/espi/1_1/resource/RetailCustomer/9/UsagePoint/house-1/MeterReading/out/IntervalBlock"/>
    <content><IntervalBlock xmlns="http://naesb.org/espi">
      <IntervalReading><timePeriod><start>{noon}</start></timePeriod><value>7</value></IntervalReading>
    </IntervalBlock></content>
  </entry>
</feed>
"""  # noqa: E501 - addresses are as long as they are


def feed(power: int = -3) -> str:
    return ESPI.format(power=power, noon=NOON_S, later=NOON_S + 900)


@pytest.mark.parametrize(("power", "values"), [(-3, (0.974, 0.965)), (0, (974.0, 965.0)), (3, (974_000.0, 965_000.0))])
def test_green_button_values_have_the_power_of_ten_of_their_reading_type(power: int, values: tuple[float, float]):
    rows, rejects = decode(preset("green-button", None), messages(feed(power)))
    assert rows == [("house-1", NOON_US, values[0]), ("house-1", NOON_US + 900_000_000, values[1])]
    assert rejects == [(0, "missing-value")]


def test_green_button_directions_are_told_apart():
    assert decode(preset("green-button", "Wh reverse"), messages(feed()))[0] == [("house-1", NOON_US, 7.0)]
    assert decode(preset("green-button", "m3"), messages(feed())) == ([], [])


BOMB = '<!DOCTYPE f [<!ENTITY a "x"><!ENTITY b "&a;&a;">]><feed xmlns="http://www.w3.org/2005/Atom">&b;</feed>'


def test_green_button_feeds_that_cannot_be_read_are_rejects():
    untyped = feed().replace("ReadingType/1", "ReadingType/9", 1)
    given = messages(
        BOMB, feed()[:-9], "<a/>", untyped, feed().replace(">-3<", ">x<"), feed().replace(">-3<", ">99<"), b""
    )
    rows, rejects = decode(preset("green-button", None), given)
    assert rows == []
    assert rejects == [(at, "malformed-row") for at in (0, 1, 3, 4, 5, 6)]  # an empty document holds no reading
