"""Estimates that a job makes of its own model, each from what its settings name (theory section 7, item 5).

*outside*: series of other files, those of the roster left out: no secret of the domain is in it.
*released*: rows that were published and paid for; a function of them costs nothing. They show how rare a state is, and
not how fast the chain mixes: the gap is given by hand.
*counts*: a table of the domain's own transitions, released with noise of scale 4 / epsilon_dp and charged as a query of
the domain like any other, its windows as long as the time between two estimates.
*readings*: the exact transitions of the domain's own series. Noise and account are then functions of the secrets, and
rows and ledger say 'given the model'.

An estimate is lowered by a margin before it is believed: what is believed is a bound, and the next estimate will differ
a little.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from ...privacy.accounting.quilt_account import density_by_quilts
from ...privacy.analysis.methods import METHODS
from ...privacy.estimation.hypothesis_tests import outside
from ...privacy.estimation.private_counts import SENSITIVITY, NoisyCounts, release_counts_at
from ...privacy.estimation.released_bounds import bounds_of_released
from ...privacy.estimation.transition_counts import EstimationError, TransitionCounts
from ...privacy.mechanisms.discrete_laplace import DiscreteLaplace, epsilon_dp_of, rational_scale
from ...privacy.models.classes import MixingBounds, mixing_bounds
from ...privacy.models.markov_chain import ChainError
from ...privacy.models.serialisation import belief_from_dict
from ...schemas.model_file import Model, Provenance
from ...schemas.roster import Roster
from ...schemas.settings.base import SettingsError
from ...schemas.settings.connectors import FileSource
from ...schemas.settings.job import Settings, read_roster
from ...schemas.settings.model import Estimate
from ...schemas.slots import Schedule, Window, format_duration
from ...store.errors import RegistrationConflict, StoreMissing, UnknownNameError
from ...store.specs import TRANSITIONS, BlockToPublish, DomainSpec, NoisyBlock, QuerySpec, Registration
from ...store.store import Store
from ...transforms.formats.paths import SourceFileError
from ...transforms.plan import Plan, ledger_address
from ..commands.fit import model_from_counts, transitions_in
from ..errors import CommandError
from ..on_record import series_of
from .drift import published_between


@dataclass(frozen=True, slots=True)
class Made:
    """What came of an estimate.

    Attributes:
        model: the model, its bounds lowered by the margin; ``None`` where nothing can be said.
        reason: why nothing can be; without any number of the data.
    """

    model: Model | None
    reason: str = ""


def first_estimate(settings: Settings, estimate: Estimate) -> Model:
    """The model that a job begins with, from what there is before it.

    Raises:
        CommandError: there is nothing to estimate it from.
    """
    made = _of_files(settings, estimate, None)
    if made.model is None:
        raise CommandError(
            f"model.estimate: {made.reason}; give model.estimate.start, the model until there is an estimate"
        )
    return made.model


def estimate_at(settings: Settings, estimate: Estimate, plan: Plan, held: Registration, window: Window) -> Made:
    """The estimate at the end of a stretch of slots.

    Args:
        settings: the job.
        estimate: how it estimates.
        plan: the plan in force.
        held: the query that published the stretch's last windows.
        window: the slots since the last estimate.
    """
    if estimate.origin in ("outside", "readings"):
        return _of_files(settings, estimate, None if estimate.origin == "outside" else window.stop)
    with Store(plan.address) as store:
        if estimate.origin == "released":
            return _of_released(settings, estimate, store, held, window)
        counting = counting_on_record(settings, estimate, store)
        if counting is None:
            return Made(None, "the query of its tables, which was registered with the job, is not on record any more")
        return _of_counts(settings, estimate, store, counting, window)


def _of_files(settings: Settings, estimate: Estimate, stop: int | None) -> Made:
    """From exact counts of all that is there: of other series, or, up to a slot, of the domain's own."""
    files, source = estimate.outside, settings
    if files is not None:
        given = FileSource(**files.model_dump(exclude_none=True))
        source = settings.model_copy(update={"source": given})
    try:
        counts = transitions_in(source, None, stop)
        if files is not None:
            protected = _protected(settings)
            counts = counts.subset([name for name in counts.series if name not in protected])
        if not counts.series:
            return Made(None, "no series is there to estimate from")
        model = model_from_counts(source, counts, smoothing=estimate.smoothing, source=_SOURCES[estimate.origin])
    except (SettingsError, SourceFileError) as error:
        return Made(None, str(error).strip())
    except CommandError:
        return Made(None, "the counts make no chain that mixes; wait for more readings, or set smoothing")
    lowered = _lowered(settings, model, estimate)
    origin = replace(lowered.provenance, from_protected=estimate.origin == "readings")
    belief = belief_from_dict(lowered.belief)
    if not belief.members and belief.bounds is not None:
        # of what is believed, which is wider than what was found
        origin = replace(origin, outside=len(outside(belief.bounds, counts)))
    return Made(replace(lowered, provenance=origin))


