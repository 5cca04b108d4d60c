"""Payloads that hold several documents, and packed ones that unpack to much."""

from __future__ import annotations

import gzip
import json
import random
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import pytest
from pydantic import ValidationError

from quiltstream.schemas.settings.base import problems_of
from quiltstream.schemas.settings.readings import Readings
from quiltstream.transforms.payloads import PayloadDecoder
from quiltstream.transforms.payloads.messages import Messages

from ...depth import NIGHT
from .damage import Steps, counted_once, damaged
from .payloads import FIRST, NOON_S, NOON_US, decode, messages, outcome

OF = {"of": "r", "series": "each.id", "time": "each.ts", "value": "it"}
FLAT = {"each": "payload", "series": "id", "time": "ts", "value": "kwh"}


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
    mapping = readings(payload="ndjson", **OF, where="payload.kind == null")
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
    bare = messages(f"m1;{NOON_S};1.5\nm2;{NOON_S};2")
    mapping = readings(payload="csv", columns=["id", "ts", "kwh"], delimiter=";")
    assert [(row[0], row[2]) for row in decode(mapping, bare)[0]] == [("m1", 1.5), ("m2", 2.0)]


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
        ({"payload": "xml"}, "payload is 'xml': input should be 'json', 'ndjson'"),
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
    "msgpack": (OF, lambda count: msgpack.packb({"id": "m1", "ts": NOON_S, "r": [1.5] * count}) or b""),
}


@pytest.mark.night
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("payload", DAMAGED)
def test_damaged_containers_raise_nothing_and_count_once(payload: str, packed: bool):
    mapping, body = DAMAGED[payload]
    made = readings(payload=payload, **mapping, **({"compression": "gzip"} if packed else {}))
    chance = random.Random(NOON_S)
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
