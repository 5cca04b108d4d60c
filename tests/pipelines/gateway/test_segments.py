"""Segments: whole blocks survive whatever happens behind them."""

from __future__ import annotations

import io
from pathlib import Path

import fastavro
import pytest

from quiltstream.pipelines.gateway import Message
from quiltstream.pipelines.gateway.delivery import Segment, left_over, recover, segment_name, whole_blocks

from ...present import present
from .delivery_contract import message, number_of


def open_segment(folder: Path, blocks: int = 3) -> Path:
    segment = Segment(folder, 1_700_000_000_123_456)
    for block in range(blocks):
        segment.add([message(block * 10 + number) for number in range(10)])
    segment.abandon()
    return segment.path


def numbers(path: Path) -> list[int]:
    found: list[int] = []
    for record in fastavro.reader(io.BytesIO(path.read_bytes())):
        assert isinstance(record, dict)
        found.append(number_of(record["payload"]))
    return found


def test_a_segment_has_its_name_only_when_it_is_sealed(tmp_path: Path) -> None:
    segment = Segment(tmp_path, 1_700_000_000_123_456)
    segment.add([Message("ä/b", b"\x00\xff", 5, dup=True, retain=True, content_type="application/json")])
    assert not list(tmp_path.glob("*.avro"))
    path = segment.seal()
    assert path.name.startswith("20231114T221320.123456Z-")
    assert list(tmp_path.iterdir()) == [path]
    (record,) = fastavro.reader(io.BytesIO(path.read_bytes()), return_record_name=False)
    assert isinstance(record, dict)
    assert {name: record[name] for name in ("topic", "payload", "dup", "retain", "content_type")} == {
        "topic": "ä/b",
        "payload": b"\x00\xff",
        "dup": True,
        "retain": True,
        "content_type": "application/json",
    }
    assert record["received"].timestamp() == pytest.approx(5e-6)


def test_a_truncated_segment_keeps_exactly_its_complete_blocks(tmp_path: Path) -> None:
    path = open_segment(tmp_path)
    data = path.read_bytes()
    with path.open("rb") as file:
        ends = [file.tell() for _ in fastavro.block_reader(file)]
    assert len(ends) == 3
    for cut in range(0, len(data), 7):
        path.write_bytes(data[:cut])
        whole = sum(end <= cut for end in ends)
        assert whole_blocks(path) == (10 * whole, ends[whole - 1] if whole else 0)


@pytest.mark.parametrize("junk", [b"\0" * 100, b"\xff" * 100, b"\x02\x10abc", bytes(range(256)) * 4])
def test_bytes_after_the_last_complete_block_are_truncated(tmp_path: Path, junk: bytes) -> None:
    path = open_segment(tmp_path)
    path.write_bytes(path.read_bytes() + junk)
    sealed = present(recover(path))
    assert numbers(sealed) == list(range(30))
    assert list(tmp_path.iterdir()) == [sealed]


def test_blocks_after_a_known_size_are_truncated_even_if_complete(tmp_path: Path) -> None:
    segment = Segment(tmp_path, 1)
    segment.add([message(1)])
    known = segment.size
    segment.add([message(2)])
    segment.abandon()
    assert numbers(present(recover(segment.path, known))) == [1]


@pytest.mark.parametrize("data", [b"", b"Obj\x01", b"nothing of ours"])
def test_a_segment_without_a_message_is_removed(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / f".{segment_name(1)}.open"
    path.write_bytes(data)
    assert recover(path) is None
    assert not list(tmp_path.iterdir())


def test_only_segments_are_recovered_as_left_over(tmp_path: Path) -> None:
    path = open_segment(tmp_path)
    for other in (".gateway.lock", "x.avro", ".x.part", "notes.txt"):
        (tmp_path / other).write_text("x", encoding="ascii")
    assert left_over(tmp_path) == [path]
