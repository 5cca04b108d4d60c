"""``quiltstream run``: readings of a source to private histograms on record and in a sink.

The graph is ``ReadReadings``, ``PrivateHistograms``, ``WriteRows``. The summary comes from the ledger of record, and
the operator's tallies from Beam's counters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import starmap
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from ...schemas.readings import OF_VALUES, RejectReason
from ...schemas.settings.base import SettingsError
from ...schemas.settings.job import Accepted, Settings, read_settings
from ...schemas.slots import format_instant
from ...store.accounts import priced
from ...store.specs import Registration
from ...store.store import Store
from ...transforms.calibrating import model_of
from ...transforms.checks import STAND_IN_TEXT
from ...transforms.common.batches import DUPLICATES, OUTSIDE, READINGS, counter_name
from ...transforms.plan import Plan, make_plan, open_ledger
from ...transforms.private_histograms import PrivateHistograms
from ...transforms.register import NothingCountsError
from ...transforms.registration import NoReadingsError, NoWindowError
from ...transforms.sources.files import ReadReadings
from ..connectors.files import check_rejects, check_writable, labelled, released_ids, write_rejects, write_releases
from ..connectors.job_io import SinkError, output_of, outputs_of, refuse_topics, sink_of
from ..console import plural, print_json, results, working
from ..crowded import first_readings, refuse_crowded_files
from ..errors import CommandError, ExitCode, explain
from ..forecast import OPERATOR, Block, Forecast, Row, Table, promise_text
from ..on_record import OnRecord, begin_memory, note_lost_history, on_record, with_ledger, with_newest
from ..preflight import Word, check_command, preflight
from ..runners import counters, new_pipeline, options_of, read_source
from . import children_end_with_a_stop, settled


def run_file(
    path: Path,
    beam_options: Sequence[str],
    *,
    as_json: bool,
    every: bool = False,
    history_lost: bool,
    even_if_empty: bool = False,
    accepted: Accepted = Accepted(),  # noqa: B008 - a frozen value
) -> int:
    """Run a settings file, print the summary, return the exit code."""
    settings = read_settings(path).accepting(accepted)
    with working(f"running {path.name}"):
        summary = run_job(settings, beam_options, history_lost=history_lost, even_if_empty=even_if_empty)
    if as_json:
        print_json(summary.to_dict())
    else:
        summary.show(results(), every=every)
    return summary.code


def run_job(
    settings: Settings, beam_options: Sequence[str] = (), *, history_lost: bool = False, even_if_empty: bool = False
) -> Table:
    """Publish what the settings say."""
    options = options_of(beam_options)
    check_command(settings, options, BATCH)
    with with_newest(settings):
        known, made = with_ledger(settings, history_lost=history_lost)
        word = Word(history_lost=history_lost, emptied=made)
        if known.estimate is None:
            plan = make_plan(known, labelled(known, model_of(known)))
        else:
            from ..estimation import estimated_plan  # noqa: PLC0415 - with the command fit

            plan = estimated_plan(known, known.estimate, BATCH, word)
        histograms = PrivateHistograms.of(plan, even_if_empty=even_if_empty)
        return publish(known, histograms, options, word, even_if_empty=even_if_empty)


def publish(
    settings: Settings,
    histograms: PrivateHistograms,
    options: PipelineOptions | None = None,
    word: Word = Word(),  # noqa: B008 - a frozen value
    *,
    even_if_empty: bool = False,
) -> Table:
    """Run the graph around a transform that was made from the settings."""
    options = options_of(()) if options is None else options
    ready = preflight(settings, histograms.plan, options, BATCH, word)
    settings, plan = ready.settings, ready.plan
    before = on_record(plan.address, plan.domain.name, plan.query_name)
    new = before.account.budget is None  # where a domain is on record, the settings are compared with it first
    if new and not even_if_empty and next(first_readings(ready.source), None) is None:
        raise _with_source(NothingCountsError.of({}), settings)  # as the graph would, which is not built for that

    address = open_ledger(plan.address)
    # a domain that is on record is marked before anything else is done; another one by what registers it
    noted = note_lost_history(replace(plan, address=address), ready.lacking)
    with Store(address) as store:
        memory = begin_memory(settings, store)
    histograms = histograms.in_ledger(address, memory, lost=None if noted else ready.lacking)
    plan = histograms.plan
    pipeline = new_pipeline(options)
    decoded = pipeline | "Read" >> ready.source
    published = decoded.readings | "Publish" >> histograms
    write_releases(published.releases, settings)
    if settings.rejects is not None:
        rejected = (decoded.rejected, published.rejected) | "All rejects" >> beam.Flatten()
        write_rejects(rejected, settings)
    try:
        tallies = _finish(pipeline, settings)
    except Exception as error:
        if explain(error).kind not in {one.__name__ for one in (NoReadingsError, NoWindowError, NothingCountsError)}:
            raise
        raise _with_source(error, settings) from error

    after = on_record(plan.address, plan.domain.name, plan.query_name)
    return summary_of(settings, histograms, before, after, tallies, left_out=ready.source.left_out)


def _with_source(error: Exception, settings: Settings) -> CommandError:
    """The error of a source without a reading that counts, which names the source."""
    failure, source = explain(error), settings.source
    files = "" if source is None else f"{source.setting}: {', '.join(source.patterns)}"
    return CommandError(f"{failure.text}\n{files} was read; `quiltstream check` says what is in it", failure.code)


class _Batch:
    """A run over data that end: see :class:`~quiltstream.pipelines.preflight.Way`."""

    live = False

    def check_kinds(self, settings: Settings) -> None:
        """See that no place is a topic, which never ends, and that there is a sink."""
        refuse_topics(settings)
        sink_of(settings, live=False)

    def check_reading(self, settings: Settings, options: PipelineOptions) -> None:
        """Files need nothing."""

    def look_at(self, settings: Settings, source: ReadReadings) -> None:
        """Refuse files in which many slots have several readings."""
        refuse_crowded_files(settings, source)

    def unknown_ids(self, settings: Settings, store: Store) -> list[str]:
        """The names of the releases in the sink's file."""
        del store
        check_rejects(settings)
        return released_ids(settings)

    def source(self, settings: Settings, plan: Plan) -> ReadReadings:
        """The reading of the files, which are found, and whose headers are checked, now."""
        return read_source(settings, plan.group_column)

    def make_places(self, settings: Settings) -> None:
        """Make the folders of the files, and try to write there."""
        check_writable(settings)


