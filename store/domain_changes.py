"""Changes of a domain on record: beliefs, estimates, budgets, history that was lost, and the ids of its sources.

A new belief joins the others for the whole history, or follows them from a public slot on (docs/mathematics.md).
Either way everything charged and promised is priced anew, endless schedules to their end, and the change is refused if
that passes the budget.

What was refused stays refused when a budget is raised. For every query, in the order of registration, budget is then
reserved for as many of the windows without an entry as fit.

Where charges are missing from an account, by an operator's word, nothing is added to the loss, because what is missing
is unknown; the account is marked for ever instead.

A topic that was deleted and made anew has the same name, and its offsets begin at 0 as those of the first one did: only
the id that the broker gives a topic tells a job without a position that what the old one held is gone.

Each function that changes something runs inside a transaction that may write, and locks the domain first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy.engine import Connection

from ..privacy.models.markov_chain import ChainError
from ..privacy.models.serialisation import belief_from_dict
from ..schemas.states import StateSpace
from . import recorded_rows, tables
from .accounts import admitted_end, charged_spans, loss_of, loss_of_spans, priced, promised
from .codec import Row, changes_text, domain_from_row, plain
from .errors import BudgetRefused, StoreError
from .integrity import alter
from .registration import (
    as_protected,
    record_event,
    registration_from_rows,
    reserve,
    say_again,
    set_reserved_loss,
)
from .specs import BeliefChange, DomainSpec, Registration

_ESTIMATED = "model-estimated"


@dataclass(frozen=True, slots=True)
class Estimated:
    """A model that a job estimated for a query."""

    model: dict[str, Any]  # its plain form
    change: BeliefChange | None = None  # what it changes of a domain that is on record; nothing if left out


@dataclass(frozen=True, slots=True)
class Changed:
    """What a change of belief did to the loss of everything charged, and of everything promised."""

    before: float
    after: float
    reserved_before: float
    reserved_after: float


def change_belief(connection: Connection, name: str, change: BeliefChange) -> Changed:
    """Add another belief to a domain's, or let it follow them, if the budget allows it (theory section 4, item 5).

    Saying the same twice changes nothing.

    Raises:
        BudgetRefused: what is charged or promised would pass the budget; nothing was changed.
        StoreError: the belief cannot be priced, or its slot lies before an earlier change.
    """
    row = recorded_rows.locked_domain_row(connection, name)
    domain = domain_from_row(row)
    change = as_protected(connection, row, replace(change, belief=plain(change.belief)))
    if domain.holds(change):
        say_again(connection, row, change)
        return _priced(connection, row, domain, change)
    found = _priced(connection, row, domain, change)
    values: dict[str, Any] = {"changes": changes_text((*domain.changes, change))}
    if found.after > found.before:
        # the entries say what was lost before
        values["changed_loss"] = max(found.after, float(row["changed_loss"] or 0.0))
    alter(connection, tables.domains, row["id"], **values)
    set_reserved_loss(connection, row["id"], found.reserved_after)
    kind = "belief-joined" if change.slot is None else "belief-switched"
    # without the belief itself, which is beside the domain
    said = {"model_id": change.model_id, "given_model": change.given_model, "source": change.source}
    new = said if change.slot is None else {**said, "from": domain.instant(change.slot)}
    record_event(connection, row["id"], kind, old=domain.beliefs[-1][1], new=new)
    return found


def priced_change(connection: Connection, name: str, change: BeliefChange) -> Changed:
    """What :func:`change_belief` would answer or raise now of a belief; nothing is written, and no lock is taken."""
    row = recorded_rows.domain_row(connection, name)
    return _priced(connection, row, domain_from_row(row), replace(change, belief=plain(change.belief)))


def note_estimate(connection: Connection, registration: Registration, estimated: Estimated) -> None:
    """Put the model that a job estimated for a query on record."""
    row = recorded_rows.locked_domain_row(connection, registration.domain.name)
    record_event(connection, row["id"], _ESTIMATED, old=None, new=plain(estimated.model), query=registration.query.name)


def estimated_model(connection: Connection, domain: str, query: str) -> dict[str, Any] | None:
    """The model that a job estimated for a query; ``None`` if none is on record."""
    found = (json.loads(one["new"]) for one in _events(connection, domain, _ESTIMATED) if one["query"] == query)
    return next(found, None)


def _events(connection: Connection, domain: str, kind: str) -> list[Row]:
    """The changes of one kind that a domain has on record; none if the domain is not."""
    row = recorded_rows.find_domain(connection, domain)
    return [] if row is None else [event for event in recorded_rows.events_of(connection, row) if event["kind"] == kind]


def _check_states(domain: DomainSpec, change: BeliefChange) -> None:
    try:
        found = belief_from_dict(change.belief).states
    except (ChainError, KeyError, TypeError, ValueError) as error:
        raise StoreError(f"domain {domain.name!r}: the new belief is none: {error}") from None
    wanted = StateSpace.from_dict(domain.states).size
    if found is not None and found != wanted:
        raise StoreError(
            f"domain {domain.name!r}: the new belief has {found} states and the domain {wanted}; fit a model with the "
            "domain's edges and missing rule"
        )


def _lost(connection: Connection, row: Row, domain: DomainSpec) -> float:
    return loss_of_spans(domain, charged_spans(connection, row))


def _priced(connection: Connection, row: Row, domain: DomainSpec, change: BeliefChange) -> Changed:
    """What a change does to the account, if the budget allows it; nothing, if it is on record."""
    if domain.holds(change):
        lost = _lost(connection, row, domain)
        return Changed(lost, lost, float(row["reserved_loss"]), float(row["reserved_loss"]))
    _check_states(domain, change)
    changed = replace(domain, changes=(*domain.changes, change))
    try:
        after = _lost(connection, row, changed)
        reserved = loss_of(changed, promised(connection, row))
    except (ChainError, ValueError) as error:
        raise StoreError(f"domain {domain.name!r}: {error}") from None
    before, held = _lost(connection, row, domain), float(row["reserved_loss"])
    if not (after <= domain.budget and reserved <= domain.budget):  # a loss that is not a number is within none
        most = max(after, reserved)
        what = f"the new belief about domain {domain.name!r}"
        raise BudgetRefused.of(what, held, most - held, domain.budget, domain.name)
    return Changed(before, after, held, reserved)


def raise_budget(connection: Connection, name: str, budget: float) -> None:
    """Raise a domain's budget."""
    row = recorded_rows.locked_domain_row(connection, name)
    old = float(row["budget"])
    if not (math.isfinite(budget) and budget > old):
        raise StoreError(
            f"domain {name!r}: its budget is {old!r} and can only be raised to a larger, finite one, not "
            f"to {budget!r}; what was promised is not taken back"
        )
    row = alter(connection, tables.domains, row["id"], budget=budget)
    record_event(connection, row["id"], "budget-raised", old=old, new=budget)
    for query in recorded_rows.queries_of(connection, row):
        _admit_more(connection, row, query)


