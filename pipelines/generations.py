"""A query whose model is estimated in the stream: the queries that follow each other for it, and what an estimate does.

Noise is calibrated for a belief and frozen with its query. So where another belief is switched to, the query ends and
a successor goes on, named after it and the instant; both are the settings' query, and everything about them is on
record: which one goes on, and what became of every estimate. A job that begins anew reads it from there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from ..privacy.classes import MixingBounds, belief_from_dict, mixing_bounds
from ..privacy.schedules import Schedule as Priced
from ..schemas.estimates import Estimate
from ..schemas.models import Model
from ..schemas.settings import Settings, SettingsError
from ..schemas.slots import Window, format_instant, parse_duration
from ..store.accounts import ledger_of, priced
from ..store.address import StoreAddress
from ..store.beliefs import Estimated, Note, Outcome
from ..store.errors import BudgetRefused, StoreMissing
from ..store.records import Store
from ..store.specs import BeliefChange, Noise, Registration
from ..transforms.calibrating import choose, sigma_with_room
from ..transforms.histograms import PrivateHistograms
from ..transforms.plan import Plan, loaded, make_plan
from .estimating import Made, estimate_at, first_estimate

#: A belief that is better than the one in force is worth another query if it leaves so much of the noise.
_WORTH = 0.9

#: How a successor's noise is raised until the account allows it, and how far.
_STEP, _MOST = 1.02, 4.0


@dataclass(frozen=True)
class Generation:
    """The query that goes on for the settings' query.

    Attributes:
        settings: the settings with its name and its windows.
        histograms: made from them, with its model and its noise.
        until: slot at which the next estimate is due; ``None`` if none is.
        ended: whether another one goes on already.
    """

    settings: Settings
    histograms: PrivateHistograms
    until: int | None
    ended: bool = False

    @property
    def until_us(self) -> int | None:
        """The instant of the next estimate."""
        return None if self.until is None else self.settings.grid.time_of(self.until)

    @property
    def complete(self) -> bool:
        """Whether all windows that end by the next estimate are on record."""
        with _store(self.settings) as store:
            held = store.registered(self.settings.domain, self.settings.query)
            missing = None if held is None else next(store.missing(held), None)
        return held is not None and (missing is None or (self.until is not None and missing[0].stop > self.until))


def generation_of(settings: Settings, *, live: bool, noise: Noise = "private") -> Generation:
    """The query that goes on now, as it is on record, or the first one.

    Args:
        settings: with a model that is estimated.
        live: whether the job is; only then it estimates more than once.
        noise: a hook of the tests.

    Raises:
        SettingsError: the job estimates in the stream, and is no live one.
        CommandError: there is nothing to make the first estimate from.
        StoreError: the ledger cannot be used.
    """
    estimate = _estimate_of(settings)
    if estimate.every is not None and not live:
        raise SettingsError(
            ["model.estimate.every is for a stream: use quiltstream run --live, or leave it out to estimate once"]
        )
    chain, notes = _on_record(settings)
    if not chain:
        return _first(settings, estimate, noise)
    with _store(settings) as store:
        # an ended query is finished first
        unfinished = (held for held in chain[:-1] if next(store.missing(held), None) is not None)
        held = next(unfinished, chain[-1])
    return _known(settings, estimate, held, notes, noise)


def decide(settings: Settings, now: Generation) -> tuple[Outcome, str]:
    """Make the estimate that is due, and let what must follow from it follow, on record.

    Args:
        settings: as the job's file has them.
        now: the query that went on until now; all its windows that end by the estimate are on record.

    Returns:
        What became of it, and that in words.

    Raises:
        StoreError: the ledger cannot be used.
    """
    estimate, plan, slot = _estimate_of(settings), now.histograms.plan, now.until
    if slot is None:
        raise ValueError("no estimate is due")
    with _store(settings) as store:
        held = store.registered(plan.domain.name, plan.query_name)
        if held is None:
            raise StoreMissing(f"ledger {plan.address}: query {plan.query_name!r} is not on record any more")
        made = estimate_at(settings, estimate, plan, held, Window(slot - _every(settings, estimate), slot))
        return _settled(_Due(settings, plan, store, held, slot), made)


@dataclass(frozen=True)
class _Due:
    """An estimate that is due.

    Attributes:
        settings: as the job's file has them.
        plan: of the query that went on until now.
        store: the ledger.
        held: that query on record.
        slot: where the estimate is made.
    """

    settings: Settings
    plan: Plan
    store: Store
    held: Registration
    slot: int

    def note(self, outcome: Outcome, model: Model | None, name: str) -> Note:
        """What became of it, for the record."""
        return self.settings.query, Estimated(self.slot, outcome, {} if model is None else _plain(model), name)

    def keep(self, outcome: Outcome, model: Model | None, text: str) -> tuple[Outcome, str]:
        """Change nothing but the record."""
        self.store.note_estimate(self.plan.domain.name, self.note(outcome, model, self.plan.query_name))
        return outcome, text


def _settled(due: _Due, made: Made) -> tuple[Outcome, str]:
    """Let an estimate change what it must, and put on record what became of it."""
    if made.model is None:
        return due.keep("kept", None, f"no estimate: {made.reason}")
    found = mixing_bounds(belief_from_dict(made.model.belief))
    said = f"the estimate has pi_min {found.pi_min:.4g} and gap {found.gap:.4g}"
    change = _joined if _estimate_of(due.settings).change == "join" else _switched
    return change(due, made.model, found, said)


def _joined(due: _Due, model: Model, found: MixingBounds, said: str) -> tuple[Outcome, str]:
    if any(_covers(mixing_bounds(belief_from_dict(one)), found) for one, _ in due.held.domain.beliefs):
        return due.keep("kept", model, f"{said}; the belief in force holds it")
    origin = model.provenance
    joins = BeliefChange("joined", found.to_dict(), model.model_id, None, origin.from_protected, origin.text)
    note = due.note("joined", model, due.plan.query_name)
    try:
        done = due.store.change_belief(due.plan.domain.name, joins, note)
    except BudgetRefused as refusal:
        return due.keep("refused", model, f"{said}; it cannot join: {refusal}")
    return "joined", f"{said}; it joined for the whole history: the loss was {done.before:.6g} and is {done.after:.6g}"


def _switched(due: _Due, model: Model, found: MixingBounds, said: str) -> tuple[Outcome, str]:
    sigma, now = _sigma_of(due.settings, model), due.plan.calibration.sigma
    covered = _covers(mixing_bounds(belief_from_dict(due.plan.domain.belief)), found)
    if covered and sigma > _WORTH * now:
        return due.keep("kept", model, f"{said}; the belief in force holds it, and the noise would hardly be less")
    try:
        plan = _succeeded(due, model, sigma)
    except BudgetRefused as refusal:
        return due.keep("refused", model, f"{said}; it cannot be switched to: {refusal}")
    after = plan.calibration.sigma
    return "switched", f"{said}; query {plan.query_name} goes on with sigma {after:.6g} instead of {now:.6g}"


def _succeeded(due: _Due, model: Model, sigma: float) -> Plan:
    """Let another query go on, with no more noise than its account wants.

    Raises:
        BudgetRefused: not with any noise that is worth the name.
    """
    settings, held, slot = due.settings, due.held, due.slot
    schedule, epsilon = held.query.schedule, settings.privacy.epsilon
    start = slot - schedule.size + schedule.every
    name = f"{settings.query}@{format_instant(settings.grid.time_of(start))}"
    following = _as(settings, name, start)
    refusal = BudgetRefused(f"query {name!r}, with {_MOST:g} times the noise of its belief,", epsilon, 0.0, epsilon)
    most, earlier = _MOST * sigma, _streams(due)
    while sigma <= most:
        plan = make_plan(following, model, sigma=sigma, noise=due.plan.noise)
        query = plan.query(following.schedule, held.query.roster, schedule_given=True, roster_given=True)
        text = model.provenance.text
        change = BeliefChange("switched", plan.domain.belief, plan.domain.model_id, slot, query.given_model, text)
        changed = replace(held.domain, changes=(*held.domain.changes, change))
        # the settings' query as a whole costs its epsilon, whatever the budget of the domain is
        lost = ledger_of(changed).extended_loss([*earlier, priced(query.schedule, query.epsilon_dp)])
        if lost <= epsilon:
            try:
                due.store.succeed(held, change, plan.domain, query, due.note("switched", model, name))
            except BudgetRefused as error:
                refusal = error
            else:
                return plan
        sigma *= _STEP
    raise refusal


def _streams(due: _Due) -> list[Priced]:
    """The queries that went on for the settings' query until an estimate, as they are charged."""
    chain, _ = _on_record(due.settings)
    ends = {one.query.name: one.query.schedule.stop for one in chain} | {due.held.query.name: due.slot}
    return [priced(one.query.schedule, one.query.epsilon_dp, stop=ends[one.query.name]) for one in chain]


