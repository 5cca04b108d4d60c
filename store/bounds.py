"""What the theorems of the sources say of a domain's charges, beside the loss that its account has on record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..privacy.seeds import SeedsBound
from ..schemas.ledger import LedgerEntry
from .accounts import ledger_of
from .specs import DomainSpec

#: Charges that are priced anew to be looked at; that many take a second or two.
MOST = 100_000


def bounds_of(domain: DomainSpec, entries: Iterable[LedgerEntry], *, most: int = MOST) -> Mapping[str, SeedsBound]:
    """Every theorem's bound on what a domain's charges cost together, or why there is none (theory section 4).

    The account is made anew from its entries, as the store itself does. Each bound rests on the same belief and
    influence, so the loss on record is never above any of them.

    Args:
        domain: the domain of record.
        entries: its charges; refusals are passed over.
        most: how many charges are looked at; of a longer account every bound is left out, and the reason says so.

    Returns:
        Bounds by theorem, see :meth:`quiltstream.privacy.Ledger.bounds`.
    """
    spans = [
        (entry.window_start, entry.window_stop, entry.epsilon_dp) for entry in entries if entry.decision == "charged"
    ]
    ledger = ledger_of(domain)
    if len(spans) > most:
        reason = f"left out: {len(spans):,} charges would have to be priced again, and {most:,} are the most"
        return {name: SeedsBound(None, reason) for name in ledger.bounds()}
    ledger.replay(spans)
    return ledger.bounds()
