"""An unbounded source that checkpoints itself, fixed windows, and a sum per key.

``--out`` is a folder: ``rows-*.jsonl`` takes what comes out, ``reads-*.jsonl`` where the source took up reading. Lines
are appended as they happen, so what a runner repeats is seen twice. Where the folder has a file ``gate``, the source
does not read beyond the record whose number it holds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import window
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.utils.timestamp import Duration, Timestamp

from .records import BASE, DISORDER_SECONDS, STEP_SECONDS, WINDOW_SECONDS, record


def append(folder: str, name: str, value: Any) -> None:
    """Append one line of JSON to this process's own file."""
    with open(f"{folder}/{name}-{os.getpid()}.jsonl", "a", encoding="utf-8") as file:  # noqa: PTH123 - in a worker
        file.write(json.dumps(value) + "\n")


WATERMARK = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider())


def gate(folder: str) -> float:
    """The number of the record to stop at for now."""
    try:
        return int(Path(folder, "gate").read_text(encoding="ascii"))
    except FileNotFoundError:
        return math.inf


class Source(beam.DoFn, RestrictionProvider):
    """Reads a partition's records in order, some at a time."""

    def __init__(self, out: str, records: int, at_once: int, pause: float) -> None:
        self.out, self.records, self.at_once, self.pause = out, records, at_once, pause

    def initial_restriction(self, element: int) -> OffsetRange:  # noqa: ARG002 - all partitions are of one length
        return OffsetRange(0, self.records)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element: int, restriction: OffsetRange) -> int:  # noqa: ARG002
        return restriction.size()

    def split(self, element: int, restriction: OffsetRange) -> Generator[OffsetRange, None, None]:  # noqa: ARG002
        yield restriction  # never split: the watermark goes by the order

    def truncate(self, element: int, restriction: OffsetRange) -> None:  # noqa: ARG002
        return None

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: int,
        tracker: Any = beam.DoFn.RestrictionParam(),  # noqa: B008 - how Beam asks for it
        watermark: Any = WATERMARK,
    ) -> Iterator[Any]:
        """Read the next few records, then give way."""
        start = tracker.current_restriction().start
        if start == 0:
            watermark.set_watermark(Timestamp(BASE) - Duration(DISORDER_SECONDS))
        if start >= gate(self.out):
            tracker.defer_remainder(Duration(self.pause))
            return
        append(self.out, "reads", [element, start])
        for number in range(start, start + self.at_once):
            if not tracker.try_claim(number):
                return
            key, value, seconds = record(element, number)
            yield window.TimestampedValue((key, value), Timestamp(BASE) + Duration(seconds))
            watermark.set_watermark(Timestamp(BASE) + Duration(number * STEP_SECONDS - DISORDER_SECONDS))
        # No portable runner asks a source for a checkpoint: one that did not return would never let anything out.
        tracker.defer_remainder(Duration(self.pause))


class Write(beam.DoFn):
    """Writes window, key and sum."""

    def __init__(self, out: str) -> None:
        self.out = out

    def process(self, element: tuple[str, int], within: Any = beam.DoFn.WindowParam) -> None:
        key, total = element
        append(self.out, "rows", [int(within.start) - BASE, key, total])


def run(arguments: Sequence[str]) -> None:
    """Build the pipeline and run it; with ``--detach`` it is only handed over."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--at_once", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.2)
    parser.add_argument("--detach", action="store_true")
    own, rest = parser.parse_known_args(arguments)
    pipeline = beam.Pipeline(options=PipelineOptions(list(rest)))
    _ = (
        pipeline
        | beam.Create(range(own.partitions))
        | beam.Reshuffle()
        | beam.ParDo(Source(own.out, own.records, own.at_once, own.pause)).with_output_types(tuple[str, int])
        | beam.WindowInto(window.FixedWindows(WINDOW_SECONDS))
        | beam.CombinePerKey(sum)
        | beam.ParDo(Write(own.out))
    )
    result = pipeline.run()
    if not own.detach:
        sys.stdout.write(f"the job ended: {result.wait_until_finish()}\n")
