"""Whatever bytes come: no decoder raises, and every message is counted at most once, and never as two things."""

from __future__ import annotations

import io
import json
import random
import struct
from collections.abc import Iterator
from typing import Any, get_args

import cbor2
import fastavro
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.schemas.mappings import Payload, Preset
from quiltstream.schemas.readings import GROUPED_READING_SCHEMA, READING_SCHEMA
from quiltstream.schemas.settings import Readings
from quiltstream.schemas.slots import SlotGrid
from quiltstream.transforms.messages import Headers, Messages
from quiltstream.transforms.payloads import PayloadDecoder
from quiltstream.transforms.payloads.avro import schema_fingerprint

from .payloads import NOON_MS, NOON_S, NOON_US
from .sparkplug import metric, payload
from .test_meters import LINES, feed, telegram
from .test_presets import EVENT, PACK, entity, ngsi, packed

SCHEMA = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "r", "type": {"type": "array", "items": ["null", "double", "string"]}},
    ],
}
RECORD = {"id": "m1", "ts": NOON_MS, "r": [1.5, None, "2"]}


def avro() -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, SCHEMA, RECORD)
    return stream.getvalue()


def lookup(number: int) -> Any:
    return {7: SCHEMA}[number]


ARRAY = {"series": "id", "time": "ts", "time_unit": "ms", "value": "r[*]"}
GATEWAY = {"Meter A": [{"ts": NOON_MS, "values": {"power": 1}}], "Meter B": []}
PLAIN = {"id": "m1", "ts": NOON_MS, "r": [1.5, None, "2", 3], "where": {"area": 7}}

#: Of each decoder: how it is made, and messages that it reads.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], list[bytes]]] = {
    "json": (ARRAY, {"group": "where.area"}, [json.dumps(PLAIN).encode(), b'{"id": "m", "ts": 1e999, "r": [1e999]}']),
    "cbor": (ARRAY | {"payload": "cbor"}, {}, [cbor2.dumps(PLAIN), cbor2.dumps(cbor2.CBORTag(4, [1, 1]))]),
    "avro": (ARRAY | {"payload": "avro"}, {"schemas": lookup}, [b"\0\0\0\0\7" + avro()]),
    "avro-single": (
        ARRAY | {"payload": "avro-single", "avro_schemas": [SCHEMA]},
        {},
        [b"\xc3\x01" + struct.pack("<Q", schema_fingerprint(SCHEMA)) + avro()],
    ),
    "register": (
        ARRAY | {"time": "r[*].t", "value": {"register": {"path": "r[*].v"}}},
        {"grid": SlotGrid(900_000_000)},
        [json.dumps({"id": "m1", "r": [{"t": NOON_MS + 900_000 * i, "v": i} for i in range(4)]}).encode()],
    ),
    "thingsboard": ({"preset": "thingsboard", "value": "power"}, {}, [json.dumps(GATEWAY).encode(), b'{"power": 1}']),
    "edgex": ({"preset": "edgex", "value": "power"}, {}, [json.dumps({"event": EVENT}).encode()]),
    "hono": ({"preset": "hono", "value": "power"}, {}, [b'{"power": 1}']),
    "azure-iot": ({"preset": "azure-iot", "value": "power"}, {}, [b'{"power": 1}']),
    "aws-iot": (
        {"preset": "aws-iot", "value": "power"},
        {},
        [json.dumps({"device_id": "m1", "timestamp": NOON_MS, "power": 1}).encode()],
    ),
    "senml": ({"preset": "senml", "value": "power"}, {}, [json.dumps(PACK).encode(), packed(PACK)]),
    "sparkplug": (
        {"preset": "sparkplug", "value": "power"},
        {},
        [
            payload(NOON_MS, metric("power", 5, kind=3, int=2**32 - 1), metric("x", 6, text="y")),
            payload(NOON_MS + 1, metric(alias=5, double=1.0)),
        ],
    ),
    "ngsi-ld": (
        {"preset": "ngsi-ld", "value": "power"},
        {},
        [json.dumps(ngsi(entity({"value": 1}), entity(2))).encode()],
    ),
    "green-button": ({"preset": "green-button"}, {}, [feed().encode()]),
    "dsmr": (
        {"preset": "dsmr", "value": "1-0:1.7.0+0-1:24.2.1"},
        {},
        [telegram(*LINES), telegram(*LINES[1:], checksum="")],
    ),
}

#: There are many decoders, and one long test.
SHORT = settings(max_examples=30, deadline=None)

