"""Payloads as others have published them, with what their publishers say that they hold.

Each names its source. The examples of :mod:`.test_payloads_presets` and :mod:`.test_payloads_meters` are made by hand
after the same documents; they go further, but nobody outside has seen them.
"""

from __future__ import annotations

import datetime as dt
import json

from .payloads import decode, messages, preset


def micros(text: str) -> int:
    """An instant in ISO 8601 as microseconds since 1970."""
    return round(dt.datetime.fromisoformat(text).timestamp() * 1e6)


# SenML. RFC 8428, Sensor Measurement Lists: the pack of voltage and current with relative times of section 5.1.2
# (Multiple Datapoints), and its CBOR of section 6 (CBOR Representation), byte by byte.

SENML_JSON = """
[
  {"bn":"urn:dev:ow:10e2073a0108006:","bt":1.276020076001e+09,"bu":"A","bver":5,"n":"voltage","u":"V","v":120.1},
  {"n":"current","t":-5,"v":1.2},
  {"n":"current","t":-4,"v":1.3},
  {"n":"current","t":-3,"v":1.4},
  {"n":"current","t":-2,"v":1.5},
  {"n":"current","t":-1,"v":1.6},
  {"n":"current","v":1.7}
]
"""
SENML_CBOR = bytes.fromhex(
    "87a721781b75726e3a6465763a6f773a3130653230373361303130383030363a22fb41d303a15b00106223614120050067766f6c7461676501"
    "615602fb405e066666666666a3006763757272656e74062402fb3ff3333333333333a3006763757272656e74062302fb3ff4cccccccccccda3"
    "006763757272656e74062202fb3ff6666666666666a3006763757272656e74062102f93e00a3006763757272656e74062002fb3ff999999999"
    "999aa3006763757272656e74060002fb3ffb333333333333"
)
SENML_DEVICE, SENML_US = "urn:dev:ow:10e2073a0108006", 1_276_020_076_001_000


def test_the_pack_of_rfc_8428_is_read_as_json_and_as_cbor():
    current = [(SENML_DEVICE, SENML_US + at * 1_000_000, 1.7 + at / 10) for at in range(-5, 1)]
    for body in (SENML_JSON, SENML_CBOR):
        rows, rejects = decode(preset("senml", "current"), messages(body))
        assert rejects == []
        assert [row[:2] for row in rows] == [row[:2] for row in current]
        assert [round(row[2], 12) for row in rows] == [round(row[2], 12) for row in current]
        assert decode(preset("senml", "voltage"), messages(body)) == ([(SENML_DEVICE, SENML_US, 120.1)], [])


def test_the_json_of_rfc_8428_says_what_its_cbor_says():
    """That the bytes above are those of the pack above, by a decoder that is none of ours."""
    import cbor2  # noqa: PLC0415 - of this test only

    labels = {-1: "bver", -2: "bn", -3: "bt", -4: "bu", 0: "n", 1: "u", 2: "v", 6: "t"}
    found = [{labels[key]: value for key, value in record.items()} for record in cbor2.loads(SENML_CBOR)]
    # the last record of the bytes has a time of 0 that the text leaves out
    assert found[-1].pop("t") == 0
    assert found == json.loads(SENML_JSON)


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
    assert decode(preset("dsmr", "1-0:1.7.0"), given) == ([(meter, read_at, 1.193)], [])
    assert decode(preset("dsmr", "1-0:1.8.1+1-0:1.8.2"), given) == ([(meter, read_at, 246913.578)], [])
    assert decode(preset("dsmr", "1-0:61.7.0"), given) == ([(meter, read_at, 3.333)], [])
    expected = [(gas, micros("2010-12-09T11:25:00+01:00"), 12785.123)]
    assert decode(preset("dsmr", "0-1:24.2.1"), given) == (expected, [])


def test_the_example_telegram_with_a_checksum_that_is_not_its_own_is_a_reject():
    assert decode(preset("dsmr", "1-0:1.7.0"), messages(telegram("EF2F"))) == ([], [(0, "malformed-row")])


# Arduino DSMR parser (matthijskooijman/arduino-dsmr), examples/parse/parse.ino: a telegram of a meter whose identifiers
# are made zeros, with its checksum.

