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

import numpy as np

from .charges import OUTWARD
from .composition import QuiltRelease, TheoremDoesNotApply, distant_segments, edge_influence, nearly_independent
from .curves import InfluenceCurve, table_curve
from .entries import Entry, Forgotten, Shape
from .influence import SidedInfluence
from .places import Pricer
from .quilts import Quilt
from .running import Worst

_OUTWARD = 4 * OUTWARD
_FORGOTTEN = "does not apply: {} charges lie behind the horizon, and the windows they had are not kept"
NOTHING = "does not apply: nothing is charged"
"""Why there is no bound on an account without charges."""

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
class Charges:
    """All charges of an account."""

    entries: tuple[Entry, ...]
    forgotten: Forgotten

    @property
    def shapes(self) -> Counter[Shape]:
        """How many charges there are of each length and loss per slot."""
        return Counter(self.forgotten.shapes) + Counter(entry.shape for entry in self.entries)

    @property
    def windows(self) -> list[tuple[int, int]]:
        """The different windows, in order."""
        return sorted({(entry.start, entry.stop) for entry in self.entries})


def seeds_bounds(
    charges: Charges,
    pricers: Sequence[Pricer],
    alone: Callable[[Iterable[tuple[int, int, float]]], Worst],
    *,
    changes: bool,
    late: bool,
) -> Mapping[str, SeedsBound]:
    """Every theorem's bound on the loss of an account, or why it does not apply.

    Args:
        charges: What was charged.
        pricers: The prices of each world.
        alone: The worst slot of some charges alone, rounded outward.
        changes: Whether the belief changes at some slot.
        late: Whether something was priced from above, so that the account's own number is a bound as well.
    """
    names = ("[SWC17] 4.4", "[SC17] 3.1", "[SC17] 3.3", "[SC17] 3.6", "[SC17] 3.7", "[BHGKM] 6.2")
    if not charges.shapes:
        return {name: SeedsBound(None, NOTHING) for name in names}
    if late:
        text = "does not apply: something behind the horizon was priced from above, in the account's number, too"
        return {name: SeedsBound(None, text) for name in names}
    if changes:
        text = "does not apply: it is about one belief, and the belief changes at a slot"
        return {name: SeedsBound(None, text) for name in names}
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
    def of(cls, charges: Charges, alone: Callable[[Iterable[tuple[int, int, float]]], Worst]) -> _Segments | str:
        if charges.forgotten.count:
            return _FORGOTTEN.format(charges.forgotten.count)
        windows = charges.windows
        if len(windows) != 2:  # noqa: PLR2004 - the theorems are about two segments
            return _TWO.format(len(windows))
        first, second = windows
        if second[0] < first[1]:
            return f"does not apply: the windows {list(first)} and {list(second)} share slots"
        groups = [[e for e in charges.entries if (e.start, e.stop) == window] for window in windows]
        worst = [alone((e.start, e.stop, e.epsilon_dp) for e in group) for group in groups]
        return cls((first, second), (worst[0], worst[1]), (len(groups[0]), len(groups[1])))

    @property
    def gap(self) -> int:
        """Slots from the last of the first window to the first of the second."""
        return self.windows[1][0] - self.windows[0][1] + 1


def _same_quilts(charges: Charges, alone: Callable[[Iterable[tuple[int, int, float]]], Worst]) -> SeedsBound:
    if charges.forgotten.count:
        return SeedsBound(None, _FORGOTTEN.format(charges.forgotten.count))
    if len(charges.windows) > 1:
        return SeedsBound(None, f"does not apply: {len(charges.windows)} different windows cannot share their quilts")
    # with the quilts of the densest release, all of them stay within its loss
    densest = max(charges.entries, key=lambda entry: entry.epsilon_dp)
    return SeedsBound(len(charges.entries) * alone([(densest.start, densest.stop, densest.epsilon_dp)]).loss)


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


def _sequential(charges: Charges, alone: Callable[[Iterable[tuple[int, int, float]]], Worst]) -> SeedsBound:
    losses = [count * alone([(0, length, rate)]).loss for (length, rate), count in charges.shapes.items()]
    return SeedsBound(math.fsum(losses))


def _curves(charges: Charges, pricers: Sequence[Pricer]) -> SeedsBound:
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
