"""Models that a job estimates itself, and the queries that follow each other when the belief changes.

An estimate is made from what the settings name (``docs/estimates.md``; theory section 7, item 5), and lowered by a
margin before it is believed: what is believed is a bound, and the next estimate will differ a little.

Noise is calibrated for a belief and frozen with its query. So where another belief is switched to, the query ends and
a successor goes on, named after it and the instant; both are the settings' query, and everything about them is on
record: which one goes on, and what became of every estimate. A job that begins anew reads it from there.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..privacy.accounting.quilt_account import density_by_quilts
from ..privacy.accounting.schedules import Schedule as Priced
from ..privacy.analysis.methods import METHODS
from ..privacy.estimation.diagnosis import outside
from ..privacy.estimation.drift import bounds_of_released
from ..privacy.estimation.private_counts import SENSITIVITY, NoisyCounts, release_counts_at
from ..privacy.estimation.transition_counts import EstimationError, TransitionCounts
from ..privacy.mechanisms.discrete_laplace import DiscreteLaplace, epsilon_dp_of, rational_scale
from ..privacy.models.belief import Belief
from ..privacy.models.classes import MixingBounds, mixing_bounds
from ..privacy.models.markov_chain import ChainError
from ..privacy.models.serialisation import belief_from_dict
from ..schemas.model_file import Model, Provenance
from ..schemas.roster import Roster
from ..schemas.settings.base import SettingsError
from ..schemas.settings.connectors import FileSource
from ..schemas.settings.job import Settings, read_roster
from ..schemas.settings.model import Bounds, Estimate
from ..schemas.slots import Schedule, Window, format_duration, format_instant
from ..store.accounts import ledger_of, priced
from ..store.address import StoreAddress
from ..store.domain_changes import Estimated, Note, Outcome
from ..store.errors import BudgetRefused, EstimateOnRecord, RegistrationConflict, StoreMissing, UnknownNameError
from ..store.specs import (
    TRANSITIONS,
    BeliefChange,
    BlockToPublish,
    DomainSpec,
    Noise,
    NoisyBlock,
    QuerySpec,
    Registration,
)
from ..store.store import Store
from ..transforms.aggregate.ledger_access import LogWriter
from ..transforms.formats.paths import SourceFileError
from ..transforms.plan import Plan, density_with_room, ledger_address, loaded, make_plan
from ..transforms.private_histograms import PrivateHistograms
from .commands.fit import model_from_counts, transitions_in
from .connectors.files import labelled_so_far
from .drift import published_between
from .errors import CommandError
from .on_record import Memory, series_of


@dataclass(frozen=True, slots=True)
class Made:
    """What came of an estimate."""

    model: Model | None  # the model, its bounds lowered by the margin; ``None`` where nothing can be said
    reason: str = ""  # why nothing can be; without any number of the data


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

    ``held`` is the query that published the last windows, and ``window`` the slots since the last estimate.
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
        source = settings.changed({"source": given})
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
    with suppress(StoreMissing, UnknownNameError), _store(settings) as store:
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
    # diagnostics hold exact counts, and a model that was made needs none
    return replace(
        model, belief=lower.to_dict(), provenance=replace(model.provenance, method=method, notes=()), diagnostics={}
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
    return Made(_bounds_model(settings, bounds, estimate, method))


def _of_counts(settings: Settings, estimate: Estimate, store: Store, held: Registration, window: Window) -> Made:
    roster = read_roster(settings, grouped=False)
    if roster is None:
        return Made(None, "there is no roster")
    known = series_of(store, settings.domain)  # the file may name others by now, which the budget does not protect
    scale = held.query.scale
    absent = next(store.missing(held, start=window.start), None)
    counts = TransitionCounts.empty(settings.space.size)
    if absent is not None and absent[0] == window:
        series = [one for one in roster.series if one in known]
        counts = transitions_in(settings, window.start, window.stop, series)  # not while the ledger is locked

    def draw() -> NoisyBlock:
        released = release_counts_at(
            counts, scale, start=window.start, stop=window.stop, missing_state=settings.missing == "state"
        )
        nothing = np.zeros(len(released.table), dtype=np.int64)
        return NoisyBlock(held.query.roster.shard_keys(0, 1), nothing, released.table)

    (record,) = store.publish(held, [BlockToPublish(window, 0, draw)])
    LogWriter(Memory(settings).log(here=True), store).append(held, [record])  # before anything follows from it
    if record.block is None:
        return Made(None, "the budget does not allow this window's counts")
    table = NoisyCounts(record.block.counts, scale, window.start, window.stop)
    try:
        bounds = table.confidence_class(estimate.level).bounds()
    except (ChainError, EstimationError) as error:
        return Made(None, str(error))
    method = f"noisy transition counts at level {estimate.level:g}"
    return Made(_bounds_model(settings, bounds, estimate, method))


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
    (proof in ``privacy.estimation.private_counts``). What the schedule has more than ``known``, the query of record, is
    added to it.
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
    if estimate.change == "switch":
        own = plan.share * plan.noisy.epsilon_dp
        density = density_with_room(believed, estimate.epsilon, (own, plan.epsilon))
    else:
        # a belief that joins prices all charges anew, for which the quilts' noise leaves room, and the least none
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
            raise RegistrationConflict.of(f"query {name!r}", field, old, new, advice)
    return known


def _counting(settings: Settings) -> str:
    return f"{settings.query}-transitions"


def _bounds_model(settings: Settings, bounds: MixingBounds, estimate: Estimate, method: str) -> Model:
    """A model of bounds that are a function of what was released."""
    model = Model(bounds.to_dict(), settings.space, settings.grid.interval_us, Provenance(method=method))
    return _lowered(settings, model, estimate)


#: A belief that is better than the one in force is worth another query if it leaves so much of the noise.
_WORTH = 0.9

#: How a successor's noise is raised until the account allows it, and how far.
_STEP, _MOST = 1.02, 4.0


@dataclass(frozen=True)
class ActiveQuery:
    """The query that a job publishes now: the settings' own, or the successor that goes on for it."""

    settings: Settings  # the settings with its name and its windows
    histograms: PrivateHistograms  # made from them, with its model and its noise
    until: int | None  # slot at which the next estimate is due; ``None`` if none is
    ended: bool = False  # whether another one goes on already

    @property
    def until_us(self) -> int | None:
        """The instant of the next estimate."""
        return None if self.until is None else self.settings.grid.time_of(self.until)

    def in_ledger(self, address: StoreAddress) -> ActiveQuery:
        """The same, which insists on the ledger of an address."""
        settings = self.settings.changed({"ledger_id": address.store_id})
        return replace(self, settings=settings, histograms=self.histograms.in_ledger(address))

    @property
    def complete(self) -> bool:
        """Whether all windows that end by the next estimate are on record."""
        with _store(self.settings) as store:
            held = store.registered(self.settings.domain, self.settings.query)
            missing = None if held is None else next(store.missing(held), None)
        return held is not None and (missing is None or (self.until is not None and missing[0].stop > self.until))


