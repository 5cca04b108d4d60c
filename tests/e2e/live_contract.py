"""What a live job does on every runner: a suite that each runner's tests inherit.

Every test compares what is on record with an independent truth, because a job that ends as DONE proves nothing. The
jobs publish with a noise that can be taken off again, by the hook of the transform's constructor. A test begins once
more, in an empty place, only where the runner shows a symptom that is known by name; it prints which.
"""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ..examined import Tally, every
from .live_bench import (
    DAY,
    DAY_US,
    GROUPS,
    HOUR,
    NAMES,
    ORIGIN,
    READ,
    SERIES,
    SLOT,
    Bench,
    day_of,
    held,
    lines,
    readings,
    truth,
)

#: A job that its runner failed does not begin again by itself: the test is told, and prints it.
LIVE = {"poll": "100ms"}


#: How often a test is begun at most. On a machine with much else to do Prism has panicked twice in a row.
MOST_BEGUN = 3


def begun_again(test: Callable[..., None]) -> Callable[..., None]:
    """The same test, again in an empty place if its runner shows a symptom that is known by name.

    The place that is left must be right as far as it goes: ``bench.expected`` says what may be on record in it.
    """

    @functools.wraps(test)
    def begun(*self: LiveContract, bench: Bench, **fixtures: Any) -> None:
        for times in range(1, MOST_BEGUN + 1):
            try:
                return test(*self, bench=bench, **fixtures)
            except (Exception, pytest.fail.Exception) as error:
                if (symptom := bench.symptom()) is None or times == MOST_BEGUN:
                    raise
                sys.stdout.write(f"{symptom}: once more, after {error}\n")
            bench.renew()
        return None

    return begun


