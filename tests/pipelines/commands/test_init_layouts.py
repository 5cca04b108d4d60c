"""``init`` on files as the world writes them: what it writes reads every row, which ``check`` counts."""

from __future__ import annotations

import bz2
import csv
import datetime as dt
import errno
import gzip
import itertools
import json
import os
import random
import zipfile
from collections.abc import Callable, Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from quiltstream.pipelines.init.rhythm import slot_of
from quiltstream.schemas.settings.job import Settings, read_settings
from quiltstream.schemas.settings.mappings import Constant, Readings

from ...present import present
from ..jobs import START, Done, call

METERS = ("Zähler 1", "Zähler 2", "Zähler 3")
STEPS = [START + slot * dt.timedelta(minutes=30) for slot in range(96)]


def value(meter: int, slot: int) -> float:
    return round(0.25 + 0.5 * ((meter + slot) % 5), 2)


def lines(
    stamp: Callable[[dt.datetime], str] = lambda at: at.isoformat(),
    *,
    header: tuple[str, ...] = ("meter", "time", "kwh"),
    delimiter: str = ",",
    decimal: str = ".",
    first: Callable[[int], list[str]] = lambda _: [],
) -> str:
    """Three meters for two days, one row a half-hour."""
    rows = [(meter, slot) for meter in range(3) for slot in range(96)]
    text = [delimiter.join(header)]
    text += [
        delimiter.join([*first(at), METERS[meter], stamp(STEPS[slot]), str(value(meter, slot)).replace(".", decimal)])
        for at, (meter, slot) in enumerate(rows)
    ]
    return "\n".join(text) + "\n"


def with_values(cell: Callable[[int], object]) -> list[str]:
    """The rows of :func:`lines` with other values."""
    return [f"{row.rsplit(',', 1)[0]},{cell(at)}" for at, row in enumerate(lines().splitlines()[1:])]


def begun(folder: Path, names: str, rows: Iterable[str], *words: str) -> Done:
    """What ``init`` says of a CSV file of these names and rows, with further words."""
    (folder / "x.csv").write_text("\n".join([names, *rows]), encoding="utf-8")
    return call("init", folder / "x.csv", *words, "-o", folder / "settings.yaml")


def begun_on(folder: Path, end: str, rows: list[dict[str, Any]], *words: str) -> Done:
    """What ``init`` says of lines of JSON or of a Parquet file."""
    path = folder / f"x.{end}"
    if end == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return call("init", path, *words, "-o", folder / "settings.yaml", "--force")


def mapped(folder: Path) -> Readings:
    """The mapping that ``init`` wrote."""
    return present(read_settings(folder / "settings.yaml").readings)


def checked(folder: Path) -> dict[str, Any]:
    """What ``check`` finds by the settings that ``init`` wrote."""
    return json.loads(call("check", "--json", folder / "settings.yaml").out)


def described(folder: Path, name: str, data: bytes | str, given: str | None = None) -> Settings:
    """What ``init`` makes of a file; ``check`` finds every row in it."""
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    call("init", folder / (given or name), "-o", folder / "settings.yaml").ended(0)
    found = checked(folder)
    assert (found["readings"], found["series"], found["rejected"]) == (288, 3, [])
    assert (found["not_in_roster"], found["silent"], found["step"]) == (0, [], 1_800_000_000)
    assert (found["first"], found["last"]) == ("2024-03-01T00:00:00Z", "2024-03-02T23:30:00Z")
    with (folder / "roster.csv").open(encoding="utf-8", newline="") as file:
        assert list(csv.reader(file)) == [["series", "group"], *([meter, "all"] for meter in METERS)]
    return read_settings(folder / "settings.yaml")


def labels_taken(folder: Path, name: str) -> None:
    """Settings of a file whose column ``activity`` has the labels that are states."""
    call("init", folder / name, "--value", "activity", "-o", folder / "settings.yaml", "--force").ended(0)
    text = (folder / "settings.yaml").read_text(encoding="utf-8")
    (folder / "settings.yaml").write_text(text.replace("categories: ???", "categories: [sit, sleep, walk]"), "utf-8")


def german(at: dt.datetime) -> str:
    return at.strftime("%d.%m.%Y %H:%M:%S")


def test_a_german_export_has_semicolons_commas_and_an_older_encoding(tmp_path: Path) -> None:
    text = lines(german, header=("Zähler", "Zeit", "kWh"), delimiter=";", decimal=",")
    made = described(tmp_path, "export.csv", text.replace("\n", "\r\n").encode("windows-1252"))
    assert (present(made.source).delimiter, present(made.source).encoding) == (";", "windows-1252")
    select = present(present(made.readings).select)
    assert "num_marks(kWh, '', ',')" in select
    assert present(made.readings).time_format == "%d.%m.%Y %H:%M:%S"


def test_a_sheet_saved_as_unicode_text_is_utf_16_with_tabs(tmp_path: Path) -> None:
    made = described(tmp_path, "sheet.txt", lines(delimiter="\t").encode("utf-16"))
    assert (present(made.source).delimiter, present(made.source).encoding) == ("\t", "utf-16")


def test_a_byte_order_mark_is_not_read_as_part_of_the_first_name(tmp_path: Path) -> None:
    assert present(described(tmp_path, "marked.csv", b"\xef\xbb\xbf" + lines().encode()).readings).series == "meter"


@pytest.mark.night
@pytest.mark.parametrize("form", ["%m/%d/%Y %I:%M:%S %p", "%d/%m/%Y %I:%M %p"])
def test_hours_before_and_after_noon_are_distinguished(tmp_path: Path, form: str) -> None:
    # three weeks, so that a day cannot be a month
    later = dt.timedelta(days=20)
    text = lines(lambda at: (at + later).strftime(form))
    assert begun(tmp_path, text, ()).code == 0
    assert mapped(tmp_path).time_format == form
    found = checked(tmp_path)
    assert (found["readings"], found["first"]) == (288, "2024-03-21T00:00:00Z")


@pytest.mark.night
@pytest.mark.parametrize("form", ["%Y%m%d%H%M", "%Y%m%d%H%M%S"])
def test_times_of_digits_are_not_read_as_counts_since_1970(tmp_path: Path, form: str) -> None:
    made = described(tmp_path, "x.csv", lines(lambda at: at.strftime(form)))
    assert (present(made.readings).time_format, present(made.readings).time_unit) == (form, "s")
    rows = [{"meter": "m", "time": int(at.strftime(form)), "kwh": 0.5} for at in STEPS]
    begun_on(tmp_path, "parquet", rows).ended(2, "the times in time are digits of a date in a column of numbers")


@pytest.mark.night
@pytest.mark.parametrize("form", ["%Y%m%dT%H%M", "%Y%m%dT%H%M%S.%f+00:00"])
def test_basic_times_of_iso_8601_have_a_format_that_a_run_reads(tmp_path: Path, form: str) -> None:
    made = described(tmp_path, "x.csv", lines(lambda at: at.strftime(form)))
    assert present(made.readings).time_format == form.replace("+00:00", "%z")


def test_basic_days_of_iso_8601_have_a_format_that_a_run_reads(tmp_path: Path) -> None:
    days = [f"{dt.date(2024, 3, 1) + dt.timedelta(days=one):%Y%m%d}" for one in range(20)]
    rows = [{"meter": name, "date": day, "kwh": float(day[-1])} for name in "ab" for day in days]
    begun_on(tmp_path, "jsonl", rows).ended(0)
    found = checked(tmp_path)
    assert (found["readings"], found["rejected"], found["first"]) == (40, [], "2024-03-01T00:00:00Z")


