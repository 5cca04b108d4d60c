"""What a runner keeps of a window: bytes of a form of its own, which later versions still read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quiltstream.transforms.aggregate.cells import Cells
from quiltstream.transforms.aggregate.coders import PartCoder
from quiltstream.transforms.aggregate.collect import Collected
from quiltstream.transforms.aggregate.encode import CellBlock, ReadingBlock
from quiltstream.transforms.aggregate.gathered import Gathered
from quiltstream.transforms.aggregate.release import Tally
from quiltstream.transforms.completeness import StateError, WindowEnd
from quiltstream.transforms.readings.slots import Covering
from quiltstream.transforms.sources.arriving_files import ArrivingFiles
from quiltstream.transforms.sources.reader import PollingPolicy

from ..sources.streams import DAILY, GROUPS, HOUR, decoder, follow, live_settings, on_record, put, readings, truth
from ..test_histograms import DAY, ORIGIN

CODER = PartCoder()


def ints(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


READINGS = Covering(ints(0, 2), ints(-5, 1 << 60), np.array([1.5, np.nan]), ints(0, 9), ints(0, -1))
COLLECTED = Collected(
    {4: Cells(np.array([[-1, 3]], dtype=np.int8), 5), -2: Gathered(READINGS, readings=3)},
    {8: 1 << 70},
    71,
    {8: "replayed"},
)
PARTS = {
    "sparse block": CellBlock(3, 2, 4, np.array([1, 7], np.int32), np.array([3, 300], np.int16), 5),
    "dense block": CellBlock(-1, 1, 2, None, np.array([-1, 3], np.int8), 1),
    "readings": ReadingBlock(3, READINGS, 1),
    "declaration": WindowEnd(4, 1, 3, "silent"),
    "collected": COLLECTED,
    "tally": Tally({1: np.array([[1, 2]]), 1 << 65: np.zeros((0, 2), np.int64)}, 1 | 1 << 65, "live"),
}

#: Some of them as version 2 wrote them.
RECORDED = {
    "declaration": (
        "02550000007b227374617274223a342c2270617274223a312c227061727473223a332c22636f6d706c6574656e657373223a"
        "2273696c656e74222c226b696e64223a2257696e646f77456e64222c22617272617973223a5b5d7d"
    ),
    "tally": (
        "028b0000007b2262697473223a5b312c33363839333438383134373431393130333233325d2c226e6565646564223a333638"
        "39333438383134373431393130333233332c22636f6d706c6574656e657373223a226c697665222c226b696e64223a225461"
        "6c6c79222c22617272617973223a5b5b223c6938222c5b312c325d5d2c5b223c6938222c5b302c325d5d5d7d010000000000"
        "00000200000000000000"
    ),
    "sparse block": (
        "02600000007b2273746570223a332c22726f7773223a322c227769647468223a342c2272656164696e6773223a352c226b69"
        "6e64223a2243656c6c426c6f636b222c22617272617973223a5b5b223c6932222c5b325d5d2c5b223c6934222c5b325d5d5d"
        "7d03002c010100000007000000"
    ),
    "readings": (
        "02710000007b2273746570223a332c22636f756e74223a312c226b696e64223a2252656164696e67426c6f636b222c226172"
        "72617973223a5b5b223c6938222c5b325d5d2c5b223c6938222c5b325d5d2c5b223c6638222c5b325d5d2c5b223c6938222c"
        "5b325d5d2c5b223c6938222c5b325d5d5d7d00000000000000000200000000000000fbffffffffffffff0000000000000010"
        "000000000000f83f000000000000f87f000000000000000009000000000000000000000000000000ffffffffffffffff"
    ),
}


def same(one: Any, other: Any) -> bool:
    """Whether two parts are equal, whatever holds their arrays."""
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if hasattr(one, "__slots__"):
        names = [name for name in one.__slots__ if name != "owned"]
        return type(one) is type(other) and all(same(getattr(one, name), getattr(other, name)) for name in names)
    return one == other


@pytest.mark.parametrize("name", PARTS)
def test_a_part_is_read_as_it_was_written(name: str) -> None:
    assert same(CODER.decode(CODER.encode(PARTS[name])), PARTS[name])


@pytest.mark.parametrize("name", RECORDED)
def test_bytes_of_a_savepoint_are_read(name: str) -> None:
    recorded = bytes.fromhex(RECORDED[name])
    assert same(CODER.decode(recorded), PARTS[name])


def test_bytes_of_another_version_are_refused_by_name() -> None:
    with pytest.raises(StateError, match="version 1, and this one reads 2: begin anew"):
        CODER.decode(b"\x01" + CODER.encode(PARTS["tally"])[1:])


def test_cells_that_were_read_are_copied_before_they_change() -> None:
    held = CODER.decode(CODER.encode(COLLECTED))
    held.steps[4].put(np.array([0]), np.array([2]))
    assert held.steps[4].packed.tolist() == [[2, 3]]


def test_a_live_job_pickles_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: object, _protocol: int) -> Any:
        raise AssertionError(f"a {type(self).__name__} is pickled")

    for kind in (CellBlock, ReadingBlock, WindowEnd, Collected, Tally):
        monkeypatch.setattr(kind, "__reduce_ex__", refused)
    job = live_settings(tmp_path, group_by="group")
    (tmp_path / "inbox").mkdir()
    frame = readings(2, seed=3)
    put(tmp_path / "inbox", "1.jsonl", frame)
    source = ArrivingFiles(decoder(), (str(tmp_path / "inbox" / "*.jsonl"),))
    follow(job, source, PollingPolicy(ORIGIN, poll_s=0.05, end_us=ORIGIN + 24 * HOUR, steps=DAILY))
    assert on_record(job) == truth(frame, [(0, DAY)], GROUPS)
