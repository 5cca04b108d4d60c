"""JSON Lines files: a bad line costs only itself, whatever reader the lines around it go to."""

from __future__ import annotations

import io
import json
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.connectors import FileSource
from quiltstream.transforms.formats.columns import Columns
from quiltstream.transforms.formats.lines import Layout
from quiltstream.transforms.formats.rows import RowDecoder
from quiltstream.transforms.readings.tables import rows_in

from ...depth import examples
from .decoding import READINGS, decode, plain

T0 = 1356998400_000_000
MINUTE = 60_000_000


def decode_bytes(data: bytes, block_bytes: int = 1 << 20, **options: Any) -> tuple[list[Any], list[tuple[int, str]]]:
    settings_ = READINGS.model_copy(update=options)
    decoder = RowDecoder(settings_)
    rows, rejects = [], []
    for raw in rows_in(io.BytesIO(data), "x.jsonl", "jsonl", Layout(block_bytes=block_bytes), Columns.of(settings_)):
        decoded = decoder.decode(raw)
        rows += plain(decoded.readings) if decoded.readings is not None else []
        rejects += [(at, one.reason.value) for one in decoded.rejects for at in one.positions.tolist()]
    return sorted(rows), sorted(rejects)


def line(name: Any, minute: int, value: Any, **more: Any) -> bytes:
    return json.dumps({"id": name, "ts": f"2013-01-01T00:{minute:02d}Z", "kwh": value, **more}).encode()


@pytest.mark.night
@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"{", "malformed-row"),
        (b"[1, 2]", "malformed-row"),
        (b"17", "malformed-row"),
        (b'"text"', "malformed-row"),
        (b"null", "malformed-row"),
        (b"not json", "malformed-row"),
        (b'{"id":"a","ts":"2013-01-01","kwh":1}}', "malformed-row"),
        (b'{"id":"a","ts":"2013-01-01","kwh":1}{"id":"a","ts":"2013-01-01","kwh":1}', "malformed-row"),
        (b'{"id":"a","ts":"2013-01-01","kwh":01}', "malformed-row"),
        (b'{"id":"a\xff","ts":"2013-01-01","kwh":1}', "malformed-row"),
        (b'{"id":"a\0","ts":"2013-01-01","kwh":1}', "malformed-row"),
        (b'{"id":"a\\ud800","ts":"2013-01-01","kwh":1}', "malformed-row"),
        (b'{"id":["a"],"ts":"2013-01-01","kwh":1}', "malformed-row"),
        (b"[" * 100_000, "malformed-row"),
        (b'{"ts":"2013-01-01","kwh":1}', "missing-series"),
        (b'{"id":null,"ts":"2013-01-01","kwh":1}', "missing-series"),
        (b'{"id":"","ts":"2013-01-01","kwh":1}', "missing-series"),
        (b'{"id":"a","kwh":1}', "unparsable-time"),
        (b'{"id":"a","ts":"soon","kwh":1}', "unparsable-time"),
        (b'{"id":"a","ts":1e99,"kwh":1}', "unparsable-time"),
        (b'{"id":"a","ts":true,"kwh":1}', "unparsable-time"),
        (b'{"id":"a","ts":"2013-01-01"}', "missing-value"),
        (b'{"id":"a","ts":"2013-01-01","kwh":null}', "missing-value"),
        (b'{"id":"a","ts":"2013-01-01","kwh":""}', "missing-value"),
        (b'{"id":"a","ts":"2013-01-01","kwh":"x"}', "not-a-number"),
        (b'{"id":"a","ts":"2013-01-01","kwh":true}', "not-a-number"),
        (b'{"id":"a","ts":"2013-01-01","kwh":[1]}', "not-a-number"),
        (b'{"id":"a","ts":"2013-01-01","kwh":{}}', "not-a-number"),
        (b'{"id":"a","ts":"2013-01-01","kwh":NaN}', "not-finite"),
        (b'{"id":"a","ts":"2013-01-01","kwh":-Infinity}', "not-finite"),
    ],
)
@pytest.mark.parametrize("around", [1, 700])
def test_a_bad_line_is_rejected_alone_with_reason_and_position(bad, reason, around):
    good = [line(f"h{i}", i % 60, i / 4) for i in range(2 * around)]
    rows, rejects = decode_bytes(b"\n".join([*good[:around], bad, *good[around:]]))
    assert rows == sorted((f"h{i}", T0 + i % 60 * MINUTE, i / 4) for i in range(2 * around))
    assert rejects == [(around + 1, reason)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e308", 1e308),
        ("1e400", np.finfo(float).max),
        ("-1e400", -np.finfo(float).max),
        ("9" * 5000, np.finfo(float).max),
        ("-3", -3.0),
        ("12345678901234567890123", 12345678901234567890123.0),
        ('"0.25"', 0.25),
        ('"1e400"', np.finfo(float).max),
    ],
)
def test_no_finite_value_is_rejected_for_its_size_or_form(text, value):
    assert decode_bytes(b'{"id":"a","ts":"2013-01-01","kwh":' + text.encode() + b"}\n") == ([("a", T0, value)], [])