def active_query(settings: Settings, *, live: bool, noise: Noise = "private") -> ActiveQuery:
    """The query to publish now: the first on record that is not finished, else the last; a new one if none is there.

    Only a live job estimates more than once. ``noise`` is a hook of the tests.

    Raises:
        SettingsError: the job estimates in the stream, and is no live one.
        CommandError: there is nothing to make the first estimate from.
        StoreError: the ledger cannot be used, or what is on record goes by other settings.
    """
    estimate = _estimate_of(settings)
    if estimate.every is not None and not live:
        raise SettingsError(
            ["model.estimate.every is for a stream: use quiltstream run --live, or leave it out to estimate once"]
        )
    chain, notes = _on_record(settings)
    if not chain:
        return _first(settings, estimate, noise)
    _check_recorded(settings, chain)
    if len(chain) > 1 and not live:
        raise SettingsError(
            [
                f"query {settings.query!r} goes on as {chain[-1].query.name!r} since a stream changed its belief: use "
                "quiltstream run --live, which finishes the one and goes on with the other"
            ]
        )
    with _store(settings) as store:
        # an ended query is finished first
        unfinished = (held for held in chain[:-1] if next(store.missing(held), None) is not None)
        held = next(unfinished, chain[-1])
        begun = store.next_start(held)
    return _known(settings, held, notes, begun, noise)


