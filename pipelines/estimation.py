"""The model that a job estimates itself, once, when it begins (``docs/model.md``; theory section 7, item 5).

An estimate is lowered by a margin before it is believed: what is believed is a bound. It goes on record with its query,
whose noise is calibrated for it, and a job that begins anew reads it from there.

Noisy counts of the domain's own transitions are one table, of the slots before the first window. It is charged under
the bounds of ``model.estimate.start``, and on record as the only window of a query of its own. From the first window of
the job's query on, the domain believes what the table shows: one account holds both, and its belief changes there.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np

from ..privacy.analysis.methods import METHODS
from ..privacy.estimation.confidence import SENSITIVITY, noisy_class, release_counts
from ..privacy.estimation.transition_counts import EstimationError, outside
from ..privacy.mechanisms.discrete_laplace import DiscreteLaplace, epsilon_dp_of, rational_scale
from ..privacy.models.classes import MixingBounds, mixing_bounds
from ..privacy.models.markov_chain import ChainError
from ..privacy.models.serialisation import belief_from_dict
from ..schemas.model_file import Model, Provenance
from ..schemas.roster import Roster
from ..schemas.settings.base import SettingsError
from ..schemas.settings.connectors import FileSource
from ..schemas.settings.job import Settings, read_roster
from ..schemas.settings.model import Estimate
from ..schemas.slots import Schedule
from ..store.accounts import ledger_of, priced
from ..store.address import forget
from ..store.changes import Estimated
from ..store.codec import NoisyBlock
from ..store.errors import BudgetRefused, StoreConflict
from ..store.specs import TRANSITIONS, BeliefChange, BlockToPublish, Noise, QuerySpec, Registration
from ..store.store import Store
from ..transforms.aggregate.memory import newest_of
from ..transforms.calibrating import density_with_room, loaded
from ..transforms.formats.paths import SourceFileError
from ..transforms.plan import Plan, ledger_address, make_plan, open_ledger
from .commands.fit import model_from_counts, transitions_in
from .connectors.files import labelled_so_far
from .errors import CommandError
from .on_record import begin_memory, known_history, note_lost_history, series_of
from .preflight import Way, Word


def estimated_plan(
    settings: Settings, estimate: Estimate, way: Way | None, word: Word, *, noise: Noise = "private"
) -> Plan:
    """The plan of a job that estimates its model: with the estimate on record, or with one that is made now.

    Args:
        settings: the job.
        estimate: how it estimates.
        way: how it is run, where noisy counts may be drawn and charged; without it, as in a dry run, the plan is one
            under ``model.estimate.start`` while they are not on record.
        word: what the operator says about a ledger that lacks what was published.
        noise: a hook of the tests.

    Raises:
        SettingsError: the query is on record with a model that was not estimated.
        CommandError: there is nothing to estimate from.
        BudgetRefused: the budget does not allow the counts and the query.
        StoreError: the ledger cannot be used, or what is on record goes by other settings.
    """
    held = known = None
    with Store(ledger_address(settings)) as store:
        if store.is_there():
            held = store.registered(settings.domain, settings.query)
            known = store.estimated(settings.domain, settings.query)
    if held is not None:
        return _recorded(settings, held, known, noise)
    if estimate.origin == "counts":
        return _of_counts(settings, estimate, way, word, noise)
    model = _of_files(settings, estimate)
    return replace(make_plan(settings, model, noise=noise), estimated=Estimated(_plain(model)))


def _recorded(settings: Settings, held: Registration, known: dict[str, Any] | None, noise: Noise) -> Plan:
    """The plan of a query on record, with the model that was estimated for it."""
    query = f"query {held.query.name!r}"
    if known is None:
        raise SettingsError(
            f"model.estimate: {query} is on record with a model that was not estimated: name that in model"
        )
    # the noise below is what is on record, so nothing else compares it
    asked, epsilon = settings.privacy.epsilon, held.query.header.get("epsilon")
    if asked != epsilon:
        advice = "a query keeps what its numbers depend on: set it back, or use a new query name"
        raise StoreConflict.of(query, "privacy.epsilon", epsilon, asked, advice)
    plan = make_plan(settings, Model.from_json(json.dumps(known), "the model on record"), noise=noise)
    return replace(plan.with_sigma(float(held.query.header["sigma"])), estimated=Estimated(known))


def _of_files(settings: Settings, estimate: Estimate) -> Model:
    """From exact counts of all that is there: of other series, or of the domain's own."""
    files, source = estimate.outside, settings
    try:
        if files is not None:
            source = settings.changed({"source": FileSource(**files.model_dump(exclude_none=True))})
        counts = transitions_in(source, None, None)
    except (SettingsError, SourceFileError) as error:
        raise _nothing(str(error).strip()) from error
    if files is not None:
        protected = _protected(settings)
        counts = counts.subset([name for name in counts.series if name not in protected])
    if not counts.series:
        raise _nothing("no series is there to estimate from")
    try:
        model = model_from_counts(source, counts, smoothing=estimate.smoothing, source=_SOURCES[estimate.origin])
    except CommandError as error:
        raise _nothing("the counts make no chain that mixes; wait for more readings, or set smoothing") from error
    lowered = _lowered(settings, model, estimate)
    origin = replace(lowered.provenance, from_protected=estimate.origin == "readings")
    belief = belief_from_dict(lowered.belief)
    if not belief.members and belief.bounds is not None:
        # of what is believed, which is wider than what was found
        origin = replace(origin, outside=len(outside(belief.bounds, counts)))
    return replace(lowered, provenance=origin)


