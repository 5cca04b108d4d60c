"""The watchdog of a live job: reports within a minute that the job stopped producing, with the likely cause.

A streaming job that lost its workers, whose source went away or whose watermark stands still does not fail; it just
says RUNNING. The watchdog checks signs of life: heartbeats of readers in this process, or the runner's counters where
the readers are elsewhere, which window is missing on record, and whether runner and ledger answer at all. What it
finds it says once in a while, and that it is over, too; the metric says it at every look.

The metric is a page for Prometheus that outlives the runner it speaks of: Beam's counters are the job's own, and stop
with it. Each cause has a name, and is 1 while it holds. Beside it are the runner's counts of readings and rejects, for
the operator alone: Prism has no page of its own.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Generic, Self, TypeVar

from ...schemas.readings import RejectReason
from ...schemas.slots import DAY_US, format_instant
from ...transforms.common.batches import DECODED, DUPLICATES, OUTSIDE, counter_name
from ...transforms.sources.progress import LEDGER, Heartbeat
from ...transforms.sources.reader import PollingPolicy
from ..console import listed, plural
from ..errors import OutputError
from ..metrics_page import MetricFamily, metrics_text, serve_metrics

Say = Callable[[str, str], None]
"""Tells a kind of news and the news."""

#: The runner's counters that the page tells, and what is said of them.
_COUNTED = {
    DECODED: ("readings_total", "Readings that were decoded, by the runner's counters"),
    OUTSIDE: ("outside_schedule_total", "Readings before or after the schedule"),
    DUPLICATES: ("duplicates_total", "Readings in a cell that had one"),
    "blocks-incomplete": (
        "blocks_incomplete_total",
        "Blocks dropped because their source had not declared them complete",
    ),
    "sources-left-out": ("sources_left_out_total", "How often a source fell silent and was not waited for any more"),
}

#: Counted from a reader's first look on: without it the runner tells no counters.
_POLLS = "polls"


class Cause(StrEnum):
    """Why a live job publishes nothing, or soon will not; with each, what is said when it is over."""

    well: str

    NO_WORKER = "no-worker", "workers look at the source again"
    RUNNER = "runner-away", "the runner answers again"
    TASKMANAGER = "taskmanager-away", "the job has its TaskManagers again"
    POOL = "pool-away", "the worker pool takes connections again"
    FAILED = "job-failed", "the job runs again"
    SOURCE = "source-away", "the source can be read again"
    SILENT = "source-silent", "the source has something new again"
    UNHEARD = "source-unheard", "no source that had no reading yet holds a window any more"
    LEFT_OUT = "source-left-out", "every source that was left out has sent again"
    AHEAD = "clock-ahead", "no reading is stamped ahead of this machine's clock any more"
    STALLED = "clock-stalled", "the source's clock moves again, or waits for something new"
    HELD = "window-held", "the window that was held back is on record"
    OVERDUE = "window-overdue", "windows are put on record again"
    LEDGER = "ledger-away", "the ledger of record answers again"
    SINK = "sink-away", "the sink goes on"

    def __new__(cls, name: str, well: str) -> Self:
        """A cause whose value is its name."""
        cause = str.__new__(cls, name)
        cause._value_, cause.well = name, well
        return cause


@dataclass(frozen=True, slots=True)
class HealthReport:
    """One look of the watchdog."""

    causes: frozenset[Cause] = frozenset()  # what is wrong
    worker_s: float | None = None  # seconds since a worker looked at the source; ``None`` where that cannot be seen
    clock_us: int | None = None  # how far the slowest part of the source has come; ``None`` where that cannot be seen


@dataclass
class HealthMetrics:
    """Where the report on the live job of this process is kept, from one runner to the next."""

    now: Callable[[], float] = time.time  # seconds since 1970; the tests' own
    _report: HealthReport = field(default_factory=HealthReport)
    _looked: float | None = None
    _begun: int = 0
    _running: bool = False
    _counts: Mapping[str, int] = field(default_factory=dict[str, int])
    _earlier: Counter[str] = field(default_factory=Counter[str])
    _counted: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> None:
        """A runner is given the job."""
        with self._lock:
            self._begun += 1
            self._running = True
            # each runner counts from 0
            self._earlier.update(self._counts)
            self._counts = {}
            self._report, self._looked = HealthReport(), self.now()

    def note(self, report: HealthReport, tallies: Mapping[str, int] | None = None) -> None:
        """Keep what was found now, and the runner's counters where it reports them."""
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
            self._counts, self._earlier, self._counted = {}, Counter(), False

    def text(self) -> str:
        """It in Prometheus' text format."""
        with self._lock:
            return metrics_text(self._families())

    def _total(self, name: str) -> int:
        return self._earlier[name] + self._counts.get(name, 0)

    def _families(self) -> Iterator[MetricFamily]:
        found = self._report
        yield _gauge("running", "Whether a runner has the job", float(self._running))
        yield _counter("begun_total", "How often a runner was given the job", float(self._begun))
        if self._looked is not None:
            yield _gauge("looked_seconds", "When the watchdog looked, seconds since 1970", self._looked)
        if found.worker_s is not None:
            yield _gauge("worker_silent_seconds", "Seconds since a worker looked at the source", found.worker_s)
        if found.clock_us is not None:
            about = "How far the slowest part of the source has come, seconds since 1970"
            yield _gauge("clock_seconds", about, found.clock_us / 1e6)
        if self._counted:
            yield from self._counters()
        yield MetricFamily(
            "quiltstream_live_trouble",
            "gauge",
            "Whether the watchdog finds this cause now",
            [({"cause": cause.value}, int(cause in found.causes)) for cause in Cause],
        )

    def _counters(self) -> Iterator[MetricFamily]:
        """The runner's counters, from its first report on; all at 0 before they count."""
        for name, (metric, about) in _COUNTED.items():
            yield _counter(metric, about, float(self._total(name)))
        yield MetricFamily(
            "quiltstream_live_rejected_total",
            "counter",
            "Rejected readings by reason, late ones among them",
            [({"reason": reason.value}, self._total(counter_name(reason))) for reason in RejectReason],
        )


