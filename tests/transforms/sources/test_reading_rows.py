"""Readings of a pipeline's own, as dicts, rows and data frames, against the same as record batches."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.pvalue import Row
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.transforms.window import FixedWindows, TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from quiltstream.schemas.readings import GROUPED_READING_SCHEMA, READING_SCHEMA
from quiltstream.schemas.releases import releases_from_batch
from quiltstream.schemas.settings.connectors import FileSource
from quiltstream.schemas.settings.job import Settings
from quiltstream.schemas.settings.readings import Readings
from quiltstream.schemas.states import StateSpace
from quiltstream.transforms import PrivateHistograms, ReadingsError
from quiltstream.transforms.aggregate.rosters import first_sight
from quiltstream.transforms.common.batches import reading_columns
from quiltstream.transforms.formats.rows import Labels
from quiltstream.transforms.formats.times import TimeReader
from quiltstream.transforms.register import DiscoverSchedule
from quiltstream.transforms.sources.files import ReadReadings
from quiltstream.transforms.sources.reading_rows import BatchRows, log_irregular

from ..formats.decoding import decoded_parts

HOUR = dt.timedelta(hours=1)
START = dt.datetime(2024, 3, 1, tzinfo=dt.UTC)
AT = Timestamp(0)


class Reading(NamedTuple):
    series: str
    time: Timestamp
    value: float


@dataclass
class Measured:
    series: str
    time: dt.datetime
    value: float


WATTS = StateSpace((1.0,))


def gathered(
    *elements: Any, timezone: str = "UTC", grouped: bool = False, space: StateSpace = WATTS
) -> list[pa.RecordBatch]:
    made = BatchRows(TimeReader(timezone), space, GROUPED_READING_SCHEMA if grouped else READING_SCHEMA)
    made.start_bundle()
    found = [one for element in elements for one in made.process(element, AT)]
    return [*found, *(one.value for one in made.finish_bundle())]


def rejects(batch: pa.RecordBatch, *, grouped: bool = False) -> dict[str, list[bool]]:
    return {reason.value: bad.tolist() for reason, bad in reading_columns(batch, grouped=grouped).problems}


def row(**changes: Any) -> dict[str, Any]:
    return {"series": "m1", "time": START, "value": 1.5, **changes}


@pytest.mark.parametrize(
    "element",
    [
        row(),
        row(extra="ignored", value=Decimal("1.5"), time="2024-03-01T00:00:00Z"),
        Row(**row(time=Timestamp.from_utc_datetime(START))),
        Reading("m1", Timestamp.from_utc_datetime(START), 1.5),
        Measured("m1", START, 1.5),
        row(time=np.datetime64("2024-03-01T00:00"), value=np.float32(1.5)),
        row(time=dt.datetime(2024, 3, 1, 1, tzinfo=dt.timezone(HOUR))),
    ],
    ids=["dict", "texts", "Row", "NamedTuple", "dataclass", "numpy", "offset"],
)
def test_an_element_with_the_fields_is_a_reading(element: Any) -> None:
    (batch,) = gathered(element)
    assert batch.schema == READING_SCHEMA
    assert batch.to_pylist() == [{"series": "m1", "time": START, "value": 1.5}]


def test_times_without_an_offset_are_of_the_zone_of_the_settings() -> None:
    given = [row(time=dt.datetime(2024, 7, 1, 12)), row(time="2024-07-01T12:00")]
    (batch,) = gathered(*given, timezone="Europe/London")
    assert set(batch.column("time").to_pylist()) == {dt.datetime(2024, 7, 1, 11, tzinfo=dt.UTC)}


@pytest.mark.parametrize("year", [1899, 2201, None], ids=["too early", "too late", "beyond any calendar"])
def test_times_of_a_record_batch_outside_the_calendar_are_rejects(year: int | None) -> None:
    far = [-(2**63), 2**63 - 1]
    stamps = far if year is None else [int(np.datetime64(f"{year}-06-01", "us").astype(np.int64))]
    kind = READING_SCHEMA.field("time").type
    columns = [pa.array(["b"] * (1 + len(stamps))), pa.array([0, *stamps], pa.int64()).cast(kind)]
    batch = pa.RecordBatch.from_arrays([*columns, pa.array([1.0] * len(columns[0]))], ["series", "time", "value"])
    found = reading_columns(batch)
    assert {reason.value: bad.tolist() for reason, bad in found.problems} == {
        "unparsable-time": [False, *(True for _ in stamps)]
    }
    assert found.times.tolist() == [0, *(0 for _ in stamps)]


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/London"])
def test_a_data_frame_is_read_as_its_rows(unit: Any, zone: str | None) -> None:
    time = pl.Series([dt.datetime(2024, 7, 1, 12, 30), None], dtype=pl.Datetime(unit, zone))
    frame = pl.DataFrame({"value": [3, 4], "time": time, "series": ["a", "b"]})
    (batch,) = gathered(frame, timezone="Europe/London")
    expected = dt.datetime(2024, 7, 1, 12 if zone == "UTC" else 11, 30, tzinfo=dt.UTC)
    if zone == "Europe/London":  # polars' naive times of a zone are UTC
        expected += HOUR
    assert batch.schema == READING_SCHEMA
    assert batch.to_pylist() == [
        {"series": "a", "time": expected, "value": 3.0},
        {"series": "b", "time": None, "value": 4.0},
    ]


@pytest.mark.parametrize(
    ("frame", "reason", "message"),
    [
        (
            pl.DataFrame({"series": ["a"] * 2, "time": ["2024-03-01"] * 2}),
            "malformed-row",
            "a table without the column value",
        ),
        (
            pl.DataFrame({"series": ["a"] * 2, "time": [1709251200] * 2, "value": [1.0] * 2}),
            "unparsable-time",
            "readings.time is of the type int64, whose unit is not known",
        ),
    ],
)
def test_all_rows_of_a_frame_with_an_irregular_column_are_rejects(
    frame: Any, reason: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    log_irregular.cache_clear()
    irregular, good = gathered(frame, row())
    assert rejects(irregular) == {reason: [True, True]}
    assert rejects(good) == {}
    assert message in caplog.text
    assert caplog.text.count("rejected as") == 1


def test_rows_with_missing_or_unencodable_fields_are_tallied_by_reason() -> None:
    given = [
        row(value=None),
        row(series=None),
        row(time="noon"),
        row(time=None),
        row(value=float("nan")),
        row(series="half \ud800"),
        row(series=10**5000),
        row(value=Decimal("sNaN")),
        row(time=np.datetime64("20000-01-01")),
        row(time="99999-01-01"),
        row(value=_Neither()),
        row(series=_Neither()),
        row(time=_Neither()),
    ]
    (batch,) = gathered(*given, row(series=7, value=10**400))
    assert {reason: sum(bad) for reason, bad in rejects(batch).items()} == {
        "missing-value": 2,
        "missing-series": 4,
        "unparsable-time": 5,
        "not-finite": 2,
    }
    assert batch.column("series").to_pylist()[-1] == "7"
    assert batch.column("value").to_pylist()[-1] == np.finfo(np.float64).max


class _Neither:
    """Neither equal to itself nor not, as the absent value of some data frames."""

    def __eq__(self, _: object) -> bool:
        raise TypeError

    __ne__ = __eq__
    __hash__ = None  # type: ignore[assignment]


def test_a_name_longer_than_the_limit_is_a_reject_from_any_source(tmp_path: Path) -> None:
    names = ["m" * 1_000, "\N{GREEK SMALL LETTER MU}" * 1_000, "m" * 1_001, "m" * 1_000_000, "", "m1"]
    times = pa.array([START] * 6, READING_SCHEMA.field("time").type)
    columns = [pa.array(names).dictionary_encode(), times, pa.array([1.0] * 6)]
    groups = pa.array(["g", "g" * 1_001, "g", "g" * 1_001, "g", "g"]).dictionary_encode()
    found = reading_columns(pa.RecordBatch.from_arrays(columns, READING_SCHEMA.names))
    long = [("malformed-row", [False] * 2 + [True] * 2 + [False] * 2), ("missing-series", [False] * 4 + [True, False])]
    assert [(reason.value, bad.tolist()) for reason, bad in found.problems] == long
    found = reading_columns(pa.RecordBatch.from_arrays([*columns, groups], GROUPED_READING_SCHEMA.names), grouped=True)
    assert found.good.tolist() == [True, False, False, False, False, True]
    for kind in ("jsonl", "csv", "parquet"):
        path = tmp_path / f"x.{kind}"
        table = pl.DataFrame({"series": names, "time": ["2013-01-01T00:00:00Z"] * 6, "value": [1.0] * 6})
        {"jsonl": table.write_ndjson, "csv": table.write_csv, "parquet": table.write_parquet}[kind](path)
        source = FileSource.model_validate({kind: str(path)})
        parts = decoded_parts(ReadReadings(source, Readings(series="series", time="time", value="value")))
        first = 2 if kind == "csv" else 1
        rejects = {
            reject.reason.value: (reject.positions - first).tolist() for part in parts for reject in part.rejects
        }
        assert rejects == {"malformed-row": [2, 3], "missing-series": [4]}
        read = [part.readings.column("series") for part in parts if part.readings is not None]
        assert [name for one in read for name in one.to_pylist()] == [names[0], names[1], names[5]]
        # what is rejected does not go with what is kept
        assert max(len(name) for one in read for name in one.dictionary.to_pylist()) == 1_000


def test_a_name_that_stands_twice_in_a_dictionary_joins_with_one_group() -> None:
    """Arrow allows it; a live job would put the series on record in two groups, and reject its readings in both."""
    names = pa.DictionaryArray.from_arrays(pa.array([1, 0, 2], pa.int32()), pa.array(["m1", "m1", "m2"]))
    times = pa.array([START, START + HOUR, START], READING_SCHEMA.field("time").type)
    groups = pa.array(["north", "south", "south"]).dictionary_encode()
    batch = pa.RecordBatch.from_arrays([names, times, pa.array([1.0] * 3), groups], schema=GROUPED_READING_SCHEMA)
    found = reading_columns(batch, grouped=True)
    assert first_sight(found, found.good) == (("m1", "north"), ("m2", "south"))
    alone = replace(found, groups=None, group=None)
    assert first_sight(alone, alone.good) == (("m1", None), ("m2", None))


@pytest.mark.parametrize(("ambiguous", "hour"), [("earliest", 0), ("latest", 1)])
def test_a_repeated_hour_follows_the_settings_and_a_skipped_hour_is_rejected(ambiguous: Any, hour: int) -> None:
    """02:30 in Berlin, on the days of the clock changes of 2024: in rows and in a table alike."""
    times = [dt.datetime(2024, 10, 27, 2, 30), dt.datetime(2024, 3, 31, 2, 30)]
    rows = [row(time=one) for one in times]
    for elements in (rows, [pa.table({"series": ["a", "b"], "time": times, "value": [1.0, 2.0]})]):
        made = BatchRows(TimeReader("Europe/Berlin", ambiguous), WATTS)
        made.start_bundle()
        found = [one for element in elements for one in made.process(element, AT)]
        (batch,) = [*found, *(one.value for one in made.finish_bundle())]
        assert batch.column("time").to_pylist() == [
            dt.datetime(2024, 10, 27, hour, 30, tzinfo=dt.UTC), None
        ]  # fmt: skip


CODES = StateSpace((), categories=("1", "0", "true", "0.5"))


def outcomes(batch: pa.RecordBatch, space: StateSpace) -> list[str]:
    """Of each row of a batch its state's label, or why it is rejected."""
    found = reading_columns(batch)
    reasons = {at: reason.value for reason, bad in found.problems for at in np.flatnonzero(bad).tolist()}
    good = space.are_states(found.values)
    return [
        reasons.get(at) or (space.labels[int(value)] if good[at] else "unknown-label")
        for at, value in enumerate(found.values.tolist())
    ]


