"""A file appears whole or not at all."""

from __future__ import annotations

import os
import socket
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from quiltstream.schemas.files import (
    FileError,
    check_replaceable,
    open_private,
    open_regular,
    part_name,
    read_regular,
    whole_file,
    write_whole,
)


def names(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


def test_a_file_appears_when_complete_and_replaces_the_old_one(tmp_path: Path) -> None:
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


def test_a_file_that_cannot_be_placed_is_an_error_and_leaves_no_trace(tmp_path: Path) -> None:
    def write(path: Path, text: str) -> None:
        with whole_file(path) as part:
            part.write_text(text, encoding="utf-8")

    (tmp_path / "out").mkdir()
    with pytest.raises(FileError, match="a folder is there, and only a regular file is replaced"):
        write(tmp_path / "out", "text")
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
    with whole_file(tmp_path / "out", private=True):
        pass
    assert flushed == ["file", "replaced", "folder"]
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o600


def test_partial_file_names_are_unique_and_match_no_data_file_pattern() -> None:
    parts = {part_name("a.csv") for _ in range(100)}
    assert len(parts) == 100
    assert not any(fnmatchcase(part, pattern) for part in parts for pattern in ("*.csv", "a.*", "a*"))


@contextmanager
def umask(mask: int) -> Generator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def no_file(folder: Path, kind: str) -> Path:
    """A path with something else than a file."""
    path = folder / "there"
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(path))
    elif kind == "a folder":
        path.mkdir()
    elif kind == "a symbolic link":
        (folder / "target").write_text("target", encoding="utf-8")
        path.symlink_to(folder / "target")
    else:
        return Path("/dev/full")
    return path


@pytest.mark.parametrize("kind", ["a pipe", "a socket", "a folder", "a device"])
def test_a_non_file_is_not_opened_for_reading(tmp_path: Path, kind: str) -> None:
    """A pipe without a writer would keep the reader waiting, and the device has no end."""
    path = no_file(tmp_path, kind)
    for there in (path, tmp_path / "link"):
        if there != path:
            there.symlink_to(path)
        with pytest.raises(FileError, match=f"it is {kind}; give a regular file"):
            open_regular(there)


@pytest.mark.parametrize("kind", ["a pipe", "a socket", "a folder", "a device", "a symbolic link"])
def test_a_non_file_is_not_replaced(tmp_path: Path, kind: str) -> None:
    path = no_file(tmp_path, kind)
    with pytest.raises(FileError, match=f"{kind} is there, and only a regular file is replaced"):
        check_replaceable(path)
    if kind == "a device":  # only looked at: a failure would take it from the whole machine
        return
    before = path.lstat()
    with pytest.raises(FileError), whole_file(path):
        raise AssertionError
    with pytest.raises(FileError):
        open_private(path, os.O_WRONLY)
    assert os.path.samestat(path.lstat(), before)
    assert not [one for one in tmp_path.iterdir() if one.name.endswith(".part")]


def test_a_non_file_created_during_a_write_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "out"

    def write() -> None:
        with whole_file(path) as part:
            part.write_text("rows", encoding="utf-8")
            os.mkfifo(path)

    with pytest.raises(FileError, match="a pipe is there"):
        write()
    assert path.is_fifo()
    assert names(tmp_path) == ["out"]


def test_a_new_file_never_replaces_one_created_during_the_write(tmp_path: Path) -> None:
    path = tmp_path / "key"

    def write() -> None:
        with whole_file(path, new=True) as part:
            part.write_text("mine", encoding="utf-8")
            path.write_text("theirs", encoding="utf-8")

    with pytest.raises(FileExistsError):
        write()
    assert path.read_text(encoding="utf-8") == "theirs"


def test_a_link_to_a_file_is_read_and_its_target_has_the_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_regular(tmp_path / "link", 5) == b"12345"
    with pytest.raises(FileError, match="at least 5 bytes, and 4 are the limit"):
        read_regular(tmp_path / "link", 4)


@pytest.mark.parametrize("mask", [0, 0o022, 0o277])
def test_a_private_file_has_mode_600_under_any_umask(tmp_path: Path, mask: int) -> None:
    path = tmp_path / "secret"
    path.touch(mode=0o644)
    with umask(mask):
        with whole_file(path, private=True) as part:
            assert part.stat().st_mode & 0o777 == 0o600
            part.write_text("text", encoding="utf-8")
        os.close(open_private(tmp_path / "other", os.O_WRONLY))
    assert path.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "other").stat().st_mode & 0o777 == 0o600


def test_a_name_with_nul_is_an_error_of_the_file() -> None:
    with pytest.raises(FileError, match="NUL"):
        open_regular(Path("a\0b"))
    with pytest.raises(FileError, match="NUL"):
        check_replaceable(Path("a\0b"))


def test_a_sqlite_database_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE kept (id)")
    before = path.read_bytes()
    with pytest.raises(FileError, match=r"a SQLite database is there, .* never replaced; name another file"):
        write_whole(path, "text")
    assert (path.read_bytes(), [one.name for one in tmp_path.iterdir()]) == (before, ["ledger.db"])
