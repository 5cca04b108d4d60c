from __future__ import annotations

import itertools
import pickle

import pytest

from quiltstream.schemas.settings.mappings import Readings
from quiltstream.transforms.payloads import PayloadDecoder
from quiltstream.transforms.payloads.messages import Messages

from .damage import Steps
from .payloads import NOON_MS, NOON_US, decode, messages, outcome
from .sparkplug import metric, payload, template

READINGS = Readings(preset="sparkplug", value="power")
NODE, DEVICE = "spBv1.0/plant/{}/edge1", "spBv1.0/plant/{}/edge1/press"

BIRTH = payload(NOON_MS, metric("power", 5, kind=10, double=1.5), metric("bdSeq", kind=8, long=0))


def data(number: int, alias: int = 5) -> bytes:
    return payload(NOON_MS + number, metric(alias=alias, double=float(number)), sequence=number)


def row(number: int, value: float | None = None, series: str = "plant/edge1/press") -> tuple[str, int, float]:
    return (series, NOON_US + 1_000 * number, float(number) if value is None else value)


def test_aliases_are_resolved_by_births():
    given = messages(BIRTH, data(1), data(2), topics=[DEVICE.format(kind) for kind in ("DBIRTH", "DDATA", "DDATA")])
    assert decode(READINGS, given) == ([row(0, 1.5), row(1), row(2)], [])


def test_an_alias_without_a_birth_is_a_reject_and_names_require_no_birth():
    mixed = payload(NOON_MS, metric("power", double=3.0), metric(alias=9, double=4.0))
    given = messages(data(1), mixed, topics=[NODE.format("NDATA")] * 2)
    assert decode(READINGS, given) == ([row(0, 3.0, "plant/edge1")], [(0, "unknown-alias"), (1, "unknown-alias")])


def test_births_of_a_node_and_of_its_devices_are_kept_apart():
    given = messages(
        BIRTH, data(1), data(2), topics=[NODE.format("NBIRTH"), DEVICE.format("DDATA"), "spBv1.0/other/NDATA/edge1"]
    )
    assert decode(READINGS, given) == ([row(0, 1.5, "plant/edge1")], [(1, "unknown-alias"), (2, "unknown-alias")])


def test_the_reading_of_a_message_is_independent_of_the_order_of_births():
    """A later birth gives the alias to another metric; messages before it keep the meaning they had."""
    later = payload(NOON_MS + 10, metric("voltage", 5, kind=10, double=230.0), metric("power", 6, kind=10, double=7.0))
    sent = {
        "DBIRTH 0": BIRTH,
        "DDATA 1": data(1),
        "DBIRTH 10": later,
        "DDATA 11": data(11),
        "DDATA 12": data(12, alias=6),
    }
    expected = [row(0, 1.5), row(1), row(10, 7.0), row(12)]
    for order in itertools.permutations(sent):
        if order.index("DBIRTH 0") > order.index("DDATA 1") or order.index("DBIRTH 10") > order.index("DDATA 12"):
            continue  # it would be read before its aliases are told
        if order.index("DDATA 11") < order.index("DBIRTH 10"):
            continue
        decoder = PayloadDecoder(READINGS)
        rows = []
        for name in order:
            found, rejects = outcome(decoder, messages(sent[name], topics=[DEVICE.format(name.split()[0])]))
            rows += found
            assert rejects == [], order
        assert sorted(rows) == expected, order


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (metric("power", kind=3, int=2**32 - 5), -5.0),
        (metric("power", kind=1, int=2**32 - 1), -1.0),
        (metric("power", kind=4, long=2**64 - 5), -5.0),
        (metric("power", kind=7, int=2**32 - 5), 4294967291.0),
        (metric("power", kind=8, long=2**63), 9223372036854775808.0),
        (metric("power", kind=9, float=0.5), 0.5),
        (metric("power", kind=9, float=0.35), 0.35),
        (metric("power", kind=3, int=12), 12.0),
        (metric("power", kind=10, null=True), "missing-value"),
        (metric("power", kind=10), "missing-value"),
        (metric("power", kind=11, boolean=True), "not-a-number"),
        (metric("power", kind=12, text="3.5"), 3.5),
        (metric("power", kind=10, double=float("nan")), "not-finite"),
        (metric("power", time=NOON_MS * 1_000, kind=10, double=1.0), "unparsable-time"),
        (metric("power", time=2**64 - 1, kind=10, double=1.0), "unparsable-time"),
        (metric("power", time=0, kind=10, double=1.0), "implausible-time"),
        (metric(b"\xff\xfe", kind=10, double=1.0), "malformed-row"),
    ],
)
def test_values_of_every_type(given: bytes, expected: float | str):
    found = decode(READINGS, messages(payload(NOON_MS, given), topics=[DEVICE.format("DDATA")]))
    assert found == (([row(0, expected)], []) if isinstance(expected, float) else ([], [(0, expected)]))


