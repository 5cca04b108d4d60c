"""Why a live job publishes nothing, or soon will not: one of five causes, found within a minute.

A streaming job that lost its workers, its source or its clock does not fail; it just says RUNNING. :class:`Watchdog`
looks at signs of life: heartbeats of readers in this process or the runner's counters, what threads are at, which
window is missing on record, and whether runner and ledger answer at all. What it finds is printed once in a while, and
is on a page for Prometheus beside the runner's counts of readings and rejects, which are the operator's alone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from ...schemas.readings import RejectReason
from ...schemas.slots import format_instant
from ...transforms.common.batches import DECODED, DUPLICATES, OUTSIDE, counter_name
from ...transforms.sources.progress import LEDGER, Heartbeat, Work
from ...transforms.sources.reader import PollingPolicy
from ..console import listed, plural
from ..metrics_page import serve_metrics

if TYPE_CHECKING:
    from prometheus_client import Metric

#: Seconds without a sign of life before it is said. Readers in this process give one in ten seconds at least, however
#: slow the poll is; those elsewhere with each look only, of which three may be missed.
PATIENCE_S, _LOOKS = 30.0, 3

#: Seconds that something may take before it explains why no worker looks, and between two looks of the watchdog beyond
#: which this process itself stood still.
_ANSWER_S = 10.0

#: Seconds before the same is said again, and before it is where its words are others.
_REPEAT_S, _CHANGED_S = 300.0, 30.0

#: Seconds for which no worker looks, and nothing moves or is waited for, before the job's workers are given up.
_GIVEN_UP_S = 300.0

#: Sources that a message names at most; the runner's counter of looks, without which it tells no counters.
_SHOWN, _POLLS = 3, "polls"

_NUMBERS = re.compile(r"\d+")


class Say(Protocol):
    """Tells news."""

    def __call__(self, kind: str, text: str, cause: Cause | None = None) -> None:
        """Tell a kind of news, the news, and the cause that it is about."""
        ...


class Cause(StrEnum):
    """Why a live job publishes nothing, or soon will not."""

    NO_WORKER = "no-worker"
    SOURCE = "source-away"
    SILENT = "source-silent"
    OVERDUE = "window-overdue"
    LEDGER = "ledger-away"


#: What is said when it is over.
_WELL = {
    Cause.NO_WORKER: "workers look at the source again",
    Cause.SOURCE: "the source can be read again",
    Cause.SILENT: "the source has something new again",
    Cause.OVERDUE: "windows are put on record again",
    Cause.LEDGER: "the ledger of record answers again",
}


@dataclass(frozen=True, slots=True)
class Sight:
    """What is seen of a live job."""

    first_missing: int | None = None  # slot of the first window that is not on record
    tallies: Mapping[str, int] | None = None  # the runner's counters; ``None`` where it reports none
    ledger: str | None = None  # why the ledger could not be looked at; ``None`` if it could
    cluster: str | None = None  # why the job cannot go on in its runner, as that says; ``None`` if it does not
    ledger_s: float = 0.0  # seconds for which the ledger has not answered a question
    runner_s: float = 0.0  # the same of the runner
    # of this process: readers, sinks and workers that wait, in their own words, and what its threads are at
    heartbeats: Mapping[int, Heartbeat] = field(default_factory=Heartbeat.all)
    waits: Mapping[str, str] = field(default_factory=Heartbeat.complaints)
    work: tuple[Work, ...] = field(default_factory=Heartbeat.work)

    @property
    def clock_us(self) -> int | None:
        """How far the slowest part of the source has come; ``None`` if none tells."""
        return min((one.clock_us for one in self.heartbeats.values() if one.clock_us is not None), default=None)


Lasting = tuple[object, float]
"""A value, and the seconds since when it has not changed."""


def _at(before: Lasting, now: float, value: object) -> Lasting:
    return before if before[0] == value else (value, now)


@dataclass
class Watchdog:
    """Finds what is wrong with a live job by what it sees now and saw before.

    What explains the rest is looked for first: where the ledger or the workers are away, nothing else is asked.
    """

    pace: PollingPolicy  # when windows close
    due_us: Callable[[int], int]  # end of the window that starts at a slot
    here: bool = True  # whether the readers are in this process, so that their heartbeat is missed when there is none
    clock: Callable[[], float] = time.monotonic  # monotonic seconds; the tests' own
    wall_us: Callable[[], int] = lambda: time.time_ns() // 1_000  # wall clock in microseconds; the tests' own

    found: dict[Cause, str] = field(default_factory=dict[Cause, str])  # all that the last look found, in words
    worker_s: float | None = None  # seconds since a worker looked at the source; ``None`` where that cannot be seen

    _heard: float | None = None  # from when on spans of time count
    _blocked: bool = False  # whether something that every window needs was away
    _last_look: float = 0.0
    _polls: int = 0  # of readers elsewhere
    _polled: float | None = None  # when their number rose last
    _missing: Lasting = (None, 0.0)  # slot of the first window that is not on record
    _passed: Lasting = (None, 0.0)  # the same, while the source has come past it
    _clock: Lasting = (None, 0.0)  # how far the slowest part of the source has come, by its looks
    _dead: Lasting = (None, 0.0)  # what is on record and counted, while no worker looks

    def look(self, seen: Sight) -> dict[Cause, str]:
        """What is wrong now, in words."""
        now = self.clock()
        if self._heard is None or now - self._last_look > _ANSWER_S:
            # the beginning; or this process stood still (SIGSTOP, a machine that slept) and could hear nothing
            self._heard, self._passed, self._dead = now, (None, 0.0), (None, 0.0)
        self._last_look = now
        self._missing = _at(self._missing, now, seen.first_missing)
        if (polls := (seen.tallies or {}).get(_POLLS, 0)) > self._polls:
            self._polls, self._polled = polls, now
        self.worker_s = self._since_a_look(seen, now)
        patience_s = PATIENCE_S if self.here else max(PATIENCE_S, _LOOKS * self.pace.poll_s)
        still = self.worker_s is not None and self.worker_s > patience_s
        around = dict(self._around(seen, still=still))
        if still or around:
            # what only workers tell stays as it was
            kept = {cause: text for cause, text in self.found.items() if cause in (Cause.SOURCE, Cause.SILENT)}
            self._passed, self._blocked, self.found = (None, 0.0), True, kept | around
        else:
            if self._blocked:
                self._heard, self._blocked = now, False  # what stood meanwhile has its time
            self.found = dict(self._of_workers(seen, now))
        moved = seen.first_missing, *sorted((seen.tallies or {}).items())
        dead = still and self.here and set(around) == {Cause.NO_WORKER} and not seen.work
        self._dead = _at(self._dead, now, moved if dead else None)
        return self.found

    @property
    def given_up_s(self) -> float | None:
        """Seconds since a worker of this process looked, where nothing moves and nothing is waited for, for long."""
        dead = self._dead[0] is not None and self.clock() - self._dead[1] > _GIVEN_UP_S
        return self.worker_s if dead else None

    def _since_a_look(self, seen: Sight, now: float) -> float | None:
        if not self.here and not seen.heartbeats and self._polled is None:
            return None
        looks = [self._heard or now, self._polled or 0.0, *(one.beaten for one in seen.heartbeats.values())]
        return now - max(looks)

    def _around(self, seen: Sight, *, still: bool) -> Iterator[tuple[Cause, str]]:
        """Whether what every window needs is there: the ledger, the sink and workers."""
        longest_s = _ANSWER_S if still else PATIENCE_S
        now = self.clock()
        long = sorted((max(one.since, self._heard or now) - now, one.what) for one in seen.work)
        silent_s = max([seen.ledger_s, *(-since for since, what in long if what.startswith(LEDGER))])
        said = seen.ledger or next((text for who, text in seen.waits.items() if who.startswith(LEDGER)), None)
        if said is None and silent_s > _ANSWER_S:
            said = f"it has not answered for {silent_s:.0f} s"
        if said is not None:
            yield Cause.LEDGER, f"the ledger of record is away, and the job waits for it: {said}"
        sinks = [text for who, text in seen.waits.items() if not who.startswith(LEDGER)]
        if sinks:
            yield Cause.OVERDUE, f"windows wait for the sink: {'; '.join(sinks)}"
        if seen.cluster is not None:
            yield Cause.NO_WORKER, seen.cluster
        elif seen.runner_s > longest_s:
            text = f"the runner has not answered for {seen.runner_s:.0f} s, and no worker can go on without it"
            yield Cause.NO_WORKER, text
        elif still and said is None and not sinks:
            at = next(((what, -since) for since, what in long if -since > _ANSWER_S), None)
            busy = "" if at is None else f"; one has been at the {at[0]} for {at[1]:.0f} s"
            yield Cause.NO_WORKER, f"no worker has looked at the source for {self.worker_s or 0.0:.0f} s{busy}"

    def _of_workers(self, seen: Sight, now: float) -> Iterator[tuple[Cause, str]]:
        """What workers tell: whether the source can be read, has something new, and moves its clock."""
        parts = seen.heartbeats.values()
        if troubles := {one.trouble for one in parts if one.trouble is not None}:
            yield Cause.SOURCE, f"the source cannot be read, and is tried again: {'; '.join(sorted(troubles))}"
        if silent := self._silent(seen):
            yield Cause.SILENT, silent
        clock_us, missing = seen.clock_us, seen.first_missing
        looked = max((one.looked for one in parts if one.clock_us == clock_us), default=now)
        self._clock = _at(self._clock, looked, clock_us)
        due = None if missing is None else self.due_us(missing)
        passed = due is not None and clock_us is not None and clock_us >= due
        self._passed = _at(self._passed, now, missing if passed else None)
        if due is None:
            return
        if passed and now - self._passed[1] > PATIENCE_S:
            text = f"the source has come past the end of the window that ends at {format_instant(due)}, which is not on"
            yield Cause.OVERDUE, f"{text} record: the runner holds it back or lost a part of it"
        waits_us = self.pace.lateness_us + (self.pace.idle_us or 0) + int((self.pace.poll_s + PATIENCE_S) * 1e6)
        late = due + waits_us < self.wall_us() and now - max(self._missing[1], self._heard or now) > PATIENCE_S
        stands = clock_us is None or looked - max(self._clock[1], self._heard or now) > PATIENCE_S
        if late and stands and not (passed or troubles or silent or any(one.behind for one in parts)):
            why = "" if clock_us is None else f"; readings arrive, and none is later than {format_instant(clock_us)}"
            yield Cause.OVERDUE, f"the window that ends at {format_instant(due)} is not on record{why}"

    def _silent(self, seen: Sight) -> str | None:
        """Whether the source, or a part of it, has had nothing new for a while; a part that cannot be read has not."""
        parts = seen.heartbeats.values()
        heard = self._heard or 0.0
        silent = sum(one.trouble is None and one.looked - max(one.heard, heard) > PATIENCE_S for one in parts)
        if not silent:
            return None
        within = "" if len(parts) == 1 else f" in {silent} of its {len(parts)} parts"
        text = f"the source has had nothing new for over {PATIENCE_S:.0f} s{within}: its windows wait"
        text += "" if self.pace.idle_us is None else " until live.idle has passed"
        names = sorted({name for one in parts for name in one.waited_for})
        unheard = f"; no reading has come yet of {plural(len(names), 'source')} ({listed(names, _SHOWN)})"
        return text + (unheard if names else "")


@dataclass
class News:
    """Says what is wrong, each again after a while, and once that it is over."""

    say: Say
    clock: Callable[[], float] = time.monotonic  # monotonic seconds; the tests' own
    _told: set[Cause] = field(default_factory=set[Cause])  # those that hold and were said since they began
    _said: dict[Cause, tuple[float, str]] = field(default_factory=dict[Cause, "tuple[float, str]"])

    def of(self, found: Mapping[Cause, str]) -> None:
        """Say what is new of all that holds now."""
        now = self.clock()
        for cause in sorted(self._told - found.keys()):
            self.say("resumed", _WELL[cause], cause)
            if cause is not Cause.SILENT:  # a source that is often silent for a while is not said each time
                del self._said[cause]
        self._told &= found.keys()
        for cause, text in found.items():
            at, before = self._said.get(cause, (float("-inf"), ""))
            plain = _NUMBERS.sub("", text)
            if now - at >= (_CHANGED_S if plain != before and cause in self._told else _REPEAT_S):
                self._said[cause] = now, plain
                self._told.add(cause)
                self.say("warning", text, cause)


#: The runner's counters that the page tells, and what is said of them.
_COUNTED = {
    DECODED: ("readings", "Readings that were decoded, by the runner's counters"),
    OUTSIDE: ("outside_schedule", "Readings before or after the schedule"),
    DUPLICATES: ("duplicates", "Readings in a cell that had one"),
    "blocks-incomplete": ("blocks_incomplete", "Blocks dropped because their source had not declared them complete"),
    "sources-left-out": ("sources_left_out", "How often a source fell silent and was not waited for any more"),
}


@dataclass
class Health:
    """What the page of a live job tells."""

    now: Callable[[], float] = time.time  # seconds since 1970; the tests' own
    found: frozenset[Cause] = frozenset()
    worker_s: float | None = None
    clock_us: int | None = None
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    looked: float | None = None
    begun: float = field(init=False)

    def __post_init__(self) -> None:
        """Begin now."""
        self.begun = self.now()

    def note(self, dog: Watchdog, seen: Sight) -> None:
        """Keep what was found now, and the runner's counters where it reports them."""
        self.found, self.worker_s, self.clock_us = frozenset(dog.found), dog.worker_s, seen.clock_us
        self.looked = self.now()
        if seen.tallies is not None and _POLLS in seen.tallies:
            self.counts = dict(seen.tallies)

    def collect(self) -> Iterator[Metric]:
        """It as metrics."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415 - an extra

        gauges = {
            "begun_seconds": ("When the command began, seconds since 1970", self.begun),
            "looked_seconds": ("When the watchdog looked, seconds since 1970", self.looked),
            "worker_silent_seconds": ("Seconds since a worker looked at the source", self.worker_s),
            "clock_seconds": (
                "How far the slowest part of the source has come, seconds since 1970",
                None if self.clock_us is None else self.clock_us / 1e6,
            ),
        }
        for name, (about, value) in gauges.items():
            if value is not None:
                yield GaugeMetricFamily(f"quiltstream_live_{name}", about, value=value)
        trouble = GaugeMetricFamily("quiltstream_live_trouble", "Whether this cause holds now", labels=["cause"])
        for cause in Cause:
            trouble.add_metric([cause.value], cause in self.found)
        yield trouble
        if not self.counts:
            return
        for counter, (name, about) in _COUNTED.items():
            yield CounterMetricFamily(f"quiltstream_live_{name}", about, value=self.counts.get(counter, 0))
        rejected = CounterMetricFamily("quiltstream_live_rejected", "Rejected readings, by reason", labels=["reason"])
        for reason in RejectReason:
            rejected.add_metric([reason.value], self.counts.get(counter_name(reason), 0))
        yield rejected


@contextmanager
def health_page(port: int | None, say: Say) -> Generator[Health]:
    """What the watchdog finds, served on the loopback address if a port is given.

    Raises:
        CommandError: the port is taken, or not to be had.
    """
    health = Health()
    if port is None:
        yield health
        return
    with serve_metrics(port, health.collect, "live.metrics_port") as served:
        say("metrics", f"what the watchdog finds is at 127.0.0.1:{served}/metrics")
        yield health
