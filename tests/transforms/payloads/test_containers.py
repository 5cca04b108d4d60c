"""Payloads that hold several documents, and packed ones that unpack to much."""

from __future__ import annotations

import gzip
import json
import math
import random
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from quiltstream.schemas.settings.base import problems_of
from quiltstream.schemas.settings.mappings import Readings
from quiltstream.transforms.payloads import PayloadDecoder
from quiltstream.transforms.payloads.messages import Messages
from quiltstream.transforms.payloads.parsing import line_values, remote_write_parser

from ...depth import NIGHT
from .damage import Steps, counted_once, damaged
from .payloads import FIRST, NOON_MS, NOON_NS, NOON_S, NOON_US, decode, messages, outcome
from .remote_write import STALE, snappy, written
from .sparkplug import block

FLAT = {"series": "id", "time": "ts", "value": "kwh"}


def readings(**more: Any) -> Readings:
    return Readings.model_validate(FLAT | more)


def line(**more: Any) -> str:
    return json.dumps({"id": "m1", "ts": NOON_S, "kwh": 1.5} | more)


def test_each_line_of_json_is_a_document_and_a_bad_one_rejects_its_message_alone():
    given = messages(
        f"{line()}\n\n{line(id='m2')}\r\n",
        f"{line(id='m3')}\n{{\n{line(id='m4')}",
        "",
        f"{line(kwh=None)}\n{line(id='m5')}",
        line(id="m6").replace("1.5", "1e999"),
    )
    rows, rejects = decode(readings(payload="ndjson"), given)
    assert [row[0] for row in rows] == ["m1", "m2", "m3", "m4", "m5", "m6"]
    assert rejects == [(1, "malformed-row"), (3, "missing-value")]


def test_arrays_and_conditions_run_over_the_documents_of_a_message():
    given = messages("\n".join([line(r=[1, 2]), line(r=[3]), line(kind="other")]))
    mapping = readings(payload="ndjson", value="r[*]", where=[{"path": "kind", "exists": False}])
    assert [row[2] for row in decode(mapping, given)[0]] == [1.0, 2.0, 3.0]


def test_rows_of_csv_have_the_names_of_the_first_line_or_of_the_settings():
    given = messages(
        f"id,ts,kwh\nm1,{NOON_S},1.5\nm2,{NOON_S},\n",
        f'\ufeffkwh,id,ts\n2,"m, 3",{NOON_S}\r\n',
        f"id,ts,kwh\nm4,{NOON_S}\nm5,{NOON_S},5\n",
        "id,id\n1,2",
        b"id,ts,kwh\n\xff,1,2",
        f'id,ts,kwh\nm6,{NOON_S},6\nm7,"{NOON_S}',
    )
    rows, rejects = decode(readings(payload="csv"), given)
    assert [(row[0], row[2]) for row in rows] == [("m, 3", 2.0), ("m1", 1.5), ("m5", 5.0), ("m6", 6.0)]
    assert rejects == [(0, "missing-value"), *[(at, "malformed-row") for at in (2, 3, 4, 5)]]
    bare = messages(f"m1;{NOON_S};1,5\nm2;{NOON_S};2")
    mapping = readings(payload="csv", columns=["id", "ts", "kwh"], delimiter=";", decimal=",")
    assert [(row[0], row[2]) for row in decode(mapping, bare)[0]] == [("m1", 1.5), ("m2", 2.0)]


LINES = {
    "power,meter=m7 kw=1.5 1": ("power", {"meter": "m7"}, {"kw": 1.5}, 1),
    "power kw=1": ("power", {}, {"kw": 1.0}, None),
    "p,a=1,b=2 c=3i,d=4u,e=t,f=FALSE,g=-1.5e3 -9": (
        "p", {"a": "1", "b": "2"}, {"c": 3, "d": 4, "e": True, "f": False, "g": -1500.0}, -9),
    r"my\ power,site\,b=x\=y\ z text=\"": None,
    r'my\ power,site\,b=x\=y\ z text="a \"b\", c=d",v=1 5': (
        "my power", {"site,b": "x=y z"}, {"text": 'a "b", c=d', "v": 1.0}, 5),
    "p a=1e999": ("p", {}, {"a": 1.7976931348623157e308}, None),
    **dict.fromkeys(["", "p", "p ", "p a", "p a=", "p, a=1", "p,b a=1", "p a=1,", "p a=1 x", "p a=1 1 2", "p a=1_0",
                     "p a=nan", 'p a="x', "p a=1,b", "p a=--1", ",a=1 b=1"]),
}  # fmt: skip


@pytest.mark.parametrize("text", LINES)
def test_a_line_of_the_line_protocol_is_parsed(text: str):
    expected = LINES[text]
    if expected is None:
        with pytest.raises(ValueError, match="no "):
            line_values(text)
    else:
        assert line_values(text) == dict(zip(("measurement", "tags", "fields", "time"), expected, strict=True))