def decide(settings: Settings, now: ActiveQuery) -> tuple[Outcome, str]:
    """Make the estimate that is due, and let what must follow from it follow, on record.

    All windows of the query that end by the estimate are on record.

    Returns:
        What became of it, and that in words.

    Raises:
        StoreError: the ledger cannot be used.
    """
    estimate, plan, slot = _estimate_of(settings), now.histograms.plan, now.until
    every = estimate.slots(settings.grid)
    if slot is None or every is None:
        raise ValueError("no estimate is due")
    with _store(settings) as store:
        held = store.registered(plan.domain.name, plan.query_name)
        if held is None:
            raise StoreMissing(f"ledger {plan.address}: query {plan.query_name!r} is not on record any more")
        made = estimate_at(settings, estimate, plan, held, Window(slot - every, slot))
        return _settled(_Due(settings, plan, store, held, slot), made)


@dataclass(frozen=True)
class _Due:
    """An estimate that is due."""

    settings: Settings  # as the job's file has them
    plan: Plan  # of the query that went on until now
    store: Store  # the ledger
    held: Registration  # that query on record
    slot: int  # where the estimate is made

    def note(self, outcome: Outcome, model: Model | None, name: str) -> Note:
        """What became of it, for the record."""
        return self.settings.query, Estimated(self.slot, outcome, {} if model is None else _plain(model), name)

    def keep(self, outcome: Outcome, model: Model | None, text: str) -> tuple[Outcome, str]:
        """Change nothing but the record."""
        if not self.store.note_estimate(self.plan.domain.name, self.note(outcome, model, self.plan.query_name)):
            return self.other()
        return outcome, text

    def other(self) -> tuple[Outcome, str]:
        """What became of it where another job was first."""
        found = self.store.estimates(self.plan.domain.name, self.settings.query)
        outcome: Outcome = next(one.outcome for one in found if one.slot == self.slot)
        return outcome, f"another job made this estimate first, and it is on record: {outcome}"


def _settled(due: _Due, made: Made) -> tuple[Outcome, str]:
    """Let an estimate change what it must, and put on record what became of it."""
    if made.model is None:
        return due.keep("kept", None, f"no estimate: {made.reason}")
    found = mixing_bounds(belief_from_dict(made.model.belief))
    said = f"the estimate has pi_min {found.pi_min:.4g} and gap {found.gap:.4g}"
    change = _joined if _estimate_of(due.settings).change == "join" else _switched
    try:
        return change(due, made.model, found, said)
    except EstimateOnRecord:
        return due.other()


def _joined(due: _Due, model: Model, found: MixingBounds, said: str) -> tuple[Outcome, str]:
    if _held(due.held.domain, found):
        return due.keep("kept", model, f"{said}; the belief in force holds it")
    origin = model.provenance
    joins = BeliefChange(
        "joined", found.to_dict(), model.model_id, None, origin.from_protected, origin.text, origin.series_hashes
    )
    note = due.note("joined", model, due.plan.query_name)
    try:
        done = due.store.change_belief(due.plan.domain.name, joins, note)
    except BudgetRefused as refusal:
        return due.keep("refused", model, f"{said}; it cannot join: {refusal}")
    return "joined", f"{said}; it joined for the whole history: the loss was {done.before:.6g} and is {done.after:.6g}"


def _switched(due: _Due, model: Model, found: MixingBounds, said: str) -> tuple[Outcome, str]:
    following, now = _following(due, model), due.plan.calibration.sigma
    if _held(due.held.domain, found, due.slot) and following.calibration.sigma > _WORTH * now:
        return due.keep("kept", model, f"{said}; the belief in force holds it, and the noise would hardly be less")
    latest = max((one.slot for one in due.held.domain.changes if one.slot is not None), default=None)
    if due.held.successor is None and latest is not None and latest >= due.slot:
        instant = format_instant(due.settings.grid.time_of(latest))
        return due.keep(
            "refused", model, f"{said}; it cannot be switched to: the domain's belief changes at {instant} already"
        )
    try:
        made = _succeeded(due, following)
    except BudgetRefused as refusal:
        return due.keep("refused", model, f"{said}; it cannot be switched to: {refusal}")
    after = float(made.query.header["sigma"])
    return "switched", f"{said}; query {made.query.name} goes on with sigma {after:.6g} instead of {now:.6g}"


