"""Presets of what meters and utilities send themselves: DSMR telegrams and Green Button feeds, made by hand.

Those that others have published are in :mod:`.test_published`.
"""

from __future__ import annotations

import datetime as dt
import sys
import time

import pytest

from quiltstream.schemas.settings.base import SettingsError
from quiltstream.transforms.payloads import PayloadDecoder

from .payloads import NOON_S, NOON_US, decode, messages, preset


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


def test_dsmr_telegrams_may_have_lost_their_carriage_returns():
    bare = telegram(*LINES).replace(b"\r", b"")
    given = messages(bare, bare.replace(b"01.193", b"01.194"), telegram(*LINES).replace(b"\r", b"", 1))
    rows, rejects = decode(preset("dsmr", "1-0:1.7.0"), given)
    assert rows == [("EXAMPLE-0007", NOON_US, 1.193)]
    assert rejects == [(1, "malformed-row"), (2, "malformed-row")]


def test_two_dsmr_telegrams_in_a_message_are_two_readings_each_for_itself():
    first, second = (
        telegram(*LINES),
        telegram(*(line.replace("130000W", "130010W").replace("01.193", "02.5") for line in LINES)),
    )
    given = messages(first + second, first.replace(b"01.193", b"01.194") + second, first + second[:-20])
    rows, rejects = decode(preset("dsmr", "1-0:1.7.0"), given)
    one, two = ("EXAMPLE-0007", NOON_US, 1.193), ("EXAMPLE-0007", NOON_US + 10_000_000, 2.5)
    assert rows == [one, one, two, two]
    assert rejects == [(1, "malformed-row"), (2, "malformed-row")]


def test_the_identifier_of_luxembourg_and_codes_with_255_are_read():
    lines = (
        "1-3:0.2.8(42)",
        "0-0:1.0.0(260105130000W)",
        "0-0:42.0.0(53414731303330)",
        "1-0:1.7.0*255(00.5*kW)",
        "1-0:1.7.0*1(9*kW)",
    )
    assert decode(preset("dsmr", "1-0:1.7.0"), messages(telegram(*lines))) == ([("SAG1030", NOON_US, 0.5)], [])


OLD = (
    "0-0:96.1.1(4558414D504C452D30303037)",
    "1-0:1.7.0(0000.98*kW)",
    "0-1:96.1.0(4741532D3031)",
    "0-1:24.3.0(260105130000)(00)(60)(1)(0-1:24.2.1)(m3)",
    "(00024.123)",
)


def test_old_dsmr_telegrams_have_the_named_time_and_gas_in_two_lines():
    given = messages(telegram(*OLD, checksum=""), telegram(*LINES), stamps_us=[NOON_US + 7, NOON_US + 7])
    power = preset("dsmr", "1-0:1.7.0", time={"stamp": True})
    assert decode(power, given) == ([("EXAMPLE-0007", NOON_US, 1.193), ("EXAMPLE-0007", NOON_US + 7, 0.98)], [])
    assert decode(preset("dsmr", "1-0:1.7.0"), given)[1] == [(0, "unparsable-time")]
    assert decode(preset("dsmr", "0-1:24.2.1", unit="m3"), messages(telegram(*OLD, checksum=""))) == (
        [("GAS-01", NOON_US, 24.123)],
        [],
    )


@pytest.mark.parametrize("time", ["at", {"path": "at"}, {"stamp": True, "optional": True}])
def test_the_time_of_old_telegrams_is_beside_the_payload(time: object):
    with pytest.raises(ValueError, match=r"readings\.time"):
        preset("dsmr", "1-0:1.7.0", time=time)


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
def test_dsmr_timestamps_carry_their_summer_time_flag(stamp: str, utc: str | None):
    given = messages(telegram("0-0:1.0.0(" + stamp + ")", *LINES[2:]))
    rows, rejects = decode(preset("dsmr", "1-0:1.7.0"), given)
    if utc is None:
        assert (rows, rejects) == ([], [(0, "unparsable-time")])
    else:
        assert [row[1] for row in rows] == [int(dt.datetime.fromisoformat(utc).timestamp()) * 1_000_000]


