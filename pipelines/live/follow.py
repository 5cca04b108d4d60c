"""A running live job: how it is watched and stopped, and how it ends."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from apache_beam.runners.runner import PipelineState

from ...schemas.slots import format_instant
from ...store.errors import StoreError
from ...transforms.aggregate.ledger_access import give_up
from ...transforms.sources.progress import Heartbeat
from ...transforms.sources.reader import PollingPolicy
from ..commands import STOP_SIGNALS, code_of, keep_quiet, on_stop_signal, settled, stop_signals
from ..connectors.job_io import Output
from ..console import plural
from ..errors import CommandError, ExitCode
from ..on_record import Follower, LiveProgress, OnRecord
from ..runners import counters
from .failures import check_dataflow, ended, failure_of, is_away, lost
from .flink import APPEAR_S, OPTION, FlinkJob, RestError, aside
from .runner import PrismRunner
from .watch import Health, News, Say, Sight, Watchdog

#: Seconds between two looks at what is on record, and at a cluster.
LOOK_S, _CLUSTER_S = 2.0, 5.0

#: Seconds that a stopped job has to end what it was doing, and its runner to report its counters.
_END_S, _LAST_S = 10.0, 3.0

STOPPED = "stopped; what is on record stays"

#: Beam 2.62 lets a job that it cancels run on in Flink, and says that it is cancelled.
_RUNS_ON = f"the job may run on in its cluster: look there and cancel it (with {OPTION} this command does it itself)"

#: States of a job that is over, as Flink says them and as Beam does.
_STATES = {"FINISHED": PipelineState.DONE, "CANCELED": PipelineState.CANCELLED, "FAILED": PipelineState.FAILED}

_Answer = TypeVar("_Answer")


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
    may_end: bool = False  # whether its source may come to an end by itself, before the schedule does

    def is_over(self, progress: LiveProgress) -> bool:
        """Whether nothing is missing that the job is to publish."""
        first = progress.first_missing
        return first is None or (self.pace.end_us is not None and self.follower.due_us(first) > self.pace.end_us)

    def check_whole(self, progress: LiveProgress) -> None:
        """See that nothing is missing that was to be published by a job whose runner says that it is done.

        Only the end of its source excuses it: windows that are not over then are left to the next one.
        """
        if progress.first_missing is None or self.is_over(progress):
            return
        due = self.follower.due_us(progress.first_missing)
        if self.may_end and (self.pace.end_us is None or due > time.time_ns() // 1_000):
            return
        text = f"the job ended as DONE, and the window that ends at {format_instant(due)} is not on record"
        if self.here:
            raise lost(f"{text}: its runner lost a part of it")
        raise CommandError(f"{text}: somebody stopped it, or its runner lost a part of it", ExitCode.FAILURE)


class Question(Generic[_Answer]):
    """What may never be answered, such as how the job is: asked aside, and once more when it was answered."""

    def __init__(self, ask: Callable[[], _Answer], every_s: float = 0.0) -> None:
        self._ask, self._every_s = ask, every_s
        self.answer: _Answer | None = None  # the newest
        self._asked: Future[_Answer] | None = None
        self._since = float("-inf")

    def look(self, seconds: float) -> None:
        """Ask, if it is time to, and wait for the answer for so long; what it raises is raised here."""
        if self._asked is None and time.monotonic() - self._since >= self._every_s:
            self._asked, self._since = aside(self._ask), time.monotonic()
        if self._asked is not None:
            wait([self._asked], seconds)
            if self._asked.done():
                asked, self._asked = self._asked, None
                self.answer = asked.result()

    @property
    def silent_s(self) -> float:
        """Seconds without an answer."""
        return 0.0 if self._asked is None else time.monotonic() - self._since


def follow(job: LiveJob, say: Say, health: Health, *, look_s: float) -> tuple[dict[str, int] | None, ExitCode | None]:
    """Run a job; tell what is put on record and what the watchdog finds, until it ends or Ctrl-C or SIGTERM stop it.

    Returns:
        The runner's counters, ``None`` where it reports none; the exit code of what stopped it, ``None`` at its own
        end.

    Raises:
        CommandError: the runner did not take the job or went away, or the job failed.
        StoreError: the ledger of record cannot be looked at.
    """
    Heartbeat.reset()
    settled()
    keep_quiet()
    result: Any = None
    stops = stop_signals()
    try:
        try:
            result = job.pipeline.run()
            for one in stops:  # Beam's runners put a handler of their own in place
                signal.signal(one, on_stop_signal)
            names = job.follower.registration
            say("start", f"{names.query.name} over {names.domain.name}; Ctrl-C stops it, and the next run goes on")
            if job.restored:
                say("sink", f"{plural(job.restored, 'block')} on record had no file in the sink; now they have")
            _rounds(result, job, say, health, look_s)
            return _tallies(result), None
        except KeyboardInterrupt:
            pass  # as long as the exception lives, so do the frames that it came through, and the locks that they hold
        except Exception as error:
            give_up()
            _end(result, job, say, last=isinstance(error, CommandError) and error.exit_code.final)
            if isinstance(error, StoreError):
                raise
            raise failure_of(error, job.outputs) from error
        code = code_of(STOP_SIGNALS)
        return _stopped(result, job, say), code
    finally:
        give_up()
        runner = getattr(job.pipeline, "runner", None)
        if isinstance(runner, PrismRunner):
            with suppress(Exception):  # whatever it says to that
                runner.let_go()


def _rounds(result: Any, job: LiveJob, say: Say, health: Health, look_s: float) -> None:
    runner, ledger = Question(lambda: (*_state(result, job), _tallies(result))), Question(job.follower.look)
    cluster = Question(job.flink.trouble if job.flink is not None else lambda: None, every_s=_CLUSTER_S)
    dog, news, over = Watchdog(job.pace, job.follower.due_us, here=job.here), News(say), None
    while True:
        if STOP_SIGNALS:  # and Python dropped it
            raise KeyboardInterrupt
        runner.look(look_s)
        cluster.look(0.0)
        state, away, tallies = runner.answer or (PipelineState.STARTING, None, None)
        done = state == PipelineState.DONE
        if PipelineState.is_terminal(state) and not done:
            raise _failed(result) if state == PipelineState.FAILED else ended(state)
        ledger_away = _look(ledger, say, look_s, waits=not done)
        progress = None if ledger.silent_s else ledger.answer
        if progress is not None and (done or job.is_over(progress)):
            # what was asked before the runner was done may lack the last window; and some let a job run on
            if over is not None and (done or time.monotonic() - over > _END_S):
                if not done:
                    _end(result, job, say, last=True)
                job.check_whole(progress)
                return
            over = over or time.monotonic()
        first = None if ledger.answer is None else ledger.answer.first_missing
        seen = Sight(first, tallies, ledger_away, away or cluster.answer, ledger.silent_s, runner.silent_s)
        news.of(dog.look(seen))
        health.note(dog, seen)
        if job.pace.together and dog.given_up_s is not None:  # Prism said RUNNING after a pause of this process
            raise lost(f"no worker has looked at the source for {dog.given_up_s:.0f} s, and nothing was waited for")
        time.sleep(0.0 if done else look_s)


def _look(ledger: Question[LiveProgress], say: Say, look_s: float, *, waits: bool) -> str | None:
    """Ask what is on record, and say what is new; why it is away, where it is waited for."""
    before = ledger.answer
    try:
        ledger.look(look_s)
    except StoreError as error:
        if not waits or ExitCode(error.exit_code) is not ExitCode.AWAY:
            raise
        return str(error)  # the workers need it too, and wait for it as well
    if ledger.answer is not None and (before is None or ledger.answer.text != before.text):
        say("record", ledger.answer.text)
    return None


def _failed(result: Any) -> BaseException:
    """What a job failed of, as its runner says it."""
    try:
        result.wait_until_finish()
    except Exception as error:  # noqa: BLE001 - a runner may raise anything
        return error
    return lost("its runner does not say of what")


def _state(result: Any, job: LiveJob) -> tuple[str, str | None]:
    """State of a job, and why it is unknown now, if it is; it is taken to run on then.

    Raises:
        CommandError: its runner has gone away for good, or took the job with it, or begins it again in vain.
    """
    try:
        state = str(result.state)
    except Exception as error:
        kind = type(error).__name__
        if job.here:
            raise lost(f"the runner has gone away ({kind})") from error
        if job.flink is not None:
            try:
                found = job.flink.state()
            except RestError as away:
                return PipelineState.RUNNING, f"{job.flink.where} does not answer: {away}"
            if found is None:
                raise lost(f"{job.flink.where} was begun anew and has lost the job") from error
            # Beam's job server knows of the job no more, and the cluster does
            return _STATES.get(found, PipelineState.RUNNING), None
        if is_away(error):
            return PipelineState.RUNNING, "the server that is asked how the job is does not answer"
        text = f"the server that was asked how the job is has gone away ({kind})"
        raise CommandError(f"{text}; {_RUNS_ON}", ExitCode.FAILURE) from error
    check_dataflow(result)
    return state, None


def _tallies(result: Any) -> dict[str, int] | None:
    """The counters now: a portable runner's result keeps those of the first look for ever."""
    try:
        result._metrics = None  # noqa: SLF001 - see above; there is no other way to ask again
        return counters(result)
    except Exception:  # noqa: BLE001 - a runner without counters must not end the job
        return None