def _following(due: _Due, model: Model) -> Plan:
    """The plan of a query that goes on with another model, before it is priced in the account."""
    settings, schedule = due.settings, due.held.query.schedule
    start = due.slot - schedule.size + schedule.every
    name = f"{settings.query}@{format_instant(settings.grid.time_of(start))}"
    return _with_room(make_plan(_as(settings, name, start), model, noise=due.plan.noise))


def _succeeded(due: _Due, following: Plan) -> Registration:
    """Let another query go on, with no more noise than its account wants.

    Raises:
        BudgetRefused: not with any noise that is worth the name.
    """
    held, epsilon, name = due.held, following.epsilon, following.query_name
    origin = following.model.provenance
    given_model = following.given_model(held.query.roster)
    change = BeliefChange(
        "switched",
        following.domain.belief,
        following.domain.model_id,
        due.slot,
        given_model,
        origin.text,
        origin.series_hashes,
    )
    account = ledger_of(replace(held.domain, changes=(*held.domain.changes, change)))
    earlier, note = _streams(due), due.note("switched", following.model, name)
    refusal = BudgetRefused.of(f"query {name!r}, with {_MOST:g} times the noise of its belief,", epsilon, 0.0, epsilon)
    sigma = following.calibration.sigma
    most = _MOST * sigma
    while sigma <= most:
        plan = following.with_sigma(sigma)
        query = plan.query(plan.schedule, held.query.roster, schedule_given=True, roster_given=True)
        # the settings' query as a whole costs its epsilon, whatever the budget of the domain is
        if account.extended_loss([*earlier, priced(query.schedule, query.losses)]) <= epsilon:
            try:
                return due.store.succeed(held, change, plan.domain, query, note)
            except BudgetRefused as error:
                refusal = error
        sigma *= _STEP
    raise refusal


def _streams(due: _Due) -> list[Priced]:
    """The queries that went on for the settings' query until an estimate, as they are charged."""
    chain, _ = _on_record(due.settings)
    ends = {one.query.name: one.query.schedule.stop for one in chain} | {due.held.query.name: due.slot}
    return [priced(one.query.schedule, one.query.losses, stop=ends[one.query.name]) for one in chain]


def _held(domain: DomainSpec, found: MixingBounds, slot: int | None = None) -> bool:
    """Whether the account holds all chains that some bounds allow, for the whole history or from a slot on.

    Only bounds do: those of a chain, or of another class, allow chains that are not believed.
    """
    for history in domain.histories:
        first = 0 if slot is None else sum(since is not None and since <= slot for since, _ in history)
        if all(_covers(belief_from_dict(belief), found) for _, belief in history[first:]):
            return True
    return False


def _covers(belief: Belief, found: MixingBounds) -> bool:
    """Whether a belief is bounds that allow every chain that others allow."""
    own = belief.bounds
    return own is not None and own == belief and found.pi_min >= own.pi_min and found.rho <= own.rho


def _with_room(plan: Plan) -> Plan:
    """The plan of a query whose belief may change."""
    return plan.with_sigma(max(plan.calibration.sigma, 1 / density_with_room(plan.domain.belief, plan.epsilon)))


def _first(settings: Settings, estimate: Estimate, noise: Noise) -> ActiveQuery:
    note: Note | None = None
    if estimate.start is not None:
        model = _started(settings, estimate.start)
    else:
        model = first_estimate(settings, estimate)
        slot = settings.schedule.first if settings.schedule.start is not None else 0
        note = (settings.query, Estimated(slot, "first", _plain(model), settings.query))
    plan = replace(make_plan(settings, model, noise=noise), note=note)
    if estimate.every is not None and estimate.change == "switch":
        plan = _with_room(plan)
    plan = with_counting(settings, estimate, plan)
    return ActiveQuery(settings, PrivateHistograms.of(plan), _next(settings, estimate))


def _started(settings: Settings, start: str | Bounds) -> Model:
    """The model until there is an estimate, marked if it was fitted on a file that the job reads."""
    return labelled_so_far(settings, loaded(start, settings))


