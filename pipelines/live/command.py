"""``quiltstream run --live``: a source that never ends to private histograms on record, window by window.

While it runs, what is on record is looked at every few seconds and printed; a watchdog says when the job has stopped
producing. A job that its runner failed is begun again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from apache_beam.runners.runner import PipelineState

from ...schemas.settings.job import Accepted, Settings, read_settings
from ...schemas.slots import format_instant
from ...store.errors import StoreAway
from ...transforms.plan import make_plan, model_of
from ...transforms.private_histograms import PrivateHistograms
from ..commands import STOP_SIGNALS
from ..commands.run import summary_of
from ..connectors.files import labelled_so_far
from ..console import results
from ..errors import AwayError, CommandError, ExitCode
from ..estimation import estimated_plan
from ..on_record import with_ledger, with_newest
from ..preflight import Word, check_command
from .flink import APPEAR_S, FlinkJob, RestAway, RestError
from .job import LiveWay, live_job
from .monitor import (
    LOOK_S,
    STOPPED,
    LiveJob,
    LiveProgress,
    NotBegunError,
    event_printer,
    follow,
    leave,
    now,
    print_json,
    stoppable,
)
from .restarts import Restarts, RunnerError, Waits, failure_at_restart, failure_of, is_away
from .watchdog import Say, health_page

_Answer = TypeVar("_Answer")


def run_live(
    path: Path,
    beam_options: Sequence[str],
    *,
    as_json: bool,
    history_lost: bool = False,
    accepted: Accepted = Accepted(),  # noqa: B008 - a frozen value
) -> int:
    """Run a settings file until its schedule ends, its source ends, or somebody stops it; return the exit code."""
    settings = read_settings(path).accepting(accepted)
    way = LiveWay()
    check_command(settings, beam_options, way)
    say = event_printer(results(), as_json=as_json)
    with with_newest(settings), health_page(settings.live.metrics_port, say):
        word = Word(history_lost=history_lost)
        estimate = settings.estimate
        if estimate is None:
            histograms = PrivateHistograms(settings, model=labelled_so_far(settings, model_of(settings)))
        else:
            # what is on record is looked for before a job is built
            settings, emptied = with_ledger(settings, history_lost=history_lost)
            word = replace(word, emptied=emptied)
            histograms = PrivateHistograms.of(estimated_plan(settings, estimate, way, word))
        return run_to_end(settings, histograms, beam_options, LiveOptions(as_json=as_json, word=word))


@dataclass(frozen=True)
class LiveOptions:
    """What the operator chose for a live run."""

    as_json: bool = False  # print lines of JSON, the summary last
    word: Word = field(default_factory=Word)  # about a ledger that lacks what was published
    look_s: float = LOOK_S  # seconds between two looks at what is on record


def run_to_end(
    settings: Settings,
    histograms: PrivateHistograms,
    beam_options: Sequence[str],
    opts: LiveOptions,
) -> int:
    """Run a live job until its end, print what it did, and return the exit code.

    Raises:
        SettingsError: the settings do not make a live job.
        CommandError: the job failed, or cannot be begun.
        StoreError: the ledger of record cannot be used, or does not fit the job.
    """
    console = results()
    say = event_printer(console, as_json=opts.as_json)
    job = live_job(settings, histograms, beam_options, opts.word)
    # every later opening insists on the ledger that this job began with
    ledger = job.follower.store.address
    settings = settings.changed({"ledger_id": ledger.store_id})
    histograms = histograms.in_ledger(ledger, begun=job.begun)
    ran = Ran(None, stopped=True)
    restarts = Restarts(settings.live.restarts, once=settings.source is not None and bool(settings.source.stdin))
    waits = Waits(say)
    again = partial(_begun_again, settings, histograms, beam_options, job.forgiven)
    with closing(job.follower):
        try:
            with stoppable():
                ran = _run(job, again, restarts, waits, opts.look_s)
                after = _patiently(job.follower.record, waits) if not ran.stopped else None
        except KeyboardInterrupt:
            STOP_SIGNALS.clear()
            say("stop", STOPPED)
            after = None
        after = job.follower.record() if after is None else after
    summary = summary_of(settings, histograms, job.before, after, ran.tallies, live=True)
    if opts.as_json:
        print_json(console, {"at": now(), "kind": "summary", "restarts": restarts.count, **summary.to_dict()})
    else:
        summary.show(console)
    return summary.code


@dataclass(frozen=True)
class Ran:
    """What a runner did."""

    tallies: dict[str, int] | None  # its counters; ``None`` where it reports none
    stopped: bool  # whether somebody stopped it


def _run(job: LiveJob, again: Callable[[], LiveJob], restarts: Restarts, waits: Waits, look_s: float) -> Ran:
    """Run a job to its end; where its runner failed it, ``again`` makes it once more, for what is missing then.

    Raises:
        CommandError: it failed for good, or did not publish what was due.
    """
    say = waits.say
    running: LiveJob | None = job
    try:
        while True:
            try:
                if running is None:
                    running = _made(again)
                    waits.over()
                # the record of the first is looked at once more when all is over
                with nullcontext() if running is job else closing(running.follower):
                    return _followed(running, say, look_s, first=running is job)
            except AwayError as away:
                restarts.check(away)
                waits.wait(away)
                failed: CommandError = away
            except RunnerError as error:
                pause = restarts.pause(error)
                say("restart", f"{error.symptom}; begun again in {pause:g} s, number {restarts.count} of this run")
                time.sleep(pause)
                failed = error
            gone, running = running, None
            _see_over(gone, failed, waits)
    except BaseException:
        # stopped between two jobs, or failed for good
        if running is not None:
            leave(running, say)
        raise


def _followed(job: LiveJob, say: Say, look_s: float, *, first: bool) -> Ran:
    """Run one job to its end; what its runner refuses of the ``first`` it will refuse again.

    Raises:
        RunnerError: it failed by what may go by.
        CommandError: it failed, or did not publish what was due.
    """
    try:
        progress, tallies = follow(job, say, look_s=look_s)
        _check_whole(progress, job)
    except NotBegunError as error:
        cause = error.__cause__ or error
        if first:
            raise cause from None
        raise _not_taken(cause, job) from cause
    except Exception as error:
        failure = _alone(failure_of(error, job.outputs), job)
        if failure is error:
            raise
        raise failure from error
    finally:
        job.let_go()
    return Ran(tallies, progress.state == PipelineState.CANCELLED)


def _alone(failure: CommandError, job: LiveJob) -> CommandError:
    """The failure of a job, as one that is not begun again where the job may run on in its cluster.

    A cluster that only does not answer is tried again until it does.
    """
    flink = job.flink
    if flink is None or flink.ended is None or not isinstance(failure, (RunnerError, AwayError)):
        return failure
    if flink.ended.end == "absent" and flink.seen and isinstance(failure, RunnerError):
        return AwayError(f"{flink.where} was begun anew and has lost the job", failure.code, "cluster")
    if flink.ended.end != "unknown":
        return failure
    if flink.ended.away:
        said = failure.symptom if isinstance(failure, RunnerError) else str(failure)
        return AwayError(f"{said}; and {flink.where} does not answer", failure.code, "cluster")
    return CommandError(f"{failure}. It is not begun again by itself: {flink.ended.text}", failure.code)


def _see_over(job: LiveJob | None, failed: CommandError, waits: Waits) -> None:
    """See that a job is over in its cluster before another takes its place; a cluster that is away is waited for.

    One that is to be left there and runs on is sound, whatever went wrong on the way to it: it is neither ended nor
    doubled.
    """
    if job is None or job.flink is None:
        return
    if job.is_left:
        _await(job.flink, waits, failed.code)
    while job.flink.ended is not None and job.flink.ended.end == "unknown":
        if not job.flink.ended.away:
            text = f"{failed}. It is not begun again by itself: {job.flink.ended.text}"
            raise CommandError(text, failed.code) from failed
        _await(job.flink, waits, failed.code)
        job.flink.end()
    if (text := job.left(appear_s=APPEAR_S)) is not None:
        raise CommandError(f"{failed}. It is not begun again by itself: {text}", failed.code) from failed


def _await(flink: FlinkJob, waits: Waits, code: ExitCode) -> None:
    """Wait until a cluster answers."""
    while True:
        try:
            flink.state()
        except RestAway as error:
            waits.wait(AwayError(f"{flink.where} does not answer: {error}", code, "cluster"))
        except RestError:
            return  # it answers something, which is reported where it is used
        else:
            return


def _not_taken(cause: BaseException, job: LiveJob) -> CommandError:
    """Why a job that ran before was not taken once more."""
    if job.here:
        return failure_of(cause)
    where = "the server that takes jobs"
    away = is_away(cause)
    if job.flink is not None:
        where = job.flink.where
        try:
            job.flink.state()
        except RestAway:
            away = True
        except RestError:
            pass
    return AwayError(f"{where} does not answer", ExitCode.FAILURE, "cluster") if away else failure_of(cause)


def _patiently(call: Callable[[], _Answer], waits: Waits) -> _Answer:
    """What the ledger answers once it does."""
    while True:
        try:
            return call()
        except StoreAway as error:
            waits.wait(AwayError(str(error), ExitCode.AWAY, "ledger"))


def _made(again: Callable[[], LiveJob]) -> LiveJob:
    try:
        return again()
    except Exception as error:
        raise failure_at_restart(error) from error


def _begun_again(
    settings: Settings,
    histograms: PrivateHistograms,
    beam_options: Sequence[str],
    forgiven: frozenset[str],
) -> LiveJob:
    """The same job once more; its roster is read again, which may have changed meanwhile."""
    plan = histograms.plan
    now = make_plan(settings, plan.model, noise=plan.noise).with_sigma(plan.calibration.sigma)
    if now.roster != plan.roster:
        histograms = PrivateHistograms.of(now).in_ledger(now.address, now.memory, histograms.begun)
    return live_job(settings, histograms, beam_options, Word(forgiven=forgiven))


def _check_whole(progress: LiveProgress, job: LiveJob) -> None:
    """See that nothing is missing that a job was to publish, when its runner says that it is done.

    Only the end of its source excuses a job: windows that are not over then are left to the next one, and those of an
    endless schedule wait.

    Raises:
        RunnerError: something is, and only its runner can have stopped the job.
        CommandError: something is.
    """
    first = progress.first_missing
    if progress.state != PipelineState.DONE or first is None or job.is_over(first):
        return
    due = job.follower.due_us(first)
    if job.may_end and (job.pace.end_us is None or due > time.time_ns() // 1_000):
        return
    what = f"the job ended as DONE, and the window that ends at {format_instant(due)} is not on record"
    if job.here:
        raise RunnerError(f"{what}: its runner lost a part of it")
    raise CommandError(
        f"{what}: the job was stopped, or its runner lost a part of it; run it again: it reads the source again "
        "and publishes what is missing",
        ExitCode.FAILURE,
    )
