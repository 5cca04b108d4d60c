"""Every format gives the same readings, in every layout and from every kind of file."""

from __future__ import annotations

import datetime as dt
import errno
import io
import json
import os
import zipfile
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fastavro
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quiltstream.schemas.readings import GROUPED_READING_SCHEMA, READING_SCHEMA
from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.connectors import FileSource
from quiltstream.schemas.settings.readings import Readings
from quiltstream.transforms.formats import paths
from quiltstream.transforms.formats.paths import SourceFileError, expand, open_bytes, present
from quiltstream.transforms.sources.files import ReadReadings

from .decoding import READINGS, avro_record, decode, decoded_parts

T0 = 1356998400_000_000
UTC = dt.UTC

AVRO = avro_record(
    "Reading",
    id=["null", "string"],
    ts={"type": "long", "logicalType": "timestamp-micros"},
    other="string",
    kwh=["null", "double"],
)


def household_rows(rows: int) -> list[dict[str, Any]]:
    """Readings with gaps, repeats, negative and huge values."""
    rng = np.random.default_rng(11)
    values = np.round(rng.normal(1, 2, rows), 3).tolist()
    values[3:4], values[5:6] = [1e308], [-1e300]
    return [
        {
            "id": f"MAC{rng.integers(0, 40):06d}" if i % 50 else None,
            "ts": dt.datetime(2013, 1, 1, tzinfo=UTC) + dt.timedelta(minutes=int(rng.integers(0, 10_000))),
            "other": "x, \"y\" 'z'",
            "kwh": values[i] if i % 31 else None,
        }
        for i in range(rows)
    ]


def write(path: Path, format_: str, rows: list[dict[str, Any]]) -> None:
    if format_ == "parquet":
        schema = pa.schema(
            [("id", pa.utf8()), ("ts", pa.timestamp("us", tz="UTC")), ("other", pa.utf8()), ("kwh", pa.float64())]
        )
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), path, row_group_size=97)
    elif format_ == "avro":
        with path.open("wb") as file:
            fastavro.writer(file, AVRO, rows, codec="deflate", sync_interval=2000)
    elif format_ == "jsonl":
        path.write_text("".join(json.dumps({**row, "ts": row["ts"].isoformat()}) + "\n" for row in rows))
    else:
        pl.DataFrame(rows).with_columns(pl.col("ts").dt.to_string("iso:strict")).write_csv(path)


@pytest.mark.night
@pytest.mark.parametrize("format_", ["parquet", "csv", "jsonl", "avro"])
@pytest.mark.parametrize("batch_rows", [50, 1 << 17])
def test_the_same_table_gives_the_same_readings_in_every_format(tmp_path, format_, batch_rows):
    rows = household_rows(1000)
    order = np.random.default_rng(2).permutation(1000).tolist()
    for part in range(3):
        write(tmp_path / f"{part}.{format_}", format_, [rows[i] for i in order[part::3]])
    found, rejects = decode(
        FileSource.model_validate({format_: str(tmp_path / f"*.{format_}")}),
        Readings(series="id", time="ts", value="kwh", scale=2),
        batch_rows=batch_rows,
    )
    table = pl.DataFrame(rows)
    good = table.filter(pl.col("id").is_not_null() & pl.col("kwh").is_not_null())
    truth = good.select(
        "id", pl.col("ts").dt.epoch("us"), (pl.col("kwh") * 2).clip(-np.finfo(float).max, np.finfo(float).max)
    )
    assert found == sorted(truth.rows())
    reasons = [reason for _, reason in rejects]
    assert reasons.count("missing-series") == table["id"].null_count()
    assert reasons.count("missing-value") == table.filter(pl.col("id").is_not_null())["kwh"].null_count()
    assert len(reasons) == 1000 - len(good)