def _protected(settings: Settings) -> frozenset[str]:
    """Every series that the domain protects or ever protected: of the roster's file, and of all its queries."""
    roster = read_roster(settings, grouped=False)
    found = set[str]() if roster is None else set(roster.series)
    with suppress(StoreMissing, UnknownNameError), Store(ledger_address(settings)) as store:
        found |= series_of(store, settings.domain)
    return frozenset(found)


_SOURCES = {"outside": "series outside the domain", "readings": "the domain's own readings"}


def _lowered(settings: Settings, model: Model, estimate: Estimate) -> Model:
    """The model with the margin taken off, where bounds are believed; a chain itself has none."""
    if METHODS[settings.privacy.mechanism].reads == "chains":
        return replace(model, diagnostics={})
    bounds, keep = mixing_bounds(belief_from_dict(model.belief)), 1 - estimate.margin
    lower = MixingBounds(bounds.pi_min * keep, bounds.gap * keep, kind=bounds.kind)
    method = f"{model.provenance.method}, margin {estimate.margin:g}"
    # what exact counts were is nobody's business once the model is made
    return replace(
        model,
        belief=lower.to_dict(),
        provenance=replace(model.provenance, method=method, notes=()),
        diagnostics={},
    )


def _of_released(settings: Settings, estimate: Estimate, store: Store, held: Registration, window: Window) -> Made:
    found = published_between(store, held, window)
    if found is None or estimate.gap is None:
        return Made(None, "no rows with a public total were released since the last estimate")
    if held.query.most > 1:
        return Made(None, "series are in several groups, and their cells would count more than once")
    try:
        bounds = bounds_of_released(
            found.counts, held.query.scale, found.totals, estimate.level, gap=estimate.gap, windows=found.draws
        )
    except (ChainError, EstimationError) as error:
        return Made(None, str(error))
    method = f"released rows at level {estimate.level:g}, gap by hand"
    return Made(_model_of(settings, bounds, estimate, method))


def _of_counts(settings: Settings, estimate: Estimate, store: Store, held: Registration, window: Window) -> Made:
    roster = read_roster(settings, grouped=False)
    if roster is None:
        return Made(None, "there is no roster")
    scale = held.query.scale
    absent = next(store.missing(held, start=window.start), None)
    counts = TransitionCounts.empty(settings.space.size)
    if absent is not None and absent[0] == window:
        counts = transitions_in(settings, window.start, window.stop, roster.series)  # not while the ledger is locked

    def draw() -> NoisyBlock:
        released = release_counts_at(
            counts, scale, start=window.start, stop=window.stop, missing_state=settings.missing == "state"
        )
        nothing = np.zeros(len(released.table), dtype=np.int64)
        return NoisyBlock(held.query.roster.shard_keys(0, 1), nothing, released.table)

    (record,) = store.publish(held, [BlockToPublish(window, 0, draw)])
    if record.block is None:
        return Made(None, "the budget does not allow this window's counts")
    table = NoisyCounts(record.block.counts, scale, window.start, window.stop)
    try:
        bounds = table.confidence_class(estimate.level).bounds()
    except (ChainError, EstimationError) as error:
        return Made(None, str(error))
    method = f"noisy transition counts at level {estimate.level:g}"
    return Made(_model_of(settings, bounds, estimate, method))


