"""What the seeds' theorems say about the charges of an account, beside the ledger's own number.

Each bound is computed from the same belief and influence tables, with the quilts' loss of a charge (or segment)
alone as the epsilon that the theorem composes. So the quilts are never above any of them, and the ledger never
above the quilts:

- [SC17] 3.7 and [SWC17] 4.4, sums: the rule is subadditive. Take on each side the nearer of two ends: its influence is
  the larger of the two, its mass at most that of either.
- [SC17] 3.1, adjacent segments A, B: for a slot of A take the end that is best for A alone; where that is "no end",
  take the end at the first slot of B, which costs no more mass than all of A on this side, plus at most e(X_T3 | X_T2).
  Likewise for a slot of B. Where slots lie between, their secrets are not covered by the theorem but by the ledger, and
  the numbers must not be compared.
- [SC17] 3.3: the two-sided quilt (a, b) of the worst slot of the denser segment, if it lies in its window, costs
  (a + b - 1) d plus its influence there. Placed at any slot at all it has at most one of the windows inside, as the gap
  is longer than a + b - 1, and so costs no more.
- [SC17] 3.6: eA + eB + 2E is no less than eA + eB.
- [BHGKM] 6.2: the quilt of the smallest b_l has the largest a_l, and serves all charges at once, wherever they lie.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from .charges import OUTWARD, Span
from .composition import QuiltRelease, TheoremDoesNotApply, distant_segments, edge_influence, nearly_independent
from .curves import InfluenceCurve, table_curve
from .influence import Bound, SidedInfluence, sided_influence
from .models.belief import AnyBelief
from .places import Pricer, pricer_of
from .quilts import Quilt
from .running import Worst

_OUTWARD = 4 * OUTWARD
NOTHING = "does not apply: nothing is charged"
"""Why there is no bound on an account without charges."""

CHANGES = "does not apply: it is about one belief, and the belief changes at a slot"
"""Why there is none where the belief changes."""

_TWO = "does not apply: it is about two segments, and there are {} different windows"


@dataclass(frozen=True, slots=True)
class SeedsBound:
    """What one theorem says.

    Attributes:
        loss: Its bound on the loss, epsilon; None where it does not apply.
        reason: Why it does not apply; empty where it does.
    """

    loss: float | None
    reason: str = ""

    def raised(self) -> SeedsBound:
        """Raised outward by more than the account's own loss is, so that rounding never puts it below."""
        return self if self.loss is None else SeedsBound(self.loss * (1 + _OUTWARD))


@dataclass(frozen=True, slots=True)
class _Charges:
    """All charges of an account: first slot, slot after the last, loss per slot."""

    spans: tuple[Span, ...]

    @property
    def shapes(self) -> Counter[tuple[int, float]]:
        """How many charges there are of each length and loss per slot."""
        return Counter((stop - start, epsilon_dp) for start, stop, epsilon_dp in self.spans)

    @property
    def windows(self) -> list[tuple[int, int]]:
        """The different windows, in order."""
        return sorted({(start, stop) for start, stop, _ in self.spans})


Alone: TypeAlias = Callable[[Iterable[Span]], Worst]
"""The worst slot of some charges alone by the quilts, rounded outward."""


def seeds_bounds(
    spans: Sequence[Span],
    beliefs: Sequence[AnyBelief],
    alone: Alone,
    bound: Bound = "lemma-4.8",
    *,
    changes: bool,
) -> Mapping[str, SeedsBound]:
    """Every theorem's bound on the loss of an account, or why it does not apply.

    Args:
        spans: What was charged.
        beliefs: What is believed, side by side.
        alone: The worst slot of some charges alone, rounded outward.
        bound: The closed form of the influence under mixing bounds.
        changes: Whether the belief changes at some slot.
    """
    names = ("[SWC17] 4.4", "[SC17] 3.1", "[SC17] 3.3", "[SC17] 3.6", "[SC17] 3.7", "[BHGKM] 6.2")
    charges = _Charges(tuple(spans))
    if not charges.spans:
        return {name: SeedsBound(None, NOTHING) for name in names}
    if changes:
        return {name: SeedsBound(None, CHANGES) for name in names}
    pricers = [pricer_of(sided_influence(belief, bound)) for belief in beliefs]
    segments = _Segments.of(charges, alone)
    found = (
        _same_quilts(charges, alone),
        _adjacent(segments, pricers),
        _distant(segments, pricers),
        _product(segments, pricers),
        _sequential(charges, alone),
        _curves(charges, pricers),
    )
    return {name: bound.raised() for name, bound in zip(names, found, strict=True)}


