"""Files of text as the world writes them: packed, in other encodings, with other delimiters and decimal marks."""

from __future__ import annotations

import bz2
import gzip
import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quiltstream.schemas.readings import RejectReason
from quiltstream.schemas.settings.connectors import FileSource
from quiltstream.schemas.settings.mappings import Readings
from quiltstream.transforms.sources.files import ReadReadings

TEXT = "Zähler;Zeit;kWh\nhaus-ä;01.03.2024 00:00;1,25\nhaus-ä;01.03.2024 00:30;-0,5\nhaus-ß;01.03.2024 00:00;3\n"
NAMED: dict[str, Any] = {"series": "Zähler", "time": "Zeit", "value": "kWh", "time_format": "%d.%m.%Y %H:%M"}


def read(path: Path, **how: Any) -> tuple[list[tuple[str, float]], list[tuple[str, int]]]:
    """The names and values of the readings of a file with semicolons and decimal commas, and its rejects."""
    source = FileSource(csv=str(path), delimiter=";", **how)
    reading = ReadReadings(source, Readings(**NAMED, decimal=","))
    rows, rejects = [], []
    for task in reading.tasks:
        decoder = reading.decoder.rows()
        for raw in reading.decoder.raw_rows(task):
            decoded = decoder.decode(raw)
            rejects += [(one.reason.value, at) for one in decoded.rejects for at in one.positions.tolist()]
            if decoded.readings is not None:
                plain = decoded.readings.to_pydict()
                rows += list(zip(plain["series"], plain["value"], strict=True))
    return rows, rejects


EXPECTED = [("haus-ä", 1.25), ("haus-ä", -0.5), ("haus-ß", 3.0)]


def zipped(members: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return made.getvalue()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("x.csv", TEXT.encode()),
        ("x.csv", b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode()),
        ("x.csv.gz", gzip.compress(TEXT.encode())),
        ("x.csv.bz2", bz2.compress(TEXT.encode())),
        ("x.csv.zip", zipped({"export/": b"", "export/x.csv": TEXT.encode()})),
    ],
    ids=[
        "plain",
        "with a mark",
        "gzip",
        "bzip2",
        "zip",
    ],  # gzip holds the time: each worker would make another name of it
)
def test_packed_files_are_read_as_their_content_is(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    assert read(tmp_path / name) == (EXPECTED, [])


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1", "windows-1252"])
def test_text_in_a_named_encoding_is_read(tmp_path: Path, encoding: Any) -> None:
    (tmp_path / "x.csv").write_bytes(TEXT.encode(encoding))
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(TEXT.encode(encoding)))
    assert read(tmp_path / "x.csv", encoding=encoding) == (EXPECTED, [])
    assert read(tmp_path / "x.csv.gz", encoding=encoding) == (EXPECTED, [])


def test_text_in_another_encoding_than_named_breaks_the_file(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(TEXT.encode("utf-16") + b"\0")
    with pytest.raises(ValueError, match=r"x\.csv is no text in utf-16; set source\.encoding"):
        read(tmp_path / "x.csv", encoding="utf-16")


@pytest.mark.parametrize("bad", ["1.5", "1.234,5", "1,2,3", "1,5 kWh"])
def test_a_number_with_another_mark_is_no_number(tmp_path: Path, bad: str) -> None:
    """In both ways of reading: a block that Arrow takes at once, and one that is read as text."""
    (tmp_path / "x.csv").write_text(TEXT + f"haus-ß;01.03.2024 00:30;{bad}\n", encoding="utf-8")
    assert read(tmp_path / "x.csv") == (EXPECTED, [(RejectReason.NOT_A_NUMBER.value, 5)])


def test_a_decimal_comma_between_commas_is_quoted(tmp_path: Path) -> None:
    lines = ["Zähler,Zeit,kWh", *(f'a,01.03.2024 {hour:02}:00,"{hour},5"' for hour in range(5))]
    (tmp_path / "x.csv").write_text("\n".join(lines), encoding="utf-8")
    reading = ReadReadings(FileSource(csv=str(tmp_path / "x.csv")), Readings(**NAMED, decimal=","))
    (task,) = reading.tasks
    decoded = [reading.decoder.rows().decode(raw).readings for raw in reading.decoder.raw_rows(task)]
    found = np.concatenate([one["value"].to_numpy() for one in decoded if one is not None])
    assert np.array_equal(np.sort(found), np.arange(5) + 0.5)


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
        read(tmp_path / "x.csv.zip")


def test_a_damaged_archive_breaks_off(tmp_path: Path) -> None:
    whole = bytearray(zipped({"x.csv": TEXT.encode() * 50}))
    whole[60] ^= 0xFF
    (tmp_path / "x.csv.zip").write_bytes(bytes(whole))
    with pytest.raises(ValueError, match="breaks off or is damaged"):
        read(tmp_path / "x.csv.zip")


def test_the_decimal_mark_is_no_part_of_what_a_domain_keeps() -> None:
    assert Readings(**NAMED, decimal=",").canonical() == Readings(**NAMED).canonical()
