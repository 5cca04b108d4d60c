"""``quiltstream run --live``: a source that never ends to private histograms on record, window by window.

The graph is ``ReadLive``, ``PrivateHistograms``, ``WriteBlocks``. While it runs, what is on record is looked at every
few seconds and told; a watchdog says when the job has stopped producing.
"""

from __future__ import annotations

import json
import logging
import signal
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.runners.runner import PipelineState
from rich.console import Console

from ..schemas.models import Model
from ..schemas.settings import Settings, SettingsError, read_settings
from ..schemas.slots import Schedule, SlotGrid, format_instant, parse_duration
from ..store.address import StoreAddress
from ..store.records import Store
from ..store.specs import Registration
from ..transforms.histograms import PrivateHistograms, check_live
from ..transforms.hosts import check_hosts
from ..transforms.live import Pace
from ..transforms.live_sinks import WriteBlocks, WriteRejects
from ..transforms.plan import Plan, model_of
from ..transforms.pulse import Pulse
from ..transforms.survey import register
from .console import plural, results
from .engine import counters, options_of, runner_name
from .exits import ExitCode
from .failures import CommandError
from .following import Follower, LiveStanding
from .garbage import settled
from .live_engine import live_pipeline, live_source
from .live_places import SinkFolder, check_folders, sink_of
from .origins import labelled
from .places import check_apart
from .record import OnRecord, Unknown, check_history, check_ledger, note_lost_history, unknown_releases
from .run import show, summary_of
from .watchdog import Watchdog

#: Seconds between two looks at what is on record.
_LOOK_S = 2.0

#: Seconds that a stopped job has to end what it was doing.
_END_S = 10.0


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
    )


@dataclass(frozen=True)
class LiveJob:
    """A graph that can be run, and who looks at it.

    Attributes:
        pipeline: the graph.
        follower: looks at what is on record.
        pace: when windows close.
        before: what was on record before.
        restored: blocks on record whose files were missing in the sink, and have been written.
        here: whether the source is read in this process.
    """

    pipeline: Any
    follower: Follower
    pace: Pace
    before: OnRecord
    restored: int
    here: bool = True


def live_job(
    settings: Settings, histograms: PrivateHistograms, beam_options: Sequence[str], *, history_lost: bool = False
) -> LiveJob:
    """Build the graph of a live job; its query is put on record first, and the sink gets what it lacks of the record.

    Raises:
        SettingsError: the settings do not make a live job.
        CommandError: the runner cannot be used, or the sink holds something else or releases that are not on record.
        StoreError: the ledger of record cannot be used, or does not fit the job.
    """
    plan, sink = histograms.plan, sink_of(settings)
    check_live(plan)
    check_folders(settings)
    pipeline = live_pipeline(options_of(beam_options))
    # its mistakes before anything is on record
    live_source(settings, pace_of(settings, plan.grid, plan.schedule, 0), plan.group_column)
    check_ledger(plan.address)
    there = SinkFolder(settings)
    unknown = _unknown(settings, plan, there)
    if not history_lost:
        check_history(settings, unknown)
    follower = Follower(plan, register(plan))
    _check_endless(plan, follower.registration)
    if unknown.names:
        note_lost_history(plan, unknown)
    restored = there.complete(follower.store, follower.registration)
    pace = pace_of(settings, plan.grid, follower.registration.query.schedule, follower.begin_us())
    decoded = pipeline | "Read" >> live_source(settings, pace, plan.group_column)
    published = decoded.readings | "Publish" >> histograms
    _ = published.releases | "Sink" >> WriteBlocks(settings.path(sink.path), sink.format)
    if settings.rejects is not None:
        rejects = WriteRejects(settings.path(settings.rejects.path), settings.rejects.format)
        _ = (decoded.rejected, published.rejected) | "All rejects" >> beam.Flatten() | "Rejects" >> rejects
    here = (runner_name(options_of(beam_options)) or "prismrunner").lower() == "prismrunner"
    return LiveJob(pipeline, follower, pace, follower.record(), restored, here)


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