def test_lines_of_the_line_protocol_are_readings_by_paths():
    mapping = Readings.model_validate(
        {
            "payload": "line-protocol",
            "series": "tags.meter",
            "time": {"first": ["time", {"stamp": True}]},
            "time_unit": "ns",
            "value": "fields.kw",
            "where": [{"path": "measurement", "equals": "power"}],
        }
    )
    given = messages(
        f"# a remark\npower,meter=m1 kw=1.5 {NOON_NS + 1_000}\n\ncpu,host=a idle=1\npower,meter=m2 kw=2\n",
        "power,meter=m3 kw=3\npower,meter",
        stamps_us=[NOON_US, NOON_US],
    )
    rows, rejects = decode(mapping, given)
    assert rows == [("m1", NOON_US + 1, 1.5), ("m2", NOON_US, 2.0), ("m3", NOON_US, 3.0)]
    assert rejects == [(1, "malformed-row")]


def test_messagepack_is_read_as_json_is():
    body = {"id": "m1", "ts": NOON_S, "kwh": 1.5}
    packed = msgpack.packb(body) or b""
    stamp = msgpack.packb(body | {"id": "m2", "ts": msgpack.Timestamp(NOON_S, 5_000)})
    given = messages(
        packed, stamp, packed[:-1], packed + b"\0", b"",
        msgpack.packb(body | {"kwh": msgpack.ExtType(5, b"x")}), msgpack.packb({1: 2}), b"\xdd\xff\xff\xff\xff",
    )  # fmt: skip
    assert decode(readings(payload="msgpack"), given) == (
        [("m1", NOON_US, 1.5), ("m2", NOON_US + 5, 1.5)],
        [(at, "malformed-row") for at in range(2, 8)],
    )


def test_false_array_sizes_of_messagepack_use_bounded_memory():
    given = messages(b"\xdd" + struct.pack(">I", 65_000) + b"\xdd\x00\x00\xff\xff" * 190_000)
    tracemalloc.start()
    try:
        assert decode(readings(payload="msgpack"), given) == ([], [(0, "malformed-row")])
        assert tracemalloc.get_traced_memory()[1] < 1 << 30
    finally:
        tracemalloc.stop()


def test_gzip_is_unpacked_up_to_the_limit_and_no_further():
    packed = gzip.compress(line().encode())
    members = gzip.compress(line().encode()[:20]) + gzip.compress(line().encode()[20:])
    bomb = gzip.compress(b" " * 50_000_000)
    given = messages(packed, members, bomb, line(), packed[:-9], packed + b"x", b"", None)
    tracemalloc.start()
    try:
        rows, rejects = decode(readings(compression="gzip"), given)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    assert rows == [("m1", NOON_US, 1.5)] * 2
    assert rejects == [(2, "too-large"), *[(at, "malformed-row") for at in (3, 4, 5, 6)]]


def test_gzip_of_very_many_members_is_rejected():
    """Each member copies what is behind it: the time would be quadratic in the payload."""
    some, many = (gzip.compress(b"") * count + gzip.compress(line().encode()) for count in (99, 100))
    rows, rejects = decode(readings(compression="gzip"), messages(some, many))
    assert (rows, rejects) == ([("m1", NOON_US, 1.5)], [(1, "malformed-row")])


@pytest.mark.parametrize("packed", [False, True])
def test_many_large_messages_are_parsed_some_at_a_time(monkeypatch: pytest.MonkeyPatch, packed: bool):
    """Parsed they take up to two hundred times their bytes."""
    bodies = [line(id=f"m{at}", pad=" " * 600).encode() for at in range(5)]
    decoder = PayloadDecoder(readings(compression="gzip" if packed else None))
    together: list[int] = []
    parse = decoder._worker._payload_format
    monkeypatch.setattr("quiltstream.transforms.payloads.decoder._PARSED_BYTES", 1_500)
    monkeypatch.setattr(
        decoder._worker, "_payload_format", lambda given, some: (together.append(len(some)), parse(given, some))[1]
    )
    rows, rejects = outcome(decoder, messages(*map(gzip.compress, bodies) if packed else bodies))
    assert (len(rows), rejects, together) == (5, [], [2, 2, 1])


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"columns": ["a"]}, "readings.columns is of payload: csv"),
        ({"payload": "ndjson", "delimiter": ";"}, "readings.delimiter is of payload: csv"),
        ({"compression": "zip"}, "compression is 'zip'"),
        ({"payload": "xml"}, "payload: 'xml' is no format; write one of json, ndjson"),
    ],
)
def test_an_invalid_container_setting_is_named(document: dict[str, Any], message: str):
    with pytest.raises(ValidationError) as caught:
        readings(**document)
    assert message in "\n".join(problems_of(caught.value))