def of_parquet(folder: Path, values: pa.Array, space: StateSpace) -> list[str]:
    pq.write_table(
        pa.table({"series": ["m1"] * len(values), "time": [START] * len(values), "value": values}), folder / "x"
    )
    reader = ReadReadings(
        FileSource(parquet=str(folder / "x")),
        Readings(series="series", time="time", value="value"),
        labels=Labels(space),
    )
    found: dict[int, str] = {}
    for part in decoded_parts(reader):
        for one in part.rejects:
            found |= dict.fromkeys(one.positions.tolist(), one.reason.value)
        if part.readings is not None:
            assert part.rows is not None
            found |= dict(zip(part.rows.tolist(), outcomes(part.readings, space), strict=True))
    return [found[at] for at in sorted(found)]


@pytest.mark.parametrize("other", [None, "else", "0"])
@pytest.mark.parametrize(
    ("values", "meant"),
    [
        ([1, 0, 7, None], ["1", "0", "unknown-label", "missing-value"]),
        ([1.0, 0.0, 0.5, 1e16, None], ["1", "0", "0.5", "unknown-label", "missing-value"]),
        (["1", " 0 ", "1.0", ""], ["1", "0", "unknown-label", "missing-value"]),
    ],
    ids=["int", "float", "text"],
)
def test_codes_have_the_same_states_in_rows_frames_tables_and_files(
    tmp_path: Path, other: str | None, values: list[Any], meant: list[str]
) -> None:
    space = replace(CODES, other=other)
    expected = [other if one == "unknown-label" and other else one for one in meant]
    frame = pl.DataFrame({"series": ["m1"] * len(values), "time": [START] * len(values), "value": values})
    table = frame.to_arrow()
    at = table.schema.get_field_index("value")
    coded = table.set_column(at, "value", table["value"].combine_chunks().dictionary_encode())
    rows = [row(value=one) for one in values]
    for given in (rows, [Row(**one) for one in rows], [frame], [table], [coded]):
        (batch,) = gathered(*given, space=space)
        assert outcomes(batch, space) == expected
    assert of_parquet(tmp_path, table["value"], space) == expected