@pytest.mark.parametrize("format_", ["parquet", "avro"])
def test_rejects_of_a_table_name_its_rows_from_one(tmp_path, format_):
    rows = household_rows(300)
    for i, row in enumerate(rows):
        row["id"], row["kwh"] = "h", float("nan") if i in (0, 120, 299) else 1.0
    write(tmp_path / "x", format_, rows)
    _, rejects = decode(FileSource.model_validate({format_: str(tmp_path / "x")}), batch_rows=100)
    assert rejects == [(1, "not-finite"), (121, "not-finite"), (300, "not-finite")]


@pytest.mark.parametrize(
    ("values", "numbers"),
    [
        (pa.array([1, -2], pa.int8()), [1, -2]),
        (pa.array([2**63, 1], pa.uint64()), [2.0**63, 1]),
        (pa.array([0.5, 1.5], pa.float32()), [0.5, 1.5]),
        (pa.array([np.float16(0.5), np.float16(1.5)], pa.float16()), [0.5, 1.5]),
        (pa.array([Decimal("0.250"), Decimal("-1.000")], pa.decimal128(9, 3)), [0.25, -1]),
        (pa.array(["0.5", " 1e3 "], pa.utf8()), [0.5, 1000]),
        (pa.array(["0.5", "2"], pa.large_utf8()), [0.5, 2]),
        (pa.array(["0.5", "2"]).dictionary_encode(), [0.5, 2]),
        (pa.array([2**62 + 1, 3], pa.int64()), [2.0**62, 3]),
    ],
)
@pytest.mark.parametrize(
    "names",
    [
        pa.array(["a", "b"]),
        pa.array(["a", "b"], pa.large_utf8()),
        pa.array([b"a", b"b"]),
        pa.array(["a", "b"]).dictionary_encode(),
    ],
)
def test_parquet_values_and_names_may_have_any_type_that_can_be_one(tmp_path, values, numbers, names):
    times = pa.array([T0, T0], pa.timestamp("us", tz="UTC"))
    pq.write_table(pa.table({"kwh": values, "id": names, "ts": times}), tmp_path / "x.parquet")
    rows, rejects = decode(FileSource(parquet=str(tmp_path / "x.parquet")))
    assert rows == [("a", T0, numbers[0]), ("b", T0, numbers[1])]
    assert rejects == []


def test_numbers_may_name_series(tmp_path):
    pq.write_table(pa.table({"id": [25539, None], "ts": [0, 0], "kwh": [1, 2]}), tmp_path / "x.parquet")
    assert decode(FileSource(parquet=str(tmp_path / "x.parquet"))) == ([("25539", 0, 1.0)], [(2, "missing-series")])


def test_names_that_are_not_utf8_are_malformed_rows(tmp_path):
    names = pa.array([b"a", b"\xff\xfe", b"b"], pa.binary())
    pq.write_table(pa.table({"id": names, "ts": [0, 0, 0], "kwh": [1, 2, 3]}), tmp_path / "x.parquet")
    rows, rejects = decode(FileSource(parquet=str(tmp_path / "x.parquet")))
    assert [row[0] for row in rows] == ["a", "b"]
    assert rejects == [(2, "malformed-row")]


