"""Composition theorems of the sources for the charges of an account: the bound of each, or why it does not apply.

Each composes the quilts' loss of a charge, or of a segment, alone, from the same belief and influence tables. The
ledger needs none of them. The quilts of the whole account are never above any of them:

- [SC17] 3.7 and [SWC17] 4.4, sums: the rule is subadditive. Take on each side the nearer of two ends: its influence is
  the larger of the two, its mass at most that of either.
- [SC17] 3.1, adjacent segments, for any number of them: for a slot of A take the ends that are best for A alone; where
  one is "no end", take the end at the first slot of the next segment, which costs no more mass than all of A on this
  side, plus at most e(X_T3 | X_T2). Where slots lie between, their secrets are not covered by the theorem but by the
  ledger, and the numbers must not be compared.
- [SC17] 3.3, for any number of segments: the two-sided quilt (a, b) of the worst slot of the densest segment, if it
  lies in its window, costs (a + b - 1) d plus its influence there. Placed at any slot at all it has slots of at most
  one of the windows inside, as every gap is longer than a + b - 1, and so costs no more.
- [SC17] 3.6: eA + eB + 2E is no less than eA + eB.
- [BHGKM] 6.2: the quilt of the smallest b_l has the largest a_l, and serves all charges at once, wherever they lie.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from ..models.belief import Belief
from ..quilts.influence import Quilt, SidedInfluence
from .charges import Span
from .quilt_account import Quilts, WorstQuilt, quilts_of, worst_by_quilts


@dataclass(frozen=True, slots=True)
class TheoremBound:
    """What one theorem says.

    Attributes:
        loss: Its bound on the loss, epsilon; None where it does not apply.
        reason: Why it does not apply; empty where it does.
    """

    loss: float | None
    reason: str = ""


class _Silent(Exception):  # noqa: N818 - what a theorem is
    """Why a theorem says nothing about an account."""


@dataclass(frozen=True, slots=True)
class _Segments:
    """Windows one after the other, and what the charges of each lose alone."""

    windows: list[tuple[int, int]]
    worst: list[WorstQuilt]
    releases: list[int]

    @property
    def gaps(self) -> list[int]:
        """Slots from the last of a window to the first of the next."""
        return [after[0] - before[1] + 1 for before, after in pairwise(self.windows)]


@dataclass(frozen=True)
class _Account:
    """All charges of an account, first slot, slot after the last and loss per slot, and its beliefs' influence."""

    spans: tuple[Span, ...]
    beliefs: Sequence[Belief]

    @property
    def pricers(self) -> list[Quilts]:
        """The quilts of each belief."""
        return [quilts_of(belief) for belief in self.beliefs]

    def alone(self, charges: Sequence[Span]) -> WorstQuilt:
        """The worst slot of some charges alone by the quilts."""
        return max((worst_by_quilts(belief, charges) for belief in self.beliefs), key=lambda one: one.loss)

    @cached_property
    def shapes(self) -> Counter[tuple[int, float]]:
        """How many charges there are of each length and loss per slot."""
        return Counter((stop - start, epsilon_dp) for start, stop, epsilon_dp in self.spans)

    @cached_property
    def windows(self) -> list[tuple[int, int]]:
        """The different windows, in order."""
        return sorted({(start, stop) for start, stop, _ in self.spans})

    @cached_property
    def segments(self) -> _Segments:
        """The segments that some theorems are about; a `_Silent` where the charges are none."""
        if len(self.windows) < 2:
            raise _Silent(f"it is about several segments, and there are {len(self.windows)} different windows")
        for first, second in pairwise(self.windows):
            if second[0] < first[1]:
                raise _Silent(f"the windows {list(first)} and {list(second)} share slots")
        groups = [[span for span in self.spans if span[:2] == window] for window in self.windows]
        return _Segments(self.windows, [self.alone(group) for group in groups], [len(group) for group in groups])

    def edges(self, lag: int) -> tuple[float, float]:
        """The largest influence over pairs and beliefs on the slot ``lag`` later, and on the slot ``lag`` earlier.

        Beyond the reach of the tables their last entries stand for it, from above.
        """
        ahead, back = (
            [float(side[:, min(lag, side.shape[1]) - 1].max(initial=0.0)) for side in sides]
            for sides in ([one.right for one in self.pricers], [one.left for one in self.pricers])
        )
        return max(ahead), max(back)


def theorem_bounds(spans: Sequence[Span], beliefs: Sequence[Belief], *, changes: bool) -> Mapping[str, TheoremBound]:
    """Bounds on the loss of an account by its quilts and by each theorem, or why one does not apply.

    Of beliefs held side by side it is the largest, with the same influence tables as the account has.

    They are rounded outward by more than the account's own loss is, so that rounding never puts them below it.
    """
    if not spans or changes:
        why = "it is about one belief, and the belief changes at a slot" if spans else "nothing is charged"
        return {name: TheoremBound(None, f"does not apply: {why}") for name in _THEOREMS}
    account = _Account(tuple(spans), beliefs)
    return {name: _bound_of(theorem, account) for name, theorem in _THEOREMS.items()}