def with_counting(settings: Settings, estimate: Estimate, plan: Plan) -> Plan:
    """The plan of a query that is registered together with the one of its tables, if its model comes from any.

    So their budget is promised before anything is read, and no query that comes in between takes it.
    """
    if estimate.origin != "counts":
        return plan
    known: Registration | None = None
    with suppress(StoreMissing), Store(plan.address) as store:
        known = counting_on_record(settings, estimate, store)
    return replace(plan, also=(counting_query(settings, estimate, known, plan),))


def counting_query(
    settings: Settings, estimate: Estimate, known: Registration | None, plan: Plan
) -> tuple[DomainSpec, QuerySpec]:
    """The query whose releases are tables of transitions, and its domain, as they are to be registered.

    Every window is charged the loss per slot of its noise: a cell that changes moves the table by 4 in L1 at most
    (proof in ``privacy.estimation.private_counts``).

    Args:
        settings: the job, as its file has it.
        estimate: how it estimates.
        known: the query on record, if it is; what the schedule has more since then is added to it.
        plan: of the query that goes on now.
    """
    every = estimate.slots(settings.grid)
    if estimate.epsilon is None or every is None:
        raise SettingsError(["model.estimate: from: counts needs epsilon and every"])
    if known is not None:
        recorded = known.query
        longer = replace(recorded, schedule=replace(recorded.schedule, stop=settings.schedule.stop))
        return known.domain.under(known.belief), longer
    name = _counting(settings)
    start = settings.schedule.first
    stop = settings.schedule.stop
    believed = plan.domain.belief
    # once the belief changes at a slot the quilts price alone, so the noise is theirs
    density = density_by_quilts(belief_from_dict(believed), estimate.epsilon)
    scale = rational_scale(1 / density, SENSITIVITY)
    labels = settings.space.labels
    states = Roster.of([f"{number:04d} from {label}" for number, label in enumerate(labels)])
    query = QuerySpec(
        name=name,
        domain=plan.domain.name,
        scale=scale,
        release_epsilon_dp=epsilon_dp_of(scale, SENSITIVITY),
        mechanism=TRANSITIONS,
        schedule=Schedule(size=every, every=every, start=start, stop=stop, anchor=start),
        schedule_given=True,
        roster=states,
        roster_given=True,
        shards=1,
        header={
            "half_width_95": DiscreteLaplace(scale).half_width(0.95),
            "quilt": [None, None],
            "key_kind": "state",
            "model_provenance": plan.model.provenance.text,
            "epsilon": estimate.epsilon,
            "sigma": 1 / density,
        },
    )
    return plan.domain, query


def counting_on_record(settings: Settings, estimate: Estimate, store: Store) -> Registration | None:
    """The query of the tables, if there is one.

    Raises:
        RegistrationConflict: it goes by other settings.
    """
    name = _counting(settings)
    known, every = store.registered(settings.domain, name), estimate.slots(settings.grid)
    if known is None or every is None:
        return known
    recorded, step = known.query, settings.grid.interval_us
    for field, old, new in (
        ("mechanism", recorded.mechanism, TRANSITIONS),
        ("model.estimate.every", format_duration(recorded.schedule.size * step), format_duration(every * step)),
        ("model.estimate.epsilon", recorded.header.get("epsilon"), estimate.epsilon),
    ):
        if old != new:
            advice = "what counting costs is frozen with its query: set it back, or use a new query name"
            raise RegistrationConflict(f"query {name!r}", field, old, new, advice)
    return known


def _counting(settings: Settings) -> str:
    return f"{settings.query}-transitions"


def _model_of(settings: Settings, bounds: MixingBounds, estimate: Estimate, method: str) -> Model:
    """A model of bounds that are a function of what was released."""
    model = Model(bounds.to_dict(), settings.space, settings.grid.interval_us, Provenance(method=method))
    return _lowered(settings, model, estimate)


__all__ = ["Made", "counting_on_record", "estimate_at", "first_estimate", "with_counting"]
