"""The wall clock as a live source without readings, beside a source that declares no window complete itself.

It declares each window once it is over by the wall clock and the allowed lateness. The runner joins its watermark with
that of the readings, so a window fires when both have passed its end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import apache_beam as beam
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator

from ..store.codec import now_us
from .plan import Plan, ledger_at
from .registration import Registered
from .sources.contract import BEGIN, PartitionedSource, Reader, SourceBatch
from .sources.progress import PartitionState, Restriction
from .sources.reader import PollingPolicy, ReadPart

#: Seconds between two looks at the clock.
_LOOK_S = 1.0

#: Seconds that a call lasts, and seconds until the next one, where a runner keeps every call.
_STAY_S, _REST_S = 5.0, 1.1


@dataclass(frozen=True)
class WallClock(PartitionedSource):
    """The wall clock.

    Its first declaration is of the windows that were over when the job began, which it declares replayed. It stands for
    a source whose positions are unknown: what comes of such a window may have been read before, and a source that was
    set back must not be said to be live.
    """

    lost_us: int | None = None  # windows that start before it may lack readings

    def reader(self, part: int, position: str) -> Reader:  # noqa: ARG002 - it has one part, and no positions
        """A reader of the time."""
        return _ClockReader(self.lost_us)


class _ClockReader(Reader):
    def __init__(self, lost_us: int | None) -> None:
        self._lost_us = lost_us
        self._next = 0.0

    def read(self) -> SourceBatch | None:
        if time.monotonic() < self._next:
            return None
        self._next = time.monotonic() + _LOOK_S / 2
        return SourceBatch("", settled=True, latest_us=now_us(), lost_us=self._lost_us)

    def close(self) -> None:
        """Nothing is open."""


class ReadClock(ReadPart):
    """The query on record to declarations of its windows, from the first on that is missing there."""

    def __init__(self, plan: Plan, runner: str, lost_us: int | None) -> None:
        policy = PollingPolicy(
            begin_us=0,
            # a window waits for the readings after it that its slots depend on
            lateness_us=plan.lateness_us + (0 if plan.words is None else plan.words.after_us),
            poll_s=_LOOK_S,
        )
        policy = policy if runner == "PrismRunner" else replace(policy, stay_s=_STAY_S, rest_s=_REST_S)
        super().__init__(WallClock(lost_us=lost_us), policy)
        self._plan = plan

    def initial_restriction(self, element: Registered) -> Restriction:  # pyright: ignore[reportIncompatibleMethodOverride] - another element
        """From the first missing window on."""
        schedule, grid = element.now.query.schedule, self._plan.grid
        with ledger_at(self._plan.address.pinned(element.store_id)) as store:
            found = next(store.missing(element.now), None)
        # a window is declared that ends after this instant, so the first missing one is
        begin = schedule.covered.stop if found is None else found[0].stop - 1
        return Restriction(PartitionState(BEGIN, grid.time_of(begin)))

    @beam.DoFn.unbounded_per_element()
    def process(  # pyright: ignore[reportIncompatibleMethodOverride] - another element
        self,
        element: Registered,
        tracker: Any = beam.DoFn.RestrictionParam(),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        """Declare what is over by now."""
        schedule, grid = element.now.query.schedule, self._plan.grid
        if schedule.bounded:
            self._policy = replace(self._policy, end_us=grid.time_of(schedule.covered.stop))
        yield from super().process(0, tracker, estimator)
