"""``quiltstream run``: readings of a source to private histograms on record and in a sink.

The graph is ``ReadReadings``, ``PrivateHistograms``, ``WriteRows``; what is said afterwards comes from the ledger of
record, and tallies for the operator from Beam's counters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.options.pipeline_options import PipelineOptions
from rich.console import Console

from ...schemas.readings import OF_VALUES, RejectReason
from ...schemas.settings.base import SettingsError
from ...schemas.settings.job import Accepted, Settings, read_settings
from ...schemas.slots import format_instant
from ...store.accounts import priced
from ...store.specs import Registration
from ...store.store import Store
from ...transforms.checks import STAND_IN_TEXT, error_shares, fewest_slots
from ...transforms.common.batches import DECODED, DUPLICATES, OUTSIDE, READINGS, counter_name
from ...transforms.plan import Plan, make_plan, model_of, open_ledger
from ...transforms.private_histograms import NothingCountsError, PrivateHistograms
from ...transforms.registration import NoReadingsError, NoWindowError
from ...transforms.sources.files import ReadReadings
from ..connectors.files import check_rejects, check_writable, labelled, released_ids, write_rejects, write_releases
from ..connectors.job_io import SinkError, output_of, outputs_of, refuse_topics, sink_of
from ..console import facts, heading, notes, odds, paragraph, percent, plural, print_json, results, working
from ..crowded import refuse_crowded_files
from ..errors import CommandError, ExitCode, explain
from ..estimation import estimated_plan
from ..on_record import OnRecord, begin_memory, note_lost_history, on_record, with_ledger, with_newest
from ..preflight import Word, check_command, preflight
from ..runners import counters, new_pipeline, options_of, read_source, runner_name
from . import children_end_with_a_stop, settled
from .dry_run import GIVEN, OPERATOR, Cost, NoiseOfLength, assumptions, belief_text, left_to_data, of_history, of_units


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run did."""

    query: str
    domain: str
    windows: int  # windows of the schedule; of an endless one those until now
    windows_published: int  # windows whose rows are all on record now and were not before the run
    # those of them whose first block this run drew, and no other job that ran at the same time; ``None`` where the
    # runner may count otherwise
    windows_drawn: int | None
    rows_published: int  # rows of the windows whose rows are all on record now and were not before the run
    rows_drawn: int | None  # how many of these this run drew, and no job before it or beside it; ``None`` likewise
    windows_completed: int  # those of them that were charged before the run
    windows_on_record: int  # windows whose rows were on record before
    windows_refused: int  # windows the budget refused, in this run or before
    rows: int  # released rows in the sink
    sink: str  # where they are
    epsilon: float  # what the query was calibrated for
    loss_before: float  # loss of the domain before the run, epsilon
    loss_after: float  # loss of the domain after it
    budget: float  # the domain's budget in force
    scale: float  # scale of the noise in each count, cells; where windows have noise by their length, the largest
    half_width_95: int  # a count is within so many cells of the true one with probability 0.95
    # where windows have noise by their length, that of each length of the schedule's windows
    by_length: tuple[NoiseOfLength, ...]
    # expected error of a count over an evenly filled bin, of the smallest class of slots, median of the histograms
    median_share: float
    classes: int  # classes of slots that a window is cut into, 1 where there are none
    total: float  # cells of the smallest such class in an evenly filled histogram, median of the histograms
    stand_in: bool  # whether the belief is a stand-in
    belief: str  # where it comes from, and with what odds it covers a further series
    cost: Cost  # what the query's schedule costs alone, what it was calibrated to, and how long an event is protected
    naive_loss: float | None  # the epsilons of all charged windows of the domain added up; ``None`` if not known
    from_data: tuple[str, ...]  # what was taken from the data, as public, and what it came to
    given_model: bool  # whether the model was estimated from series it protects
    history_lost: bool  # whether charges are missing from the account by the operator's word, now or in an earlier run
    assumptions: tuple[str, ...]  # what the promise rests on
    of_history: tuple[str, ...]  # what the model tells of its history, not to be published
    cautions: tuple[str, ...]  # what is allowed and most likely not meant
    # tallies of readings and rejects, not to be published; ``None`` where the runner reports none
    operator_only: dict[str, Any] | None
    left_out: tuple[str, ...] = ()  # what matches the source's patterns and holds nothing, as above

    @property
    def code(self) -> ExitCode:
        """The exit code, which is another one where a window was refused."""
        return ExitCode.REFUSED if self.windows_refused else ExitCode.OK

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON form; all that is for the operator only is in ``operator_only``."""
        found = asdict(self)
        for name in ("of_history", "left_out"):
            if told := found.pop(name):
                found["operator_only"] = (found["operator_only"] or {}) | {name: told}
        return found


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
        show(results(), summary, every=every)
    return summary.code


def run_job(
    settings: Settings, beam_options: Sequence[str] = (), *, history_lost: bool = False, even_if_empty: bool = False
) -> Summary:
    """Publish what the settings say."""
    check_command(settings, beam_options, BATCH)
    with with_newest(settings):
        known, made = with_ledger(settings, history_lost=history_lost)
        if known.estimate is None:
            plan = make_plan(known, labelled(known, model_of(known)))
        else:
            plan = estimated_plan(known, known.estimate, BATCH, Word(history_lost=history_lost, emptied=made))
        histograms = PrivateHistograms.of(plan, even_if_empty=even_if_empty)
        return publish(known, histograms, beam_options, history_lost=history_lost, emptied=made)


def publish(
    settings: Settings,
    histograms: PrivateHistograms,
    beam_options: Sequence[str] = (),
    *,
    history_lost: bool = False,
    emptied: bool = False,
) -> Summary:
    """Run the graph around a transform that was made from the settings."""
    options = options_of(beam_options)
    ready = preflight(settings, histograms.plan, options, BATCH, Word(history_lost=history_lost, emptied=emptied))
    settings, plan = ready.settings, ready.plan
    before = on_record(plan.address, plan.domain.name, plan.query_name)

    here = runner_name(options) is None
    address = open_ledger(plan.address)
    # a domain that is on record is marked before anything else is done; another one by what registers it
    noted = not ready.marked or note_lost_history(replace(plan, address=address), ready.unknown)
    with Store(address) as store:
        memory = begin_memory(settings, store)
    histograms = histograms.in_ledger(address, memory, lost=None if noted else len(ready.unknown.names))
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
        failure = explain(error)
        if failure.kind not in {one.__name__ for one in (NoReadingsError, NoWindowError, NothingCountsError)}:
            raise
        why = _nothing_read(settings, plan.group_column, beam_options)
        raise CommandError(f"{failure.text}\n{why}", failure.code) from error

    after = on_record(plan.address, plan.domain.name, plan.query_name)
    summary = replace(summary_of(settings, histograms, before, after, tallies), left_out=ready.source.left_out)
    if tallies is None or not here:
        return summary  # a runner that tries a bundle again does not count what the first attempt drew
    return replace(
        summary, windows_drawn=tallies.get("windows-released", 0), rows_drawn=tallies.get("rows-released", 0)
    )


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
        raise SinkError(output.failed(error), f"{output.kept}: {output.mend(error)}, and run {then}") from error
    return counters(result)


def _nothing_read(settings: Settings, group: str | None, beam_options: Sequence[str]) -> str:
    """Which files have no reading, and what their rows were rejected for; a runner that failed tells no counters."""
    files = "" if settings.source is None else f"{settings.source.setting}: {', '.join(settings.source.patterns)}"
    options = options_of(beam_options)
    if runner_name(options) is not None:  # what is read once more is read here
        return f"{files} was read"
    pipeline = new_pipeline(options)
    _ = pipeline | "Read" >> read_source(settings, group)
    result = pipeline.run()
    result.wait_until_finish()
    tallies = counters(result) or {}
    rejected: dict[str, int] = _operator(tallies)["rejected"]
    reasons = "; ".join(f"{plural(count, 'row')}: {RejectReason(one).text}" for one, count in rejected.items())
    read = tallies.get(DECODED, 0)
    if not read:
        return f"{files} was read, and every row rejected: {reasons}" if rejected else f"{files} has no rows"
    return f"{files} was read: {plural(read, 'reading')}" + (f", and rows rejected: {reasons}" if rejected else "")


def summary_of(
    settings: Settings, histograms: PrivateHistograms, before: OnRecord, after: OnRecord, tallies: dict[str, int] | None
) -> Summary:
    """What a run did, from what was on record before and after it."""
    plan, registration = histograms.plan, after.registration
    if registration is None or after.account.budget is None:
        raise SettingsError([f"query {plan.query_name!r}: the job ended without putting it on record; run it again"])
    schedule, roster = registration.query.schedule, registration.query.roster
    found: list[str] = []
    for name in left_to_data(plan, settings):
        if name == "roster":
            groups = "" if roster.kind == "series" else f" in {plural(len(roster.keys), 'group')}"
            found.append(f"roster: {len(roster.series):,} series{groups}")
        elif name == "windows.start" or schedule.bounded:
            slot = schedule.first if name == "windows.start" else schedule.covered.stop
            found.append(f"{name}: {format_instant(plan.grid.time_of(slot))}")
    query, sink = registration.query, settings.sink
    stand_in = (f"THE BELIEF IS A STAND-IN: {STAND_IN_TEXT}; every row says so",) if plan.stand_in else ()
    noisiest = max((query.of_length(slots) for slots in schedule.own_lengths), key=lambda one: one.scale)
    return Summary(
        query=plan.query_name,
        domain=plan.domain.name,
        # of an endless schedule, those that have an entry
        windows=len(schedule) if schedule.stop is not None else len(after.complete | after.refused),
        windows_published=len(after.complete - before.complete),
        windows_drawn=None,
        rows_published=_rows(registration, after.complete - before.complete),
        rows_drawn=None,
        windows_completed=len((after.complete - before.complete) & before.charged),
        windows_on_record=len(before.complete),
        windows_refused=len(after.refused),
        rows=_rows(registration, after.complete),
        sink="" if sink is None else settings.path(sink.path) if sink.is_files else sink.text,
        epsilon=plan.epsilon,
        loss_before=before.account.loss,
        loss_after=after.account.loss,
        budget=after.account.budget,
        scale=float(noisiest.scale),
        half_width_95=int(noisiest.header["half_width_95"]),
        by_length=NoiseOfLength.recorded(plan, registration),
        median_share=float(np.median(error_shares(plan, roster))),
        classes=len(plan.classes),
        total=fewest_slots(plan) * float(np.median(roster.members)),
        stand_in=plan.stand_in,
        belief=belief_text(plan.model.provenance),
        cost=Cost.of(plan, priced(schedule, registration.query.losses)),
        naive_loss=after.account.naive,
        from_data=tuple(found),
        given_model=registration.query.given_model,
        history_lost=after.account.history_lost,
        assumptions=assumptions(plan.resolve(schedule, roster)),
        of_history=of_history(plan),
        cautions=(*stand_in, *(one.text for one in after.account.shares), *of_units(settings)),
        operator_only=None if tallies is None else _operator(tallies, plan.domain.missing),
    )


def _rows(registration: Registration, starts: Iterable[int]) -> int:
    """How many rows windows have, of which each is given by its first slot."""
    schedule = registration.query.schedule
    return sum(len(registration.roster_of(schedule.window_at(start)).keys) for start in starts)


#: Counters that only a live job has something to say by.
_LIVE = ("readings-on-record", "windows-released", "windows-refused", "rows-already-on-record", "blocks-incomplete")


def with_live(summary: Summary, tallies: dict[str, int] | None) -> Summary:
    """A summary with the tallies that only a live job has."""
    if summary.operator_only is None or tallies is None:
        return summary
    more = {name.replace("-", "_"): tallies.get(name, 0) for name in _LIVE}
    summary = replace(summary, operator_only=summary.operator_only | more)
    if summary.windows_published and not tallies.get(READINGS) and not more["readings_on_record"]:
        return replace(summary, cautions=(_EMPTY, *summary.cautions))
    return summary


_EMPTY = (
    "no reading counted: the windows of this run were published and charged without any; see the tallies below, and "
    "check how readings tells to read the source, windows.start and roster"
)


def _operator(tallies: dict[str, int], missing: str = "") -> dict[str, Any]:
    """Tallies for the operator, from Beam's counters, under a rule for cells without a reading."""
    rejected = {reason: tallies.get(counter_name(reason), 0) for reason in RejectReason}
    found: dict[str, Any] = {name.replace("-", "_"): tallies.get(name, 0) for name in (READINGS, DUPLICATES, OUTSIDE)}
    return found | {
        "rejected": {reason.value: count for reason, count in rejected.items() if count},
        "values_told_by_totals": 0 if missing == "state" else sum(rejected[reason] for reason in OF_VALUES),
    }


