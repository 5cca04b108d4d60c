"""The graph of a live job, for a command that watches it or a launcher that does not.

Everything that can be wrong is looked for before anything is made. Then the query is put on record, and the sink gets
what it lacks of the record.

A live job handed to a cluster and left there: nobody watches it from here.

For launchers that must build a graph and return, such as Dataflow's Flex Templates. What ``quiltstream run --live``
does while it watches is left out: restarts, the watchdog, and models that are estimated in the stream. Everything that
is checked before a job begins is checked here, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import apache_beam as beam

from ...schemas.settings.base import SettingsError
from ...schemas.settings.job import RejectSink, Settings, read_settings
from ...schemas.slots import Schedule, SlotGrid, format_instant, parse_duration
from ...store.address import StoreAddress
from ...store.specs import Registration
from ...store.store import Store
from ...transforms.aggregate.discovery import register
from ...transforms.common.ledger_waits import wait_without_end
from ...transforms.common.runner_checks import check_hosts
from ...transforms.completeness.sequence_numbers import Steps
from ...transforms.formats.paths import everywhere, is_local
from ...transforms.plan import Plan, ledger_address, model_of
from ...transforms.private_histograms import PrivateHistograms, check_live
from ...transforms.sinks.files import WriteBlocks, WriteLetters, WriteRejects
from ...transforms.sinks.messages import SendRejects, SendReleases
from ...transforms.sources.reader import Pace
from ..connectors.files import check_apart, labelled_so_far
from ..connectors.folders import SinkPlace, check_folders, make_folders, sink_of, sink_place
from ..connectors.kafka import check_secrets, check_source, topic_record
from ..connectors.pubsub import begun_in_subscription
from ..connectors.topics import message_topic
from ..connectors.undelivered import filling, outputs_of
from ..continuity import Memory, with_ledger
from ..estimation.drift import DriftWatch
from ..on_record import Unknown, check_history, check_ledger, note_lost_history, unknown_releases
from ..runners import on_prism, options_of, reads_here, runner_name
from .flink import flink_job
from .monitor import Follower, LiveJob
from .runner import check_standard_input, live_pipeline, live_source, worker_pool

__all__ = ["graph_of", "launch", "live_job", "pace_of", "stay_of"]


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


def live_job(  # noqa: PLR0915 - what is checked, made and put on record, in its order
    settings: Settings,
    histograms: PrivateHistograms,
    beam_options: Sequence[str],
    *,
    history_lost: bool = False,
    emptied: bool = False,
    forgiven: frozenset[str] = frozenset(),
    until_us: int | None = None,
) -> LiveJob:
    """Build the graph of a live job; its query is put on record first, and the sink gets what it lacks of the record.

    Args:
        settings: the job.
        histograms: made from them.
        beam_options: Beam's, as words.
        history_lost: go on although the ledger lacks what was published.
        emptied: whether the ledger was made just now in the place of one that was emptied.
        forgiven: releases of the sink that an earlier job of the command went on without.
        until_us: instant at which to end, with the windows that end by then, though the schedule goes on.

    Raises:
        SettingsError: the settings do not make a live job.
        CommandError: the runner cannot be used, or the sink holds something else or releases that are not on record,
            or has no room.
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
    if reads_here(options):
        check_secrets(settings)
    # its mistakes before anything is on record
    live_source(settings, pace_of(settings, plan.grid, plan.schedule, 0), plan.group_column)
    check_source(settings)
    if plan.address.store_id is None:
        settings, made = with_ledger(settings, history_lost=history_lost)
        plan, emptied = replace(plan, address=ledger_address(settings)), emptied or made
    check_ledger(plan.address)
    make_folders(settings)
    there = sink_place(settings)
    memory = Memory(settings)
    unknown, lost = _lost(settings, plan, there, memory, forgiven, history_lost=history_lost)
    plan = plan.opened()
    histograms = histograms.in_ledger(plan.address)
    follower = Follower(plan, register(plan))
    _check_endless(plan, follower.registration)
    if unknown.names or lost or emptied:
        note_lost_history(plan, unknown)
    memory.note(follower.store, plan.query_name, follower.registration, underway=True)
    memory.check()
    here, pool = on_prism(options), worker_pool(options)
    histograms = histograms.in_ledger(plan.address, memory.log(here=reads_here(options)))
    outputs = outputs_of(settings)
    with filling(outputs):
        restored = there.complete(follower.store, follower.registration)
    if settings.source is not None and settings.source.stdin:
        wait_without_end()
    pace = pace_of(settings, plan.grid, follower.registration.query.schedule, follower.begin_us())
    pace = replace(pace, together=reads_here(options))
    pace = pace if here else replace(pace, stay_s=stay_of(pace.poll_s), rest_s=_REST_S)
    if until_us is not None:
        pace = replace(pace, end_us=until_us if pace.end_us is None else min(until_us, pace.end_us))
    pace = begun_in_subscription(settings, pace, options)
    topics = topic_record(settings, follower.store, follower.registration)
    if topics is not None:
        topics.look()
    known = None if topics is None else topics.known
    decoded = pipeline | "Read" >> live_source(settings, pace, plan.group_column, known)
    published = decoded.readings | "Publish" >> histograms
    _ = published.releases | "Sink" >> _release_writer(settings)
    if settings.rejects is not None:
        rejects = _reject_writer(settings, settings.rejects)
        _ = (decoded.rejected, published.rejected) | "All rejects" >> beam.Flatten() | "Rejects" >> rejects
    drift = DriftWatch(follower.store, follower.registration, follower.first_missing())
    return LiveJob(
        pipeline,
        follower,
        pace,
        follower.record(),
        restored,
        here,
        drift,
        flink,
        outputs,
        topics,
        pool,
        memory,
        forgiven | frozenset(unknown.names),
    )


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


