"""CIM's meter readings (IEC 61968-9): interval data, registers, qualities and several meters in one document."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.mappings import Readings
from quiltstream.transforms.payloads import PayloadDecoder

from .damage import Steps
from .payloads import NOON_US, decode, messages, outcome, preset

#: kWh and Wh of fifteen minutes, forward; a register of kWh; the voltage.
DELTA, DELTA_WH = "0.0.2.4.1.1.12.0.0.0.0.0.0.0.0.3.72.0", "0.0.2.4.1.1.12.0.0.0.0.0.0.0.0.0.72.0"
BULK, BACK = "0.0.0.1.1.1.12.0.0.0.0.0.0.0.0.3.72.0", "0.0.2.4.19.1.12.0.0.0.0.0.0.0.0.3.72.0"
VOLTS = "0.0.0.12.0.1.54.0.0.0.0.0.0.0.224.0.29.0"
QUARTER_US = 900_000_000

#: A message of a head end: two meters, one by its id and one by its names, with interval data, a register and voltage.
EVENT = f"""\
<?xml version="1.0" encoding="UTF-8"?>
<ns0:EventMessage xmlns:ns0="http://iec.ch/TC57/2011/schema/message">
  <ns0:Header><ns0:Verb>created</ns0:Verb><ns0:Noun>MeterReadings</ns0:Noun><ns0:Revision>2.0</ns0:Revision>
    <ns0:Timestamp>2026-01-05T12:46:02Z</ns0:Timestamp><ns0:Source>HES</ns0:Source></ns0:Header>
  <ns0:Payload>
    <m:MeterReadings xmlns:m="http://iec.ch/TC57/2011/MeterReadings#">
      <m:MeterReading>
        <m:IntervalBlocks>
          <m:IntervalReadings><m:timeStamp>2026-01-05T12:15:00Z</m:timeStamp><m:value>0.25</m:value>
            <m:ReadingQualities><m:ReadingQualityType ref="3.0.0"/></m:ReadingQualities></m:IntervalReadings>
          <m:IntervalReadings><m:timeStamp>2026-01-05T12:30:00Z</m:timeStamp><m:value>0.5</m:value>
            <m:ReadingQualities><m:timeStamp>2026-01-05T12:40:00Z</m:timeStamp>
              <m:ReadingQualityType ref="3.8.0"/></m:ReadingQualities></m:IntervalReadings>
          <m:IntervalReadings><m:timeStamp>2026-01-05T12:45:00Z</m:timeStamp><m:value>0</m:value>
            <m:ReadingQualities><m:ReadingQualityType ref="3.5.259"/></m:ReadingQualities></m:IntervalReadings>
          <m:ReadingType ref="{DELTA}"/>
        </m:IntervalBlocks>
        <m:Meter><m:mRID>a9f4c1d2-0001</m:mRID><m:Names><m:name>MTR-1</m:name></m:Names></m:Meter>
        <m:Readings><m:timeStamp>2026-01-05T12:00:00Z</m:timeStamp><m:value>10400.5</m:value>
          <m:ReadingType ref="{BULK}"/></m:Readings>
        <m:Readings><m:timeStamp>2026-01-05T12:00:00Z</m:timeStamp><m:value>231.4</m:value>
          <m:ReadingType ref="{VOLTS}"/></m:Readings>
        <m:UsagePoint><m:mRID>up-1</m:mRID></m:UsagePoint>
      </m:MeterReading>
      <m:MeterReading>
        <m:IntervalBlocks>
          <m:IntervalReadings><m:timeStamp>2026-01-05T13:15:00+01:00</m:timeStamp><m:value>750</m:value></m:IntervalReadings>
          <m:ReadingType ref="{DELTA_WH}"/>
        </m:IntervalBlocks>
        <m:Meter><m:Names><m:name>MTR-2</m:name><m:NameType><m:name>serial</m:name></m:NameType></m:Names></m:Meter>
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


def cim(value: str = "Wh") -> Readings:
    return preset("cim", value)


def test_intervals_of_several_meters_are_read_in_one_unit_at_their_starts():
    """An estimated value counts, a missing one is passed over, and the stamp is the end of its interval."""
    expected = [("MTR-2", NOON_US, 750.0), ("a9f4c1d2-0001", NOON_US, 250.0)]
    assert decode(cim(), messages(EVENT)) == ([*expected, ("a9f4c1d2-0001", NOON_US + QUARTER_US, 500.0)], [])
    assert decode(cim(DELTA_WH), messages(EVENT))[0] == expected[:1]


def test_a_unit_and_its_direction_choose_the_reading_type():
    assert decode(cim("V"), messages(EVENT)) == ([("a9f4c1d2-0001", NOON_US, 231.4)], [])
    assert decode(cim("m3"), messages(EVENT)) == ([], [])
    back = SMALL.replace(DELTA, BACK)
    assert decode(cim("Wh reverse"), messages(back))[0][0] == ("MTR-7", NOON_US, 250.0)
    assert decode(cim(), messages(back)) == ([], [])


