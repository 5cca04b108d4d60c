"""Charges: what was charged or refused, and how losses are rounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ..errors import PrivacyError

OUTWARD = 2.0**-46
"""Every loss is raised by this relative amount (1.4e-14), more than the rounding of the few sums that make it."""

Span: TypeAlias = tuple[int, int, float]
"""A charge to come: first slot, slot after the last, loss per slot."""


@dataclass(frozen=True, slots=True)
class Charge:
    """One charge as it was made.

    Attributes:
        start: First slot.
        stop: Slot after the last.
        epsilon_dp: Loss per slot.
        loss_before: Loss of the ledger without it.
        loss_after: Loss of the ledger with it.
        rule: What decided the loss, one sentence.
        slot: The worst slot; None where there is no loss, and where the largest density bounds the loss of all slots.
    """

    start: int
    stop: int
    epsilon_dp: float
    loss_before: float
    loss_after: float
    rule: str
    slot: int | None


class BudgetExceeded(PrivacyError):  # noqa: N818 - the public name says what happened
    """A charge that the budget does not allow; the ledger is as it was.

    Attributes:
        spent: Loss before.
        asked: What the charge would have added.
        remaining: Budget less spent, at least 0.
        budget: The limit.
        what: What was asked for.
    """

    def __init__(self, spent: float, asked: float, budget: float, what: str = "the charge") -> None:
        """Make the message from the numbers."""
        self.spent, self.asked, self.budget, self.what = spent, asked, budget, what
        self.remaining = max(0.0, budget - spent)
        super().__init__(
            f"{what} would cost {asked!r} epsilon, but {spent!r} of the budget {budget!r} is spent and "
            f"{self.remaining!r} remains: release less often, add noise, or raise the budget by an explicit decision"
        )

    def __reduce__(self) -> tuple[type[BudgetExceeded], tuple[float, float, float, str]]:
        return BudgetExceeded, (self.spent, self.asked, self.budget, self.what)


def outward(loss: float) -> float:
    """A loss, raised by ``OUTWARD``."""
    return loss * (1 + OUTWARD)
