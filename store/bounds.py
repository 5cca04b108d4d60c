"""A domain's charges priced anew: the loss by the core, and what quilts and theorems of the sources say beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from ..privacy.accounting.constant import ACCURACY
from ..privacy.charges import Span
from ..privacy.seeds import SeedsBound
from ..schemas.ledger import LedgerEntry
from .accounts import adjoined, ledger_of
from .integrity import damaged
from .specs import DomainSpec

#: Charges that are priced anew to be looked at; that many take a second or two.
MOST = 100_000

#: Two losses that differ by less are the same: they were summed in another order.
_CLOSE = 1e-12


def bounds_of(domain: DomainSpec, entries: Iterable[LedgerEntry], *, most: int = MOST) -> Mapping[str, SeedsBound]:
    """What the quilts and every theorem say of a domain's charges, or why there is no such bound (theory section 4).

    The account is made anew from its entries, as the store itself does. Each bound rests on the same belief, so the
    loss on record is never above any of them.

    Args:
        domain: the domain of record.
        entries: its charges; refusals are passed over.
        most: how many charges are looked at; of a longer account every bound is left out, and the reason says so.

    Returns:
        Bounds by name, see :meth:`quiltstream.privacy.Ledger.bounds`.
    """
    return priced_anew(domain, entries, most=most)[1]


def priced_anew(
    domain: DomainSpec, entries: Iterable[LedgerEntry], *, most: int = MOST
) -> tuple[float, Mapping[str, SeedsBound]]:
    """The loss of a domain's charges by the core, epsilon, and :func:`bounds_of` them."""
    spans = [
        (entry.window_start, entry.window_stop, entry.epsilon_dp) for entry in entries if entry.decision == "charged"
    ]
    ledger = ledger_of(domain)
    empty = ledger.bounds()
    lost = ledger.replay(spans)
    if len(spans) > most:
        reason = f"left out: {len(spans):,} charges would have to be priced again, and {most:,} are the most"
        return lost, dict.fromkeys(empty, SeedsBound(None, reason))
    return lost, ledger.bounds()


def costs_alone(
    domain: DomainSpec, entries: Iterable[LedgerEntry], together: float, *, most: int = MOST
) -> Mapping[str, float]:
    """What the charges of each query would cost without the others, epsilon, by the query's name.

    Args:
        domain: the domain of record.
        entries: its charges; refusals are passed over.
        together: what all of them cost: also what one query alone costs where there is no other.
        most: how many charges are looked at; a query with more is left out.
    """
    spans: dict[str, list[Span]] = {}
    for entry in entries:
        if entry.decision == "charged":
            spans.setdefault(entry.query, []).append((entry.window_start, entry.window_stop, entry.epsilon_dp))
    looked_at = {name: charged for name, charged in spans.items() if len(charged) <= most}
    if len(spans) == 1:
        return dict.fromkeys(looked_at, together)
    ledger = ledger_of(domain)
    return {name: ledger.loss_of(adjoined(charged)) for name, charged in looked_at.items()}


def same_loss(one: float, other: float) -> bool:
    """Whether two numbers are the same loss, summed in another order or computed by another processor."""
    return math.isclose(one, other, rel_tol=ACCURACY, abs_tol=_CLOSE)


def check_loss(domain: DomainSpec, said: float, found: float) -> None:
    """Hold the loss that the entries say against that of the core.

    After another belief has joined or followed, the loss before is kept where it was larger.

    Raises:
        StoreDamaged: they differ.
    """
    if not same_loss(said, found) and not (domain.changes and said > found):
        raise damaged(f"domain {domain.name!r}", f"says that {said!r} is lost, and its charges cost {found!r}")
