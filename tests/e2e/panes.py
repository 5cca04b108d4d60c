"""Jobs whose windows fire panes that the transform does not ask for, on any runner."""

from __future__ import annotations

from ..examined import Tally, every
from .firings import EACH, EARLY
from .live_bench import DAY, DAY_US, GROUPS, HOUR, ORIGIN, SERIES, Bench, readings, truth
from .stamped import Fired, fired

#: Days that are published, a window each.
DAYS = 2


def publish_fired(bench: Bench, tally: Tally, firing: str, *, grouped: bool) -> Fired:
    """Publish some days of files that come one by one; see that every window is on record whole and once.

    Args:
        bench: an empty place.
        tally: takes what was examined.
        firing: how the windows fire.
        grouped: whether groups are published, and not series.

    Returns:
        The panes that the runner fired.
    """
    bench.keys = GROUPS if grouped else SERIES
    windows = {"windows": {"size": "1d", "start": "2013-01-01", "stop": f"2013-01-{DAYS + 1:02}"}}
    bench.settings(**windows, **({"group_by": "group"} if grouped else {}))
    frame = readings(DAYS + 0.5, seed=80)
    bench.expected = truth(frame, range(DAYS), bench.keys)
    noted = bench.folder / "panes"
    job = bench.start("--panes", firing)
    for number in range(DAYS * 4 + 2):
        begin = ORIGIN + number * 6 * HOUR
        bench.put(
            f"{number:02}.jsonl",
            frame.filter((frame["time"] >= begin) & (frame["time"] < begin + 6 * HOUR)),
        )
        if number == 1 and firing in EACH | EARLY:
            # half of the first day makes a pane, before the rest is there
            bench.until(noted.exists, "a first pane")
    assert job.wait() == 0, job.err.read_text(encoding="utf-8")
    assert bench.counts() == bench.expected
    tally.take(bench.check(every(DAY, DAY, DAYS * DAY)))
    return fired(noted)


def most(panes: Fired) -> int:
    """The largest number of panes of a shard in a published window."""
    return max(len(of_shard) for of_shard in published(panes))


def timings(panes: Fired) -> set[str]:
    """What the runner said of the panes of published windows."""
    return {timing for of_shard in published(panes) for timing, _ in of_shard.values()}


def in_pieces(panes: Fired) -> bool:
    """Whether a window came in panes of which none was the whole of it, so that they had to be put together."""
    return any(not any(whole for _, whole in of_shard.values()) for of_shard in published(panes))


def published(panes: Fired) -> list[dict[int, tuple[str, bool]]]:
    """The panes of each shard in each window that was on record in the end."""
    return [of_shard for (_, start), of_shard in panes.items() if start < ORIGIN + DAYS * DAY_US]
