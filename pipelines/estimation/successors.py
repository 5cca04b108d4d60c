"""A query whose model is estimated in the stream: the queries that follow each other for it, and what an estimate does.

Noise is calibrated for a belief and frozen with its query. So where another belief is switched to, the query ends and
a successor goes on, named after it and the instant; both are the settings' query, and everything about them is on
record: which one goes on, and what became of every estimate. A job that begins anew reads it from there.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ...privacy.accounting.schedules import Schedule as Priced
from ...privacy.models.classes import MixingBounds, mixing_bounds
from ...privacy.models.serialisation import belief_from_dict
from ...schemas.model_file import Model
from ...schemas.settings.base import SettingsError
from ...schemas.settings.job import Settings
from ...schemas.settings.model import Bounds, Estimate
from ...schemas.slots import Window, format_instant
from ...store.accounts import ledger_of, priced
from ...store.address import StoreAddress
from ...store.domain_changes import Estimated, Note, Outcome
from ...store.errors import BudgetRefused, EstimateOnRecord, RegistrationConflict, StoreMissing
from ...store.specs import BeliefChange, DomainSpec, Noise, Registration
from ...store.store import Store
from ...transforms.plan import Plan, ledger_address, loaded, make_plan, sigma_with_room
from ...transforms.private_histograms import PrivateHistograms
from ..connectors.files import labelled
from .estimate import Made, estimate_at, first_estimate, with_counting

#: A belief that is better than the one in force is worth another query if it leaves so much of the noise.
_WORTH = 0.9

#: How a successor's noise is raised until the account allows it, and how far.
_STEP, _MOST = 1.02, 4.0


@dataclass(frozen=True)
class SuccessorQuery:
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

    def in_ledger(self, address: StoreAddress) -> SuccessorQuery:
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


def successor_query(settings: Settings, *, live: bool, noise: Noise = "private") -> SuccessorQuery:
    """The query that goes on now, as it is on record, or the first one.

    Args:
        settings: with a model that is estimated.
        live: whether the job is; only then it estimates more than once.
        noise: a hook of the tests.

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
    return _known(settings, estimate, held, _Noted(notes, begun), noise)


def decide(settings: Settings, now: SuccessorQuery) -> tuple[Outcome, str]:
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
    """The plan of a query that goes on with another model, before its account is asked."""
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
    refusal = BudgetRefused(f"query {name!r}, with {_MOST:g} times the noise of its belief,", epsilon, 0.0, epsilon)
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
    """Whether the account holds all chains that some bounds allow, for the whole history or from a slot on."""
    for history in domain.histories:
        first = 0 if slot is None else sum(since is not None and since <= slot for since, _ in history)
        if all(_covers(mixing_bounds(belief_from_dict(belief)), found) for _, belief in history[first:]):
            return True
    return False


def _covers(belief: MixingBounds, found: MixingBounds) -> bool:
    """Whether every chain that some bounds allow is allowed by others."""
    return found.pi_min >= belief.pi_min and found.rho <= belief.rho


def _with_room(plan: Plan) -> Plan:
    """The plan of a query whose belief may change."""
    return plan.with_sigma(max(plan.calibration.sigma, sigma_with_room(plan.domain.belief, plan.epsilon)))


def _first(settings: Settings, estimate: Estimate, noise: Noise) -> SuccessorQuery:
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
    return SuccessorQuery(settings, PrivateHistograms.of(plan), _next(settings, estimate))


def _started(settings: Settings, start: str | Bounds) -> Model:
    """The model until there is an estimate, marked if it was fitted on a file that the job reads."""
    model = loaded(start, settings)
    with suppress(SettingsError):  # there may be no file yet
        return labelled(settings, model)
    return model


@dataclass(frozen=True)
class _Noted:
    """What is on record of a query and its estimates.

    Attributes:
        estimates: all of the settings' query.
        begun: start of the first window of the query without an entry.
    """

    estimates: tuple[Estimated, ...] = ()
    begun: int | None = None


def _known(settings: Settings, estimate: Estimate, held: Registration, noted: _Noted, noise: Noise) -> SuccessorQuery:
    """A query that is on record."""
    own = [one for one in noted.estimates if one.query == held.query.name and one.outcome in ("first", "switched")]
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
    mine = settings
    if held.query.name != settings.query:
        mine = _as(settings, held.query.name, held.query.schedule.first)
    if held.successor is not None and held.query.schedule.stop is not None:
        mine = _as(mine, held.query.name, held.query.schedule.first, held.query.schedule.stop)
    recorded = held.query.header.get("sigma")
    # it may have been raised for what was charged then, or for a change
    plan = with_counting(settings, estimate, make_plan(mine, model, noise=noise))
    histograms = PrivateHistograms.of(plan if recorded is None else plan.with_sigma(float(recorded)))
    until = None if held.successor is not None else _next(settings, estimate, noted)
    return SuccessorQuery(mine, histograms, until, ended=held.successor is not None)


def _check_recorded(settings: Settings, chain: list[Registration]) -> None:
    """Refuse settings that the queries on record do not go by, and that nobody else compares.

    Raises:
        RegistrationConflict: a setting is another one.
    """
    recorded, grid = chain[0].query, settings.grid
    given: list[tuple[str, Any, Any]] = [
        ("privacy.epsilon", recorded.header.get("epsilon"), settings.privacy.epsilon),
    ]
    if settings.schedule.start is not None and chain[0].domain.grid == grid.to_dict():
        was, now = (format_instant(grid.time_of(slot)) for slot in (recorded.schedule.first, settings.schedule.first))
        given.append(("windows.start", was, now))
    for field, old, new in given:
        if old != new:
            advice = "a query keeps what its numbers depend on: set it back, or use a new query name"
            raise RegistrationConflict(f"query {settings.query!r}", field, old, new, advice)


def _next(settings: Settings, estimate: Estimate, noted: _Noted = _Noted()) -> int | None:
    """Slot of the first estimate that is due and not on record; ``None`` if none is.

    Windows that are charged stay as they are, so an estimate is due where they end or later.
    """
    schedule, every = settings.schedule, estimate.slots(settings.grid)
    if every is None:
        return None
    latest = max((one.slot for one in noted.estimates), default=schedule.first)
    charged = latest + 1 if noted.begun is None else noted.begun - schedule.every + schedule.size
    passed = max(latest + 1, charged) - schedule.first
    slot = schedule.first + max(1, -(-passed // every)) * every
    last = None if schedule.stop is None else schedule.covered.stop
    return None if last is not None and slot >= last else slot


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


__all__ = ["SuccessorQuery", "decide", "successor_query"]
