"""Avro files: blocks of bounded memory, columns by their logical types, and schemas that can be read."""

from __future__ import annotations

import bz2
import io
import zlib
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quiltstream.schemas.readings import RejectReason
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.connectors import FileSource
from quiltstream.schemas.settings.readings import Readings
from quiltstream.transforms.formats.avro import MOST_BYTES
from quiltstream.transforms.formats.paths import SourceFileError
from quiltstream.transforms.sources.arriving_files import ArrivingFiles
from quiltstream.transforms.sources.contract import BEGIN
from quiltstream.transforms.sources.files import FileDecoder

from ...forked import forker
from .decoding import READINGS, avro_record, decode

T0 = 1356998400_000_000
SYNC = b"quiltstream-sync"
STAMP: Any = {"type": "long", "logicalType": "timestamp-micros"}


def long(number: int) -> bytes:
    number = number << 1 if number >= 0 else ((-number) << 1) - 1
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(found) + bytes([number])


def record_of(*, after: Any, before: Any = None) -> dict[str, Any]:
    fields = [] if before is None else [{"name": "before", "type": before}]
    fields += [{"name": "id", "type": "string"}, {"name": "ts", "type": STAMP}, {"name": "kwh", "type": "double"}]
    return {"type": "record", "name": "site.R", "fields": [*fields, {"name": "after", "type": after}]}


def row(name: str) -> bytes:
    stream = io.BytesIO()
    schema = record_of(after="null")
    fastavro.schemaless_writer(stream, schema, {"id": name, "ts": T0, "kwh": 1.5, "after": None})
    return stream.getvalue()


def container(schema: Any, *blocks: list[bytes]) -> bytes:
    stream = io.BytesIO()
    fastavro.writer(stream, schema, [], sync_marker=SYNC)
    parts = [stream.getvalue()]
    for rows in blocks:
        body = b"".join(rows)
        parts += [long(len(rows)), long(len(body)), body, SYNC]
    return b"".join(parts)


TREE = avro_record("Tree", on=["null", "Tree"], n="int")
NOTHING = avro_record("Nothing")


def read_live(path: Path) -> Any:
    piece = ArrivingFiles(FileDecoder("avro", ",", READINGS), (str(path),)).reader(0, BEGIN).read()
    assert piece is not None
    return piece


def doubling(levels: int, last: Any) -> Any:
    inner = {"type": "record", "name": f"D{levels}", "fields": [{"name": "x", "type": last}]}
    for level in reversed(range(levels)):
        both = [{"name": "a", "type": inner}, {"name": "b", "type": f"D{level + 1}"}]
        inner = {"type": "record", "name": f"D{level}", "fields": both}
    return inner


@pytest.mark.parametrize(
    "kind",
    [
        TREE,
        {"type": "array", "items": NOTHING},
        {"type": "array", "items": "null"},
        {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}},
        avro_record("Ring", on="Ring"),
        doubling(20, "int"),
    ],
)
def test_a_schema_whose_records_have_no_bounded_work_is_refused(tmp_path: Path, kind: Any) -> None:
    path = tmp_path / "x.avro"
    path.write_bytes(container(record_of(after=kind), [row("a") + bytes(2)]))
    with pytest.raises(SourceFileError, match="has a schema that is not read: a type within itself"):
        decode(FileSource(avro=str(path)))
    piece = read_live(path)
    assert piece.rejected == {RejectReason.DAMAGED_SOURCE: 1}
    assert piece.lost_us is not None


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ({"type": "array", "items": ["null"]}, 1),
        ({"type": "map", "values": "null"}, 1),
        (doubling(10, "int"), 1 << 10),
        (["null", {"type": "array", "items": {"type": "array", "items": "string"}}], 1),
    ],
)
def test_a_schema_bounded_by_the_size_of_its_records_is_read(tmp_path: Path, kind: Any, size: int) -> None:
    source = written(tmp_path, container(record_of(after=kind), [row("a") + bytes(size)]))
    assert decode(source) == ([("a", T0, 1.5)], [])


def nested(levels: int) -> bytes:
    text = b'{"type":"array","items":' * levels + b'"int"' + b"}" * levels
    whole = b'{"type":"record","name":"R","fields":[{"name":"id","type":"string"},{"name":"more","type":%s}]}' % text
    return b"Obj\x01" + long(1) + long(11) + b"avro.schema" + long(len(whole)) + whole + bytes(1) + SYNC