def test_numeric_names_and_times_are_read_in_the_unit_of_the_settings():
    data = (
        b'{"id":7,"ts":1356998400500,"kwh":1}\n{"id":"8","ts":"1356998400500","kwh":2}\n'
        b'{"id":9,"ts":1356998400500.0,"kwh":3}'
    )
    rows, rejects = decode_bytes(data, time_unit="ms")
    assert rows == [("7", T0 + 500_000, 1.0), ("8", T0 + 500_000, 2.0), ("9", T0 + 500_000, 3.0)]
    assert rejects == []


def test_blank_lines_byte_order_mark_and_carriage_returns_are_accepted():
    data = b"\xef\xbb\xbf\r\n" + line("a", 1, 1) + b"\r\n  \r\n\n" + b"  " + line("b", 2, 2) + b"\t\nx"
    assert decode_bytes(data) == ([("a", T0 + MINUTE, 1.0), ("b", T0 + 2 * MINUTE, 2.0)], [(6, "malformed-row")])


def test_deeply_nested_unused_columns_are_accepted():
    deep = b'{"id":"a","ts":"2013-01-01","kwh":1,"x":' + b"[" * 500 + b"]" * 500 + b"}"
    assert decode_bytes(deep) == ([("a", T0, 1.0)], [])


@pytest.mark.parametrize("depth", [500, 600, 602, 5_000])
def test_a_nested_line_is_read_alike_alone_and_among_others(depth):
    """Neither what calls Python's reader nor which reader takes the block decides whether it is a reading."""
    inner = depth // 2 - 1
    nested = b'[{"x":' * inner + b'"[{"' + b"}]" * inner
    deep = b'{"id":"a","ts":"2013-01-01","kwh":1,"x":[' + nested + b"]}"
    expected = ([("a", T0, 1.0)], []) if depth <= 600 else ([], [(1, "malformed-row")])
    others = b"\n".join(line("b", 0, 2) for _ in range(200))
    assert decode_bytes(deep) == expected
    rows, rejects = decode_bytes(deep + b"\n" + others)
    assert ([row for row in rows if row[0] == "a"], rejects) == expected
    rows, rejects = decode_bytes(others + b"\n" + deep + b"\nx")
    assert [row for row in rows if row[0] == "a"] == expected[0]
    assert len(rejects) == 1 + len(expected[1])
    assert decode_bytes(b'{"x":"' + b'[\\"' * 1_000 + b'","id":"a","ts":"2013-01-01","kwh":1}')[0] == [("a", T0, 1.0)]
    assert decode_bytes(b'{"x":"' + b'[\\"' * 1_000) == ([], [(1, "malformed-row")])


def test_the_depth_of_a_long_line_is_counted_in_a_few_times_its_size():
    text = b'{"id":"a","ts":"2013-01-01","kwh":1,"x":[' + b"[]," * 700 + b'""],"y":"' + b'a\\"[' * 500_000 + b'"}'
    tracemalloc.start()
    try:
        assert decode_bytes(text) == ([("a", T0, 1.0)], [])
        assert tracemalloc.get_traced_memory()[1] < 40 * len(text)
    finally:
        tracemalloc.stop()


@pytest.mark.night
@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_random_bytes_never_crash_the_reader_or_lose_intact_lines(data):
    lines = [line(f"h{i}", i % 60, i) for i in range(150)]
    touched = data.draw(st.sets(st.integers(0, 149), max_size=5))
    pieces = st.one_of(
        st.sampled_from([b'"', b"\0", b"\r", b"}", b"}{", b"{", b"\\", b"\xff", b"\n"]), st.binary(max_size=4)
    )
    damaged = [*lines]
    for i in touched:
        cut = data.draw(st.integers(0, len(lines[i])))
        damaged[i] = lines[i][:cut] + data.draw(pieces) + lines[i][cut:]
    rows, rejects = decode_bytes(b"\n".join(damaged), data.draw(st.sampled_from([50, 2000, 1 << 16])))
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
    together, rejects = decode_bytes(b"\n".join(lines))
    alone = [decode_bytes(one) for one in lines]
    # the repr tells 0.0 from -0.0
    assert sorted(map(repr, together)) == sorted(repr(row) for rows, _ in alone for row in rows)
    assert sorted(reason for _, reason in rejects) == sorted(reason for _, found in alone for _, reason in found)
    assert len(together) + len(rejects) == len(objects)


def test_a_series_of_minus_zero_is_zero_beside_irregular_lines_too():
    given = line(0, 1, 5.0).replace(b'"id": 0', b'"id": -0')
    for more in (b"\n", b"\n{\n"):
        assert [row[0] for row in decode_bytes(given + more)[0]] == ["0"]


def test_a_column_that_no_object_at_the_start_has_is_a_settings_error(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(b'oops\n{"id":1,"ts":2}\n{"energy":3}\n')
    with pytest.raises(SettingsError, match=r"readings\.value names the column 'kwh'.*'id', 'ts', 'energy'"):
        decode(FileSource(jsonl=str(tmp_path / "x.jsonl")))


def test_an_empty_file_is_accepted(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(b"")
    assert decode(FileSource(jsonl=str(tmp_path / "x.jsonl"))) == ([], [])