KAIFA = (
    "/KFM5KAIFA-METER",
    "",
    "1-3:0.2.8(40)",
    "0-0:1.0.0(150117185916W)",
    "0-0:96.1.1(0000000000000000000000000000000000)",
    "1-0:1.8.1(000671.578*kWh)",
    "1-0:1.8.2(000842.472*kWh)",
    "1-0:2.8.1(000000.000*kWh)",
    "1-0:2.8.2(000000.000*kWh)",
    "0-0:96.14.0(0001)",
    "1-0:1.7.0(00.333*kW)",
    "1-0:2.7.0(00.000*kW)",
    "0-0:17.0.0(999.9*kW)",
    "0-0:96.3.10(1)",
    "0-0:96.7.21(00008)",
    "0-0:96.7.9(00007)",
    "1-0:99.97.0(1)(0-0:96.7.19)(000101000001W)(2147483647*s)",
    "1-0:32.32.0(00000)",
    "1-0:32.36.0(00000)",
    "0-0:96.13.1()",
    "0-0:96.13.0()",
    "1-0:31.7.0(001*A)",
    "1-0:21.7.0(00.332*kW)",
    "1-0:22.7.0(00.000*kW)",
    "0-1:24.1.0(003)",
    "0-1:96.1.0(0000000000000000000000000000000000)",
    "0-1:24.2.1(150117180000W)(00473.789*m3)",
    "0-1:24.4.0(1)",
)


def test_a_telegram_that_a_meter_sent_is_read_with_its_checksum():
    given = messages(telegram("6F4A", KAIFA), topics=["p1/home-3"])
    power, gas = (preset("dsmr", code, series={"topic": 2}) for code in ("1-0:1.7.0", "0-1:24.2.1"))
    assert decode(power, given) == ([("home-3", micros("2015-01-17T18:59:16+01:00"), 0.333)], [])
    assert decode(gas, given) == ([("home-3", micros("2015-01-17T18:00:00+01:00"), 473.789)], [])


# Sparkplug B. Eclipse Sparkplug specification, chapter 6 (Payloads), sections NBIRTH and NDATA: the topics and the
# payloads, which the specification shows as JSON. The bytes were made once by code that protoc generated from fields of
# sparkplug_b.proto of Eclipse Tahu, and by the runtime of protobuf; nothing of this repository had a part in it.

NBIRTH = bytes.fromhex(
    "08eaf2f5a8a02b12120a05626453657118eaf2f5a8a02b2008580012200a134e6f646520436f6e74726f6c2f5265626f"
    "6f7418eaf2f5a8a02b200b700012210a144e6f646520436f6e74726f6c2f5265626972746818eaf2f5a8a02b200b7000"
    "12250a184e6f646520436f6e74726f6c2f4e6578742053657276657218eaf2f5a8a02b200b700012240a164e6f646520"
    "436f6e74726f6c2f5363616e205261746518eaf2f5a8a02b200458b81712310a1850726f706572746965732f48617264"
    "77617265204d616b6518eaf2f5a8a02b200c7a0c52617370626572727920506912320a1950726f706572746965732f48"
    "61726477617265204d6f64656c18eaf2f5a8a02b200c7a0c50692033204d6f64656c204212220a0d50726f7065727469"
    "65732f4f5318eaf2f5a8a02b200c7a08526173706269616e123e0a1550726f706572746965732f4f532056657273696f"
    "6e18eaf2f5a8a02b200c7a1c4a6573736965207769746820504958454c2f31312e30312e32303137121e0a0e53757070"
    "6c7920566f6c7461676518eaf2f5a8a02b2009659a9941411800"
)
NDATA = bytes.fromhex("08eaf2f5a8a02b121e0a0e537570706c7920566f6c7461676518eaf2f5a8a02b200965cdcc44411802")


def test_the_birth_and_the_data_of_the_sparkplug_specification_are_read():
    topics = [f"spBv1.0/Sparkplug B Devices/{kind}/Raspberry Pi" for kind in ("NBIRTH", "NDATA")]
    rows, rejects = decode(preset("sparkplug", "Supply Voltage"), messages(NBIRTH, NDATA, topics=topics))
    assert rejects == []
    assert {row[:2] for row in rows} == {("Sparkplug B Devices/Raspberry Pi", 1_486_144_502_122_000)}
    # floats of four bytes
    assert [round(row[2], 6) for row in rows] == [12.1, 12.3]
    rate, rejects = decode(preset("sparkplug", "Node Control/Scan Rate"), messages(NBIRTH, topics=topics[:1]))
    assert ([row[2] for row in rate], rejects) == ([3000.0], [])


# Green Button. OpenESPI, Green Button SDK, sample data file MonthlyOnlyElectricData.xml, version 0.7 of 2013-02-08, by
# EnergyOS.org under the Apache License 2.0: its usage point, meter reading and reading type, the first two and the last
# of its fourteen blocks, and its summary, which is shortened; left out are comments, identifiers, stamps of publication
# and the time zone.

