"""The one composite transform: readings in, private histograms out.

    readings | PrivateHistograms(settings)

Readings are Arrow record batches of ``schemas.READING_SCHEMA``, or dicts, Beam rows, named tuples and data frames
with the same fields (:mod:`.sources.reading_rows`), with values in the unit of the edges. The result has three
outputs: ``releases`` (``schemas.RELEASE_SCHEMA``), ``refused`` (``schemas.ledger.LEDGER_SCHEMA``) and ``rejected``
(``schemas.readings.REJECT_SCHEMA``).

A source of the user's own declares no window complete. Beside it stands the wall clock as a source without readings,
which declares each window once it is over by the wall clock and the allowed lateness. The runner joins both watermarks,
so a window fires when both have passed its end; and because these declarations name no sequence numbers, only panes on
time are published (:mod:`.aggregate.collect`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from os import PathLike
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, cast, get_args
from uuid import uuid4

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam import typehints
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions
from apache_beam.pvalue import AsSingleton, PCollection, PValue
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.transforms.window import GlobalWindows

from ..schemas.errors import QuiltstreamError
from ..schemas.model_file import Model
from ..schemas.readings import RejectReason
from ..schemas.roster import MOST_SERIES, Roster
from ..schemas.roster import check_number as check_series
from ..schemas.settings.base import SettingsError
from ..schemas.settings.job import Accepted, Settings
from ..schemas.slots import format_instant, parse_duration
from ..schemas.states import StateSpace
from ..store.address import StoreAddress
from ..store.errors import StoreConflict
from ..store.specs import Noise, Registration
from ..store.store import Store
from .aggregate.coders import Part
from .aggregate.collect import PIECES, CollectCells, GatherPanes, SortPanes, window_into
from .aggregate.encode import REJECTED, TALLIES, EncodeCells
from .aggregate.memory import Memory
from .aggregate.release import (
    REFUSED,
    ChargeAndCount,
    GatherTallies,
    ReleaseHistograms,
    ScheduledWindowEnds,
    SumTallies,
)
from .checks import check_hosts, check_modes, check_plan, check_watermarks
from .common.batches import READINGS, ReadingsError, counter_name, reading_columns
from .plan import Plan, make_plan, not_a_model
from .readings.slots import Words
from .registration import Discovered, Tally, register, sum_tallies, words_of
from .sinks import WriteRows, read_release_rows
from .sources.contract import PartitionedSource, Reader, SourceBatch
from .sources.reader import PollingPolicy, ReadLive
from .sources.reading_rows import batched

#: A shard's number and what it has: keys have a coder of their own on every runner.
_SHARDED = typehints.Tuple[int, Part]


#: Readings of pipelines of this process, by a name of their own: in the graph they would be packed with every step.
_HELD: dict[str, list[Any]] = {}


@contextmanager
def _holding(elements: list[Any]) -> Generator[str]:
    name = uuid4().hex
    _HELD[name] = elements
    try:
        yield name
    finally:
        del _HELD[name]


def _held(name: str) -> list[Any]:
    if name not in _HELD:
        raise ReadingsError("readings in a list stay in this process, and this worker is another: use beam.Create")
    return _HELD[name]


class _OfHeld(beam.PTransform[Any, Any]):
    """The transform of readings that this process holds."""

    def __init__(self, then: PrivateHistograms) -> None:
        super().__init__()
        self._then = then

    def expand(self, input_or_inputs: Any) -> Histograms:
        """Build the graph."""
        return input_or_inputs | beam.FlatMap(_held).with_output_types(Any) | self._then


class Histograms(NamedTuple):
    """The outputs of :class:`PrivateHistograms`, each a ``PCollection`` of Arrow record batches.

    No transform takes the three together: take ``.releases``, as in ``published.releases | beam.Map(print)``.
    """

    releases: Any
    refused: Any
    rejected: Any


class PrivateHistograms(beam.PTransform[Any, Any]):
    """Publishes a noisy histogram of every series or group in every window, at most once, within the domain's budget.

    Args:
        settings: the job; its ``source`` and ``sink`` are not used here.
        model: the belief as an object, instead of the one that the settings name; or, with keyword fields, that of the
            settings: a file or bounds such as ``{"pi_min": 0.01, "gap": 0.3}``.
        noise: a hook of the tests: ``none`` publishes true counts, labelled so, into a store that never holds real
            rows.
        even_if_empty: publish the windows of readings that end although no reading counts in any of them.
        accept_noise: publish although the expected error is above the settings' ``most_error``.
        accept_stand_in: publish although the settings' ``model`` is ``stand-in``.
        accept_cover: publish although the belief covers a further series with odds below 0.8.
        by_watermark: of a source that never ends and declares no window complete itself, as those of other libraries:
            publish a window when the watermark of its readings and the wall clock have passed its end. Assumed where
            the type of the elements in Beam is another one than record batches.
        fields: the settings' fields instead of a settings object, for example ``slots={"interval": "30min"}``.

    Raises:
        SettingsError: at construction, naming each mistake.
        ModelError: the model cannot be used.

    The guarantee is that of the plan's calibration ([SWC17] Algorithm 4 and Lemma 4.9) composed by the ledger (theory
    section 4); it does not rest on any behaviour of the runner.
    """

    #: before which instant windows that end by the watermark may lack readings
    _lost_us: int | None = None

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        model: Model | dict[str, Any] | str | None = None,
        noise: Noise = "private",
        even_if_empty: bool = False,
        accept_noise: bool = False,
        accept_stand_in: bool = False,
        accept_cover: bool = False,
        by_watermark: bool = False,
        **fields: Any,
    ) -> None:
        super().__init__()
        _check_arguments(
            settings,
            model,
            noise,
            fields,
            even_if_empty=even_if_empty,
            accept_noise=accept_noise,
            accept_stand_in=accept_stand_in,
            accept_cover=accept_cover,
            by_watermark=by_watermark,
        )
        if settings is None and not fields:
            raise SettingsError("settings: give either a Settings object or the fields as keyword arguments")
        given = model if isinstance(model, Model) else None
        if settings is None:
            # the settings want a file or bounds; a Model object stands in for either
            settings = Settings.parse({**fields, "model": given.model_id if given is not None else model})
        elif model is not given:
            raise SettingsError("model: the settings object names one; give a Model object to use instead, or none")
        plan = make_plan(settings, given, noise=noise)
        before = plan.accepted
        accepted = Accepted(
            before.noise or accept_noise, before.stand_in or accept_stand_in, before.cover or accept_cover
        )
        self._plan = replace(plan, accepted=accepted)
        self._even_if_empty = even_if_empty
        self._by_watermark = by_watermark
        self._begun: Registration | None = None
        lateness = settings.windows.lateness
        self._lateness_us = 0 if lateness is None else parse_duration(lateness)

    def __repr__(self) -> str:
        plan, calendar = self._plan, self._plan.schedule.calendar
        length = f"{plan.schedule.size} slots" if calendar is None else f"a {calendar.unit}"
        return (
            f"PrivateHistograms(query={plan.query_name!r}, domain={plan.domain.name!r}, "
            f"mechanism={plan.calibration.method!r}, epsilon={plan.epsilon:g}, scale={float(plan.scale):.6g}, "
            f"windows of {length})"
        )

    @classmethod
    def of(
        cls,
        plan: Plan,
        *,
        even_if_empty: bool = False,
        by_watermark: bool = False,
        lateness_us: int = 0,
        begun: Registration | None = None,
    ) -> PrivateHistograms:
        """The transform of a plan that is made already.

        ``begun`` is what was on record before the job, where it goes on with the state of another one; see
        :meth:`.Registration.as_begun`.
        """
        made = cls.__new__(cls)
        beam.PTransform.__init__(made)
        made._plan, made._even_if_empty = plan, even_if_empty  # noqa: SLF001 - of its own class
        made._by_watermark, made._lateness_us = by_watermark, lateness_us  # noqa: SLF001 - likewise
        made._begun = begun  # noqa: SLF001 - likewise
        return made

    @classmethod
    def publish(cls, readings: Any, settings: Settings, **given: Any) -> Any:
        """Publish readings that end, in this process, without a line of Beam: for a notebook.

        Args:
            readings: a data frame, or a list of frames, dicts or record batches.
            settings: the job.
            given: ``accept_noise`` and others, as of the transform.

        Returns:
            The released rows, those on record before too: a frame of the library that the first frame is of, polars or
            pandas, and else an Arrow table.
        """
        elements: list[Any] = readings if isinstance(readings, list) else [readings]
        with TemporaryDirectory() as folder:
            path = f"{folder}/rows.parquet"
            with _holding(elements) as name, beam.Pipeline(FnApiRunner(), PipelineOptions([])) as pipeline:
                published: Any = pipeline | beam.Create([name]) | _OfHeld(cls(settings, **given))
                _ = published.releases | WriteRows(path, "parquet")
            rows = read_release_rows(path)
        library = type(elements[0]).__module__.partition(".")[0] if elements else ""
        return type(elements[0])(rows) if library == "polars" else rows.to_pandas() if library == "pandas" else rows

    def __ror__(self, left: Any, label: str | None = None) -> Any:
        """Readings in a list, ``[frame] | PrivateHistograms(settings)``, as Beam runs any transform.

        Raises:
            ReadingsError: it is a frame, which would be taken for a collection of its columns.
        """
        if hasattr(left, "__arrow_c_stream__"):
            raise ReadingsError("a frame is one element: write [frame] | PrivateHistograms(settings)")
        if not isinstance(left, list) or any(isinstance(one, PValue) for one in left):
            return super().__ror__(left, label)
        with _holding(left) as name:
            return [name] | _OfHeld(self)

    def in_ledger(
        self,
        address: StoreAddress,
        memory: Memory | None = None,
        begun: Registration | None = None,
        *,
        lost: int | None = None,
    ) -> PrivateHistograms:
        """The same transform, which insists on the ledger of an address, and remembers it before a row leaves."""
        made = copy(self)
        memory = self._plan.memory if memory is None else memory
        made._plan = replace(self._plan, address=address, memory=memory, lost=lost)  # noqa: SLF001 - of its own class
        made._begun = self._begun if begun is None else begun  # noqa: SLF001 - likewise
        return made

    def by_the_watermark(self, lost_us: int | None = None) -> PrivateHistograms:
        """The same transform, for a source that declares no window.

        Windows that start before ``lost_us``, in microseconds since 1970, may lack readings, and say so.
        """
        made = copy(self)
        made._by_watermark, made._lost_us = True, lost_us  # noqa: SLF001 - of its own class
        return made

    @property
    def plan(self) -> Plan:
        """What will be charged and how much noise is drawn."""
        return self._plan

    @property
    def begun(self) -> Registration | None:
        """What was on record before the job, where it goes on with the state of another one."""
        return self._begun

    def expand(self, input_or_inputs: Any) -> Histograms:
        """Build the graph.

        Args:
            input_or_inputs: the readings, one ``PCollection``.

        Raises:
            ReadingsError: it is something else, or readings are of a type that is not taken.

        A live query is put on record now. One over readings that end is tried now, where windows and roster are known,
        and put on record when all readings are encoded and one of them counts, before anything is charged.
        """
        plan, readings = self._plan, _one_collection(input_or_inputs)
        if not isinstance(readings.windowing.windowfn, GlobalWindows):  # the windows here are the schedule's
            readings = readings | "All time" >> beam.WindowInto(GlobalWindows())
        live, runner = not readings.is_bounded, type(readings.pipeline.runner).__name__
        # elements of unknown type may be batches with declarations
        by_watermark = live and (
            self._by_watermark or readings.element_type not in (Any, typehints.Any, pa.RecordBatch)
        )
        grouped = plan.group_column is not None
        readings = batched(readings, plan.domain.reading, plan.space, grouped=grouped, words=plan.words)
        check_hosts(runner, plan.address)
        check_modes(readings.pipeline.options)
        check_plan(plan, live=live)
        if by_watermark:
            check_watermarks(plan, runner)
        plan = plan.opened()  # workers find the ledger, and never make one
        seen: Any = None
        begun = self._begun or (record_before(plan, readings.pipeline.options) if live else None)
        if live or (plan.resolved and plan.schedule.bounded):
            registration: Any = register(plan, trial=not live)
            if begun is not None and begun.revision == registration.revision:
                begun = None  # the graph has it already
            if by_watermark:
                policy = policy_of(plan, registration, self._lateness_us, runner)
                wall = WallClock(lost_us=self._lost_us)
                clock: Any = readings.pipeline | "Clock" >> ReadLive(wall, policy, grouped=grouped)
                readings = (readings, clock.readings) | "With clock" >> beam.Flatten()
                readings.element_type = pa.RecordBatch
        else:
            discover = DiscoverSchedule(
                plan.most_series, grouped=grouped, roster=plan.roster, space=plan.space, words=plan.words
            )
            survey = readings | "Survey" >> beam.CombineGlobally(discover)
            registration = AsSingleton(survey | "Rehearse" >> beam.Map(lambda seen: register(plan, seen, trial=True)))
            seen = AsSingleton(survey)
        # a live source's series cannot be gathered first: they join when they are seen
        declared = live and not by_watermark
        sight = live and plan.roster is None
        encode = EncodeCells(plan, follow=live, sight=sight, tally=not live, declared=declared, begun=begun)
        encoded = readings | "Encode" >> beam.ParDo(encode, registration).with_outputs(REJECTED, TALLIES, main="cells")
        cells = _sharded(encoded.cells)
        registered: Any = True
        if not live:
            keep = RegisterQuery(plan, even_if_empty=self._even_if_empty)
            tally = encoded[TALLIES] | "Tally" >> beam.CombineGlobally(sum_tallies)
            registered = AsSingleton(tally | "Register" >> beam.ParDo(keep, registration, seen))
            # a live source says itself which windows are complete
            seed = readings.pipeline | "Seed" >> beam.Impulse()
            ends = seed | "Schedule" >> beam.ParDo(ScheduledWindowEnds(plan), registration)
            cells = _sharded((cells, _sharded(ends)) | "Join" >> beam.Flatten())
        windowed = cells | "Window" >> window_into(plan.grid, plan.schedule)
        collected = _sharded(windowed | "Collect" >> beam.CombinePerKey(CollectCells()))
        charge = ChargeAndCount(plan, live=live, sight=sight, begun=begun)
        counted = _counted(collected, plan, charge, registration, registered, live=live)
        released = counted | "Release" >> beam.ParDo(ReleaseHistograms(plan, live=live), registration).with_outputs(
            REFUSED, main="releases"
        )
        return Histograms(released.releases, released[REFUSED], encoded[REJECTED])


def _one_collection(given: Any) -> Any:
    """What the transform is applied to, if it is one collection.

    Raises:
        ReadingsError: it is a pipeline, or several collections.
    """
    if isinstance(given, PCollection):
        return cast("Any", given)
    raise ReadingsError(
        f"PrivateHistograms is applied to a {type(given).__name__}, and takes one PCollection of readings: read them "
        "first, as by beam.Create(readings), and put several collections together by beam.Flatten()"
    )


def _check_arguments(settings: Any, model: Any, noise: Any, fields: Iterable[str], **flags: Any) -> None:
    """Refuse arguments of other types, which an untyped pipeline may give: a text that says no is true.

    Raises:
        SettingsError: naming each.
    """
    problems: list[str] = []
    if settings is not None and fields:
        beside = ", ".join(fields)
        problems.append(f"{beside}: no argument beside a Settings object; check its spelling, or leave it out")
    if why := not_a_model(model):
        problems.append(why)
    if settings is not None and not isinstance(settings, Settings):
        kind = type(settings).__name__
        then = "PrivateHistograms(Settings.parse(...)), or its fields as keyword arguments, PrivateHistograms(**fields)"
        if isinstance(settings, (str, PathLike)):
            then = "PrivateHistograms(load_settings(path.read_text(), folder=path.parent)), where path is a Path"
        problems.append(f"settings is of the type {kind}, and must be a Settings object: give {then}")
    if noise not in get_args(Noise):
        problems.append(f"noise is {noise!r}, and must be 'private', or in tests 'none': leave it out")
    problems += [
        f"{name} is {flag!r}, and must be True or False" for name, flag in flags.items() if type(flag) is not bool
    ]
    if problems:
        raise SettingsError(problems)


def _sharded(collection: Any) -> Any:
    """A collection with its coder: Beam forgets the type of tagged outputs and of combined values."""
    collection.element_type = _SHARDED
    return collection


def _counted(
    collected: Any, plan: Plan, charge: ChargeAndCount, registration: Any, registered: Any, *, live: bool
) -> Any:
    """Panes of collected cells as tallies, summed per group where there are groups."""
    count = beam.ParDo(charge, registration, registered).with_output_types(_SHARDED)
    if live:
        panes = collected | "Sort" >> beam.ParDo(SortPanes(plan.grid)).with_outputs(PIECES, main="whole")
        gathered = _sharded(panes[PIECES]) | "Gather" >> beam.ParDo(GatherPanes(plan.grid)).with_output_types(_SHARDED)
        counts = (_sharded(panes.whole) | "Count" >> count, gathered | "Count gathered" >> count)
        counted = counts | "Either" >> beam.Flatten()
    else:
        counted = collected | "Count" >> count
    if plan.grouped:
        counted = _sharded(counted | "Sum" >> beam.CombinePerKey(SumTallies()))
        if live:
            counted = counted | "Gather sums" >> beam.ParDo(GatherTallies()).with_output_types(_SHARDED)
    return counted


#: Seconds between two looks at the clock.
_LOOK_S = 1.0

#: Seconds that a call lasts, and seconds until the next one, where a runner keeps every call.
_STAY_S, _REST_S = 5.0, 1.1


def _now_us() -> int:
    return time.time_ns() // 1_000


@dataclass(frozen=True)
class WallClock(PartitionedSource):
    """The wall clock.

    Its first declaration is of the windows that were over when the job began, which it declares replayed. It stands for
    a source whose positions are unknown: what comes of such a window may have been read before, and a source that was
    set back must not be said to be live.
    """

    now: Callable[[], int] = _now_us
    lost_us: int | None = None  # windows that start before it may lack readings

    def reader(self, part: int, position: str) -> Reader:  # noqa: ARG002 - it has one part, and no positions
        """A reader of the time."""
        return _ClockReader(self)


class _ClockReader(Reader):
    def __init__(self, clock: WallClock) -> None:
        self._clock = clock
        self._next = 0.0

    def read(self) -> SourceBatch | None:
        if time.monotonic() < self._next:
            return None
        self._next = time.monotonic() + _LOOK_S / 2
        return SourceBatch("", settled=True, latest_us=self._clock.now(), lost_us=self._clock.lost_us)

    def close(self) -> None:
        """Nothing is open."""


def goes_on(options: PipelineOptions) -> bool:
    """Whether a runner takes a job up with all that another kept: by an update, a snapshot or a savepoint."""
    cloud = options.view_as(GoogleCloudOptions)
    given = options.get_all_options(drop_default=True, retain_unknown_options=True)
    return bool(cloud.update or cloud.create_from_snapshot or given.get("savepoint_path"))


def record_before(plan: Plan, options: PipelineOptions) -> Registration | None:
    """What was on record before a job that goes on with the state of another; ``None`` for one that begins anew.

    Raises:
        SettingsError: the roster was changed, and some window that is open began before that: what the other job knew
            in it is on no record.
    """
    if plan.roster is None or not goes_on(options):
        return None
    with Store(plan.address) as store:
        held = store.registered(plan.domain.name, plan.query_name)
        if held is None or not held.versions:
            return held
        changed_us = held.versions[-1].created_us
        settled = held.settled_from(changed_us)
        if store.next_start(held) >= settled:
            return held
    raise SettingsError(
        [
            f"roster: it was changed at {format_instant(changed_us)}, and the job whose state this one takes up may "
            "have rejected readings of windows that are open: go on when the windows that begin before "
            f"{format_instant(plan.grid.time_of(settled))} are on record, or begin anew without that state"
        ]
    )


def policy_of(plan: Plan, registration: Registration, lateness_us: int, runner: str) -> PollingPolicy:
    """How the clock declares the windows of a query on record, from the first on that is missing there."""
    schedule, grid = registration.query.schedule, plan.grid
    with Store(plan.address) as store:
        found = next(store.missing(registration), None)
    # a window is declared that ends after this instant, so the first missing one is
    begin = schedule.covered.stop if found is None else found[0].stop - 1
    policy = PollingPolicy(
        begin_us=grid.time_of(begin),
        # a window waits for the readings after it that its slots depend on
        lateness_us=lateness_us + (0 if plan.words is None else plan.words.after_us),
        poll_s=_LOOK_S,
        end_us=grid.time_of(schedule.covered.stop) if schedule.bounded else None,
    )
    return policy if runner == "PrismRunner" else replace(policy, stay_s=_STAY_S, rest_s=_REST_S)


class NothingCountsError(QuiltstreamError):
    """No reading of the source counts in any window, and nothing is charged for nothing."""


class DiscoverSchedule(beam.CombineFn):
    """Record batches of readings to one :class:`Discovered`, of those that may count.

    Args:
        most: how many series, each with a group, the data may have where they are the roster.
        grouped: whether the readings name groups.
        roster: the series, where they are given.
        space: the states; readings of none do not count.
        words: what is said of several readings of a series.
    """

    def __init__(
        self,
        most: int = MOST_SERIES,
        *,
        grouped: bool = False,
        roster: Roster | None = None,
        space: StateSpace | None = None,
        words: Words | None = None,
    ) -> None:
        super().__init__()
        self._most = most
        self._words = words
        self._grouped = grouped
        self._series = None if roster is None else frozenset(roster.series)
        self._space = space

    def _check(self, seen: Discovered) -> Discovered:
        what = "series, each with a group that its readings name" if self._grouped else "series"
        check_series(len(seen.spans), self._most, "source, whose series are the roster", what)
        return seen

    def create_accumulator(self) -> Discovered:
        """Nothing seen."""
        return Discovered()

    def add_input(self, mutable_accumulator: Discovered, element: pa.RecordBatch) -> Discovered:
        """Look at a batch."""
        seen = mutable_accumulator
        held = self._words is not None and self._words.hold_us is not None
        columns = reading_columns(element, grouped=self._grouped, marks=held)
        names, good, rejects = columns.names.to_pylist(), columns.good, dict(columns.problems)
        if self._series is not None:
            # one more, for a batch without any name
            known = np.array([*(name in self._series for name in names), False])[columns.series]
            rejects[RejectReason.NOT_IN_ROSTER], good = good & ~known, good & known
        if self._space is not None and self._space.categories:
            labelled = self._space.are_states(columns.values) | np.isnan(columns.values)
            rejects[RejectReason.UNKNOWN_LABEL], good = good & ~labelled, good & labelled
        tally = {counter_name(reason): int(np.count_nonzero(bad)) for reason, bad in rejects.items()}
        seen.tally = sum_tallies((seen.tally, tally, {READINGS: int(np.count_nonzero(good))}))
        if not good.any():
            return seen
        times, pairs = columns.times[good], columns.series[good]
        # the last instant that a reading is about
        ends = times if self._words is None or columns.lengths is None else times + columns.lengths[good] - 1
        if self._series is not None:
            seen.extend((int(times.min()), int(ends.max())))
            return seen
        groups = [""]
        if columns.groups is not None and columns.group is not None:
            groups = columns.groups.to_pylist()
            pairs = pairs * len(groups) + columns.group[good]
        found, place = np.unique(pairs, return_inverse=True)
        first, last = np.full((2, len(found)), times[0])
        np.minimum.at(first, place, times)
        np.maximum.at(last, place, ends)
        # a name that stands in a dictionary twice is sighted twice
        for pair, *span in zip(found.tolist(), first.tolist(), last.tolist(), strict=True):
            seen.sight(names[pair // len(groups)], groups[pair % len(groups)], (span[0], span[1]))
        return self._check(seen)

    def merge_accumulators(self, accumulators: Iterable[Discovered]) -> Discovered:
        """Unite what several workers saw."""
        merged = Discovered()
        for one in accumulators:
            if one.span is not None:
                merged.extend(one.span)
            for (series, group), span in one.spans.items():
                merged.sight(series, group, span)
            merged.tally = sum_tallies((merged.tally, one.tally))
            self._check(merged)
        return merged

    def extract_output(self, accumulator: Discovered) -> Discovered:
        """What was seen."""
        return accumulator


class RegisterQuery(beam.DoFn):
    """The tally of all readings to a sign that the query is on record, for which the step that charges waits.

    Where no reading counts nothing is put on record: a wrong delimiter, unit of time or roster would be charged the
    whole budget for rows of noise, and its settings could not be corrected any more. What is on record already comes
    out as it is.
    """

    def __init__(self, plan: Plan, *, even_if_empty: bool) -> None:
        self._plan = plan
        self._even_if_empty = even_if_empty

    def process(self, tally: Tally, planned: Registration, seen: Discovered | None = None) -> Iterator[bool]:
        """Register the query.

        Raises:
            NothingCountsError: no reading counts, and something is not published yet.
            StoreError: the store cannot be used, or another job was first with another content.
        """
        if not tally.get(READINGS) and not self._even_if_empty:
            with Store(self._plan.address) as store:
                held = store.registered(self._plan.domain.name, self._plan.query_name)
                alike = None if held is None or _counted_by(held) != _counted_by(planned) else held
                whole = alike is not None and next(store.missing(alike), None) is None
            if not whole:
                raise NothingCountsError(_nothing_counts(tally))
        made = register(self._plan, seen)
        if self._plan.lost is not None:
            with Store(self._plan.address) as store:
                store.note_history_lost(self._plan.domain.name, releases=self._plan.lost)
        if _counted_by(made) != _counted_by(planned):
            raise StoreConflict(
                f"query {self._plan.query_name!r}: another job put it on record meanwhile, with other series, windows "
                "or shards than this one counted by; nothing was charged by this job: run it again"
            )
        yield True


def _counted_by(held: Registration) -> tuple[object, ...]:
    """What cells are encoded by: those of two registrations that agree in it are the same."""
    query = held.query
    return held.digest, query.schedule, query.shards, query.roster, held.versions, held.series


def _nothing_counts(tally: Tally) -> str:
    return (
        f"source: no reading counts in any window of any series ({words_of(tally)}), so no window was charged or "
        "published; check how readings tells to read the source, windows.start, windows.stop and roster, or run with "
        "--even-if-empty to publish windows without readings"
    )
