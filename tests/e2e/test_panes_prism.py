"""Panes of every kind on Prism: whatever it fires, a window is on record whole and once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..examined import Tally, every
from .live_bench import DAY, GROUPS, HOUR, ORIGIN, SERIES, Bench, readings, truth
from .live_contract import LIVE
from .prism import prism_arguments


@pytest.fixture
def bench(tmp_path: Path, prism: Path) -> Iterator[Bench]:
    """An empty place for jobs."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    made = Bench(tmp_path / "job", prism_arguments(prism), {"TMPDIR": str(temporary)})
    made.live = LIVE
    yield made
    made.close()


# firing early by the clock on the wall ends Prism 2.77 with a panic in its own watermarks
@pytest.mark.parametrize("firing", ["each-discarding", "each-accumulating", "late-discarding", "late-accumulating"])
@pytest.mark.parametrize("grouped", [False, True], ids=["series", "groups"])
def test_whatever_panes_prism_fires_every_window_is_on_record_whole_and_once(
    bench: Bench, tally: Tally, firing: str, *, grouped: bool
) -> None:
    bench.keys = GROUPS if grouped else SERIES
    windows = {"windows": {"size": "1d", "start": "2013-01-01", "stop": "2013-01-03"}}
    bench.settings(**windows, **({"group_by": "group"} if grouped else {}))
    frame = readings(2.5, seed=80)
    job = bench.start("--panes", firing)
    for number in range(10):
        begin = ORIGIN + number * 6 * HOUR
        bench.put(
            f"{number:02}.jsonl",
            frame.filter((frame["time"] >= begin) & (frame["time"] < begin + 6 * HOUR)),
        )
        time.sleep(0.3)
    assert job.wait() == 0, job.err.read_text(encoding="utf-8")
    assert bench.counts() == truth(frame, range(2), bench.keys)
    tally.take(bench.check(every(DAY, DAY, 2 * DAY)))
