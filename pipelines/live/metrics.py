"""What the watchdog found last, as a metric: a page for Prometheus that outlives the runner it speaks of.

A job that stands still cannot tell so by Beam's counters, which are its own. The process that watches it can: each
cause has a name, and is 1 while it holds. Beside it are the runner's counts of readings and rejects, for the operator
alone: Prism has no page of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

from ...schemas.readings import RejectReason
from ...transforms.common.batches import DECODED, counter_name

#: The runner's counters that the page tells, and what is said of them.
_COUNTED = {
    DECODED: ("readings_total", "Readings that were decoded, by the runner's counters"),
    "blocks-incomplete": (
        "blocks_incomplete_total",
        "Blocks dropped because their source had not declared them complete",
    ),
    "sources-left-out": ("sources_left_out_total", "How often a source fell silent and was not waited for any more"),
}

#: Counted from a reader's first look on: without it the runner tells no counters.
_POLLS = "polls"


class Cause(str, Enum):
    """Why a live job publishes nothing, or soon will not."""

    NO_WORKER = "no-worker"
    RUNNER = "runner-away"
    TASKMANAGER = "taskmanager-away"
    POOL = "pool-away"
    FAILED = "job-failed"
    SOURCE = "source-away"
    SILENT = "source-silent"
    UNHEARD = "source-unheard"
    LEFT_OUT = "source-left-out"
    AHEAD = "clock-ahead"
    STALLED = "clock-stalled"
    HELD = "window-held"
    OVERDUE = "window-overdue"
    LEDGER = "ledger-away"
    SINK = "sink-away"

    @property
    def well(self) -> str:
        """What is said when it is over."""
        return _WELL[self]


_WELL = {
    Cause.NO_WORKER: "workers look at the source again",
    Cause.RUNNER: "the runner answers again",
    Cause.TASKMANAGER: "the job has its TaskManagers again",
    Cause.POOL: "the worker pool takes connections again",
    Cause.FAILED: "the job runs again",
    Cause.SOURCE: "the source can be read again",
    Cause.SILENT: "the source has something new again",
    Cause.UNHEARD: "no source that had no reading yet holds a window any more",
    Cause.LEFT_OUT: "every source that was left out has sent again",
    Cause.AHEAD: "no reading is stamped ahead of this machine's clock any more",
    Cause.STALLED: "the source's clock moves again",
    Cause.HELD: "the window that was held back is on record",
    Cause.OVERDUE: "windows are put on record again",
    Cause.LEDGER: "the ledger of record can be looked at again",
    Cause.SINK: "the sink goes on",
}


@dataclass(frozen=True, slots=True)
class HealthReport:
    """One look of the watchdog.

    Attributes:
        causes: what is wrong.
        worker_s: seconds since a worker looked at the source; ``None`` where that cannot be seen.
        clock_us: how far the slowest part of the source has come; ``None`` where that cannot be seen.
    """

    causes: frozenset[Cause] = frozenset()
    worker_s: float | None = None
    clock_us: int | None = None


@dataclass
class HealthMetrics:
    """Where the report on the live job of this process is kept, from one runner to the next.

    Attributes:
        now: seconds since 1970; the tests' own.
    """

    now: Callable[[], float] = time.time
    _report: HealthReport = field(default_factory=HealthReport)
    _looked: float | None = None
    _begun: int = 0
    _running: bool = False
    _counts: Mapping[str, int] = field(default_factory=dict[str, int])
    _earlier: dict[str, int] = field(default_factory=dict[str, int])
    _counted: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> None:
        """A runner is given the job."""
        with self._lock:
            self._begun += 1
            self._running = True
            # each runner counts from 0
            self._earlier = {name: self._total(name) for name in self._earlier | dict(self._counts)}
            self._counts = {}
            self._report, self._looked = HealthReport(), self.now()

    def note(self, report: HealthReport, tallies: Mapping[str, int] | None = None) -> None:
        """Keep what was found now.

        Args:
            report: the watchdog's.
            tallies: the runner's counters; ``None`` where it reports none.
        """
        with self._lock:
            self._report, self._looked = report, self.now()
            if tallies is not None and _POLLS in tallies:
                self._counts, self._counted = dict(tallies), True

    def end(self, *, failed: bool) -> None:
        """The runner has the job no more."""
        with self._lock:
            self._running = False
            self._report = HealthReport(frozenset({Cause.FAILED}) if failed else frozenset())
            self._looked = self.now()

    def wait(self, cause: Cause) -> None:
        """No runner has the job, which waits for what is away."""
        with self._lock:
            self._report, self._looked = HealthReport(frozenset({cause})), self.now()

    def reset(self) -> None:
        """Forget everything: another command begins."""
        with self._lock:
            self._report, self._looked, self._begun, self._running = HealthReport(), None, 0, False
            self._counts, self._earlier, self._counted = {}, {}, False

    def text(self) -> str:
        """It in Prometheus' text format."""
        with self._lock:
            return "\n".join([*self._lines(), ""])

    def _total(self, name: str) -> int:
        return self._earlier.get(name, 0) + self._counts.get(name, 0)

    def _counters(self) -> Iterator[str]:
        """The runner's counters, from the first that it told on; all at 0 before they count."""
        for name, (metric, about) in _COUNTED.items():
            yield from _metric(metric, "counter", about, float(self._total(name)))
        yield "# HELP quiltstream_live_rejected_total Rejected readings by reason, late ones among them"
        yield "# TYPE quiltstream_live_rejected_total counter"
        for reason in RejectReason:
            label = reason.value
            yield f'quiltstream_live_rejected_total{{reason="{label}"}} {self._total(counter_name(reason))}'

    def _lines(self) -> Iterator[str]:
        found = self._report
        yield from _metric("running", "gauge", "Whether a runner has the job", float(self._running))
        yield from _metric("begun_total", "counter", "How often a runner was given the job", float(self._begun))
        if self._looked is not None:
            yield from _metric("looked_seconds", "gauge", "When the watchdog looked, seconds since 1970", self._looked)
        if found.worker_s is not None:
            about = "Seconds since a worker looked at the source"
            yield from _metric("worker_silent_seconds", "gauge", about, found.worker_s)
        if found.clock_us is not None:
            about = "How far the slowest part of the source has come, seconds since 1970"
            yield from _metric("clock_seconds", "gauge", about, found.clock_us / 1e6)
        if self._counted:
            yield from self._counters()
        yield "# HELP quiltstream_live_trouble Whether the watchdog finds this cause now"
        yield "# TYPE quiltstream_live_trouble gauge"
        for cause in Cause:
            yield f'quiltstream_live_trouble{{cause="{cause.value}"}} {int(cause in found.causes)}'


def _metric(name: str, kind: str, about: str, value: float) -> Iterator[str]:
    full = f"quiltstream_live_{name}"
    yield f"# HELP {full} {about}"
    yield f"# TYPE {full} {kind}"
    yield f"{full} {value!r}"


#: Of this process, which watches one live job at a time.
HEALTH_METRICS = HealthMetrics()


@contextmanager
def health_page(port: int | None, say: Callable[[str, str], None]) -> Generator[None]:
    """Serve the report on the loopback address while a command runs, over all of its runners.

    Args:
        port: where; ``None`` for nowhere.
        say: tells a kind of news and the news.

    Raises:
        CommandError: the port is taken, or not to be had.
    """
    HEALTH_METRICS.reset()
    if port is None:
        yield
        return
    from ..gateway.metrics import MetricsPage  # noqa: PLC0415 - only where it is asked for

    page = MetricsPage(port, HEALTH_METRICS.text, "live.metrics_port")
    try:
        say("metrics", f"the watchdog's verdict is at 127.0.0.1:{page.port}/metrics")
        yield
    finally:
        page.close()


__all__ = ["HEALTH_METRICS", "Cause", "HealthMetrics", "HealthReport", "health_page"]
