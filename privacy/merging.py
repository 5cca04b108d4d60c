"""Uniting two accounts of one series, for example those of two stores that ran apart.

Charges are united by id; equal keys under different ids both count; one id with different contents is kept in all its
versions, counted and flagged (``entries``). Where both accounts forgot the same charges, or none, the result is what
one account would say that had been given all charges. Where they forgot different ones, no one can tell which they had
in common: their settled bounds are added, by the subadditivity of the rule (``branches``), and the account is marked as
an upper bound.

>>> from quiltstream.privacy.classes import MixingBounds
>>> one, other = (Ledger(MixingBounds(pi_min=0.2, gap=0.75), budget=0.7) for _ in range(2))
>>> for ledger in (one, other):
...     charge = ledger.charge(0, 336, 0.03, key="weekly-load/0")
>>> both = merged(one, other)
>>> both.closed, len(both.entries), len(both.doubled)
(True, 2, 1)
"""

from __future__ import annotations

from dataclasses import replace

from .entries import united
from .ledger import Ledger
from .states import AccountState


def merged(first: Ledger, second: Ledger) -> Ledger:
    """The account of everything that two accounts hold; a loss above the budget closes it.

    The smaller budget holds. Accounts folded at different horizons are folded at the later one first, in copies.

    Raises:
        ValueError: If the accounts rest on different beliefs, changes of belief, rules or starts, or were folded at one
            slot but keep different slots before it.
    """
    one, other = first.state, second.state
    if first.worlds != second.worlds:
        raise ValueError("the accounts rest on different beliefs: let the beliefs of each join the other first")
    if one.bound != other.bound:
        raise ValueError(f"one account rests on the bound {one.bound} and the other on {other.bound}: open both alike")
    if one.rule != other.rule:
        raise ValueError(f"one account is by the rule {one.rule} and the other by {other.rule}: open both alike")
    if one.start != other.start:
        raise ValueError(f"the chain starts at slot {one.start} in one account and at {other.start} in the other")
    horizons = [horizon for horizon in (one.horizon, other.horizon) if horizon is not None]
    if horizons and one.horizon != other.horizon:
        one, other = (_folded(state, max(horizons)) for state in (one, other))
    return Ledger.from_state(_united(one, other))


def _folded(state: AccountState, horizon: int) -> AccountState:
    ledger = Ledger.from_state(state)
    ledger.fold(horizon)
    return ledger.state


def _united(one: AccountState, other: AccountState) -> AccountState:
    budgets = [budget for budget in (one.budget, other.budget) if budget is not None]
    keeps = [keep for keep in (one.keep, other.keep) if keep is not None]
    both = replace(
        one,
        budget=min(budgets) if budgets else None,
        keep=max(keeps) if len(keeps) > 1 else None,
        entries=tuple(united(one.entries, other.entries).values()),
        forgotten=one.forgotten.united(other.forgotten),
        upper_bound=one.upper_bound or other.upper_bound,
    )
    horizon = one.horizon
    if horizon is None:
        return both
    early = [{entry for entry in state.entries if entry.start < horizon} for state in (one, other)]
    forgot = (one.forgotten.count, one.forgotten.digest) == (other.forgotten.count, other.forgotten.digest)
    if (one.lives, one.floor) != (other.lives, other.floor):
        raise ValueError(
            f"the accounts are folded at slot {horizon} and keep different slots before it, because a belief joined "
            "them at different times: fold both at a later slot first"
        )
    if forgot and (early[0] <= early[1] or early[1] <= early[0]):
        # one of them has seen all that the other has seen before the horizon
        settled = tuple(max(mine, theirs) for mine, theirs in zip(one.settled, other.settled, strict=True))
        return replace(both, settled=settled, peak=max(one.peak, other.peak))
    return replace(
        both,
        settled=tuple(mine + theirs for mine, theirs in zip(one.settled, other.settled, strict=True)),
        peak=one.peak + other.peak,
        upper_bound=True,
    ).without_old()
