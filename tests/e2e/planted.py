"""Errors that are put into a job on purpose, by name: what random actions must find (``live_job.py --plant``).

Each changes the package in the process of the command, where the workers of a job on Prism are. What only a Flink
cluster could do wrong is put into its workers by the reader, which they are sent, or into what the command does there.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import apache_beam as beam
import numpy as np
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.transforms.window import TimestampedValue

from quiltstream.pipelines.connectors import files
from quiltstream.pipelines.live import flink, job
from quiltstream.schemas.readings import RejectReason
from quiltstream.transforms.aggregate import release
from quiltstream.transforms.aggregate.encode import Encoder
from quiltstream.transforms.aggregate.release import ChargeAndCount
from quiltstream.transforms.sources import reader
from quiltstream.transforms.sources.contract import BEGIN

if TYPE_CHECKING:
    from .stamped import NotedPart
else:
    NotedPart = import_module("stamped").NotedPart  # by the name that the workers know it by


def counted_twice() -> None:
    """A cell that is read twice counts twice."""
    real: Any = ChargeAndCount._count

    def _count(self: Any, slots: Any, collected: Any, registration: Any) -> Any:
        counts = real(self, slots, collected, registration)
        again = sum(one.readings - int(np.count_nonzero(one.present)) for one in collected.steps.values())
        counts[:1, :1] += again
        return counts

    ChargeAndCount._count = _count  # type: ignore[method-assign]


def drawn_again() -> None:
    """A job that finds no file of a block on record draws its counts anew."""
    real: Any = vars(files)["rows_of"]

    def rows_of(registration: Any, record: Any) -> Any:
        return real(registration, replace(record, block=replace(record.block, counts=record.block.counts + 1)))

    files.rows_of = rows_of  # type: ignore[attr-defined]


def late_in_silence() -> None:
    """A reading that comes late is dropped, and no reject names it."""
    real: Any = Encoder.encode

    def encode(self: Any, given: Any) -> Any:
        encoded = real(self, given)
        encoded.rejects.pop(RejectReason.LATE, None)
        return encoded

    Encoder.encode = encode  # type: ignore[method-assign]


def left_running() -> None:
    """A process outlives the command."""
    subprocess.Popen(["sleep", "600"], start_new_session=True)


class DrawnAgainPart(NotedPart):
    """A reader in whose process a block that is on record already goes out with other counts."""

    def setup(self) -> None:
        """Spoil the process."""
        super().setup()
        real: Any = vars(release)["rows_of"]
        if getattr(real, "spoiled", False):
            return

        def rows_of(registration: Any, record: Any) -> Any:
            if not record.fresh:
                record = replace(record, block=replace(record.block, counts=record.block.counts + 1))
            return real(registration, record)

        rows_of.spoiled = True  # type: ignore[attr-defined]
        release.rows_of = rows_of  # type: ignore[attr-defined]


def drawn_by_a_restore() -> None:
    """A job that was restored sends the rows of a window which it had released before with other counts."""
    _read_by(DrawnAgainPart)


class HalvedPart(NotedPart):
    """A reader that loses half of the readings that it reads first where another process had stopped."""

    #: Parts that this process has read.
    _known: ClassVar[set[tuple[str, int]]] = set()

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        element: int,
        tracker: Any = beam.DoFn.RestrictionParam(),  # noqa: B008 - Beam's way
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),  # noqa: B008
    ) -> Iterator[Any]:
        """Read."""
        mine = (self._calls, element)
        whole = mine in self._known or tracker.current_restriction().start.position == BEGIN
        self._known.add(mine)
        for one in super().process(element, tracker, estimator):
            rows = one.value.num_rows if isinstance(one, TimestampedValue) else 0
            if whole or rows < 2:
                yield one
                continue
            whole = True
            yield TimestampedValue(one.value.slice(0, rows // 2), one.timestamp)


def halved_by_a_restore() -> None:
    """Of the first batch of a restored reader half the readings are lost, while the batches' numbers are in order."""
    _read_by(HalvedPart)


class SilentPart(NotedPart):
    """A reader in whose process late readings are dropped, and no reject names them."""

    def setup(self) -> None:
        """Spoil the process."""
        super().setup()
        late_in_silence()


def late_in_silence_elsewhere() -> None:
    """A worker drops a reading that comes late, and no reject names it."""
    _read_by(SilentPart)


def _read_by(part: type[NotedPart]) -> None:
    """Have the job's source read by another reader, which notes its calls where the one in its place would."""
    usual: Any = vars(reader.ReadLive)["reading"].__func__
    reader.ReadLive.reading = staticmethod(partial(part, *usual.args))  # type: ignore[assignment]


def savepoint_ignored() -> None:
    """A job is begun without the savepoint that it is to take up, as Beam's uber jar does it."""
    real: Any = vars(job)["options_of"]

    def options_of(words: Any) -> Any:
        return real([word for word in words if not word.startswith("--savepoint_path")])

    job.options_of = options_of  # type: ignore[attr-defined]


def left_in_the_cluster() -> None:
    """A command takes its job for over, and does not cancel it: Beam's job server only says that it does."""

    def end(self: Any, **given: Any) -> Any:
        del given
        self.ended = flink.Ended("over", "it is over")
        return self.ended

    flink.FlinkJob.end = end  # type: ignore[method-assign]


PLANTED: dict[str, Callable[[], None]] = {
    one.__name__.replace("_", " "): one
    for one in (
        *(counted_twice, drawn_again, late_in_silence, left_running),
        *(drawn_by_a_restore, halved_by_a_restore, savepoint_ignored, left_in_the_cluster, late_in_silence_elsewhere),
    )
}