@pytest.mark.parametrize("blank", ["", "  ", None])
def test_a_name_of_blanks_only_is_absent_in_rows_and_record_batches(blank: str | None) -> None:
    (batch,) = gathered(
        row(series=blank, group="north"),
        row(group=blank),
        row(group="north"),
        row(series=" m2", group="s"),
        grouped=True,
    )
    for one in (batch, batch.set_column(0, "series", batch.column("series").cast(pa.utf8()))):
        found = reading_columns(one, grouped=True)
        assert {reason.value: bad.tolist() for reason, bad in found.problems} == {
            "missing-series": [True, False, False, False],
            "group-conflict": [False, True, False, False],
        }
        seen = DiscoverSchedule(grouped=True)
        groups, _ = seen.add_input(seen.create_accumulator(), one).members()
        assert groups == {"m1": "north", " m2": "s"}
        assert set(first_sight(found, found.good)) == {(" m2", "s"), ("m1", "north")}


def test_a_batch_has_the_earliest_instant_of_its_elements() -> None:
    made = BatchRows(TimeReader("UTC"), WATTS)
    made.start_bundle()
    for seconds in (30, 10, 20):
        assert list(made.process(row(), Timestamp(seconds))) == []
    (batch,) = list(made.finish_bundle())
    assert batch.timestamp == Timestamp(10)
    assert batch.value.num_rows == 3
    many = [one for _ in range(8_192) for one in made.process(row(), Timestamp(5))]
    assert [(type(one), one.timestamp, one.value.num_rows) for one in many] == [(TimestampedValue, Timestamp(5), 8_192)]
    assert list(made.finish_bundle()) == []