TOPICS = ["spBv1.0/g/DBIRTH/n/d", "spBv1.0/g/DDATA/n/d", "spBv1.0/g/NDATA/n", "meters/m1", ""]
TEXTS = [b"m1", b"", b"\xa1\x02m1", b"\x83" + bytes(8), b"\xff\xfe", b"%d" % NOON_MS, b"\xb1\0\0", b"2026-01-05T12:00Z"]
DEVICES = [
    (("device_id", b"m1"), ("creation-time", b"%d" % NOON_MS)),
    (("iothub-connection-device-id", b"\xa1\x02m1"), ("iothub-enqueuedtime", b"2026-01-05T12:00Z")),
]
NAMES = ["device_id", "creation-time", "iothub-connection-device-id", "iothub-enqueuedtime", "mqtt-topic", "other"]


def made(name: str) -> PayloadDecoder:
    mapping, options, _ = CASES[name]
    return PayloadDecoder(Readings.model_validate(mapping | {"max_bytes": 20_000}), **options)


def damaged(seeds: list[bytes], chance: random.Random) -> bytes:
    """A message with some of it changed, cut out, doubled, or taken from another one."""
    found = bytearray(chance.choice(seeds))
    for _ in range(chance.randrange(4)):
        at, length = chance.randrange(len(found) + 1), chance.randrange(1, 9)
        kind = chance.randrange(6)
        if kind == 0:
            found[at : at + length] = chance.randbytes(length)
        elif kind == 1:
            del found[at : at + length]
        elif kind == 2:
            found[at:at] = found[at : at + 40 * length]
        elif kind == 3:
            other = chance.choice(seeds)
            cut = chance.randrange(len(other) + 1)
            found[at:] = other[cut:]
        elif kind == 4:
            found[at:at] = chance.choice(TOKENS)
        elif found:
            found[at % len(found)] ^= 1 << chance.randrange(8)
    return bytes(found)


TOKENS = [
    b"null",
    b"1e999",
    b"[",
    b"]]",
    b'{"',
    b"\\ud800",
    b"\xff",
    b"-0",
    b"9" * 30,
    b"true,",
    b'"":',
    b"<!--",
    b"&a;",
    b"\0",
]


def batch_of(payloads: list[bytes | None], chance: random.Random) -> Messages:
    count = len(payloads)
    headers: list[Headers] = [_headers(chance) for _ in range(count)]
    stamps = [chance.choice([-1, NOON_US, 0, 2**62, -(2**63), 2**63 - 1]) for _ in range(count)]
    return Messages(
        payloads=payloads,
        topics=[chance.choice(TOPICS) for _ in range(count)],
        keys=[chance.choice([None, *TEXTS, b"spBv1.0/g/NBIRTH/n"]) for _ in range(count)],
        headers=headers,
        stamps_us=np.array(stamps, dtype=np.int64),
        positions=np.arange(count, dtype=np.int64) + 2**40,
    )


def _headers(chance: random.Random) -> Headers:
    if chance.random() < 0.5:
        return chance.choice(DEVICES)
    return [(chance.choice(NAMES), chance.choice([*TEXTS, None])) for _ in range(chance.randrange(4))]


def check(decoder: PayloadDecoder, batch: Messages) -> int:
    """Decode, and see that what came out is what the seam promises; how many were rejected."""
    rejected: list[int] = []
    for part in decoder.decode(batch):
        rejected += [at for one in part.rejects for at in one.positions.tolist()]
        assert all(len(one.positions) for one in part.rejects)
        if part.readings is not None:
            assert part.readings.num_rows
            assert part.readings.schema == (READING_SCHEMA if decoder.group is None else GROUPED_READING_SCHEMA)
            part.readings.validate(full=True)
            assert np.isfinite(part.readings.column("value").to_numpy()).all()
    assert len(rejected) == len(set(rejected))
    ends = {at for at, one in zip(batch.positions.tolist(), batch.payloads, strict=True) if one is None}
    assert set(rejected) <= set(batch.positions.tolist()) - ends
    return len(rejected)


def seeds_of(name: str) -> list[bytes]:
    return CASES[name][2]


@pytest.mark.parametrize("name", CASES)
def test_the_messages_that_are_damaged_here_are_read_when_they_are_whole(name: str):
    decoder = made(name)
    chance = random.Random(0)  # noqa: S311 - chance of a test
    batch = batch_of([*seeds_of(name)] * 40, chance)
    readings = sum(part.readings.num_rows for part in decoder.decode(batch) if part.readings is not None)
    assert readings > 0


