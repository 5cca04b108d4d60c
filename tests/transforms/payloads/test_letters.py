"""Letters: the content of rejected messages, encrypted to a public key before it leaves the reader."""

from __future__ import annotations

import base64
import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

from quiltstream.schemas.dead_letters import Content, LetterError, Letters, letter_of, new_keys, open_letter, seal
from quiltstream.schemas.readings import LETTER_SCHEMA, REJECT_SCHEMA, RejectReason
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.job import load_settings
from quiltstream.schemas.settings.mappings import Readings
from quiltstream.schemas.table_files import read_rows
from quiltstream.transforms.common.batches import Rejects, reject_batch, with_dead_letter_columns
from quiltstream.transforms.kafka.source import KafkaPartitions
from quiltstream.transforms.payloads import PayloadDecoder
from quiltstream.transforms.payloads.messages import MOST_LETTERS, Messages, check_letters, with_letters
from quiltstream.transforms.sinks import DEAD_LETTERS, WriteDeadLetters, reject_messages

from ..kafka.contract import pieces_until
from ..kafka.fake import FakeBroker
from ..pubsub.fake import FakeService

PRIVATE, PUBLIC = new_keys()
OTHER, _ = new_keys()
TO = Letters(public_key=base64.b64encode(PUBLIC).decode("ascii"))
SECRET = b"Musterstrasse 7"


def messages(*payloads: bytes | None) -> Messages:
    count = len(payloads)
    return Messages(
        payloads=list(payloads),
        topics=["meters"] * count,
        keys=[b"m7", *[None] * (count - 1)],
        headers=[[("mqtt-topic", b"site/m7"), ("empty", None)], *[()] * (count - 1)],
        stamps_us=np.full(count, 17),
        positions=np.arange(100, 100 + count),
    )


def rejects(*positions: int) -> pa.RecordBatch:
    rows = [{"reason": "malformed-row", "source": "meters/0", "position": one} for one in positions]
    return pa.RecordBatch.from_pylist(rows, schema=REJECT_SCHEMA)


def test_only_the_dead_letter_contains_the_message():
    sealed = with_letters(rejects(100, 102), messages(SECRET, b"fine", b"\xff\xfe"), TO)
    assert sealed.schema == LETTER_SCHEMA
    first, second = sealed.to_pylist()
    assert SECRET not in repr(first).encode()
    assert (first["size"], second["size"]) == (len(SECRET), 2)
    inside = open_letter(first["letter"], PRIVATE)
    assert inside == {
        "reason": "malformed-row",
        "source": "meters/0",
        "position": 100,
        "size": len(SECRET),
        "topic": "meters",
        "stamp_us": 17,
        "key": base64.b64encode(b"m7").decode(),
        "headers": [["mqtt-topic", base64.b64encode(b"site/m7").decode()], ["empty", None]],
        "payload": base64.b64encode(SECRET).decode(),
        "cut": False,
    }
    assert base64.b64decode(open_letter(second["letter"], PRIVATE)["payload"]) == b"\xff\xfe"


def test_two_letters_of_the_same_message_are_not_alike():
    letters = [with_letters(rejects(100), messages(SECRET), TO).to_pylist()[0]["letter"] for _ in range(2)]
    assert letters[0] != letters[1]


def test_only_the_private_key_opens_an_intact_dead_letter():
    letter = with_letters(rejects(100), messages(SECRET), TO).to_pylist()[0]["letter"]
    data = bytearray(base64.b64decode(letter))
    data[-1] ^= 1
    for given, key in ((letter, OTHER), (base64.b64encode(data).decode(), PRIVATE), ("???", PRIVATE), ("", PRIVATE)):
        with pytest.raises(LetterError) as caught:
            open_letter(given, key)
        assert SECRET.decode() not in str(caught.value)


CONTENT: dict[str, Any] = {
    "reason": "malformed-row",
    "source": "meters/0",
    "position": 100,
    "size": 3,
    "topic": "meters",
    "stamp_us": 17,
    "key": None,
    "headers": [["name", "YQ=="], ["empty", None]],
    "payload": "YWJj",
    "cut": False,
}


def sealed(content: bytes) -> str:
    return base64.b64encode(seal(content, PUBLIC)).decode("ascii")


def test_a_letter_whose_names_are_no_utf_8_opens():
    """Plug-ins make topics and names of headers; half a pair of surrogates is written as an escape."""
    content = Content(b"abc", "t\udc80", 1, None, [("h\udc81", b"x")])
    reject = {"reason": "malformed-row", "source": "data/\udcff.jsonl", "position": 1, "size": 3}
    inside = open_letter(letter_of(reject, content, TO), PRIVATE)
    assert (inside["topic"], inside["headers"][0][0]) == ("t\\udc80", "h\\udc81")
    assert (inside["source"], inside["payload"]) == ("data/\\udcff.jsonl", "YWJj")


