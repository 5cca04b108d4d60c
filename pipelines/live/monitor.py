"""A running live job: progress on record, what is printed, how it is stopped, and how it ends."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Any, TypeVar

from apache_beam.runners.runner import PipelineState
from rich.console import Console

from ...schemas.errors import QuiltstreamError
from ...schemas.slots import format_instant
from ...store.errors import StoreAway, StoreError
from ...store.specs import Registration
from ...store.store import Store
from ...transforms.aggregate.ledger_access import give_up
from ...transforms.plan import Plan
from ...transforms.sources.progress import Heartbeat
from ...transforms.sources.reader import PollingPolicy
from ..commands import STOP_SIGNALS, keep_quiet, on_stop_signal, settled, stop_signals
from ..connectors.job_io import Output
from ..console import plural
from ..errors import CommandError, ExitCode, explain
from ..on_record import OnRecord, standing_in
from ..runners import counters
from .flink import APPEAR_S, OPTION, Ended, FlinkHealth, FlinkJob, RestAway, RestError, WorkerPool, aside
from .restarts import RunnerError, ended, failure_of, gone, is_away
from .runner import PrismRunner
from .watchdog import HEALTH_METRICS, Cause, Say, Sight, Trouble, Watchdog, WatchLoop


@dataclass(frozen=True, slots=True)
class LiveProgress:
    """Where a live job stands."""

    state: str  # of the job, as its runner says
    until: str | None  # end of the last window before the first that is missing; ``None`` if none is on record
    first_missing: int | None  # slot where the first missing window starts; ``None`` when the schedule is finished
    refused: int  # windows of the domain that were refused
    loss: float  # of the domain, epsilon
    budget: float | None  # of the domain

    @property
    def text(self) -> str:
        """It in words."""
        until = "no window is on record yet" if self.until is None else f"on record until {self.until}"
        refused = f", {plural(self.refused, 'window')} refused" if self.refused else ""
        budget = "" if self.budget is None else f" of {self.budget:g}"
        return f"{until}{refused}; loss {self.loss:.9g}{budget}"


class Follower:
    """Looks at what is on record for a live job, each time from where the last look stopped.

    Args:
        plan: the job.
        registration: what is on record for its query.

    Attributes:
        store: the ledger.
        registration: as given.
    """

    def __init__(self, plan: Plan, registration: Registration) -> None:
        self._plan = plan
        self.registration = registration
        self.store = Store(plan.address)
        self._start = registration.query.schedule.first

    def first_missing(self) -> int | None:
        """Slot where the first missing window starts; ``None`` when the schedule is finished."""
        found = next(self.store.missing(self.registration, start=self._start), None)
        if found is None:
            return None
        self._start = found[0].start
        return self._start

    def begin_us(self) -> int:
        """Windows that end by this instant are on record or refused."""
        schedule, first = self.registration.query.schedule, self.first_missing()
        if first is None:
            return self._plan.grid.time_of(schedule.covered.stop)
        return self._plan.grid.time_of(schedule.window_at(first).stop - 1)  # the window itself ends later

    def due_us(self, start: int) -> int:
        """End of the window that starts at a slot."""
        return self._plan.grid.time_of(self.registration.query.schedule.window_at(start).stop)

    def look(self, state: str) -> LiveProgress:
        """Where the job stands now."""
        schedule, first = self.registration.query.schedule, self.first_missing()
        done = len(schedule) if first is None else schedule.number_of(first) - schedule.number_of(schedule.first)
        until = self._plan.grid.time_of(schedule.over_at(schedule.number_of(schedule.first) + done - 1))
        account = standing_in(self.store, self._plan.domain.name)
        return LiveProgress(
            state=state,
            until=format_instant(until) if done else None,
            first_missing=first,
            refused=account.refused,
            loss=account.loss,
            budget=account.budget,
        )

    def record(self) -> OnRecord:
        """All that is on record now, up to the last window that has an entry, by the rosters on record now."""
        store, held = self.store, self.store.current(self.registration)
        entries = [entry for entry in store.entries(held.domain.name) if entry.query == held.query.name]
        charged = frozenset(entry.window_start for entry in entries if entry.decision == "charged")
        refused = frozenset(entry.window_start for entry in entries if entry.decision == "refused")
        last = max(charged, default=None)
        lacking = () if last is None else takewhile(lambda found: found[0].start <= last, store.missing(held))
        missing = {window.start for window, _ in lacking}
        return OnRecord(standing_in(store, held.domain.name), held, charged - missing, refused, charged)

    def close(self) -> None:
        """Close the store."""
        self.store.close()


#: Seconds between two looks at what is on record.
LOOK_S = 2.0

#: Seconds that a stopped job has to end what it was doing.
_END_S = 10.0

STOPPED = "stopped; what is on record stays"

#: Beam 2.62 lets a job that it cancels run on in Flink, and says that it is cancelled.
_RUNS_ON = (
    "its runner was asked to end it, and the job may run on in its cluster: look there and cancel it (Beam's job "
    f"server for Flink leaves that to you; with {OPTION} this command does it itself)"
)

#: Seconds that a runner has to report its counters once the job is cancelled.
_LAST_S = 3.0

_Answer = TypeVar("_Answer")

#: States of a job that is over, as Flink says them and as Beam does.
_STATES = {"FINISHED": PipelineState.DONE, "CANCELED": PipelineState.CANCELLED, "FAILED": PipelineState.FAILED}


class NotBegunError(QuiltstreamError):
    """A runner did not take a job; the cause says why."""


@dataclass(frozen=True)
class LiveJob:
    """A built pipeline and its monitors."""

    pipeline: Any  # the graph
    follower: Follower  # looks at what is on record
    pace: PollingPolicy  # when windows close
    before: OnRecord  # what was on record before
    restored: int  # blocks on record whose files were missing in the sink, and have been written
    here: bool = True  # whether the source is read in this process
    flink: FlinkJob | None = None  # its job in a Flink cluster whose REST address is known
    outputs: tuple[Output, ...] = ()  # what its steps write
    pool: WorkerPool | None = None  # starts its workers, where its address is known
    forgiven: frozenset[str] = frozenset()  # releases of the sink that are not on record, by the operator's word
    begun: Registration | None = None  # what was on record before, where it goes on with the state of another job
    may_end: bool = False  # whether its source may come to an end by itself, before the schedule does

    def look(self, state: str) -> LiveProgress:
        """Where it stands now.

        Raises:
            StoreError: the ledger of record cannot be looked at.
        """
        return self.follower.look(state)

    @property
    def is_left(self) -> bool:
        """Whether it outlives its command in its cluster."""
        return self.flink is not None and self.flink.leave

    def left(self, *, appear_s: float = 0.0) -> str | None:
        """What is to be said of it where it outlives its command and runs; ``None`` else (:meth:`.FlinkJob.left`)."""
        return self.flink.left(appear_s=appear_s) if self.flink is not None and self.is_left else None

    def is_over(self, first_missing: int | None) -> bool:
        """Whether nothing is missing that the job is to publish."""
        if first_missing is None:
            return True
        return self.pace.end_us is not None and self.follower.due_us(first_missing) > self.pace.end_us

    def let_go(self) -> None:
        """End a runner that was started for this job alone; whatever it says to that, another one takes its place."""
        runner = getattr(self.pipeline, "runner", None)
        if isinstance(runner, PrismRunner):
            with suppress(Exception):
                runner.let_go()


def follow(job: LiveJob, say: Say, *, look_s: float = LOOK_S) -> tuple[LiveProgress, dict[str, int] | None]:
    """Run a job; tell what is put on record and what the watchdog finds, until it ends or is stopped.

    Ctrl-C, SIGTERM and SIGHUP stop it. ``say`` tells a kind of news and the news; ``look_s`` seconds are between two
    looks.

    Returns:
        Where it stands at the end, and the runner's counters; ``None`` where it reports none.

    Raises:
        NotBegunError: the runner did not take the job; the cause says why.
        CommandError: the runner went away, or the job failed.
        StoreError: the ledger of record cannot be looked at.
    """
    Heartbeat.reset()
    settled()
    keep_quiet()
    HEALTH_METRICS.begin()
    failed = True
    try:
        found = _followed(job, say, look_s)
        failed = False
        return found
    finally:
        give_up()
        HEALTH_METRICS.end(failed=failed)


def _followed(job: LiveJob, say: Say, look_s: float) -> tuple[LiveProgress, dict[str, int] | None]:
    result: Any = None
    with stoppable() as arm:
        try:
            result = _begun(job)
            arm()  # Beam's runners put a handler of their own in place
            names = job.follower.registration
            say("start", f"{names.query.name} over {names.domain.name}; Ctrl-C stops it, and the next run goes on")
            if job.restored:
                say("sink", f"{plural(job.restored, 'block')} on record had no file in the sink; now they have")
            return _watch(result, job, say, look_s), _tallies(result)
        except KeyboardInterrupt:
            pass  # as long as the exception lives, so do the frames that it came through, and the locks that they hold
        except Exception:
            give_up()
            if not job.is_left:
                _stop(result)
                if job.flink is not None:
                    _tell(job.flink.end(), say)
            raise
        return _stopped(result, job, say)


def _stopped(result: Any, job: LiveJob, say: Say) -> tuple[LiveProgress, dict[str, int] | None]:
    """End a job at a signal: where it stands, and its counters."""
    STOP_SIGNALS.clear()  # the stop begins: an error from here on is a failure of its own
    give_up()
    early = None
    try:  # some runners tell nothing of a job once it is cancelled
        early = None if result is None else _within(_LAST_S, lambda: _tallies(result))
    finally:
        if not job.is_left:
            _stop(result)
    say("stop", STOPPED)
    if job.is_left:
        # what was being handed over may reach the cluster yet
        leave(job, say, appear_s=0.0 if result is not None else APPEAR_S)
    elif job.flink is not None:
        say("stop", f"waiting for {job.flink.where} to end its job; Ctrl-C again does not wait")
        # what was being handed over when it was stopped may reach the cluster yet
        _tell(job.flink.end(appear_s=APPEAR_S), say, always=True)
    elif result is not None and not job.here:
        say("warning", _RUNS_ON)
    tallies = None if result is None else _within(_LAST_S, lambda: _tallies(result))
    return _last_look(job), tallies or early


def _last_look(job: LiveJob) -> LiveProgress:
    """Where a job that was stopped stands.

    Raises:
        CommandError: the ledger cannot be looked at, or does not answer, which who stops a job does not wait for.
    """
    try:
        progress = _within(_END_S, lambda: job.follower.look(PipelineState.CANCELLED), raising=True)
    except StoreError as error:
        raise CommandError(f"{STOPPED}; what that is cannot be told: {error}", explain(error).code) from error
    if progress is None:
        raise CommandError(f"{STOPPED}; what that is cannot be told: the ledger does not answer", ExitCode.AWAY)
    return progress


def leave(job: LiveJob, say: Say, *, appear_s: float = 0.0) -> None:
    """Say where a job is that outlives its command, if it is one and runs."""
    if (text := job.left(appear_s=appear_s)) is not None:
        say("stop", text)


def _end_whole(result: Any, job: LiveJob, say: Say) -> None:
    """End a job of which everything is on record, and which its runner lets run on."""
    _stop(result)
    if job.flink is not None:
        _tell(job.flink.end(), say)
    elif not job.here:
        say("warning", f"everything is on record; {_RUNS_ON}")


def _tell(ended: Ended, say: Say, *, always: bool = False) -> None:
    """Say what became of a job in its cluster, if something had to be done for it or is left to be done."""
    if ended.end == "unknown":
        say("warning", ended.text)
    elif ended.cancelled or always:
        say("stop", ended.text)


def _begun(job: LiveJob) -> Any:
    try:
        return job.pipeline.run()
    except Exception as error:
        raise NotBegunError from error


def _watch(result: Any, job: LiveJob, say: Say, look_s: float) -> LiveProgress:
    dog = Watchdog(job.pace, time.monotonic(), job.follower.due_us, here=job.here)
    cluster = None
    if job.flink is not None:
        cluster = partial(_cluster_trouble, FlinkHealth(job.flink.place, job.flink.name, job.pool), job.flink)
    elif job.pool is not None and job.here:  # what its address means elsewhere is not known here
        cluster = job.pool.trouble
    watch_loop = WatchLoop(dog, say, cluster=cluster)
    with watch_loop.rounds():
        return _rounds(result, job, watch_loop, look_s)


def _cluster_trouble(health: FlinkHealth, flink: FlinkJob) -> Trouble | None:
    found = health.trouble()
    flink.seen |= health.seen
    return found


def _rounds(result: Any, job: LiveJob, watch_loop: WatchLoop, look_s: float) -> LiveProgress:
    printed = ""
    whole = float("inf")
    with watch_loop.awaiting(Cause.LEDGER):
        progress = job.follower.look(PipelineState.STARTING)
    while True:
        if STOP_SIGNALS:  # and Python dropped it
            raise KeyboardInterrupt
        with watch_loop.awaiting(Cause.RUNNER):
            state, lost = _state(result, job)
        if PipelineState.is_terminal(state) and state != PipelineState.DONE:
            raise _failure(result) if state == PipelineState.FAILED else ended(state)
        away = None
        try:
            with watch_loop.awaiting(Cause.LEDGER):
                progress = job.look(state)
        except StoreAway as error:
            # the workers need it too, and wait for it as well
            away = str(error)
        if progress.text != printed:
            printed = progress.text
            watch_loop.say("record", printed)
        if state == PipelineState.DONE and away is None:
            return progress
        if job.is_over(progress.first_missing):
            # some runners let a job run on whose source has ended
            whole = min(whole, time.monotonic())
            if time.monotonic() - whole > _END_S:
                _end_whole(result, job, watch_loop.say)
                return replace(progress, state=PipelineState.DONE)
        with watch_loop.awaiting(Cause.RUNNER):
            tallies = None if lost is not None or state == PipelineState.DONE else _tallies(result)
        watch_loop.look(Sight(progress.first_missing, tallies, away, lost))
        _check_workers(job, watch_loop)
        time.sleep(look_s)


def _check_workers(job: LiveJob, watch_loop: WatchLoop) -> None:
    """See that the workers of this process are not lost: their runner may say RUNNING all the same.

    Prism did after a pause of this process.
    """
    given_up_s = watch_loop.given_up_s if job.pace.together else None
    if given_up_s is not None:
        raise RunnerError(f"no worker has looked at the source for {given_up_s:.0f} s, and nothing was waited for")


def _failure(result: Any) -> CommandError:
    """What a job failed of; the texts of its runner stay in the cause, for --debug."""
    try:
        result.wait_until_finish()
    except Exception as error:  # noqa: BLE001 - a runner may raise anything
        failure = failure_of(error)
        failure.__cause__ = error
        return failure
    return RunnerError("the job failed, and its runner does not say of what")


def _state(result: Any, job: LiveJob) -> tuple[str, str | None]:
    """State of a job, and why it is unknown now, if it is; it is taken to run on then.

    Raises:
        CommandError: its runner has gone away for good, or took the job with it.
    """
    try:
        return str(result.state), None
    except Exception as error:
        if not job.here and job.flink is not None:
            try:
                state = job.flink.state()
            except RestAway as away:
                return PipelineState.RUNNING, f"{job.flink.where} does not answer: {away}"
            except RestError:
                state = None
            if state is not None:
                # Beam's job server knows of the job no more, and the cluster does
                return _STATES.get(state, PipelineState.RUNNING), None
        if not job.here and is_away(error):
            return PipelineState.RUNNING, "the server that is asked how the job is does not answer"
        raise gone(type(error).__name__, here=job.here) from error


def _tallies(result: Any) -> dict[str, int] | None:
    """The counters now: a portable runner's result keeps those of the first look for ever."""
    try:
        result._metrics = None  # noqa: SLF001 - see above; there is no other way to ask again
        return counters(result)
    except Exception:  # noqa: BLE001 - a runner without counters must not end the job
        return None


