"""The wall clock as a source: window ends of a pipeline whose own source declares none.

The sources here declare which windows they have read completely (:mod:`..completeness.punctuation`). A source of the
user's own does not. Beside it stands this one: it has no readings, and declares each window once it is over by the wall
clock and the allowed lateness. Its watermark and that of the readings are joined by the runner, so that a window fires
when both have passed its end; and because the declarations name no sequence numbers, only what the runner calls on time
is published (:mod:`..aggregate.panes`). What of the readings had come by then is what the watermark of their source
promises.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from ...store.specs import Registration
from ...store.store import Store
from ..plan import Plan
from .contract import PartitionedSource, Reader, SourceBatch
from .reader import PollingPolicy

__all__ = ["WallClock", "policy_of"]

#: Seconds between two looks at the clock.
_LOOK_S = 1.0

#: Seconds that a call stays, and that it asks to be called again after, where a runner keeps every call.
_STAY_S, _REST_S = 5.0, 1.1


def _now_us() -> int:
    return time.time_ns() // 1_000


@dataclass(frozen=True)
class WallClock(PartitionedSource):
    """The wall clock.

    Attributes:
        now: microseconds since 1970; the tests' own.
    """

    now: Callable[[], int] = _now_us

    def reader(self, part: int, position: str) -> Reader:  # noqa: ARG002 - it has one part, and no positions
        """A reader of the time."""
        return _ClockReader(self.now)


class _ClockReader(Reader):
    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._next = 0.0

    def read(self) -> SourceBatch | None:
        if time.monotonic() < self._next:
            return None
        self._next = time.monotonic() + _LOOK_S / 2
        return SourceBatch("", settled=True, latest_us=self._now())

    def close(self) -> None:
        """Nothing is open."""


def policy_of(plan: Plan, registration: Registration, lateness_us: int, runner: str) -> PollingPolicy:
    """How the clock declares the windows of a query on record, from the first on that is missing there.

    Args:
        plan: the query.
        registration: what is on record for it.
        lateness_us: how long after its end a window waits.
        runner: name of the runner's class.
    """
    schedule, grid = registration.query.schedule, plan.grid
    with Store(plan.address) as store:
        found = next(store.missing(registration), None)
    # a window is declared that ends after this instant, so the first missing one is
    begin = schedule.covered.stop if found is None else found[0].stop - 1
    policy = PollingPolicy(
        begin_us=grid.time_of(begin),
        lateness_us=lateness_us,
        poll_s=_LOOK_S,
        end_us=grid.time_of(schedule.covered.stop) if schedule.bounded else None,
    )
    return policy if runner == "PrismRunner" else replace(policy, stay_s=_STAY_S, rest_s=_REST_S)