BATCH = _Batch()


def _finish(pipeline: beam.Pipeline, settings: Settings) -> dict[str, int] | None:
    """Run to the end and tally. An error of writing says what is on record: the sink is written after all rows are."""
    settled()
    try:
        with children_end_with_a_stop():
            result = pipeline.run()
            result.wait_until_finish()
    except Exception as error:
        output = output_of(error, outputs_of(settings))
        if output is None:
            raise
        then = "again; the same rows come out, and nothing is charged"
        then = then if output.field == "sink" else f"{then} twice"
        raise SinkError(output, error, f"{output.kept}: {output.mend(error)}, and run {then}") from error
    return counters(result)


def summary_of(
    settings: Settings,
    histograms: PrivateHistograms,
    before: OnRecord,
    after: OnRecord,
    tallies: dict[str, int] | None,
    *,
    left_out: Sequence[str] = (),
    live: bool = False,
) -> Table:
    """What a run did, from what was on record before and after it.

    Args:
        settings: the job.
        histograms: its transform.
        before: what was on record before.
        after: what is on record now.
        tallies: Beam's counters; None where the runner reports none.
        left_out: what matches the source's patterns and holds nothing.
        live: whether the job went on, and counted what it sent again.
    """
    plan, held, account = histograms.plan, after.registration, after.account
    if held is None or account.budget is None:
        raise SettingsError([f"query {plan.query_name!r}: the job ended without putting it on record; run it again"])
    query, schedule, roster, sink = held.query, held.query.schedule, held.query.roster, settings.sink
    charged = priced(schedule, query.losses)
    data = [_from_data(name, plan, held) for name in Forecast(settings, plan, roster, charged).left_to_data()]
    plan = plan.with_multiplicity(query.most).resolve(schedule, roster)
    found = Forecast(settings, plan, roster, charged, live)
    new = after.complete - before.complete
    # of an endless schedule, those that have an entry
    windows = len(schedule) if schedule.stop is not None else len(after.complete | after.refused)
    completed, refused, rows = len(new & before.charged), len(after.refused), _rows(held, after.complete)
    place = "" if sink is None else settings.path(sink.path) if sink.is_files else sink.text
    naive = "never ends" if account.naive is None else f"says {account.naive:g}"
    operator = None if tallies is None else _operator(tallies, plan.domain.missing, live=live)
    to_see = [*(one.text for one in account.shares), *found.units()]
    if plan.stand_in:
        to_see.insert(0, f"THE BELIEF IS A STAND-IN: {STAND_IN_TEXT}; every row says so")
    if live and tallies is not None and new and not tallies.get(READINGS) and not tallies.get(_LIVE[0]):
        to_see.insert(0, _EMPTY)
    told = found.of_history()
    beside = {name: one for name, one in (("of_history", told), ("left_out", left_out)) if one}
    shown = (*_tallies(operator), *(f"left out: {line}" for line in left_out), *told)
    of_it = tuple(
        text
        for there, text in (
            (before.complete, f"{'' if new else 'Nothing was charged: every row was on record already. '}Rows on "
                "record stay as they were first published, whatever the input is now."),
            (refused, f"Refused: {plural(refused, 'window')}, for ever; the ledger says what each would have cost. "
                "More budget is a decision of its own: quiltstream ledger budget."),
            (account.history_lost, "History lost: by the operator's word, charges made elsewhere are missing from "
                "this account; its loss is too small, and stays marked so."),
        )
        if there
    )  # fmt: skip
    counted = f" ({completed:,} of them charged before it began)" if completed else ""
    begun = f"{len(before.complete):,} on record before" + (f", {refused:,} refused" if refused else "")
    values = {
        "sink": place,
        "windows_published": len(new),  # whose rows are all on record now and were not before the run
        "rows_published": _rows(held, new),
        "windows_completed": completed,  # those that were charged before the run
        "windows_on_record": len(before.complete),  # whose rows were on record before
        "windows_refused": refused,  # by the budget, in this run or before
        "budget": account.budget,
        "stand_in": plan.stand_in,
        "naive_loss": account.naive,
        "from_data": data,
        "given_model": query.given_model,
        "history_lost": account.history_lost,
    }
    return Table(
        f"{plan.query_name} over {plan.domain.name}",
        (
            Row("query", plan.query_name),
            Row("domain", plan.domain.name),
            Row("windows", windows, "windows", f"{len(new):,} newly on record{counted}, {begun}, of {windows:,}"),
            Row("rows", rows, "rows", f"{rows:,} in {place}"),
            *found.noise(),
            Row("loss_after", account.loss, "loss", promise_text(account.loss, account.budget)),
            Row("loss_before", before.account.loss, "before",
                f"loss {before.account.loss:.9g}, after {account.loss:.9g}; naive adding {naive}", detail=True),
            *(Row(label="public", words=f"{one}, taken from the data and frozen") for one in data),
            *starmap(Row, values.items()),
            Row("operator_only", (operator or {}) | beside if beside else operator),
        ),
        (
            Block("", "", of_it, prose=True),
            Block("cautions", "Look at this", to_see),
            found.assumptions(),
            Block("", OPERATOR, (*shown, *_totals(operator)), shown),
        ),
        ExitCode.REFUSED if refused else ExitCode.OK,
    )  # fmt: skip


