"""What a schedule of releases costs in the account of its belief, beside what its noise was calibrated to."""

from __future__ import annotations

from dataclasses import dataclass

from ...privacy.ledger import Ledger
from ...privacy.models.reading import read_belief
from ...privacy.quilt_account import loss_by_quilts
from ...privacy.schedules import Schedule
from ...schemas.slots import HOUR_US, format_duration
from ...transforms.plan import Plan

#: Losses for which the length of an event is printed.
_WITHIN = (1.0, 2.0, 4.0)

#: Two losses that differ by less are printed as one.
_SAME = 1e-3


@dataclass(frozen=True, slots=True)
class Cost:
    """What the windows of one query cost on an empty account.

    Attributes:
        calibrated: epsilon that the noise was calibrated to: of the stream, or of each window alone.
        guarantee: ``stream`` or ``window``.
        loss: what all windows cost together, epsilon: the loss for any single slot.
        quilts: the same by the quilts alone, never less.
        alone: what the first window costs alone.
        events: for some losses how many slots an event may have to stay within; ``None`` for any number.
        interval_us: length of a slot in microseconds.
    """

    calibrated: float
    guarantee: str
    loss: float
    quilts: float
    alone: float
    events: tuple[tuple[float, int | None], ...]
    interval_us: int

    @classmethod
    def of(cls, plan: Plan, charged: Schedule) -> Cost:
        """The cost of the windows that a plan charges."""
        believed = read_belief(plan.domain.belief)
        ledger = Ledger(believed)
        return cls(
            plan.epsilon,
            plan.domain.guarantee,
            ledger.extended_loss([charged]),
            loss_by_quilts(believed, schedules=[charged]),
            ledger.extended_loss([charged.first(1)]),
            tuple((within, ledger.longest_event(within, [charged])) for within in _WITHIN),
            plan.grid.interval_us,
        )

    @property
    def calibration(self) -> str | None:
        """Both numbers in words; ``None`` where they are one."""
        window = self.guarantee == "window"
        cost = self.alone if window else self.loss
        if cost >= self.calibrated * (1 - _SAME):
            return None
        which, what = ("each window ", " alone") if window else ("", "")
        return f"{which}calibrated to {self.calibrated:g}, costs {cost:.4g}{what} in this account"

    @property
    def protection(self) -> str:
        """How long an event is protected, in words."""
        slot = f"by this query alone any single slot ({self._duration(1)}) loses at most {self.loss:.4g}"
        lengths = [(f"{within:g}", most) for within, most in self.events if most is None or most > 1]
        if not lengths:
            return f"{slot}; no longer event stays within {_WITHIN[-1]:g}"
        texts = [
            f"{'of any length' if most is None else f'up to {most:,} slots ({self._duration(most)})'} within {within}"
            for within, most in lengths
        ]
        return f"{slot}; events {', '.join(texts)}"

    def _duration(self, slots: int) -> str:
        hours = slots * self.interval_us / HOUR_US
        return format_duration(slots * self.interval_us) if hours < 1 else f"{hours:.6g} h"