def test_the_type_of_a_signed_value_is_taken_from_the_birth():
    birth = payload(NOON_MS, metric("power", 5, kind=3, int=1), metric("other", kind=3, int=1))
    by_alias = payload(NOON_MS + 1, metric(alias=5, int=2**32 - 2))
    by_name = payload(NOON_MS + 2, metric("power", int=2**32 - 3))
    given = messages(birth, by_alias, by_name, topics=[DEVICE.format(one) for one in ("DBIRTH", "DDATA", "DDATA")])
    assert decode(READINGS, given) == ([row(0, 1.0), row(1, -2.0), row(2, -3.0)], [])


def test_the_topic_may_be_in_the_gateways_header_or_in_the_key():
    given = messages(
        BIRTH,
        data(1),
        topics=["meters", "meters"],
        keys=[b"x", DEVICE.format("DDATA").encode()],
        headers=[(("mqtt-topic", DEVICE.format("DBIRTH").encode()),), ()],
    )
    assert decode(READINGS, given) == ([row(0, 1.5), row(1)], [])


def test_deaths_and_commands_hold_no_reading_and_other_topics_are_rejects():
    topics = [
        NODE.format("NDEATH"),
        NODE.format("NCMD"),
        "spBv1.0/STATE/host1",
        "meters",
        "spBv1.0/plant/NDATA",
        "spBv1.0/plant/DDATA/edge1",
        "spBv1.0/plant/NDATA/edge1/press",
        "spBv1.0//NDATA/edge1",
        "spBv1.0/plant/XDATA/edge1",
    ]
    given = messages(*[BIRTH] * len(topics), topics=topics)
    assert decode(READINGS, given) == ([], [(at, "malformed-row") for at in range(3, 9)])


def test_damaged_payloads_are_rejects():
    given = messages(BIRTH[:-3], b"\xff" * 9, b"\x12\x7f", topics=[DEVICE.format("DDATA")] * 3)
    assert decode(READINGS, given)[1] == [(at, "malformed-row") for at in range(3)]


def test_a_restarted_worker_rejects_aliases_until_births_arrive():
    decoder = PayloadDecoder(READINGS)
    born = messages(BIRTH, topics=[DEVICE.format("DBIRTH")])
    later = messages(data(1), topics=[DEVICE.format("DDATA")])
    assert outcome(decoder, born)[1] == []
    assert outcome(decoder, later) == ([row(1)], [])
    assert outcome(pickle.loads(pickle.dumps(decoder)), later) == ([], [(0, "unknown-alias")])


def test_members_of_template_instances_are_named_behind_the_instance():
    readings = Readings(preset="sparkplug", value="Meter 1/Power")
    born = payload(
        NOON_MS,
        template("_types_/Meter", metric("Power", kind=9, float=0.0), definition=True),
        template("Meter 1", metric("Power", kind=9, float=1.5), metric("Voltage", kind=9, float=230.0), alias=4),
        template("Meter 2", metric("Power", kind=9, float=9.5), alias=5),
    )
    sent = [
        born,
        payload(NOON_MS + 1, template(None, metric("Power", float=2.5), alias=4)),
        payload(NOON_MS + 2, template(None, metric("Power", float=8.5), alias=5)),
        payload(NOON_MS + 3, template("Meter 1", metric("Voltage", float=231.0))),
        payload(NOON_MS + 4, template("Meter 1", metric("Power", time=NOON_MS + 3, float=3.5))),
        payload(NOON_MS + 5, template("Meter 1", metric("Power", null=True))),
        payload(NOON_MS + 6, template(None, metric("Power", float=7.5), alias=6)),
        payload(NOON_MS + 7, metric("Meter 1/Power", float=4.5)),
    ]
    topics = [NODE.format("NBIRTH"), *[NODE.format("NDATA")] * 7]
    rows, rejects = decode(readings, messages(*sent, topics=topics))
    assert rows == [row(at, value, "plant/edge1") for at, value in ((0, 1.5), (1, 2.5), (3, 3.5), (7, 4.5))]
    assert rejects == [(5, "missing-value"), (6, "unknown-alias")]


def test_members_of_templates_inside_templates_are_named_by_all_of_them():
    readings = Readings(preset="sparkplug", value="a/b/c")

    def deep(levels: int) -> bytes:
        found = metric("c", double=1.0)
        for _ in range(levels):
            found = template("a", found)
        return payload(NOON_MS, found)

    whole = payload(NOON_MS, template("a", template("b", metric("c", double=1.0))))
    given = messages(whole, deep(20), deep(60), topics=[NODE.format("NDATA")] * 3)
    assert decode(readings, given) == ([row(0, 1.0, "plant/edge1")], [(2, "malformed-row")])