class LiveContract(ABC):
    """Inherit it and give :meth:`new_bench`; set what the runner cannot do."""

    #: Whether the runner tells its counters while and after the job runs; if not, a test asks that it does not.
    counts_readings = True

    def __init_subclass__(cls) -> None:
        for name in dir(LiveContract):
            if name.startswith("test_") and name not in vars(cls):
                setattr(cls, name, begun_again(getattr(LiveContract, name)))

    @abstractmethod
    def new_bench(self, folder: Path, request: pytest.FixtureRequest) -> Bench:
        """A bench whose jobs run on the runner."""

    @pytest.fixture
    def bench(self, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
        """An empty place for jobs; whatever was started in it is ended."""
        made = self.new_bench(tmp_path / "job", request)
        made.live = LIVE
        yield made
        made.close()

    # Readings in any order

    @pytest.mark.parametrize(
        ("changes", "keys", "size", "step"),
        [
            ({}, SERIES, DAY, DAY),
            (
                {"windows": {"size": "2d", "every": "12h", "start": "2013-01-01", "stop": "2013-01-05"}},
                SERIES,
                2 * DAY,
                DAY // 2,
            ),
            ({"group_by": "group"}, GROUPS, DAY, DAY),
        ],
        ids=["series", "sliding", "groups"],
    )
    def test_files_that_arrive_shuffled_within_the_lateness_and_twice_give_every_window(
        self,
        bench: Bench,
        tally: Tally,
        changes: dict[str, Any],
        keys: dict[str, list[str]],
        size: int,
        step: int,
    ) -> None:
        bench.keys = keys
        windows = {"size": "1d", "start": "2013-01-01", "stop": "2013-01-05"} | changes.get("windows", {})
        bench.settings(**(changes | {"windows": windows | {"lateness": "6h"}}))
        frame = readings(4.5, seed=size + step)
        scheduled = list(every(size, step, 4 * DAY))
        starts = {start for start, _ in scheduled}
        expected = truth(frame, range(4), keys, size, step)
        bench.expected = {place: counts for place, counts in expected.items() if place[0] in starts}
        source = random.Random(step)
        late = pl.Series("arrival", [source.randrange(6 * HOUR) for _ in range(len(frame))])
        arriving = frame.with_columns(
            arrival=pl.col("time") + late, part=(pl.col("time") + late - ORIGIN) // (8 * HOUR)
        )
        job = bench.start()
        for part in range(15):
            chunk = arriving.filter(pl.col("part") == part).select(frame.columns)
            # a third comes twice, in the same file and in the next one
            again = chunk.sample(fraction=1 / 3, seed=part)
            bench.put(f"{part:02}.jsonl", pl.concat([chunk, again]).sample(fraction=1, shuffle=True, seed=part))
            bench.put(f"{part:02}-again.jsonl", again)
            time.sleep(0.1)
        assert job.wait() == 0, job.err.read_text(encoding="utf-8")
        assert bench.counts() == bench.expected
        tally.take(bench.check(scheduled))
        assert job.summary["windows_published"] == len(scheduled)

    # Readings that come late, and what is no reading

    def test_late_damaged_and_unknown_readings_are_counted_and_change_nothing(self, bench: Bench, tally: Tally) -> None:
        bench.settings(
            windows={"size": "1d", "start": "2013-01-01", "stop": "2013-01-13"}, rejects={"jsonl": "rejects"}
        )
        frame = readings(12.5, seed=3)
        days = [day_of(frame, day) for day in range(13)]
        # later in each cell than what came in time, so that it would count
        late = pl.DataFrame(
            [(name, ORIGIN + (slot + 1) * SLOT - 1, 9999.0) for name in NAMES for slot in range(DAY)],
            schema=frame.schema,
            orient="row",
        )
        bench.expected = truth(pl.concat([frame, late.head(7)]), range(12))
        strangers = days[1].with_columns(series=pl.lit("stranger"))
        bad = '{"series": "a"\n{"series": "a", "time": "soon", "value": 1}\n{"series": "a", "time": 1, "value": null}\n'
        job = bench.start()
        bench.put("00.jsonl", days[0])
        # its own window is still open: not late at all
        bench.put("00-late.jsonl", late.head(7))
        bench.put("01-half.jsonl.gz", b"\x1f\x8b\x08\x00 half")
        bench.put("01-half.jsonl", bad + lines(strangers))
        bench.put("01.jsonl", days[1].filter(pl.col("time") < ORIGIN + DAY_US + 20 * HOUR))
        bench.wait_for(1)
        bench.put("01-late.jsonl", late)
        bench.put("01-rest.jsonl", days[1].filter(pl.col("time") >= ORIGIN + DAY_US + 20 * HOUR))
        for day in range(2, 11):
            bench.put(f"{day:02}.jsonl", days[day])
        bench.wait_for(10)
        bench.put("10-late.jsonl", late)
        for day in (11, 12):
            bench.put(f"{day:02}.jsonl", days[day])
        assert job.wait() == 0, job.err.read_text(encoding="utf-8")
        assert bench.counts() == bench.expected
        tally.take(bench.check(every(DAY, DAY, 12 * DAY)))
        expected = {
            "late": 2 * len(late),
            "not-in-roster": len(strangers),
            "malformed-row": 1,
            "unparsable-time": 1,
            "missing-value": 1,
        }
        told = job.summary["operator_only"]
        if self.counts_readings:
            assert told["rejected"] == expected
        else:
            # where a runner begins to tell them, the page has to say so
            assert not any((told or {}).values()), told
        files = (bench.folder / "rejects").glob("*.jsonl")
        rows = [json.loads(line) for path in files for line in path.read_text(encoding="utf-8").splitlines()]
        assert Counter(row["reason"] for row in rows) == expected
        assert all(row.keys() == {"reason", "source", "position", "size"} and row["size"] is None for row in rows)

    # Clocks and silence

    def test_a_meter_whose_clock_jumps_ten_years_ahead_closes_no_window_of_today(
        self, bench: Bench, tally: Tally
    ) -> None:
        bench.settings(
            windows={"size": "1d", "start": "2013-01-01", "stop": "2013-01-05", "lateness": "1h"},
        )
        frame = readings(4.5, seed=4)
        bench.expected = truth(frame, range(4))
        clock = bench.say_clock(ORIGIN + 2 * DAY_US + 6 * HOUR)
        jumped = pl.DataFrame([("b", ORIGIN + 3652 * DAY_US, 100.0)], schema=frame.schema, orient="row")

        def between(begin: float, end: float) -> pl.DataFrame:
            return frame.filter(
                (pl.col("time") >= ORIGIN + int(begin * DAY_US)) & (pl.col("time") < ORIGIN + int(end * DAY_US))
            )

        bench.put("0.jsonl", pl.concat([between(0, 2.25), jumped]))
        job = bench.start("--clock", clock)
        bench.wait_for(2)
        bench.put("1.jsonl", between(2.25, 2.5))
        bench.say_clock(ORIGIN + 2 * DAY_US + 18 * HOUR)
        time.sleep(1.0)
        assert bench.windows() == 2
        bench.put("2.jsonl", between(2.5, 3.0))
        time.sleep(0.5)
        bench.say_clock(ORIGIN + 3 * DAY_US + 2 * HOUR)
        bench.put("3.jsonl", between(3.0, 4.5))
        bench.wait_for(3)
        bench.say_clock(ORIGIN + 5 * DAY_US)
        assert job.wait() == 0, job.err.read_text(encoding="utf-8")
        assert bench.counts() == bench.expected
        tally.take(bench.check())
        warned = [one["text"] for one in job.said if one["kind"] == "warning"]
        assert not any("no worker" in text for text in warned)

    def test_empty_windows_and_silent_series_are_published_once_idle_has_passed(
        self, bench: Bench, tally: Tally
    ) -> None:
        bench.settings(
            windows={"size": "1d", "start": "2013-01-01", "stop": "2013-01-29", "lateness": "1h"},
            live=LIVE | {"idle": "12h"},
        )
        # two series of the roster are silent all the time
        names = NAMES[:3]
        early, back = readings(2.5, seed=5, names=names), readings(4.5, seed=6, names=names, first=24)
        bench.expected = truth(pl.concat([early, back]), range(28))
        clock = bench.say_clock(ORIGIN + 3 * DAY_US)
        bench.put("0.jsonl", early)
        job = bench.start("--clock", clock)
        bench.wait_for(2)
        bench.say_clock(ORIGIN + 3 * DAY_US + 10 * HOUR)
        time.sleep(1.0)
        assert bench.windows() == 2
        # of weeks in which nobody looked nothing is known; from then on the clock goes on in steps that are looked at
        clock_us = ORIGIN + 24 * DAY_US + 2 * HOUR
        bench.say_clock(clock_us)
        time.sleep(1.0)
        assert bench.windows() == 2
        while bench.windows() < 24 and clock_us < ORIGIN + 25 * DAY_US + 12 * HOUR:
            clock_us += HOUR // 2
            bench.say_clock(clock_us)
            time.sleep(0.5)
        assert clock_us >= ORIGIN + 24 * DAY_US + 13 * HOUR
        bench.wait_for(24)
        bench.put("1.jsonl", back)
        time.sleep(0.5)
        # readings that were over a day ahead when they came move no clock: again the silence is looked at
        for step in range(70):
            bench.say_clock(ORIGIN + 30 * DAY_US + step * HOUR // 2)
            time.sleep(0.5)
            if job.process.poll() is not None:
                break
        assert job.wait() == 0, job.err.read_text(encoding="utf-8")
        assert bench.counts() == bench.expected
        tally.take(bench.check(every(DAY, DAY, 28 * DAY)))

    # Death and rivalry

    @pytest.mark.parametrize("hold", [None, "75min"], ids=["latest", "hold"])
    def test_a_job_killed_twice_resumes_from_the_ledger_alone(
        self, bench: Bench, tally: Tally, hold: str | None
    ) -> None:
        word = {} if hold is None else {"readings": READ | {"hold": hold}, "missing": "state"}
        bench.settings(windows={"size": "1d", "start": "2013-01-01", "stop": "2013-01-11"}, **word)
        frame = readings(10.5, seed=7)
        bench.expected = truth(frame, range(10)) if hold is None else held(frame, range(10), 5 * SLOT // 2)
        published: dict[str, str] = {}
        for last, least in ((4, 1), (8, 5)):
            for day in range(last - 4, last):
                bench.put(f"{day:02}.jsonl", day_of(frame, day))
            job = bench.start()
            # in the middle of it: as soon as a row of the last windows to come is there
            bench.wait_for_some(least)
            job.kill()
            rows = bench.on_record()
            assert published.items() <= rows.items()
            published = rows
        for day in (8, 9, 10):
            bench.put(f"{day:02}.jsonl", day_of(frame, day))
        job = bench.run()
        assert job.process.returncode == 0, job.err.read_text(encoding="utf-8")
        assert bench.counts() == bench.expected
        tally.take(bench.check(every(DAY, DAY, 10 * DAY), earlier=published))

    def test_two_jobs_that_race_publish_every_window_once(self, bench: Bench, tally: Tally) -> None:
        bench.settings()
        frame = readings(4.5, seed=8)
        bench.expected = truth(frame, range(4))
        bench.put("0.jsonl", day_of(frame, 0))
        first, second = bench.start(), bench.start()
        for day in range(1, 5):
            bench.put(f"{day}.jsonl", day_of(frame, day))
            time.sleep(0.3)
        assert [first.wait(), second.wait()] == [0, 0], [one.err.read_text(encoding="utf-8") for one in bench.started]
        assert bench.counts() == bench.expected
        tally.take(bench.check())

    def test_ctrl_c_ends_a_job_within_seconds_and_the_next_run_resumes(self, bench: Bench) -> None:
        bench.settings()
        frame = readings(4.5, seed=9)
        bench.expected = truth(frame, range(4))
        for day in range(3):
            bench.put(f"{day}.jsonl", day_of(frame, day))
        job = bench.start()
        bench.wait_for(2)
        # as a terminal does it: to the job and to all it started
        os.killpg(job.process.pid, signal.SIGINT)
        begun = time.monotonic()
        assert job.wait() == 130, job.err.read_text(encoding="utf-8")
        assert time.monotonic() - begun < 30
        bench.until(lambda: bench.stopped(job), "the job has ended")
        assert job.err.read_text(encoding="utf-8") == ""
        assert "stop" in {one["kind"] for one in job.said}
        assert job.summary["windows_published"] == 2
        before = bench.rows()
        for day in (3, 4):
            bench.put(f"{day}.jsonl", day_of(frame, day))
        again = bench.run()
        assert again.process.returncode == 0, again.err.read_text(encoding="utf-8")
        bench.until(lambda: bench.stopped(again), "the job has ended")
        assert bench.rows()[: len(before)] == before
        assert bench.counts() == bench.expected
        bench.check()

    # Standard input

    @pytest.mark.parametrize("form", ["jsonl", "csv"])
    def test_standard_input_is_read_as_it_arrives_and_its_end_completes_past_windows(
        self, bench: Bench, form: str
    ) -> None:
        bench.settings(source={"stdin": form})
        frame = readings(2.5, seed=10).sort("time")
        bench.expected = truth(frame, range(4))
        text = lines(frame) if form == "jsonl" else frame.write_csv()
        job = bench.start(stdin=subprocess.PIPE)
        pipe = job.process.stdin
        assert pipe is not None
        # cut anywhere, also in the middle of lines
        cut = [0, 10, len(text) // 3, len(text) // 3 + 5, len(text)]
        for begin, end in pairwise(cut):
            pipe.write(text[begin:end])
            pipe.flush()
            time.sleep(0.2)
        bench.wait_for(2)
        pipe.close()
        assert job.wait() == 0, job.err.read_text(encoding="utf-8")
        assert bench.counts() == bench.expected
        bench.check()

    # What can be seen from outside

    def test_one_changed_cell_changes_only_the_noisy_counts(self, bench: Bench) -> None:
        seen: list[Any] = []
        frame = readings(4.5, seed=12)
        other = frame.with_row_index().with_columns(
            value=pl.when(pl.col("index") == 333).then(pl.col("value") + 1e6).otherwise(pl.col("value"))
        )
        benches = [bench.another(name) for name in ("before", "after")]
        for made, given in zip(benches, (frame, other.drop("index")), strict=True):
            made.settings()
            for day in range(5):
                made.put(f"{day}.jsonl", day_of(given, day))
            made.start(noise="private")
        for made in benches:
            job = made.started[0]
            job.wait()
            # when it was looked is not the data's, nor whether the cluster was late and its job cancelled at the end
            said = [{**one, "at": ""} for one in job.said if one["kind"] not in {"record", "stop"}]
            files = made.sunk()
            hidden = dict.fromkeys(("counts", "estimate"))
            rows = [[row | hidden for row in one] for one in files.values()]
            last = next(one["text"] for one in reversed(job.said) if one["kind"] == "record")
            seen.append(
                (
                    job.process.returncode,
                    job.err.read_text(encoding="utf-8"),
                    said,
                    last,
                    [path.name for path in files],
                    rows,
                )
            )
            assert len(made.rows()) == 4 * len(NAMES)
        assert seen[0] == seen[1]
        assert seen[0][0] == 0
