"""What is decided about a domain on record: beliefs, estimates, budgets, history that was lost.

A new belief joins the others for the whole history, or follows them from a public slot on (docs/mathematics.md).
Either way everything charged and promised is priced anew, endless schedules to their end, and the change is refused if
that passes the budget.

What was refused stays refused when a budget is raised. For every query, in the order of registration, budget is then
reserved for as many of the windows without an entry as fit.

Where charges are missing from an account, by an operator's word, nothing is added to the loss, because what is missing
is unknown; the account is marked for ever instead.

Each function that changes something runs inside a transaction that holds the domain's lock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from ..privacy.models.markov_chain import ChainError
from ..privacy.models.serialisation import belief_from_dict
from ..schemas.model_file import hash_of_series
from ..schemas.states import StateSpace
from .accounts import admitted_end, loss_of, loss_of_spans, priced
from .codec import now_us, packed, plain, unpacked
from .database import Writing
from .domain import Blobs, Domain, Query
from .errors import BudgetRefused, StoreConflict
from .specs import BeliefChange, DomainSpec

ESTIMATED = "model-estimated"
LOST = "history-lost"


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


def decide(
    writing: Writing,
    held: Domain,
    kind: str,
    *,
    old: Any = None,
    new: Any = None,
    query: str | None = None,
    blob: bytes | None = None,
    **more: Any,
) -> None:
    """Put a decision on record, with both values and the time."""
    body = {"kind": kind, "query": query, "old": old, "new": new, "at": now_us(), **more}
    writing.add(held, f"decision/{len(held.decisions) + 1}", body, blob)


def know(writing: Writing, held: Domain, series: Iterable[str]) -> None:
    """Note that a domain protects some series, where a belief was estimated from one of them."""
    changes = held.spec.changes
    if all(one.given_model or not one.series_hashes for one in changes):
        return
    hashes = {hash_of_series(name) for name in series}
    _note(writing, held, [one.protecting(hashes) for one in changes])


def _note(writing: Writing, held: Domain, changes: Iterable[BeliefChange]) -> None:
    """Put on record what is known anew of changes of belief."""
    for number, (old, new) in enumerate(zip(held.spec.changes, changes, strict=True)):
        body, blob = new.to_row()
        if (body, blob) != old.to_row():
            writing.add(held, f"belief/{held.seq + 1}", {"number": number, "change": body}, blob)


def change_belief(writing: Writing, held: Domain, change: BeliefChange, blobs: Blobs) -> Changed:
    """Add another belief to a domain's, or let it follow them, if the budget allows it (theory section 4, item 5).

    Saying the same twice changes nothing.
    """
    change = replace(change, belief=plain(change.belief))
    if not change.given_model and change.series_hashes:
        # of whichever roster
        change = change.protecting({hash_of_series(name) for name in held.all_series(blobs)})
    found, spec = priced_change(held, change), held.spec
    if spec.holds(change):
        same = change.belief, change.model_id, change.slot
        alike = ((one, (one.belief, one.model_id, one.slot) == same) for one in spec.changes)
        _note(writing, held, [one.agreed(change) if agrees else one for one, agrees in alike])
        return found
    body, blob = change.to_row()
    # without the belief itself
    said = {"model_id": change.model_id, "given_model": change.given_model, "source": change.source}
    decide(
        writing,
        held,
        f"belief-{change.kind}",
        old=spec.beliefs[-1][1],
        new=said if change.slot is None else {**said, "from": spec.instant(change.slot)},
        blob=blob,
        change=body,
        # entries say what was lost before
        lost=found.after if found.after > found.before else 0.0,
        promised=[],
        reserved=found.reserved_after,
    )
    return found


def priced_change(held: Domain, change: BeliefChange) -> Changed:
    """What a change does to the account, if the budget allows it; nothing, if it is on record."""
    domain, spans, reserved = held.spec, held.spans(), held.reserved
    change = replace(change, belief=plain(change.belief))
    before = loss_of_spans(domain, spans)
    if domain.holds(change):
        return Changed(before, before, reserved, reserved)
    _check_states(domain, change)
    changed = replace(domain, changes=(*domain.changes, change))
    try:
        after, promised = loss_of_spans(changed, spans), loss_of(changed, held.promised())
    except (ChainError, ValueError) as error:
        raise StoreConflict(f"{held.said}: {error}") from None
    if not (after <= domain.budget and promised <= domain.budget):  # a loss that is not a number is within none
        what = f"the new belief about {held.said}"
        raise BudgetRefused.of(what, reserved, max(after, promised) - reserved, domain.budget, domain.name)
    return Changed(before, after, reserved, promised)


def _check_states(domain: DomainSpec, change: BeliefChange) -> None:
    try:
        found = belief_from_dict(change.belief).states
    except (ChainError, KeyError, TypeError, ValueError) as error:
        raise StoreConflict(f"domain {domain.name!r}: the new belief is none: {error}") from None
    wanted = StateSpace.from_dict(domain.states).size
    if found is not None and found != wanted:
        raise StoreConflict(
            f"domain {domain.name!r}: the new belief has {found} states and the domain {wanted}; fit a model with the "
            "domain's edges and missing rule"
        )


def note_estimate(writing: Writing, held: Domain, query: str, estimated: Estimated) -> None:
    """Put the model that a job estimated for a query on record; shown of it is only what may be published."""
    model = plain(estimated.model)
    told = {"model_id": model.get("model_id"), "method": model.get("provenance", {}).get("method")}
    decide(writing, held, ESTIMATED, new=told, query=query, blob=packed(model))


def estimated_model(held: Domain | None, query: str) -> dict[str, Any] | None:
    """The model that a job estimated for a query; ``None`` if none is on record."""
    for one in () if held is None else held.decisions:
        if one.kind == ESTIMATED and one.query == query and one.blob is not None:
            return unpacked(one.blob)
    return None


def raise_budget(writing: Writing, held: Domain, budget: float) -> None:
    """Raise a domain's budget."""
    old = held.spec.budget
    if not (math.isfinite(budget) and budget > old):
        raise StoreConflict(
            f"{held.said}: its budget is {old!r} and can only be raised to a larger, finite one, not to {budget!r}; "
            "what was promised is not taken back"
        )
    spec, promises, reserved = replace(held.spec, budget=budget), held.promised(), held.reserved
    made: list[tuple[str, int, int | None]] = []
    for query in held.queries.values():
        start, schedule, losses = _open_behind(held, query), query.schedule, query.spec.losses
        if start is None:
            continue
        end, more = admitted_end(spec, priced(schedule, losses, start=start), promises)
        if end != start:
            stop = schedule.stop if end is None else end
            made.append((query.spec.name, start, stop))
            promises.append(priced(schedule, losses, start=start, stop=stop))
            reserved = more
    decide(writing, held, "budget-raised", old=old, new=float(budget), promised=made, reserved=reserved)


def _open_behind(held: Domain, query: Query) -> int | None:
    """Start of the first window without an entry behind those that budget is reserved for; ``None`` if there is none.

    Windows up to there are promised or have their entry, and an entry is final.
    """
    schedule, admitted, start = query.schedule, held.admitted_stop(query), query.first_open
    if start is None or admitted is None:
        return None
    start = max(start, schedule.start_behind(admitted))
    return None if schedule.end is not None and schedule.window_at(start).stop > schedule.end else start
