"""What records of Avro hold damages no file: each row speaks for itself, and only bytes that are no records stop it."""

from __future__ import annotations

import io
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest

from quiltstream.schemas.readings import RejectReason
from quiltstream.schemas.settings.connectors import FileSource
from quiltstream.schemas.settings.mappings import Readings
from quiltstream.transforms.formats.avro import Meaning
from quiltstream.transforms.formats.paths import SourceFileError
from quiltstream.transforms.sources.arriving_files import ArrivingFiles
from quiltstream.transforms.sources.contract import BEGIN
from quiltstream.transforms.sources.files import FileDecoder

from .decoding import READINGS, decode

T0 = 1356998400_000_000
SYNC = b"quiltstream-sync"

DATE: Any = {"type": "int", "logicalType": "date"}
CLOCK: Any = {"type": "int", "logicalType": "time-millis"}
STAMP: Any = {"type": "long", "logicalType": "timestamp-micros"}
UUID: Any = {"type": "string", "logicalType": "uuid"}
DECIMAL: Any = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
NAME = "0f8fad5b-d9cb-469f-a165-70867728950e"


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


def row(**held: Any) -> dict[str, Any]:
    return {"id": "a", "ts": T0, "kwh": 1.5, **held}


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (DATE, 15_706, 2**31 - 1),
        (CLOCK, 5, -(2**31)),
        ({"type": "long", "logicalType": "time-micros"}, 5, 2**62),
        (STAMP, T0, 2**62),
        (UUID, NAME, "x"),
        (DECIMAL, b"\x05", b"\x7f" * 5_000),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2**40, "scale": 2**40}, b"\x05", b"\x7f"),
        (["null", DECIMAL, UUID], NAME, "x"),
    ],
)
def test_what_a_column_holds_that_nobody_asked_for_changes_nothing(tmp_path, kind, good, bad):
    rows = [row(other=good), row(id="b", other=bad), row(id="c", other=good)]
    path = write(tmp_path / "x.avro", PLAIN | {"other": kind}, rows)
    found, rejects = decode(FileSource(avro=path))
    assert (found, rejects) == ([(name, T0, 1.5) for name in "abc"], [])


@pytest.mark.parametrize(
    ("column", "kind", "good", "bad", "reason"),
    [
        ("id", UUID, NAME, "x", "malformed-row"),
        ("kwh", DECIMAL, b"\x00\x96", b"\x7f" * 5_000, "malformed-row"),
        ("kwh", ["null", "double", DECIMAL], 1.5, b"\x7f" * 5_000, "malformed-row"),
        ("ts", DATE, 15_706, 2**31 - 1, "unparsable-time"),
        ("ts", DATE, 15_706, -(2**31), "unparsable-time"),
    ],
)
def test_a_value_that_means_nothing_costs_its_own_row_alone(tmp_path, column, kind, good, bad, reason):
    rows = [row(**{column: one}) for one in (good, bad, good)]
    path = write(tmp_path / "x.avro", PLAIN | {column: kind}, rows)
    found, rejects = decode(FileSource(avro=path))
    assert found == [(NAME if column == "id" else "a", T0, 1.5)] * 2
    assert rejects == [(2, reason)]


@pytest.mark.parametrize(("column", "rejected"), [("id", [(2, "malformed-row")]), ("other", [])])
def test_text_that_is_no_utf8_costs_its_own_row_alone_and_only_where_it_is_asked_for(tmp_path, column, rejected):
    rows = [row(other=b"x", id=b"a"), row(other=b"x", id=b"b") | {column: b"\xff\xfe"}, row(other=b"", id=b"c")]
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


def test_times_beside_text_stay_the_times_that_they_are(tmp_path):
    for number, (kind, held) in enumerate([(["string", DATE], 15_706), ([STAMP, "string"], T0)]):
        rows = [row(ts=one) for one in (held, "2013-01-01T00:00:00Z", "soon", 2**31 - 1 if kind[1] is DATE else 2**62)]
        path = write(tmp_path / f"{number}.avro", PLAIN | {"ts": kind}, rows)
        found, rejects = decode(FileSource(avro=path))
        assert found == [("a", T0, 1.5)] * 2
        assert rejects == [(3, "unparsable-time"), (4, "unparsable-time")]


def test_decimals_are_what_the_library_reads(tmp_path):
    held = [Decimal("1.25"), Decimal("-0.01"), Decimal("0.00"), Decimal("1234567.50")]
    for number, kind in enumerate([DECIMAL, {**DECIMAL, "type": "fixed", "name": "F", "size": 8}]):
        path = write(tmp_path / f"{number}.avro", PLAIN | {"kwh": kind}, [row(kwh=one) for one in held])
        records: Any = list(fastavro.reader(io.BytesIO(Path(path).read_bytes())))
        assert [one["kwh"] for one in records] == held
        found, rejects = decode(FileSource(avro=path))
        assert (found, rejects) == (sorted(("a", T0, float(one)) for one in held), [])


def test_a_decimal_without_precision_is_none_and_an_unmarked_name_as_before(tmp_path):
    assert Meaning.of({"type": "bytes", "logicalType": "decimal"}) == Meaning()
    assert Meaning.of({"type": "long", "logicalType": "date"}) == Meaning()
    path = write(tmp_path / "x.avro", PLAIN | {"id": UUID}, [row(id=NAME.upper()), row(id=NAME)])
    found, _ = decode(FileSource(avro=path))
    assert {name for name, _, _ in found} == {NAME}


def test_a_message_whose_topic_is_no_utf8_is_a_reject_at_its_row(tmp_path):
    fields: dict[str, Any] = {"topic": "string", "payload": "bytes", "received": STAMP}
    rows = [{"topic": one, "payload": b'{"power": 2}', "received": T0} for one in (b"site/m1/up", b"site/\xff/up")]
    path = write(tmp_path / "x.avro", fields, rows, {"topic": "bytes"})
    readings = Readings.model_validate({"series": {"topic": 2}, "time": {"stamp": True}, "value": {"path": "power"}})
    assert decode(FileSource(avro=path), readings) == ([("m1", T0, 2.0)], [(2, "malformed-row")])


@pytest.mark.assures("live", "A value of Avro that its type does not allow is a reject of its row and damages no file")
def test_windows_lack_readings_for_damaged_bytes_and_not_for_bad_records(tmp_path):
    decoder = FileDecoder("avro", ",", READINGS)
    path = Path(write(tmp_path / "1.avro", PLAIN | {"id": UUID}, [row(id=NAME), row(id="x")]))
    first = ArrivingFiles(decoder, (str(tmp_path / "*.avro"),)).reader(0, BEGIN).read()
    assert first is not None
    assert (first.rows, first.lost_us, first.rejected) == (1, None, {RejectReason.MALFORMED_ROW: 1})
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(SourceFileError, match="not a whole Avro file"):
        decode(FileSource(avro=str(path)))
    damaged = ArrivingFiles(decoder, (str(path),)).reader(0, BEGIN).read()
    assert damaged is not None
    assert damaged.lost_us is not None
