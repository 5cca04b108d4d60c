"""Noise that tells every draw from every other and still leaves the true counts to be read; and notes of a job.

A runner that draws a release again and publishes it is seen by that, which rows without noise would hide. Pipelines'
workers import this module by its name.
"""

from __future__ import annotations

import os
import secrets
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator

from quiltstream.privacy.mechanisms.histogram import ExactHistogram
from quiltstream.store import Registration
from quiltstream.store.errors import StoreDamaged
from quiltstream.transforms import PrivateHistograms
from quiltstream.transforms.plan import Plan
from quiltstream.transforms.sinks import WriteBlocks
from quiltstream.transforms.sources.reader import ReadPart

#: More than any true count of the tests.
STAMP = 10_000


def unstamped(count: int) -> int:
    """The true count."""
    return count % STAMP


class StampedHistogram(ExactHistogram):
    """True counts and a random multiple of the stamp, another one for each draw."""

    def randomise(self, counts: Any, entropy: Any = None) -> Any:
        """The counts, marked."""
        assert int(np.max(counts, initial=0)) < STAMP
        return super().randomise(counts, entropy) + STAMP * (1 + secrets.randbelow(1 << 30))


@dataclass(frozen=True)
class StampedPlan(Plan):
    """A plan of a test's."""

    def histogram_of(self, registration: Registration, slots: int) -> Any:
        """Whatever the query."""
        del registration, slots
        return StampedHistogram(self.space.size)


def stamp(histograms: PrivateHistograms) -> PrivateHistograms:
    """The same transform with that noise; it must have been made without any."""
    plan = histograms._plan  # pyright: ignore[reportPrivateUsage] - the hook's other half
    assert plan.noise == "none"
    histograms._plan = StampedPlan(  # pyright: ignore[reportPrivateUsage]
        **{one.name: getattr(plan, one.name) for one in fields(Plan)}
    )
    return histograms


class Tap(beam.DoFn):
    """Writes each batch that passes to a file of its own, each time that it does."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def process(self, element: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Note it and pass it on."""
        part = Path(self._folder) / f"{uuid.uuid4().hex}.part"
        part.parent.mkdir(exist_ok=True)
        with pa.OSFile(str(part), "wb") as file, pa.ipc.new_file(file, element.schema) as writer:
            writer.write_batch(element)
        part.rename(part.with_suffix(".arrow"))
        return [element]


def left(folder: Path) -> list[pa.RecordBatch]:
    """The batches that passed, as often as they did."""
    found: list[pa.RecordBatch] = []
    for path in sorted(folder.glob("*.arrow")):
        with pa.OSFile(str(path), "rb") as file:
            found += pa.ipc.open_file(file).read_all().to_batches()
    return found


class TappedBlocks(beam.PTransform[Any, Any]):
    """``WriteBlocks``, of what passes a tap."""

    def __init__(self, tap: str, folder: str, format_: Any) -> None:
        super().__init__()
        self._tap, self._folder, self._format = tap, folder, format_

    def expand(self, input_or_inputs: Any) -> Any:
        """Tap and write."""
        tapped = input_or_inputs | "Tap" >> beam.ParDo(Tap(self._tap)).with_output_types(pa.RecordBatch)
        return tapped | "Blocks" >> WriteBlocks(self._folder, self._format)


class NotedPart(ReadPart):
    """A reader that notes its calls: a line with the monotonic clock, the part, the process and ``begun`` or the end.

    Where a file ``final`` is beside that of the calls, a call fails of what is final.

    A call ends as ``over`` where the part is never to be read again, as ``back`` where its rest was handed back, and as
    ``failed``; one whose process was killed does not end.
    """

    def __init__(self, calls: str, *given: Any, **timed: Any) -> None:
        super().__init__(*given, **timed)
        self._calls = calls

    def _note(self, part: int, word: str) -> None:
        with Path(self._calls).open("ab", buffering=0) as file:
            file.write(f"{time.monotonic():.3f} {part} {os.getpid()} {word}\n".encode())

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: int,
        tracker: Any = beam.DoFn.RestrictionParam(),  # noqa: B008 - Beam's way
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),  # noqa: B008
    ) -> Iterator[Any]:
        """Read, and note it."""
        self._note(element, "begun")
        end = "failed"
        try:
            if Path(self._calls).with_name("final").exists():
                raise StoreDamaged("damaged, as the test says")
            yield from super().process(element, tracker, estimator)
            end = "over" if tracker.current_restriction().stop is None else "back"
        finally:
            self._note(element, end)


@dataclass(frozen=True, slots=True)
class Call:
    """The last note of a part."""

    at: float  # monotonic seconds
    pid: int  # the process
    word: str  # whether it began, or how it ended


def last_calls(path: Path) -> dict[str, Call]:
    """The last note of each part; nothing of parts that were never called."""
    if not path.exists():
        return {}
    noted = [line.split() for line in path.read_text(encoding="ascii").splitlines()]
    return {part: Call(float(at), int(pid), word) for at, part, pid, word in noted}
