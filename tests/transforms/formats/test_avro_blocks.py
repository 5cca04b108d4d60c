"""Files that stand for more than they hold: bounded memory, bounded time, and no reading lost in silence."""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quiltstream.pipelines.commands.data_preview import look_at
from quiltstream.pipelines.errors import CommandError
from quiltstream.schemas.settings.connectors import FileSource
from quiltstream.transforms.formats.avro import MOST_BYTES, LargeBlockError, RecordBlocks
from quiltstream.transforms.formats.paths import SourceFileError

from ...forked import forker
from .decoding import decode
from .test_avro_shapes import SYNC, T0, long, record_of, row


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def xzipped(data: bytes) -> bytes:
    return lzma.compress(data, preset=1)


def zstandard(data: bytes) -> bytes:
    return pa.compress(data, codec="zstd", asbytes=True)


def snappy(data: bytes) -> bytes:
    return pa.compress(data, codec="snappy", asbytes=True) + zlib.crc32(data).to_bytes(4, "big")


CODECS: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": deflated,
    "bzip2": bz2.compress,
    "xz": xzipped,
    "zstandard": zstandard,
    "snappy": snappy,
}


def packed(codec: str, schema: Any, *blocks: tuple[int, bytes]) -> bytes:
    """A file with blocks of (number of records, their bytes)."""
    stream = io.BytesIO()
    fastavro.writer(stream, schema, [], sync_marker=SYNC)
    # the codec is written by hand, since not every library for it is here
    whole = stream.getvalue().replace(b"\x14avro.codec\x08null", b"\x14avro.codec" + long(len(codec)) + codec.encode())
    for count, data in blocks:
        body = CODECS.get(codec, bytes)(data)
        whole += long(count) + long(len(body)) + body + SYNC
    return whole


def written(tmp_path: Path, data: bytes) -> FileSource:
    (tmp_path / "x.avro").write_bytes(data)
    return FileSource(avro=str(tmp_path / "x.avro"))


@pytest.mark.parametrize("codec", CODECS)
def test_blocks_of_every_codec_are_read(tmp_path: Path, codec: str):
    source = written(tmp_path, packed(codec, record_of(after="null"), (2, row("a") + row("b")), (1, row("c"))))
    assert decode(source) == ([(name, T0, 1.5) for name in "abc"], [])


def test_blocks_of_another_codec_are_refused_in_words(tmp_path: Path):
    with pytest.raises(SourceFileError, match="a codec that is not read; write it with deflate"):
        decode(written(tmp_path, packed("lz4", record_of(after="null"), (1, row("a")))))


DAMAGED = {
    "a negative number of records": [(1, row("a")), (-1, row("b")), (1, row("c"))],
    "fewer than it holds": [(1, row("a") + row("b"))],
    "more than it holds": [(2, row("a"))],
    "far more than it holds": [(2**33, row("a"))],
    "bytes and no record": [(0, row("a"))],
}


