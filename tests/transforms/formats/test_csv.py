"""CSV files: good lines survive whatever stands beside them, and each bad line is one reject with its number."""

from __future__ import annotations

import csv
import gzip
import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.connectors import FileSource
from quiltstream.transforms.formats.columns import Columns
from quiltstream.transforms.formats.lines import Layout
from quiltstream.transforms.formats.paths import SourceFileError
from quiltstream.transforms.formats.rows import RowDecoder
from quiltstream.transforms.readings.tables import rows_in

from ...depth import examples
from .decoding import READINGS, decode, plain

HEADER = b"id,ts,kwh\n"
GOOD = [b"a,2013-01-01T00:00Z,0.5", b"b,2013-01-01T00:30Z,-1e-3", b"a,2013-01-01T01:00Z,7"]
T0 = 1356998400_000_000
MINUTE = 60_000_000


def decode_bytes(data: bytes, block_bytes: int = 1 << 20, **options: Any) -> tuple[list[Any], list[tuple[int, str]]]:
    decoder = RowDecoder(READINGS.model_copy(update=options))
    rows, rejects = [], []
    for raw in rows_in(io.BytesIO(data), "x.csv", "csv", Layout(block_bytes=block_bytes), Columns.of(READINGS)):
        decoded = decoder.decode(raw)
        rows += plain(decoded.readings) if decoded.readings is not None else []
        rejects += [(at, one.reason.value) for one in decoded.rejects for at in one.positions.tolist()]
    return sorted(rows), sorted(rejects)


def expected(lines: list[bytes]) -> list[Any]:
    rows = []
    for line in lines:
        name, stamp, value = next(csv.reader([line.decode()]))
        minutes = int(np.datetime64(stamp.removesuffix("Z"), "m").astype(int))
        rows.append((name, minutes * MINUTE, float(value)))
    return sorted(rows)


@pytest.mark.night
@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"a,2013-01-01T00:00Z", "malformed-row"),
        (b"a,2013-01-01T00:00Z,1,2", "malformed-row"),
        (b"only text", "malformed-row"),
        (b'a,2013-01-01T00:00Z,"1', "malformed-row"),
        (b'"a,2013-01-01T00:00Z,1', "malformed-row"),
        (b'5"x,"abc,2013-01-01T00:00Z,1', "malformed-row"),
        (b'"a"b,2013-01-01T00:00Z,1', "malformed-row"),
        (b'1",2013-01-01T00:00Z,1', "malformed-row"),
        (b'1 ""x"" y",2013-01-01T00:00Z,1', "malformed-row"),
        (b'1,2013-01-01T00:00Z,1"', "not-a-number"),
        (b'1",2013-01-01T00:00Z,"1"', "malformed-row"),
        (b"a\0,2013-01-01T00:00Z,1", "malformed-row"),
        (b"a\xff,2013-01-01T00:00Z,1", "malformed-row"),
        (b"a,2013-01-01T00:00Z\r,1", "malformed-row"),
        (b",2013-01-01T00:00Z,1", "missing-series"),
        (b"  ,2013-01-01T00:00Z,1", "missing-series"),
        (b"a,,1", "unparsable-time"),
        (b"a,yesterday,1", "unparsable-time"),
        (b"a,2013-02-30T00:00Z,1", "unparsable-time"),
        (b"a,1899-12-31T23:59Z,1", "unparsable-time"),
        (b"a,2201-01-01T00:00Z,1", "unparsable-time"),
        (b"a,2013-01-01T00:00Z,", "missing-value"),
        (b"a,2013-01-01T00:00Z,  ", "missing-value"),
        (b"a,2013-01-01T00:00Z,Null", "missing-value"),
        (b"a,2013-01-01T00:00Z,N/A", "missing-value"),
        (b"a,2013-01-01T00:00Z,one", "not-a-number"),
        (b"a,2013-01-01T00:00Z,0x10", "not-a-number"),
        (b"a,2013-01-01T00:00Z,1_0", "not-a-number"),
        (b"a,2013-01-01T00:00Z,1 2", "not-a-number"),
        (b"a,2013-01-01T00:00Z,true", "not-a-number"),
        (b"a,2013-01-01T00:00Z,NaN", "not-finite"),
        (b"a,2013-01-01T00:00Z,-Infinity", "not-finite"),
        (b"a,2013-01-01T00:00Z,inf", "not-finite"),
    ],
)
def test_a_bad_line_is_rejected_alone_with_reason_and_position(bad, reason):
    assert decode_bytes(HEADER + b"\n".join([GOOD[0], bad, *GOOD[1:]]) + b"\n") == (expected(GOOD), [(3, reason)])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e308", 1e308),
        ("-1e308", -1e308),
        ("1e400", np.finfo(float).max),
        ("-1e999", -np.finfo(float).max),
        ("1e-400", 0.0),
        ("+1.5", 1.5),
        (" 2.5 ", 2.5),
        (".5", 0.5),
        ("3.", 3.0),
        ("-0", 0.0),
        ("-12.25", -12.25),
        ('"4.5"', 4.5),
        ("123456789012345678901234567890", 123456789012345678901234567890.0),
    ],
)
def test_no_finite_value_is_rejected_for_its_size_or_sign(text, value):
    assert decode_bytes(HEADER + f"a,2013-01-01,{text}\n".encode()) == ([("a", T0, value)], [])


