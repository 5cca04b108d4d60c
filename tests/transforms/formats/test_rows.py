"""Rows to readings: labels as states, and wide tables."""

from __future__ import annotations

import gzip
import itertools
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.connectors import FileSource
from quiltstream.schemas.settings.mappings import Readings
from quiltstream.schemas.states import StateSpace
from quiltstream.transforms.formats.rows import Labels, clock_columns, clock_time, clock_times, read_values
from quiltstream.transforms.sources.files import ReadReadings, decoder_of

from .decoding import decoded_parts

#: Decimals that are less as floats of 32 bits, among others.
DECIMALS = [str(Decimal(one) / 100) for one in range(1, 1000)]


@pytest.mark.parametrize("scale", [1.0, 2000.0, -1.0])
def test_values_of_32_bits_are_at_the_edges_that_they_were_rounded_from(scale: float) -> None:
    edges = StateSpace(tuple(sorted(float(Decimal(one) * int(scale)) for one in DECIMALS)))
    places = np.arange(1, 1000) if scale > 0 else np.arange(999, 0, -1)
    for kind in (pa.float32(), pa.float64()):
        values, problems = read_values(pa.array([float(one) for one in DECIMALS], kind), scale=scale)
        assert not problems
        assert values.tolist() == [float(one) * scale for one in DECIMALS]
        assert np.array_equal(edges.encode(values), places)


SPACE = StateSpace((), categories=("sleep", "7", "None"))
READINGS = Readings(series="who", time="ts", value="what")
TEXTS = ["sleep", " sleep ", "7", "None", "secret swim", "", "NA", "Sleep", "7"]

#: What becomes of them: a state, or the reason of a reject.
MEANT = [0, 0, 1, 2, "unknown-label", "missing-value", "missing-value", "unknown-label", 1]


def outcome(reader: ReadReadings) -> list[float | str]:
    found: dict[int, float | str] = {}
    for part in decoded_parts(reader):
        for one in part.rejects:
            found |= dict.fromkeys(one.positions.tolist(), one.reason.value)
        if part.readings is not None:
            assert part.rows is not None
            found |= dict(zip(part.rows.tolist(), part.readings["value"].to_pylist(), strict=True))
    return [found[at] for at in sorted(found)]


@pytest.mark.parametrize("quoted", [False, True])
def test_labels_of_csv_are_always_read_as_text(tmp_path: Path, *, quoted: bool) -> None:
    mark = '"' if quoted else ""
    lines = ["who,ts,what", *(f"a,2024-01-{n + 1:02},{mark}{text}{mark}" for n, text in enumerate(TEXTS))]
    (tmp_path / "x.csv").write_text("\n".join(lines), encoding="utf-8")
    assert outcome(ReadReadings(FileSource(csv=str(tmp_path / "x.csv")), READINGS, labels=Labels(SPACE))) == MEANT


def test_labels_of_json_lines_may_be_numbers_without_quotes(tmp_path: Path) -> None:
    values: list[Any] = [*TEXTS[:-1], 7]
    rows = [{"who": "a", "ts": f"2024-01-{n + 1:02}", "what": value} for n, value in enumerate(values)]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    source = FileSource(jsonl=str(tmp_path / "x.jsonl"))
    assert outcome(ReadReadings(source, READINGS, labels=Labels(SPACE))) == MEANT


@pytest.mark.parametrize("kind", [pa.utf8(), pa.large_utf8(), pa.string_view()])
def test_text_is_a_number_or_a_label_in_every_layout_of_arrow(kind: pa.DataType) -> None:
    values, problems = read_values(pa.array(["1,5", None, "many", "-2"], kind), scale=2.0, decimal=",")
    assert values[[0, 3]].tolist() == [3.0, -4.0]
    assert [(one.rows.tolist(), one.reason.value) for one in problems if one.rows.any()] == [
        ([False, True, False, False], "missing-value"),
        ([False, True, False, False], "missing-value"),
        ([False, False, True, False], "not-a-number"),
    ]
    states, _ = Labels(SPACE).read(pa.array([TEXTS[0]], kind))
    assert states.tolist() == Labels(SPACE).read(pa.array([TEXTS[0]]))[0].tolist()