def test_avro_values_may_be_text_or_numbers_and_wild_times_are_rejects(tmp_path):
    schema = avro_record(
        "R",
        id={"type": "enum", "name": "E", "symbols": ["a", "b"]},
        ts=["null", {"type": "long", "logicalType": "local-timestamp-millis"}],
        kwh=["null", "string", "long", "double"],
    )
    rows = [
        {"id": "a", "ts": T0 // 1000, "kwh": 1.25},
        {"id": "a", "ts": T0 // 1000, "kwh": "2.5"},
        {"id": "b", "ts": T0 // 1000, "kwh": 7},
        {"id": "b", "ts": 2**62, "kwh": 7},
        {"id": "b", "ts": None, "kwh": 7},
    ]
    with (tmp_path / "x.avro").open("wb") as file:
        fastavro.writer(file, schema, rows)
    found, rejects = decode(FileSource(avro=str(tmp_path / "x.avro")), timezone="Asia/Tokyo")
    at = T0 - 9 * 3600 * 10**6
    assert found == [("a", at, 1.25), ("a", at, 2.5), ("b", at, 7.0)]
    assert rejects == [(4, "unparsable-time"), (5, "unparsable-time")]


def test_batches_have_the_schema_of_readings_with_a_group_where_a_column_names_it(tmp_path):
    (tmp_path / "x.csv").write_text("feeder,id,ts,kwh\nf1,a,2013-01-01,1\n,b,2013-01-01,2\n")
    source = FileSource(csv=str(tmp_path / "x.csv"))
    (plain,) = decoded_parts(ReadReadings(source, READINGS))
    (grouped,) = decoded_parts(ReadReadings(source, READINGS, group="feeder"))
    assert plain.readings.schema.equals(READING_SCHEMA, check_metadata=True)
    assert grouped.readings.schema.equals(GROUPED_READING_SCHEMA, check_metadata=True)
    assert grouped.readings.to_pylist()[0]["group"] == "f1"
    assert [one.reason.value for one in grouped.rejects] == ["group-conflict"]
    plain.readings.validate(full=True)
    grouped.readings.validate(full=True)


def test_one_column_may_serve_twice(tmp_path):
    (tmp_path / "x.csv").write_text("id,ts,kwh\n7,2013-01-01,1\n")
    rows, _ = decode(FileSource(csv=str(tmp_path / "x.csv")), Readings(series="id", time="ts", value="id"), group="id")
    assert rows == [("7", T0, 7.0, "7")]


def test_row_groups_are_put_together_or_cut_to_batches_and_dictionaries_made_one(tmp_path):
    names = [f"h{i % 100}" for i in range(1000)]
    table = pa.table({"id": names, "ts": list(range(1000)), "kwh": [float(i) for i in range(1000)]})
    sizes: dict[int, list[int]] = {}
    for group_rows in (7, 1000):
        path = tmp_path / f"{group_rows}.parquet"
        pq.write_table(table, path, row_group_size=group_rows)
        parts = decoded_parts(ReadReadings(FileSource(parquet=str(path)), READINGS, batch_rows=100))
        sizes[group_rows] = [one.readings.num_rows for one in parts]
        assert sorted(row["value"] for one in parts for row in one.readings.to_pylist()) == [
            float(i) for i in range(1000)
        ]
        assert all(row["series"] == f"h{int(row['value']) % 100}" for one in parts for row in one.readings.to_pylist())
        assert [one.earliest_us for one in parts] == [
            row * 10**6 for row in np.cumsum([0, *sizes[group_rows][:-1]]).tolist()
        ]
    assert sum(sizes[7]) == 1000
    # one small batch at the end of each part of the file
    assert max(sizes[7]) <= 400
    assert sum(size < 50 for size in sizes[7]) <= 2
    assert sizes[1000] == [100] * 10


@pytest.mark.parametrize("format_", ["parquet", "avro"])
@pytest.mark.parametrize("content", [b"", b"PAR1", b"Obj\x01", b"id,ts,kwh\nsecret,2013-01-01,4711\n"])
def test_a_file_of_another_format_is_named_without_its_content(tmp_path, format_, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(SourceFileError, match=f"source.{format_}: file .* is not a whole") as caught:
        decode(FileSource.model_validate({format_: str(tmp_path / "x")}))
    assert "secret" not in str(caught.value)
    assert "4711" not in str(caught.value)


@pytest.mark.parametrize("format_", ["parquet", "avro"])
def test_damage_inside_a_table_stops_the_job_instead_of_losing_readings(tmp_path, format_):
    path = tmp_path / "x"
    write(path, format_, household_rows(3000))
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 200] = bytes(200)
    path.write_bytes(bytes(data))
    with pytest.raises(SourceFileError, match="write it again") as caught:
        decode(FileSource.model_validate({format_: str(path)}))
    assert "MAC0" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("column", "kind", "setting"),
    [
        ("id", pa.list_(pa.utf8()), "readings.series"),
        ("ts", pa.bool_(), "readings.time"),
        ("ts", pa.time32("s"), "readings.time"),
        ("kwh", pa.bool_(), "readings.value"),
        ("kwh", pa.timestamp("us"), "readings.value"),
    ],
)
def test_a_column_of_a_type_that_cannot_be_read_is_a_settings_error(tmp_path, column, kind, setting):
    columns = {"id": pa.nulls(1, pa.utf8()), "ts": pa.nulls(1, pa.int64()), "kwh": pa.nulls(1, pa.float64())}
    pq.write_table(pa.table({**columns, column: pa.nulls(1, kind)}), tmp_path / "x.parquet")
    with pytest.raises(SettingsError, match=f"{setting}: the column '{column}'"):
        decode(FileSource(parquet=str(tmp_path / "x.parquet")))


@pytest.mark.parametrize("format_", ["parquet", "avro"])
def test_a_table_without_rows_is_accepted(tmp_path, format_):
    write(tmp_path / "x", format_, [])
    assert decode(FileSource.model_validate({format_: str(tmp_path / "x")})) == ([], [])


TEXT = "id,ts,kwh\nhaus-ä,2024-03-01,1.25\n"


def zipped(members: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return made.getvalue()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (zipped({"a.csv": b"x", "b.csv": b"y"}), "is an archive of 2 files, and one is read"),
        (b"no archive", r"is no archive that can be read \(BadZipFile\)"),
    ],
)
def test_an_archive_of_several_files_or_none_is_refused(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "x.csv.zip").write_bytes(data)
    with pytest.raises(ValueError, match=said):
        decode(FileSource(csv=str(tmp_path / "x.csv.zip")))


def test_a_damaged_archive_stops_the_job(tmp_path: Path) -> None:
    whole = bytearray(zipped({"x.csv": TEXT.encode() * 50}))
    whole[60] ^= 0xFF
    (tmp_path / "x.csv.zip").write_bytes(bytes(whole))
    with pytest.raises(ValueError, match="breaks off or is damaged"):
        decode(FileSource(csv=str(tmp_path / "x.csv.zip")))


def test_patterns_lists_and_plain_names_give_every_file_once_in_order(tmp_path):
    for name in ("b.csv", "a.csv", "c.txt", "d[1].csv"):
        (tmp_path / name).write_bytes(b"")
    found = expand(["*.csv", "a.csv", "d[1].csv", "c.txt"], lambda name: str(tmp_path / name), "source.csv")
    assert [path.rsplit("/", 1)[1] for path in found] == ["a.csv", "b.csv", "d[1].csv", "c.txt"]


def test_pipes_and_devices_are_refused_as_source_files(tmp_path):
    """A pipe keeps its reader waiting, and a device never ends."""
    (tmp_path / "a.csv").write_bytes(b"")
    os.mkfifo(tmp_path / "b.csv")
    (tmp_path / "c.csv").symlink_to("/dev/zero")
    (tmp_path / "d.csv").symlink_to(tmp_path / "absent")
    (tmp_path / "e.csv").symlink_to(tmp_path / "a.csv")
    (tmp_path / "f.csv").mkdir()
    # who follows a folder opens them, which is refused, and rejects them by their names
    found = present([str(tmp_path / "*.csv")])
    assert [Path(path).name for path in found.paths] == ["a.csv", "b.csv", "c.csv", "e.csv"]
    for name, what in (("b.csv", "a pipe"), ("c.csv", "a device")):
        with pytest.raises(SettingsError, match=rf"source\.csv: .*{name} is no file that ends, but {what}"):
            expand([str(tmp_path / name)], str, "source.csv")


def refuse_listing(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    """Take the right to list some folders, which root has anyway."""
    scandir = os.scandir

    def refuse(folder: Any) -> Any:
        if Path(folder).absolute() in folders:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refuse)


@pytest.mark.parametrize("pattern", ["*/*.csv", "[ab]/x.csv", "**/*.csv", "?/*"])
def test_a_folder_below_a_wildcard_that_may_not_be_listed_is_named(tmp_path, monkeypatch, pattern):
    for folder in ("a", "b", "b/deeper", "c"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.csv").write_text("id,ts,kwh\n")
    monkeypatch.chdir(tmp_path)
    refuse_listing(monkeypatch, tmp_path / "b")
    for where, folder in ((pattern, "b"), (str(tmp_path / pattern), str(tmp_path / "b"))):
        told = rf"source\.csv: the folder {folder} cannot be listed \(Permission denied\); give this user the right"
        with pytest.raises(SourceFileError, match=told):
            ReadReadings(FileSource(csv=where), READINGS)
    assert str(tmp_path / "a" / "x.csv") in present([str(tmp_path / pattern)]).paths


def test_a_folder_that_holds_no_match_need_not_be_listed(tmp_path, monkeypatch):
    for folder in ("a", "a/deeper", "other"):
        (tmp_path / folder).mkdir()
    (tmp_path / "a" / "x.csv").write_text("id,ts,kwh\n")
    refuse_listing(monkeypatch, tmp_path / "a" / "deeper", tmp_path / "other")
    assert expand([str(tmp_path / "a*" / "*.csv")], str, "source.csv") == [str(tmp_path / "a" / "x.csv")]
    for pattern in ("a*/**", "[ab]/**/*.csv", "a/**/*.csv"):
        assert [*present([str(tmp_path / pattern)]).closed] == [str(tmp_path / "a" / "deeper")]


def test_missing_rights_are_told_and_not_called_a_spelling_mistake(tmp_path, monkeypatch):
    (tmp_path / "x.csv").write_text("id,ts,kwh\n")
    stat, name = os.stat, str(tmp_path / "x.csv")

    def refuse(path: Any, *more: Any, **options: Any) -> Any:
        if str(path) == name:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
        return stat(path, *more, **options)

    # a folder that may be listed and not entered, and one of which both is denied
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", refuse)
        for pattern in ("*.csv", "x.csv"):
            with pytest.raises(SourceFileError, match=r"file .*x\.csv cannot be opened \(Permission denied\)"):
                ReadReadings(FileSource(csv=str(tmp_path / pattern)), READINGS)
    refuse_listing(monkeypatch, tmp_path)
    with pytest.raises(SourceFileError, match=r"the folder .* cannot be listed \(Permission denied\)"):
        ReadReadings(FileSource(csv=str(tmp_path / "*.csv")), READINGS)


def test_empty_files_are_counted_and_named_and_links_to_folders_or_to_nothing_are_not_followed(tmp_path):
    data = tmp_path / "data"
    for folder in (data / "a", tmp_path / "elsewhere"):
        folder.mkdir(parents=True)
        (folder / "x.csv").write_text("id,ts,kwh\n")
    (data / "b").symlink_to(tmp_path / "elsewhere")
    (data / "a" / "dead.csv").symlink_to(tmp_path / "absent")
    (data / "a" / "loop.csv").symlink_to("loop.csv")
    for number in range(5):
        (data / "a" / f"{number}.csv").write_bytes(b"")
    reading = ReadReadings(FileSource(csv=str(data / "*" / "*.csv")), READINGS)
    assert reading.left_out == (f"5 empty files: {data}/a/0.csv, {data}/a/1.csv, {data}/a/2.csv and others",)
    for name in ("a/dead.csv", "[b]/*.csv", "a/?x.csv", "*/y.csv"):
        with pytest.raises(SettingsError, match=r"no file matches"):
            ReadReadings(FileSource(csv=str(data / name)), READINGS)


@pytest.mark.parametrize(
    ("pattern", "shown"),
    [
        ("*.csv", ["a.csv"]),
        ("?*.csv", ["a.csv"]),
        ("[.]b.csv", []),
        (".*.csv", [".b.csv"]),
        (".b.csv", [".b.csv"]),
        ("*/*.csv", ["s/c.csv"]),
        (".h/*.csv", [".h/e.csv"]),
        ("**", ["a.csv", "s/c.csv", "s/t/g.csv"]),
        ("**/*.csv", ["s/c.csv", "s/t/g.csv"]),
        ("s/**/.*.csv", ["s/t/.f.csv", "s/t/.r/.j.csv"]),
        ("s/**.csv", ["s/c.csv", "s/t/g.csv"]),
        ("**/.r/*.csv", ["s/t/.r/i.csv"]),
    ],
)
def test_no_wildcard_stands_for_the_dot_at_the_beginning_of_a_name(tmp_path, monkeypatch, pattern, shown):
    for name in (
        *("a.csv", ".b.csv", "s/c.csv", "s/.d.csv", "s/t/g.csv", "s/t/.f.csv", "s/t/.r/i.csv", "s/t/.r/.j.csv"),
        ".h/e.csv",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("id,ts,kwh\n")
    assert present([f"{tmp_path}/{pattern}"]).paths == [f"{tmp_path}/{name}" for name in shown]
    monkeypatch.chdir(tmp_path)
    assert present([pattern]).paths == shown


def test_a_hidden_folder_without_rights_does_not_stop_a_job(tmp_path, monkeypatch):
    for folder in (".h", "s"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.csv").write_text("id,ts,kwh\n")
    refuse_listing(monkeypatch, tmp_path / ".h")
    for pattern in ("*/*.csv", "**/*.csv"):
        assert expand([f"{tmp_path}/{pattern}"], str, "source.csv") == [str(tmp_path / "s" / "x.csv")]


def test_hidden_files_elsewhere_are_left_out_too(monkeypatch):
    names = ["gs://x/a.csv", "gs://x/.b.csv"]
    matched = SimpleNamespace(metadata_list=[SimpleNamespace(path=name) for name in names])
    monkeypatch.setattr(paths, "file_systems", lambda: SimpleNamespace(match=lambda _: [matched]))
    assert present(["gs://x/*.csv"]).paths == names[:1]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("absent.csv", r"source\.csv: no file matches .*absent\.csv"),
        ("*.csv", r"source\.csv: no file matches"),
        (".", r"is a folder; name the files in it"),
        ("nowhere://x/*.csv", r"cannot be looked up \(ValueError\).*apache-beam\[gcp\]"),
        ("x.csv.xz", r"compressed in a way that is not read"),
    ],
)
def test_a_pattern_without_readable_files_is_refused_with_advice(tmp_path, pattern, message):
    (tmp_path / "x.csv.xz").write_bytes(b"xz")
    with pytest.raises(SettingsError, match=message):
        expand([pattern if "://" in pattern else f"{tmp_path}/{pattern}"], str, "source.csv")


def test_problems_of_all_files_are_reported_at_once_up_to_a_limit(tmp_path):
    for i in range(30):
        (tmp_path / f"{i}.csv").write_text("id,ts\n")
    with pytest.raises(SettingsError) as caught:
        ReadReadings(FileSource(csv=str(tmp_path / "*.csv")), READINGS)
    assert len(caught.value.problems) == 21
    assert caught.value.problems[-1] == "and 10 more problems of this kind"


def test_a_file_that_vanished_is_named(tmp_path):
    with pytest.raises(SourceFileError, match=r"gone\.csv cannot be opened \(No such file or directory\)"):
        open_bytes(str(tmp_path / "gone.csv"))


def test_invalid_file_settings_are_refused(tmp_path):
    (tmp_path / "x.csv").write_text("id,ts,kwh\n")
    source = FileSource(csv=str(tmp_path / "x.csv"))
    with pytest.raises(ValueError, match="batch_rows 0"):
        ReadReadings(source, READINGS, batch_rows=0)
    with pytest.raises(ValueError, match="timezone 'Mars/Base'"):
        ReadReadings(source, READINGS, timezone="Mars/Base")