def test_a_value_that_overflows_by_the_scale_stays_finite_and_keeps_its_sign():
    rows, rejects = decode_bytes(HEADER + b"a,2013-01-01,1e308\na,2013-01-01,-1e308\na,2013-01-01,2\n", scale=2000)
    assert [row[2] for row in rows] == [-np.finfo(float).max, 4000.0, np.finfo(float).max]
    assert rejects == []


def test_byte_order_mark_carriage_returns_and_quoted_headers_are_accepted():
    body = b'\r\n"id", ts,"kwh ", note\r\n\r\n"a,1",2013-01-01T00:00Z,1,"x ""y"" z"\r\n\r\nb,2013-01-01,"2",5" pipe\r\n'
    assert decode_bytes(b"\xef\xbb\xbf" + body) == ([("a,1", T0, 1.0), ("b", T0, 2.0)], [])


@pytest.mark.parametrize("block_bytes", [7, 30, 1 << 20])
def test_a_line_feed_in_a_quoted_name_makes_no_series(block_bytes):
    data = HEADER + b'"m\n1",2013-01-01T00:00Z,0.5\r\n' + GOOD[0] + b'\n"m, ""n""\r\n1 ""x""",2013-01-01T00:00Z,0.5\n'
    rows, rejects = decode_bytes(data + GOOD[1], block_bytes)
    assert rows == expected(GOOD[:2])
    assert rejects == [(line, "malformed-row") for line in (2, 3, 5, 6)]


def test_quotes_within_a_field_are_characters_of_it():
    rows, rejects = decode_bytes(HEADER + b'5" a,2013-01-01,1\nx"y"z,2013-01-01,2\n"5"" b",2013-01-01,3\n')
    assert rows == [('5" a', T0, 1.0), ('5" b', T0, 3.0), ('x"y"z', T0, 2.0)]
    assert rejects == []
    # only the first field of a line may be the rest of another one
    rows, rejects = decode_bytes(b'kwh,ts,note,id\n1,2013-01-01,rack 19",pipe 3"\n2,2013-01-01,,rack 19"\n')
    assert (rows, rejects) == ([('pipe 3"', T0, 1.0), ('rack 19"', T0, 2.0)], [])


def test_the_last_line_may_lack_a_line_feed():
    assert decode_bytes(HEADER + b"\n".join(GOOD)) == (expected(GOOD), [])


@pytest.mark.parametrize("empty", [b"", b"\n", b"\xef\xbb\xbf", b"id,ts,kwh", HEADER, HEADER + b"\r\n\n"])
def test_a_file_without_readings_is_accepted(tmp_path, empty):
    (tmp_path / "x.csv").write_bytes(empty)
    assert decode(FileSource(csv=str(tmp_path / "x.csv"))) == ([], [])


def test_an_unclosed_quote_does_not_swallow_the_rest_of_the_file():
    lines = [f"h{i},2013-01-01T00:00Z,{i}".encode() for i in range(5000)]
    damaged = [*lines]
    damaged[10], damaged[3000] = b'"h10,2013-01-01T00:00Z,10', b'h3000,"2013-01-01T00:00Z,3000'
    rows, rejects = decode_bytes(HEADER + b"\n".join(damaged) + b"\n")
    assert rejects == [(12, "malformed-row"), (3002, "malformed-row")]
    assert rows == expected([line for i, line in enumerate(lines) if i not in (10, 3000)])


def test_a_line_too_long_to_hold_is_skipped_and_counted():
    long = b"x" * ((1 << 24) + 5)
    rows, rejects = decode_bytes(HEADER + GOOD[0] + b"\n" + long + b"\n" + GOOD[1] + b"\n" + long, block_bytes=1 << 22)
    assert rows == expected(GOOD[:2])
    assert rejects == [(3, "malformed-row"), (5, "malformed-row")]


