"""A device that floods: hundreds of thousands of messages for one slot, among the few of all others."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from quiltstream.transforms.completeness.punctuation import punctuation_of
from quiltstream.transforms.sources.reader import PollingPolicy, ReadPart

from ...tiers import TIER
from ..sources.streams import DAILY, Estimator, Tracker, on_record, play, truth
from ..test_histograms import settings
from .contract import PATIENCE_S
from .fake import FakeBroker
from .messages import ORIGIN, reading
from .test_source import HOUR, feed

SLOT = HOUR // 2
FLOOD = 200_000 if TIER == "nightly" else 50_000
#: Messages that are taken from a broker at once, and so the rows of a piece at most.
PIECE = 10_000
#: Hours: when the flood comes, and what its device says, whose clock runs ahead into the next day.
COMES, SAYS = 12, 30
OTHERS = [f"m{n}" for n in range(10)]
Sent = tuple[str, int, float]


class Follower:
    """A part of a live job, called until nothing is new, and what it sends on."""

    def __init__(self, broker: FakeBroker, topic: str) -> None:
        pace = PollingPolicy(ORIGIN, lateness_us=HOUR, poll_s=0.0, end_us=ORIGIN + 48 * HOUR, steps=DAILY)
        self.part = ReadPart(feed(broker, topic), pace, now=lambda: ORIGIN + 100 * HOUR)
        self.part.setup()
        self.events: list[Any] = []
        self._rest: Any = self.part.initial_restriction(0)
        self._estimator = Estimator()

    @property
    def reached_us(self) -> int:
        """How far its watermark has come; no window that ends behind it is closed."""
        return 0 if self._estimator.at is None else int(self._estimator.at.micros)

    @property
    def batches(self) -> list[pa.RecordBatch]:
        return [one.value for one in self.events if not isinstance(one, int) and punctuation_of(one.value) is None]

    @property
    def rows(self) -> int:
        return sum(one.num_rows for one in self.batches)

    def follow(self, rows: int) -> None:
        """Until there are so many readings, and some calls more that find nothing new."""
        quiet, until = 0, time.monotonic() + 4 * PATIENCE_S
        while self._rest is not None and (quiet < 5 or self.rows < rows):
            assert time.monotonic() < until, f"{self.rows} of {rows} readings"
            tracker = Tracker(self._rest)
            made = list(self.part.process(0, tracker, self._estimator))
            self._rest = tracker.rest
            quiet = 0 if made else quiet + 1
            self.events += [*made, self.reached_us]


def send(broker: FakeBroker, topic: str, sent: list[Sent], at_us: list[int]) -> None:
    """Readings in the partition of their device, stamped by the broker when they come."""
    logs = broker.topics[topic]
    for (series, taken, value), at in zip(sent, at_us, strict=True):
        place = 0 if series == "flood" else int(series[1:]) % len(logs)
        logs[place].messages.append((reading(series, taken - ORIGIN, value), at // 1_000))


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_device_that_floods_one_slot_fills_one_cell_and_affects_no_other(tmp_path: Path, partitions: int) -> None:
    source = random.Random(13)  # noqa: S311 - test data
    steady = [
        (name, ORIGIN + slot * SLOT + source.randrange(SLOT), source.uniform(0, 3000))
        for slot in range(96)
        for name in OTHERS
    ]
    flood = [("flood", ORIGIN + SAYS * HOUR + source.randrange(SLOT), source.uniform(0, 3000)) for _ in range(FLOOD)]
    before = [one for one in steady if one[1] < ORIGIN + COMES * HOUR]
    after = [one for one in steady if one[1] >= ORIGIN + COMES * HOUR]
    broker = FakeBroker()
    topic = broker.topic(partitions)
    follower = Follower(broker, topic)

    send(broker, topic, before, [one[1] for one in before])
    send(broker, topic, flood, [ORIGIN + COMES * HOUR + n for n in range(FLOOD)])
    follower.follow(len(before) + FLOOD)
    # half a day is read, and the flood; the window of that day stays open, whatever the flood's clock says
    assert follower.rows == len(before) + FLOOD
    assert follower.reached_us <= ORIGIN + COMES * HOUR
    send(broker, topic, after, [one[1] for one in after])
    send(
        broker,
        topic,
        [(f"m{n}", ORIGIN + 50 * HOUR, 0.0) for n in range(partitions)],
        [ORIGIN + 50 * HOUR] * partitions,
    )
    follower.follow(len(steady) + FLOOD + partitions)
    assert follower.reached_us >= ORIGIN + 48 * HOUR
    assert max(one.num_rows for one in follower.batches) <= PIECE

    names = [*OTHERS, "flood"]
    (tmp_path / "roster.csv").write_text("series,group\n" + "".join(f"{one},x\n" for one in names), encoding="utf-8")
    windows = {"size": "1d", "start": "2013-01-01", "stop": "2013-01-03"}
    job = settings(tmp_path, windows=windows, roster=str(tmp_path / "roster.csv"))
    play(follower.events, job)
    frame = pl.DataFrame(
        [*steady, *flood], schema={"series": pl.Utf8, "time": pl.Int64, "value": pl.Float64}, orient="row"
    )
    expected = truth(frame, [(0, 48), (48, 96)], {one: [one] for one in names})
    assert sum(expected[48, "flood"]) == 1
    assert on_record(job) == expected