@pytest.mark.parametrize("levels", [198, 5_000, 1_000_000])
def test_a_schema_of_very_many_levels_is_not_parsed(tmp_path: Path, levels: int) -> None:
    path = tmp_path / "x.avro"
    path.write_bytes(nested(levels))
    with pytest.raises(ValueError, match="not a whole Avro file \\(ValueError at its header\\)"):
        decode(FileSource(avro=str(path)))
    piece = read_live(path)
    assert piece.rejected == {RejectReason.DAMAGED_SOURCE: 1}
    assert piece.lost_us is not None


def test_a_header_without_an_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.avro"
    path.write_bytes(b"Obj\x01" + long(1 << 40) + (long(1) + b"k" + long(1 << 20) + bytes(1 << 20)) * 20)
    with pytest.raises(ValueError, match="not a whole Avro file \\(ValueError at its header"):
        decode(FileSource(avro=str(path)))


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def zstandard(data: bytes) -> bytes:
    return pa.compress(data, codec="zstd", asbytes=True)


def snappy(data: bytes) -> bytes:
    return pa.compress(data, codec="snappy", asbytes=True) + zlib.crc32(data).to_bytes(4, "big")


CODECS: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": deflated,
    "bzip2": bz2.compress,
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


def test_blocks_of_an_unsupported_codec_are_refused_with_advice(tmp_path: Path):
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
def test_a_block_with_a_wrong_count_damages_its_file(tmp_path: Path, codec: str, blocks: list[tuple[int, bytes]]):
    with pytest.raises(SourceFileError, match="not a whole Avro file"):
        decode(written(tmp_path, packed(codec, record_of(after="null"), *blocks)))


def test_a_truncated_block_or_a_missing_sync_marker_damages_its_file(tmp_path: Path):
    for codec in CODECS:
        whole = packed(codec, record_of(after="null"), (2, row("a") + row("b")))
        for damaged in (whole[:-20], whole[:-1], whole[:-1] + b"x"):
            with pytest.raises(SourceFileError, match="not a whole Avro file"):
                decode(written(tmp_path, damaged))


def test_an_empty_block_is_skipped(tmp_path: Path):
    source = written(tmp_path, packed("deflate", record_of(after="null"), (0, b""), (1, row("a"))))
    assert decode(source)[0] == [("a", T0, 1.5)]


def repeated(text: str, rows: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([text]))


@pytest.mark.night
@pytest.mark.parametrize("column", ["id", "ts", "kwh"])
def test_a_long_text_in_every_row_of_a_parquet_file_is_in_memory_once(tmp_path: Path, column: str):
    rows = 100_000
    plain = {"id": repeated("a", rows), "ts": repeated("2026-01-05T12:00Z", rows), "kwh": repeated("1.5", rows)}
    table = pa.table(plain | {column: repeated("7" * 1_000_000, rows)})
    path = tmp_path / "x.parquet"
    pq.write_table(table, path, compression="zstd", dictionary_pagesize_limit=1 << 30, store_schema=False)
    assert path.stat().st_size < 100_000
    # a number is never rejected for its size, and a name is
    found = [str(rows), "0"] if column == "kwh" else ["0", str(rows)]
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


@pytest.mark.night
@pytest.mark.parametrize("codec", ["deflate", "zstandard", "snappy"])
def test_a_block_unpacking_to_gigabytes_is_read_in_bounded_memory(tmp_path: Path, codec: str):
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


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("more", [0, 1, 5_000_000])
def test_blocks_of_every_codec_have_the_same_limit(
    tmp_path: Path, codec: str, more: int, monkeypatch: pytest.MonkeyPatch
):
    rows = row("a") * 1_000
    monkeypatch.setattr("quiltstream.transforms.formats.avro.MOST_BYTES", len(rows))
    source = written(tmp_path, packed(codec, record_of(after="null"), (1_000, rows + bytes(more))))
    if not more:
        assert len(decode(source)[0]) == 1_000
    else:
        with pytest.raises(SourceFileError, match=f"a block of more than {len(rows)} bytes after row 0"):
            decode(source)


def test_a_block_of_very_many_empty_records_is_refused(tmp_path: Path):
    nothing = {
        "type": "record",
        "name": "R",
        "fields": [{"name": name, "type": "null"} for name in ("id", "ts", "kwh")],
    }
    path = tmp_path / "x.avro"
    path.write_bytes(packed("null", nothing, (2**33, b"")))
    made = {"series": "series", "time": "time", "value": "value"}
    select = "select 'a' as series, 1704067200 as time, 1 as value from files"
    assert read_in_little(path, "avro", select=select, **made)[0] == "SourceFileError"


@pytest.mark.night
def test_rows_of_a_large_block_are_emitted_before_all_of_them_are_read(tmp_path: Path):
    """40 MB of records in one block, packed into less than 1 MB; as objects they are ten times as many."""
    count = 2_000_000
    path = tmp_path / "x.avro"
    path.write_bytes(packed("deflate", record_of(after="null"), (count, row("a") * count)))
    assert path.stat().st_size < 1_000_000
    assert read_in_little(path, "avro")[:3] == ["whole", str(count), "0"]