def show(console: Console, summary: Summary, *, every: bool = False) -> None:
    """Print a summary, or with every number of it."""
    heading(console, f"{summary.query} over {summary.domain}")
    share = summary.half_width_95 / summary.total
    said = [
        ("windows", _windows(summary)),
        ("rows", f"{summary.rows:,} in {summary.sink}"),
        ("noise", f"each count within {summary.half_width_95:,} (95 %), {percent(share)} of a total"),
        (
            "loss",
            f"{summary.loss_after:.4g} of {summary.budget:g}: {odds(summary.loss_after)} about one slot, to someone "
            "who knows the habits",
        ),
        ("belief", "a STAND-IN: nothing says that it holds" if summary.stand_in else summary.belief),
    ]
    if every:
        naive = "never ends" if summary.naive_loss is None else f"says {summary.naive_loss:g}"
        said += [
            ("scale", f"{summary.scale:.4g} cells; expected error {summary.median_share:.1%} of an evenly filled bin"),
            *(("" if at else "by length", one.text) for at, one in enumerate(summary.by_length)),
            ("before", f"loss {summary.loss_before:.9g}, after {summary.loss_after:.9g}; naive adding {naive}"),
            *([] if summary.cost.calibration is None else [("", summary.cost.calibration)]),
            ("event", summary.cost.protection),
        ]
    said += [("public", f"{one}, taken from the data and frozen") for one in summary.from_data]
    said += [("rests on", one) for one in summary.assumptions if every or GIVEN in one]
    facts(console, said)
    if summary.windows_on_record:
        charged = "" if summary.windows_published else "Nothing was charged: every row was on record already. "
        paragraph(console, f"{charged}Rows on record stay as they were first published, whatever the input is now.")
    if summary.windows_refused:
        paragraph(
            console,
            f"Refused: {plural(summary.windows_refused, 'window')}, for ever; the ledger says what each would have "
            "cost. More budget is a decision of its own: quiltstream ledger budget.",
        )
    if summary.history_lost:
        paragraph(
            console,
            "History lost: by the operator's word, charges made elsewhere are missing from this account; its loss is "
            "too small, and stays marked so.",
        )
    if summary.cautions:
        heading(console, "Look at this")
        notes(console, summary.cautions)
    heading(console, OPERATOR)
    tallies = [one for one in _tallies(summary.operator_only) if every or one[0] != "totals"]
    facts(console, [*tallies, *(("left out", line) for line in summary.left_out)])
    notes(console, summary.of_history)