@pytest.mark.parametrize("blocks", DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_a_block_that_claims_other_than_it_holds_damages_its_file(
    tmp_path: Path, codec: str, blocks: list[tuple[int, bytes]]
):
    with pytest.raises(SourceFileError, match="not a whole Avro file"):
        decode(written(tmp_path, packed(codec, record_of(after="null"), *blocks)))


def test_a_block_that_is_cut_short_or_lacks_its_mark_damages_its_file(tmp_path: Path):
    for codec in CODECS:
        whole = packed(codec, record_of(after="null"), (2, row("a") + row("b")))
        for damaged in (whole[:-20], whole[:-1], whole[:-1] + b"x"):
            with pytest.raises(SourceFileError, match="not a whole Avro file"):
                decode(written(tmp_path, damaged))


def test_an_empty_block_is_none(tmp_path: Path):
    source = written(tmp_path, packed("deflate", record_of(after="null"), (0, b""), (1, row("a"))))
    assert decode(source)[0] == [("a", T0, 1.5)]


def repeated(text: str, rows: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([text]))


@pytest.mark.parametrize("column", ["id", "ts", "kwh"])
def test_a_long_text_in_every_row_of_a_parquet_file_is_in_memory_once(tmp_path: Path, column: str):
    rows = 100_000
    plain = {"id": repeated("a", rows), "ts": repeated("2026-01-05T12:00Z", rows), "kwh": repeated("1.5", rows)}
    table = pa.table(plain | {column: repeated("7" * 1_000_000, rows)})
    path = tmp_path / "x.parquet"
    pq.write_table(table, path, compression="zstd", dictionary_pagesize_limit=1 << 30, store_schema=False)
    assert path.stat().st_size < 100_000
    # a number is never rejected for its size
    found = ["0", str(rows)] if column == "ts" else [str(rows), "0"]
    assert read_in_little(path, "parquet")[:3] == ["whole", *found]
    if column == "ts":
        found = read_in_little(path, "parquet", time=["ts", "id"])
        assert found[:3] == ["whole", "0", str(rows)]


#: Reads a file within so much memory beyond what the imports take.
LIMITED = """
import resource, sys
import pyarrow as pa
from quiltstream.schemas.settings.job import Readings
from quiltstream.transforms.sources.files import FileDecoder
from quiltstream.transforms.formats.times import TimeReader
readings = Readings.model_validate({"series": "id", "time": "ts", "value": "kwh"} | eval(sys.argv[3]))
decoder = FileDecoder(sys.argv[2], ",", readings)
rows = decoder.rows()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (3 << 28),) * 2)
resource.setrlimit(resource.RLIMIT_CPU, (60, 65))
found = rejected = 0
try:
    for task in decoder.tasks(sys.argv[1]):
        for raw in decoder.raw_rows(task):
            decoded = rows.decode(raw)
            found += 0 if decoded.readings is None else decoded.readings.num_rows
            rejected += sum(len(one.positions) for one in decoded.rejects)
    print("whole", found, rejected)
except ValueError as error:
    print(type(error).__name__, found, rejected, str(error).partition(";")[0])
"""


def read_in_little(path: Path, kind: str, **changes: Any) -> list[str]:
    done = forker().run(LIMITED, str(path), kind, repr(changes))
    assert done.returncode == 0, done.stderr[-2_000:]
    return done.stdout.split(maxsplit=3)


@pytest.mark.parametrize("codec", ["deflate", "zstandard", "snappy"])
def test_a_block_that_unpacks_to_gigabytes_takes_no_gigabyte(tmp_path: Path, codec: str):
    size = 1 << 30
    if codec == "deflate":
        packer = zlib.compressobj(1, zlib.DEFLATED, -15)
        body = b"".join(packer.compress(bytes(1 << 26)) for _ in range(size >> 26)) + packer.flush()
    elif codec == "zstandard":
        # frames one behind another are one text
        body = zstandard(bytes(1 << 26)) * (size >> 26)
    else:
        body = b"\xff\xff\xff\xff\x0f" + bytes(100)
    path = tmp_path / "x.avro"
    first = packed(codec, record_of(after="null"), (1, row("a")))
    path.write_bytes(first + long(1) + long(len(body)) + body + SYNC)
    kind, found, _, text = read_in_little(path, "avro")
    assert (kind, found) == ("SourceFileError", "0")
    assert f"a block of more than {MOST_BYTES} bytes after row 1" in text


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz", "zstandard", "snappy"])
def test_blocks_of_every_codec_have_the_same_limit(codec: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("quiltstream.transforms.formats.avro.MOST_BYTES", 100_000)
    for size, kind in ((100_000, None), (100_001, LargeBlockError), (5_000_000, LargeBlockError)):
        body = CODECS[codec](bytes(size))
        blocks = RecordBlocks(io.BytesIO(long(5) + long(len(body)) + body + SYNC), codec, SYNC, 1)
        if kind is None:
            assert [len(block.data) for block in blocks] == [size]
        else:
            with pytest.raises(kind):
                list(blocks)


def test_a_file_that_is_looked_at_has_the_same_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "x.avro"
    path.write_bytes(packed("deflate", record_of(after="null"), (500, row("a") * 500)))
    monkeypatch.setattr("quiltstream.transforms.formats.avro.MOST_BYTES", 1_000)
    with pytest.raises(CommandError, match="cannot be read as avro"):
        look_at(path)


def test_empty_records_are_no_rows_however_many_a_block_claims(tmp_path: Path):
    nothing = {
        "type": "record",
        "name": "R",
        "fields": [{"name": name, "type": "null"} for name in ("id", "ts", "kwh")],
    }
    path = tmp_path / "x.avro"
    path.write_bytes(packed("null", nothing, (2**33, b"")))
    assert read_in_little(path, "avro")[0] == "SourceFileError"


def test_rows_of_a_large_block_are_passed_on_before_all_of_them_are_read(tmp_path: Path):
    """40 MB of records in one block, packed into less than 1 MB; as objects they are ten times as many."""
    count = 2_000_000
    path = tmp_path / "x.avro"
    path.write_bytes(packed("deflate", record_of(after="null"), (count, row("a") * count)))
    assert path.stat().st_size < 1_000_000
    assert read_in_little(path, "avro")[:3] == ["whole", str(count), "0"]


BOOLEANS = {"type": "array", "items": "boolean"}
RECORDS = {
    "type": "array",
    "items": {"type": "record", "name": "I", "fields": [{"name": "on", "type": "boolean"}]},
}


@pytest.mark.parametrize("kind", [BOOLEANS, RECORDS], ids=["booleans", "records"])
def test_what_stands_in_a_column_that_nobody_asked_for_takes_no_memory(tmp_path: Path, kind: Any):
    count = 6_000_000
    path = tmp_path / "x.avro"
    more = long(count) + bytes(count) + long(0)
    path.write_bytes(packed("deflate", record_of(after=kind), (2, (row("a") + more) * 2)))
    assert read_in_little(path, "avro")[:3] == ["whole", "2", "0"]