BOOLEANS = {"type": "array", "items": "boolean"}
RECORDS = {
    "type": "array",
    "items": avro_record("I", **{f"n{at}": "null" for at in range(100)}, on="boolean"),
}


@pytest.mark.night
@pytest.mark.parametrize(("kind", "count"), [(BOOLEANS, 6_000_000), (RECORDS, 200_000)], ids=["booleans", "records"])
def test_values_in_an_unused_column_use_no_memory(tmp_path: Path, kind: Any, count: int):
    path = tmp_path / "x.avro"
    more = long(count) + bytes(count) + long(0)
    path.write_bytes(packed("deflate", record_of(after=kind), (2, (row("a") + more) * 2)))
    assert read_in_little(path, "avro")[:3] == ["whole", "2", "0"]


def test_a_type_that_an_unused_array_defines_may_be_named_behind_it(tmp_path: Path):
    name = {"type": "enum", "name": "site.Name", "symbols": ["a", "b"]}
    fields: Any = {"first": {"type": "array", "items": name}, "id": "string", "ts": STAMP, "kind": "site.Name"}
    schema: Any = avro_record("R", **fields, kwh="double", last={"type": "map", "values": ["null", "site.Name"]})
    row = {"first": ["b", "a"], "id": "a", "ts": T0, "kind": "b", "kwh": 3.0, "last": {"x": "b", "y": None}}
    rows = [row] * 2
    stream = io.BytesIO()
    fastavro.writer(stream, schema, rows)
    path = tmp_path / "x.avro"
    path.write_bytes(stream.getvalue())
    assert decode(FileSource(avro=str(path))) == ([("a", T0, 3.0)] * 2, [])


DATE: Any = {"type": "int", "logicalType": "date"}
CLOCK: Any = {"type": "int", "logicalType": "time-millis"}
DECIMAL: Any = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}


def write(path: Path, fields: dict[str, Any], rows: list[dict[str, Any]], written: dict[str, Any] | None = None) -> str:
    """A file that says to have fields of some types, though it may have been written with others."""

    def whole(types: dict[str, Any], held: list[dict[str, Any]]) -> bytes:
        schema = {"type": "record", "name": "R", "fields": [{"name": one, "type": types[one]} for one in types]}
        stream = io.BytesIO()
        fastavro.writer(stream, schema, held, sync_marker=SYNC)
        return stream.getvalue()

    written = fields if written is None else fields | written
    path.write_bytes(whole(fields, []) + whole(written, rows)[len(whole(written, [])) :])
    return str(path)


PLAIN: dict[str, Any] = {"id": "string", "ts": STAMP, "kwh": "double"}


def held_row(**held: Any) -> dict[str, Any]:
    return {"id": "a", "ts": T0, "kwh": 1.5, **held}


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (DATE, 15_706, 2**31 - 1),
        (CLOCK, 5, -(2**31)),
        ({"type": "long", "logicalType": "time-micros"}, 5, 2**62),
        (STAMP, T0, 2**62),
        (DECIMAL, b"\x05", b"\x7f" * 5_000),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2**40, "scale": 2**40}, b"\x05", b"\x7f"),
    ],
)
def test_values_in_an_unused_column_change_nothing(tmp_path, kind, good, bad):
    rows = [held_row(other=good), held_row(id="b", other=bad), held_row(id="c", other=good)]
    path = write(tmp_path / "x.avro", PLAIN | {"other": kind}, rows)
    found, rejects = decode(FileSource(avro=path))
    assert (found, rejects) == ([(name, T0, 1.5) for name in "abc"], [])


@pytest.mark.parametrize(
    ("column", "kind", "good", "bad", "reason"),
    [
        ("kwh", DECIMAL, b"\x00\x96", b"\x7f" * 5_000, "malformed-row"),
        ("ts", DATE, 15_706, 2**31 - 1, "unparsable-time"),
        ("ts", DATE, 15_706, -(2**31), "unparsable-time"),
    ],
)
def test_a_meaningless_value_loses_only_its_row(tmp_path, column, kind, good, bad, reason):
    rows = [held_row(**{column: one}) for one in (good, bad, good)]
    path = write(tmp_path / "x.avro", PLAIN | {column: kind}, rows)
    assert decode(FileSource(avro=path)) == ([("a", T0, 1.5)] * 2, [(2, reason)])