def _gauge(name: str, about: str, value: float) -> MetricFamily:
    return MetricFamily.single(f"quiltstream_live_{name}", "gauge", about, value)


def _counter(name: str, about: str, value: float) -> MetricFamily:
    return MetricFamily.single(f"quiltstream_live_{name}", "counter", about, value)


#: Of this process, which watches one live job at a time.
HEALTH_METRICS = HealthMetrics()


@contextmanager
def health_page(port: int | None, say: Say) -> Generator[None]:
    """Serve the report on the loopback address, if a port is given, while a command runs, over all of its runners.

    Raises:
        CommandError: the port is taken, or not to be had.
    """
    HEALTH_METRICS.reset()
    if port is None:
        yield
        return
    with serve_metrics(port, HEALTH_METRICS.text, "live.metrics_port") as served:
        say("metrics", f"the watchdog's verdict is at 127.0.0.1:{served}/metrics")
        yield


#: Seconds without a sign of life before it is said. Readers in this process give one in ten seconds at least, however
#: slow the poll is; those elsewhere with each look only, as their runners keep every call.
PATIENCE_S = 30.0

#: Looks that are missed before it is said of readers elsewhere.
_LOOKS = 3

#: Seconds without an answer after which the silent runner or ledger is the likely cause of every other stall.
_ANSWER_S = 10.0

#: Sources that a message names at most.
_SHOWN = 3


#: Seconds before the same thing is said again, and before it is where its reason is another one.
_REPEAT_S = 300.0
_CHANGED_S = 30.0

#: What may differ in a reason that is the same.
_NUMBERS = re.compile(r"\d+")

#: Seconds between two looks, beyond those that they are apart, from which on this process itself stood still.
_STOOD_S = _ANSWER_S

#: Seconds for which no worker looks, and nothing is waited for or moves, before the job's workers are given up. One may
#: be at a bundle for minutes, and is heard by the counters of its steps then.
_GIVEN_UP_S = 300.0

#: Seconds for which a source's clock has to move before a stall is over.
_EPISODE_S = 60.0

#: What says why no worker looks at the source, where it is known.
_WHY_NO_WORKER = frozenset({Cause.LEDGER, Cause.RUNNER, Cause.TASKMANAGER, Cause.POOL, Cause.FAILED, Cause.NO_WORKER})