def _known(
    settings: Settings, held: Registration, notes: tuple[Estimated, ...], begun: int, noise: Noise
) -> ActiveQuery:
    """A query that is on record, with all estimates of the settings' query and the start of its first open window."""
    estimate = _estimate_of(settings)
    own = [one for one in notes if one.query == held.query.name and one.outcome in ("first", "switched")]
    if own:
        model = _model_of(own[-1].model)
    elif estimate.start is not None:
        model = _started(settings, estimate.start)
    else:
        raise SettingsError(
            [
                f"model.estimate: query {held.query.name!r} is on record with a model that was not estimated: name it "
                "in model, or in model.estimate.start"
            ]
        )
    mine, stop = settings, None if held.successor is None else held.query.schedule.stop
    if held.query.name != settings.query or stop is not None:
        mine = _as(settings, held.query.name, held.query.schedule.first, stop)
    recorded = held.query.header.get("sigma")
    plan = make_plan(mine, model, noise=noise)
    if recorded is not None:
        # it may have been raised for what was charged then, or for a change
        plan = plan.with_sigma(float(recorded))
    histograms = PrivateHistograms.of(with_counting(settings, estimate, plan))
    until = None if held.successor is not None else _next(settings, estimate, notes, begun)
    return ActiveQuery(mine, histograms, until, ended=held.successor is not None)


def _check_recorded(settings: Settings, chain: list[Registration]) -> None:
    """Refuse settings that the queries on record do not go by, and that no other check compares."""
    recorded, grid = chain[0].query, settings.grid
    given: list[tuple[str, Any, Any]] = [("privacy.epsilon", recorded.header.get("epsilon"), settings.privacy.epsilon)]
    if settings.schedule.start is not None and chain[0].domain.grid == grid.to_dict():
        was, now = (format_instant(grid.time_of(slot)) for slot in (recorded.schedule.first, settings.schedule.first))
        given.append(("windows.start", was, now))
    for field, old, new in given:
        if old != new:
            advice = "a query keeps what its numbers depend on: set it back, or use a new query name"
            raise RegistrationConflict.of(f"query {settings.query!r}", field, old, new, advice)


def _next(
    settings: Settings, estimate: Estimate, notes: tuple[Estimated, ...] = (), begun: int | None = None
) -> int | None:
    """Slot of the first estimate that is due and not on record; ``None`` if none is.

    Windows that are charged stay as they are, so an estimate is due where they end or later: ``begun`` is the start of
    the first one without an entry, where the query is on record.
    """
    schedule, every = settings.schedule, estimate.slots(settings.grid)
    if every is None:
        return None
    latest = max((one.slot for one in notes), default=schedule.first)
    charged = latest + 1 if begun is None else begun - schedule.every + schedule.size
    passed = max(latest + 1, charged) - schedule.first
    slot = schedule.first + max(1, -(-passed // every)) * every
    return None if schedule.end is not None and slot >= schedule.end else slot


def _on_record(settings: Settings) -> tuple[list[Registration], tuple[Estimated, ...]]:
    """The queries on record for the settings' query, in their order, and all estimates."""
    chain: list[Registration] = []
    try:
        with _store(settings) as store:
            name: str | None = settings.query
            while name is not None:
                held = store.registered(settings.domain, name)
                if held is None:
                    break
                chain.append(held)
                name = held.successor
            return chain, tuple(store.estimates(settings.domain, settings.query))
    except StoreMissing:
        return [], ()


def _store(settings: Settings) -> Store:
    return Store(ledger_address(settings))


def _as(settings: Settings, name: str, start: int, stop: int | None = None) -> Settings:
    """The settings under another query's name, with windows from a slot on."""
    changes: dict[str, Any] = {"start": format_instant(settings.grid.time_of(start))}
    if stop is not None:
        changes["stop"] = format_instant(settings.grid.time_of(stop))
    return settings.changed({"query": name, "windows": settings.windows.model_copy(update=changes)})


def _plain(model: Model) -> dict[str, Any]:
    return json.loads(model.to_json())


def _model_of(plain: dict[str, Any]) -> Model:
    return Model.from_json(json.dumps(plain), "the model on record")


def _estimate_of(settings: Settings) -> Estimate:
    if settings.estimate is None:
        raise SettingsError(["model: it is given, and nothing is estimated"])
    return settings.estimate
