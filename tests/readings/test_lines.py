"""Lines of CSV and JSON: a bad one costs itself alone, whatever is beside it and however a file is cut into blocks."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.connectors import FileSource
from quiltstream.schemas.settings.readings import Readings
from quiltstream.transforms.formats.columns import Columns
from quiltstream.transforms.formats.lines import Layout
from quiltstream.transforms.formats.paths import SourceFileError
from quiltstream.transforms.formats.rows import RowDecoder
from quiltstream.transforms.readings.tables import rows_in

from ..depth import examples
from ..transforms.formats.decoding import READINGS, decode, plain

HEADER = b"id,ts,kwh\n"
GOOD = [b"a,2013-01-01T00:00Z,0.5", b"b,2013-01-01T00:30Z,-1e-3", b"a,2013-01-01T01:00Z,7"]
T0 = 1356998400_000_000
MINUTE = 60_000_000

Found = tuple[list[Any], list[tuple[int, str]]]


def decode_bytes(data: bytes, block_bytes: int = 1 << 20, *, form: str = "csv", **options: Any) -> Found:
    """Sorted readings, and rejects by line, of the text of a file."""
    readings = READINGS.model_copy(update=options)
    decoder = RowDecoder(readings)
    rows, rejects = [], []
    for raw in rows_in(io.BytesIO(data), "x", form, Layout(block_bytes=block_bytes), Columns.of(readings)):
        decoded = decoder.decode(raw)
        rows += plain(decoded.readings) if decoded.readings is not None else []
        rejects += [(at, one.reason.value) for one in decoded.rejects for at in one.positions.tolist()]
    return sorted(rows), sorted(rejects)


def json_bytes(data: bytes, block_bytes: int = 1 << 20, **options: Any) -> Found:
    return decode_bytes(data, block_bytes, form="jsonl", **options)


def expected(lines: list[bytes]) -> list[Any]:
    rows = []
    for line in lines:
        name, stamp, value = next(csv.reader([line.decode()]))
        minutes = int(np.datetime64(stamp.removesuffix("Z"), "m").astype(int))
        rows.append((name, minutes * MINUTE, float(value)))
    return sorted(rows)


def line(name: Any, minute: int, value: Any, **more: Any) -> bytes:
    return json.dumps({"id": name, "ts": f"2013-01-01T00:{minute:02d}Z", "kwh": value, **more}).encode()


LINES: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "lines.yaml").read_text(encoding="utf-8"))


@pytest.mark.night
@pytest.mark.parametrize(("bad", "reason"), LINES["csv"]["bad"])
def test_a_bad_line_is_rejected_alone_with_reason_and_position(bad: str, reason: str) -> None:
    given = b"\n".join([GOOD[0], bad.encode("latin-1"), *GOOD[1:]])
    assert decode_bytes(HEADER + given + b"\n") == (expected(GOOD), [(3, reason)])


@pytest.mark.parametrize(("text", "value"), LINES["csv"]["values"])
def test_no_finite_value_is_rejected_for_its_size_or_sign(text: str, value: float) -> None:
    assert decode_bytes(HEADER + f"a,2013-01-01,{text}\n".encode()) == ([("a", T0, value)], [])


def test_a_value_that_overflows_by_the_scale_stays_finite_and_keeps_its_sign():
    rows, rejects = decode_bytes(HEADER + b"a,2013-01-01,1e308\na,2013-01-01,-1e308\na,2013-01-01,2\n", scale=2000)
    assert [row[2] for row in rows] == [-np.finfo(float).max, 4000.0, np.finfo(float).max]
    assert rejects == []


@pytest.mark.parametrize("block_bytes", [7, 30, 1 << 20])
def test_a_line_feed_in_a_quoted_name_makes_no_series(block_bytes):
    data = HEADER + b'"m\n1",2013-01-01T00:00Z,0.5\r\n' + GOOD[0] + b'\n"m, ""n""\r\n1 ""x""",2013-01-01T00:00Z,0.5\n'
    rows, rejects = decode_bytes(data + GOOD[1], block_bytes)
    assert rows == expected(GOOD[:2])
    assert rejects == [(line, "malformed-row") for line in (2, 3, 5, 6)]


def test_a_line_of_blanks_is_one_of_empty_fields_where_blanks_delimit() -> None:
    for more in (b"", b"a b c d\n"):
        found = rows_in(io.BytesIO(b"id ts kwh\n  \n\n" + more), "x", "csv", Layout(" "), Columns.of(READINGS))
        rejects = [RowDecoder(READINGS).decode(raw).rejects for raw in found]
        reasons = {one.reason.value: one.positions.tolist() for each in rejects for one in each}
        assert reasons == {"missing-series": [2]} | ({"malformed-row": [4]} if more else {})


