"""Paths and patterns: what they match, and what is said when they match nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quiltstream.schemas.settings.base import SettingsError
from quiltstream.schemas.settings.connectors import FileSource
from quiltstream.transforms.formats.paths import SourceFileError, expand, open_bytes, present
from quiltstream.transforms.sources.files import ReadReadings

from .decoding import READINGS


def test_patterns_lists_and_plain_names_give_every_file_once_in_order(tmp_path):
    for name in ("b.csv", "a.csv", "c.txt", "d[1].csv"):
        (tmp_path / name).write_bytes(b"")
    found = expand(["*.csv", "a.csv", "d[1].csv", "c.txt"], lambda name: str(tmp_path / name), "source.csv")
    assert [path.rsplit("/", 1)[1] for path in found] == ["a.csv", "b.csv", "d[1].csv", "c.txt"]


def test_what_has_no_end_is_no_file(tmp_path):
    """A pipe keeps its reader waiting, and a device never ends."""
    (tmp_path / "a.csv").write_bytes(b"")
    os.mkfifo(tmp_path / "b.csv")
    (tmp_path / "c.csv").symlink_to("/dev/zero")
    (tmp_path / "d.csv").symlink_to(tmp_path / "absent")
    (tmp_path / "e.csv").symlink_to(tmp_path / "a.csv")
    (tmp_path / "f.csv").mkdir()
    # who follows a folder opens them, which is refused, and rejects them by their names
    assert [Path(path).name for path in present([str(tmp_path / "*.csv")])] == ["a.csv", "b.csv", "c.csv", "e.csv"]
    for name, what in (("b.csv", "a pipe"), ("c.csv", "a device")):
        with pytest.raises(SettingsError, match=rf"source\.csv: .*{name} is no file that ends, but {what}"):
            expand([str(tmp_path / name)], str, "source.csv")
    for pattern in ("*.csv", "[bc].csv"):
        with pytest.raises(SettingsError) as raised:
            expand([str(tmp_path / pattern)], str, "source.csv")
        told = str(raised.value)
        for name, what in (("b.csv", "a pipe"), ("c.csv", "a device")):
            assert f"matches {tmp_path / name}, which is no file that ends, but {what}; take it away" in told


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("absent.csv", r"source\.csv: no file matches .*absent\.csv"),
        ("*.csv", r"source\.csv: no file matches"),
        (".", r"is a folder; name the files in it"),
        ("nowhere://x/*.csv", r"cannot be looked up \(ValueError\).*apache-beam\[gcp\]"),
        ("x.csv.zst", r"compressed in a way that is not read"),
    ],
)
def test_a_pattern_that_names_no_readable_file_says_what_to_do(tmp_path, pattern, message):
    (tmp_path / "x.csv.zst").write_bytes(b"zst")
    with pytest.raises(SettingsError, match=message):
        expand([pattern if "://" in pattern else f"{tmp_path}/{pattern}"], str, "source.csv")


def test_every_problem_of_every_file_is_told_at_once_but_not_without_end(tmp_path):
    for i in range(30):
        (tmp_path / f"{i}.csv").write_text("id,ts\n")
    with pytest.raises(SettingsError) as caught:
        ReadReadings(FileSource(csv=str(tmp_path / "*.csv")), READINGS)
    assert len(caught.value.problems) == 21
    assert caught.value.problems[-1] == "and 10 more problems of this kind"


def test_a_file_that_vanished_is_named(tmp_path):
    with pytest.raises(SourceFileError, match=r"gone\.csv cannot be opened \(No such file or directory\)"):
        open_bytes(str(tmp_path / "gone.csv"))


def test_settings_that_make_no_sense_are_refused(tmp_path):
    (tmp_path / "x.csv").write_text("id,ts,kwh\n")
    source = FileSource(csv=str(tmp_path / "x.csv"))
    with pytest.raises(ValueError, match="batch_rows 0"):
        ReadReadings(source, READINGS, batch_rows=0)
    with pytest.raises(ValueError, match="timezone 'Mars/Base'"):
        ReadReadings(source, READINGS, timezone="Mars/Base")