@pytest.mark.parametrize(
    ("stamp", "zone", "utc"),
    [
        ("260701130000S", "Europe/Dublin", "2026-07-01T12:00:00+00:00"),
        ("260101130000W", "Europe/Dublin", "2026-01-01T13:00:00+00:00"),
        ("261025013000S", "Europe/Dublin", "2026-10-25T00:30:00+00:00"),
        ("261025013000W", "Europe/Dublin", "2026-10-25T01:30:00+00:00"),
        ("260701130000W", "Europe/Dublin", None),
        ("260101130000S", "Australia/Sydney", "2026-01-01T02:00:00+00:00"),
        ("260701130000S", "Africa/Lagos", None),
    ],
)
def test_summer_of_a_dsmr_stamp_is_when_clocks_are_ahead(stamp: str, zone: str, utc: str | None):
    """Irish law calls summer the standard time: by dst() every stamp of Dublin was a reject."""
    given = messages(telegram("0-0:1.0.0(" + stamp + ")", *LINES[2:]))
    rows, rejects = decode(preset("dsmr", "1-0:1.7.0"), given, timezone=zone)
    times = [] if utc is None else [int(dt.datetime.fromisoformat(utc).timestamp()) * 1_000_000]
    assert ([row[1] for row in rows], len(rejects)) == (times, 1 - len(times))


def test_dsmr_telegrams_without_the_code_are_skipped_and_partial_sums_rejected():
    code = "1-0:1.8.1+1-0:1.8.2"
    lines = [line for line in LINES if not line.startswith("1-0:1.8.2")]
    assert decode(preset("dsmr", "1-0:21.7.0"), messages(telegram(*LINES))) == ([], [])
    assert decode(preset("dsmr", code), messages(telegram(*lines))) == ([], [(0, "missing-value")])


def with_unit(unit: str) -> bytes:
    return telegram(*(line.replace("(01.193*kW)", f"(01.193{unit})") for line in LINES))


def test_dsmr_values_are_converted_to_one_unit():
    given = messages(with_unit("*W"), with_unit("*kW"), with_unit("*MW"))
    rows, rejects = decode(preset("dsmr", "1-0:1.7.0"), given)
    assert (sorted(value for _, _, value in rows), rejects) == ([0.001193, 1.193, 1193.0], [])
    rows, rejects = decode(preset("dsmr", "1-0:1.7.0", unit="W"), given)
    assert (sorted(value for _, _, value in rows), rejects) == ([1.193, 1193.0, 1_193_000.0], [])


def test_dsmr_telegrams_of_another_quantity_or_without_a_unit_are_rejects():
    given = messages(*map(with_unit, ("*kWh", "*V", "", "*", "*kw", "*kW*W", "*m3", "*\xff", "*kW")))
    rows, rejects = decode(preset("dsmr", "1-0:1.7.0"), given)
    assert [value for _, _, value in rows] == [1.193]
    assert rejects == [(at, "mixed-units") for at in range(8)]


def test_numbers_of_failures_have_no_unit():
    given = messages(*(telegram(*LINES, f"0-0:96.7.21({digits})") for digits in ("00004", "00004*kW", "00004*")))
    rows, rejects = decode(preset("dsmr", "0-0:96.7.21"), given)
    assert ([value for _, _, value in rows], rejects) == ([4.0], [(1, "mixed-units"), (2, "mixed-units")])


def test_dsmr_sums_add_values_of_one_unit():
    lines = [line.replace("(000765.250*kWh)", "(765250*Wh)") for line in LINES]
    assert decode(preset("dsmr", "1-0:1.8.1+1-0:1.8.2"), messages(telegram(*lines)))[0][0][2] == 1999.75
    lines = [line.replace("(000765.250*kWh)", "(765.250*kvarh)") for line in LINES]
    assert decode(preset("dsmr", "1-0:1.8.1+1-0:1.8.2"), messages(telegram(*lines))) == ([], [(0, "mixed-units")])