def _covers(belief: MixingBounds, found: MixingBounds) -> bool:
    """Whether every chain that some bounds allow is allowed by others."""
    return found.pi_min >= belief.pi_min and found.rho <= belief.rho


def _sigma_of(settings: Settings, model: Model) -> float:
    """The noise of a query whose belief may change, before its account is asked."""
    schedule = settings.schedule
    chosen = choose(
        settings.privacy.mechanism,
        model.belief,
        states=settings.space.size,
        epsilon=settings.privacy.epsilon,
        window=schedule.size,
        guarantee=settings.privacy.guarantee,
    )
    return sigma_with_room(chosen, settings.privacy.epsilon)


def _first(settings: Settings, estimate: Estimate, noise: Noise) -> Generation:
    note: Note | None = None
    if estimate.start is not None:
        model = loaded(estimate.start, settings)
    else:
        model = first_estimate(settings, estimate)
        slot = settings.schedule.first if settings.schedule.start is not None else 0
        note = (settings.query, Estimated(slot, "first", _plain(model), settings.query))
    changes = estimate.every is not None and estimate.change == "switch"
    sigma = _sigma_of(settings, model) if changes else None
    histograms = PrivateHistograms(settings, model=model, noise=noise, sigma=sigma, note=note)
    return Generation(settings, histograms, _next(settings, estimate, ()))


