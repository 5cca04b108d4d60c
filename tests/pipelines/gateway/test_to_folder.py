"""The folder as a delivery target: what it says it has is on the disk, whatever ends the process."""

from __future__ import annotations

import os
import random
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import fastavro
import pytest

from quiltstream.pipelines.gateway import DeliveryError, DeliveryTarget, Message
from quiltstream.pipelines.gateway.delivery import FolderDelivery, Segment

from ...depth import NIGHT
from .delivery_contract import DeliveryContract, Place, had_by, message, number_of


def messages_of(folder: Path, pattern: str = "*.avro") -> list[Message]:
    found: list[Message] = []
    for path in sorted(folder.glob(pattern)):
        with path.open("rb") as file:
            for record in fastavro.reader(file):
                assert isinstance(record, dict)
                received = round(record["received"].timestamp() * 1e6)
                flags = (record["dup"], record["retain"], record["content_type"])
                found.append(Message(record["topic"], record["payload"], received, *flags))
    return found


class Disk(Place):
    """A folder whose disk can be full."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.full = False
        self.room: int | None = None  # bytes of all files in the folder, if there is a bound
        self.targets: list[FolderDelivery] = []
        self._fsync = os.fsync
        patch.setattr(os, "fsync", self.sync)

    def sync(self, file: int) -> None:
        """As the system does it, if there is room for what is in a file."""
        full = self.full or (self.room is not None and self.held() > self.room)
        if full and not stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(28, "No space left on device")
        self._fsync(file)

    def target(self) -> DeliveryTarget:
        self.targets.append(FolderDelivery(self.folder, size=1 << 20, age=0.2))
        return self.targets[-1]

    def kept(self) -> list[Message]:
        # those in a segment that is still open are kept as well: the next start seals it
        return messages_of(self.folder) + messages_of(self.folder, ".*.open")

    def held(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for path in self.folder.iterdir())

    def fail(self) -> None:
        self.full = True

    def mend(self) -> None:
        self.full = False


class TestFolderHop(DeliveryContract):
    @pytest.fixture
    def place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
        disk = Disk(tmp_path / "spool", monkeypatch)
        yield disk
        disk.mend()
        for target in disk.targets:
            target.close(2)


def test_an_error_that_is_none_of_the_disk_ends_the_gateway(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def broken(folder: Path, began_us: int) -> Segment:
        raise MemoryError(folder, began_us)

    target = FolderDelivery(tmp_path, size=1 << 20, age=60.0, begin=broken)
    assert target.offer(1, message(1))
    for _ in range(2):
        with pytest.raises(MemoryError):
            had_by(target, 1)
    assert "no message is written any more" in caplog.text
    target.close(1.0)


def test_a_segment_is_sealed_by_age_without_further_messages(tmp_path: Path) -> None:
    target = FolderDelivery(tmp_path, size=1 << 30, age=0.2)
    target.offer(1, message(1))
    assert had_by(target, 1) == [1]
    until = time.monotonic() + 10
    while not list(tmp_path.glob("*.avro")):
        assert time.monotonic() < until
        time.sleep(0.02)
    assert len(messages_of(tmp_path)) == 1
    target.close(5)
    assert len(list(tmp_path.glob("*.avro"))) == 1


@pytest.mark.night
def test_a_segment_is_sealed_by_size_and_all_of_them_hold_everything_in_order(tmp_path: Path) -> None:
    target = FolderDelivery(tmp_path, size=20_000, age=60)
    for number in range(50):
        target.offer(number, message(number, 2_000))
        had_by(target, 1)
    target.close(5)
    files = list(tmp_path.glob("*.avro"))
    assert len(files) >= 4
    assert all(path.stat().st_size < 30_000 for path in files)
    assert [number_of(one.payload) for one in messages_of(tmp_path)] == list(range(50))


def test_a_folder_belongs_to_one_gateway(tmp_path: Path) -> None:
    first = FolderDelivery(tmp_path, size=1, age=1)
    with pytest.raises(DeliveryError, match="another gateway writes to it"):
        FolderDelivery(tmp_path, size=1, age=1)
    first.close(1)
    FolderDelivery(tmp_path, size=1, age=1).close(1)


def test_a_spool_path_that_is_not_a_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="ascii")
    with pytest.raises(DeliveryError, match=r"forward\.to\.folder .*: cannot be written"):
        FolderDelivery(tmp_path / "file" / "spool", size=1, age=1)


@pytest.mark.night
def test_a_message_is_stored_once_after_a_failed_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a failed sync left in the file is cut off before the file is sealed."""
    disk = Disk(tmp_path, monkeypatch)
    target = disk.target()
    target.offer(0, message(0))
    had_by(target, 1)
    disk.fail()
    for number in range(1, 30):
        target.offer(number, message(number))
    time.sleep(0.1)
    disk.mend()
    had_by(target, 29)
    target.close(5)
    assert sorted(number_of(one.payload) for one in messages_of(tmp_path)) == list(range(30))
    assert not list(tmp_path.glob(".*.open"))