@pytest.mark.parametrize("stamp", ["{0:%G}-W{0:%V}-{0:%u}T{0:%H:%M}", "{:%Y-%j %H:%M}"])
def test_times_that_no_run_reads_are_no_times(tmp_path: Path, stamp: str) -> None:
    begun(tmp_path, "meter,time,kwh", [f"m,{stamp.format(at)},0.5" for at in STEPS]).ended(
        2, "none of its columns, meter, time, kwh, looks like a time"
    )


DAY, STAMP = "%Y-%m-%d", "%Y-%m-%d %H:%M:%S"


@pytest.mark.night
@pytest.mark.parametrize("kind", ["csv", "jsonl", "days and texts", "times of day", "midnights"])
@pytest.mark.parametrize(
    ("columns", "read"),
    [
        ({"stamp": STAMP, "hour": "%H"}, "stamp"),
        ({"date": DAY, "time": STAMP}, "time"),
        ({"date": DAY, "time": "%H:%M"}, ["date", "time"]),
        ({"time_of_day": "%H:%M:%S", "date": DAY}, ["date", "time_of_day"]),
    ],
)
def test_a_time_is_preferred_to_its_day_which_is_read_with_its_hour(
    tmp_path: Path, kind: str, columns: dict[str, str], read: str | list[str]
) -> None:
    rows = [
        {"meter": METERS[meter]}
        | {name: at.strftime(form) for name, form in columns.items()}
        | {"kwh": value(meter, slot)}
        for meter in range(3)
        for slot, at in enumerate(STEPS)
    ]
    kinds = {
        "days and texts": {DAY: pa.date32()},
        "times of day": {DAY: pa.date32(), STAMP: pa.timestamp("ns"), "%H": pa.int64()},
        "midnights": {DAY: pa.timestamp("us")},
    }
    table = pa.Table.from_pylist(rows)
    for name, form in columns.items():
        column = table[name].cast(kinds.get(kind, {}).get(form, pa.utf8()))
        if kind == "times of day" and form == "%H:%M:%S":
            column = pa.array(map(dt.time.fromisoformat, column.to_pylist()))
        table = table.set_column(table.column_names.index(name), name, column)
    pq.write_table(table, tmp_path / "x.parquet")
    pa_csv.write_csv(table, tmp_path / "x.csv", pa_csv.WriteOptions(quoting_style="none"))
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    path = tmp_path / f"x.{kind if kind in ('csv', 'jsonl') else 'parquet'}"
    assert present(described(tmp_path, path.name, path.read_bytes()).readings).time == read