def test_a_member_whose_name_is_not_utf_8_costs_no_other_reading():
    odd = metric(b"\xff", kind=10, double=9.0)
    for value in ("Meter 1/Power", "+/Power"):
        readings = Readings(preset="sparkplug", value=value)
        born = payload(
            NOON_MS, template("Meter 1", odd, metric("Power", kind=10, double=1.0), alias=4), template("x", odd)
        )
        later = payload(NOON_MS + 1, template(None, odd, metric("Power", double=2.0), alias=4))
        given = messages(born, later, topics=[NODE.format("NBIRTH"), NODE.format("NDATA")])
        series = "plant/edge1" if value[0] == "M" else "plant/edge1/Meter 1"
        assert decode(readings, given) == ([row(0, 1.0, series), row(1, 2.0, series)], [])


def test_a_meter_inside_an_instance_without_a_name_in_utf_8_is_one_reject():
    given = payload(NOON_MS, template("a", metric(b"\xff/Power", double=9.0), metric("M/Power", double=1.0)))
    readings = Readings(preset="sparkplug", value="a/+/Power")
    rows, rejects = decode(readings, messages(given, topics=[NODE.format("NDATA")]))
    assert rows == [row(0, 1.0, "plant/edge1/M")]
    assert [position for position, _ in rejects] == [0]


SEVERAL = Readings(preset="sparkplug", value="+/Power")


def behind_a_node() -> bytes:
    return payload(
        NOON_MS,
        metric("Meter 1/Power", 1, kind=3, int=10),
        metric("Meter 2/Power", 2, kind=10, double=20.0),
        metric("Meter 1/Voltage", 3, kind=10, double=230.0),
        metric("Power", 4, kind=10, double=99.0),
        template("Meter 3", metric("Power", kind=10, double=30.0), metric("Voltage", kind=10, double=1.0), alias=5),
        template("Meter 4", metric("Phase 1/Power", kind=10, double=40.0), alias=6),
    )


def at(number: int, meter: int, value: float) -> tuple[str, int, float]:
    return row(number, value, f"plant/edge1/Meter {meter}")


def test_several_meters_behind_one_node_are_separate_series():
    by_alias = payload(
        NOON_MS + 1,
        metric(alias=1, int=(1 << 32) - 7),
        metric(alias=2, double=21.0),
        metric(alias=3, double=231.0),
        metric(alias=4, double=98.0),
        template(None, metric("Power", double=31.0), alias=5),
    )
    by_name = payload(NOON_MS + 2, metric("Meter 1/Power", int=(1 << 32) - 8), metric("Meter 9/Power", double=90.0))
    given = messages(
        behind_a_node(), by_alias, by_name, topics=[NODE.format(kind) for kind in ("NBIRTH", "NDATA", "NDATA")]
    )
    assert decode(SEVERAL, given) == (
        [
            *(at(0, 1, 10.0), at(1, 1, -7.0), at(2, 1, -8.0), at(0, 2, 20.0), at(1, 2, 21.0)),
            *(at(0, 3, 30.0), at(1, 3, 31.0), at(2, 9, 90.0)),
        ],
        [],
    )


def test_the_meters_of_a_birth_are_kept_with_the_position():
    decoder = PayloadDecoder(SEVERAL)
    outcome(decoder, messages(behind_a_node(), topics=[NODE.format("NBIRTH")]))
    later = messages(payload(NOON_MS + 1, metric(alias=1, int=5)), topics=[NODE.format("NDATA")])
    assert outcome(decoder.fresh(decoder.memory), later) == ([at(1, 1, 5.0)], [])
    assert outcome(PayloadDecoder(SEVERAL), later)[1] == [(0, "unknown-alias")]


def test_a_device_and_a_meter_of_its_node_are_never_one_series():
    given = messages(
        payload(NOON_MS, metric("press/Power", kind=10, double=1.0)),
        payload(NOON_MS, metric("a/Power", kind=10, double=2.0)),
        topics=[NODE.format("NBIRTH"), DEVICE.format("DBIRTH")],
    )
    assert [one[0] for one in decode(SEVERAL, given)[0]] == ["plant/edge1/press", "plant/edge1/press/a"]
    named = Readings.model_validate({"preset": "sparkplug", "value": "+/Power", "series": {"topic": 4}})
    assert [one[0] for one in decode(named, given)[0]] == ["edge1/a", "edge1/press"]


def test_metrics_of_meters_behind_a_node_are_decoded_in_linear_time():
    def born(count: int) -> Messages:
        metrics = [metric(f"Meter {at}/Power", at, kind=10, double=1.0) for at in range(count)]
        templates = [template(f"T {at}", metric("Power", kind=10, double=1.0), alias=count + at) for at in range(count)]
        return messages(payload(NOON_MS, *metrics, *templates), topics=[NODE.format("NBIRTH")])

    small, large = born(64), born(1_024)
    decoder = PayloadDecoder(SEVERAL)
    decoder.decode(small)
    assert len(decode(SEVERAL, small)[0]) == 128
    assert Steps(lambda: decoder.decode(large)).count <= 16 * Steps(lambda: decoder.decode(small)).count