def _end(result: Any, job: LiveJob, say: Say, *, last: bool = False, appear_s: float = 0.0) -> None:
    """End a job, unless it outlives its command; at the ``last`` it does not: all is done, or it fails for ever."""
    cancels = last or job.flink is None or not job.flink.leave

    def cancel() -> None:
        result.cancel()
        while not PipelineState.is_terminal(result.state):
            time.sleep(0.1)

    if result is not None and cancels:
        _within(_END_S, cancel)  # the runner may have got the same signal, and be gone
    if job.flink is not None:
        found = job.flink.end(cancel=cancels, appear_s=appear_s)
        if found.cancelled or not found.over:
            say("stop" if found.over or not cancels else "warning", found.text)
    elif result is not None and not job.here:
        say("warning", _RUNS_ON)


def _stopped(result: Any, job: LiveJob, say: Say) -> dict[str, int] | None:
    """End a job at a signal; its counters."""
    STOP_SIGNALS.clear()  # the stop begins: an error from here on is a failure of its own
    give_up()
    # some runners tell nothing of a job once it is cancelled
    early = None if result is None else _within(_LAST_S, lambda: _tallies(result))
    say("stop", STOPPED)
    # what was being handed over when it was stopped may reach the cluster yet
    _end(result, job, say, appear_s=0.0 if result is not None else APPEAR_S)
    tallies = None if result is None else _within(_LAST_S, lambda: _tallies(result))
    if _within(_END_S, job.follower.look) is None:
        raise CommandError(f"{STOPPED}; what that is cannot be told: the ledger does not answer", ExitCode.AWAY)
    return tallies or early


def _within(seconds: float, call: Callable[[], _Answer]) -> _Answer | None:
    """What is answered; ``None`` after some seconds, as Beam would wait for ever, and after an error."""
    answer = aside(call)
    wait([answer], seconds)
    return None if not answer.done() or answer.exception() is not None else answer.result()