def _unknown(settings: Settings, plan: Plan, there: SinkFolder) -> Unknown:
    with Store(plan.address, create=False) as store:
        return unknown_releases(settings, there.unknown_ids(store))


def run_live(path: Path, beam_options: Sequence[str], *, as_json: bool, history_lost: bool = False) -> int:
    """Run a settings file until its schedule ends, its source ends, or somebody stops it; return the exit code."""
    settings = read_settings(path)
    check_hosts(runner_name(options_of(beam_options)), StoreAddress(settings.ledger_url))
    check_apart(settings)
    histograms = PrivateHistograms(settings, model=_labelled(settings, model_of(settings)))
    return publish_live(settings, histograms, beam_options, as_json=as_json, history_lost=history_lost)


def publish_live(
    settings: Settings,
    histograms: PrivateHistograms,
    beam_options: Sequence[str],
    *,
    as_json: bool = False,
    history_lost: bool = False,
    look_s: float = _LOOK_S,
) -> int:
    """Run the live graph around a transform that was made from the settings, print what it did, return the exit code.

    Args:
        settings: the job.
        histograms: made from them.
        beam_options: Beam's, as words.
        as_json: print a line of JSON for each thing said, the summary last.
        history_lost: go on although the sink holds releases that are not on record.
        look_s: seconds between two looks at what is on record.

    Raises:
        SettingsError: the settings do not make a live job.
        CommandError: the job failed, or cannot be begun.
        StoreError: the ledger of record cannot be used, or does not fit the job.
    """
    console = results()
    job = live_job(settings, histograms, beam_options, history_lost=history_lost)
    with closing(job.follower):
        standing, tallies = follow(console, settings, job, as_json=as_json, look_s=look_s)
        after = job.follower.record()
    if standing.state not in (PipelineState.DONE, PipelineState.CANCELLED):
        raise CommandError(
            f"the job ended as {standing.state}; what is on record stays: run it again to go on", ExitCode.FAILURE
        )
    _check_whole(standing, job)
    summary = summary_of(settings, histograms, job.before, after, tallies)
    if as_json:
        _print_json(console, {"at": _now(), "kind": "summary", **summary.to_dict()})
    else:
        show(console, summary)
    return summary.code


def _check_whole(standing: LiveStanding, job: LiveJob) -> None:
    """See that a schedule with an end has all windows on record that are over, when its job says that it is done.

    Raises:
        CommandError: it has not.
    """
    first = standing.first_missing
    if standing.state != PipelineState.DONE or first is None or job.pace.end_us is None:
        return
    due = job.follower.due_us(first)
    if due <= time.time_ns() // 1_000:
        raise CommandError(
            f"the job ended as DONE, and the window that ends at {format_instant(due)} is not on record: the job "
            "was stopped, or its runner lost a part of it; run it again: it reads the source again and publishes what "
            "is missing",
            ExitCode.FAILURE,
        )


def _labelled(settings: Settings, model: Model) -> Model:
    """As for a batch job, by the files that are there now; there may be none yet."""
    with suppress(SettingsError):
        return labelled(settings, model)
    return model


def follow(
    console: Console, settings: Settings, job: LiveJob, *, as_json: bool = False, look_s: float = _LOOK_S
) -> tuple[LiveStanding, dict[str, int] | None]:
    """Run a job; tell what is put on record and what the watchdog finds, until it ends or is stopped.

    Ctrl-C and SIGTERM stop it.

    Args:
        console: where to tell it.
        settings: the job's.
        job: its graph.
        as_json: as a line of JSON each.
        look_s: seconds between two looks.

    Returns:
        Where it stands at the end, and the runner's counters; ``None`` where it reports none.

    Raises:
        CommandError: the runner went away.
        RuntimeError: the job failed; the text is the runner's, and may quote data.
    """
    Pulse.reset()
    settled()
    said = _json_line if as_json else _line

    def say(kind: str, text: str) -> None:
        said(console, kind, text)

    result: Any = None
    with _stoppable() as arm, _quiet_threads():
        try:
            result = job.pipeline.run()
            arm()  # Beam's runners put a handler of their own in place
            say("start", f"{settings.query} over {settings.domain}; Ctrl-C stops it, and the next run goes on")
            if job.restored:
                say("sink", f"{plural(job.restored, 'block')} on record had no file in the sink; now they have")
            return _watch(result, job, say, look_s), _tallies(result)
        except KeyboardInterrupt:
            state = _stop(result)
            say("stop", "stopped; what is on record stays")
            return job.follower.look(state), None if result is None else _tallies(result)


