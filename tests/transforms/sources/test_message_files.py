from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import apache_beam as beam
import fastavro
import pytest
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

from quiltstream.pipelines.gateway.targets import Folder
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.connectors import FileSource
from quiltstream.schemas.settings.gateway import FolderTarget
from quiltstream.schemas.settings.readings import Readings
from quiltstream.schemas.table_files import read_rows
from quiltstream.transforms.sinks import REJECTS, WriteRows
from quiltstream.transforms.sources.arriving_files import ArrivingFiles
from quiltstream.transforms.sources.contract import BEGIN
from quiltstream.transforms.sources.files import ReadReadings, decoder_of
from quiltstream.transforms.sources.message_files import MessageFileDecoder

from ..formats.decoding import avro_record, decode, plain
from ..payloads.payloads import NOON_MS, NOON_US

READINGS = Readings.model_validate(
    {"each": "payload", "series": "topic[1]", "time": "ts", "time_unit": "ms", "value": "power"}
)
SCHEMA: dict[str, Any] = avro_record(
    "Message", topic="string", payload=["null", "bytes"], received={"type": "long", "logicalType": "timestamp-micros"}
)


def record(number: int, payload: bytes | None = None) -> dict[str, Any]:
    body = json.dumps({"ts": NOON_MS + number, "power": number / 4}).encode()
    return {"topic": f"site/m{number}/up", "payload": body if payload is None else payload, "received": NOON_US}


def write(path: Path, records: list[dict[str, Any]], schema: dict[str, Any] = SCHEMA) -> FileSource:
    with path.open("wb") as stream:
        fastavro.writer(stream, schema, records)
    return FileSource(avro=str(path))


def row(number: int) -> tuple[str, int, float]:
    return (f"m{number}", NOON_US + 1_000 * number, number / 4)


def test_redelivered_messages_without_a_time_of_arrival_need_a_time_field(tmp_path: Path):
    target = Folder(str(tmp_path / "spool"), FolderTarget(path="spool", free=0.0))
    for number in range(4):
        flags = {"dup": number == 1, "retain": number == 3, "content_type": ""}
        target.put(record(number) | flags, lambda: None)
    target.turn(end=True)
    source = FileSource(avro=str(tmp_path / "spool" / "*.avro"))
    assert decode(source, READINGS) == ([row(number) for number in range(4)], [])
    arrived = READINGS.model_validate(READINGS.model_dump(mode="json") | {"time": "stamp"})
    found, rejects = decode(source, arrived)
    assert found == [("m0", NOON_US, 0.0), ("m2", NOON_US, 0.5)]
    assert rejects == [(2, "unparsable-time"), (4, "unparsable-time")]


def test_a_message_that_cannot_be_read_is_a_reject_at_its_row(tmp_path: Path):
    records = [record(0), record(1, b"{"), record(2), record(3) | {"payload": None}, record(4)]
    assert decode(write(tmp_path / "a.avro", records), READINGS) == ([row(0), row(2), row(4)], [(2, "malformed-row")])


def test_rejects_of_messages_in_files_carry_their_sizes(tmp_path: Path):
    """In a batch as in a folder that is followed."""
    source = write(tmp_path / "a.avro", [record(0), record(1, b"{"), record(2, b'{"a": 1}'), record(3)])
    expected = [(2, 1), (3, 8)]
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        decoded: Any = pipeline | ReadReadings(source, READINGS)
        _ = decoded.rejected | WriteRows(str(tmp_path / "rejects"), "jsonl", REJECTS)
    told = read_rows(tmp_path / "rejects", REJECTS).to_pylist()
    assert [(one["position"], one["size"]) for one in told] == expected
    feed = ArrivingFiles(decoder_of(source, READINGS), (str(tmp_path / "*.avro"),))
    piece = feed.reader(0, "").read()
    assert piece is not None
    found = [one for batch in piece.rejects for one in batch.to_pylist()]
    assert sorted((one["position"], one["size"]) for one in found) == expected


def test_the_time_may_be_that_of_arrival_and_the_group_a_level_of_the_topic(tmp_path: Path):
    places = {"each": "payload", "series": "topic[1]", "time": "stamp", "value": "power"} | {
        "attributes": {"site": "topic[0]"}
    }
    source = write(tmp_path / "a.avro", [record(1)])
    assert decode(source, Readings.model_validate(places), group="site") == ([("m1", NOON_US, 0.25, "site")], [])


def test_a_live_job_follows_a_folder_of_messages(tmp_path: Path):
    write(tmp_path / "a.avro", [record(0), record(1, b"{")])
    decoder = decoder_of(FileSource(avro=str(tmp_path / "*.avro")), READINGS)
    assert isinstance(pickle.loads(pickle.dumps(decoder)), MessageFileDecoder)
    reader = ArrivingFiles(decoder, (str(tmp_path / "*.avro"),)).reader(0, BEGIN)
    piece = reader.read()
    assert piece is not None
    assert [one for batch in piece.batches for one in plain(batch)] == [row(0)]
    assert sum(piece.rejected.values()) == 1
    write(tmp_path / "b.avro", [record(2)])
    later = reader.read()
    assert later is not None
    assert [one for batch in later.batches for one in plain(batch)] == [row(2)]
    reader.close()


STAMP: Any = {"type": "long", "logicalType": "timestamp-millis"}
FLAGGED = avro_record(
    "Message",
    topic=["null", "string"],
    payload=["null", "bytes"],
    received=["null", STAMP],
    dup=["null", "boolean"],
    retain="boolean",
)


@pytest.mark.parametrize("held", [{"dup": True}, {"retain": True}, {"received": 2**62}, {"received": None}])
def test_a_message_without_a_time_of_receipt_has_no_time_of_arrival(tmp_path: Path, held: dict[str, Any]):
    records = [{"dup": None, "retain": False} | record(1) | {"received": NOON_MS} | one for one in ({}, held)]
    arrived = READINGS.model_validate(READINGS.model_dump(mode="json") | {"time": "stamp"})
    found, rejects = decode(write(tmp_path / "a.avro", records, FLAGGED), arrived)
    assert (found, rejects) == ([("m1", NOON_US, 0.25)], [(2, "unparsable-time")])


@pytest.mark.parametrize(
    "other", [{"topic": "long"}, {"payload": "double"}, {"received": ["null", STAMP, "string"]}, {"dup": "int"}]
)
def test_a_file_whose_columns_are_of_other_types_is_refused(tmp_path: Path, other: dict[str, Any]):
    kinds = {"topic": "string", "payload": "bytes", "received": STAMP, "dup": "boolean"} | other
    with pytest.raises(SettingsError, match="a column of the messages is of another type"):
        decode(write(tmp_path / "a.avro", [], avro_record("Message", **kinds)), READINGS)
