"""Released rows read back from files and folders, with a row for every count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from quiltstream.schemas import read_releases
from quiltstream.schemas.files import FileError
from quiltstream.schemas.releases import TIDY_SCHEMA, tidy
from quiltstream.schemas.settings.connectors import FileFormat
from quiltstream.schemas.table_files import released_rows

from ..released import write_rows
from .test_releases import make_batch, make_classed

FORMATS: tuple[FileFormat, ...] = ("parquet", "avro", "jsonl", "csv")


@pytest.mark.parametrize("form", FORMATS)
def test_each_format_of_a_sink_gives_the_same_table(form: FileFormat, tmp_path: Path) -> None:
    table = pa.Table.from_batches([make_batch()])
    write_rows(tmp_path / "rows", form, table)
    found = read_releases(tmp_path / "rows")
    assert found.schema.equals(TIDY_SCHEMA, check_metadata=True)
    assert found.equals(tidy(released_rows([tmp_path / "rows"])))
    assert sorted(found["count"].to_pylist()) == [-2, 1, 3, 4, 5, 6]


def test_rows_that_another_program_wrote_anew_are_all_read(tmp_path: Path) -> None:
    table = pa.Table.from_batches([make_batch()])
    for form in ("jsonl", "csv"):
        write_rows(tmp_path / "rows", form, table)
        whole, written = read_releases(tmp_path / "rows"), (tmp_path / "rows").read_bytes()
        head, _, rows = written.partition(b"\n")
        anew = [written.rstrip(b"\n"), written.replace(b"\n", b"\r\n"), written + b"\n", b"\xef\xbb\xbf" + written]
        if form == "csv":
            anew += [b'"' + head.replace(b",", b'","') + b'"\n' + rows]
        for content in anew:
            (tmp_path / "rows").write_bytes(content)
            assert read_releases(tmp_path / "rows").equals(whole)


def test_classes_of_slots_have_separate_totals() -> None:
    found = tidy(make_classed()).to_pylist()
    for row in found:
        alike = [one["count"] for one in found if (one["key"], one["class"]) == (row["key"], row["class"])]
        assert row["total"] == sum(alike)
    # independent noise moves the sum of a class, so only the row's total is public
    free = [row | {"noise_law": "discrete-laplace"} for row in make_classed().to_pylist()]
    assert set(tidy(pa.Table.from_pylist(free, schema=make_classed().schema))["total"].to_pylist()) == {None}


def test_rows_of_several_bins_stand_in_one_table_in_their_order() -> None:
    both = pa.Table.from_batches([make_classed(), make_batch()])
    found = tidy(both)
    assert found.num_rows == 18
    assert found.slice(12).equals(tidy(make_batch()))
    assert found.slice(0, 12).equals(tidy(make_classed()))
    assert tidy(both.slice(0, 0)).num_rows == 0


def test_rows_are_taken_as_batches_frames_or_tidy_already() -> None:
    batch = make_batch()
    found = tidy(batch)
    frame = pl.DataFrame(pl.from_arrow(batch))
    reader = pa.RecordBatchReader.from_batches(batch.schema, [batch])
    for given in ([batch.slice(0, 1), batch.slice(1)], iter([batch]), frame, reader):
        assert tidy(given).equals(found)
    assert tidy(found) is found
    assert tidy([]).num_rows == 0
    for given, kind in (("rows.parquet", "str"), ([{"key": "m1"}], "dict"), (None, "NoneType")):
        with pytest.raises(TypeError, match=f"released is of the type {kind}, .*: for files use read_releases"):
            tidy(given)
    with pytest.raises(ValueError, match="released has not the column key: give rows as PrivateHistograms"):
        tidy(pa.table(batch.drop_columns(["key"])))


def test_files_of_a_live_folder_are_read_together_and_each_row_once(tmp_path: Path) -> None:
    table = pa.Table.from_batches([make_batch()])
    write_rows(tmp_path / "one.parquet", "parquet", table.slice(0, 1))
    write_rows(tmp_path / "two.jsonl", "jsonl", table)
    (tmp_path / ".releases.quiltstream.json").write_text("{}", encoding="utf-8")
    (tmp_path / ".two.jsonl.0f.part").write_text("half a ro", encoding="utf-8")
    assert sorted(read_releases(tmp_path)["count"].to_pylist()) == [-2, 1, 3, 4, 5, 6]
    assert read_releases([tmp_path, tmp_path / "one.parquet"]).equals(read_releases(tmp_path))


def test_a_file_without_releases_is_reported_without_its_content(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="there is no such file"):
        read_releases(tmp_path / "absent")
    with pytest.raises(FileError, match="the folder holds no file of releases"):
        read_releases(tmp_path)
    for name, content in (
        ("a.csv", b"meter,ts,kwh\nm1,2024,secret-7\n"),
        ("b.jsonl", b'{"meter": "secret-7"}\n'),
        ("c.bin", b"\xff\xfe\x00secret-7"),
        ("d.parquet", b"PAR1secret-7"),
        ("e.avro", b"Obj\x01secret-7"),
        ("f.csv", b"secret-7" * 20_000),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(FileError, match="holds no releases") as caught:
            read_releases(tmp_path / name)
        assert "secret-7" not in str(caught.value)
    table = pa.Table.from_batches([make_batch()])
    write_rows(tmp_path / "whole.jsonl", "jsonl", table)
    whole = (tmp_path / "whole.jsonl").read_bytes()
    (tmp_path / "cut.jsonl").write_bytes(whole[:-40] + b"\n")
    with pytest.raises(FileError, match="its releases cannot be read"):
        read_releases(tmp_path / "cut.jsonl")
    odd = [row | {"counts": [1, 2]} for row in make_batch().to_pylist()]
    with pytest.raises(ValueError, match="another number of counts than bins"):
        tidy(pa.Table.from_pylist(odd, schema=make_batch().schema))


#: What is wrong with the second row of a file, and what is said of it.
DAMAGED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"counts": [1, 2]}, "counts is [1, 2], but must hold 3: one for each bin and class of slots"),
    ({"counts": [1, None, 2]}, "counts is [1, None, 2], but must hold neither null nor infinite numbers"),
    ({"estimate": [1.0, 1.0, float("nan")]}, "estimate is [1.0, 1.0, nan], but must hold neither null"),
    ({"edges": [500.0, 250.0]}, "edges or labels: "),
    ({"scale_exact": "1/0"}, "scale_exact is 1/0, but must be a fraction of 0 or more"),
    ({"scale": float("nan")}, "scale is nan, but must be a number of 0 or more"),
    ({"loss_after": float("inf")}, "loss_after is inf, but must be a number of 0 or more"),
    ({"window_stop": "2013-01-01T00:00:00Z"}, "window_stop is 2013-01-01 00:00:00+00:00, but must be later than"),
    ({"slots": -336}, "slots is -336, but must be a number of 1 or more"),
    ({"slots": None}, "slots is left out, but must be there"),
    ({"timezone": "Mars"}, "timezone is Mars, but must be an IANA name"),
    ({"noise_law": "gaussian"}, "noise_law is gaussian, but must be one of discrete-laplace, "),
    ({"classes": ["day"]}, "class_slots is left out, but must be there where classes is"),
)


@pytest.mark.parametrize(("changes", "said"), DAMAGED)
def test_a_damaged_row_is_refused_with_its_file_row_field_and_value(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    write_rows(tmp_path / "rows.jsonl", "jsonl", pa.Table.from_batches([make_batch()]))
    first, second = (tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    damaged = json.dumps(json.loads(second) | changes)
    (tmp_path / "rows.jsonl").write_text(f"{first}\n{damaged}\n", encoding="utf-8")
    with pytest.raises(FileError) as caught:
        released_rows([tmp_path / "rows.jsonl"])
    assert str(caught.value).startswith(f"{tmp_path / 'rows.jsonl'}: ")
    assert f"row 2: {said}" in str(caught.value)


def test_a_window_without_slots_of_a_class_and_no_noise_are_no_damage(tmp_path: Path) -> None:
    rows = [row | {"scale": 0.0, "scale_exact": "0/1", "noise_law": "none"} for row in make_classed().to_pylist()]
    write_rows(tmp_path / "rows", "csv", pa.Table.from_pylist(rows, schema=make_classed().schema))
    assert released_rows([tmp_path / "rows"]).num_rows == len(rows)