def test_registers_are_read_as_counters_separately_from_intervals():
    counter = Readings.model_validate({"preset": "cim", "value": "Wh", "register": {"gap": "2h"}})
    rows, rejects = outcome(PayloadDecoder(counter), messages(EVENT))
    assert ([(one[0], one[2]) for one in rows], rejects) == ([("a9f4c1d2-0001", 10_400_500.0)], [])


def test_a_reading_type_may_be_defined_in_the_document():
    defined = SMALL.replace(f'ref="{DELTA}"', 'ref="kwh15"').replace(
        "</MeterReadings>",
        f"<ReadingType><mRID>kwh15</mRID><Names><name>{DELTA}</name></Names></ReadingType></MeterReadings>",
    )
    assert decode(cim(), messages(defined)) == decode(cim(), messages(SMALL))


def test_values_of_two_kinds_in_one_unit_are_a_reject():
    phase = SMALL.replace(VOLTS, DELTA.replace(".0.3.72.", ".128.3.72."))
    assert decode(cim(), messages(phase)) == ([], [(0, "mixed-units")])
    assert len(decode(cim(DELTA), messages(phase))[0]) == 2


@pytest.mark.parametrize("part", ["0.0.0.128", "0.0.0.64", "1.0.0.0", "0.0.2.224"])
def test_a_phase_or_tariff_is_read_by_its_code_alone(part: str):
    """The next message may have another phase, and a meter would have readings of both."""
    code = DELTA.replace(".0.0.0.0.3.72.", f".{part}.3.72.")
    assert decode(cim(), messages(SMALL.replace(DELTA, code))) == ([], [(0, "mixed-units")])
    assert len(decode(cim(code), messages(SMALL.replace(DELTA, code)))[0]) == 2
    whole = DELTA.replace(".0.3.72.", ".224.3.72.")
    assert len(decode(cim(), messages(SMALL.replace(DELTA, whole)))[0]) == 2


@pytest.mark.parametrize("interval", ["2", "0", "99"])
def test_a_register_among_intervals_is_read_at_its_stamp(interval: str):
    code = BULK.replace("0.0.0.1", f"0.0.{interval}.1")
    period = "<timePeriod><start>2026-01-05T12:00:00Z</start></timePeriod><value>0.25"
    for document in (SMALL, SMALL.replace("<value>0.25", period)):
        rows, rejects = decode(cim(code), messages(document.replace(DELTA, code)))
        assert (rows[0], rejects) == (("MTR-7", NOON_US + QUARTER_US, 250.0), [])


def test_a_selected_delta_of_unknown_length_is_a_reject():
    unknown = DELTA.replace("0.0.2.4", "11.0.0.4")
    period = "<timePeriod><start>2026-01-05T12:00:00Z</start></timePeriod>"
    document = SMALL.replace(VOLTS, unknown)
    assert decode(cim(unknown), messages(document)) == ([], [(0, "malformed-row")])
    assert len(decode(cim(DELTA), messages(document))[0]) == 2
    begun = document.replace("<value>231.4", f"{period}<value>231.4")
    assert decode(cim(unknown), messages(begun)) == ([("MTR-7", NOON_US, 231_400.0)], [])


@pytest.mark.parametrize("element", ["<a:b{}/>", "<a:b/>"])
def test_a_long_namespace_is_a_reject_before_elements_repeat_it(element: str):
    """In 158 KB of them would be 1.1 GB of names."""
    head, tail = SMALL.split("</MeterReadings>")
    many = "".join(element.format(number) for number in range(4_000))
    for length, rejects in ((200, []), (201, [(0, "malformed-row")]), (60_000, [(0, "malformed-row")])):
        document = f'{head}<r xmlns:a="{"u" * length}">{many}</r></MeterReadings>{tail}'
        given = messages(document)
        tracemalloc.start()
        found = decode(cim(), given)
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (len(found[0]), found[1]) == (0 if rejects else 2, rejects)
        assert held < 200 * len(document)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (DELTA, "0.0.2.4"),
        (DELTA, DELTA.replace("0.0.2.4", "0.0.99.4")),
        (DELTA, DELTA.replace(".3.72.", ".77.72.")),
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


def test_an_unknown_value_name_is_refused():
    with pytest.raises(SettingsError, match=r"readings.value is 'kilowatts'; under preset cim it is one of Wh"):
        PayloadDecoder(cim("kilowatts")).check()


def test_documents_are_decoded_in_linear_time():
    one = SMALL.split("<IntervalReadings>")[1]
    head, tail = SMALL.split(f"<IntervalReadings>{one}")
    small, large = (messages(head + f"<IntervalReadings>{one}" * count + tail) for count in (64, 1_024))
    decoder = PayloadDecoder(cim())
    decoder.decode(small)
    assert Steps(lambda: decoder.decode(large)).count <= 16 * Steps(lambda: decoder.decode(small)).count
