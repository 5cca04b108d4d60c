"""A file appears whole or not at all."""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from quiltstream.schemas.files import part_name, whole_file


def names(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


def test_a_file_appears_when_it_is_whole_and_replaces_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "out.csv"
    for text in ("one", "two"):
        with whole_file(path) as part:
            part.write_text(text, encoding="utf-8")
            assert part.parent == path.parent
            assert not path.exists() or path.read_text(encoding="utf-8") == "one"
        assert path.read_text(encoding="utf-8") == text
        assert names(path.parent) == ["out.csv"]


def test_a_block_that_fails_leaves_the_old_file_and_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("old", encoding="utf-8")

    def fail() -> None:
        with whole_file(path) as part:
            part.write_text("half", encoding="utf-8")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_text(encoding="utf-8") == "old"
    assert names(tmp_path) == ["out"]


def test_what_cannot_be_put_in_place_is_an_error_and_leaves_no_trace(tmp_path: Path) -> None:
    def write(path: Path, text: str | None) -> None:
        with whole_file(path) as part:
            if text is not None:
                part.write_text(text, encoding="utf-8")

    (tmp_path / "out").mkdir()
    with pytest.raises(IsADirectoryError):
        write(tmp_path / "out", "text")
    with pytest.raises(FileNotFoundError):
        write(tmp_path / "unwritten", None)
    (tmp_path / "file").touch()
    with pytest.raises((FileExistsError, NotADirectoryError)):
        write(tmp_path / "file" / "out", "text")
    assert names(tmp_path) == ["file", "out"]


def test_the_file_and_then_its_folder_are_flushed_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[str] = []
    flush, place = os.fsync, Path.replace

    def note(number: int) -> None:
        flushed.append("folder" if os.path.samestat(os.fstat(number), tmp_path.stat()) else "file")
        flush(number)

    def put(self: Path, target: Path) -> Path:
        flushed.append("replaced")
        return place(self, target)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(Path, "replace", put)
    with whole_file(tmp_path / "out") as part:
        part.touch(mode=0o600)
    assert flushed == ["file", "replaced", "folder"]
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o600


def test_no_pattern_of_data_files_finds_a_part_and_no_two_are_alike() -> None:
    parts = {part_name("a.csv") for _ in range(100)}
    assert len(parts) == 100
    assert not any(fnmatchcase(part, pattern) for part in parts for pattern in ("*.csv", "a.*", "a*"))
