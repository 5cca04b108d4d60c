"""Event times of any spelling, and doubled hours by the order of the rows."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiltstream.pipelines.connectors.live import live_source
from quiltstream.schemas.readings import RejectReason
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.connectors import FileSource
from quiltstream.schemas.settings.job import EXAMPLE, load_settings
from quiltstream.schemas.settings.readings import Constant, Readings, check_message
from quiltstream.transforms.formats.times import LocalClock, TimePattern, TimeReader
from quiltstream.transforms.sources.files import ReadReadings

from ...depth import examples
from .decoding import decode

EPOCH = dt.datetime(1970, 1, 1)
US = dt.timedelta(microseconds=1)
T0 = 1356998400_000_000


def micros(stamp: dt.datetime) -> int:
    naive = stamp.astimezone(dt.UTC).replace(tzinfo=None) if stamp.tzinfo else stamp
    return (naive - EPOCH) // US


def parsed(text: str, format_: str) -> dt.datetime:
    return dt.datetime.strptime(text, format_)  # noqa: DTZ007 - naive stamps are what is being read


def read(array: pa.Array, **options) -> list[int | str]:
    times, problems = TimeReader(**options).read([array])
    found: list[int | str] = times.tolist()
    for rows, reason in reversed(problems):
        for i in np.flatnonzero(rows).tolist():
            found[i] = reason.value
    return found


WRONG = RejectReason.UNPARSABLE_TIME.value
SKIPPED = RejectReason.NONEXISTENT_LOCAL_TIME.value


@pytest.mark.night
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2013-01-01", T0),
        ("2013-01-01T00:00", T0),
        ("2013-01-01 00:00:00", T0),
        ("2013-01-01T01", T0 + 3600_000_000),
        ("2013-01-01T00:00:00.5Z", T0 + 500_000),
        ("2013-01-01T00:00:00.123456789Z", T0 + 123_456),
        ("2013-01-01T00:00:00,25+00:00", T0 + 250_000),
        ("2013-01-01T01:00+01:00", T0),
        ("2013-01-01T01:00:00+0100", T0),
        ("2012-12-31T19:00:00-05", T0),
        ("2013-01-01t00:00z", T0),
        ("  2013-01-01T00:00Z ", T0),
        ("1356998400", T0),
        ("+1356998400", T0),
        ("1356998400.25", T0 + 250_000),
        ("1.3569984e9", T0),
        ("2013-02-29", WRONG),
        ("2013-13-01", WRONG),
        ("2013-00-10", WRONG),
        ("2013-01-01T24:00", WRONG),
        ("2013-01-01T00:60", WRONG),
        ("2013-01-01T00:00:60", WRONG),
        ("2013-01-01T00:00+24:00", WRONG),
        ("0000-01-01", WRONG),
        ("1899-12-31T23:59:59", WRONG),
        ("2201-01-01", WRONG),
        ("99999999999999999999", WRONG),
        ("1e300", WRONG),
        ("nan", WRONG),
        ("", WRONG),
        ("2013-01-01T00:00Z extra", WRONG),
        ("01/02/2013", WRONG),
    ],
)
@pytest.mark.parametrize("company", [[], ["2013-01-01T00:00Z"], ["2013-01-01 00:00", "garbage", None]])
def test_text_is_read_as_iso_8601_or_a_number_in_any_batch(text, expected, company):
    assert read(pa.array([*company, text], pa.utf8()))[-1] == expected


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.datetimes(dt.datetime(1900, 1, 2), dt.datetime(2200, 12, 30)),
            st.one_of(st.none(), st.integers(-23 * 60, 23 * 60)),
            st.sampled_from(["T", " "]),
            st.sampled_from(["minutes", "seconds", "milliseconds", "microseconds"]),
        ),
        min_size=1,
    )
)
def test_iso_text_is_parsed_as_by_python(stamps):
    texts, truth = [], []
    for stamp, offset, separator, precision in stamps:
        zoned = stamp.replace(tzinfo=None if offset is None else dt.timezone(dt.timedelta(minutes=offset)))
        texts.append(zoned.isoformat(separator, precision))
        truth.append(micros(dt.datetime.fromisoformat(texts[-1])))
    assert read(pa.array(texts)) == truth


@pytest.mark.parametrize("kind", [pa.utf8(), pa.large_utf8(), pa.string_view()])
def test_text_is_a_time_in_every_layout_of_arrow(kind):
    texts = pa.array(["2013-01-01T00:00Z", None, "soon"], kind)
    assert read(texts) == [T0, WRONG, WRONG]
    assert read(texts, time_format="%Y-%m-%dT%H:%MZ") == [T0, WRONG, WRONG]


FORMATS = [
    "%m/%d/%Y %H",
    "%d.%m.%Y %H:%M:%S",
    "%Y%m%d%H%M%S",
    "%d %b %Y %I:%M %p",
    "%A, %B %d %Y %H:%M:%S.%f",
    "%y-%m-%d %T",
]


@settings(max_examples=examples(100), deadline=None)
@given(st.sampled_from(FORMATS), st.lists(st.datetimes(dt.datetime(1970, 1, 1), dt.datetime(2068, 12, 31)), min_size=1))
def test_a_time_format_is_parsed_as_by_python(format_, stamps):
    spelled = format_.replace("%T", "%H:%M:%S")  # which Python's strptime does not know
    texts = [stamp.strftime(spelled) for stamp in stamps]
    truth = [micros(parsed(text, spelled)) for text in texts]
    assert read(pa.array(texts), time_format=format_) == truth


@settings(max_examples=examples(100), deadline=None)
@given(st.sampled_from(FORMATS[:4]), st.text("0123456789/:. apmjan", max_size=22))
def test_text_accepted_by_a_format_is_accepted_by_python(format_, text):
    (found,) = read(pa.array([text]), time_format=format_)
    if found != WRONG:
        assert found == micros(parsed(text.strip(), format_))


def test_a_format_with_an_offset_needs_no_time_zone():
    found = read(
        pa.array(["01.01.2013 02:00 +0200", "01.01.2013 00:00 Z"]),
        time_format="%d.%m.%Y %H:%M %z",
        timezone="Asia/Tokyo",
    )
    assert found == [T0, T0]


@pytest.mark.parametrize(
    ("format_", "message"),
    [
        ("%Y-%m-%d %Q", "%Q"),
        ("%H:%M", "one date"),
        ("%Y-%m", "one date"),
        ("%Y %Y-%m-%d", "twice"),
        ("%Y-%m-%d %I", "%p"),
        ("%Y-%m-%d %", "%"),
    ],
)
def test_a_format_that_cannot_be_read_is_a_settings_error(tmp_path, format_, message):
    with pytest.raises(ValueError, match=message):
        TimePattern.compile(format_)
    (tmp_path / "x.csv").write_text("ts,kwh\n")
    readings = Readings(series=Constant(constant="h"), time="ts", value="kwh", time_format=format_)
    with pytest.raises(SettingsError, match=r"readings\.time_format"):
        decode(FileSource(csv=str(tmp_path / "x.csv")), readings)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_numbers_count_the_unit_of_the_settings_since_1970(unit):
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    count = 1356998400 * per_second
    for kind in (pa.int64(), pa.uint64(), pa.float64(), pa.utf8()):
        assert read(pa.array([count]).cast(kind, safe=False), time_unit=unit) == [T0]
    assert read(pa.array([Decimal(count)]), time_unit=unit) == [T0]
    assert read(pa.array([count, None]), time_unit=unit) == [T0, WRONG]


def test_numbers_outside_every_calendar_are_rejects_not_overflows():
    ends = [np.iinfo(np.int64).max, np.iinfo(np.int64).min, 0]
    for unit in ("s", "ms", "us"):
        assert read(pa.array(ends, pa.int64()), time_unit=unit) == [WRONG, WRONG, 0]
    assert read(pa.array([2**64 - 1, 0], pa.uint64())) == [WRONG, 0]
    assert read(pa.array([np.inf, -np.inf, np.nan, 1e300, 0.0000004])) == [WRONG, WRONG, WRONG, WRONG, 0]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_of_any_unit_and_zone_are_instants(unit):
    aware = pa.array([T0 // 10**6], pa.timestamp("s", tz="America/Vancouver")).cast(
        pa.timestamp(unit, tz="America/Vancouver")
    )
    naive = pa.array([T0 // 10**6, None], pa.timestamp("s")).cast(pa.timestamp(unit))
    assert read(aware, timezone="Asia/Tokyo") == [T0]
    assert read(naive, timezone="Asia/Tokyo") == [T0 - 9 * 3600 * 10**6, WRONG]


def test_dates_are_midnights_of_the_zone():
    for kind in (pa.date32(), pa.date64()):
        assert read(pa.array([dt.date(2013, 1, 1)], kind), timezone="Asia/Tokyo") == [T0 - 9 * 3600 * 10**6]


def test_several_columns_of_any_types_are_joined_with_a_blank():
    day, hour = pa.array([dt.date(2013, 1, 1), None]), pa.array([7, 8], pa.int32())
    times, problems = TimeReader(time_format="%Y-%m-%d %H").read([day, hour])
    assert times[0] == T0 + 7 * 3600 * 10**6
    assert problems[0].rows.tolist() == [False, True]


ZONES = [
    "America/Vancouver",
    "Europe/London",
    "Australia/Lord_Howe",
    "Asia/Kolkata",
    "Africa/Casablanca",
    "Pacific/Apia",
    "America/Sao_Paulo",
]


@pytest.mark.night
@pytest.mark.parametrize("ambiguous", ["earliest", "latest"])
@pytest.mark.parametrize("zone", ZONES)
def test_every_local_half_hour_of_two_years_is_placed_as_zoneinfo_places_it(zone, ambiguous):
    start = dt.datetime(2010, 12, 30)
    stamps = [start + dt.timedelta(minutes=30 * i) for i in range(2 * 366 * 48)]
    local = np.array([micros(stamp) for stamp in stamps])
    utc, skipped = LocalClock(zone, ambiguous).to_utc(local)
    rules = ZoneInfo(zone)
    fold = 0 if ambiguous == "earliest" else 1
    doubled = 0
    for stamp, instant, absent in zip(stamps, utc.tolist(), skipped.tolist(), strict=True):
        aware = stamp.replace(tzinfo=rules, fold=fold)
        back = aware.astimezone(dt.UTC).astimezone(rules).replace(tzinfo=None, fold=0)
        assert absent == (back != stamp)
        if not absent:
            assert instant == micros(aware)
            doubled += micros(stamp.replace(tzinfo=rules, fold=0)) != micros(stamp.replace(tzinfo=rules, fold=1))
    assert zone == "Asia/Kolkata" or doubled > 0


ZONE = ZoneInfo("Europe/Berlin")
#: Half-hours around the end of summer time in two years: 27 October 2013 and 26 October 2014 have 02:00 to 03:00 twice.
INSTANTS = [
    dt.datetime(year, 10, day, 22, tzinfo=dt.UTC) + n * dt.timedelta(minutes=30)
    for year, day in ((2013, 26), (2014, 25))
    for n in range(16)
]
LOCAL = [instant.astimezone(ZONE).strftime("%Y-%m-%d %H:%M") for instant in INSTANTS]
MICROS = [int(instant.timestamp() * 1e6) for instant in INSTANTS]
LONG: dict[str, Any] = {"series": "home", "time": "ts", "value": "kwh", "ambiguous": "in-order"}


def read_doubled(reader: ReadReadings) -> list[tuple[str, float, int]]:
    """Series, value and instant of each reading, in this order."""
    found: list[tuple[str, float, int]] = []
    for _, part in reader.decoded():
        assert part.readings is not None
        times = part.readings["time"].cast(pa.int64()).to_pylist()
        found += zip(part.readings["series"].to_pylist(), part.readings["value"].to_pylist(), times, strict=True)
    return sorted(found)


def reader(path: Path, readings: dict[str, Any], **how: Any) -> ReadReadings:
    source = FileSource.model_validate({"parquet" if path.suffix == ".parquet" else "csv": str(path)})
    return ReadReadings(source, Readings.model_validate(readings), timezone="Europe/Berlin", **how)


EXPECTED = sorted((home, float(n), micros) for home in ("a", "b") for n, micros in enumerate(MICROS))


@pytest.mark.parametrize("batch_rows", [1, 1 << 17])
@pytest.mark.parametrize("by_time", [False, True])
def test_rows_that_step_back_are_in_the_second_hour(tmp_path: Path, batch_rows: int, *, by_time: bool) -> None:
    assert LOCAL[4:8] == ["2013-10-27 02:00", "2013-10-27 02:30", "2013-10-27 02:00", "2013-10-27 02:30"]
    rows = [(n, home) for home in ("a", "b") for n in range(len(LOCAL))]
    rows = sorted(rows) if by_time else rows
    text = "\n".join(["home,ts,kwh", *(f"{home},{LOCAL[n]},{n}" for n, home in rows)])
    (tmp_path / "x.csv").write_text(text, encoding="utf-8")
    assert read_doubled(reader(tmp_path / "x.csv", LONG, batch_rows=batch_rows)) == EXPECTED
    plain = read_doubled(reader(tmp_path / "x.csv", {**LONG, "ambiguous": "earliest"}))
    assert sum(one != other for one, other in zip(plain, EXPECTED, strict=True)) == 8


def test_row_groups_of_parquet_are_one_order(tmp_path: Path) -> None:
    columns = {"home": ["a"] * len(LOCAL), "ts": np.array(LOCAL, "datetime64[us]"), "kwh": np.arange(len(LOCAL)) * 1.0}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet", row_group_size=5)
    made = reader(tmp_path / "x.parquet", LONG, batch_rows=3)
    assert len(made.tasks) == 1
    assert read_doubled(made) == [one for one in EXPECTED if one[0] == "a"]
    assert len(reader(tmp_path / "x.parquet", {**LONG, "ambiguous": "latest"}, batch_rows=1).tasks) > 1


def test_each_file_has_a_separate_order_of_rows(tmp_path: Path) -> None:
    for home in ("a", "b"):
        text = "\n".join(["home,ts,kwh", *(f"same,{local},{n}" for n, local in enumerate(LOCAL))])
        (tmp_path / f"{home}.csv").write_text(text, encoding="utf-8")
    found = read_doubled(reader(tmp_path / "*.csv", LONG))
    assert found == sorted([("same", value, micros) for _, value, micros in EXPECTED])


def test_a_repeated_hour_is_recognised_if_the_first_one_has_gaps(tmp_path: Path) -> None:
    """Of the first hour only 02:00 is there, so that 02:30 of the second one rises above all before it."""
    kept = [n for n in range(16) if n != 5]
    text = "\n".join(["home,ts,kwh", *(f"a,{LOCAL[n]},{n}" for n in kept)])
    (tmp_path / "x.csv").write_text(text, encoding="utf-8")
    assert read_doubled(reader(tmp_path / "x.csv", LONG)) == [("a", float(n), MICROS[n]) for n in kept]


def test_an_order_of_rows_is_refused_for_sources_without_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"readings\.ambiguous is in-order, .* the source has messages"):
        check_message(Readings.model_validate(LONG), None)
    text = EXAMPLE.replace("scale: 2000", "scale: 2000, ambiguous: in-order").replace("parquet: data", "csv: data")
    with pytest.raises(SettingsError, match=r"in-order, and files that are followed may be read from their middle"):
        live_source(load_settings(text, folder=tmp_path))


@pytest.mark.parametrize("each", [pa.array([T0, None], pa.int64()), pa.array([T0, None], pa.timestamp("us"))])
def test_a_null_in_the_dictionary_of_a_column_is_no_time(each: pa.Array) -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int32()), each)
    times, problems = TimeReader(time_unit="us").read([column])
    assert times[0] == T0
    assert [(problem.reason, problem.rows.tolist()) for problem in problems] == [
        (RejectReason.UNPARSABLE_TIME, [False, True, True])
    ]
