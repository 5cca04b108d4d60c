"""Avro files whose schema lets a few bytes keep a reader busy for ever, or end its process: they do neither."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.schemas.readings import RejectReason
from quiltstream.schemas.settings.connectors import FileSource
from quiltstream.transforms.formats.avro import Shapes, bare, check_header
from quiltstream.transforms.formats.paths import SourceFileError
from quiltstream.transforms.payloads.avro import is_bounded
from quiltstream.transforms.sources.arriving_files import ArrivingFiles
from quiltstream.transforms.sources.contract import BEGIN
from quiltstream.transforms.sources.files import FileDecoder

from ...forked import forker
from .decoding import READINGS, decode

T0 = 1356998400_000_000
SYNC = b"quiltstream-sync"
STAMP: Any = {"type": "long", "logicalType": "timestamp-micros"}


def long(number: int) -> bytes:
    """A number as Avro writes it."""
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


def holds(name: str, *fields: tuple[str, Any]) -> Any:
    """A record."""
    return {"type": "record", "name": name, "fields": [{"name": one, "type": kind} for one, kind in fields]}


TREE = holds("Tree", ("on", ["null", "Tree"]), ("n", "int"))
CHAIN = holds("Chain", ("n", "int"), ("on", ["null", "Chain"]))
LISTS = holds("Lists", ("on", {"type": "array", "items": "Lists"}))
MAPS = holds("Maps", ("on", {"type": "map", "values": "Maps"}))
NOTHING = holds("Nothing")
DEEP = 40_000
BOMBS: list[tuple[Any, bytes, bytes]] = [
    (TREE, bytes(2), long(1) * DEEP + long(0) + long(5) * (DEEP + 1)),
    (CHAIN, bytes(2), (long(7) + long(1)) * DEEP + long(7) + long(0)),
    (LISTS, bytes(1), long(1) * DEEP + bytes(1) + bytes(1) * DEEP),
    (MAPS, bytes(1), (long(1) + long(1) + b"k") * DEEP + bytes(1) + bytes(1) * DEEP),
    ({"type": "array", "items": "null"}, bytes(1), long(2**62) + bytes(1)),
    ({"type": "array", "items": NOTHING}, bytes(1), long(2**62) + long(-(2**40)) + long(0) + bytes(1)),
]
IDS = ["tree", "chain", "lists", "maps", "nulls", "nothings"]


@pytest.mark.assures("live", "A column of Avro that no setting names costs no row, however deep it is")
@pytest.mark.parametrize(("kind", "plain", "bomb"), BOMBS, ids=IDS)
@pytest.mark.parametrize("place", ["before", "after"])
def test_what_stands_in_a_column_that_nobody_asked_for_costs_no_row(
    tmp_path: Path, place: str, kind: Any, plain: bytes, bomb: bytes
) -> None:
    held = [(name, bomb if name == "b" else plain) for name in "abc"]
    rows = [more + row(name) if place == "before" else row(name) + more for name, more in held]
    schema = record_of(before=kind, after="null") if place == "before" else record_of(after=kind)
    path = tmp_path / "x.avro"
    path.write_bytes(container(schema, rows[:2], rows[2:]))
    assert decode(FileSource(avro=str(path))) == ([(name, T0, 1.5) for name in "abc"], [])


BY_ITSELF = """
import io, sys
from quiltstream.transforms.formats.avro import avro_rows
from quiltstream.transforms.formats.rows import Columns
with open(sys.argv[1], "rb") as stream:
    rows = list(avro_rows(stream, "x", Columns("id", ("ts",), "kwh"), 100))