def _bound_of(theorem: Callable[[_Account], float], account: _Account) -> TheoremBound:
    try:
        return TheoremBound(theorem(account) * (1 + 2.0**-44))
    except _Silent as why:
        return TheoremBound(None, f"does not apply: {why}")


def _same_quilts(account: _Account) -> float:
    if len(account.windows) > 1:
        raise _Silent(f"{len(account.windows)} different windows cannot share their quilts")
    # with the quilts of the densest release, all of them stay within its loss
    densest = max(account.spans, key=lambda span: span[2])
    return len(account.spans) * account.alone([densest]).loss


def _adjacent(account: _Account) -> float:
    """The largest over A of eA + min(sum of e behind, e(X_T3 | X_T2)) + min(sum of e before, e(X_T1 | X_T2)).

    T2 is a last slot of A, T3 the next one: given all of A and its output, the outputs behind see the secret through
    X_T3 alone, whose law is a mixture of those given X_T2; likewise backwards. The sum holds for any mechanism, too:
    P(oB | X_T2) is a mixture over X_T3 of P(oB | X_T3), whose values lie within e^eB of each other.
    """
    segments = account.segments
    between = sum(gap - 1 for gap in segments.gaps)
    if between:
        raise _Silent(
            f"{between} slots lie between the windows; their secrets are in the account and not in the theorem"
        )
    losses, (ahead, back) = [one.loss for one in segments.worst], account.edges(1)
    behind = [math.fsum(losses[at + 1 :]) for at in range(len(losses))]
    before = [math.fsum(losses[:at]) for at in range(len(losses))]
    return max(own + min(past, back) + min(rest, ahead) for own, past, rest in zip(losses, before, behind, strict=True))


def _kept(pricer: Quilts) -> SidedInfluence:
    """The tables without rows that decide nothing."""
    return SidedInfluence(pricer.left, pricer.right, (), pricer.tables.basis)


def _distant(account: _Account) -> float:
    """The largest epsilon: the quilt of the densest window, placed at any slot, holds slots of at most one of them."""
    segments, pricers = account.segments, account.pricers
    if len(pricers) > 1 or len(pricers[0].rows) != 1 or pricers[0].tables.pairs:
        raise _Silent("it is about MQMApprox, and the belief is not one of mixing bounds")
    if max(segments.releases) > 1:
        raise _Silent("a window was released more than once")
    for (start, stop), worst in zip(segments.windows, segments.worst, strict=True):
        quilt, slot = worst.quilt or Quilt(None, None), worst.slot or 0
        if quilt.card is None:
            raise _Silent(f"it needs two-sided active quilts, but one is ({quilt})")
        if slot - (quilt.left or 0) < start or slot + (quilt.right or 0) >= stop:
            raise _Silent("the quilt of the worst slot leaves its window")
    longer = max(stop - start for start, stop in segments.windows)
    gap = min(segments.gaps) - 1
    if gap < longer:
        raise _Silent(f"it needs gaps at least as long as the longest segment, {longer} slots, but the gap is {gap}")
    return max(one.loss for one in segments.worst)


def _product(account: _Account) -> float:
    """The sum eA + eB + 2E, E the max-divergence between the joint law of the segments and the product of their laws.

    The segments meet in X_T2 and X_T3 only. P(X_T3) is a mixture of the rows of P^gap, so the largest influence
    bounds E, whatever the start.
    """
    segments = account.segments
    if len(segments.windows) > 2:
        raise _Silent(f"it is about two segments, and there are {len(segments.windows)} different windows")
    divergence = account.edges(segments.gaps[0])[0]
    if not math.isfinite(divergence):
        raise _Silent("some state cannot follow another after the gap")
    return sum(one.loss for one in segments.worst) + 2 * divergence


def _sequential(account: _Account) -> float:
    return math.fsum(
        count * account.alone([(0, length, rate)]).loss for (length, rate), count in account.shapes.items()
    )


def _curves(account: _Account) -> float:
    from ..papers.curves import largest_curve, table_curve  # noqa: PLC0415 - no job asks for the theorems, and none has the papers

    curve = largest_curve([table_curve(_kept(pricer)) for pricer in account.pricers])
    inside: list[float] = []
    influence = 0.0
    for (length, rate), count in account.shapes.items():
        slots, revealed = curve.best(rate, length)
        inside.append(count * slots * rate)
        influence = max(influence, revealed)
    # rounded once, so that the order in which an account was read back does not show
    return math.fsum([*inside, influence])


_THEOREMS: Mapping[str, Callable[[_Account], float]] = {
    "quilts": lambda account: account.alone(account.spans).loss,
    "[SWC17] 4.4": _same_quilts,
    "[SC17] 3.1": _adjacent,
    "[SC17] 3.3": _distant,
    "[SC17] 3.6": _product,
    "[SC17] 3.7": _sequential,
    "[BHGKM] 6.2": _curves,
}