@pytest.mark.parametrize(
    ("first", "second", "value"),
    [
        ("1e400", "1", sys.float_info.max),
        ("1e308", "1e308", sys.float_info.max),
        ("0.1", "0.2", 0.1 + 0.2),
        ("1_0", "1", None),
        ("", "1", None),
    ],
)
def test_dsmr_sums_read_numbers_as_single_values_are_read(first: str, second: str, value: float | None):
    given = messages(
        telegram("0-0:96.1.1(41)", "0-0:1.0.0(260101120000W)", f"1-0:1.8.1({first}*kWh)", f"1-0:1.8.2({second}*kWh)")
    )
    rows, rejects = decode(preset("dsmr", "1-0:1.8.1+1-0:1.8.2"), given)
    assert [found for _, _, found in rows] == ([] if value is None else [value])
    single = decode(preset("dsmr", "1-0:1.8.1"), given)[1]
    assert rejects == (single if value is None else [])


def test_dsmr_units_of_codes_that_measure_anything_are_those_of_the_settings():
    heat = [line.replace("(02785.123*m3)", "(02785.123*MJ)") for line in LINES]
    given = messages(telegram(*LINES), telegram(*heat))
    for unit, values, reject in (("m3", [2785.123], 1), ("dm3", [2_785_123.0], 1), ("GJ", [2.785123], 0)):
        rows, rejects = decode(preset("dsmr", "0-1:24.2.1", unit=unit), given)
        assert ([value for _, _, value in rows], rejects) == (values, [(reject, "mixed-units")])


@pytest.mark.parametrize(
    ("code", "unit", "text"),
    [
        ("1-0:1.7.0", "V", "is in kW by the standard"),
        ("1-0:1.7.0+1-0:1.8.0", "", "is in kWh by the standard"),
        ("1-0:1.7.0", "kW per slot", "readings.unit is 'kW per slot'"),
        ("1-0:" + "1" * 5_000 + ".7.0", "", "OBIS code"),
        ("0-1:24.2.1", "", "readings.unit is missing: 0-1:24.2.1 measures anything by the standard"),
        ("0-0:17.0.0", "", "readings.unit is missing"),
    ],
)
def test_dsmr_units_and_codes_of_different_quantities_are_mistakes_of_the_settings(code: str, unit: str, text: str):
    with pytest.raises(SettingsError, match=text):
        PayloadDecoder(preset("dsmr", code, unit=unit)).check()


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


def test_green_button_directions_are_distinguished():
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


def test_green_button_addresses_take_linear_time_and_have_a_limit():
    """240 kB of this took 28 s; a message that is delivered again and again stalled its partition."""
    hostile = "/UsagePoint/1" * 18_000 + "&#10;&#10;"
    given = feed().replace("https://utility.example/espi/1_1/resource/ReadingType/1", hostile)
    before = time.process_time()
    assert decode(preset("green-button", None), messages(given)) == ([], [(0, "malformed-row")])
    assert time.process_time() - before < 10


@pytest.mark.parametrize(
    ("address", "series"),
    [
        ("/espi/UsagePoint/9/MeterReading/in/IntervalBlock", "9"),
        ("/UsagePoint/1/UsagePoint/2/MeterReading/in", "2"),
        ("/UsagePoint/7/MeterReading/in/UsagePoint/", "7"),
        # relative, as utilities write it: this was no usage point, and the same form of a type was any other type
        ("UsagePoint/7/MeterReading/in", "7"),
        ("MeterReading/in", None),
    ],
)
def test_green_button_usage_points_are_the_last_that_an_address_names(address: str, series: str | None):
    block = (
        f'<entry xmlns="http://www.w3.org/2005/Atom"><link rel="up" href="{address}"/><content>'
        '<ReadingType xmlns="http://naesb.org/espi"><uom>72</uom></ReadingType><IntervalBlock '
        f'xmlns="http://naesb.org/espi"><IntervalReading><timePeriod><start>{NOON_S}</start></timePeriod>'
        "<value>5</value></IntervalReading></IntervalBlock></content></entry>"
    )
    rows, rejects = decode(preset("green-button", None), messages(block))
    assert [row[0] for row in rows] == ([] if series is None else [series])
    assert rejects == ([(0, "missing-series")] if series is None else [])


def relative() -> str:
    return feed().replace("https://utility.example/espi/1_1/resource/", "").replace("RetailCustomer/9/", "")