@pytest.mark.parametrize(("column", "rejected"), [("id", [(2, "malformed-row")]), ("other", [])])
def test_invalid_utf8_text_loses_its_row_only_in_a_used_column(tmp_path, column, rejected):
    rows = [
        held_row(other=b"x", id=b"a"),
        held_row(other=b"x", id=b"b") | {column: b"\xff\xfe"},
        held_row(other=b"", id=b"c"),
    ]
    path = write(tmp_path / "x.avro", PLAIN | {"other": "string"}, rows, {"id": "bytes", "other": "bytes"})
    found, rejects = decode(FileSource(avro=path))
    assert rejects == rejected
    assert [one for one, _, _ in found] == (["a", "c"] if rejected else ["a", "b", "c"])


def test_dates_and_times_of_day_are_one_event_time_and_none_out_of_range(tmp_path):
    fields = {"id": "string", "day": DATE, "at": CLOCK, "kwh": "double"}
    held = [(15_706, 3_600_000), (15_706, 2**31 - 1), (2**31 - 1, 3_600_000), (15_706, -1)]
    rows = [{"id": "a", "day": day, "at": at, "kwh": 1.5} for day, at in held]
    path = write(tmp_path / "x.avro", fields, rows)
    found, rejects = decode(FileSource(avro=path), Readings(series="id", time=["day", "at"], value="kwh"))
    assert found == [("a", T0 + 3_600_000_000, 1.5)]
    assert rejects == [(number, "unparsable-time") for number in (2, 3, 4)]


@pytest.mark.parametrize("kind", [["string", DATE], [STAMP, "string"], ["null", "double", DECIMAL]])
def test_a_column_whose_types_only_their_meaning_tells_apart_is_refused(tmp_path, kind):
    path = write(tmp_path / "x.avro", PLAIN | {"ts": kind}, [])
    with pytest.raises(SettingsError, match=r"readings\.time: the column 'ts' of .* cannot be read as a time"):
        decode(FileSource(avro=path))


def test_decimals_equal_those_of_the_library(tmp_path):
    held = [Decimal("1.25"), Decimal("-0.01"), Decimal("0.00"), Decimal("1234567.50")]
    for number, kind in enumerate([DECIMAL, {**DECIMAL, "type": "fixed", "name": "F", "size": 8}]):
        path = write(tmp_path / f"{number}.avro", PLAIN | {"kwh": kind}, [held_row(kwh=one) for one in held])
        records: Any = list(fastavro.reader(io.BytesIO(Path(path).read_bytes())))
        assert [one["kwh"] for one in records] == held
        found, rejects = decode(FileSource(avro=path))
        assert (found, rejects) == (sorted(("a", T0, float(one)) for one in held), [])


@pytest.mark.parametrize("kind", ["float", {"type": "float"}, ["null", "float"]])
def test_floats_of_32_bits_are_the_decimals_that_they_stand_for(tmp_path, kind):
    held = [-523.397, 0.1, 0.35]
    path = write(tmp_path / "x.avro", PLAIN | {"kwh": kind}, [held_row(kwh=one) for one in held])
    assert decode(FileSource(avro=path)) == ([("a", T0, one) for one in held], [])


def test_a_message_with_an_invalid_utf8_topic_is_a_reject_at_its_row(tmp_path):
    fields: dict[str, Any] = {"topic": "string", "payload": "bytes", "received": STAMP}
    rows = [{"topic": one, "payload": b'{"power": 2}', "received": T0} for one in (b"site/m1/up", b"site/\xff/up")]
    path = write(tmp_path / "x.avro", fields, rows, {"topic": "bytes"})
    readings = Readings.model_validate({"each": "payload", "series": "topic[1]", "time": "stamp", "value": "power"})
    assert decode(FileSource(avro=path), readings) == ([("m1", T0, 2.0)], [(2, "malformed-row")])


def test_windows_lack_readings_for_damaged_bytes_and_not_for_bad_records(tmp_path):
    decoder = FileDecoder("avro", ",", READINGS)
    rows = [held_row(kwh=one) for one in (b"\x00\x96", b"\x7f" * 5_000)]
    path = Path(write(tmp_path / "1.avro", PLAIN | {"kwh": DECIMAL}, rows))
    first = ArrivingFiles(decoder, (str(tmp_path / "*.avro"),)).reader(0, BEGIN).read()
    assert first is not None
    assert (first.rows, first.lost_us, first.rejected) == (1, None, {RejectReason.MALFORMED_ROW: 1})
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(SourceFileError, match="not a whole Avro file"):
        decode(FileSource(avro=str(path)))
    damaged = ArrivingFiles(decoder, (str(path),)).reader(0, BEGIN).read()
    assert damaged is not None
    assert damaged.lost_us is not None