def _from_data(name: str, plan: Plan, held: Registration) -> str:
    """What was taken from the data, as public, and what it came to."""
    schedule, roster = held.query.schedule, held.query.roster
    if name == "roster":
        groups = "" if roster.kind == "series" else f" in {plural(len(roster.keys), 'group')}"
        return f"roster: {len(roster.series):,} series{groups}"
    slot = schedule.first if name == "windows.start" else schedule.covered.stop if schedule.bounded else None
    return f"{name}: {'open' if slot is None else format_instant(plan.grid.time_of(slot))}"


def _rows(registration: Registration, starts: Iterable[int]) -> int:
    """How many rows windows have, of which each is given by its first slot."""
    schedule = registration.query.schedule
    return sum(len(registration.roster_of(schedule.window_at(start)).keys) for start in starts)


#: Counters that only a live job has something to say by.
_LIVE = ("readings-on-record", "windows-released", "windows-refused", "rows-already-on-record", "blocks-incomplete")

_EMPTY = (
    "no reading counted: the windows of this run were published and charged without any; see the tallies below, and "
    "check how readings tells to read the source, windows.start and roster"
)


def _operator(tallies: dict[str, int], missing: str, *, live: bool) -> dict[str, Any]:
    """Tallies for the operator, from Beam's counters, under a rule for cells without a reading."""
    rejected = {reason: tallies.get(counter_name(reason), 0) for reason in RejectReason}
    names = (READINGS, DUPLICATES, OUTSIDE, *(_LIVE if live else ()))
    return {name.replace("-", "_"): tallies.get(name, 0) for name in names} | {
        "rejected": {reason.value: count for reason, count in rejected.items() if count},
        "values_told_by_totals": 0 if missing == "state" else sum(rejected[reason] for reason in OF_VALUES),
    }


def _tallies(operator: dict[str, Any] | None) -> list[str]:
    """Tallies in words."""
    if operator is None:
        return ["tallies are not known: this runner reports none, or not of a job that was stopped"]
    found = [
        f"readings: {operator['readings']:,} in the schedule, {operator['outside_schedule']:,} outside, "
        f"{operator['duplicates']:,} duplicate"
    ]
    if "readings_on_record" in operator:
        again, held = operator["rows_already_on_record"], operator["blocks_incomplete"]
        found += [
            f"read again: {operator['readings_on_record']:,} of windows on record, because the job began anew",
            f"windows: {operator['windows_released']:,} released, {operator['windows_refused']:,} refused",
            f"runner: {plural(again, 'row')} sent again, {plural(held, 'incomplete block')} dropped",
        ]
    return found + [
        f"left out {count:,} (not in the roster)"
        if reason == RejectReason.NOT_IN_ROSTER.value
        else f"rejected {count:,}: {RejectReason(reason).text}"
        for reason, count in operator["rejected"].items()
    ]


def _totals(operator: dict[str, Any] | None) -> list[str]:
    """What a published total tells of rejected values."""
    lost = 0 if operator is None else operator["values_told_by_totals"]
    return [
        f"{plural(lost, 'value')} rejected: each leaves its cell missing, and a published total tells how many are "
        "missing; that is taken as public and independent of the states, or set missing: state"
    ] * bool(lost)