MONTHLY = """\
<?xml version="1.0" encoding="UTF-8"?>
<feed xmlns="http://www.w3.org/2005/Atom" xsi:schemaLocation="http://naesb.org/espi espiDerived.xsd"
      xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance">
  <title>ThirdPartyX Batch Feed</title>
  <link rel="self" href="/ThirdParty/83e269c1/Batch"/>
  <entry>
    <link rel="self" href="User/9b6c7063/UsagePoint/01"/>
    <link rel="up" href="User/9b6c7063/UsagePoint"/>
    <link rel="related" href="User/9b6c7063/UsagePoint/01/MeterReading"/>
    <link rel="related" href="User/9b6c7063/UsagePoint/01/ElectricPowerUsageSummary"/>
    <link rel="related" href="LocalTimeParameters/01"/>
    <title>my house</title>
    <content><UsagePoint xmlns="http://naesb.org/espi"><ServiceCategory><kind>0</kind></ServiceCategory></UsagePoint></content>
  </entry>
  <entry>
    <link rel="self" href="User/9b6c7063/UsagePoint/01/MeterReading/01"/>
    <link rel="up" href="User/9b6c7063/UsagePoint/01/MeterReading"/>
    <link rel="related" href="User/9b6c7063/UsagePoint/01/MeterReading/01/IntervalBlock"/>
    <link rel="related" href="ReadingType/07"/>
    <title>Monthly Electricity Consumption</title>
    <content><MeterReading xmlns="http://naesb.org/espi"/></content>
  </entry>
  <entry>
    <link rel="self" href="User/9b6c7063/UsagePoint/01/MeterReading/01/IntervalBlock/0173"/>
    <link rel="up" href="User/9b6c7063/UsagePoint/01/MeterReading/01/IntervalBlock"/>
    <title/>
    <content>
<IntervalBlock xmlns="http://naesb.org/espi">
    <interval><duration>2678400</duration><start>1314331200</start></interval>
<IntervalReading>
    <cost>48426672</cost>
    <timePeriod><duration>2678400</duration><start>1314331200</start></timePeriod>
    <value>778</value>
</IntervalReading>
</IntervalBlock>
<IntervalBlock xmlns="http://naesb.org/espi">
    <interval><duration>2592000</duration><start>1317009600</start></interval>
<IntervalReading>
    <cost>47040731</cost>
    <timePeriod><duration>2592000</duration><start>1317009600</start></timePeriod>
    <value>756</value>
</IntervalReading>
</IntervalBlock>
<IntervalBlock xmlns="http://naesb.org/espi">
    <interval><duration>345600</duration><start>1348632000</start></interval>
<IntervalReading>
    <cost>5288701</cost>
    <timePeriod><duration>345600</duration><start>1348632000</start></timePeriod>
    <value>87</value>
</IntervalReading>
</IntervalBlock>
    </content>
  </entry>
  <entry>
    <link rel="self" href="ReadingType/07"/>
    <link rel="up" href="ReadingType"/>
    <title>Energy Delivered (kWh)</title>
    <content>
      <ReadingType xmlns="http://naesb.org/espi">
        <accumulationBehaviour>4</accumulationBehaviour><commodity>1</commodity><currency>840</currency>
        <dataQualifier>12</dataQualifier><flowDirection>1</flowDirection><intervalLength>2678400</intervalLength>
        <kind>12</kind><phase>769</phase><powerOfTenMultiplier>3</powerOfTenMultiplier>
        <timeAttribute>0</timeAttribute><uom>72</uom>
      </ReadingType>
    </content>
  </entry>
  <entry>
    <link rel="self" href="User/9b6c7063/ElectricPowerUsageSummary/01"/>
    <link rel="up" type="" href="User/9b6c7063/UsagePoint/01/ElectricPowerUsageSummary"/>
    <title>Usage Summary</title>
    <content>
      <ElectricPowerUsageSummary xmlns="http://naesb.org/espi">
        <billingPeriod><duration>2678400</duration><start>1345953600</start></billingPeriod>
        <overallConsumptionLastPeriod>
          <powerOfTenMultiplier>3</powerOfTenMultiplier><uom>72</uom><value>720</value>
        </overallConsumptionLastPeriod>
      </ElectricPowerUsageSummary>
    </content>
  </entry>
</feed>
"""


def test_the_monthly_sample_of_the_green_button_sdk_is_read():
    """Three months in thousands of watt-hours; the summary of the bill is no reading."""
    expected = [
        ("01", micros("2011-08-26T04:00:00+00:00"), 778_000.0),
        ("01", micros("2011-09-26T04:00:00+00:00"), 756_000.0),
        ("01", micros("2012-09-26T04:00:00+00:00"), 87_000.0),
    ]
    assert decode(preset("green-button", None), messages(MONTHLY)) == (expected, [])
