"""The gateway's files: for their owner alone under any umask, and never in the place of what is no file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from quiltstream.pipelines.errors import CommandError
from quiltstream.pipelines.gateway.delivery import DeliveryError, FolderDelivery, Segment, recover
from quiltstream.pipelines.gateway.metrics import Dropped, RejectFile

from .delivery_contract import message


@pytest.fixture(autouse=True, params=[0o000, 0o022])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    try:
        yield
    finally:
        os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    return {one.name: oct(one.stat().st_mode & 0o777) for one in folder.iterdir() if one.is_file()}


def test_open_and_sealed_segments_are_accessible_by_their_owner_only(tmp_path: Path) -> None:
    """They hold raw payloads."""
    sealed, torn = Segment(tmp_path, 1), Segment(tmp_path, 2)
    for one in (sealed, torn):
        one.add([message(1)])
    assert set(modes(tmp_path).values()) == {"0o600"}
    sealed.seal()
    torn.abandon()
    recover(torn.path)
    assert len(modes(tmp_path)) == 2
    assert set(modes(tmp_path).values()) == {"0o600"}


def test_rejects_are_accessible_by_their_owner_only_after_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "rejects.jsonl"
    path.touch(mode=0o644)
    file = RejectFile(path, 200)
    for _ in range(5):
        file.add(Dropped.TOO_LARGE, b"topic", 7)
    file.close()
    assert len(modes(tmp_path)) > 1
    assert set(modes(tmp_path).values()) == {"0o600"}


def test_pipes_and_links_in_the_place_of_its_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    for name in ("pipe", "link"):
        with pytest.raises(CommandError, match="only a regular file is replaced"):
            RejectFile(tmp_path / name)
    (tmp_path / "spool").mkdir()
    os.mkfifo(tmp_path / "spool" / ".gateway.lock")
    with pytest.raises(DeliveryError, match="a pipe is there"):
        FolderDelivery(tmp_path / "spool", size=1, age=1.0)
    assert not (tmp_path / "victim").exists()