@pytest.mark.parametrize("kind", [pa.utf8(), pa.dictionary(pa.int32(), pa.utf8()), pa.large_utf8()])
def test_labels_of_parquet_are_text_or_a_dictionary(tmp_path: Path, kind: pa.DataType) -> None:
    stamps = [f"2024-01-{n + 1:02}" for n in range(len(TEXTS) + 1)]
    columns = {"who": ["a"] * len(stamps), "ts": stamps, "what": pa.array([*TEXTS, None], pa.utf8()).cast(kind)}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    source = FileSource(parquet=str(tmp_path / "x.parquet"))
    assert outcome(ReadReadings(source, READINGS, labels=Labels(SPACE))) == [*MEANT, "missing-value"]


def test_codes_of_parquet_are_labels_by_their_digits(tmp_path: Path) -> None:
    columns = {"who": ["a"] * 3, "ts": ["2024-01-01", "2024-01-02", "2024-01-03"], "what": pa.array([7, 8, None])}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    source = FileSource(parquet=str(tmp_path / "x.parquet"))
    found = outcome(ReadReadings(source, READINGS, labels=Labels(SPACE)))
    assert found == [1, "unknown-label", "missing-value"]


@pytest.mark.parametrize(("other", "state"), [("else", 3), ("7", 1)])
def test_other_is_the_state_of_every_label_that_is_not_listed(tmp_path: Path, other: str, state: int) -> None:
    space = StateSpace((), categories=SPACE.categories, other=other)
    lines = ["who,ts,what", *(f"a,2024-01-{n + 1:02},{text}" for n, text in enumerate(TEXTS))]
    (tmp_path / "x.csv").write_text("\n".join(lines), encoding="utf-8")
    found = outcome(ReadReadings(FileSource(csv=str(tmp_path / "x.csv")), READINGS, labels=Labels(space)))
    assert found == [state if one == "unknown-label" else one for one in MEANT]


def test_a_category_of_any_spelling_is_a_label(tmp_path: Path) -> None:
    space = StateSpace((), categories=("NA", "x"), other="x")
    (tmp_path / "x.csv").write_text(
        "who,ts,what\na,2024-01-01,NA\na,2024-01-02, NA \na,2024-01-03,null\n", encoding="utf-8"
    )
    found = outcome(ReadReadings(FileSource(csv=str(tmp_path / "x.csv")), READINGS, labels=Labels(space)))
    assert found == [0, 0, "missing-value"]


@pytest.mark.night
@pytest.mark.parametrize("other", ["else", "7"])
def test_a_changed_label_moves_the_histogram_by_two_or_not_at_all(other: str) -> None:
    """By enumeration: every series of three cells, every cell, every other label, listed or not."""
    space = StateSpace((), categories=SPACE.categories, other=other)
    labels = [*space.categories, "secret swim", "ski"]
    moves: set[int] = set()
    for path in itertools.product(labels, repeat=3):
        for at, label in itertools.product(range(3), labels):
            changed = [*path[:at], label, *path[at + 1 :]]
            counts: list[npt.NDArray[np.int64]] = []
            for one in (path, changed):
                values, problems = Labels(space).read(pa.array(one))
                assert not problems
                counts.append(np.bincount(space.encode(values), minlength=space.size))
            moves.add(int(np.abs(counts[0] - counts[1]).sum()))
    assert moves == {0, 2}