def activity(person: int, slot: int) -> str:
    return ("sleep", "sit", "walk")[(person + slot // 3) % 3]


def diary() -> pa.Table:
    """The activities of two people, each half an hour long."""
    half = dt.timedelta(minutes=30)
    return pa.Table.from_pylist(
        [
            {"subject": f"p{person}", "begin": at, "end": at + half, "activity": activity(person, slot)}
            for person in range(2)
            for slot, at in enumerate(STEPS)
        ]
    )


@pytest.mark.night
def test_times_finer_than_a_microsecond_are_read(tmp_path: Path) -> None:
    table = diary()
    for name in ("begin", "end"):
        stamps = [int(at.timestamp()) * 10**9 + 1 for at in table[name].to_pylist()]
        table = table.set_column(table.column_names.index(name), name, pa.array(stamps, pa.timestamp("ns")))
    for columns in (["end"], []):
        pq.write_table(table.drop_columns(columns), tmp_path / "x.parquet")
        call("init", tmp_path / "x.parquet", "--value", "activity", "-o", tmp_path / "s.yaml", "--force").ended(
            0, "interval 30min"
        )


OLD = int(pa.__version__.split(".")[0]) < 20
VIEWS = pytest.param(pa.string_view(), marks=pytest.mark.skipif(OLD, reason="older versions of Arrow write no views"))


@pytest.mark.night
@pytest.mark.parametrize("kind", [pa.dictionary(pa.int32(), pa.utf8()), VIEWS])
@pytest.mark.parametrize("columns", [("activity",), ("subject", "activity"), ("begin", "end"), ("subject",)])
def test_columns_of_categories_are_read_as_their_texts(
    tmp_path: Path, columns: tuple[str, ...], kind: pa.DataType
) -> None:
    table, made = diary(), list[str]()
    for of in (pa.utf8(), kind):
        for name in columns:
            column = table[name].cast(pa.utf8()).combine_chunks()
            column = column.dictionary_encode() if pa.types.is_dictionary(of) else column.cast(of)
            table = table.set_column(table.column_names.index(name), name, column)
        pq.write_table(table, tmp_path / "x.parquet")
        labels_taken(tmp_path, "x.parquet")
        made.append((tmp_path / "settings.yaml").read_text(encoding="utf-8"))
        found = checked(tmp_path)
        assert (found["readings"], found["rejected"]) == (192, [])
    assert made[0] == made[1]


def test_ids_that_no_integer_can_hold_are_series(tmp_path: Path) -> None:
    text = lines()
    for name in METERS:
        text = text.replace(name, f"1234567890123456789{name[-1]}")
    begun(tmp_path, text, ()).ended(0, "column meter, 3 seen")


def test_floats_that_name_series_are_not_passed_over(tmp_path: Path) -> None:
    rows = [{"meter": 1001.0 + one, "time": str(at), "kwh": 0.5} for one in range(3) for at in STEPS]
    begun(tmp_path, "meter,time,kwh", (",".join(map(str, row.values())) for row in rows)).ended(
        0, "column meter, 3 seen"
    )
    begun_on(tmp_path, "parquet", rows).ended(2, "is of type")


def test_the_number_of_each_row_without_a_name_is_left_out(tmp_path: Path) -> None:
    """``DataFrame.to_csv`` of pandas with its index."""
    made = described(tmp_path, "frame.csv", lines(header=("", "meter", "time", "kwh"), first=lambda at: [str(at)]))
    assert (present(made.readings).series, present(made.readings).value) == ("meter", "kwh")


def test_times_in_a_column_without_a_name_are_found(tmp_path: Path) -> None:
    """``DataFrame.to_csv`` of pandas with an index of times."""
    rows = [line.split(",") for line in lines().splitlines()[1:]]
    text = "\n".join([",meter,kwh", *(f"{time},{meter},{kwh}" for meter, time, kwh in rows)])
    assert "column0 as time" in (present(described(tmp_path, "indexed.csv", text).readings).select or "")


@pytest.mark.night
@pytest.mark.parametrize("end", ["csv.gz", "csv.bz2", "csv.zip", "zip"])
def test_compressed_files_are_inspected(tmp_path: Path, end: str) -> None:
    data = lines().encode()
    if end.endswith("zip"):
        with zipfile.ZipFile(tmp_path / f"x.{end}", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("inner/x.csv", data)
        packed = (tmp_path / f"x.{end}").read_bytes()
    else:
        packed = gzip.compress(data) if end == "csv.gz" else bz2.compress(data)
    assert described(tmp_path, f"x.{end}", packed).query == "x-histogram"


@pytest.mark.night
@pytest.mark.parametrize("given", ["inbox", "inbox/*.csv"])
def test_a_folder_and_a_pattern_are_all_their_files(tmp_path: Path, given: str) -> None:
    (tmp_path / "inbox").mkdir()
    header, *rows = lines().splitlines()
    (tmp_path / "inbox" / "a.csv").write_text("\n".join([header, *rows[:150]]) + "\n", encoding="utf-8")
    text = "\n".join([header, *rows[150:]]) + "\n"
    assert present(described(tmp_path, "inbox/b.csv", text, given).source).csv == "inbox/*.csv"


@pytest.mark.parametrize(
    ("names", "kinds"),
    [
        (("A.CSV", "b.csv"), "2 kinds, *.CSV, *.csv"),
        (("a.csv.gz", "b.txt.gz"), "2 kinds, *.csv.gz, *.txt.gz"),
        (("a.csv", "old/b.csv"), "2 kinds, *.csv, */*.csv"),
        (("a.csv", "b.zip"), "2 kinds, *.csv, *.zip"),
    ],
)
def test_a_folder_of_which_a_pattern_would_leave_files_out_is_refused(
    tmp_path: Path, names: tuple[str, str], kinds: str
) -> None:
    for name in names:
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(lines(), encoding="utf-8")
    first = tmp_path / "data" / f"*.{names[0].split('.', 1)[1]}"
    done = call("init", tmp_path / "data", "-o", tmp_path / "settings.yaml")
    done.ended(2, f"the folder has files of {kinds}; name those to read with a pattern such as '{first}'")
    assert not (tmp_path / "settings.yaml").exists()


@pytest.mark.parametrize("given", ["data", "data/*.csv", "*/*.csv"])
def test_a_folder_that_cannot_be_listed_is_not_called_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.csv").write_text(lines(), encoding="utf-8")
    scandir = os.scandir

    def refuse(folder: Any = ".") -> Any:
        if str(folder).rstrip("/").endswith("/data"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    done = call("init", tmp_path / given, "-o", tmp_path / "settings.yaml")
    done.ended(5, "data cannot be listed (Permission denied); give this user the right to list it")


@pytest.mark.night
@pytest.mark.parametrize("link", ["latest.csv", "current/2024-05.csv"])
def test_data_behind_a_link_keep_the_name_of_the_link(tmp_path: Path, link: str) -> None:
    (tmp_path / "2024-05").mkdir()
    (tmp_path / "current").symlink_to("2024-05")
    (tmp_path / "latest.csv").symlink_to("2024-05/2024-05.csv")
    assert present(described(tmp_path, "2024-05/2024-05.csv", lines(), link).source).csv == link
    # from another folder behind a link, out of which the path leads by the folder that it is
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "jobs").symlink_to("deep/er")
    call("init", tmp_path / link, "-o", tmp_path / "jobs" / "settings.yaml").ended(0)
    assert present(read_settings(tmp_path / "jobs" / "settings.yaml").source).csv == f"../../{link}"
    assert checked(tmp_path / "jobs")["readings"] == 288


@pytest.mark.parametrize("name", ["a\nb.csv", os.fsdecode(b"a\xff.csv"), "a\u2028b.csv"])
def test_a_name_that_no_settings_can_hold_is_refused_before_the_look(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"no table")
    said = "has a line break, a control character or a byte that is not UTF-8"
    call("init", tmp_path / name, "-o", tmp_path / "settings.yaml").ended(2, f"DATA: {name!r} {said}")
    call("init", tmp_path / "x.csv", "-o", tmp_path / name).ended(2, f"-o: {name!r} {said}")


def test_a_very_long_name_of_a_file_makes_shorter_names(tmp_path: Path) -> None:
    made = described(tmp_path, "x" * 215 + ".csv", lines())
    assert (made.domain, made.query) == ("x" * 150, "x" * 150 + "-histogram")


@pytest.mark.night
def test_a_counter_and_other_numeric_columns_are_reported(tmp_path: Path) -> None:
    rows = [f"m,{at.isoformat()},{100 + slot},{slot % 3}" for slot, at in enumerate(STEPS)]
    done = begun(tmp_path, "meter,time,kwh,volts", rows)
    assert done.said("series rise and hardly fall: read as a meter's counter, whose rise in a slot is the value")
    assert done.said("also numeric: volts: use --value")
    assert call("init", tmp_path / "x.csv", "--value", "volts", "-o", tmp_path / "other.yaml").code == 0
    assert present(read_settings(tmp_path / "other.yaml").readings).value == "volts"
    call("init", tmp_path / "x.csv", "--value", "time", "-o", tmp_path / "third.yaml").ended(
        2, "has the columns of numbers kwh, volts; name one"
    )
    assert not (tmp_path / "roster.csv").exists()  # of one series


SWAPPED = [*range(9_000, 9_060), *range(36)]  # a new meter after sixty half-hours
IDLE = [100 + slot // 8 for slot in range(96)]  # it rises eleven times
WAVE = [slot % 7 for slot in range(96)]
STAGES = [slot // 33 for slot in range(96)]


@pytest.mark.night
@pytest.mark.parametrize(
    ("series", "is_counter"),
    [
        ([SWAPPED, SWAPPED], True),
        ([IDLE] * 3, True),
        ([*[SWAPPED] * 9, WAVE], True),
        ([*[SWAPPED] * 8, WAVE], False),
        ([IDLE, IDLE, [7] * 96], False),
        ([STAGES] * 20, False),
        ([[1, *WAVE]], False),
    ],
)
def test_counters_are_judged_by_each_series(tmp_path: Path, series: list[list[int]], is_counter: bool) -> None:
    rows = [f"m{at},{STEPS[slot].isoformat()},{of[slot]}" for at, of in enumerate(series) for slot in range(96)]
    done = begun(tmp_path, "meter,time,level", rows).ended(0)
    assert done.said("read as a meter's counter") == is_counter


def test_meter_registers_of_an_export_are_read_as_increments(tmp_path: Path) -> None:
    """As a meter operator exports them: names by OBIS, semicolons, decimal commas, other quantities beside."""
    text = ["Zählpunkt;Zeitstempel;1.8.0 Wirkarbeit (kWh);Spannung L1;Strom L1"]
    for meter in range(3):
        total = 8604.308 + 1000 * meter
        for slot in range(97):
            at = START + slot * dt.timedelta(minutes=30)
            text.append(f"{METERS[meter]};{at:%d.%m.%Y %H:%M};" + f"{total:.3f};230.1;0.7".replace(".", ","))
            total += value(meter, slot)
    (tmp_path / "zähler.csv").write_text("\n".join(text), encoding="utf-8")
    done = call("init", tmp_path / "zähler.csv", "-o", tmp_path / "settings.yaml")
    assert done.said("value column 1.8.0 Wirkarbeit (kWh), kWh, times 2000 for W")
    assert done.said("also numeric: Spannung L1, Strom L1: use --value")
    made, readings = read_settings(tmp_path / "settings.yaml"), mapped(tmp_path)
    assert "num_marks(\"1.8.0 Wirkarbeit (kWh)\", '', ',')" in present(readings.select)
    assert readings.register_ is not None
    assert made.missing == "state"
    assert (readings.unit, readings.scale, made.states.unit) == ("kWh", 2000, "W")
    assert made.windows.start == "2024-03-01"
    found = checked(tmp_path)
    assert (found["readings"], found["counts"], found["rejected"]) == (288, 288, [])
    above = sum(value(meter, slot) > 1 for meter in range(3) for slot in range(96))
    assert found["bins"]["2000 W and above"] == pytest.approx(above / 288)


@pytest.mark.night
@pytest.mark.parametrize("minutes", [15, 30, 60])
def test_a_counter_is_seen_where_a_clock_set_back_doubles_an_hour(tmp_path: Path, minutes: int) -> None:
    zone, begin = ZoneInfo("Europe/Berlin"), dt.datetime(2024, 10, 26, tzinfo=dt.UTC)
    stamps = [begin + slot * dt.timedelta(minutes=minutes) for slot in range(2 * 1440 // minutes)]
    rows = [
        f"{m},{at.astimezone(zone):%Y-%m-%d %H:%M},{100 * m + slot}" for m in (1, 2) for slot, at in enumerate(stamps)
    ]
    done = begun(tmp_path, "meter,time,kwh", rows, "--timezone", "Europe/Berlin").ended(0)
    assert done.said("read as a meter's counter")
    assert done.said("told apart by the order of rows")
    found = checked(tmp_path)
    assert (found["rejected"], found["contradicting"]) == ([], 0)


def test_a_level_that_falls_is_no_counter_where_the_newest_rows_come_first(tmp_path: Path) -> None:
    rows = [
        f"{m},{START + slot * dt.timedelta(minutes=15):%Y-%m-%d %H:%M},{1000 - m - slot}"
        for m in (1, 2)
        for slot in reversed(range(192))
    ]
    assert not begun(tmp_path, "meter,time,level", rows).ended(0).said("read as a meter's counter")


def test_a_missing_settings_folder_is_created(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(lines(), encoding="utf-8")
    assert call("init", tmp_path / "x.csv", "-o", tmp_path / "north" / "settings.yaml").code == 0
    assert json.loads(call("check", "--json", tmp_path / "north" / "settings.yaml").out)["readings"] == 288


def test_a_zone_moves_the_windows_with_the_times(tmp_path: Path) -> None:
    """Nothing in the settings has an offset that would undo it."""
    assert begun(tmp_path, lines(lambda at: at.strftime("%Y-%m-%d %H:%M")), ()).code == 0
    text = (tmp_path / "settings.yaml").read_text(encoding="utf-8")
    (tmp_path / "settings.yaml").write_text(text.replace("timezone: UTC", "timezone: Asia/Tokyo"), encoding="utf-8")
    made = read_settings(tmp_path / "settings.yaml")
    first, _ = (made.grid.time_of(slot) for slot in (made.schedule.covered.start, made.schedule.covered.stop))
    assert first == int((START - dt.timedelta(hours=9)).timestamp() * 1e6)
    found = checked(tmp_path)
    assert (found["counts"], found["before"], found["after"]) == (288, 0, 0)


def categories(made: Settings) -> tuple[str, ...]:
    assert present(made.readings).value == "activity"
    return tuple(made.states.categories)


@pytest.mark.night
@pytest.mark.parametrize(
    ("begin", "seconds", "size", "start"),
    [
        ("08:00:00", 7200, "2h", "08:00:00"),
        ("08:00:07", 7200, "2h", "08:00:07"),
        ("23:00:00", 24 * 3600, "1d", "23:00:00"),
    ],
)
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_short_data_have_a_window_that_they_fill(
    tmp_path: Path, begin: str, seconds: int, size: str, start: str, zone: str
) -> None:
    step = 1 if seconds <= 7200 else 60
    first = dt.datetime.fromisoformat(f"2024-03-05T{begin}")
    times = [(first + dt.timedelta(seconds=at)).isoformat() for at in range(0, seconds, step)]
    rows = [f"{wearer},{time},{60 + at % 9}" for wearer in "ab" for at, time in enumerate(times)]
    begun(tmp_path, "wearer,time,hr", rows, "--timezone", zone).ended(0)
    windows = read_settings(tmp_path / "settings.yaml").windows
    assert (windows.size, windows.start) == (size, f"2024-03-05T{start}")
    assert checked(tmp_path)["filled"] == 1


def test_a_diary_of_intervals_is_detected(tmp_path: Path) -> None:
    """As annotation tools write it: begin, end, label, and a remark that is none."""
    rows = [
        f"p{person};{at:%d.%m.%Y %H:%M};{at + dt.timedelta(minutes=90):%d.%m.%Y %H:%M};{activity(person, slot)};{slot}!"
        for person in range(3)
        for slot, at in list(enumerate(STEPS))[::3]
    ]
    (tmp_path / "x.csv").write_text("\n".join(["participant;begin;end;activity;remark", *rows]), encoding="utf-8")
    labels_taken(tmp_path, "x.csv")
    made, readings = read_settings(tmp_path / "settings.yaml"), mapped(tmp_path)
    assert (readings.series, readings.time, readings.until) == ("participant", "begin", "end")
    assert (categories(made), made.slots.interval) == (("sit", "sleep", "walk"), "1h")
    found = checked(tmp_path)
    assert (found["readings"], found["series"], found["rejected"]) == (3 * 48, 3, [])


@pytest.mark.night
def test_a_column_of_names_is_not_read_as_labels(tmp_path: Path) -> None:
    assert begun(tmp_path, lines(), ()).code == 0
    assert read_settings(tmp_path / "settings.yaml").states.categories == []
    text = lines(header=("meter", "status", "kwh")).replace("T", " ")
    (tmp_path / "y.csv").write_text(text, encoding="utf-8")  # a time under the name of a label
    assert call("init", tmp_path / "y.csv", "-o", tmp_path / "y.yaml", "--force").code == 0
    assert read_settings(tmp_path / "y.yaml").states.categories == []


def as_days(clock: list[str], stamp: Callable[[dt.datetime], str], *, first: list[str]) -> str:
    """A row for each meter and day; 288 cells of three meters for two days."""
    rows = [
        ",".join(
            [f"{meter + 1}", *first[1:], stamp(STEPS[48 * day]), *(str(value(meter, 48 * day + n)) for n in range(48))]
        )
        for meter in range(3)
        for day in range(2)
    ]
    return "\n".join([",".join([first[0], *first[1:], "date", *clock]), *rows]) + "\n"


@pytest.mark.night
@pytest.mark.parametrize(
    ("clock", "last"),
    [
        ([f"{minute // 60:02}:{minute % 60:02}" for minute in range(0, 1440, 30)], "2024-03-28T23:30:00Z"),
        ([f"{minute // 60 % 24}:{minute % 60:02}" for minute in range(30, 1441, 30)], "2024-03-29T00:00:00Z"),
        ([f"{minute // 60:02}{minute % 60:02}" for minute in range(0, 1440, 30)], "2024-03-28T23:30:00Z"),
    ],
)
def test_a_table_with_a_column_for_each_half_hour_is_detected(tmp_path: Path, clock: list[str], last: str) -> None:
    """As network operators write solar homes: numbers of customers, and other columns of numbers beside the day."""
    later = dt.timedelta(days=26)  # so that a day cannot be a month
    text = as_days(clock, lambda at: (at + later).strftime("%d/%m/%Y"), first=["Customer", "Postcode"])
    (tmp_path / "solar_kwh.csv").write_text(text, encoding="utf-8")
    call("init", tmp_path / "solar_kwh.csv", "-o", tmp_path / "settings.yaml").ended(
        0, f"48 columns from {clock[0]} on are a time of the day each", "kWh, times 2000 for W"
    )
    path = tmp_path / "settings.yaml"
    text = path.read_text(encoding="utf-8")
    assert ("stamps: ???" in text) == (clock[0] == "0:30"), "from 0:30 to midnight: the ends, or the begins?"
    path.write_text(text.replace("stamps: ???", "stamps: begin"), encoding="utf-8")
    assert read_settings(path).slots.interval == "30min"
    found = checked(tmp_path)
    assert (found["readings"], found["series"], found["rejected"], found["silent"]) == (288, 3, [], [])
    assert found["last"] == last


def as_columns(names: list[str], *, delimiter: str, decimal: str) -> str:
    rows = [
        delimiter.join(
            [f'"{at:%Y-%m-%d %H:%M:%S}"', *(str(value(meter, slot)).replace(".", decimal) for meter in range(3))]
        )
        for slot, at in enumerate(STEPS)
    ]
    return "\n".join([delimiter.join(['""', *(f'"{name}"' for name in names)]), *rows]) + "\n"


@pytest.mark.night
@pytest.mark.parametrize("names", [["MT_001", "MT_002", "MT_003"], ["1001", "1002", "1007"]])
def test_a_table_with_a_column_for_each_meter_is_detected(tmp_path: Path, names: list[str]) -> None:
    """As the electricity load diagrams of the UCI archive: an unnamed time, semicolons and decimal commas."""
    text = as_columns(names, delimiter=";", decimal=",")
    text = text if names[0] == "MT_001" else text.replace('""', '"time"', 1)
    begun(tmp_path, text, ()).ended(0, f"3 columns from {names[0]} on are a series each", "of which unit")
    path = tmp_path / "settings.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("???", "1000"), encoding="utf-8")
    found = checked(tmp_path)
    assert (found["readings"], found["series"], found["rejected"], found["silent"]) == (288, 3, [], [])
    with (tmp_path / "roster.csv").open(encoding="utf-8", newline="") as file:
        assert list(csv.reader(file)) == [["series", "group"], *([name, "all"] for name in names)]


@pytest.mark.night
@pytest.mark.parametrize(
    ("header", "zone", "taken"),
    [
        ("meter,time_local,time_utc,kwh", "UTC", "time_utc"),
        ("meter,time_utc,time_local,kwh", "Europe/Berlin", "time_local"),
        ("meter,Timestamp,UTC timestamp,kwh", "UTC", "UTC timestamp"),
        ("meter,time,upload_time_utc,kwh", "UTC", "time"),
    ],
)
def test_of_times_of_two_clocks_that_of_the_zone_is_taken_and_the_other_said(
    tmp_path: Path, header: str, zone: str, taken: str
) -> None:
    rows = [f"m,{at:%Y-%m-%dT%H:%M},{at:%Y-%m-%dT%H:%M},{slot % 7}" for slot, at in enumerate(STEPS)]
    done = begun(tmp_path, header, rows, "--timezone", zone)
    (other,) = set(header.split(",")[1:3]) - {taken}
    done.ended(0, f"time column {taken};", f"other times in {other}: where they are those of the readings")
    assert mapped(tmp_path).time == taken
    assert not done.said("by its name it is")


@pytest.mark.night
@pytest.mark.parametrize(
    ("name", "zone", "said"),
    [
        ("time_utc", "Europe/Berlin", "by its name it is of UTC: leave --timezone out"),
        ("Zeit (lokal)", "UTC", "by its name it is local: set --timezone to its zone"),
        ("outcome_time", "Europe/Berlin", None),
    ],
)
def test_a_name_of_times_that_contradicts_the_zone_is_mentioned(
    tmp_path: Path, name: str, zone: str, said: str | None
) -> None:
    rows = [f"{at:%Y-%m-%dT%H:%M},{slot % 7}" for slot, at in enumerate(STEPS)]
    done = begun(tmp_path, f"{name},kwh", rows, "--timezone", zone).ended(0)
    assert done.said(said or "by its name it is") == (said is not None)
    rows = [row.replace(",", "Z,") for row in rows]
    assert not begun(tmp_path, f"{name},kwh", rows, "--timezone", zone, "--force").ended(0).said("by its name it is")


def test_cubic_metres_are_a_unit_that_names_a_value(tmp_path: Path) -> None:
    begun(tmp_path, "time,temp,register_m3", (f"{at.isoformat()},7,{slot}" for slot, at in enumerate(STEPS))).ended(
        0, "value column register_m3, m3"
    )
    made = mapped(tmp_path)
    assert made.unit == "m3"
    assert made.register_ is not None


def test_a_folder_that_is_partitioned_by_day_is_read_to_its_depth(tmp_path: Path) -> None:
    for day in ("2024-03-01", "2024-03-02"):
        folder = tmp_path / "my data" / f"day={day}"
        folder.mkdir(parents=True)
        rows = [{"meter": m, "time": at, "kwh": 0.5} for m in METERS for at in STEPS if at.isoformat()[:10] == day]
        pq.write_table(pa.Table.from_pylist(rows), folder / "part-0.parquet")
    (folder / ".part-0.csv").touch()
    (tmp_path / "my data" / "_SUCCESS").touch()
    call("init", tmp_path / "my data", "-o", tmp_path / "settings.yaml").ended(0)
    made = read_settings(tmp_path / "settings.yaml")
    assert present(made.source).parquet == "my data/*/*.parquet"
    assert (made.domain, made.query, present(made.sink).parquet) == (
        "my-data",
        "my-data-histogram",
        "my-data-releases.parquet",
    )
    found = checked(tmp_path)
    assert (found["files"], found["readings"], found["series"]) == (2, 288, 3)


def test_many_columns_of_homes_beside_a_total_are_a_series_each(tmp_path: Path) -> None:
    homes = [f"home_{number}" for number in range(6)]
    rows = [f"{at.isoformat()},{','.join(str((slot + n) % 5) for n in range(6))},20,9" for slot, at in enumerate(STEPS)]
    done = begun(tmp_path, f"timestamp,{','.join(homes)},temp_c,total_kwh", rows, "--hold-out", "0.5").ended(
        0,
        "6 columns from home_0 on are a series each",
        "not used columns of none of the series: temp_c, total_kwh",
    )
    assert done.said("3 series, the history of the model")
    done = call("init", tmp_path / "x.csv", "--value", "total_kwh", "-o", tmp_path / "other.yaml")
    assert done.said("the whole file is one series")


@pytest.mark.night
def test_files_that_are_there_are_listed_before_and_after_they_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(lines(), encoding="utf-8")
    command = "init", tmp_path / "x.csv", "-o", tmp_path / "settings.yaml"
    (tmp_path / "roster.csv").write_text("mine", encoding="utf-8")
    assert call(*command).said("roster.csv: it exists already")
    assert not (tmp_path / "settings.yaml").exists()
    (tmp_path / "roster.csv").unlink()
    assert "replaced" not in call(*command).out
    (tmp_path / "roster.csv").write_text("mine", encoding="utf-8")
    done = call(*command)
    assert (done.code, (tmp_path / "roster.csv").read_text(encoding="utf-8")) == (2, "mine")
    both = f"{tmp_path / 'settings.yaml'} and {tmp_path / 'roster.csv'}: they exist already"
    assert done.said(f"{both}; give another folder with -o, or --force to replace them")
    assert call(*command, "--force").said("replaced settings.yaml, roster.csv")


def test_with_force_nothing_is_replaced_where_one_file_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(lines(), encoding="utf-8")
    (tmp_path / "settings.yaml").write_text("mine", encoding="utf-8")
    (tmp_path / "roster.csv").mkdir()
    done = call("init", tmp_path / "x.csv", "-o", tmp_path / "settings.yaml", "--force")
    done.ended(2, "roster.csv: cannot be written (a folder is there")
    assert (tmp_path / "settings.yaml").read_text(encoding="utf-8") == "mine"
    assert not (tmp_path / "settings.schema.json").exists()


@pytest.mark.night
def test_settings_of_another_name_have_a_roster_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(lines(), encoding="utf-8")
    (tmp_path / "roster.csv").write_text("mine", encoding="utf-8")
    output, roster = tmp_path / "Other one.yaml", tmp_path / "other-one-roster.csv"
    call("init", tmp_path / "x.csv", "-o", output).ended(0, "other-one-roster.csv 3 series, in one group")
    assert (tmp_path / "roster.csv").read_text(encoding="utf-8") == "mine"
    assert call("check", output).said("0 not in the roster")
    done = call("init", tmp_path / "x.csv", "-o", output, "--hold-out", "0.5", "--force")
    assert done.said("replaced Other one.yaml, other-one-roster.csv")
    assert done.said(f"--exclude {roster}")
    text = output.read_text(encoding="utf-8")
    assert "model: model.json" in text
    assert "--exclude other-one-roster.csv\n" in text
    assert " roster.csv" not in text


def test_settings_are_not_written_over_a_folder(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(lines(), encoding="utf-8")
    call("init", tmp_path / "x.csv", "-o", tmp_path, "--force").ended(
        2, f"-o {tmp_path}: it is a folder; name a file in it, such as {tmp_path / 'settings.yaml'}"
    )


@pytest.mark.parametrize(
    ("length_s", "varies_s", "slot_s"), [(300, 3, 300), (300, 0, 300), (290, 0, 300), (280, 0, 60), (62, 2, 60)]
)
def test_the_slots_of_messages_are_no_longer_than_what_is_between_them(
    length_s: int, varies_s: int, slot_s: int
) -> None:
    lengths = 1_000_000 * (length_s + np.arange(1_000) % (2 * varies_s + 1) - varies_s)
    assert slot_of(lengths.astype(np.int64)) == 1_000_000 * slot_s


@pytest.mark.night
def test_a_roster_is_not_written_where_a_pattern_would_read_it_as_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text(lines().replace("Zähler", name), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    call("init", ".").ended(
        2,
        "source.csv: *.csv would read roster.csv, too, which is written beside the settings",
        "with -o OTHERFOLDER/settings.yaml",
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "b.csv"]
    assert call("init", ".", "-o", "other/settings.yaml").code == 0
    assert call("check", "other/settings.yaml").said("576 in 2 files, of 6 series")
    (tmp_path / "a.csv").rename("roster.csv")
    done = call("init", "roster.csv")
    assert done.said("source.csv and roster.csv name the same file")
    assert done.said("with -o OTHERFOLDER/settings.yaml")


def test_a_pattern_is_read_from_the_folder_of_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m1.csv").write_text(lines(), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    call("init", "m*.csv").ended(0)
    for given in ("settings.yaml", "./settings.yaml"):
        assert call("check", given).said("288 in 1 file, of 3 series")


def jittered(path: Path, step: float, late: float, digits: int, rows: int = 600) -> Path:
    """Two meters whose stamps are up to some seconds late, as devices send them."""
    draw = random.Random(3)
    text = ["meter,time,watt"]
    for meter, slot in itertools.product("ab", range(rows)):
        at = START + dt.timedelta(seconds=slot * step + round(draw.uniform(0, late), digits))
        text.append(f"{meter},{at.isoformat()},{slot * 7 % 300}")
    path.write_text("\n".join(text) + "\n", encoding="utf-8")
    return path


@pytest.mark.night
@pytest.mark.parametrize(
    ("step", "late", "digits", "interval"),
    [
        (300, 3, 6, "5min"),
        (300, 20, 6, "5min"),
        (300, 20, 0, "5min"),
        (300, 0.01, 6, "5min"),
        (60, 20, 3, "1min"),
        (120, 5, 3, "2min"),
        (86_400, 30, 3, "1d"),
        (420, 0, 0, "7min"),  # regular, of no usual length
    ],
)
def test_stamps_that_vary_have_slots_of_the_nearest_usual_length(
    tmp_path: Path, step: float, late: float, digits: int, interval: str
) -> None:
    path = jittered(tmp_path / "x.csv", step, late, digits)
    call("init", path, "-o", tmp_path / "settings.yaml").ended(0)
    settings = read_settings(tmp_path / "settings.yaml")
    assert settings.slots.interval == interval
    if interval != "7min":
        assert str(settings.slots.origin) == "2024-03-01"
    found = checked(tmp_path)
    assert (found["doubled"], found["filled"] > 0.9) == (0, True)
    assert not [one for one in found["remarks"] if "apart" in one]


def test_columns_of_objects_are_named_with_what_to_do(tmp_path: Path) -> None:
    rows = [{"ts": at.isoformat(), "m": {"p": 1.5 * slot}} for slot, at in enumerate(STEPS)]
    flatten = "objects and lists, as in m, are not looked into: make each of their fields a column of its own"
    for end in ("parquet", "jsonl"):
        begun_on(tmp_path, end, rows).ended(2, "none of its columns, ts, m, holds numbers to measure", flatten)
        done = begun_on(tmp_path, end, rows, "--value", "m.p")
        assert done.said(f"--value 'm.p': {tmp_path / f'x.{end}'} has no column of numbers; {flatten}")


def test_a_packing_that_is_not_read_is_named_with_those_that_are(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl.zst").write_bytes(b"")
    done = call("init", tmp_path / "x.jsonl.zst", "-o", tmp_path / "settings.yaml")
    done.ended(2, "one of the endings .parquet, .pq,", "and behind it, where text is packed, one of .gz, .bz2, .zip")


def test_commas_with_three_decimals_are_decimal_marks_between_semicolons(tmp_path: Path) -> None:
    text = lines(header=("Zählernummer", "Zeit", "Verbrauch"), delimiter=";", first=lambda _: []).splitlines()
    padded = [f"{line}25;;".replace(".", ",") for line in text[1:]]
    made = described(tmp_path, "export.csv", "\n".join([f"{text[0]} kWh;;", *padded]))
    assert made.readings is not None
    assert "num_marks(\"Verbrauch kWh\", '', ',')" in present(made.readings.select)


def test_fractions_with_three_decimals_are_no_thousands(tmp_path: Path) -> None:
    rows = [line.split("\t") for line in lines(delimiter="\t").splitlines()]
    text = ["\t".join(rows[0]), *("\t".join([*row[:2], "0,125" if float(row[2]) < 1 else "1,250"]) for row in rows[1:])]
    made = present(described(tmp_path, "sheet.txt", "\n".join(text)).readings)
    assert "num_marks(kwh, '', ',')" in present(made.select)


def test_texts_among_the_numbers_are_marks_of_an_error(tmp_path: Path) -> None:
    text = with_values(lambda at: {1: "ERR", 2: "-", 3: "Null"}.get(at % 9, "0.5"))
    begun(tmp_path, "meter,time,kwh", text).ended(0, "value column kwh, kWh, times 2000 for W")
    assert checked(tmp_path)["readings"] == 192


@pytest.mark.night
@pytest.mark.parametrize(("delimiter", "texts"), [(";", ("12.345.678", "3 503")), (",", ("0.5 kWh", "12 W"))])
@pytest.mark.parametrize(("name", "words"), [("kwh", ()), ("x", ()), ("x", ("--value", "x"))])
def test_a_value_whose_marks_are_not_read_is_refused(
    tmp_path: Path, delimiter: str, texts: tuple[str, ...], name: str, words: tuple[str, ...]
) -> None:
    rows = [delimiter.join((at.isoformat(), texts[slot % 2])) for slot, at in enumerate(STEPS)]
    begun(tmp_path, delimiter.join(("time", name)), rows, *words).ended(2, "are not read: write them as 1503.5")
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"]


@pytest.mark.night
@pytest.mark.parametrize(
    ("delimiter", "texts", "edges"),
    [
        (";", ("3.503,5", "2.100,00"), [0, 0, 1, 1]),
        (",", ('"1,503"', "0.5"), [1, 1, 0, 0]),
        (";", ("1'503", "703"), [1, 1, 0, 0]),
        (";", ("1.234,50", "850,25"), [1, 1, 0, 0]),
    ],
)
def test_marks_between_thousands_are_read(
    tmp_path: Path, delimiter: str, texts: tuple[str, ...], edges: list[int]
) -> None:
    rows = [delimiter.join((at.isoformat(), texts[slot % 2])) for slot, at in enumerate(STEPS)]
    begun(tmp_path, delimiter.join(("time", "watt")), rows).ended(0)
    path = tmp_path / "settings.yaml"
    path.write_text(path.read_text("utf-8").replace("[250, 500, 1000, 2000]", "[1000, 2000, 3000]"), encoding="utf-8")
    assert [round(2 * share) for share in checked(tmp_path)["bins"].values()] == edges


def test_cells_of_a_wide_table_that_are_no_number_are_mentioned(tmp_path: Path) -> None:
    clock = [f"{hour:02}:00" for hour in range(24)]
    rows = [";".join(["m", f"2024-03-{day:02}", *(["0,5"] * 23), "ERR" if day < 2 else "1"]) for day in range(1, 11)]
    begun(tmp_path, ";".join(["meter", "date", *clock]), rows).ended(0, "no number 0.4% of it, rejected: where a mark")


def test_hours_from_1_to_24_are_numbers_of_intervals(tmp_path: Path) -> None:
    rows = [f"m,{at:%Y-%m-%d},{at.hour + 1},0.5" for at in STEPS[::2]]
    begun(tmp_path, "meter,date,hour,kwh", rows).ended(0, "hour is the number of an interval of 60 minutes, from 1")
    found = checked(tmp_path)
    assert (found["readings"], found["rejected"], found["first"]) == (48, [], "2024-03-01T00:00:00Z")


def test_names_of_digits_are_texts_in_json_on_purpose(tmp_path: Path) -> None:
    _, *rows = (line.split(",") for line in lines().splitlines())
    objects = [{"mpan": f"19{at % 3}", "time": row[1], "load": float(row[2])} for at, row in enumerate(rows)]
    begun_on(tmp_path, "jsonl", objects).ended(0, "column mpan, 3 seen")


@pytest.mark.parametrize("words", [(), ("--value", "temperature")])
def test_a_mark_of_an_error_makes_no_labels_of_measured_values(tmp_path: Path, words: tuple[str, ...]) -> None:
    text = with_values(lambda at: "ERR" if at == 7 else 15 + at % 40 / 10)
    begun(tmp_path, "meter,time,temperature", text, *words).ended(0, "column temperature, of no known unit")
    assert "ERR" not in (tmp_path / "settings.yaml").read_text(encoding="utf-8")


def test_a_mark_of_an_error_leaves_a_wide_table_wide(tmp_path: Path) -> None:
    times = [f"2024-02-{1 + at // 24:02}T{at % 24:02}:00:00Z" for at in range(96)]
    text = [f"{time},{at % 3}.5,1.5,{'ERR' if at == 5 else '0.25'},2.5" for at, time in enumerate(times)]
    begun(tmp_path, "time,plug1,plug2,plug3,plug4", text).ended(0, "4 columns from plug1 on are a series each")


def test_a_stamp_that_stands_for_never_is_looked_past(tmp_path: Path) -> None:
    begun(tmp_path, lines() + "\nm9,9999-12-31T23:59:00Z,0.5\n", (), "--timezone", "Europe/Berlin").ended(0)
    assert "9999" not in (tmp_path / "settings.yaml").read_text(encoding="utf-8")


def test_a_folder_of_files_without_series_may_be_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, *rows = lines().splitlines()
    for name in ("a", "b"):
        text = [row.split(",", 1)[1] for row in rows if row.split(",", 1)[0] == rows[0].split(",", 1)[0]]
        (tmp_path / f"{name}.csv").write_text("\n".join(["time,kwh", *text]), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    call("init", ".", "-o", "other/settings.yaml").ended(0, "each file, 2 seen")


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    text = [f"{line},1" for line in lines(header=("meter", "time", "kwh", "kwh")).splitlines()[1:]]
    begun(tmp_path, "meter,time,kwh,kwh", text).ended(5, "it has 2 columns 'kwh'; rename all but one")
    assert not (tmp_path / "settings.yaml").exists()


@pytest.mark.night
@pytest.mark.parametrize("offset", ["", "+01:00"])
def test_windows_of_slots_that_do_not_fill_an_hour_go_on_when_the_clock_changes(tmp_path: Path, offset: str) -> None:
    """Seven minutes fill neither an hour nor a day, so the zone's clock does not show the same slots after a change."""
    begin = dt.datetime(2024, 10, 26, tzinfo=dt.UTC)
    steps = [(begin + slot * dt.timedelta(minutes=7)).strftime(f"%Y-%m-%dT%H:%M:%S{offset}") for slot in range(500)]
    begun(tmp_path, "meter,time,kwh", (f"m,{at},0.5" for at in steps), "--timezone", "Europe/Berlin").ended(0)
    found = checked(tmp_path)
    assert (found["readings"], found["before"]) == (500, 0)
    assert found["after"] < 48  # of the last window, which is not whole


@pytest.mark.parametrize("line", ["meter,ti\x1b[2Jme,kwh", "m\x00eter,time,kwh"])
def test_a_first_line_with_control_characters_is_not_shown(tmp_path: Path, line: str) -> None:
    begun(tmp_path, f"{line}\nm,1,2\n", ()).ended(5, "its first line is not a line of text")


def test_days_of_a_spreadsheet_are_not_taken_for_times_and_named(tmp_path: Path) -> None:
    done = begun(tmp_path, "meter,time,kwh", [f"m1,{45352 + slot / 48:.5f},0.5" for slot in range(96)])
    done.ended(2, "looks like a time; write the numbers in time, such as days of a spreadsheet, as 2024-03-01 00:15")


def test_an_avro_column_may_have_a_union_of_numbers(tmp_path: Path) -> None:
    kinds = ["null", "double", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3}]
    fields = [{"name": "meter", "type": "string"}, {"name": "time", "type": "string"}, {"name": "kwh", "type": kinds}]
    names, *rows = (line.split(",") for line in lines().splitlines())
    made = [
        dict(zip(names, row, strict=True)) | {"kwh": (None, float(row[2]), Decimal(row[2]))[at % 3]}
        for at, row in enumerate(rows)
    ]
    with (tmp_path / "x.avro").open("wb") as file:
        fastavro.writer(file, {"type": "record", "name": "r", "fields": fields}, made)
    call("init", tmp_path / "x.avro", "-o", tmp_path / "settings.yaml").ended(0, "value column kwh, kWh")
    assert checked(tmp_path)["counts"] == 192


def test_lines_of_json_may_have_texts_for_numbers_and_be_damaged(tmp_path: Path) -> None:
    names, *rows = (line.split(",") for line in lines().splitlines())
    objects = [
        json.dumps(dict(zip(names, row, strict=True)) | {"kwh": "ERR" if at % 9 == 1 else float(row[2])})
        for at, row in enumerate(rows)
    ]
    (tmp_path / "x.jsonl").write_text("\n".join([*objects[:9], "[1", "7", *objects[9:]]), encoding="utf-8")
    call("init", tmp_path / "x.jsonl", "-o", tmp_path / "settings.yaml").ended(
        0, "value column kwh, kWh, times 2000 for W"
    )
    found = checked(tmp_path)
    assert (found["readings"], sum(one["rows"] for one in found["rejected"])) == (256, 34)


def test_decimals_are_numbers(tmp_path: Path) -> None:
    rows = [line.split(",") for line in lines().splitlines()[1:]]
    table = {
        "meter": [row[0] for row in rows],
        "time": [dt.datetime.fromisoformat(row[1]) for row in rows],
        "kwh": [Decimal(row[2]) for row in rows],
    }
    pq.write_table(pa.table(table), tmp_path / "written.parquet")
    described(tmp_path, "x.parquet", (tmp_path / "written.parquet").read_bytes())


@pytest.mark.night
@pytest.mark.parametrize("stamp", ["{:%Y-%m-%d} 23:17:05", "2024-06-01 10:11:12", "{:%Y-%m-%d}T18:45:00Z"])
def test_days_that_tell_the_readings_apart_are_the_time(tmp_path: Path, stamp: str) -> None:
    days = [dt.date(2024, 3, 1) + dt.timedelta(days=one) for one in range(60)]
    rows = [f"{name},{day},{day.day % 7},{stamp.format(day + dt.timedelta(days=1))}" for name in "ab" for day in days]
    begun(tmp_path, "meter,date,kwh,import_timestamp", rows).ended(0, "column date", "interval 1d")


@pytest.mark.parametrize(
    ("name", "clock"),
    [("time", "{:%I:%M %p}"), ("hour", "{0:%H}:00-{0:%H}:30")],
)
def test_a_time_of_day_that_cannot_be_read_is_not_passed_over(tmp_path: Path, name: str, clock: str) -> None:
    rows = [f"m,{at:%Y-%m-%d},{clock.format(at)},0.5" for at in STEPS]
    begun(tmp_path, f"meter,date,{name},kwh", rows).ended(
        5, f"the column date has days, and {name} is no time of the day"
    )


def test_a_measured_value_named_after_a_house_is_no_series_where_an_hour_comes_twice(tmp_path: Path) -> None:
    rows = [f"{at:%Y-%m-%d %H:%M},{200 + slot % 60}.0,{slot % 9}.5" for slot, at in enumerate([*STEPS, *STEPS[:2]])]
    begun(tmp_path, "time,house_temp,kw", rows).ended(0, "the whole file is one series")


def test_midnights_with_hours_in_lines_of_json_are_read_as_by_a_run(tmp_path: Path) -> None:
    rows = [{"meter": "m", "date": f"{at:%Y-%m-%d}T00:00:00", "hour": at.hour, "kwh": at.hour % 5} for at in STEPS[::2]]
    begun_on(tmp_path, "jsonl", rows).ended(0)
    found = checked(tmp_path)
    assert (found["readings"], found["rejected"]) == (48, [])


@pytest.mark.parametrize(("name", "last"), [("kw", 0), ("charge", 25)])
def test_a_single_fall_of_what_is_no_counter_makes_it_none(tmp_path: Path, name: str, last: int) -> None:
    rows = [f"m,{at.isoformat()},{20 + slot if slot < 95 else last}" for slot, at in enumerate(STEPS)]
    done = begun(tmp_path, f"meter,time,{name}", rows)
    assert (done.code, done.said("read as a meter's counter")) == (0, False), done.out


@pytest.mark.night
@pytest.mark.parametrize(
    ("header", "unit", "scale"),
    [
        ("énergie (Wh)", "Wh", 2),
        ("Zählerstand [kWh]", "kWh", 2000),
        ("Energie MWh", "MWh", 2_000_000),
        ("load_MW", "MW", 1_000_000),
        ("Leistung in kW", "kW", 1000),
        ("puissance (W)", "W", 1),
        ("P [kW] total", "kW", 1000),
        ("kilowatts", "kW", 1000),
        ("Megawatt", "MW", 1_000_000),
        ("milliwatt", "", 1),
        ("watt_hours", "Wh", 2),
        ("Energy (watt-hours)", "Wh", 2),
        ("kilowatthour", "kWh", 2000),
        ("Kilowattstunden", "kWh", 2000),
        ("Wattstunden", "Wh", 2),
        ("Megawatt hours", "MWh", 2_000_000),
        ("watt-seconds", "", 1),
        ("activePowerWatts", "W", 1),
        ("kWh/h", "kW", 1000),
        ("kwh_per_day", "", 1),
        ("kWh/m2", "", 1),
        ("m3 per hour", "", 1),
        ("KWH/hh (per half hour)", "kWh", 2000),
        ("flow", "", 1),
    ],
)
def test_a_unit_is_taken_in_brackets_and_after_a_blank(tmp_path: Path, header: str, unit: str, scale: float) -> None:
    made = described(tmp_path, "x.csv", lines(header=("meter", "time", header)))
    assert (present(made.readings).unit, present(made.readings).scale) == (unit, scale)


@pytest.mark.night
@pytest.mark.parametrize(
    ("header", "hour"),
    [
        (("compteur", "Horodate", "valeur"), None),
        (("PRM", "Horodatage", "puissance"), None),
        (("Zählpunkt", "Uhrzeit", "Wirkleistung"), None),
        (("aansluiting", "tijd", "verbruik"), None),
        (("Zählpunkt", "Datum", "Wirkleistung"), "Uhrzeit"),
        (("Zählpunkt", "Datum", "Verbrauch"), "Stunde"),
        (("compteur", "date", "consommation"), "heure"),
        (("CUPS", "fecha", "consumo"), "hora"),
        (("contador", "fecha", "valor"), "hora"),
        (("EAN18", "datum", "verbruik"), "tijd"),
    ],
)
def test_names_of_columns_in_other_languages_are_known(
    tmp_path: Path, header: tuple[str, str, str], hour: str | None
) -> None:
    series, time, measured = header
    clock = "%H" if hour == "Stunde" else "%H:%M"
    names = [time, *([] if hour is None else [hour]), "Position", measured, series]
    rows = [
        {
            time: f"{at:%d.%m.%Y}" + (f" {at:%H:%M}" if hour is None else ""),
            "Position": slot % 7,
            measured: value(meter, slot),
            series: 30_000_000_000_000 + meter,
        }
        | ({} if hour is None else {hour: at.strftime(clock)})
        for meter in range(3)
        for slot, at in list(enumerate(STEPS))[:: 2 if clock == "%H" else 1]
    ]
    begun(tmp_path, ";".join(names), (";".join(str(row[name]) for name in names) for row in rows)).ended(0)
    path = tmp_path / "settings.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("scale: ???", "scale: 1000"), encoding="utf-8")
    made = mapped(tmp_path)
    assert (made.series, made.time, made.value) == (series, time if hour is None else [time, hour], measured)
    found = checked(tmp_path)
    assert (found["readings"], found["series"], found["rejected"]) == (len(rows), 3, [])


@pytest.mark.night
@pytest.mark.parametrize(
    ("header", "row", "series", "time", "measured"),
    [
        ("meter,time,counter", "m1,{at},{n}", "meter", "time", "counter"),
        ("meter_kwh,time", "{n},{at}", None, "time", "meter_kwh"),
        ("update,meter,time,kwh", "{at}:01,m1,{at},{n}", "meter", "time", "kwh"),
        ("update,meter,kwh", "{at},m1,{n}", "meter", "update", "kwh"),
        ("update,meter,date,hour,kwh", "{at},m1,{day},{hour},{n}", "meter", ["date", "hour"], "kwh"),
        ("heures_creuses,meter,time", "{big},m1,{at}", "meter", "time", "heures_creuses"),
        ("time,cups,load", "{at},{few},{n}", None, "time", "load"),
    ],
)
def test_ambiguous_names_of_columns_are_told_apart_by_what_is_in_them(
    tmp_path: Path, header: str, row: str, series: str | None, time: str | list[str], measured: str
) -> None:
    rows = [
        row.format(at=f"{at:%Y-%m-%dT%H:%M}", day=f"{at:%Y-%m-%d}", hour=at.hour, n=100 + n, big=10**9 + n, few=n % 3)
        for n, at in enumerate(STEPS[::2])
    ]
    begun(tmp_path, header, rows).ended(0)
    made = mapped(tmp_path)
    named = made.value
    only = None if isinstance(made.series, Constant) else made.series
    assert (only, made.time, named) == (series, time, measured)