@dataclass(frozen=True, slots=True)
class _Segments:
    """Two windows one after the other, and what the charges of each lose alone."""

    windows: tuple[tuple[int, int], tuple[int, int]]
    worst: tuple[Worst, Worst]
    releases: tuple[int, int]

    @classmethod
    def of(cls, charges: _Charges, alone: Alone) -> _Segments | str:
        windows = charges.windows
        if len(windows) != 2:  # noqa: PLR2004 - the theorems are about two segments
            return _TWO.format(len(windows))
        first, second = windows
        if second[0] < first[1]:
            return f"does not apply: the windows {list(first)} and {list(second)} share slots"
        groups = [[span for span in charges.spans if span[:2] == window] for window in windows]
        worst = [alone(group) for group in groups]
        return cls((first, second), (worst[0], worst[1]), (len(groups[0]), len(groups[1])))

    @property
    def gap(self) -> int:
        """Slots from the last of the first window to the first of the second."""
        return self.windows[1][0] - self.windows[0][1] + 1


def _same_quilts(charges: _Charges, alone: Alone) -> SeedsBound:
    if len(charges.windows) > 1:
        return SeedsBound(None, f"does not apply: {len(charges.windows)} different windows cannot share their quilts")
    # with the quilts of the densest release, all of them stay within its loss
    densest = max(charges.spans, key=lambda span: span[2])
    return SeedsBound(len(charges.spans) * alone([densest]).loss)


def _adjacent(segments: _Segments | str, pricers: Sequence[Pricer]) -> SeedsBound:
    if isinstance(segments, str):
        return SeedsBound(None, segments)
    if segments.gap > 1:
        return SeedsBound(
            None,
            f"does not apply: {segments.gap - 1} slots lie between the windows; their secrets are in the account "
            "and not in the theorem",
        )
    first, second = segments.worst
    both = first.loss + second.loss
    ahead, back = _edges(pricers, segments.gap)
    return SeedsBound(max(min(both, first.loss + ahead), min(both, second.loss + back)))


def _edges(pricers: Sequence[Pricer], lag: int) -> tuple[float, float]:
    edges = [edge_influence(_kept(pricer), lag) for pricer in pricers]
    return max(ahead for ahead, _ in edges), max(back for _, back in edges)


def _kept(pricer: Pricer) -> SidedInfluence:
    """The tables without rows that decide nothing."""
    return SidedInfluence(pricer.left, pricer.right, (), pricer.tables.basis)


def _distant(segments: _Segments | str, pricers: Sequence[Pricer]) -> SeedsBound:
    if isinstance(segments, str):
        return SeedsBound(None, segments)
    if len(pricers) > 1 or len(pricers[0].rows) != 1 or pricers[0].tables.pairs:
        return SeedsBound(None, "does not apply: it is about MQMApprox, and the belief is not one of mixing bounds")
    if segments.releases != (1, 1):
        return SeedsBound(None, "does not apply: a window was released more than once")
    releases: list[QuiltRelease] = []
    for (start, stop), worst in zip(segments.windows, segments.worst, strict=True):
        quilt, slot = worst.quilt or Quilt(None, None), worst.slot or 0
        if slot - (quilt.left or 0) < start or slot + (quilt.right or 0) >= stop:
            return SeedsBound(None, "does not apply: the quilt of the worst slot leaves its window")
        releases.append(QuiltRelease(start, stop, worst.loss, (quilt,)))
    try:
        return SeedsBound(distant_segments(*releases))
    except TheoremDoesNotApply as refusal:
        return SeedsBound(None, f"does not apply: it needs {refusal.condition}, but {refusal.found}")


def _product(segments: _Segments | str, pricers: Sequence[Pricer]) -> SeedsBound:
    if isinstance(segments, str):
        return SeedsBound(None, segments)
    # P(X_T3) is a mixture of the rows of P^gap, so the largest influence bounds E whatever the start
    divergence = _edges(pricers, segments.gap)[0]
    first, second = segments.worst
    try:
        return SeedsBound(nearly_independent(first.loss, second.loss, divergence))
    except TheoremDoesNotApply as refusal:
        return SeedsBound(None, f"does not apply: it needs {refusal.condition}, but {refusal.found}")


def _sequential(charges: _Charges, alone: Alone) -> SeedsBound:
    losses = [count * alone([(0, length, rate)]).loss for (length, rate), count in charges.shapes.items()]
    return SeedsBound(math.fsum(losses))


def _curves(charges: _Charges, pricers: Sequence[Pricer]) -> SeedsBound:
    curve = _largest([table_curve(_kept(pricer)) for pricer in pricers])
    inside: list[float] = []
    influence = 0.0
    for (length, rate), count in charges.shapes.items():
        slots, told = curve.best(rate, length)
        inside.append(count * slots * rate)
        influence = max(influence, told)
    # rounded once, so that the order in which an account was read back does not show
    return SeedsBound(math.fsum([*inside, influence]))


def _largest(curves: Sequence[InfluenceCurve]) -> InfluenceCurve:
    size = max(curve.size for curve in curves)
    values = np.max([np.pad(curve.values, (0, size - curve.size), "edge") for curve in curves], axis=0)
    return InfluenceCurve(values, curves[0].basis)
