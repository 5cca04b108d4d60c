"""Streams of the tests of the live way: readings as they come, and what a plain computation makes of them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import apache_beam as beam
import polars as pl
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.testing import test_stream
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from quiltstream.schemas.releases import releases_from_batch
from quiltstream.schemas.settings.job import Settings
from quiltstream.schemas.settings.readings import Readings
from quiltstream.store.store import Store
from quiltstream.transforms import PrivateHistograms
from quiltstream.transforms.completeness import Arrived, FromSource, Punctuation, Steps
from quiltstream.transforms.sources.arriving_files import ArrivingFiles
from quiltstream.transforms.sources.files import FileDecoder
from quiltstream.transforms.sources.progress import PartitionTracker, Restriction
from quiltstream.transforms.sources.reader import PollingPolicy, ReadLive, ReadPart

from ..test_histograms import DAY, EDGES, ORIGIN, batches, settings
from ..truth import cells, histograms

HOUR = 3_600_000_000
SLOT = 1_800_000_000
NAMES = ["a", "b", "c", "d", "e"]
DAILY = Steps(ORIGIN, 24 * HOUR)


def live_settings(folder: Path, **changes: Any) -> Settings:
    (folder / "roster.csv").write_text("series,group\n" + "".join(f"{n},{'x' if n < 'c' else 'y'}\n" for n in NAMES))
    document: dict[str, Any] = {
        "windows": {"size": "1d", "start": "2013-01-01", "stop": "2013-01-05"},
        "roster": str(folder / "roster.csv"),
    }
    document.update(changes)
    return settings(folder, **document)


def readings(days: int, seed: int, names: list[str] = NAMES) -> pl.DataFrame:
    """Half-hourly readings with some cells missing and some read twice, shuffled."""
    print("seed", seed)  # noqa: T201 - a random test says its seed
    source = random.Random(seed)
    rows = [
        (name, ORIGIN + slot * SLOT + source.randrange(SLOT), source.uniform(0, 3000))
        for name in names
        for slot in range(days * DAY)
        for _ in range(source.choice([0, 1, 1, 1, 2]))
    ]
    source.shuffle(rows)
    return pl.DataFrame(rows, schema={"series": pl.Utf8, "time": pl.Int64, "value": pl.Float64}, orient="row")


def truth(frame: pl.DataFrame, windows: list[tuple[int, int]], keys: dict[str, list[str]]) -> dict[Any, list[int]]:
    found = cells(frame, interval_us=SLOT, origin_us=ORIGIN, edges=EDGES)
    return histograms(found, windows=windows, keys=keys, bins=len(EDGES) + 1)


def on_record(job: Settings) -> dict[tuple[int, str], list[int]]:
    with Store(PrivateHistograms(job, noise="none").plan.address, create=True) as store:
        rows = [row for batch in store.releases(job.domain, job.query) for row in releases_from_batch(batch)]
        assert len({row.release_id for row in rows}) == len(rows)
        return {((row.window_start - ORIGIN) // SLOT, row.key): list(row.counts) for row in rows}


def stamped(instant_us: int) -> Timestamp:
    return Timestamp(micros=instant_us // 1000 * 1000)


def as_it_comes(
    frame: pl.DataFrame,
    *,
    step_us: int,
    lateness_us: int,
    parts: int = 1,
    until_us: int | None = None,
) -> list[Any]:
    """What a source of some parts would send: readings in pieces by event time, and marks that lag behind."""
    events: list[Any] = []
    end = int(max(frame["time"].to_list())) + 1 if until_us is None else until_us
    clock = dict.fromkeys(range(parts), ORIGIN)
    for begin in range(ORIGIN, end + lateness_us + step_us, step_us):
        for part in range(parts):
            mine = frame.filter(
                (pl.col("time") >= begin)
                & (pl.col("time") < begin + step_us)
                & (pl.col("series").str.to_integer(base=36) % parts == part)
            )
            at = clock[part]
            found = batches(mine, 64) if len(mine) else []
            reached = max(clock[part], begin + step_us - lateness_us)
            events += [TimestampedValue(Arrived(batch, at), stamped(at)) for batch in found]
            events.append(TimestampedValue(Punctuation(part, parts, at, reached), stamped(at)))
            clock[part] = reached
        events.append(min(clock.values()))
    return events


def too_late(frame: pl.DataFrame, horizon_us: int) -> list[Any]:
    """Readings that a source sends when it has declared all their windows complete."""
    return [TimestampedValue(Arrived(one, horizon_us), stamped(horizon_us)) for one in batches(frame, 500)]


class OfSource(beam.PTransform[Any, Any]):
    """A stream of what a source sends."""

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self._stream = stream

    def expand(self, input_or_inputs: Any) -> Any:
        made: Any = input_or_inputs | self._stream
        made.element_type = FromSource
        return made


def streamed(events: list[Any]) -> Any:
    stream, reached = test_stream.TestStream().advance_watermark_to(stamped(ORIGIN)), ORIGIN
    for event in events:
        if not isinstance(event, int):
            stream = stream.add_elements([event])
        elif event > reached:
            stream, reached = stream.advance_watermark_to(stamped(event)), event
    return OfSource(stream.advance_watermark_to_infinity())


def play(events: list[Any], job: Settings) -> None:
    with beam.Pipeline(runner=BundleBasedDirectRunner(), options=PipelineOptions(streaming=True)) as pipeline:
        _ = pipeline | streamed(events) | PrivateHistograms(job, noise="none")


SERIES = {name: [name] for name in NAMES}
GROUPS = {"x": ["a", "b"], "y": ["c", "d", "e"]}


def decoder(format_: str = "jsonl") -> FileDecoder:
    return FileDecoder(format_, ",", Readings(series="series", time="time", value="value", time_unit="us"))  # type: ignore[arg-type]


def put(folder: Path, name: str, frame: pl.DataFrame) -> None:
    part = folder.parent / f".{name}.part"  # outside the folder: a pattern such as *.jsonl* would find it there
    part.write_text("".join(json.dumps(row) + "\n" for row in frame.to_dicts()))
    part.rename(folder / name)


def follow(job: Settings, feed: ArrivingFiles, pace: PollingPolicy) -> dict[str, int]:
    pipeline = beam.Pipeline(runner=FnApiRunner())
    decoded: Any = pipeline | ReadLive(feed, pace)
    _ = decoded.readings | PrivateHistograms(job, noise="none")
    result = pipeline.run()
    result.wait_until_finish()
    return {c.key.metric.name: c.committed for c in result.metrics().query()["counters"]}


class Estimator:
    def __init__(self) -> None:
        self.at: Timestamp | None = None

    def current_watermark(self) -> Timestamp | None:
        return self.at

    def set_watermark(self, at: Timestamp) -> None:
        assert self.at is None or at >= self.at
        self.at = at


class Tracker(PartitionTracker):
    rest: Restriction | None = None

    def defer_remainder(self, _pause: Any) -> None:
        split = self.try_split(0)
        assert split is not None
        self.rest = split[1]


def calls(part: ReadPart, span: Restriction | None, estimator: Estimator) -> tuple[list[Any], Restriction | None]:
    assert span is not None
    tracker = Tracker(span)
    made = [getattr(one, "value", one) for one in part.process(0, tracker, estimator)]
    tracker.check_done()
    return made, tracker.rest