def test_quotes_within_a_field_are_characters_of_it():
    rows, rejects = decode_bytes(HEADER + b'5" a,2013-01-01,1\nx"y"z,2013-01-01,2\n"5"" b",2013-01-01,3\n')
    assert rows == [('5" a', T0, 1.0), ('5" b', T0, 3.0), ('x"y"z', T0, 2.0)]
    assert rejects == []
    # only the first field of a line may be the rest of another one
    rows, rejects = decode_bytes(b'kwh,ts,note,id\n1,2013-01-01,rack 19",pipe 3"\n2,2013-01-01,,rack 19"\n')
    assert (rows, rejects) == ([('pipe 3"', T0, 1.0), ('rack 19"', T0, 2.0)], [])


@pytest.mark.parametrize("empty", [b"", b"\n", b"\xef\xbb\xbf", b"id,ts,kwh", HEADER, HEADER + b"\r\n\n"])
def test_a_file_without_readings_is_accepted(tmp_path, empty):
    (tmp_path / "x.csv").write_bytes(empty)
    assert decode(FileSource(csv=str(tmp_path / "x.csv"))) == ([], [])


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


@pytest.mark.parametrize("delimiter", ['"', "\n", "·"])
def test_a_delimiter_that_cannot_delimit_is_refused(tmp_path, delimiter):
    (tmp_path / "x.csv").write_bytes(HEADER)
    with pytest.raises(SettingsError, match=r"source\.delimiter"):
        decode(FileSource(csv=str(tmp_path / "x.csv"), delimiter=delimiter))


@pytest.mark.night
@pytest.mark.parametrize(("bad", "reason"), [*LINES["jsonl"]["bad"], ("[" * 100_000, "malformed-row")])
@pytest.mark.parametrize("around", [1, 700])
def test_a_bad_object_is_rejected_alone_with_reason_and_position(bad: str, reason: str, around: int) -> None:
    good = [line(f"h{i}", i % 60, i / 4) for i in range(2 * around)]
    rows, rejects = json_bytes(b"\n".join([*good[:around], bad.encode("latin-1"), *good[around:]]))
    assert rows == sorted((f"h{i}", T0 + i % 60 * MINUTE, i / 4) for i in range(2 * around))
    assert rejects == [(around + 1, reason)]


@pytest.mark.parametrize(("text", "value"), [*LINES["jsonl"]["values"], ("9" * 5000, np.finfo(float).max)])
def test_no_finite_value_is_rejected_for_its_size_or_form(text: str, value: float) -> None:
    assert json_bytes(b'{"id":"a","ts":"2013-01-01","kwh":' + text.encode() + b"}\n") == ([("a", T0, value)], [])


def test_numeric_names_and_times_are_read_in_the_unit_of_the_settings():
    data = (
        b'{"id":7,"ts":1356998400500,"kwh":1}\n{"id":"8","ts":"1356998400500","kwh":2}\n'
        b'{"id":9,"ts":1356998400500.0,"kwh":3}'
    )
    rows, rejects = json_bytes(data, time_unit="ms")
    assert rows == [("7", T0 + 500_000, 1.0), ("8", T0 + 500_000, 2.0), ("9", T0 + 500_000, 3.0)]
    assert rejects == []


@pytest.mark.parametrize("depth", [500, 600, 602, 5_000])
def test_a_nested_line_is_read_alike_alone_and_among_others(depth):
    """Neither what calls Python's reader nor which reader takes the block decides whether it is a reading."""
    inner = depth // 2 - 1
    nested = b'[{"x":' * inner + b'"[{"' + b"}]" * inner
    deep = b'{"id":"a","ts":"2013-01-01","kwh":1,"x":[' + nested + b"]}"
    expected = ([("a", T0, 1.0)], []) if depth <= 600 else ([], [(1, "malformed-row")])
    others = b"\n".join(line("b", 0, 2) for _ in range(200))
    assert json_bytes(deep) == expected
    rows, rejects = json_bytes(deep + b"\n" + others)
    assert ([row for row in rows if row[0] == "a"], rejects) == expected
    rows, rejects = json_bytes(others + b"\n" + deep + b"\nx")
    assert [row for row in rows if row[0] == "a"] == expected[0]
    assert len(rejects) == 1 + len(expected[1])
    assert json_bytes(b'{"x":"' + b'[\\"' * 1_000 + b'","id":"a","ts":"2013-01-01","kwh":1}')[0] == [("a", T0, 1.0)]
    assert json_bytes(b'{"x":"' + b'[\\"' * 1_000) == ([], [(1, "malformed-row")])


def test_the_depth_of_a_long_line_is_counted_in_a_few_times_its_size():
    text = b'{"id":"a","ts":"2013-01-01","kwh":1,"x":[' + b"[]," * 700 + b'""],"y":"' + b'a\\"[' * 500_000 + b'"}'
    tracemalloc.start()
    try:
        assert json_bytes(text) == ([("a", T0, 1.0)], [])
        assert tracemalloc.get_traced_memory()[1] < 40 * len(text)
    finally:
        tracemalloc.stop()