@pytest.mark.parametrize("name", CASES)
@SHORT
@given(st.randoms(use_true_random=False), st.integers(1, 60))
def test_damaged_messages_raise_nothing_and_count_once(name: str, chance: random.Random, count: int):
    payloads = [None if chance.random() < 0.02 else damaged(seeds_of(name), chance) for _ in range(count)]
    check(made(name), batch_of(payloads, chance))


@pytest.mark.parametrize("name", CASES)
@SHORT
@given(st.lists(st.binary(max_size=60), min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_bytes_of_any_kind_raise_nothing_and_count_once(name: str, payloads: list[bytes], chance: random.Random):
    check(made(name), batch_of(list(payloads), chance))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["power", "m1"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "id",
                    "ts",
                    "r",
                    "where",
                    "area",
                    "power",
                    "values",
                    "event",
                    "readings",
                    "resourceName",
                    "value",
                    "data",
                    "payload",
                    "body",
                    "bn",
                    "bt",
                    "n",
                    "v",
                    "t",
                    "bver",
                    "observedAt",
                    "metadata",
                    "x_",
                    "device_id",
                    "timestamp",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@pytest.mark.parametrize(
    "name", ["json", "register", "thingsboard", "edgex", "hono", "azure-iot", "aws-iot", "senml", "ngsi-ld"]
)
@SHORT
@given(st.lists(JSON, min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_json_of_any_shape_raises_nothing_and_counts_once(name: str, documents: list[Any], chance: random.Random):
    check(made(name), batch_of([json.dumps(one).encode() for one in documents], chance))


@SHORT
@given(st.lists(JSON, min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_cbor_of_any_shape_raises_nothing_and_counts_once(documents: list[Any], chance: random.Random):
    for name in ("cbor", "senml"):
        check(made(name), batch_of([cbor2.dumps(one) for one in documents], chance))


@pytest.mark.parametrize("name", CASES)
def test_a_poison_message_that_comes_for_ever_harms_no_other(name: str):
    """The same damaged message among good ones, a thousand times: the good ones are read, it is counted each time."""
    good = seeds_of(name)[0]
    alone = batch_of([good] * 50, random.Random(1))  # noqa: S311 - chance of a test
    poison: list[bytes | None] = [b"\xfe\xffpoison"] * 50
    mixed = Messages(
        payloads=[one for pair in zip(alone.payloads, poison, strict=True) for one in pair],
        topics=np.repeat(np.array(alone.topics, dtype=object), 2).tolist(),
        keys=[one for one in alone.keys for _ in range(2)],
        headers=[one for one in alone.headers for _ in range(2)],
        stamps_us=np.repeat(alone.stamps_us, 2),
        positions=np.arange(100),
    )
    before, rejected = rows_of(made(name), alone)
    after, lost = rows_of(made(name), mixed)
    assert after == before
    # of deaths and of foreign topics Sparkplug reads no payload
    assert lost == rejected + 50


def rows_of(decoder: PayloadDecoder, batch: Messages) -> tuple[int, int]:
    parts = decoder.decode(batch)
    rows = sum(part.readings.num_rows for part in parts if part.readings is not None)
    return rows, sum(len(one.positions) for part in parts for one in part.rejects)


def batches(name: str, total: int, seed: int) -> Iterator[Messages]:
    chance = random.Random(seed)  # noqa: S311 - chance of a test
    for _ in range(-(-total // 1_000)):
        yield batch_of([damaged(seeds_of(name), chance) for _ in range(1_000)], chance)


def fuzz(name: str, total: int) -> None:
    """Decode so many damaged messages, and see that each was counted once and that not all were rejected."""
    decoder, rejected, seen = made(name), 0, 0
    for batch in batches(name, total, seed=NOON_S):
        rejected += check(decoder, batch)
        seen += len(batch)
    assert total <= seen
    assert 0 < rejected < seen


def share(total: int) -> int:
    """The part of each decoder, so that all of them together decode at least so many."""
    return -(-total // len(CASES))


@pytest.mark.parametrize("name", CASES)
def test_a_hundred_thousand_damaged_messages_over_all_decoders_raise_nothing_and_count_once(name: str):
    fuzz(name, share(100_000))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_million_damaged_messages_over_all_decoders_raise_nothing_and_count_once(name: str):
    fuzz(name, share(1_000_000))


def test_every_preset_and_every_way_to_write_a_payload_is_damaged_here():
    given = [mapping for mapping, _, _ in CASES.values()]
    assert {one["preset"] for one in given if "preset" in one} == set(get_args(Preset))
    assert {one.get("payload", "json") for one in given if "preset" not in one} == set(get_args(Payload))