def test_encrypted_content_that_is_no_message_is_refused_as_a_dead_letter():
    """Anybody who has the public key can encrypt anything; whoever opens it must be able to go on."""
    assert open_letter(sealed(json.dumps(CONTENT).encode()), PRIVATE) == CONTENT
    wrong: dict[str, list[Any]] = {
        "reason": [None, 1],
        "source": [None, ["a"]],
        "position": ["100", 1.5, True, None],
        "size": [None, "3"],
        "topic": [None, {}],
        "stamp_us": ["17"],
        "key": [5, "no base64", "\u00fc"],
        "headers": [None, "ab", {"a": "b"}, [1], ["ab"], [["a"]], [["a", "b", "c"]], [[None, None]], [["a", "?"]]],
        "payload": [None, 3, "YW"],
        "cut": [None, 0],
    }
    forged = [json.dumps(CONTENT | {name: one}) for name, given in wrong.items() for one in given]
    forged += [json.dumps({name: one for name, one in CONTENT.items() if name != left}) for left in CONTENT]
    forged += [json.dumps(CONTENT | {"more": 1}), "[]", "null", "", "{", "[" * 100_000, "1" * 10_000]
    for one in forged:
        with pytest.raises(LetterError):
            open_letter(sealed(one.encode()), PRIVATE)
    for data in (b"", bytes(32), bytes(48), bytes(1_000), b"\xff" * 48):
        with pytest.raises(LetterError):
            open_letter(base64.b64encode(data).decode("ascii"), PRIVATE)


@pytest.mark.parametrize(
    "headers",
    [
        [("", b"")] * 150_000,
        [("a", None)] * 65_536,
        [("\u0e01" * 200_000, b"")],
        [("\1" * 200_000, b"")],
        [("a", b"x" * 260_000)],
    ],
    ids=["empty", "short", "Thai", "control", "a value"],
)
def test_the_largest_dead_letter_fits_into_a_broker_message(headers: list[tuple[str, bytes | None]]):
    """One that does not would fail the bundle of its row again and again."""
    letters = TO.model_copy(update={"most_bytes": 262_144})
    message = Messages([b"{" * 300_000], ["t" * 249], [b"k" * 1_000], [headers], np.array([0]), np.array([7]))
    batch = with_letters(
        reject_batch("t" * 249, (Rejects(RejectReason.MALFORMED_ROW, np.array([7])),)), message, letters
    )
    for format_ in ("json", "avro-single-object"):
        ((_, value, _),) = reject_messages(batch, format_)
        assert 100_000 < len(value) < 1_000_000


def test_a_dead_letter_keeps_the_beginning_of_a_long_message_and_no_long_headers():
    short = TO.model_copy(update={"most_bytes": 256})
    given = messages(bytes(300), b"x" * 256)
    first, second = with_letters(rejects(100, 101), given, short).to_pylist()
    inside = open_letter(first["letter"], PRIVATE)
    assert (len(base64.b64decode(inside["payload"])), inside["cut"], inside["size"]) == (256, True, 300)
    assert open_letter(second["letter"], PRIVATE)["cut"] is False
    assert len(first["letter"]) < 2_000
    given = messages(b"x")
    heavy = Messages(given.payloads, given.topics, [b"k" * 300], given.headers, given.stamps_us, given.positions)
    inside = open_letter(with_letters(rejects(100), heavy, short).to_pylist()[0]["letter"], PRIVATE)
    assert (inside["key"], inside["headers"], inside["cut"]) == (None, [], True)


def test_dead_letters_of_a_batch_are_limited_and_all_rejects_are_reported():
    count = 3 * MOST_LETTERS
    rows = with_letters(rejects(*range(100, 100 + count)), messages(*[b"{"] * count), TO).to_pylist()
    assert [row["letter"] is not None for row in rows] == [True] * MOST_LETTERS + [False] * (count - MOST_LETTERS)
    assert {row["size"] for row in rows} == {1}


def test_a_reject_of_no_message_has_no_letter():
    assert with_letters(rejects(-1), messages(SECRET), TO).to_pylist()[0]["letter"] is None
    (row,) = with_dead_letter_columns(rejects(5)).to_pylist()
    assert (row["position"], row["size"], row["letter"]) == (5, None, None)


READINGS = Readings(series="id", time="ts", value="kwh")


def kafka(decoder: PayloadDecoder) -> list[pa.RecordBatch]:
    broker = FakeBroker()
    topic = broker.topic(1)
    broker.send(topic, [(0, b'{"id": "m1", "ts": "2026-01-01", "kwh": 1}'), (0, SECRET)])
    reader = KafkaPartitions(broker.cluster, (topic,), decoder).reader(0, "")
    return [one for piece in pieces_until(reader, lambda all_: any(p.rejects for p in all_)) for one in piece.rejects]