#: Of each container: its mapping, and messages of so many documents.
DAMAGED: dict[str, tuple[dict[str, Any], Callable[[int], bytes]]] = {
    "ndjson": ({}, lambda count: "\n".join(line(id=f"m{at}") for at in range(count)).encode()),
    "csv": ({}, lambda count: ("id,ts,kwh\n" + f'"m1",{NOON_S},1.5\n' * count).encode()),
    "line-protocol": (
        {"series": "tags.id", "time": "time", "time_unit": "ns", "value": "fields.kwh"},
        lambda count: (f'p,id=m\\ 1 kwh=1.5,text="a\\"b" {NOON_NS}\n' * count).encode(),
    ),
    "prometheus-remote-write": (
        {"series": "labels.id", "time": "samples[*].timestamp", "time_unit": "ms", "value": "samples[*].value"},
        lambda count: snappy(written(*[({"id": f"m{at}"}, [(1.5, NOON_MS)]) for at in range(count)])),
    ),
    "msgpack": ({"value": "r[*]"}, lambda count: msgpack.packb({"id": "m1", "ts": NOON_S, "r": [1.5] * count}) or b""),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("payload", DAMAGED)
def test_damaged_containers_raise_nothing_and_count_once(payload: str, packed: bool):
    mapping, body = DAMAGED[payload]
    made = readings(payload=payload, **mapping, **({"compression": "gzip"} if packed else {}))
    chance = random.Random(NOON_S)  # noqa: S311 - chance of a test
    total = 20_000 if NIGHT else 60
    bodies = [body(chance.randint(1, 4)) for _ in range(total)]
    if packed:  # damage outside and inside
        inner = [gzip.compress(damaged(one, chance)) for one in bodies]
        payloads = [damaged(one, chance) if at % 2 else one for at, one in enumerate(inner)]
    else:
        payloads = [damaged(one, chance) for one in bodies]
    given = Messages(
        payloads=payloads,
        topics=["meters"] * total,
        keys=[None] * total,
        headers=[()] * total,
        stamps_us=np.full(total, NOON_US),
        positions=np.arange(FIRST, FIRST + total),
    )
    counted_once(lambda: PayloadDecoder(made), given)


@pytest.mark.parametrize("payload", DAMAGED)
def test_containers_are_decoded_in_linear_time(payload: str):
    mapping, body = DAMAGED[payload]
    decoder = PayloadDecoder(readings(payload=payload, **mapping))
    small, large = messages(body(64)), messages(body(16 * 64))
    decoder.decode(small)
    assert Steps(lambda: decoder.decode(large)).count <= 16 * Steps(lambda: decoder.decode(small)).count


METRICS = {"series": "labels.id", "time": "samples[*].timestamp", "time_unit": "ms", "value": "samples[*].value"}


def test_write_requests_are_series_with_samples_without_staleness_markers():
    request = written(
        ({"__name__": "w", "id": "a"}, [(1.5, NOON_MS), (STALE, NOON_MS + 1), (2.5, NOON_MS + 2)]),
        ({"__name__": "v", "id": "a"}, [(230.0, NOON_MS)]),
        ({"__name__": "w", "id": "b"}, [(STALE, NOON_MS)]),
        ({"__name__": "w", "id": "c"}, [(math.nan, NOON_MS)]),
    )
    made = readings(payload="prometheus-remote-write", **METRICS, where=[{"path": "labels.__name__", "equals": "w"}])
    for packed in (snappy(request), pa.compress(request, codec="snappy", asbytes=True)):
        rows, rejects = decode(made, messages(packed))
        assert rows == [("a", NOON_US, 1.5), ("a", NOON_US + 2_000, 2.5)]
        assert rejects == [(0, "not-finite")]


def test_oversized_blocks_and_other_request_versions_are_rejects():
    whole = written(({"id": "a"}, [(1.5, NOON_MS)]))
    bomb = b"\xff\xff\xff\xff\x0f" + b"\xfe\x01\x00" * 1_000
    version_2 = block(4, b"") + block(4, b"id") + block(5, b"")
    twice = block(1, (block(1, block(1, b"id") + block(2, b"a"))) * 2 + block(2, b""))
    given = messages(bomb, snappy(whole)[:-1], snappy(version_2), snappy(twice), b"", whole, snappy(b"\xff" * 9))
    made = readings(payload="prometheus-remote-write", **METRICS)
    assert decode(made, given) == ([], [(0, "too-large"), *((at, "malformed-row") for at in range(1, 7))])
    assert decode(made, messages(snappy(b""))) == ([], [])


def test_series_of_a_write_request_without_samples_are_skipped():
    """Two bytes each, and three to a hundred of them in a block: their documents would take hundreds each."""
    packed = pa.compress(
        block(1, b"") * 100_000 + written(({"id": "a"}, [(1.5, NOON_MS)])), codec="snappy", asbytes=True
    )
    parsed = remote_write_parser(1_000_000)([packed], [0])
    assert [one["labels"] for one in parsed.values] == [{"id": "a"}]