def _stop(result: Any) -> None:
    """Cancel a job and wait a while until its runner has let go."""
    deadline = time.monotonic() + _END_S

    def cancel() -> None:
        result.cancel()
        while not PipelineState.is_terminal(result.state) and time.monotonic() < deadline:
            time.sleep(0.1)

    if result is not None:
        _within(_END_S, cancel)  # the runner may have got the same signal, and be gone


def _within(seconds: float, call: Callable[[], _Answer], *, raising: bool = False) -> _Answer | None:
    """What is answered, or ``None`` after some seconds: Beam would wait for ever for a runner that stands still.

    An error is as good as no answer, unless ``raising``.
    """
    answer = aside(call, "quiltstream-calling")
    wait([answer], seconds)
    if not answer.done() or (answer.exception() is not None and not raising):
        return None
    return answer.result()


@contextmanager
def stoppable() -> Generator[Callable[[], None]]:
    """Make Ctrl-C, SIGTERM and SIGHUP a ``KeyboardInterrupt``; what is given does so anew."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    before = {one: signal.getsignal(one) for one in stop_signals()}

    def arm() -> None:
        for one in before:
            signal.signal(one, on_stop_signal)

    arm()
    try:
        yield arm
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
        if on_stop_signal not in before.values():
            STOP_SIGNALS.clear()


def event_printer(console: Console, *, as_json: bool) -> Say:
    """What tells news: a line each, or a line of JSON each."""

    def line(kind: str, text: str) -> None:
        console.print(f"{now()}  {kind:8}{text}", highlight=False, soft_wrap=True)

    def object_(kind: str, text: str) -> None:
        print_json(console, {"at": now(), "kind": kind, "text": text})

    return object_ if as_json else line


def print_json(console: Console, value: dict[str, Any]) -> None:
    """A value as a line of JSON."""
    console.print(json.dumps(value, ensure_ascii=False), highlight=False, soft_wrap=True, markup=False)


def now() -> str:
    """Current time, truncated to seconds, ISO 8601."""
    return format_instant(time.time_ns() // 1_000_000_000 * 1_000_000)