def _lost(
    settings: Settings,
    plan: Plan,
    there: SinkPlace,
    memory: Memory,
    forgiven: frozenset[str],
    *,
    history_lost: bool,
) -> tuple[Unknown, str | None]:
    """What was published and is not on record: releases of the sink, and what is remembered of the ledger.

    Raises:
        CommandError: something was, and the operator did not say that it is lost.
    """
    with Store(plan.address) as store:
        unknown = unknown_releases(settings, there.unknown_ids(store)).without(forgiven)
    lost = memory.lost(history_lost=history_lost)
    if not history_lost:
        check_history(settings, unknown, lost)
    return unknown, lost


def graph_of(settings: Settings, beam_options: Sequence[str]) -> LiveJob:
    """The graph of a live job for workers elsewhere.

    Args:
        settings: the job.
        beam_options: Beam's, as words.

    Raises:
        SettingsError: the settings do not make a live job, or one that cannot be left alone.
        CommandError: the runner or the sink cannot be used.
        StoreError: the ledger of record cannot be used, or does not fit the job.
    """
    check_hosts(runner_name(options_of(beam_options)), StoreAddress(settings.ledger_url))
    check_apart(settings)
    _check_elsewhere(settings)
    histograms = PrivateHistograms(settings, model=labelled_so_far(settings, model_of(settings)))
    return live_job(settings, histograms, beam_options)


def launch(path: Path, beam_options: Sequence[str]) -> Any:
    """Build the graph of a settings file, hand it to the runner, and return what the runner says at once.

    Raises:
        SettingsError: the settings do not make a live job, or one that cannot be left alone.
        CommandError: the runner or the sink cannot be used.
        StoreError: the ledger of record cannot be used, or does not fit the job.
    """
    job = graph_of(read_settings(path), beam_options)
    with closing(job.follower):
        return job.pipeline.run()


def _check_elsewhere(settings: Settings) -> None:
    problems: list[str] = []
    if settings.estimate is not None:
        problems.append(
            "model.estimate is begun anew with each estimate by whoever watches the job, and nobody watches this one: "
            "name a model file, or run it with quiltstream run --live"
        )
    for field, sink in (("sink", settings.sink), ("rejects", settings.rejects)):
        if sink is not None and sink.is_files and is_local(settings.path(sink.path)):
            problems.append(
                f"{field}: {sink.path} is a folder of each worker's own disk, where nobody would find it; name a "
                "topic, or a folder of a bucket"
            )
    source = settings.source
    if source is not None and (source.stdin or any(is_local(settings.path(one)) for one in source.patterns)):
        problems.append(f"{source.setting} is of this machine, and the workers are others; name a topic or a bucket")
    if problems:
        raise SettingsError(problems)