def test_a_wide_table_may_hold_labels(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("ts,p1,p2\n2024-01-01,sleep,7\n2024-01-02,,swim\n", encoding="utf-8")
    readings = Readings.model_validate({"wide": {"columns": "series"}, "time": "ts"})
    parts = decoded_parts(ReadReadings(FileSource(csv=str(tmp_path / "x.csv")), readings, labels=Labels(SPACE)))
    (part,) = parts
    assert part.readings is not None
    assert list(zip(part.readings["series"].to_pylist(), part.readings["value"].to_pylist(), strict=True)) == [
        ("p1", 0.0),
        ("p2", 1.0),
    ]
    assert [(one.reason.value, one.positions.tolist(), one.column) for one in part.rejects] == [
        ("unknown-label", [3], 3)
    ]


def test_intervals_are_refused_where_files_are_followed_and_where_states_have_edges() -> None:
    readings = Readings(series="who", time="ts", value="what", until="end")
    with pytest.raises(SettingsError, match=r"readings\.until: which label covers most .* without --live"):
        readings.check_followed()
    with pytest.raises(SettingsError, match=r"readings\.until is of intervals of labels, and the states"):
        decoder_of(FileSource(csv="x.csv"), readings)


def test_messages_in_files_hold_no_labels() -> None:
    readings = Readings.model_validate({"preset": "aws-iot", "value": "what"})
    with pytest.raises(SettingsError, match=r"states\.categories are read from columns of files"):
        decoder_of(FileSource(avro="x.avro"), readings, labels=Labels(SPACE))


Cells = list[tuple[str, int, float]]
Rejected = list[tuple[str, int, int]]

DAY = "2013-01-01"


def read(path: Path, readings: dict[str, Any], *, timezone: str = "UTC", **how: Any) -> tuple[Cells, Rejected]:
    """The sorted readings of a file, and its rejects by reason, line and column."""
    source = FileSource.model_validate({"parquet" if path.suffix == ".parquet" else "csv": str(path), **how})
    parts = decoded_parts(ReadReadings(source, Readings.model_validate(readings), timezone=timezone))
    cells: Cells = []
    rejects: Rejected = []
    for part in parts:
        rejects += [(one.reason.value, at, one.column) for one in part.rejects for at in one.positions.tolist()]
        if part.readings is not None:
            assert part.rows is not None
            assert len(part.rows) == part.readings.num_rows
            plain = [
                part.readings[name].cast(kind).to_pylist()
                for name, kind in (("series", pa.utf8()), ("time", pa.int64()))
            ]
            assert part.earliest_us == min(plain[1])
            cells += list(zip(*plain, part.readings["value"].to_pylist(), strict=True))
    return sorted(cells), sorted(rejects)


def table(rng: np.random.Generator, homes: int, lines: int) -> tuple[list[str], list[str], npt.NDArray[np.float64]]:
    """Names, half-hourly stamps, and values with holes."""
    start, step = np.datetime64(f"{DAY}T00:00", "m"), np.timedelta64(30, "m")
    stamps = np.datetime_as_string(np.arange(start, start + lines * step, step), unit="m")
    values = np.round(rng.gamma(1.0, 0.3, size=(lines, homes)), 3)
    values[rng.random(values.shape) < 0.1] = np.nan
    return [f"home{n}" for n in range(homes)], [str(one) for one in stamps], values


def text(value: float) -> str:
    return "" if np.isnan(value) else f"{value:g}"


def long_form(names: list[str], stamps: list[str], values: npt.NDArray[np.float64]) -> str:
    rows = [
        f"{name},{stamp},{text(values[line, at])}"
        for at, name in enumerate(names)
        for line, stamp in enumerate(stamps)
        if not np.isnan(values[line, at])
    ]
    return "\n".join(["home,ts,kwh", *rows]) + "\n"


LONG = {"series": "home", "time": "ts", "value": "kwh", "scale": 2000}
SERIES = {"wide": {"columns": "series"}, "time": "ts", "scale": 2000}
TIMES = {"wide": {"columns": "times"}, "series": "home", "time": "day", "scale": 2000}


def as_series(names: list[str], stamps: list[str], values: npt.NDArray[np.float64]) -> str:
    lines = [",".join([stamp, *map(text, row)]) for stamp, row in zip(stamps, values.tolist(), strict=True)]
    return "\n".join([",".join(["ts", *names]), *lines]) + "\n"


def as_times(names: list[str], stamps: list[str], values: npt.NDArray[np.float64]) -> str:
    clock = [stamp[11:] for stamp in stamps[:48]]
    lines = [
        ",".join([name, stamps[day * 48][:10], *map(text, values[day * 48 : day * 48 + 48, at].tolist())])
        for at, name in enumerate(names)
        for day in range(len(stamps) // 48)
    ]
    return "\n".join([",".join(["home", "day", *clock]), *lines]) + "\n"


@pytest.mark.parametrize("batch_rows", [50, 1 << 17])
@pytest.mark.parametrize("timezone", ["UTC", "America/Vancouver"])
def test_both_layouts_are_the_same_cells_as_the_long_form(tmp_path: Path, timezone: str, batch_rows: int) -> None:
    seed = 20130101
    data = table(np.random.default_rng(seed), 5, 48 * 4)
    found = {}
    for name, made, readings in (("l", long_form, LONG), ("s", as_series, SERIES), ("t", as_times, TIMES)):
        (tmp_path / f"{name}.csv").write_text(made(*data), encoding="utf-8")
        source = FileSource(csv=str(tmp_path / f"{name}.csv"))
        reader = ReadReadings(source, Readings.model_validate(readings), timezone=timezone, batch_rows=batch_rows)
        parts = [part.readings for part in decoded_parts(reader) if part.readings is not None]
        assert len(parts) > 1 or batch_rows > 50
        found[name] = read(tmp_path / f"{name}.csv", readings, timezone=timezone)
    assert len(found["l"][0]) > 800
    assert found["s"] == found["l"], seed
    assert found["t"] == found["l"], seed


def test_a_parquet_file_of_series_is_the_same_as_its_long_form(tmp_path: Path) -> None:
    names, stamps, values = table(np.random.default_rng(7), 4, 96)
    columns = {"ts": pa.array(np.array(stamps, "datetime64[us]")), "postcode": pa.array([2000] * 96)}
    columns |= {name: pa.array(values[:, at], from_pandas=True) for at, name in enumerate(names)}
    columns["home0"] = columns["home0"].cast(pa.float32()).cast(pa.float64()).cast(pa.string()).cast(pa.float64())
    columns["home3"] = pa.nulls(96, pa.int64())
    pq.write_table(pa.table(columns), tmp_path / "x.parquet", row_group_size=40)
    values[:, 3] = np.nan
    (tmp_path / "x.csv").write_text(long_form(names, stamps, values), encoding="utf-8")
    wide = {**SERIES, "wide": {"columns": "series", "without": ["postcode"]}}
    found, rejects = read(tmp_path / "x.parquet", wide)
    expected, _ = read(tmp_path / "x.csv", LONG)
    assert rejects == []
    assert [one[:2] for one in found] == [one[:2] for one in expected]
    assert np.allclose([one[2] for one in found], [one[2] for one in expected], rtol=1e-6)


def test_columns_of_series_are_read_under_pseudonyms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a reading nor a reject has a column's name then."""
    monkeypatch.setenv("WIDE_KEY", "ab" * 32)
    (tmp_path / "x.csv").write_text("ts,home1,home2\n2024-01-01,1,oops\n", encoding="utf-8")
    readings = {"wide": {"columns": "series"}, "time": "ts", "pseudonyms": {"env": "WIDE_KEY"}}
    found, rejects = read(tmp_path / "x.csv", readings)
    (name,) = {one[0] for one in found}
    assert name == Readings.model_validate(readings).pseudonyms.key().name("home1")  # type: ignore[union-attr]
    assert rejects == [("not-a-number", 2, 3)]


AUSGRID = """\
Customer,Generator Capacity,Postcode,Consumption Category,date,0:30,1:00,12:30,23:30,0:00
1,3.78,2076,GC,1/07/2012,0.25,0.5,1,,0.125
2,3.78,2076,GC,31/12/2012,-,1,x,2,3
"""


def test_a_midnight_behind_later_times_is_the_end_of_the_day(tmp_path: Path) -> None:
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(AUSGRID.encode()))
    others = ["Generator Capacity", "Postcode", "Consumption Category"]
    wide = {"columns": "times", "without": others}
    readings = {"wide": wide, "series": "Customer", "time": "date", "time_format": "%d/%m/%Y"}
    found, rejects = read(tmp_path / "x.csv.gz", readings)
    first = {str(np.datetime64(us, "us"))[:16]: value for name, us, value in found if name == "1"}
    assert first == {
        "2012-07-01T00:30": 0.25,
        "2012-07-01T01:00": 0.5,
        "2012-07-01T12:30": 1.0,
        "2012-07-02T00:00": 0.125,
    }
    assert ("2", 1_356_998_400_000_000, 3.0) in found  # the midnight that ends the year
    assert rejects == [("not-a-number", 3, 6), ("not-a-number", 3, 8)]


ELECTRICITY = '"";"MT_001";"MT_002";"MT_003"\n2014-01-01 00:15:00;2,5;0;1,25\n2014-01-01 00:30:00;3,5;;"7,5"\n'


def test_an_unnamed_time_with_semicolons_and_decimal_commas_is_read(tmp_path: Path) -> None:
    """As the electricity load diagrams of the UCI archive are written."""
    (tmp_path / "x.txt").write_text(ELECTRICITY, encoding="utf-8")
    readings = {"wide": {"columns": "series"}, "time": " ", "decimal": ","}
    found, rejects = read(tmp_path / "x.txt", readings, delimiter=";")
    assert [(name, value) for name, _, value in found] == [
        ("MT_001", 2.5),
        ("MT_001", 3.5),
        ("MT_002", 0.0),
        ("MT_003", 1.25),
        ("MT_003", 7.5),
    ]
    assert rejects == []


def test_a_bad_line_is_rejected_once_and_a_bad_cell_by_its_column(tmp_path: Path) -> None:
    lines = [
        "ts,a,b,c",
        "2024-01-01,1,2,3",
        "soon,1,oops,3",
        "2024-01-02,oops,NaN,n/a",
        "2024-01-03,1",
        "2024-01-04,,,",
    ]
    (tmp_path / "x.csv").write_text("\n".join(lines), encoding="utf-8")
    found, rejects = read(tmp_path / "x.csv", {"wide": {"columns": "series"}, "time": "ts"})
    assert [one[::2] for one in found] == [("a", 1.0), ("b", 2.0), ("c", 3.0)]
    assert rejects == [("malformed-row", 5, 0), ("not-a-number", 4, 2), ("not-finite", 4, 3), ("unparsable-time", 3, 0)]


def test_an_hour_that_the_clock_skips_is_a_reject_of_its_column_only(tmp_path: Path) -> None:
    lines = ["home,day,01:00,02:00,03:00", "a,2013-03-10,1,2,3", "a,2013-03-11,1,2,3", "b,2013-03-10,1,,3"]
    (tmp_path / "x.csv").write_text("\n".join(lines), encoding="utf-8")
    found, rejects = read(tmp_path / "x.csv", {**TIMES, "scale": 1}, timezone="America/Vancouver")
    assert rejects == [("nonexistent-local-time", 2, 4)]
    hours = {(us // 3_600_000_000) % 24 for name, us, _ in found if name == "b"}
    assert hours == {9, 10}  # 1:00 in winter time and 3:00 in summer time are an hour apart


@pytest.mark.parametrize(
    ("name", "minutes"),
    [
        ("00:30", 30), ("0:30", 30), ("0030", 30), ("23:45:00", 1425), ("24:00", 1440), ("12:30 AM", 30),
        ("1:00pm", 780), ("07.15", 435), ("00:30-01:00", 30), ("00:30 \u2013 01:00", 30), (" 6:00 ", 360),
        ("home1", None), ("24:30", None), ("12:60", None), ("13:00 pm", None), ("12", None), ("1:00:30", None),
    ],
)  # fmt: skip
def test_times_of_day_are_distinguished_from_other_column_names(name: str, minutes: int | None) -> None:
    assert clock_time(name) == (None if minutes is None else minutes * 60_000_000)


def test_midnight_in_front_is_the_beginning_of_the_day() -> None:
    assert (clock_times(["0:00", "12:00"]) // 3_600_000_000).tolist() == [0, 12]
    assert (clock_times(["12:00", "0:00"]) // 3_600_000_000).tolist() == [12, 24]


HALF_HOURS = [f"{n // 2:02}{n % 2 * 30:02}" for n in range(48)]


@pytest.mark.parametrize(
    ("names", "times"),
    [
        (HALF_HOURS, 48),
        ([*HALF_HOURS[1:], "0000"], 48),
        (["0600", "1200", "1800", "2400"], 4),
        ([*HALF_HOURS, "2019"], 0),
        (["2018", "2019", "2020", "2021"], 0),  # evenly apart, and years
        (["0:00", "12:00", "2019"], 2),
        (["0:00", "1200"], 1),
        (["2019"], 0),
    ],
)
def test_four_digits_are_times_only_evenly_over_a_whole_day(names: list[str], times: int) -> None:
    assert len(clock_columns(names)) == times


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("home,day,0:00,12:00,24:30", "1 of the 5 columns of FILE are no times of the day .*, as column 5; name those"),
        ("home,day,0:00,25:00,total", "2 of the 5 columns of FILE are no times of the day .*, as column 4; name those"),
        ("home,day,0:00,12:00,2019", "1 of the 5 columns of FILE are no times of the day .*, as column 5; name those"),
        ("home,day,0:30,00:30,1:00", "column 4 of the 5 of FILE is of no later time of the day than the column of"),
        ("home,day,1:00,0:30,2:00", "column 4 of the 5 of FILE is of no later time of the day than the column of"),
        ("home,day,12:00,0:00,6:00", "column 4 of the 5 of FILE is of no later time of the day than the column of"),
        ("home,day,24:00,0:00,", "column 4 of the 5 of FILE is of no later time of the day than the column of"),
    ],
)
def test_time_columns_that_do_not_increase_are_refused(tmp_path: Path, header: str, said: str) -> None:
    (tmp_path / "x.csv").write_text(f"{header}\na,2024-01-01,1,2,3\n", encoding="utf-8")
    with pytest.raises(SettingsError, match=said.replace("FILE", str(tmp_path / "x.csv"))) as refused:
        read(tmp_path / "x.csv", TIMES)
    assert "total" not in str(refused.value)


def test_a_date_with_a_time_of_day_is_rejected(tmp_path: Path) -> None:
    dates = ["2024-06-01", "2024-06-01T00:00", "2024-06-01T01:00", "2024-06-01T00:00:00.5"]
    lines = ["home,day,0:00,12:00", *(f"a,{date},1,2" for date in dates)]
    (tmp_path / "x.csv").write_text("\n".join(lines), encoding="utf-8")
    found, rejects = read(tmp_path / "x.csv", TIMES, timezone="Europe/London")
    assert rejects == [("unparsable-time", 4, 0), ("unparsable-time", 5, 0)]
    assert len(found) == 4


@pytest.mark.parametrize(
    ("timezone", "dates", "begins"),
    [
        ("Europe/London", ["2024-07-01T00:00+01:00", "2024-06-30T23:00Z"], "2024-06-30T23:00"),
        ("America/Sao_Paulo", ["2018-11-04T01:00-02:00"], "2018-11-04T03:00"),  # has no midnight
    ],
)
def test_a_date_with_an_offset_is_a_day_of_the_local_clock(
    tmp_path: Path, timezone: str, dates: list[str], begins: str
) -> None:
    lines = ["home,day,1:00,12:00", *(f"a,{date},1,2" for date in dates)]
    (tmp_path / "x.csv").write_text("\n".join(lines), encoding="utf-8")
    found, rejects = read(tmp_path / "x.csv", {**TIMES, "scale": 1}, timezone=timezone)
    first = int(np.datetime64(begins, "us").astype(int)) + (3_600_000_000 if len(dates) > 1 else 0)
    assert rejects == []
    assert found == sorted([("a", first, 1.0), ("a", first + 11 * 3_600_000_000, 2.0)] * len(dates))


def test_a_date_with_an_offset_other_than_local_midnight_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("home,day,0:00,12:00\na,2024-06-01T00:00Z,1,2\n", encoding="utf-8")
    found, rejects = read(tmp_path / "x.csv", TIMES, timezone="Europe/London")
    assert (found, rejects) == ([], [("unparsable-time", 2, 0)])


@pytest.mark.parametrize(
    ("readings", "how", "said"),
    [
        ({"wide": {"columns": "series"}, "time": "ts", "value": "kwh"}, {}, "readings.value is set, and readings.wide"),
        ({"wide": {"columns": "series"}, "time": "ts", "series": "id"}, {}, "the columns are the series; leave it out"),
        ({"wide": {"columns": "times"}, "time": "ts"}, {}, "readings.series is missing"),
        ({"wide": {"columns": "series"}}, {}, "readings.time is missing"),
        ({"wide": {"columns": "series"}, "time": "ts", "preset": "hono"}, {}, "readings.preset is set, and with"),
        ({"wide": {"columns": "times"}, "time": "ts", "series": "a"}, {}, "has no column named by a time such as"),
        ({"wide": {"columns": "series", "without": ["a", "b"]}, "time": "ts"}, {}, "has no column beside those that"),
        ({"wide": {"columns": "series", "without": ["c"]}, "time": "ts"}, {}, "without names the column 'c', which"),
        (
            {"wide": {"columns": "series", "most_columns": 1}, "time": "ts"},
            {},
            "has 2 columns of values, more than 1, the limit of readings.wide.most_columns",
        ),
        ({"wide": {"columns": "series"}, "time": "when"}, {}, "readings.time names the column 'when'"),
        ({"wide": {"columns": "series"}, "time": "ts"}, {"group": "b"}, "name the groups in a roster file"),
    ],
)
def test_settings_that_contradict_a_wide_table_are_refused_before_reading(
    tmp_path: Path, readings: dict[str, Any], how: dict[str, Any], said: str
) -> None:
    (tmp_path / "x.csv").write_text("ts,a,b\n2024-01-01,1,2\n", encoding="utf-8")
    with pytest.raises((SettingsError, ValueError), match=said):
        ReadReadings(FileSource(csv=str(tmp_path / "x.csv")), Readings.model_validate(readings), **how)


PEOPLE = "when_at,Home 1,Alice Smith,Alice Smith , Home 1\n2024-01-01,1,2,3,4\n"


@pytest.mark.parametrize(
    ("time", "said"),
    [
        ("ts", "readings.time names the column 'ts', which FILE does not have; it has 5 columns, whose names are not"
               " shown because they may be those of series: change readings.time"),
        ("when_at", "readings.wide: 4 of the 5 columns of FILE have the name of another one, as 2 and 5; rename them, "
                    "or name them in readings.wide.without"),
    ],
)  # fmt: skip
def test_no_message_of_a_wide_csv_file_has_the_name_of_a_series(tmp_path: Path, time: str, said: str) -> None:
    (tmp_path / "x.csv").write_text(PEOPLE, encoding="utf-8")
    with pytest.raises(SettingsError) as refused:
        read(tmp_path / "x.csv", {"wide": {"columns": "series"}, "time": time})
    assert refused.value.problems == (said.replace("FILE", str(tmp_path / "x.csv")),)


@pytest.mark.parametrize(
    ("time", "said"),
    [
        ("when", "readings.time names the column 'when', which FILE does not have; it has 4 columns, whose names are "
                 "not shown because they may be those of series: change readings.time"),
        ("ts", "readings.wide: column 2 of the 4 of FILE is of type bool, as are 1 more, and cannot be read as a "
               "number; convert it, or name it in readings.wide.without"),
    ],
)  # fmt: skip
def test_no_message_of_a_wide_parquet_file_has_the_name_of_a_series(tmp_path: Path, time: str, said: str) -> None:
    stamps = pa.array([0], pa.timestamp("us"))
    people = {"ts": stamps, "Alice Smith": [True], "Bob": [1.0], "Carol": stamps}
    pq.write_table(pa.table(people), tmp_path / "x.parquet")
    with pytest.raises(SettingsError) as refused:
        read(tmp_path / "x.parquet", {"wide": {"columns": "series"}, "time": time})
    assert refused.value.problems == (said.replace("FILE", str(tmp_path / "x.parquet")),)


def test_columns_of_one_name_that_are_left_out_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("ts,a,note,note,\n2024-01-01,1,x,y,z\n", encoding="utf-8")
    found, _ = read(tmp_path / "x.csv", {"wide": {"columns": "series", "without": ["note"]}, "time": "ts"})
    assert [name for name, _, _ in found] == ["a"]


def test_a_wide_table_of_json_lines_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"ts": "2024-01-01", "a": 1}\n', encoding="utf-8")
    with pytest.raises(SettingsError, match=r"readings\.wide is of files of CSV and Parquet, not of jsonl"):
        ReadReadings(FileSource(jsonl=str(tmp_path / "x.jsonl")), Readings.model_validate(SERIES))


def test_the_ledger_freezes_the_layout_and_not_the_columns_that_are_left_out() -> None:
    plain = Readings.model_validate(SERIES)
    less = Readings.model_validate({**SERIES, "wide": {"columns": "series", "without": ["postcode"]}})
    assert plain.canonical() == less.canonical()
    assert plain.canonical()["wide"] == "series"
    assert "wide" not in Readings.model_validate(LONG).canonical()