@pytest.mark.night
@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_random_bytes_lose_no_intact_object(data):
    lines = [line(f"h{i}", i % 60, i) for i in range(150)]
    touched = data.draw(st.sets(st.integers(0, 149), max_size=5))
    pieces = st.one_of(
        st.sampled_from([b'"', b"\0", b"\r", b"}", b"}{", b"{", b"\\", b"\xff", b"\n"]), st.binary(max_size=4)
    )
    damaged = [*lines]
    for i in touched:
        cut = data.draw(st.integers(0, len(lines[i])))
        damaged[i] = lines[i][:cut] + data.draw(pieces) + lines[i][cut:]
    rows, rejects = json_bytes(b"\n".join(damaged), data.draw(st.sampled_from([50, 2000, 1 << 16])))
    untouched = [(f"h{i}", T0 + i % 60 * MINUTE, float(i)) for i in range(150) if i not in touched]
    assert set(untouched) <= set(rows)
    assert len(rows) + len(rejects) <= 150 + 4 * len(touched)


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "id": st.one_of(st.text(max_size=3), st.integers(), st.none()),
                "ts": st.sampled_from(["2013-01-01", "2013-01-01T00:10Z", "x", "", None, 5, 1e9, -1]),
                "kwh": st.one_of(
                    st.floats(), st.integers(), st.none(), st.sampled_from(["1", "x", "", "1e999", True, []])
                ),
                "x": st.one_of(st.text(max_size=3), st.lists(st.integers(), max_size=2)),
            },
        ),
        max_size=8,
    )
)
def test_a_line_is_read_alike_alone_and_among_others(objects):
    lines = [json.dumps(one).encode() for one in objects]
    together, rejects = json_bytes(b"\n".join(lines))
    alone = [json_bytes(one) for one in lines]
    # the repr tells 0.0 from -0.0
    assert sorted(map(repr, together)) == sorted(repr(row) for rows, _ in alone for row in rows)
    assert sorted(reason for _, reason in rejects) == sorted(reason for _, found in alone for _, reason in found)
    assert len(together) + len(rejects) == len(objects)


def test_a_series_of_minus_zero_is_zero_beside_irregular_lines_too():
    given = line(0, 1, 5.0).replace(b'"id": 0', b'"id": -0')
    for more in (b"\n", b"\n{\n"):
        assert [row[0] for row in json_bytes(given + more)[0]] == ["0"]


@pytest.mark.parametrize("header", [b"id,ts,kwh,kwh\n", b'id,ts,"kwh\n'])
def test_a_header_that_is_not_sure_is_refused(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "x.csv").write_bytes(header + GOOD[0])
    with pytest.raises(SettingsError, match=r"has 2 columns 'kwh'|quote that is not closed"):
        decode(FileSource(csv=str(tmp_path / "x.csv")))


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_line_too_long_to_hold_is_skipped_and_counted(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quiltstream.transforms.formats.lines.LONGEST_LINE", 1 << 16)
    good = GOOD[:2] if form == "csv" else [line("a", 1, 1), line("b", 2, 2)]
    long = b"x" * ((1 << 16) + 5)
    first = HEADER if form == "csv" else b"\n"
    rows, rejects = decode_bytes(first + good[0] + b"\n" + long + b"\n" + good[1] + b"\n" + long, 1 << 14, form=form)
    assert len(rows) == 2
    assert rejects == [(3, "malformed-row"), (5, "malformed-row")]


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_file_that_unpacks_to_one_endless_line_is_read_in_little_memory(tmp_path: Path, form: str) -> None:
    first = HEADER + GOOD[0] + b"\n" if form == "csv" else line("a", 1, 1) + b"\n"
    (tmp_path / "x.gz").write_bytes(gzip.compress(first + bytes(1 << 26), 1))
    tracemalloc.start()
    try:
        rows, rejects = decode(FileSource.model_validate({form: str(tmp_path / "x.gz")}))
        assert tracemalloc.get_traced_memory()[1] < 3 << 24
    finally:
        tracemalloc.stop()
    assert (len(rows), [reason for _, reason in rejects]) == (1, ["malformed-row"])


@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_objects_that_each_have_another_key_are_refused(tmp_path: Path, form: str) -> None:
    objects = [json.dumps({f"k{at}": at}) for at in range(5_000)]
    (tmp_path / "x").write_text(
        "\n".join([*objects, ""]) if form == "jsonl" else f"[{','.join(objects)}]", encoding="utf-8"
    )
    readings = Readings(select="select 'a' as series, 0 as time, num(k1) as value from files")
    with pytest.raises((SettingsError, SourceFileError), match="has 5,000 different keys in 5,000 objects"):
        decode(FileSource.model_validate({form: str(tmp_path / "x")}), readings)


def test_a_document_of_very_many_values_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quiltstream.transforms.formats.jsonl._MOST_VALUES", 1_000)
    (tmp_path / "x.json").write_text(f"[{','.join('1' * 2_000)}]", encoding="utf-8")
    readings = Readings(select="select 'a' as series, 0 as time, 1 as value from files")
    with pytest.raises(SourceFileError, match="or 1,000 values"):
        decode(FileSource(json=str(tmp_path / "x.json")), readings)
