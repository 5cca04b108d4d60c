"""Whatever bytes come: no decoder raises, and every message is counted once, and never as two things."""

from __future__ import annotations

import io
import json
import random
import struct
from pathlib import Path
from typing import Any, NamedTuple, get_args

import cbor2
import fastavro
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.schemas.readings import GROUPED_READING_SCHEMA, READING_SCHEMA
from quiltstream.schemas.settings.readings import Payload, Readings
from quiltstream.transforms.payloads import PayloadDecoder
from quiltstream.transforms.payloads.avro import schema_fingerprint
from quiltstream.transforms.payloads.messages import Headers, Messages
from quiltstream.transforms.readings.meters import crc16
from quiltstream.transforms.sinks import WriteRejects
from quiltstream.transforms.sources.contract import source_batch_of

from ...depth import NIGHT, examples
from ...readings.test_meters import LINES, SMALL, telegram
from .damage import accounted_for
from .payloads import NOON_MS, NOON_S, NOON_US
from .test_containers import DAMAGED

SCHEMA = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "r", "type": {"type": "array", "items": ["null", "double", "string"]}},
    ],
}
RECORDS: list[dict[str, Any]] = [
    {"id": "m1", "ts": NOON_MS, "r": [1.5, "2"]},
    {"id": "m2", "ts": NOON_MS + 1, "r": [3.0]},
]


def avro(head: bytes) -> list[bytes]:
    return [head + avro_body(record) for record in RECORDS]


def avro_body(record: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, SCHEMA, record)
    return stream.getvalue()


def lookup(number: int) -> Any:
    return {7: SCHEMA}[number]


ARRAY = {
    "each": "payload",
    "of": "elements(r)",
    "series": "each.id",
    "time": "each.ts",
    "time_unit": "ms",
    "value": "it",
}
PLAIN = {"id": "m1", "ts": NOON_MS, "r": [1.5, "2", 3], "where": {"area": 7}}
VAST = b'{"id": "m", "ts": %d, "r": [1e999], "where": {"area": "x"}}' % NOON_MS

METER = {"series": "meter", "time": "time"}

#: Of each decoder: how it is made, and messages that it reads whole.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], list[bytes]]] = {
    "json": (
        ARRAY | {"attributes": {"area": "payload.where.area"}},
        {"group": "area"},
        [json.dumps(PLAIN).encode(), VAST],
    ),
    "cbor": (
        ARRAY | {"payload": "cbor"},
        {},
        [cbor2.dumps(PLAIN), cbor2.dumps(PLAIN | {"r": [cbor2.CBORTag(4, [-1, 15])]})],
    ),
    "avro": (ARRAY | {"payload": "avro"}, {"schemas": lookup}, avro(b"\0\0\0\0\7")),
    "avro-single": (
        ARRAY | {"payload": "avro-single", "avro_schemas": [SCHEMA]},
        {},
        avro(b"\xc3\x01" + struct.pack("<Q", schema_fingerprint(SCHEMA))),
    ),
    "cim": (
        METER | {"payload": "cim", "each": "payload[?unit == 'Wh']", "value": "value"},
        {},
        [SMALL.encode()],
    ),
    "dsmr": (
        METER | {"payload": "dsmr", "each": "payload", "value": 'it."1-0:1.7.0"'},
        {},
        [telegram(*LINES), telegram(*LINES[1:], checksum="")],
    ),
}
#: Of the messages that are read whole, how many readings each gives.
READINGS = {"json": 4, "cbor": 4, "avro": 3, "avro-single": 3, "cim": 2, "dsmr": 2}

#: There are many decoders, and one long test.
SHORT = settings(max_examples=examples(20), deadline=None)

TOPICS = ["meters/m1", "meters/m2", ""]
TEXTS = [b"m1", b"", b"\xa1\x02m1", b"\xff\xfe", b"%d" % NOON_MS, b"2026-01-05T12:00Z"]
DEVICE: Headers = (("device_id", b"m1"), ("creation-time", b"%d" % NOON_MS))
NAMES = ["device_id", "creation-time", "mqtt-topic", "other"]


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
    # a checksum would keep nearly all damage from what lies behind it
    return signed(bytes(found)) if found.startswith(b"/") and chance.randrange(2) else bytes(found)


def signed(telegram: bytes) -> bytes:
    """A telegram with the checksum that it should have."""
    head, mark, rest = telegram.rpartition(b"!")
    return head + mark + b"%04X\r\n" % crc16(head + mark) if rest.strip() else telegram


TOKENS = [
    b"null", b"1e999", b"[", b"]]", b'{"', b"\\ud800", b"\xff", b"-0", b"9" * 30, b"true,",
    b'"":', b"<!--", b"&a;", b"\0",
]  # fmt: skip


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
        return DEVICE
    return [(chance.choice(NAMES), chance.choice([*TEXTS, None])) for _ in range(chance.randrange(4))]


class Tally(NamedTuple):
    """How many messages gave readings and are no rejects, and how many are rejects."""

    read: int
    rejected: int


def check(name: str, decoder: PayloadDecoder, batch: Messages) -> Tally:
    """Decode, and see that what came out is what the seam promises, and that each message was counted once."""
    parts = decoder.decode(batch)
    rows: set[int] = set()
    for part in parts:
        assert all(len(one.positions) for one in part.rejects)
        if part.readings is not None:
            assert part.readings.num_rows
            assert part.readings.schema == (READING_SCHEMA if name != "json" else GROUPED_READING_SCHEMA)
            part.readings.validate(full=True)
            assert np.isfinite(part.readings.column("value").to_numpy()).all()
            rows |= set([] if part.rows is None else part.rows.tolist())
    rejected = accounted_for(batch, parts)
    return Tally(len(rows - rejected), len(rejected))