def _known(
    settings: Settings, estimate: Estimate, held: Registration, notes: tuple[Estimated, ...], noise: Noise
) -> Generation:
    """A query that is on record."""
    own = [one for one in notes if one.query == held.query.name and one.outcome in ("first", "switched")]
    if own:
        model = _model_of(own[-1].model)
    elif estimate.start is not None:
        model = loaded(estimate.start, settings)
    else:
        raise SettingsError(
            [
                f"model.estimate: query {held.query.name!r} is on record with a model that was not estimated: name it "
                "in model, or in model.estimate.start"
            ]
        )
    mine = settings
    if held.query.name != settings.query:
        mine = _as(settings, held.query.name, held.query.schedule.first)
    if held.successor is not None and held.query.schedule.stop is not None:
        mine = _as(mine, held.query.name, held.query.schedule.first, held.query.schedule.stop)
    recorded = held.query.header.get("sigma")
    changes = estimate.every is not None and estimate.change == "switch"
    sigma = float(recorded) if changes and recorded is not None else None
    histograms = PrivateHistograms(mine, model=model, noise=noise, sigma=sigma)
    until = None if held.successor is not None else _next(settings, estimate, notes)
    return Generation(mine, histograms, until, ended=held.successor is not None)


def _next(settings: Settings, estimate: Estimate, notes: tuple[Estimated, ...]) -> int | None:
    """Slot of the first estimate that is due and not on record; ``None`` if none is."""
    if estimate.every is None:
        return None
    schedule, every = settings.schedule, _every(settings, estimate)
    slot = max((one.slot for one in notes), default=schedule.first) + every
    last = None if schedule.stop is None else schedule.covered.stop
    return None if last is not None and slot >= last else slot


def _every(settings: Settings, estimate: Estimate) -> int:
    if estimate.every is None:
        raise SettingsError(["model.estimate.every is missing"])
    return settings.grid.slots_in(parse_duration(estimate.every), "model.estimate.every")


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
    return Store(StoreAddress(settings.ledger_url), create=False)


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


__all__ = ["Generation", "decide", "generation_of"]