def _nothing(why: str) -> CommandError:
    return CommandError(f"model.estimate: {why}; or give a model file or bounds by hand in model")


def _protected(settings: Settings) -> frozenset[str]:
    """Every series that the domain protects or ever protected: of the roster's file, and of all its queries."""
    roster = read_roster(settings, grouped=False)
    found = set[str]() if roster is None else set(roster.series)
    with Store(ledger_address(settings)) as store:
        if store.is_there() and settings.domain in store.domains():
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


def _of_counts(settings: Settings, estimate: Estimate, way: Way | None, word: Word, noise: Noise) -> Plan:
    """The plan under what a noisy table of transitions shows, which is drawn and charged where none is on record."""
    before, counting = _counting(settings, estimate, noise)
    held: Registration | None = None
    table: NoisyBlock | None = None
    with Store(ledger_address(settings)) as store:
        if store.is_there():
            held = store.registered(counting.domain, counting.name)
            table = next((one.block for one in store.records(counting.domain, counting.name)), None)
    if held is None:
        _check_budget(before, counting)
    else:
        _check_alike(held.query, counting)
    if held is None or table is None:
        if way is None:
            return before
        held, table = _drawn(settings, before, counting, way, word)
    try:
        bounds = noisy_class(table.counts, held.query.scale, estimate.level).bounds()
    except (ChainError, EstimationError) as error:
        raise _nothing(f"{error}; the counts stay on record and are charged") from error
    method = f"noisy transition counts at level {estimate.level:g}"
    # what is made of a table holds no further than what the table was charged under
    origin = Provenance(method=method, from_protected=held.query.given_model)
    found = Model(bounds.to_dict(), settings.space, settings.grid.interval_us, origin)
    return _switched(make_plan(settings, _lowered(settings, found, estimate), noise=noise), held)


#: What makes a table that is on record another one than the settings ask for, by the header's name.
_ALIKE = {"counted": "model.estimate.over", "epsilon": "model.estimate.epsilon", "roster_digest": "roster"}


def _counting(settings: Settings, estimate: Estimate, noise: Noise) -> tuple[Plan, QuerySpec]:
    """The plan under ``model.estimate.start``, and the query whose only release is the table of transitions.

    It is charged the loss per slot of its noise: a cell that changes moves the table by 4 in L1 at most (proof in
    ``privacy.estimation.confidence``).
    """
    roster, slots = read_roster(settings, grouped=False), estimate.slots(settings.grid)
    if roster is None or slots is None or estimate.start is None or estimate.epsilon is None:
        raise SettingsError("model.estimate.from is counts, which needs roster, over, start and epsilon")
    before = make_plan(settings, labelled_so_far(settings, loaded(estimate.start, settings)), noise=noise)
    density = density_with_room(before.domain.belief, estimate.epsilon)
    scale, stop = rational_scale(1 / density, SENSITIVITY), settings.schedule.first
    states = Roster.of([f"{number:04d} from {label}" for number, label in enumerate(settings.space.labels)])
    given_model = before.given_model(roster)
    return before, QuerySpec(
        name=f"{settings.query}-transitions",
        domain=before.domain.name,
        scale=scale,
        release_epsilon_dp=epsilon_dp_of(scale, SENSITIVITY),
        mechanism=TRANSITIONS,
        schedule=Schedule(size=slots, every=slots, start=stop - slots, stop=stop, anchor=stop - slots),
        schedule_given=True,
        roster=states,
        roster_given=True,
        shards=1,
        header=before.header(
            epsilon=estimate.epsilon, sigma=1 / density, half_width_95=DiscreteLaplace(scale).half_width(0.95)
        )
        | {"key_kind": "state", "counted": estimate.over, "roster_digest": roster.digest},
        given_model=given_model,
    )