IRREGULAR: list[tuple[Any, str, str]] = [
    ("m1,2024,1.5", "malformed-row", r"of the type str without the field series: .* dicts, beam\.Row, .* beam\.Map"),
    (row(value="1.5"), "not-a-number", r"readings\.value is of the type str, and must be a number in the unit of"),
    (row(value=np.timedelta64(1, "s")), "not-a-number", r"readings\.value is of the type timedelta64"),
    (row(time=1709251200), "unparsable-time", r"readings\.time is of the type int, whose unit is not known"),
    (row(series=1.5), "missing-series", r"readings\.series is of the type float, and must be a text"),
    ({"series": "m1", "value": 1.5}, "malformed-row", r"of the type dict without the field time"),
]


@pytest.mark.parametrize(("element", "reason", "message"), IRREGULAR)
def test_an_irregular_element_is_a_reject_and_its_type_is_logged_once(
    element: Any, reason: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What a sender sends never ends a job; its value is not in the log."""
    log_irregular.cache_clear()
    (batch,) = gathered(row(), element, element, row())
    assert rejects(batch) == {reason: [False, True, True, False]}
    assert DiscoverSchedule().add_input(DiscoverSchedule().create_accumulator(), batch).tally == {
        "readings": 2,
        f"rejected-{reason}": 2,
    }
    assert re.search(message, caplog.text)
    assert caplog.text.count(f"rejected as {reason}") == 1
    assert "1.5" not in caplog.text
    assert "1709251200" not in caplog.text


def document(folder: Path) -> dict[str, Any]:
    return {
        "slots": {"interval": "1h", "origin": "2024-03-01"},
        "states": {"edges": [1.0], "unit": "kW"},
        "model": {"pi_min": 0.2, "gap": 0.5},
        "windows": {"size": "1d", "start": "2024-03-01", "stop": "2024-03-03"},
        "privacy": {"epsilon": 1.0},
        "query": "daily",
        "domain": "homes",
        "ledger": f"sqlite:///{folder / 'ledger.db'}",
    }


def job(folder: Path) -> Settings:
    return Settings.parse(document(folder) | {"most_error": 1e6})


@pytest.mark.night
def test_rows_give_the_releases_of_equal_record_batches(tmp_path: Path) -> None:
    rows = [row(series=f"m{n % 3}", time=START + n * HOUR / 3, value=float(n % 5)) for n in range(144)]
    times = pa.array([one["time"] for one in rows], pa.timestamp("us", tz="UTC"))
    columns = [pa.array([one["series"] for one in rows]).dictionary_encode(), times, [one["value"] for one in rows]]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(one) if isinstance(one, list) else one for one in columns], schema=READING_SCHEMA
    )
    seen: dict[str, Any] = {}
    given: dict[str, tuple[list[Any], Any]] = {
        "batches": ([batch], None),
        "dicts": (rows, None),
        "rows": ([Row(**one) for one in rows], FixedWindows(60)),
    }
    for name, (elements, windows) in given.items():
        folder = tmp_path / name
        folder.mkdir()
        with beam.Pipeline(runner=FnApiRunner()) as pipeline:
            readings: Any = pipeline | beam.Create(elements)
            if windows is not None:
                readings = readings | beam.WindowInto(windows)
            published: Any = readings | PrivateHistograms(job(folder), noise="none")
            _ = published.releases | beam.Map(_write, str(folder / "rows"))
        seen[name] = {
            (one.key, one.window_start): list(one.counts)
            for file in folder.glob("rows*")
            for one in releases_from_batch(pa.ipc.open_file(file).read_all())
        }
    assert len(seen["batches"]) == 6
    assert seen["dicts"] == seen["batches"]
    assert seen["rows"] == seen["batches"]


def _write(batch: pa.RecordBatch, path: str) -> None:
    name = f"{path}-{len(list(Path(path).parent.glob(f'{Path(path).name}*')))}"
    with pa.OSFile(name, "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)


@pytest.mark.parametrize(
    ("elements", "message"),
    [
        (["a line of a file"], r"readings are of the type str: PrivateHistograms takes"),
        ([("m1", {"value": 1})], r"readings are of the type Tuple"),
        ([Row(meter="m1", time=0, value=1.0)], r"rows without the field series"),
    ],
)
def test_elements_of_a_wrong_type_are_refused_at_construction(
    tmp_path: Path, elements: list[Any], message: str
) -> None:
    pipeline = beam.Pipeline(runner=FnApiRunner())
    with pytest.raises(ReadingsError, match=message):
        _ = pipeline | beam.Create(elements) | PrivateHistograms(job(tmp_path))
    assert not (tmp_path / "ledger.db").exists()