#: What only workers can tell, and so stays as it was while none is heard.
_BY_WORKERS = frozenset(
    {Cause.SOURCE, Cause.SILENT, Cause.UNHEARD, Cause.LEFT_OUT, Cause.AHEAD, Cause.STALLED, Cause.HELD}
)

_Value = TypeVar("_Value")

Key = tuple[Cause, str]
"""A cause, and which one of several with it: what is the same when it is said again, with other numbers."""


@dataclass(frozen=True, slots=True)
class Complaint:
    """Something that is wrong now."""

    cause: Cause  # what is wrong
    text: str  # in words; empty if it is on the metric alone
    part: str = ""  # which one of several with the same cause
    reason: str = ""  # what is known of why; another one is news

    @property
    def key(self) -> Key:
        """What complaints of several looks have in common."""
        return self.cause, self.part


@dataclass(frozen=True, slots=True)
class Lasting(Generic[_Value]):
    """A value, and the monotonic seconds since when it has not changed; ``None`` is none."""

    value: _Value | None = None
    since: float = 0.0

    def at(self, now: float, value: _Value | None) -> Lasting[_Value]:
        """It with the value of now."""
        return self if value == self.value else Lasting(value, now)


@dataclass
class News:
    """What was said of complaints: each again after a while, and once that it is over."""

    holding: set[Key] = field(default_factory=set[Key])  # those of the last look
    told: set[Key] = field(default_factory=set[Key])  # those of them that were said since they began
    # monotonic seconds when each was said last, and its reason then
    said: dict[Key, tuple[float, str]] = field(default_factory=dict[Key, "tuple[float, str]"])
    # causes that were told and hold no more, and whose end is not said yet
    ended: list[Cause] = field(default_factory=list[Cause])

    def of(self, found: Iterable[Complaint], holding: set[Key], now: float) -> list[str]:
        """What to say of complaints at monotonic seconds; ``holding`` are all that hold now, found anew or not."""
        over = self.holding - holding
        self.ended += sorted({cause for cause, _ in over & self.told})
        self.told &= holding
        # what comes back is said at once; a source that is often silent for a while is not said each time
        for key in over:
            if key[0] is not Cause.SILENT:
                self.said.pop(key, None)
        self.holding = holding
        return [complaint.text for complaint in found if complaint.text and self._is_new(complaint, now)]

    def _is_new(self, complaint: Complaint, now: float) -> bool:
        key, reason = complaint.key, _NUMBERS.sub("", complaint.reason)
        again = float("inf") if key[0] is Cause.STALLED else _REPEAT_S
        at, before = self.said.get(key, (float("-inf"), ""))
        new = key not in self.said or now - at >= (_CHANGED_S if reason != before else again)
        if new:
            self.said[key] = now, reason
            self.told.add(key)
        return new