def _watch(result: Any, job: LiveJob, say: Callable[[str, str], None], look_s: float) -> LiveStanding:
    dog = Watchdog(job.pace, time.monotonic(), job.follower.due_us, here=job.here)
    told = ""
    whole: float | None = None
    while True:
        state = _state(result)
        standing = job.follower.look(state)
        if standing.text != told:
            told = standing.text
            say("record", told)
        if PipelineState.is_terminal(state):
            if state == PipelineState.FAILED:
                result.wait_until_finish()  # raises what the job failed of
            return standing
        if standing.first_missing is None:
            # some runners let a job run on whose source has ended
            whole = time.monotonic() if whole is None else whole
            if time.monotonic() - whole > _END_S:
                _stop(result)
                return replace(standing, state=PipelineState.DONE)
        for warning in dog.look(standing.first_missing, Pulse.all(), _tallies(result)):
            say("warning", warning)
        time.sleep(look_s)


def _state(result: Any) -> str:
    try:
        return str(result.state)
    except Exception as error:
        raise CommandError(
            f"the runner has gone away ({type(error).__name__}); what is on record stays: run it again to go on",
            ExitCode.FAILURE,
        ) from error


def _tallies(result: Any) -> dict[str, int] | None:
    """The counters now: a portable runner's result keeps those of the first look for ever."""
    try:
        result._metrics = None  # noqa: SLF001 - see above; there is no other way to ask again
        return counters(result)
    except Exception:  # noqa: BLE001 - a runner without counters must not end the job
        return None


def _stop(result: Any) -> str:
    """Cancel a job and wait a while until its runner has let go."""
    deadline = time.monotonic() + _END_S
    with suppress(Exception):  # the runner may have got the same signal, and be gone
        if result is not None:
            result.cancel()
            while not PipelineState.is_terminal(result.state) and time.monotonic() < deadline:
                time.sleep(0.1)
    return PipelineState.CANCELLED


@contextmanager
def _stoppable() -> Generator[Callable[[], None]]:
    """Make Ctrl-C and SIGTERM a ``KeyboardInterrupt``; what is given does so anew."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}

    def arm() -> None:
        for one in before:
            signal.signal(one, signal.default_int_handler)

    arm()
    try:
        yield arm
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@contextmanager
def _quiet_threads() -> Generator[None]:
    """Keep the tracebacks of Beam's threads away, unless asked for: Ctrl-C ends their runner before it ends them.

    That a runner has gone is noticed where its state is asked for.
    """
    before = threading.excepthook
    if not logging.getLogger("apache_beam").propagate:
        threading.excepthook = lambda _: None
    try:
        yield
    finally:
        threading.excepthook = before


def _line(console: Console, kind: str, text: str) -> None:
    console.print(f"{_now()}  {kind:8}{text}", highlight=False, soft_wrap=True)


def _json_line(console: Console, kind: str, text: str) -> None:
    _print_json(console, {"at": _now(), "kind": kind, "text": text})


def _print_json(console: Console, value: dict[str, Any]) -> None:
    console.print(json.dumps(value, ensure_ascii=False), highlight=False, soft_wrap=True, markup=False)


def _now() -> str:
    return format_instant(time.time_ns() // 1_000_000_000 * 1_000_000)


__all__ = ["LiveJob", "follow", "live_job", "pace_of", "publish_live", "run_live"]
