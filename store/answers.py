"""What the record says of a domain in short: the values that commands and pages show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..schemas.digests import canonical_json
from .changes import LOST
from .domain import Domain, Query
from .registration import Sharing


@dataclass(frozen=True, slots=True)
class QuerySummary:
    """What one query of a domain did: its windows charged and refused, and its blocks on record."""

    name: str
    digest: str
    epsilon: float | None  # what one run of it was to cost, as set; ``None`` if the header does not say
    epsilon_dp: float | dict[int, float]  # loss per slot charged for a window: one number, or by the slots of a window
    windows: int | None  # windows in its schedule; ``None`` for an endless one
    charged: int
    refused: int
    blocks: int
    admitted_stop: int | None  # slot after which windows are refused; ``None`` if all are admitted
    given_model: bool  # whether the loss holds only given a model estimated from the protected series

    @property
    def charged_text(self) -> str:
        """What a window is charged, in words."""
        if not isinstance(self.epsilon_dp, dict):
            return f"{self.epsilon_dp:.6g} a slot"
        least, most = min(self.epsilon_dp.values()), max(self.epsilon_dp.values())
        return f"{least:.6g} to {most:.6g} a slot, by the length of a window"


@dataclass(frozen=True, slots=True)
class DomainSummary:
    """What a domain has spent and promised, and its windows charged and refused."""

    name: str
    guarantee: str
    model_id: str  # digest of the belief
    budget: float  # the budget in force, epsilon
    loss: float  # what all charges so far cost together, epsilon
    reserved_loss: float  # the loss when everything promised is published, epsilon
    remaining: float  # budget less loss
    unreserved: float  # budget less reserved loss: what another query may be promised
    charged: int
    refused: int
    # what adding up would say: the epsilons of all charged windows, each taken as published alone ([SC17] Theorem 3.7);
    # ``None`` if a query's header has no epsilon
    naive: float | None
    given_model: bool  # whether the loss holds only given a model estimated from the protected series
    history_lost: bool  # whether charges are missing from the account, by an operator's word; once so, so for ever
    # other domains of the ledger that have some of its series; what they tell together is in no account
    shares: tuple[Sharing, ...]
    # budgets raised, schedules extended and history declared lost: (kind, query or ``None``, old, new, microseconds),
    # as recorded
    events: tuple[tuple[str, str | None, str, str, int], ...]
    queries: tuple[QuerySummary, ...]  # its queries, in the order of registration


def summary(held: Domain, shares: Sequence[Sharing]) -> DomainSummary:
    """What a domain has spent and promised."""
    domain = held.spec
    queries = tuple(_of_query(held, query) for query in held.queries.values())
    epsilons = [query.epsilon for query in queries if query.charged]
    return DomainSummary(
        name=held.name,
        guarantee=domain.guarantee,
        model_id=domain.model_id,
        budget=domain.budget,
        loss=held.loss,
        reserved_loss=held.reserved,
        remaining=max(0.0, domain.budget - held.loss),
        unreserved=max(0.0, domain.budget - held.reserved),
        charged=sum(query.charged for query in queries),
        refused=sum(query.refused for query in queries),
        naive=None if None in epsilons else sum(query.charged * (query.epsilon or 0.0) for query in queries),
        given_model=any(one.given_model for one in (*queries, *domain.changes)),
        history_lost=any(one.kind == LOST for one in held.decisions),
        events=tuple(
            (one.kind, one.query, canonical_json(one.old), canonical_json(one.new), one.at_us) for one in held.decisions
        ),
        shares=tuple(shares),
        queries=queries,
    )


def _of_query(held: Domain, query: Query) -> QuerySummary:
    spec, schedule = query.spec, query.schedule
    epsilon = spec.header.get("epsilon")
    paid = sum(one.charged for one in query.entries.values())
    return QuerySummary(
        name=spec.name,
        digest=query.digest,
        epsilon=None if epsilon is None else float(epsilon),
        epsilon_dp=spec.losses,
        windows=None if schedule.stop is None else len(schedule),
        charged=paid,
        refused=len(query.entries) - paid,
        blocks=len(query.blocks),
        admitted_stop=held.admitted_stop(query),
        given_model=spec.given_model,
    )
