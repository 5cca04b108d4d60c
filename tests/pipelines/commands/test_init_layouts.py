"""``init`` on files as the world writes them: what it writes reads every row, which ``check`` counts."""

from __future__ import annotations

import bz2
import csv
import datetime as dt
import gzip
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from quiltstream.schemas.settings.job import Settings, read_settings

from ..jobs import START, call

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
        delimiter.join(
            [*first(at), METERS[meter], stamp(STEPS[slot]), str(value(meter, slot)).replace(".", decimal)],
        )
        for at, (meter, slot) in enumerate(rows)
    ]
    return "\n".join(text) + "\n"


def described(folder: Path, name: str, data: bytes | str, given: str | None = None) -> Settings:
    """What ``init`` makes of a file; ``check`` finds every row in it."""
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    done = call("init", folder / (given or name), "-o", folder / "settings.yaml")
    assert done.code == 0, done.err
    checked = call("check", "--json", folder / "settings.yaml")
    assert checked.code == 0, checked.err
    found = json.loads(checked.out)
    assert (found["readings"], found["series"], found["rejected"]) == (288, 3, [])
    assert (found["not_in_roster"], found["silent"], found["step"]) == (0, [], 1_800_000_000)
    assert (found["first"], found["last"]) == ("2024-03-01T00:00:00Z", "2024-03-02T23:30:00Z")
    with (folder / "roster.csv").open(encoding="utf-8", newline="") as file:
        assert list(csv.reader(file)) == [["series", "group"], *([meter, "all"] for meter in METERS)]
    return read_settings(folder / "settings.yaml")


def german(at: dt.datetime) -> str:
    return at.strftime("%d.%m.%Y %H:%M:%S")


def test_a_german_export_has_semicolons_commas_and_an_older_encoding(tmp_path: Path) -> None:
    text = lines(german, header=("Zähler", "Zeit", "kWh"), delimiter=";", decimal=",")
    made = described(tmp_path, "export.csv", text.replace("\n", "\r\n").encode("windows-1252"))
    assert made.source is not None
    assert made.readings is not None
    assert (made.source.delimiter, made.source.encoding) == (";", "windows-1252")
    assert (made.readings.decimal, made.readings.time_format) == (",", "%d.%m.%Y %H:%M:%S")


def test_a_sheet_saved_as_unicode_text_is_utf_16_with_tabs(tmp_path: Path) -> None:
    made = described(tmp_path, "sheet.txt", lines(delimiter="\t").encode("utf-16"))
    assert made.source is not None
    assert (made.source.delimiter, made.source.encoding) == ("\t", "utf-16")


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    made = described(tmp_path, "marked.csv", b"\xef\xbb\xbf" + lines().encode())
    assert made.readings is not None
    assert made.readings.series == "meter"


@pytest.mark.parametrize("form", ["%m/%d/%Y %I:%M:%S %p", "%d/%m/%Y %I:%M %p"])
def test_hours_before_and_after_noon_are_told_apart(tmp_path: Path, form: str) -> None:
    # three weeks, so that a day cannot be a month
    later = dt.timedelta(days=20)
    text = lines(lambda at: (at + later).strftime(form))
    (tmp_path / "x.csv").write_text(text, encoding="utf-8")
    assert call("init", tmp_path / "x.csv", "-o", tmp_path / "settings.yaml").code == 0
    made = read_settings(tmp_path / "settings.yaml")
    assert made.readings is not None
    assert made.readings.time_format == form
    found = json.loads(call("check", "--json", tmp_path / "settings.yaml").out)
    assert (found["readings"], found["first"]) == (288, "2024-03-21T00:00:00Z")


@pytest.mark.parametrize(("unit", "factor"), [("s", 1), ("ms", 1000), ("us", 1_000_000)])
def test_times_since_1970_are_read_by_their_size(tmp_path: Path, unit: str, factor: int) -> None:
    made = described(tmp_path, "epochs.csv", lines(lambda at: str(int(at.timestamp()) * factor)))
    assert made.readings is not None
    assert made.readings.time_unit == unit


def test_the_number_of_each_row_without_a_name_is_left_out(tmp_path: Path) -> None:
    """``DataFrame.to_csv`` of pandas with its index."""
    made = described(tmp_path, "frame.csv", lines(header=("", "meter", "time", "kwh"), first=lambda at: [str(at)]))
    assert made.readings is not None
    assert (made.readings.series, made.readings.value) == ("meter", "kwh")


def test_times_in_a_column_without_a_name_are_found(tmp_path: Path) -> None:
    """``DataFrame.to_csv`` of pandas with an index of times."""
    rows = [line.split(",") for line in lines().splitlines()[1:]]
    text = "\n".join([",meter,kwh", *(f"{time},{meter},{kwh}" for meter, time, kwh in rows)])
    made = described(tmp_path, "indexed.csv", text)
    assert made.readings is not None
    assert made.readings.time == " "


@pytest.mark.parametrize("end", ["csv.gz", "csv.bz2", "csv.zip", "zip"])
def test_packed_files_are_looked_into(tmp_path: Path, end: str) -> None:
    data = lines().encode()
    if end.endswith("zip"):
        with zipfile.ZipFile(tmp_path / f"x.{end}", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("inner/x.csv", data)
        packed = (tmp_path / f"x.{end}").read_bytes()
    else:
        packed = gzip.compress(data) if end == "csv.gz" else bz2.compress(data)
    described(tmp_path, f"x.{end}", packed)


@pytest.mark.parametrize("given", ["inbox", "inbox/*.csv"])
def test_a_folder_and_a_pattern_are_all_their_files(tmp_path: Path, given: str) -> None:
    (tmp_path / "inbox").mkdir()
    header, *rows = lines().splitlines()
    (tmp_path / "inbox" / "a.csv").write_text("\n".join([header, *rows[:150]]) + "\n", encoding="utf-8")
    text = "\n".join([header, *rows[150:]]) + "\n"
    made = described(tmp_path, "inbox/b.csv", text, given)
    assert made.source is not None
    assert made.source.csv == "inbox/*.csv"


def test_a_counter_and_other_columns_of_numbers_are_said(tmp_path: Path) -> None:
    rows = [f"m,{at.isoformat()},{100 + slot},{slot % 3}" for slot, at in enumerate(STEPS)]
    (tmp_path / "x.csv").write_text("\n".join(["meter,time,kwh,volts", *rows]), encoding="utf-8")
    done = call("init", tmp_path / "x.csv", "-o", tmp_path / "settings.yaml")
    assert done.said("no series ever falls: if it is a meter's counter")
    assert done.said("other columns of numbers: volts")
    assert not (tmp_path / "roster.csv").exists()  # of one series


def test_a_roster_that_is_there_is_kept_unless_forced(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(lines(), encoding="utf-8")
    (tmp_path / "roster.csv").write_text("mine", encoding="utf-8")
    done = call("init", tmp_path / "x.csv", "-o", tmp_path / "settings.yaml")
    assert (done.code, (tmp_path / "roster.csv").read_text(encoding="utf-8")) == (2, "mine")
    assert done.said("roster.csv: it exists already")
    assert not (tmp_path / "settings.yaml").exists()