def _check_alike(recorded: QuerySpec, asked: QuerySpec) -> None:
    """Refuse settings that a table on record was not made by."""
    for name, field in _ALIKE.items():
        old, new = recorded.header.get(name), asked.header[name]
        if old != new:
            advice = "the table was counted by it, and is charged: set it back, or use a new query name"
            raise StoreConflict.of(f"query {recorded.name!r}", field, old, new, advice)


def _of_job(plan: Plan) -> QuerySpec:
    """The job's query, whose roster is in a file, as it would go on record."""
    if plan.roster is None:
        raise SettingsError("model.estimate.from is counts, which needs a roster file")
    return plan.query(plan.schedule, plan.roster, schedule_given=True, roster_given=True)


def _check_budget(before: Plan, counting: QuerySpec) -> None:
    """See that the budget allows the table and the job's query, before the table is charged."""
    query, budget = _of_job(before), before.domain.budget
    asked = [priced(one.schedule, one.losses) for one in (counting, query)]
    together = ledger_of(before.domain).extended_loss(asked)
    if not together <= budget:  # a loss that is not a number is within none
        raise BudgetRefused.of(f"query {query.name!r}, with the counts for its model,", 0.0, together, budget)


def _drawn(
    settings: Settings, before: Plan, counting: QuerySpec, way: Way, word: Word
) -> tuple[Registration, NoisyBlock]:
    """Put the table on record, once what is known of the ledger's history was looked at as before any charge."""
    address, window = before.address, counting.schedule.covered
    roster = read_roster(settings, grouped=False)
    # not while the ledger is locked
    counts = transitions_in(settings, window.start, window.stop, () if roster is None else roster.series)
    filled = settings.space.gap_state is not None
    if not counts.visits[:, : settings.space.bins].any():
        raise _nothing("no reading counts in the slots of model.estimate.over; check them, or wait for their readings")
    if word.history_lost:
        forget(address)
    with Store(address) as store:
        ids = way.unknown_ids(settings, store)
    lacking = known_history(settings, ids, history_lost=word.history_lost, emptied=word.emptied)
    with Store(open_ledger(address)) as store:
        held = store.register(before.domain, counting)
        note_lost_history(before, lacking)
        memory = begin_memory(settings, store)

        def draw() -> NoisyBlock:
            noisy = release_counts(counts, held.query.scale, slots=len(window), missing_state=filled)
            return NoisyBlock(held.query.roster.shard_keys(0, 1), np.zeros(len(noisy), dtype=np.int64), noisy)

        (record,) = store.publish(held, [BlockToPublish(window, 0, draw)])
        memory.note(store, before.domain.name, newest_of(held, [record]))  # before anything follows from it
    if record.block is None:
        raise _nothing("the budget does not allow the counts")
    return held, record.block


#: How the noise of the job's query is raised until the account allows it, and how far.
_STEP, _MOST = 1.02, 4.0


def _switched(plan: Plan, counted: Registration) -> Plan:
    """The plan of a query under a belief that follows another one at its first window, with the least noise that fits.

    Raises:
        BudgetRefused: no noise that is worth the name does.
    """
    epsilon, origin = plan.epsilon, plan.model.provenance
    held, slot = plan.domain, plan.schedule.first
    change = BeliefChange("switched", held.belief, held.model_id, slot, origin.from_protected, origin.text)
    domain = replace(counted.domain, changes=(*counted.domain.changes, change))
    account, table = ledger_of(domain), priced(counted.query.schedule, counted.query.losses)
    sigma = max(plan.calibration.sigma, 1 / density_with_room(plan.domain.belief, epsilon))
    most = _MOST * sigma
    while True:
        tried = plan.with_sigma(sigma)
        query = _of_job(tried)
        own = priced(query.schedule, query.losses)
        alone, together = account.extended_loss([own]), account.extended_loss([table, own])
        if alone <= epsilon and together <= domain.budget:
            return replace(tried, estimated=Estimated(_plain(plan.model), change))
        sigma *= _STEP
        if sigma > most:
            what = f"query {plan.query_name!r}, with {_MOST:g} times the noise of its belief,"
            asked, limit = (alone, epsilon) if together <= domain.budget else (together, domain.budget)
            raise BudgetRefused.of(what, 0.0, asked, limit)


def _plain(model: Model) -> dict[str, Any]:
    return json.loads(model.to_json())