print([one for raw in rows for one in raw.columns["id"].to_pylist()])
"""


def test_a_process_that_reads_a_deep_record_is_not_ended_by_it(tmp_path: Path) -> None:
    """Read by the library, this record overflows the stack of its process."""
    (tmp_path / "x.avro").write_bytes(container(record_of(after=CHAIN), [row("a") + BOMBS[1][2], row("b") + bytes(2)]))
    done = forker().run(BY_ITSELF, str(tmp_path / "x.avro"))
    assert (done.returncode, done.stdout.strip()) == (0, "['a', 'b']"), done.stderr


def read_live(path: Path) -> Any:
    piece = ArrivingFiles(FileDecoder("avro", ",", READINGS), (str(path),)).reader(0, BEGIN).read()
    assert piece is not None
    return piece


@pytest.mark.assures(
    "live",
    "Rows of Avro that cannot be found behind a value damage their file, and the rows of the windows say so",
)
def test_a_value_behind_which_no_row_can_be_found_damages_its_file_and_is_said(tmp_path: Path) -> None:
    path = tmp_path / "x.avro"
    deep = 200_000
    bomb = long(1) * deep + long(0) + long(5) * (deep + 1)
    schema = record_of(after=TREE)
    path.write_bytes(container(schema, [row("a") + bytes(2)], [row("b") + bomb, row("c") + bytes(2)]))
    with pytest.raises(SourceFileError, match="not a whole Avro file"):
        decode(FileSource(avro=str(path)))
    piece = read_live(path)
    assert piece.rejected == {RejectReason.DAMAGED_SOURCE: 1}
    assert piece.lost_us is not None


def test_a_type_that_has_no_end_and_no_bytes_is_no_way_to_stay_for_ever(tmp_path: Path) -> None:
    ring = {"type": "record", "name": "Ring", "fields": [{"name": "on", "type": "Ring"}]}
    path = tmp_path / "x.avro"
    path.write_bytes(container(record_of(after=ring), [row("a")]))
    with pytest.raises(SourceFileError, match="not a whole Avro file"):
        decode(FileSource(avro=str(path)))


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


def test_a_schema_of_many_levels_is() -> None:
    stream = io.BytesIO(nested(190))
    check_header(stream)
    assert stream.tell() == 0


def doubling(levels: int, last: Any) -> Any:
    """Each level holds the next one twice."""
    inner = {"type": "record", "name": f"D{levels}", "fields": [{"name": "x", "type": last}]}
    for level in reversed(range(levels)):
        both = [{"name": "a", "type": inner}, {"name": "b", "type": f"D{level + 1}"}]
        inner = {"type": "record", "name": f"D{level}", "fields": both}
    return inner


@pytest.mark.parametrize("last", ["null", "int", ["null", "int"]])
def test_a_small_schema_of_very_many_types_is_read_without_looking_at_each(tmp_path: Path, last: Any) -> None:
    kind = doubling(60, last)
    assert not is_bounded(kind)
    path = tmp_path / "x.avro"
    rows = [row(name) for name in "abc"]
    path.write_bytes(container(record_of(after=kind), rows))
    if last == "null":
        assert decode(FileSource(avro=str(path))) == ([(name, T0, 1.5) for name in "abc"], [])
    else:
        # so many values need more bytes than there are
        with pytest.raises(SourceFileError, match="not a whole Avro file"):
            decode(FileSource(avro=str(path)))


@pytest.mark.parametrize(
    ("kind", "plain"),
    [
        (TREE, False),
        ({"type": "array", "items": "null"}, False),
        ({"type": "array", "items": ["null"]}, True),
        ({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}, False),
        ({"type": "map", "values": "null"}, True),
        (doubling(10, "int"), True),
        (doubling(20, "int"), False),
        (["null", {"type": "array", "items": {"type": "array", "items": "string"}}], True),
    ],
)
def test_the_library_reads_what_the_size_of_a_record_bounds(kind: Any, plain: bool) -> None:
    schema = record_of(after=kind)
    assert Shapes(fastavro.parse_schema(bare(schema))).is_plain is plain
    assert is_bounded(schema) is plain


# Against the library: where it can read a record, both say the same and stand at the same place

VALUE: Any = {
    "type": "record",
    "name": "a.b.V",
    "fields": [
        {"name": "one", "type": ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]},
        {"name": "color", "type": {"type": "enum", "name": "Color", "symbols": ["red", "green"]}},
        {"name": "fix", "type": {"type": "fixed", "name": "Fix", "size": 3}},
        {"name": "again", "type": {"type": "array", "items": "Fix"}},
        {"name": "other", "type": ["null", "a.b.Color"]},
        {"name": "many", "type": {"type": "array", "items": ["null", "V"]}},
        {"name": "named", "type": {"type": "map", "values": ["string", "V"]}},
        {"name": "none", "type": {"type": "array", "items": "null"}},
    ],
}

LEAF = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, width=32),
    st.binary(max_size=5),
    st.text(max_size=5),
)


def value(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {
            "one": LEAF,
            "color": st.sampled_from(["red", "green"]),
            "fix": st.binary(min_size=3, max_size=3),
            "again": st.lists(st.binary(min_size=3, max_size=3), max_size=3),
            "other": st.sampled_from([None, "red", "green"]),
            "many": st.lists(st.none() | inner, max_size=3),
            "named": st.dictionaries(st.text(max_size=3), st.text(max_size=3) | inner, max_size=3),
            "none": st.lists(st.none(), max_size=3),
        }
    )


VALUES = st.recursive(value(st.nothing()), value, max_leaves=6)


@settings(max_examples=150, deadline=None)
@given(held=VALUES, cut=st.integers(1, 30))
def test_fields_are_those_that_the_library_reads_and_the_end_is_where_it_stops(held: dict[str, Any], cut: int) -> None:
    outer = {
        "type": "record",
        "name": "Outer",
        "fields": [
            {"name": "first", "type": VALUE},
            {"name": "wanted", "type": ["null", "double"]},
            {"name": "last", "type": ["int", "a.b.V"]},
        ],
    }
    schema = fastavro.parse_schema(outer)
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, {"first": held, "wanted": 2.5, "last": held})
    data = stream.getvalue()
    source = io.BytesIO(data + b"behind")
    read = Shapes(schema).fields(["wanted"])
    assert read(source) == {"wanted": 2.5}
    assert source.read() == b"behind"
    with pytest.raises(EOFError):
        read(io.BytesIO(data[: -min(cut, len(data))]))


def test_bytes_that_are_no_records_never_keep_it_or_end_it() -> None:
    """Random bytes, from a seed: each ends with a value or one of the two errors."""
    seed = 20
    draw = random.Random(seed)  # noqa: S311 - test data
    read = Shapes(fastavro.parse_schema(record_of(after=VALUE))).fields(["id", "kwh"])
    ends: set[str] = set()
    for _ in range(3_000):
        data = row("a") + bytes(draw.choice([0, 1, 2, 4, 14, 255, draw.randrange(256)]) for _ in range(60))
        try:
            read(io.BytesIO(data))
            ends.add("value")
        except (EOFError, ValueError) as error:
            ends.add(type(error).__name__)
    assert ends == {"value", "EOFError", "ValueError"}, seed