def without(entry: str, given: str) -> str:
    """A feed without the entry of its own address."""
    start = given.index(f'<link rel="self" href="{entry}"/>')
    return given[: given.rindex("<entry>", 0, start)] + given[given.index("</entry>", start) + len("</entry>") :]


@pytest.mark.parametrize("name", ["Wh", "Wh reverse"])
def test_green_button_types_of_relative_addresses_are_told_apart(name: str):
    """All had no address at all, so that what was used came out as what flowed back, a thousandfold."""
    assert decode(preset("green-button", name), messages(relative())) == decode(
        preset("green-button", name), messages(feed())
    )
    # the other type is the only one, and no block that names this one is read by it
    lost = without("ReadingType/1" if name == "Wh" else "ReadingType/2", relative())
    assert decode(preset("green-button", name), messages(lost)) == ([], [(0, "malformed-row")])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('<link rel="self" href="ReadingType/{}"/>', ""),
        ('<link rel="self" href="ReadingType/2"/>', '<link rel="self" href="ReadingType/1"/>'),
        (
            'rel="self" href="UsagePoint/house-1/MeterReading/out"',
            'rel="self" href="UsagePoint/house-1/MeterReading/in"',
        ),
        ('<link rel="self" href="UsagePoint/house-1/MeterReading/in"/>', ""),
    ],
)
def test_a_green_button_feed_whose_types_are_ambiguous_is_a_reject(old: str, new: str):
    given = relative().replace(old.format(1), new).replace(old.format(2), new)
    assert given != relative()
    for name in ("Wh", "Wh reverse"):
        assert decode(preset("green-button", name), messages(given)) == ([], [(0, "malformed-row")])


def test_the_only_green_button_type_is_not_that_of_a_reading_without_address():
    """Its reading names a type that is missing; the block names no reading that says so."""
    given = without("ReadingType/1", relative()).replace(
        '<link rel="self" href="UsagePoint/house-1/MeterReading/in"/>', ""
    )
    assert decode(preset("green-button", "Wh reverse"), messages(given)) == ([], [(0, "malformed-row")])


def test_green_button_registers_are_no_readings_and_hours_with_days_are_mixed():
    one_way = feed().replace(
        "<flowDirection>19<", "<accumulationBehaviour>{}</accumulationBehaviour>{}<flowDirection>1<"
    )
    length = "<intervalLength>{}</intervalLength>"
    deltas = [("house-1", NOON_US, 0.974), ("house-1", NOON_US + 900_000_000, 0.965)]
    for behaviour in (1, 2, 3, 9):
        rows, rejects = decode(preset("green-button", None), messages(one_way.format(behaviour, length.format(900))))
        assert (rows, rejects) == (deltas, [(0, "missing-value")])
    for behaviour, seconds in ((4, 86_400), (0, 900), (12, 900)):
        given = messages(one_way.format(behaviour, length.format(seconds)))
        assert decode(preset("green-button", None), given) == ([], [(0, "mixed-units")])
    # powers of ten are no kinds, and two homes may have two
    rows, _ = decode(preset("green-button", None), messages(one_way.format(4, length.format(900))))
    assert rows == sorted([*deltas, ("house-1", NOON_US, 7.0)])
    homes = one_way.format(4, length.format(86_400)).replace("house-1/MeterReading/out", "house-2/MeterReading/out")
    rows, _ = decode(preset("green-button", None), messages(homes))
    assert rows == [*deltas, ("house-2", NOON_US, 7.0)]


def test_nested_green_button_blocks_give_each_reading_once():
    """2,000 levels of blocks around 2,000 readings gave four million readings."""
    reading = f"<IntervalReading><timePeriod><start>{NOON_S}</start></timePeriod><value>5</value></IntervalReading>"
    head, rest = feed().split(f"<interval><duration>1800</duration><start>{NOON_S}</start></interval>")
    nested = head + "<IntervalBlock>" * 2_000 + reading * 2_000 + "</IntervalBlock>" * 2_000 + rest
    (part,) = PayloadDecoder(preset("green-button", None)).decode(messages(nested))
    assert part.readings is not None
    assert part.readings.num_rows == 2_002