def _windows(summary: Summary) -> str:
    of_them: list[str] = []
    drawn, rows, part = summary.rows_drawn, summary.rows_published, ""
    if summary.windows_published and drawn is not None and drawn != rows:
        # a job before it, or beside it, drew parts of windows, too
        part = f"; of their {rows:,} rows this job drew {drawn:,}"
    if summary.windows_completed:
        of_them.append(f"{summary.windows_completed:,} of them charged before it began")
    new = f"{summary.windows_published:,} newly on record" + (f" ({', '.join(of_them)})" if of_them else "")
    refused = f", {summary.windows_refused:,} refused" if summary.windows_refused else ""
    before = f"{summary.windows_on_record:,} on record before{refused}, of {summary.windows:,}"
    return f"{new}{part}; {before}" if part else f"{new}, {before}"


def _tallies(operator: dict[str, Any] | None) -> list[tuple[str, str]]:
    if operator is None:
        return [("tallies", "not known: this runner reports none, or not of a job that was stopped")]
    readings, doubled = operator["readings"], operator["duplicates"]
    rows = [
        (
            "readings",
            f"{readings:,} in the schedule, {operator['outside_schedule']:,} outside, "
            f"{doubled:,} in a cell that had one",
        ),
    ]
    if "readings_on_record" in operator:
        again, held = operator["rows_already_on_record"], operator["blocks_incomplete"]
        rows += [
            ("read again", f"{operator['readings_on_record']:,} of windows on record, because the job began anew"),
            ("windows", f"{operator['windows_released']:,} released, {operator['windows_refused']:,} refused"),
            ("runner", f"{plural(again, 'row')} sent again, {plural(held, 'incomplete block')} dropped"),
        ]
    rejected = operator["rejected"]
    rows += [("rejected", f"{count:,}: {RejectReason(reason).text}") for reason, count in rejected.items()]
    if lost := operator["values_told_by_totals"]:
        rows.append(
            (
                "totals",
                f"{plural(lost, 'value')} rejected: each leaves its cell missing, and a published total tells how many "
                "are missing; that is taken as public and independent of the states, or set missing: state",
            )
        )
    return rows
