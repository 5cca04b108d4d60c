"""``quiltstream run --live``: a source that never ends to private histograms on record, window by window.

The graph is ``ReadLive``, ``PrivateHistograms``, ``WriteBlocks``. While it runs, what is on record is looked at every
few seconds and told; a watchdog says when the job has stopped producing. A job that its runner failed is begun again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.runners.runner import PipelineState

from ..schemas.settings import RejectSink, Settings, SettingsError, read_settings
from ..schemas.slots import Schedule, SlotGrid, format_instant, parse_duration
from ..store.address import StoreAddress
from ..store.records import Store
from ..store.specs import Noise, Registration
from ..transforms.files import everywhere
from ..transforms.histograms import PrivateHistograms, check_live
from ..transforms.hosts import check_hosts
from ..transforms.live.reader import Pace
from ..transforms.live.sinks import WriteBlocks, WriteLetters, WriteRejects
from ..transforms.message_sink import SendRejects, SendReleases
from ..transforms.plan import Plan, make_plan, model_of
from ..transforms.survey import register
from ..transforms.tickets import Steps
from .console import plural, results
from .drifting import DriftWatch
from .engine import options_of, runner_name
from .exits import ExitCode
from .failures import CommandError
from .flink_rest import FlinkJob, flink_job
from .following import Follower, LiveStanding
from .generations import Generation, decide, generation_of
from .kafka_source import check_source
from .live_engine import check_ends, check_standard_input, live_pipeline, live_source, on_prism, reads_here
from .live_places import SinkPlace, check_folders, sink_of, sink_place
from .live_run import LOOK_S, STOPPED, LiveJob, NotBegunError, Say, follow, stoppable
from .message_places import message_topic
from .origins import labelled_so_far
from .places import check_apart
from .pubsub_places import begun_in_subscription
from .record import Unknown, check_history, check_ledger, note_lost_history, unknown_releases
from .restarts import Restarts, RunnerError, failure_of
from .run import show, summary_of, with_live
from .spoken import now, print_json, speaker
from .verdict import verdict_page

#: Looks of the reader in one call, and seconds that it may last, where a runner keeps every call.
_STAY_LOOKS = 10
_SHORTEST_STAY_S = 5.0
_LONGEST_STAY_S = 10.0

#: Seconds between two calls on such a runner. Flink with Beam 2.62 leaves out their fractions, and forgets what it is
#: to take up again at once: the rest of a backlog of two million readings was lost in all of four jobs.
_REST_S = 1.1


def pace_of(settings: Settings, grid: SlotGrid, schedule: Schedule, begin_us: int) -> Pace:
    """When the settings close windows of a schedule, and from where on."""
    live, lateness = settings.live, settings.windows.lateness
    end = grid.time_of(schedule.covered.stop) if schedule.bounded else None
    return Pace(
        begin_us=begin_us,
        lateness_us=0 if lateness is None else parse_duration(lateness),
        idle_us=None if live.idle is None else parse_duration(live.idle),
        poll_s=parse_duration(live.poll) / 1e6,
        end_us=end,
        steps=Steps.of(grid, schedule),
    )


def stay_of(poll_s: float) -> float:
    """How long a call of the reader goes on looking, on runners other than Prism.

    Flink's portable runner keeps whatever is handed back to it for ever (Beam's issue 27648). A checkpoint waits for
    the call's end, so it is not longer than :data:`_LONGEST_STAY_S`.
    """
    return min(max(_STAY_LOOKS * poll_s, _SHORTEST_STAY_S), _LONGEST_STAY_S)


def live_job(
    settings: Settings,
    histograms: PrivateHistograms,
    beam_options: Sequence[str],
    *,
    history_lost: bool = False,
    until_us: int | None = None,
) -> LiveJob:
    """Build the graph of a live job; its query is put on record first, and the sink gets what it lacks of the record.

    Args:
        settings: the job.
        histograms: made from them.
        beam_options: Beam's, as words.
        history_lost: go on although the sink holds releases that are not on record.
        until_us: instant at which to end, with the windows that end by then, though the schedule goes on.

    Raises:
        SettingsError: the settings do not make a live job.
        CommandError: the runner cannot be used, or the sink holds something else or releases that are not on record.
        StoreError: the ledger of record cannot be used, or does not fit the job.
    """
    plan = histograms.plan
    sink_of(settings)
    check_live(plan)
    check_folders(settings)
    options = options_of(beam_options)
    flink = flink_job(options)
    pipeline = live_pipeline(options)
    check_standard_input(settings, options)
    # its mistakes before anything is on record
    live_source(settings, pace_of(settings, plan.grid, plan.schedule, 0), plan.group_column)
    check_source(settings)
    check_ledger(plan.address)
    there = sink_place(settings)
    unknown = _unknown(settings, plan, there)
    if not history_lost:
        check_history(settings, unknown)
    follower = Follower(plan, register(plan))
    _check_endless(plan, follower.registration)
    if unknown.names:
        note_lost_history(plan, unknown)
    restored = there.complete(follower.store, follower.registration)
    here = on_prism(options)
    pace = pace_of(settings, plan.grid, follower.registration.query.schedule, follower.begin_us())
    pace = replace(pace, together=reads_here(options))
    pace = pace if here else replace(pace, stay_s=stay_of(pace.poll_s), rest_s=_REST_S)
    if until_us is not None:
        pace = replace(pace, end_us=until_us if pace.end_us is None else min(until_us, pace.end_us))
    pace = begun_in_subscription(settings, pace, options)
    decoded = pipeline | "Read" >> live_source(settings, pace, plan.group_column)
    published = decoded.readings | "Publish" >> histograms
    _ = published.releases | "Sink" >> _release_writer(settings)
    if settings.rejects is not None:
        rejects = _reject_writer(settings, settings.rejects)
        _ = (decoded.rejected, published.rejected) | "All rejects" >> beam.Flatten() | "Rejects" >> rejects
    drift = DriftWatch(follower.store, follower.registration, follower.first_missing())
    return LiveJob(pipeline, follower, pace, follower.record(), restored, here, drift, flink)


def _release_writer(settings: Settings) -> beam.PTransform[Any, Any]:
    sink = sink_of(settings)
    topic = message_topic(settings, sink)
    return WriteBlocks(everywhere(settings.path(sink.path)), sink.format) if topic is None else SendReleases(topic)


def _reject_writer(settings: Settings, sink: RejectSink) -> beam.PTransform[Any, Any]:
    topic = message_topic(settings, sink)
    if topic is not None:
        return SendRejects(topic)
    write = WriteRejects if sink.encrypted is None else WriteLetters
    return write(everywhere(settings.path(sink.path)), sink.format)


def _check_endless(plan: Plan, registration: Registration) -> None:
    """See that a query whose settings have no end has none on record either: live, no end means for ever.

    Raises:
        SettingsError: it has one.
    """
    stop = registration.query.schedule.stop
    if plan.schedule.stop is None and stop is not None:
        raise SettingsError(
            [
                f"windows.stop is left out, and query {plan.query_name!r} is on record with its end at "
                f"{format_instant(plan.grid.time_of(stop))}: set that end or a later one, or use a new query name for "
                "a schedule without end"
            ]
        )


def _unknown(settings: Settings, plan: Plan, there: SinkPlace) -> Unknown:
    with Store(plan.address, create=False) as store:
        return unknown_releases(settings, there.unknown_ids(store))


def run_live(path: Path, beam_options: Sequence[str], *, as_json: bool, history_lost: bool = False) -> int:
    """Run a settings file until its schedule ends, its source ends, or somebody stops it; return the exit code."""
    settings = read_settings(path)
    check_hosts(runner_name(options_of(beam_options)), StoreAddress(settings.ledger_url))
    check_apart(settings)
    if settings.estimate is not None:
        return run_estimating(settings, beam_options, as_json=as_json, history_lost=history_lost)
    histograms = PrivateHistograms(settings, model=labelled_so_far(settings, model_of(settings)))
    return publish_live(settings, histograms, beam_options, as_json=as_json, history_lost=history_lost)


def run_estimating(
    settings: Settings,
    beam_options: Sequence[str],
    *,
    as_json: bool = False,
    history_lost: bool = False,
    look_s: float = LOOK_S,
    noise: Noise = "private",
) -> int:
    """Run a job that estimates its model: from one estimate to the next, each time as its outcome says.

    Args:
        settings: the job.
        beam_options: Beam's, as words.
        as_json: print lines of JSON.
        history_lost: go on although the sink holds releases that are not on record.
        look_s: seconds between two looks at what is on record.
        noise: a hook of the tests.

    Raises:
        SettingsError: the settings do not make a live job.
        CommandError: a job failed, cannot be begun or ended, or has nothing for a first estimate.
        StoreError: the ledger of record cannot be used, or does not fit the job.
    """
    check_ends(settings, options_of(beam_options))
    say = speaker(results(), as_json=as_json)
    while True:
        one = generation_of(settings, live=True, noise=noise)
        end = run_to_end(
            one.settings,
            one.histograms,
            beam_options,
            as_json=as_json,
            history_lost=history_lost,
            look_s=look_s,
            until_us=one.until_us,
        )
        if end.stopped or not one.complete or (one.until is None and not one.ended):
            return end.code
        _check_over(end)
        if end.flink is not None:
            _fill_sink(one, say)
        if not one.ended:
            say("model", decide(settings, one)[1])


def _check_over(end: LiveEnd) -> None:
    """See that nothing of a job is left in its cluster, before another query goes on in its place.

    Raises:
        CommandError: it may run on there.
    """
    if end.flink is None:
        return
    ended = end.flink.ended or end.flink.end()
    if ended.end != "over":
        raise CommandError(
            f"the estimate that is due is not made, because the job before it has to be over first: {ended.text}. "
            "Then run the command again: what is on record stays, and the estimate is made first",
            ExitCode(end.code or ExitCode.FAILURE),
        )


def _fill_sink(one: Generation, say: Say) -> None:
    """Give the sink what it lacks of a query that is over: its job was cancelled, maybe before it wrote the last rows.

    No later job looks after the sink for this query.
    """
    plan = one.histograms.plan
    with Store(plan.address, create=False) as store:
        held = store.registered(plan.domain.name, plan.query_name)
        written = 0 if held is None else sink_place(one.settings).complete(store, held)
    if written:
        say("sink", f"{plural(written, 'block')} on record had no file in the sink; now they have")


def publish_live(
    settings: Settings,
    histograms: PrivateHistograms,
    beam_options: Sequence[str],
    *,
    as_json: bool = False,
    history_lost: bool = False,
    look_s: float = LOOK_S,
) -> int:
    """Run the live graph around a transform that was made from the settings, print what it did, return the exit code.

    Raises:
        SettingsError: the settings do not make a live job.
        CommandError: the job failed, or cannot be begun.
        StoreError: the ledger of record cannot be used, or does not fit the job.
    """
    return run_to_end(
        settings, histograms, beam_options, as_json=as_json, history_lost=history_lost, look_s=look_s
    ).code


@dataclass(frozen=True)
class LiveEnd:
    """How a live job ended.

    Attributes:
        code: exit code.
        stopped: whether somebody stopped it.
        flink: its job in a Flink cluster whose REST address is known.
    """

    code: int
    stopped: bool
    flink: FlinkJob | None = None


def run_to_end(
    settings: Settings,
    histograms: PrivateHistograms,
    beam_options: Sequence[str],
    *,
    as_json: bool = False,
    history_lost: bool = False,
    look_s: float = LOOK_S,
    until_us: int | None = None,
) -> LiveEnd:
    """Run a live job until its end, or an instant, and print what it did.

    Args:
        settings: the job.
        histograms: made from them.
        beam_options: Beam's, as words.
        as_json: print a line of JSON for each thing said, the summary last.
        history_lost: go on although the sink holds releases that are not on record.
        look_s: seconds between two looks at what is on record.
        until_us: instant at which to end, though the schedule goes on.

    Raises:
        SettingsError: the settings do not make a live job.
        CommandError: the job failed, or cannot be begun.
        StoreError: the ledger of record cannot be used, or does not fit the job.
    """
    console = results()
    say = speaker(console, as_json=as_json)
    job = live_job(settings, histograms, beam_options, history_lost=history_lost, until_us=until_us)
    ran = Ran(None, stopped=True, flink=job.flink)
    restarts = Restarts(settings.live.restarts, once=settings.source is not None and bool(settings.source.stdin))
    again = partial(_begun_again, settings, histograms, beam_options, until_us)
    with closing(job.follower), verdict_page(settings.live.metrics_port, say):
        try:
            with stoppable():
                ran = _run(job, again, restarts, say, look_s)
        except KeyboardInterrupt:
            say("stop", STOPPED)
        after = job.follower.record()
    summary = with_live(summary_of(settings, histograms, job.before, after, ran.tallies), ran.tallies)
    if as_json:
        print_json(console, {"at": now(), "kind": "summary", "restarts": restarts.count, **summary.to_dict()})
    else:
        show(console, summary)
    return LiveEnd(summary.code, ran.stopped, ran.flink)


@dataclass(frozen=True)
class Ran:
    """What a runner did.

    Attributes:
        tallies: its counters; ``None`` where it reports none.
        stopped: whether somebody stopped it.
        flink: its job in a Flink cluster whose REST address is known.
    """

    tallies: dict[str, int] | None
    stopped: bool
    flink: FlinkJob | None


def _run(job: LiveJob, again: Callable[[], LiveJob], restarts: Restarts, say: Say, look_s: float) -> Ran:
    """Run a job to its end, and begin it again where its runner failed it.

    Args:
        job: the job.
        again: makes the same job once more, for what is missing then.
        restarts: how often that may be.
        say: tells news.
        look_s: seconds between two looks.

    Returns:
        What the last runner did.

    Raises:
        CommandError: it failed for good, or did not publish what was due.
    """

    def first() -> Ran:
        return _followed(job, say, look_s, first=True)

    def next_one() -> Ran:
        made = _made(again)
        with closing(made.follower):
            return _followed(made, say, look_s)

    attempt = first
    while True:
        try:
            return attempt()
        except RunnerError as failed:  # noqa: PERF203 - each turn is a job
            pause = restarts.pause(failed)
            say("restart", f"{failed.symptom}; begun again in {pause:g} s, number {restarts.count} of this run")
            time.sleep(pause)
            attempt = next_one


def _followed(job: LiveJob, say: Say, look_s: float, *, first: bool = False) -> Ran:
    """Run one job to its end.

    Args:
        job: the job.
        say: tells news.
        look_s: seconds between two looks.
        first: whether its runner never ran it before, so that what the runner refuses it will refuse again.

    Returns:
        What the runner did.

    Raises:
        RunnerError: it failed by what may go by.
        CommandError: it failed, or did not publish what was due.
    """
    try:
        standing, tallies = follow(job, say, look_s=look_s)
        _check_whole(standing, job)
    except NotBegunError as error:
        cause = error.__cause__ or error
        if first:
            raise cause from None
        raise failure_of(cause) from cause
    except Exception as error:
        failure = _alone(failure_of(error), job)
        if failure is error:
            raise
        raise failure from error
    finally:
        job.let_go()
    return Ran(tallies, standing.state == PipelineState.CANCELLED, job.flink)


def _alone(failure: CommandError, job: LiveJob) -> CommandError:
    """The failure of a job, as one that is not begun again where the job may run on in its cluster."""
    ended = None if job.flink is None else job.flink.ended
    if ended is None or ended.end != "unknown" or not isinstance(failure, RunnerError):
        return failure
    return CommandError(f"{failure}. It is not begun again by itself: {ended.text}", failure.code)


def _made(again: Callable[[], LiveJob]) -> LiveJob:
    try:
        return again()
    except Exception as error:
        raise failure_of(error) from error


def _begun_again(
    settings: Settings, histograms: PrivateHistograms, beam_options: Sequence[str], until_us: int | None
) -> LiveJob:
    """The same job once more; its roster is read again, which may have changed meanwhile."""
    plan = histograms.plan
    now = make_plan(settings, plan.model, noise=plan.noise).with_sigma(plan.calibration.sigma)
    chosen = histograms if now.roster == plan.roster else PrivateHistograms.of(now)
    return live_job(settings, chosen, beam_options, until_us=until_us)


def _check_whole(standing: LiveStanding, job: LiveJob) -> None:
    """See that a schedule with an end has all windows on record that are over, when its job says that it is done.

    Raises:
        RunnerError: it has not, and nobody but its runner can have stopped it.
        CommandError: it has not.
    """
    first = standing.first_missing
    if standing.state != PipelineState.DONE or first is None or job.pace.end_us is None or job.is_over(first):
        return
    due = job.follower.due_us(first)
    if due <= time.time_ns() // 1_000:
        what = f"the job ended as DONE, and the window that ends at {format_instant(due)} is not on record"
        if job.here:
            raise RunnerError(f"{what}: its runner lost a part of it")
        raise CommandError(
            f"{what}: the job was stopped, or its runner lost a part of it; run it again: it reads the source again "
            "and publishes what is missing",
            ExitCode.FAILURE,
        )


__all__ = [
    "LiveEnd",
    "LiveJob",
    "follow",
    "live_job",
    "pace_of",
    "publish_live",
    "run_estimating",
    "run_live",
    "run_to_end",
]
