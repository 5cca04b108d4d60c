"""The graph of a live job, for a command that watches it or a launcher that does not.

Everything that can be wrong is looked for before anything is made. Then the query is put on record, and the sink gets
what it lacks of the record. :func:`launch` is for launchers that must build a graph and return, such as Dataflow's Flex
Templates; nobody watches its job, and no model is estimated first.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from ...schemas.settings.base import SettingsError
from ...schemas.settings.job import Settings, read_settings
from ...schemas.slots import Schedule, SlotGrid, format_instant, parse_duration
from ...store.specs import Registration
from ...store.store import Store
from ...transforms.aggregate.ledger_access import wait_without_end
from ...transforms.calibrating import model_of
from ...transforms.completeness import Steps
from ...transforms.formats.paths import is_local
from ...transforms.plan import Plan
from ...transforms.private_histograms import PrivateHistograms, goes_on
from ...transforms.readings.slots import words_of
from ...transforms.registration import record_before, register
from ...transforms.sources.reader import PollingPolicy
from ..connectors.files import check_folders, check_writable, labelled_so_far
from ..connectors.job_io import filling, outputs_of
from ..connectors.live import LiveSink, LiveSource, check_secrets, live_sinks, live_source
from ..on_record import Follower, begin_memory, note_lost_history
from ..preflight import Word, check_command, preflight
from ..runners import on_prism, options_of, reads_here
from .flink import flink_job
from .follow import LiveJob
from .runner import check_runner, live_pipeline

#: Looks of the reader in one call, and seconds that it may last, where a runner keeps every call: Flink's portable
#: runner keeps for ever what is handed back to it (Beam's issue 27648), and a checkpoint waits for the call's end.
_STAY_LOOKS = 10
_SHORTEST_STAY_S = 5.0
_LONGEST_STAY_S = 10.0

#: Seconds between two calls on such a runner. Flink with Beam 2.62 leaves out their fractions, and forgets what it is
#: to take up again at once: the rest of a backlog of two million readings was lost in all of four jobs.
_REST_S = 1.1


def pace_of(settings: Settings, grid: SlotGrid, schedule: Schedule, begin_us: int) -> PollingPolicy:
    """When the settings close windows of a schedule, and from where on."""
    live, lateness = settings.live, settings.windows.lateness
    words = words_of(settings.readings, settings.slots.of)
    late_us = 0 if lateness is None else parse_duration(lateness)
    return PollingPolicy(
        begin_us=begin_us,
        # a window waits for the readings after it that its slots depend on
        lateness_us=late_us + (0 if words is None else words.after_us),
        idle_us=None if live.idle is None else parse_duration(live.idle),
        poll_s=parse_duration(live.poll) / 1e6,
        end_us=grid.time_of(schedule.covered.stop) if schedule.bounded else None,
        steps=Steps.of(grid, schedule, words),
    )


def live_job(
    settings: Settings,
    histograms: PrivateHistograms,
    beam_options: Sequence[str],
    word: Word = Word(),  # noqa: B008 - a frozen value
) -> LiveJob:
    """Build the graph of a live job; its query is put on record first, and the sink gets what it lacks of the record.

    Raises:
        SettingsError: the settings do not make a live job.
        CommandError: the runner or the sink cannot be used, or the sink holds something else or what is not on record.
        StoreError: the ledger of record cannot be used, or does not fit the job.
    """
    options, way = options_of(beam_options), LiveWay()
    check_runner(settings, options)  # before a runner is looked for that it could not use
    flink, pipeline = flink_job(options), live_pipeline(options)
    ready = preflight(settings, histograms.plan, options, way, word)
    settings, plan, source = ready.settings, ready.plan.opened(), ready.source
    sink, rejects = way.sinks(settings)
    begun = record_before(plan) if goes_on(options) else None
    follower = Follower(plan, register(plan))
    registration = follower.registration
    _check_endless(plan, registration)
    note_lost_history(plan, ready.lacking)
    memory = begin_memory(settings, follower.store)
    histograms = histograms.in_ledger(plan.address, memory, begun, registered=registration)
    outputs = outputs_of(settings)
    with filling(outputs):
        restored = sink.complete(follower.store, registration)
    may_end = settings.source is not None and settings.source.may_end
    if settings.source is not None and settings.source.stdin:
        wait_without_end()
    here = on_prism(options)
    pace = pace_of(settings, plan.grid, registration.query.schedule, follower.begin_us())
    pace = replace(pace, together=reads_here(options))
    if not here:
        stay_s = min(max(_STAY_LOOKS * pace.poll_s, _SHORTEST_STAY_S), _LONGEST_STAY_S)
        pace = replace(pace, stay_s=stay_s, rest_s=_REST_S)
    lost_us = source.begin(pace, options)
    if not source.declares:
        histograms = histograms.by_the_watermark(lost_us)
    decoded = pipeline | "Read" >> source.read(pace)
    published = decoded.readings | "Publish" >> histograms
    _ = published.releases | "Sink" >> sink.releases()
    if rejects is not None:
        _ = (decoded.rejected, published.rejected) | "All rejects" >> beam.Flatten() | "Rejects" >> rejects.rejects()
    return LiveJob(pipeline, follower, pace, follower.record(), restored, here, flink, outputs, may_end)


def _check_endless(plan: Plan, registration: Registration) -> None:
    """See that a query whose settings have no end has none on record either: live, no end means for ever."""
    stop = registration.query.schedule.stop
    if plan.schedule.stop is None and stop is not None:
        raise SettingsError(
            f"windows.stop is left out, and query {plan.query_name!r} is on record with its end at "
            f"{format_instant(plan.grid.time_of(stop))}: set that end or a later one, or use a new query name for "
            "a schedule without end"
        )


class LiveWay:
    """A live run: see :class:`~quiltstream.pipelines.preflight.Way`."""

    live = True

    def __init__(self) -> None:
        self._sinks: tuple[LiveSink, LiveSink | None] | None = None
        self._here = False

    def sinks(self, settings: Settings) -> tuple[LiveSink, LiveSink | None]:
        """The sink, whose content is gone through once, and that of the rejects."""
        if self._sinks is None:
            self._sinks = live_sinks(settings)
        return self._sinks

    def check_kinds(self, settings: Settings) -> None:
        """See that sink and rejects are folders or topics of their own."""
        self.sinks(settings)
        check_folders(settings)

    def check_reading(self, settings: Settings, options: PipelineOptions) -> None:
        """See that the workers have the source."""
        check_runner(settings, options)
        self._here = reads_here(options)

    def look_at(self, settings: Settings, source: Any) -> None:
        """Its readings come later."""

    def unknown_ids(self, settings: Settings, store: Store) -> list[str]:
        """The names of the releases in the sink that are not those of blocks on record."""
        return self.sinks(settings)[0].unknown_ids(store)

    def source(self, settings: Settings, plan: Plan) -> LiveSource:
        """The source; it and the sinks are there, and so are their secrets where the source is read."""
        source, (sink, rejects) = live_source(settings, plan.group_column), self.sinks(settings)
        if self._here:
            check_secrets(settings)
        source.check()
        sink.check()
        if rejects is not None:
            rejects.check()
        return source

    def make_places(self, settings: Settings) -> None:
        """Make the folders, and try to write there."""
        check_writable(settings, live=True)


def graph_of(settings: Settings, beam_options: Sequence[str]) -> LiveJob:
    """The graph of a live job for workers elsewhere, that nobody watches; raises what :func:`live_job` does."""
    check_command(settings, options_of(beam_options), LiveWay())
    problems: list[str] = []
    if settings.estimate is not None:
        problems.append(
            "model.estimate reads files here before the job begins, and this one is only handed over: name a model "
            "file, or run it with quiltstream run --live"
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
    histograms = PrivateHistograms(settings, model=labelled_so_far(settings, model_of(settings)))
    return live_job(settings, histograms, beam_options)


def launch(path: Path, beam_options: Sequence[str]) -> Any:
    """Hand the graph of a settings file to the runner, and return what that says at once."""
    job = graph_of(read_settings(path), beam_options)
    with closing(job.follower):
        return job.pipeline.run()