def _admit_more(connection: Connection, row: Row, query_row: Row) -> None:
    registration = registration_from_rows(connection, row, query_row)
    query = registration.query
    admitted = registration.admitted_stop
    start = None if admitted is None else recorded_rows.first_open(connection, query_row["id"], query.schedule)
    if admitted is None or start is None:
        return
    # windows up to here are promised or have their entry, and an entry is final
    start = max(start, query.schedule.start_behind(admitted))
    end = query.schedule.end
    if end is not None and query.schedule.window_at(start).stop > end:
        return
    asked = priced(replace(query.schedule, start=start), query.losses)
    fits, reserved = admitted_end(registration.domain, asked, promised(connection, row))
    if fits != asked.start:
        reserve(connection, query_row["id"], asked.start, query.schedule.stop if fits is None else fits)
        set_reserved_loss(connection, row["id"], reserved)


_LOST = "history-lost"


def note_history_lost(connection: Connection, name: str, releases: int) -> None:
    """Mark a domain, by an operator's word that charges are missing from its account."""
    row = recorded_rows.locked_domain_row(connection, name)
    record_event(connection, row["id"], _LOST, old=0, new=releases)


def history_lost(events: Iterable[Row]) -> bool:
    """Whether what was decided about a domain marks it."""
    return any(event["kind"] == _LOST for event in events)


_IDENTIFIED = "source-identified"


@dataclass(frozen=True, slots=True)
class SourceId:
    """What is on record of a topic now."""

    id: str  # the brokers' name of it
    since_us: int  # when it was put on record, microseconds since the epoch
    # whether another id was on record before: readings that came before ``since_us`` may be gone with it
    replaced: bool = False

    @property
    def lost_us(self) -> int | None:
        """The instant before which readings may be gone; ``None`` where none is known to be."""
        return self.since_us if self.replaced else None


def source_ids(connection: Connection, domain: str) -> dict[str, SourceId]:
    """The ids on record of a domain's topics, by their names; those of all its queries, none if it is not on record."""
    found: dict[str, SourceId] = {}
    # in the order of the record and not of its times: a clock may be set back
    for row in _events(connection, domain, _IDENTIFIED):
        new = json.loads(row["new"])
        before = found.get(new["name"])
        if before is None or before.id != new["id"]:
            found[new["name"]] = SourceId(new["id"], row["at_us"], replaced=before is not None)
    return found


def note_source_ids(connection: Connection, registration: Registration, ids: Mapping[str, str]) -> dict[str, SourceId]:
    """Put ids of topics, by their names, on record that are not the last ones there; what is on record then."""
    domain, query = registration.domain.name, registration.query.name
    row = recorded_rows.locked_domain_row(connection, domain)
    known = {name: held.id for name, held in source_ids(connection, domain).items()}
    for name, new in sorted(ids.items()):
        if known.get(name) != new:
            old = {"name": name, "id": known.get(name)}
            record_event(connection, row["id"], _IDENTIFIED, old=old, new=old | {"id": new}, query=query)
    return source_ids(connection, domain)
