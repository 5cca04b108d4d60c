"""``quiltstream ledger belief``: let another belief join a domain's, or follow it from an instant on."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from ...privacy.chains import ChainError, MarkovChain
from ...privacy.classes import AnyInitial, FiniteClass, MixingBounds, belief_from_dict, mixing_bounds
from ...schemas.models import Model
from ...schemas.slots import SlotGrid, parse_instant
from ...store.records import Store
from ...store.specs import BeliefChange, DomainSpec
from ..console import paragraph, results
from ..failures import CommandError
from .ledger import address_of

Kind = Literal["joined", "switched"]


def change_belief(text: str, domain: str, path: Path, instant: str | None, *, ask: bool) -> None:
    """Change a domain's belief after asking.

    Args:
        text: the ledger: a URL, a file, or settings.
        domain: its name.
        path: a model file.
        instant: from when on it is believed in the place of the others; ``None``: it joins them for all time.
        ask: whether to ask first.

    Raises:
        CommandError: the model does not fit the domain.
        ModelError: the model cannot be used.
        StoreError: there is no such domain, or its budget does not allow it.
    """
    model = Model.load(path)
    with Store(address_of(text)) as store:
        said = store.summary(domain)
        held = store.registered(domain, said.queries[0].name) if said.queries else None
        if held is None:
            raise CommandError(f"domain {domain!r} has no query on record, and so no belief that could change")
        slot = None if instant is None else _slot(held.domain, instant)
        belief = _like(held.domain, model)
        origin = model.provenance
        kind: Kind = "joined" if slot is None else "switched"
        change = BeliefChange(
            kind, belief, model.model_id, slot, origin.from_protected, origin.text, origin.series_hashes
        )
        if ask:
            how = "joins the others for the whole history" if slot is None else f"is believed alone from {instant} on"
            click.confirm(
                f"The belief of {path} {how}: everything charged and promised is priced anew, and this is never taken "
                "back. Change it?",
                abort=True,
            )
        done = store.change_belief(domain, change)
    paragraph(
        results(),
        f"{domain}: the loss of everything charged was {done.before:.9g} and is {done.after:.9g}; with everything "
        f"promised it was {done.reserved_before:.9g} and is {done.reserved_after:.9g}, of a budget of "
        f"{said.budget:g}. Queries on record keep their noise; a new query may be calibrated for the new belief.",
    )


def _slot(domain: DomainSpec, instant: str) -> int:
    grid = SlotGrid(**domain.grid)
    return grid.slot_at(parse_instant(instant, str(domain.reading.get("timezone", "UTC"))), "--from")


def _like(domain: DomainSpec, model: Model) -> dict[str, object]:
    """The model's belief in the form that the domain's account rests on: bounds, or the chains themselves."""
    try:
        given, account = belief_from_dict(model.belief), belief_from_dict(domain.belief)
        if isinstance(account, MixingBounds):
            return mixing_bounds(given).to_dict()
        if isinstance(given, MixingBounds):
            raise CommandError(
                "the account rests on chains, and the model gives bounds only: fit a chain by `quiltstream fit`"
            )
        if isinstance(account, AnyInitial) and isinstance(given, MarkovChain | FiniteClass):
            members = (given,) if isinstance(given, MarkovChain) else given.chains
            return AnyInitial([chain.transition for chain in members]).to_dict()
        return given.to_dict()
    except ChainError as error:
        raise CommandError(f"model: {error}") from error


__all__ = ["change_belief"]
