"""The one composite transform: readings in, private histograms out.

    readings | PrivateHistograms(settings)

Readings are Arrow record batches of ``schemas.READING_SCHEMA``, or dicts, Beam rows, named tuples and data frames
with the same fields (:mod:`.sources.reading_rows`), with values in the unit of the edges. The result has three
outputs: ``releases`` (``schemas.RELEASE_SCHEMA``), ``refused`` (``schemas.ledger.LEDGER_SCHEMA``) and ``rejected``
(``schemas.readings.REJECT_SCHEMA``).

A graph is built without a ledger: nothing is looked up, written or reserved before the job runs (:mod:`.register`). A
source of the user's own declares no window complete; the wall clock beside it does (:mod:`.wall_clock`), and only panes
on time are published then (:mod:`.aggregate.collect`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from os import PathLike
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, cast, get_args
from uuid import uuid4

import apache_beam as beam
import pyarrow as pa
from apache_beam import typehints
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions
from apache_beam.pvalue import AsSingleton, PCollection, PValue
from apache_beam.transforms.window import GlobalWindows

from ..schemas.model_file import Model
from ..schemas.settings.base import SettingsError
from ..schemas.settings.job import Accepted, Settings
from ..store.address import StoreAddress
from ..store.specs import Noise, Registration
from .aggregate.coders import Part
from .aggregate.collect import PIECES, CollectCells, GatherPanes, SortPanes, window_into
from .aggregate.encode import REJECTED, TALLIES, DeclareWindows, EncodeCells, ScheduledWindowEnds
from .aggregate.memory import Memory
from .aggregate.release import (
    REFUSED,
    ChargeAndCount,
    GatherTallies,
    ReleaseHistograms,
    SumTallies,
)
from .calibrating import not_a_model
from .checks import check_hosts, check_modes, check_plan, check_watermarks
from .common.batches import ReadingsError, typed
from .completeness import FromSource
from .plan import Plan, make_plan
from .register import DiscoverSchedule, Register, RegisterCounted
from .registration import Discovered, Registered, registered, sum_outcomes
from .sinks import WriteRows, read_release_rows
from .sources.reader import followed
from .sources.reading_rows import batched
from .wall_clock import ReadClock

#: A shard's number and what it has: keys have a coder of their own on every runner.
_SHARDED = typehints.Tuple[int, Part]


#: Readings of pipelines of this process, by a name of their own: in the graph they would be packed with every step.
_KEPT: dict[str, list[Any]] = {}


@contextmanager
def _keeping(elements: list[Any]) -> Generator[str]:
    name = uuid4().hex
    _KEPT[name] = elements
    try:
        yield name
    finally:
        del _KEPT[name]


def _kept(name: str) -> list[Any]:
    if name not in _KEPT:
        raise ReadingsError("readings in a list stay in this process, and this worker is another: use beam.Create")
    return _KEPT[name]


class _OfKept(beam.PTransform[Any, Any]):
    """The transform of readings that this process holds."""

    def __init__(self, then: PrivateHistograms) -> None:
        super().__init__()
        self._then = then

    def expand(self, input_or_inputs: Any) -> Histograms:
        """Build the graph."""
        return input_or_inputs | beam.FlatMap(_kept).with_output_types(Any) | self._then


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
        settings: the job; its ``source`` and ``sink`` are not used here. Or the plan of one, as :meth:`of` has it.
        model: the belief as an object, instead of the one that the settings name; or, with keyword fields, that of the
            settings: a file or bounds such as ``{"pi_min": 0.01, "gap": 0.3}``.
        noise: a hook of the tests: ``none`` publishes true counts, labelled so, into a store that never holds real
            rows.
        even_if_empty: publish the windows of readings that end although no reading counts in any of them.
        accept_noise: publish although the expected error is above the settings' ``most_error``.
        accept_stand_in: publish although the settings' ``model`` is ``stand-in``.
        accept_cover: publish although the belief covers a further series with probability below 0.8.
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
        settings: Settings | Plan | None = None,
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
        accepted = {"accept_noise": accept_noise, "accept_stand_in": accept_stand_in, "accept_cover": accept_cover}
        flags = {"even_if_empty": even_if_empty, **accepted, "by_watermark": by_watermark}
        _check_arguments(settings, model, noise, fields, **flags)
        plan = settings if isinstance(settings, Plan) else _plan_of(settings, model, noise, fields)
        before = plan.accepted
        said = Accepted(before.noise or accept_noise, before.stand_in or accept_stand_in, before.cover or accept_cover)
        self._plan = replace(plan, accepted=said)
        self._even_if_empty = even_if_empty
        self._by_watermark = by_watermark
        self._before: Registration | None = None
        self._registered: Registration | None = None

    def __repr__(self) -> str:
        plan, calendar = self._plan, self._plan.schedule.calendar
        length = f"{plan.schedule.size} slots" if calendar is None else f"a {calendar.unit}"
        return (
            f"PrivateHistograms(query={plan.query_name!r}, domain={plan.domain.name!r}, "
            f"mechanism={plan.calibration.method!r}, epsilon={plan.epsilon:g}, scale={float(plan.scale):.6g}, "
            f"windows of {length})"
        )

    @classmethod
    def of(cls, plan: Plan, *, even_if_empty: bool = False, by_watermark: bool = False) -> PrivateHistograms:
        """The transform of a plan that is made already."""
        return cls(plan, even_if_empty=even_if_empty, by_watermark=by_watermark)

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
        from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner  # noqa: PLC0415 - a graph needs none

        with TemporaryDirectory() as folder:
            path = f"{folder}/rows.parquet"
            with _keeping(elements) as name, beam.Pipeline(FnApiRunner(), PipelineOptions([])) as pipeline:
                published: Any = pipeline | beam.Create([name]) | _OfKept(cls(settings, **given))
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
        with _keeping(left) as name:
            return [name] | _OfKept(self)

    def in_ledger(
        self,
        address: StoreAddress,
        memory: Memory | None = None,
        begun: Registration | None = None,
        *,
        registered: Registration | None = None,
        lost: int | None = None,
    ) -> PrivateHistograms:
        """The same transform, which insists on the ledger of an address, and remembers it before a row leaves.

        ``begun`` is what was on record before the job, where it goes on with the state of another one, and
        ``registered`` what is now, where the caller has registered the query: see :class:`.Registered`.
        """
        made = copy(self)
        memory = self._plan.memory if memory is None else memory
        made._plan = replace(self._plan, address=address, memory=memory, lost=lost)  # noqa: SLF001 - of its own class
        made._before = self._before if begun is None else begun  # noqa: SLF001 - likewise
        made._registered = registered  # noqa: SLF001 - likewise
        return made

    def register(self) -> PrivateHistograms:
        """The same transform over readings that never end, with its query on record now.

        For a graph that runs at once: on Flink, whose steps cannot wait until the query is put on record, and on Prism,
        where steps that wait add .15 s to the delay of each window.
        """
        plan = self._plan.opened()
        check_plan(plan, live=True)
        return self.in_ledger(plan.address, registered=registered(plan, live=True).now)

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
        return self._before

    def expand(self, input_or_inputs: Any) -> Histograms:
        """Build the graph; no ledger is opened, and nothing is written.

        Args:
            input_or_inputs: the readings, one ``PCollection``.

        Raises:
            ReadingsError: it is something else, or readings are of a type that is not taken.
            SettingsError: the plan cannot be run by itself, or not on this runner.
        """
        plan, readings = self._plan, _one_collection(input_or_inputs)
        if not isinstance(readings.windowing.windowfn, GlobalWindows):  # the windows here are the schedule's
            readings = readings | "All time" >> beam.WindowInto(GlobalWindows())
        pipeline, live = readings.pipeline, not readings.is_bounded
        runner, grouped = type(pipeline.runner).__name__, plan.group_column is not None
        by_watermark = live and readings.element_type is not FromSource
        if by_watermark and not self._by_watermark and readings.element_type in (Any, typehints.Any, pa.RecordBatch):
            raise ReadingsError(_NEVER_COMPLETE)
        if not live or by_watermark:
            readings = batched(readings, plan.domain.reading, plan.space, grouped=grouped, words=plan.words)
        known = self._registered
        _check_runner(plan, pipeline, live=live, waits=known is None)
        if by_watermark:
            check_watermarks(plan, runner)
        # no step stands apart that the job can do without: on Flink a part that is connected with no other goes on when
        # a worker of the others has died, and keeps them from getting a new one
        seed: Any = pipeline | "Seed" >> beam.Impulse() if known is None or not live else None
        begin, seen = seed, None
        if not live and not (plan.resolved and plan.schedule.bounded):
            discover = DiscoverSchedule(
                plan.most_series, grouped=grouped, roster=plan.roster, space=plan.space, words=plan.words
            )
            begin = readings | "Survey" >> beam.CombineGlobally(discover).with_output_types(Discovered)
            seen = AsSingleton(begin)
        if known is None:
            first = beam.ParDo(Register(plan, live=live, goes_on=goes_on(pipeline.options)))
            made: Any = begin | "Register" >> first.with_output_types(Registered)
            record: Any = AsSingleton(made)
        else:
            made, record = None, Registered(plan.address.store_id or "", known, self._before)
        # a live source's series cannot be gathered first: they join when they are seen
        sight = live and plan.roster is None
        step = beam.ParDo(EncodeCells(plan, live=live, sight=sight), record)
        encoded = readings | "Encode" >> step.with_outputs(REJECTED, TALLIES, main="cells")
        cells = typed(encoded.cells, _SHARDED)
        ends: Any = None
        if not live:
            ends = seed | "Schedule" >> beam.ParDo(ScheduledWindowEnds(plan), record).with_output_types(_SHARDED)
            tally = encoded[TALLIES] | "Tally" >> beam.CombineGlobally(sum_outcomes)
            keep = beam.ParDo(RegisterCounted(plan, even_if_empty=self._even_if_empty), record, seen)
            record = AsSingleton(tally | "Keep" >> keep.with_output_types(Registered))
        elif by_watermark:
            begun = made if made is not None else pipeline | "Registered" >> beam.Create([record])
            clock = followed(begun, ReadClock(plan, runner, self._lost_us)).readings
            ends = clock | "Declare" >> beam.ParDo(DeclareWindows(plan), record).with_output_types(_SHARDED)
        if ends is not None:  # else the source says itself which windows are complete
            cells = (cells, ends) | "Join" >> beam.Flatten()
        windowed = cells | "Window" >> window_into(plan.grid, plan.schedule)
        collected = typed(windowed | "Collect" >> beam.CombinePerKey(CollectCells()), _SHARDED)
        counted = _counted(collected, plan, ChargeAndCount(plan, live=live, sight=sight), record, live=live)
        released = counted | "Release" >> beam.ParDo(ReleaseHistograms(plan, live=live), record).with_outputs(
            REFUSED, main="releases"
        )
        outputs = released.releases, released[REFUSED], encoded[REJECTED]
        return Histograms(*(typed(one, pa.RecordBatch) for one in outputs))


#: Runners that may be Flink's.
_CANNOT_WAIT = frozenset({"FlinkRunner", "PortableRunner"})

_NEVER_COMPLETE = (
    "readings are of a source that never ends and declares no window complete, so no window would ever be published: "
    "use PrivateHistograms(..., by_watermark=True), which goes by the watermark of the source"
)


def _check_runner(plan: Plan, pipeline: beam.Pipeline, *, live: bool, waits: bool) -> None:
    """Refuse what a plan cannot be run with, and a plan that cannot be run by itself."""
    runner = type(pipeline.runner).__name__
    check_hosts(runner, plan.address)
    check_modes(pipeline.options)
    check_plan(plan, live=live)
    if live and waits and runner in _CANNOT_WAIT:
        raise SettingsError(
            f"runner: steps of {runner} cannot wait until the query is put on record (Flink with Beam 2.62): use "
            "PrivateHistograms(...).register(), which does so before the graph is built"
        )


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


def _plan_of(settings: Settings | None, model: Any, noise: Noise, fields: dict[str, Any]) -> Plan:
    """The plan of a settings object, or of its fields."""
    if settings is None and not fields:
        raise SettingsError("settings: give either a Settings object or the fields as keyword arguments")
    given = model if isinstance(model, Model) else None
    if settings is None:
        # the settings want a file or bounds; a Model object stands in for either
        settings = Settings.parse({**fields, "model": given.model_id if given is not None else model})
    elif model is not given:
        raise SettingsError("model: the settings object names one; give a Model object to use instead, or none")
    return make_plan(settings, given, noise=noise)


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
    if settings is not None and not isinstance(settings, (Settings, Plan)):
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


def _counted(collected: Any, plan: Plan, charge: ChargeAndCount, record: Any, *, live: bool) -> Any:
    """Panes of collected cells as tallies, summed per group where there are groups."""
    count = beam.ParDo(charge, record).with_output_types(_SHARDED)
    if live:
        panes = collected | "Sort" >> beam.ParDo(SortPanes(plan.grid)).with_outputs(PIECES, main="whole")
        pieces = typed(panes[PIECES], _SHARDED)
        gathered = pieces | "Gather" >> beam.ParDo(GatherPanes(plan.grid)).with_output_types(_SHARDED)
        counts = (typed(panes.whole, _SHARDED) | "Count" >> count, gathered | "Count gathered" >> count)
        counted = counts | "Either" >> beam.Flatten()
    else:
        counted = collected | "Count" >> count
    if plan.grouped:
        counted = typed(counted | "Sum" >> beam.CombinePerKey(SumTallies()), _SHARDED)
        if live:
            counted = counted | "Gather sums" >> beam.ParDo(GatherTallies()).with_output_types(_SHARDED)
    return counted


def goes_on(options: PipelineOptions) -> bool:
    """Whether a runner takes a job up with all that another kept: by an update, a snapshot or a savepoint."""
    cloud = options.view_as(GoogleCloudOptions)
    given = options.get_all_options(drop_default=True, retain_unknown_options=True)
    return bool(cloud.update or cloud.create_from_snapshot or given.get("savepoint_path"))