def seeds_of(name: str) -> list[bytes]:
    return CASES[name][2]


def whole(name: str, count: int) -> Messages:
    """Messages that are read whole, so many of each: everything beside them as it should be."""
    payloads = seeds_of(name) * count
    return Messages(
        payloads=payloads,
        topics=[TOPICS[number % 2] for number in range(len(payloads))],
        keys=[None] * len(payloads),
        headers=[DEVICE] * len(payloads),
        stamps_us=np.full(len(payloads), NOON_US),
        positions=np.arange(len(payloads), dtype=np.int64) + 2**40,
    )


@pytest.mark.parametrize("name", CASES)
def test_the_messages_of_the_fuzz_tests_are_read_when_undamaged(name: str):
    parts = made(name).decode(whole(name, 40))
    expected = READINGS.get(name, 2) * 40
    assert sum(part.readings.num_rows for part in parts if part.readings is not None) == expected
    assert not [one for part in parts for one in part.rejects]
    assert check(name, made(name), whole(name, 40)).rejected == 0


@pytest.mark.parametrize("name", CASES)
@SHORT
@given(st.lists(st.binary(max_size=60), min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_bytes_of_any_kind_raise_nothing_and_count_once(name: str, payloads: list[bytes], chance: random.Random):
    check(name, made(name), batch_of(list(payloads), chance))


#: Names that the decoders look for.
FIELDS = [
    "id", "ts", "r", "where", "area", "power", "values", "event", "readings", "resourceName", "value", "data",
    "payload", "body", "bn", "bt", "n", "v", "t", "bver", "observedAt", "metadata", "x_", "device_id", "timestamp",
]  # fmt: skip

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["power", "m1"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(FIELDS),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@pytest.mark.night
@pytest.mark.parametrize("name", ["json"])
@SHORT
@given(st.lists(JSON, min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_json_of_any_shape_raises_nothing_and_counts_once(name: str, documents: list[Any], chance: random.Random):
    check(name, made(name), batch_of([json.dumps(one).encode() for one in documents], chance))


@SHORT
@given(st.lists(JSON, min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_cbor_of_any_shape_raises_nothing_and_counts_once(documents: list[Any], chance: random.Random):
    check("cbor", made("cbor"), batch_of([cbor2.dumps(one) for one in documents], chance))


POISON = b"\xfe\xffpoison"
#: Batches of poison, and how often it is in each.
BATCHES, OFTEN = 20, 50


@pytest.mark.night
@pytest.mark.parametrize("name", CASES)
def test_a_repeated_poison_message_affects_no_other_and_is_rejected_each_time(name: str, tmp_path: Path):
    """The same damaged message among good ones, a thousand times in twenty batches, up to the files of rejects."""
    good = whole(name, 5)
    between = np.linspace(0, len(good), OFTEN, endpoint=False).astype(int).tolist()
    alone, mixed = made(name), made(name)
    sink = WriteRejects.writer(str(tmp_path), "jsonl")
    poisoned: list[int] = []
    for number in range(BATCHES):
        batch, places = among(good, between, number * 1_000)
        found = source_batch_of("t/0", mixed.decode(batch), "", settled=False)
        assert found.rows == source_batch_of("t/0", alone.decode(good), "", settled=False).rows
        assert sum(found.rejected.values()) == OFTEN
        poisoned += places
        if number % 5 == 0:
            sink.start_bundle()
        for rejects in found.rejects:
            sink.process(rejects)
        if number % 5 == 4:
            sink.finish_bundle()
    told = [json.loads(line) for path in tmp_path.iterdir() for line in path.read_text().splitlines()]
    assert sorted(one["position"] for one in told) == poisoned
    assert {(one["reason"], one["source"], one["size"]) for one in told} == {("malformed-row", "t/0", len(POISON))}


def among(good: Messages, between: list[int], start: int) -> tuple[Messages, list[int]]:
    """Good messages with poison before some of them, and where it is."""
    at = np.array(between)
    count = len(good) + len(between)
    places = at + np.arange(len(at))
    poison = np.isin(np.arange(count), places)
    source: list[int] = np.insert(np.arange(len(good)), at, at).tolist()
    batch = Messages(
        payloads=[POISON if bad else good.payloads[one] for one, bad in zip(source, poison.tolist(), strict=True)],
        topics=[good.topics[one] for one in source],
        keys=[good.keys[one] for one in source],
        headers=[good.headers[one] for one in source],
        stamps_us=good.stamps_us[source],
        positions=start + np.arange(count),
    )
    return batch, (start + places).tolist()


@pytest.mark.night
@pytest.mark.parametrize("name", CASES)
def test_a_hundred_thousand_damaged_messages_raise_nothing_and_count_once(name: str):
    """Not few are read, and not few rejected."""
    chance, decoder = random.Random(NOON_S), made(name)
    total = (1_000_000 if NIGHT else 100_000) // len(CASES)
    read, rejected = 0, 0
    for _ in range(-(-total // 1_000)):
        payloads: list[bytes | None] = [damaged(seeds_of(name), chance) for _ in range(1_000)]
        tally = check(name, decoder, batch_of(payloads, chance))
        read, rejected = read + tally.read, rejected + tally.rejected
    assert total < 10 * rejected
    assert total < 20 * read


def test_every_payload_format_is_fuzzed():
    # containers are damaged by their own tests, as the recipes are
    given = {mapping.get("payload", "json") for mapping, _, _ in CASES.values()}
    assert given | set(DAMAGED) == set(get_args(Payload))