@dataclass(frozen=True, slots=True)
class PendingCall:
    """A call without an answer yet."""

    cause: Cause  # ``Cause.RUNNER`` or ``Cause.LEDGER``, if no answer comes
    since: float  # monotonic seconds when it began


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a job cannot go on in the cluster that runs it."""

    cause: Cause  # the part that died, ``Cause.NO_WORKER`` if that is not known, or ``Cause.RUNNER`` if nothing is said
    text: str  # in words
    sure: bool = False  # whether the watchdog says it at once, because it cannot be a part of a usual beginning


@dataclass(frozen=True, slots=True)
class Stuck(Trouble):
    """A trouble that lasts."""

    since: float = field(kw_only=True)  # monotonic seconds when the cluster said so first


@dataclass(frozen=True, slots=True)
class Sight:
    """What is seen of a live job."""

    # slot of the first window that is not on record; it moves when windows are published
    first_missing: int | None = None
    tallies: Mapping[str, int] | None = None  # the runner's counters; ``None`` where it reports none
    away: str | None = None  # why the ledger could not be looked at, in the store's own words; ``None`` if it could
    lost: str | None = None  # why the runner did not report the state of the job; ``None`` if it did
    heartbeats: Mapping[int, Heartbeat] = field(default_factory=dict[int, Heartbeat])  # of the readers in this process
    waits: Mapping[str, str] = field(default_factory=dict[str, str])  # sinks and workers that wait, in their own words
    pending: PendingCall | None = None  # a call of the runner or the ledger that is not answered yet
    # what the cluster that runs the job says is in its way; it may take a job up again by itself
    stuck: Stuck | None = None

    def count(self, name: str) -> int:
        """A counter of the runner."""
        return (self.tallies or {}).get(name, 0)


@dataclass(frozen=True, slots=True)
class Look:
    """A look of the watchdog, which one check after another adds to."""

    seen: Sight
    now: float  # monotonic seconds
    last: float | None  # when a worker looked at the source last; ``None`` where that cannot be seen
    still: bool  # whether that is too long ago
    begun: float = 0.0  # from when on spans of time count
    found: list[Complaint] = field(default_factory=list[Complaint])

    @property
    def waits(self) -> bool:
        """Whether ledger, sink, source or runner are known to be waited for."""
        unread = any(heartbeat.trouble is not None for heartbeat in self.seen.heartbeats.values())
        return unread or any(one.cause is not Cause.NO_WORKER for one in self.found)

    def lasts(self, since: float) -> float:
        """Seconds since an instant, of those that count."""
        return self.now - max(since, self.begun)

    @property
    def known(self) -> bool:
        """Whether it has been found why no worker looks at the source."""
        return any(complaint.cause in _WHY_NO_WORKER for complaint in self.found)

    @property
    def clock_us(self) -> int | None:
        """How far the slowest part of the source has come; ``None`` if none tells."""
        clocks = (heartbeat.clock_us for heartbeat in self.seen.heartbeats.values())
        return min((clock_us for clock_us in clocks if clock_us is not None), default=None)


Check = Callable[[Look], Iterable[Complaint]]
"""What a look finds wrong with one thing."""


@dataclass
class Watchdog:
    """Finds what is wrong with a live job by what it sees now and saw before.

    A complaint may depend on others, so that they are looked for in an order:

    1. Sink, ledger, runner and cluster, which every window needs. One that is away explains why no worker looks at the
       source, why windows are overdue, and why the runner holds one back: that is then not said as well.
    2. Workers. If none looks at the source, what only they can tell stays as it was.
    3. What workers tell, in the order in which readings pass: whether the source can be read, whether it has something
       new, which sources are left out, which are waited for, how far the clock has come, and the window that it has
       come past. A clock that waits for a source stands, and is not said to be stalled.
    """

    pace: PollingPolicy  # when windows close
    heard: float  # monotonic seconds when the job was started, or this process went on after it stood still
    due_us: Callable[[int], int]  # end of the window that starts at a slot
    clock: Callable[[], float] = time.monotonic  # monotonic seconds; the tests' own
    wall_us: Callable[[], int] = lambda: time.time_ns() // 1_000  # wall clock in microseconds; the tests' own
    here: bool = True  # whether the readers are in this process, so that their heartbeat is missed when there is none
    report: HealthReport = field(default_factory=HealthReport)  # all that the last look found

    # where readers are elsewhere: polls by the runner's counters, and when their number rose last
    _polls: int = 0
    _polled: float | None = None
    # slot of the first window that is not on record
    _missing: Lasting[int] = Lasting()
    # the same, while the source has come past it and the runner can put it on record
    _passed: Lasting[int] = Lasting()
    # how far the slowest part of the source has come, while its readings arrive and nothing explains that it stands
    _slowest_us: Lasting[int] = Lasting()
    # when that part was polled last, and since when its polls have been close enough to notice a clock that stands
    _looked: float = 0.0
    _close_looks: float = 0.0
    # when a clock that stands was found last, until it has moved for a while
    _stall: float | None = None
    # parts of the source that have nothing new
    _silent: set[int] = field(default_factory=set[int])
    # sources that hold windows because no reading of them came yet
    _awaited: Lasting[list[str]] = Lasting()
    # what is on record and counted, while no worker of this process looks and nothing is waited for
    _dead: Lasting[tuple[object, ...]] = Lasting()
    _news: News = field(default_factory=News)

    def look(self, seen: Sight) -> list[str]:
        """What is wrong now and was not said lately; :attr:`report` is all that is."""
        now = self.clock()
        self._missing = self._missing.at(now, seen.first_missing)
        if seen.count(_POLLS) > self._polls:
            self._polls, self._polled = seen.count(_POLLS), now
        last = self._last(seen.heartbeats)
        worker_s = PATIENCE_S if self.here else max(PATIENCE_S, _LOOKS * self.pace.poll_s)
        look = Look(seen, now, last, last is not None and now - last > worker_s, self.heard)
        for check in _AROUND:
            look.found.extend(check(look))
        if look.known and (Cause.HELD, "") not in self._news.holding:
            self._passed = Lasting()  # the runner has its time once it can go on
        for check in (*self._of_workers(look), self._stall_goes_on):
            look.found.extend(check(look))
        holding = {complaint.key for complaint in look.found}
        if look.still:
            holding |= {key for key in self._news.holding if key[0] in _BY_WORKERS or key[0] is Cause.NO_WORKER}
        self._note_given_up(look)
        causes = frozenset(cause for cause, _ in holding)
        self.report = HealthReport(causes, None if last is None else now - last, look.clock_us)
        return self._news.of(look.found, holding, now)

    def begin_anew(self) -> None:
        """This process stood still, and could hear nothing meanwhile: every span of time begins now."""
        now = self.clock()
        self.heard = self._close_looks = now
        self._missing, self._passed = replace(self._missing, since=now), replace(self._passed, since=now)
        self._awaited, self._slowest_us = replace(self._awaited, since=now), Lasting()
        self._dead = Lasting()

    @property
    def given_up_s(self) -> float | None:
        """Seconds since a worker of this process looked, where they are lost; ``None``: they are not, or may be back.

        They are where nothing is waited for, and neither the runner's counters nor what is on record moved, for long.
        """
        given_up = self._dead.value is not None and self.clock() - self._dead.since > _GIVEN_UP_S
        return self.report.worker_s if given_up else None

    def _note_given_up(self, look: Look) -> None:
        alone = look.still and self.here and not look.waits
        moved = look.seen.first_missing, *sorted((look.seen.tallies or {}).items())
        self._dead = self._dead.at(look.now, moved if alone else None)

    def _of_workers(self, look: Look) -> tuple[Check, ...]:
        if look.last is None:
            return (self._overdue,)
        if look.still:
            return (self._no_worker,)
        return (_unreadable, self._nothing_new, _left_out, self._unheard, self._ahead, self._stalled, self._held)

    def over(self) -> list[str]:
        """What was said to be wrong and is not any more, since the last call."""
        found = [cause.well for cause in self._news.ended]
        self._news.ended.clear()
        return found

    def _last(self, heartbeats: Mapping[int, Heartbeat]) -> float | None:
        """When a worker last looked; ``None`` where that cannot be seen."""
        if not self.here and not heartbeats and self._polled is None:
            return None
        return max([*(heartbeat.beaten for heartbeat in heartbeats.values()), self._polled or 0.0, self.heard])

    def _no_worker(self, look: Look) -> Iterator[Complaint]:
        self._slowest_us = Lasting()
        if look.last is not None and not look.known:
            yield Complaint(
                Cause.NO_WORKER,
                f"no worker has looked at the source for {look.now - look.last:.0f} s: the worker pool may be gone, or "
                "every worker waits for the ledger of record; look at the runner's workers, then restart the job",
            )

    def _overdue(self, look: Look) -> Iterator[Complaint]:
        """Where neither heartbeat nor counters can be seen, only what is late on record tells."""
        missing, lasts = self._missing.value, look.now - self._missing.since
        if missing is None or lasts <= PATIENCE_S:
            return
        due = self.due_us(missing)
        # what has come is read with the next look
        waits = self.pace.lateness_us + (self.pace.idle_us or 0) + int((self.pace.poll_s + PATIENCE_S) * 1e6)
        if due + waits < self.wall_us():
            said = (
                f"nothing was put on record for {lasts:.0f} s, and the window that ends at "
                f"{format_instant(due)} is missing"
            )
            why = (
                ": its source may be silent, the workers gone, or the runner may have lost its source. This runner "
                "tells no counters here: look at its own pages; if nothing moves, stop the job and begin it anew"
            )
            yield Complaint(Cause.OVERDUE, said if look.known else said + why)

    def _nothing_new(self, look: Look) -> Iterator[Complaint]:
        # between two looks that are far apart nothing can be heard, and nothing is new in what cannot be read
        self._silent = {
            part
            for part, heartbeat in look.seen.heartbeats.items()
            if heartbeat.looked - max(heartbeat.heard, self.heard) > PATIENCE_S
            and (heartbeat.trouble is None or part in self._silent)
        }
        if self._silent:
            count = len(look.seen.heartbeats)
            parts = "" if count <= 1 else f" in {len(self._silent)} of its {count} parts"
            until = "" if self.pace.idle_us is None else " until live.idle has passed"
            yield Complaint(
                Cause.SILENT,
                f"the source has had nothing new for over {PATIENCE_S:.0f} s{parts}: is what feeds it away? "
                f"Its windows wait{until}",
            )

    def _unheard(self, look: Look) -> Iterator[Complaint]:
        """Sources of which no reading came yet hold the windows of all the others; only looks tell whether one did."""
        waiting = [heartbeat for heartbeat in look.seen.heartbeats.values() if heartbeat.waited_for]
        names = sorted({name for heartbeat in waiting for name in heartbeat.waited_for})
        self._awaited = self._awaited.at(look.now, names)
        if not names or max(heartbeat.looked for heartbeat in waiting) - self._awaited.since <= PATIENCE_S:
            return
        until = "they have one" if self.pace.idle_us is None else "live.idle has passed"
        yield Complaint(
            Cause.UNHEARD,
            f"no reading has come yet of {plural(len(names), 'source')} ({listed(names, _SHOWN)}): the windows wait "
            f"until {until}",
        )

    def _ahead(self, look: Look) -> Iterator[Complaint]:
        stamps = (heartbeat.latest_us for heartbeat in look.seen.heartbeats.values())
        latest = max((latest_us for latest_us in stamps if latest_us is not None), default=None)
        if latest is not None and latest > self.wall_us() + DAY_US:
            yield Complaint(
                Cause.AHEAD,
                f"a reading is stamped {format_instant(latest)}, over a day ahead of this machine's clock: a "
                "meter's clock may have jumped. Windows close by this machine's clock",
            )

    def _stalled(self, look: Look) -> Iterator[Complaint]:
        """Readings arrive, and none of them moves the clock past a window that is due by the clock on the wall."""
        clock_us, parts = look.clock_us, look.seen.heartbeats.values()
        arriving = any(one.heard and one.looked - one.heard <= PATIENCE_S for one in parts)
        waits = self._awaited.value or any(one.behind for one in parts) or self._waits_in_silence(look)
        if clock_us is None or not arriving or waits:
            self._slowest_us = Lasting()
            return
        looked = min(one.looked for one in parts if one.clock_us == clock_us)
        heard = max(one.heard for one in parts)
        if not self._stands(look.now, clock_us, looked, heard) or self._missing.value is None:
            return
        due, wall_us = self.due_us(self._missing.value), self.wall_us() - int((look.now - looked) * 1e6)
        if clock_us < due and due + self.pace.lateness_us + int(PATIENCE_S * 1e6) < wall_us:
            yield Complaint(
                Cause.STALLED,
                f"readings arrive, and the source's clock has stood at {format_instant(clock_us)} for "
                f"{look.now - self._slowest_us.since:.0f} s, so the window that ends at {format_instant(due)} waits: "
                "what arrives is older than that, or stamped over a day ahead",
            )

    def _waits_in_silence(self, look: Look) -> bool:
        """Whether the slowest part has nothing new: its clock waits for that."""
        parts = look.seen.heartbeats.items()
        return any(part in self._silent for part, one in parts if one.clock_us == look.clock_us)

    def _stands(self, now: float, clock_us: int, looked: float, heard: float) -> bool:
        """Whether polls, which alone show it, found that a clock stands. Far apart, they tell when it is over.

        What moved it last, as a file that ends within a window, is followed by nothing for a while: only readings that
        come later and leave it where it is tell of a stall.
        """
        if looked - self._looked > PATIENCE_S:
            self._close_looks = looked
        self._looked = looked
        self._slowest_us = self._slowest_us.at(looked, clock_us)
        since = self._slowest_us.since
        going_on = looked - max(since, self._close_looks) > PATIENCE_S
        rare = now - looked > _ANSWER_S and looked - since > PATIENCE_S
        return heard - since > PATIENCE_S and (going_on or rare)

    def _held(self, look: Look) -> Iterator[Complaint]:
        """The source has come past a window, and the runner has had its time to put it on record."""
        missing, clock_us = self._missing.value, look.clock_us
        if missing is None or clock_us is None or clock_us < self.due_us(missing):
            self._passed = Lasting()
            return
        self._passed = self._passed.at(look.now, missing)
        if look.now - self._passed.since > PATIENCE_S:
            text = (
                "the source has come past a window that is not on record: the runner holds it back or lost a part "
                f"of it ({look.seen.count('blocks-incomplete')} incomplete blocks were dropped). If it stays so, "
                "restart the job: it reads the source again and publishes what is missing"
            )
            yield Complaint(Cause.HELD, "" if look.known else text)

    def _stall_goes_on(self, look: Look) -> Iterator[Complaint]:
        """A clock that moved for a moment has not recovered: a stall is one episode until it has moved for a while."""
        if any(complaint.cause is Cause.STALLED for complaint in look.found):
            self._stall = look.now
        elif self._stall is not None:
            missing, clock_us = self._missing.value, look.clock_us
            past = missing is None or clock_us is None or clock_us >= self.due_us(missing)
            if past or self._waits_in_silence(look) or look.now - self._stall > _EPISODE_S:
                self._stall = None
            else:
                yield Complaint(Cause.STALLED, "")


def _sinks(look: Look) -> Iterator[Complaint]:
    """What sinks say that they wait for."""
    waits = look.seen.waits.items()
    yield from (Complaint(Cause.SINK, text, who, text) for who, text in waits if not who.startswith(LEDGER))


def _ledger(look: Look) -> Iterator[Complaint]:
    """Whether the ledger can be looked at, and what workers say that they wait for."""
    away = look.seen.away
    workers = next((text for who, text in look.seen.waits.items() if who.startswith(LEDGER)), None)
    if away is not None:
        said = f"the ledger of record cannot be looked at, and the job waits for it: {away}"
        yield Complaint(Cause.LEDGER, said, reason=away)
    elif workers is not None:
        yield Complaint(Cause.LEDGER, f"workers wait for the ledger of record: {workers}", reason=workers)


def _unanswered(look: Look) -> Iterator[Complaint]:
    """The runner or the ledger does not answer a call."""
    pending = look.seen.pending
    if pending is not None and (lasts := look.lasts(pending.since)) > (_ANSWER_S if look.still else PATIENCE_S):
        yield Complaint(pending.cause, _UNANSWERED[pending.cause].format(lasts))


_UNANSWERED = {
    Cause.LEDGER: (
        "the ledger of record has not answered for {:.0f} s, and the job waits for it: is its server, or the network "
        "to it, standing still?"
    ),
    Cause.RUNNER: (
        "the runner has not answered for {:.0f} s when it was asked how the job is, and no worker can go on without "
        "it: its process may have been stopped, or its machine has no time or memory for it"
    ),
}


def _lost(look: Look) -> Iterator[Complaint]:
    """The runner does not report."""
    if (lost := look.seen.lost) is not None:
        yield Complaint(Cause.RUNNER, f"{lost}. The job may run on there meanwhile, and is followed again then")


def _in_cluster(look: Look) -> Iterator[Complaint]:
    """The cluster says what is in the way of the job."""
    stuck = look.seen.stuck
    if stuck is not None and ((lasts := look.lasts(stuck.since)) > PATIENCE_S or stuck.sure):
        yield Complaint(stuck.cause, f"for {lasts:.0f} s, {stuck.text}" if lasts >= 1 else stuck.text, "cluster")


#: What every window needs.
_AROUND: tuple[Check, ...] = (_sinks, _ledger, _unanswered, _lost, _in_cluster)


def _unreadable(look: Look) -> Iterator[Complaint]:
    troubles = {heartbeat.trouble for heartbeat in look.seen.heartbeats.values() if heartbeat.trouble is not None}
    if troubles:
        said = "; ".join(sorted(troubles))
        text = f"the source cannot be read: {said}. Its windows wait; it is tried again"
        yield Complaint(Cause.SOURCE, text, reason=said)


def _left_out(look: Look) -> Iterator[Complaint]:
    """Sources that fell silent for so long that windows are closed without them."""
    names = sorted({name for heartbeat in look.seen.heartbeats.values() for name in heartbeat.left_out})
    if names:
        yield Complaint(
            Cause.LEFT_OUT,
            f"{plural(len(names), 'source')} ({listed(names, _SHOWN)}) had readings and none for live.idle: windows "
            "are closed without waiting, their rows say silent, and readings of them that come later are rejected as "
            "late",
        )


#: Seconds between two rounds.
BEAT_S = 2.0

#: Seconds between two looks at a cluster.
CLUSTER_S = 5.0

#: Seconds that the last round has to end.
_END_S = 5.0


#: Said of seconds.
STOOD_STILL = (
    "this process stood still for {:.0f} s: it was stopped, or its machine slept or had no time for it. What is seen "
    "counts from now on"
)


Cluster = Callable[[], Trouble | None]
"""Why the job cannot go on in its cluster; ``None`` if it can, or it is unknown."""


class WatchLoop:
    """Has the watchdog look every few seconds, says what it finds, and keeps the report for the metric.

    ``cluster`` says why the job cannot go on in its cluster, where that can be found out. Nothing else uses the dog.
    """

    def __init__(self, dog: Watchdog, say: Say, *, beat_s: float | None = None, cluster: Cluster | None = None) -> None:
        self._dog, self._say = dog, say
        self._beat_s = BEAT_S if beat_s is None else beat_s
        self._seen = Sight()
        self._pending: PendingCall | None = None
        self._cluster = cluster
        self._stuck: Stuck | None = None
        self._looked: float | None = None
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._rounds, name="quiltstream-watchdog", daemon=True)

    @contextmanager
    def rounds(self) -> Generator[None]:
        """Look every few seconds while the block runs."""
        self._thread.start()
        if self._cluster is not None:
            # it may take long to answer, and nothing waits for it
            ask = threading.Thread(
                target=self._questions, args=(self._cluster,), name="quiltstream-cluster", daemon=True
            )
            ask.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join(_END_S)

    def say(self, kind: str, text: str) -> None:
        """Tell news between those of the watchdog."""
        with self._lock:
            self._say(kind, text)

    @contextmanager
    def awaiting(self, cause: Cause) -> Generator[None]:
        """Call the runner or the ledger; that it does not answer is noticed meanwhile."""
        self._pending = PendingCall(cause, self._dog.clock())
        try:
            yield
        finally:
            self._pending = None

    def look(self, seen: Sight) -> None:
        """Have the watchdog look now, at what the follower of the job sees; the loop adds the rest."""
        with self._lock:
            self._seen = seen
            self._look()

    def _rounds(self) -> None:
        while not self._stop.wait(self._beat_s):
            # a closed output ends the job where it is written to next; the metric goes on until then
            with suppress(OSError, ValueError, OutputError), self._lock:
                self._look()

    def _questions(self, cluster: Cluster) -> None:
        while not self._stop.wait(CLUSTER_S):
            found, before = cluster(), self._stuck
            if found is None:
                self._stuck = None
            else:
                since = self._dog.clock() if before is None or before.cause is not found.cause else before.since
                self._stuck = Stuck(found.cause, found.text, found.sure, since=since)

    @property
    def given_up_s(self) -> float | None:
        """See :attr:`Watchdog.given_up_s`."""
        with self._lock:
            return self._dog.given_up_s

    def _look(self) -> None:
        now = self._dog.clock()
        stood_s = 0.0 if self._looked is None else now - self._looked - self._beat_s
        self._looked = now
        if stood_s > _STOOD_S:
            self._dog.begin_anew()
            self._say("warning", STOOD_STILL.format(stood_s))
        warnings = self._dog.look(
            replace(
                self._seen,
                heartbeats=Heartbeat.all(),
                waits=Heartbeat.complaints(),
                pending=self._pending,
                stuck=self._stuck,
            )
        )
        HEALTH_METRICS.note(self._dog.report, self._seen.tallies)
        for text in self._dog.over():
            self._say("resumed", text)
        for text in warnings:
            self._say("warning", text)