def pubsub(decoder: PayloadDecoder) -> list[pa.RecordBatch]:
    service = FakeService()
    reader = service.feed(decoder).reader(0, "")
    reader.read()
    service.publish(SECRET)
    piece = reader.read()
    assert piece is not None
    return list(piece.rejects)


@pytest.mark.parametrize("source", [kafka, pubsub])
def test_a_broker_reader_emits_dead_letters_only_with_a_key(source: Callable[[PayloadDecoder], list[pa.RecordBatch]]):
    (told,) = source(PayloadDecoder(READINGS, encrypted=TO))
    (row,) = told.to_pylist()
    assert SECRET not in repr(row).encode()
    inside = open_letter(row["letter"], PRIVATE)
    assert base64.b64decode(inside["payload"]) == SECRET
    assert (inside["reason"], inside["source"], inside["position"]) == (row["reason"], row["source"], row["position"])
    (told,) = source(PayloadDecoder(READINGS))
    assert told.schema.names == ["reason", "source", "position", "size"]


def test_a_topic_gets_the_letters_and_no_content():
    batch = with_letters(rejects(100, 101), messages(SECRET, None), TO)
    for format_ in ("json", "avro-single-object"):
        values = [value for _, value, _ in reject_messages(batch, format_)]
        assert SECRET not in b"".join(values)
        assert len(values) == 2
    rows = [json.loads(value) for _, value, _ in reject_messages(batch, "json")]
    assert base64.b64decode(open_letter(rows[0]["letter"], PRIVATE)["payload"]) == SECRET


@pytest.mark.parametrize("format_", ["jsonl", "csv", "parquet", "avro"])
def test_files_of_rejects_hold_the_letters_in_every_format(tmp_path: Path, format_: Any):
    given = [with_letters(rejects(100), messages(SECRET), TO), rejects(7)]
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        _ = pipeline | beam.Create(given, reshuffle=False) | WriteDeadLetters(str(tmp_path / "rejects"), format_)
    (path,) = (tmp_path / "rejects").iterdir()
    assert SECRET not in path.read_bytes()
    plain, sealed = read_rows(path, DEAD_LETTERS).to_pylist()
    assert plain == {"reason": "malformed-row", "source": "meters/0", "position": 7, "size": None} | {
        "letter": plain["letter"]
    }
    assert not plain["letter"]
    assert base64.b64decode(open_letter(sealed["letter"], PRIVATE)["payload"]) == SECRET


SETTINGS = """\
source: {kafka: {servers: "b:9092", topic: meters}}
readings: {series: id, time: ts, value: kwh}
slots: {interval: 15min}
states: {edges: [250, 500], unit: Wh}
model: {pi_min: 0.1, gap: 0.5}
windows: {size: 1d}
privacy: {epsilon: 1}
rejects: {jsonl: rejects, encrypted: {public_key: KEY}}
query: q
domain: d
most_error: 1e6
"""


@pytest.mark.parametrize(
    "key",
    ["short", "KPe0zCXrsdoBR0sXwi9fmfJsq1UNUQsDMgoXHkGj", f"'{'!' * 44}'", base64.b64encode(bytes(33)).decode(), '""'],
)
def test_an_invalid_public_key_is_refused(key: str):
    with pytest.raises(SettingsError) as caught:
        load_settings(SETTINGS.replace("KEY", key))
    assert "rejects.encrypted.public_key: this is no public key" in str(caught.value)
    # it may be another key, pasted by mistake
    assert len(key) < 9 or key not in str(caught.value)


def test_a_key_to_which_nothing_can_be_encrypted_is_refused_before_a_job_begins():
    """All zeros is a point whose secrets everybody knows."""
    settings = load_settings(SETTINGS.replace("KEY", base64.b64encode(bytes(32)).decode()))
    with pytest.raises(SettingsError, match="nothing can be encrypted to it"):
        PayloadDecoder.of(settings)


def test_the_decoder_with_dead_letter_settings_is_picklable():
    settings = load_settings(SETTINGS.replace("KEY", TO.public_key))
    decoder = pickle.loads(pickle.dumps(PayloadDecoder.of(settings)))
    assert decoder.letters == TO
    assert decoder.fresh().letters == TO


def test_dead_letters_are_refused_for_a_source_of_files():
    document = SETTINGS.replace("KEY", TO.public_key).replace('kafka: {servers: "b:9092", topic: meters}', "csv: a.csv")
    with pytest.raises(SettingsError, match="still stands in its files"):
        load_settings(document)


def test_a_missing_encryption_library_is_reported_with_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.x25519", None)
    with pytest.raises(SettingsError, match=r"quiltstream\[encrypted\]"):
        check_letters(TO)
    with pytest.raises(SettingsError, match=r"on every worker"):
        with_letters(rejects(100), messages(SECRET), TO)