def test_failed_segment_starts_on_a_full_disk_leave_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(tmp_path, monkeypatch)
    disk.fail()
    for _ in range(3):
        with pytest.raises(OSError, match="No space left"):
            Segment(tmp_path, 1)
    assert not list(tmp_path.iterdir())


@pytest.mark.night
def test_a_disk_with_room_for_a_part_of_what_waits_takes_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("quiltstream.pipelines.gateway.delivery.DISK_RETRY_S", 0.01)
    spool, taken = tmp_path / "spool", tmp_path / "taken"
    taken.mkdir()
    disk = Disk(spool, monkeypatch)
    target = disk.target()
    disk.fail()
    for number in range(60):
        target.offer(number, message(number, 1_000))
    disk.room = 20_000
    disk.mend()
    found, until = list[int](), time.monotonic() + 20
    while len(found) < 60:
        assert time.monotonic() < until, f"the target has {len(found)} of 60 messages"
        found += target.had()
        for path in spool.glob("*.avro"):
            path.rename(taken / path.name)
    target.close(5)
    assert found == list(range(60))
    kept = messages_of(taken) + messages_of(spool)
    assert [number_of(one.payload) for one in kept] == list(range(60))
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


def test_what_a_full_disk_did_not_take_is_removed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quiltstream.pipelines.gateway.delivery.DISK_RETRY_S", 60.0)
    disk = Disk(tmp_path, monkeypatch)
    disk.room = 20_000
    target = disk.target()
    target.offer(0, message(0, 100_000))
    until = time.monotonic() + 20
    while not disk.targets[0].failures or disk.held():
        assert time.monotonic() < until, f"{disk.held()} bytes are kept until the next try"
        time.sleep(0.005)
    target.close(0)


WRITER = """
import sys, time
from pathlib import Path
from quiltstream.pipelines.gateway.delivery import FolderDelivery
from quiltstream.pipelines.gateway import Message

target = FolderDelivery(Path(sys.argv[1]), size=100_000, age=0.05)
first = int(sys.argv[2])
number = first
while True:
    for _ in range(50):
        target.offer(number, Message("m", (b"%d|" % number).ljust(300, b"x"), number))
        number += 1
    for had in target.had():
        print(had, flush=False)
    sys.stdout.flush()
    time.sleep(0.001)
"""


@pytest.mark.night
def test_a_writer_killed_at_any_moment_leaves_every_message_it_reported_in_a_file(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print("seed", seed)  # noqa: T201 - to run it again
    rng = random.Random(seed)
    folder, reported = tmp_path / "spool", set[int]()
    for life in range(6 if NIGHT else 2):
        with (tmp_path / f"out{life}").open("wb") as out:
            writer = subprocess.Popen([sys.executable, "-c", WRITER, str(folder), str(life * 10**6)], stdout=out)
        until = time.monotonic() + 30
        while not (tmp_path / f"out{life}").stat().st_size and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.3))
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        lines = (tmp_path / f"out{life}").read_text(encoding="ascii").split("\n")
        reported.update(int(line) for line in lines[:-1])
    FolderDelivery(folder, size=1, age=1).close(5)
    kept = [number_of(one.payload) for one in messages_of(folder)]
    assert len(reported) > 100
    assert reported <= set(kept)
    assert len(kept) == len(set(kept))
    assert not list(folder.glob(".*.open"))
