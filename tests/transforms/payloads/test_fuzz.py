"""Whatever bytes come: no decoder raises, and every message is counted once, and never as two things.

The messages that are damaged are those of ``readings/decoded`` and of the recipes.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, get_args

import cbor2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.schemas.readings import GROUPED_READING_SCHEMA, READING_SCHEMA
from quiltstream.schemas.settings.readings import Payload, Readings
from quiltstream.schemas.settings.recipes import RECIPES
from quiltstream.transforms.formats.rows import Decoded
from quiltstream.transforms.payloads import PayloadDecoder
from quiltstream.transforms.payloads.messages import Headers, Messages
from quiltstream.transforms.readings.meters import crc16

from ...depth import NIGHT, examples
from ...readings import test_decoded as decoded
from .payloads import FIRST, NOON_S, NOON_US
from .test_recipes import case as recipe


class Case(NamedTuple):
    decoder: PayloadDecoder
    seeds: list[tuple[bytes, str, Headers]]  # payload, topic, headers of messages that are read


def case(name: str) -> Case:
    kind, _, packed = name.partition(" packed by ")
    if name in RECIPES:
        one = recipe(name)
        decoder, given = one.decoder, one.given
    else:
        found = next(one for one in decoded.CASES if one["readings"].get("payload", "json") == kind and _read(one))
        more = {"readings": found["readings"] | {"compression": packed}} if packed else {}
        decoder, given = decoded.made(found | more), decoded.sent(_read(found))
    pack = gzip.compress if packed else bytes
    bodies = [pack(body or b"") for body in given.payloads]
    return Case(decoder, list(zip(bodies, given.topics, given.headers, strict=True)))


def _read(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in found["messages"] if "rows" in one]


CASES = [*get_args(Payload), "json packed by gzip", *RECIPES]

TOPICS = ["meters/m1", "meters/m2", ""]
TEXTS = [b"m1", b"", b"\xa1\x02m1", b"\xff\xfe", b"%d" % NOON_S, b"2026-01-05T12:00Z"]
NAMES = ["device_id", "creation-time", "mqtt-topic", "other"]
TOKENS = [
    b"null", b"1e999", b"[", b"]]", b'{"', b"\\ud800", b"\xff", b"-0", b"9" * 30, b"true,", b'"x"', b"[]", b"{}",
    b'"":', b"<!--", b"&a;", b"\0", b"[[", b":", b"[*]",
]  # fmt: skip


def damaged(seed: bytes, seeds: Sequence[bytes], chance: random.Random) -> bytes:
    """A message with some of it changed, cut out, doubled, or taken from another one."""
    found = bytearray(seed)
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
            found[at:] = other[chance.randrange(len(other) + 1) :]
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


def batch_of(payloads: Sequence[bytes], beside: list[tuple[str, Headers]], chance: random.Random) -> Messages:
    """Messages with anything beside their payloads."""
    count = len(payloads)
    for at in range(count):
        if chance.random() < 0.3:
            headers = [(chance.choice(NAMES), chance.choice([*TEXTS, None])) for _ in range(chance.randrange(4))]
            beside[at] = (chance.choice(TOPICS), headers)
    stamps = [chance.choice([-1, *[NOON_US] * 12, 0, 2**62, -(2**63), 2**63 - 1]) for _ in range(count)]
    return Messages(
        payloads=list(payloads),
        topics=[topic for topic, _ in beside],
        keys=[chance.choice([None, *TEXTS, b"spBv1.0/g/NBIRTH/n"]) for _ in range(count)],
        headers=[headers for _, headers in beside],
        stamps_us=np.array(stamps, dtype=np.int64),
        positions=np.arange(FIRST, FIRST + count),
    )


def counted(given: Messages, parts: Sequence[Decoded]) -> tuple[set[int], set[int]]:
    """Numbers of the messages that have readings and of the rejects: with those passed over, they are all there are."""
    rejected = [at - FIRST for part in parts for each in part.rejects for at in each.positions.tolist()]
    assert len(rejected) == len(set(rejected))
    read = set[int]()
    for part in parts:
        assert all(len(one.positions) for one in part.rejects)
        if part.readings is not None:
            assert part.readings.schema in (READING_SCHEMA, GROUPED_READING_SCHEMA)
            part.readings.validate(full=True)
            assert np.isfinite(part.readings.column("value").to_numpy()).all()
            assert part.rows is not None
            read |= set(part.rows.tolist())
    assert len(read.union(rejected)) + sum(part.passed for part in parts) == len(given)
    return read, set(rejected)


def alike_alone(decoder: PayloadDecoder, given: Messages) -> None:
    """Each message means the same alone as among all."""
    read, rejected = counted(given, decoder.decode(given))
    for at in range(len(given)):
        one = replace(
            given,
            payloads=given.payloads[at : at + 1], topics=given.topics[at : at + 1], keys=given.keys[at : at + 1],
            headers=given.headers[at : at + 1], stamps_us=given.stamps_us[at : at + 1],
            positions=np.array([FIRST]),
        )  # fmt: skip
        alone, lost = counted(one, decoder.decode(one))
        assert (bool(alone), bool(lost)) == (at in read, at in rejected)


@pytest.mark.parametrize("name", CASES)
def test_damaged_messages_raise_nothing_and_count_once(name: str) -> None:
    decoder, seeds = case(name)
    chance = random.Random(NOON_S)
    bodies = [body for body, _, _ in seeds]
    read = rejected = 0
    for number in range(200 if NIGHT else 2):
        chosen = chance.choices(seeds, k=40)
        payloads = [damaged(body, bodies, chance) for body, _, _ in chosen]
        payloads[::20] = [chance.randbytes(chance.randrange(60)) for _ in payloads[::20]]
        given = batch_of(payloads, [(topic, headers) for _, topic, headers in chosen], chance)
        if number % 50 == 0:
            alike_alone(decoder, given)
        found, lost = counted(given, decoder.decode(given))
        read, rejected = read + len(found - lost), rejected + len(lost)
    # not few are read, and not few rejected or of no use
    assert read
    assert rejected or name in RECIPES


#: Names that settings look for.
FIELDS = ["id", "ts", "r", "where", "area", "power", "values", "value", "unit", "payload", "body", "n", "v", "t", "u"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["power", "m1"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=5),
    max_leaves=20,
)
ARRAY = {"each": "payload", "of": "elements(r)", "series": "each.id", "time": "each.ts", "value": "it"}


@pytest.mark.parametrize("payload", [pytest.param("json", marks=pytest.mark.night), "cbor"])
@settings(max_examples=examples(60), deadline=None)
@given(documents=st.lists(JSON, min_size=1, max_size=8))
def test_documents_of_any_shape_raise_nothing_and_count_once(payload: str, documents: list[Any]) -> None:
    decoder = PayloadDecoder(Readings.model_validate(ARRAY | {"payload": payload}))
    chance = random.Random(0)
    written = [json.dumps(one).encode() if payload == "json" else cbor2.dumps(one) for one in documents]
    alike_alone(decoder, batch_of(written, [("meters", ())] * len(written), chance))