@pytest.mark.night
@pytest.mark.parametrize("quoted", [False, True])
@pytest.mark.parametrize("block_bytes", [7, 64, 1000, 1 << 20])
def test_block_boundaries_change_nothing(block_bytes, quoted):
    lines = [f"h{i % 7},2013-01-01T00:{i % 60:02d}Z,{i / 3}".encode() for i in range(300)]
    if quoted:
        lines = [b'"' + line.replace(b",", b'","') + b'"' for line in lines]
    damaged = [*lines]
    damaged[40], damaged[41], damaged[250] = b"", b"x", b'h1,"'
    data = HEADER + b"\r\n".join(damaged)
    rows, rejects = decode_bytes(data, block_bytes)
    assert rows == expected([line for i, line in enumerate(lines) if i not in (40, 41, 250)])
    assert rejects == [(43, "malformed-row"), (252, "malformed-row")]


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_random_bytes_never_crash_the_reader_or_lose_intact_lines(data):
    lines = [f"h{i},2013-01-01T00:{i:02d}Z,{i}".encode() for i in range(40)]
    touched = data.draw(st.sets(st.integers(0, 39), max_size=6))
    alphabet = st.one_of(
        st.sampled_from([b'"', b"\0", b"\r", b",", b"\xff", b"\n", b'""', b'","']), st.binary(max_size=4)
    )
    damaged = [*lines]
    for i in touched:
        cut = data.draw(st.integers(0, len(lines[i])))
        damaged[i] = lines[i][:cut] + data.draw(alphabet) + lines[i][cut:]
    rows, rejects = decode_bytes(HEADER + b"\n".join(damaged) + b"\n", data.draw(st.sampled_from([50, 300, 1 << 16])))
    untouched = expected([line for i, line in enumerate(lines) if i not in touched])
    assert set(untouched) <= set(rows)
    assert len(rows) + len(rejects) <= 40 + 4 * len(touched)
    assert all(np.isfinite(value) for *_, value in rows)


@settings(max_examples=examples(50), deadline=None)
@given(
    st.lists(
        st.lists(st.text(st.characters(exclude_characters="\r\n\0", codec="utf-8"), max_size=5), min_size=2, max_size=5)
    )
)
def test_quoted_names_are_read_as_the_standard_library_reads_them(rows):
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    for row in rows:
        writer.writerow(["x" + row[0], "2013-01-01", "1", *row[1:]])
    decoded, rejects = decode_bytes(b"id,ts,kwh,c\n" + text.getvalue().encode())
    assert decoded == sorted(("x" + row[0], T0, 1.0) for row in rows if len(row) == 2)
    assert len(rejects) == sum(len(row) != 2 for row in rows)


def test_delimiter_column_order_and_extra_columns_may_differ_from_file_to_file(tmp_path):
    (tmp_path / "1.csv").write_text("kwh;id;ts;ts2\n1;a;2013-01-01;\n")
    (tmp_path / "2.csv").write_text("x;x;id;kwh;ts\n,;,;b;2;2013-01-01\n")
    assert decode(FileSource(csv=str(tmp_path / "*.csv"), delimiter=";")) == ([("a", T0, 1.0), ("b", T0, 2.0)], [])


def test_gzip_is_unpacked_and_a_torn_one_stops_the_job_instead_of_losing_readings(tmp_path):
    whole = gzip.compress(HEADER + b"\n".join(GOOD * 2000) + b"\n")
    (tmp_path / "x.csv.gz").write_bytes(whole + gzip.compress(b"c,2013-01-01,3\n"))
    rows, _ = decode(FileSource(csv=str(tmp_path / "x.csv.gz")))
    assert rows == expected([*GOOD * 2000, b"c,2013-01-01,3"])
    (tmp_path / "x.csv.gz").write_bytes(whole[:-20])
    with pytest.raises(SourceFileError, match="breaks off"):
        decode(FileSource(csv=str(tmp_path / "x.csv.gz")))


@pytest.mark.parametrize("delimiter", ['"', "\n", "·"])
def test_a_delimiter_that_cannot_delimit_is_refused(tmp_path, delimiter):
    (tmp_path / "x.csv").write_bytes(HEADER)
    with pytest.raises(SettingsError, match=r"source\.delimiter"):
        decode(FileSource(csv=str(tmp_path / "x.csv"), delimiter=delimiter))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"id,ts,energy\n", "readings.value names the column 'kwh'.*'id', 'ts', 'energy'"),
        (b"id,ts,kwh,kwh\n", "has 2 columns 'kwh'"),
        (b"\xff\xfei\0d\0\n", r"not a line of UTF-8 text; .*set source\.encoding"),
        (b'id,ts,"kwh\n', "quote that is not closed"),
    ],
)
def test_a_header_without_the_named_columns_is_refused_before_data_is_read(tmp_path, header, message):
    (tmp_path / "x.csv").write_bytes(header + GOOD[0])
    with pytest.raises(SettingsError, match=message):
        decode(FileSource(csv=str(tmp_path / "x.csv")))
