"""Composition theorems of the sources: each with its conditions checked, and its bound for the charges of an account.

A theorem whose condition does not hold refuses by ``TheoremDoesNotApply``, which names the theorem, the condition, the
value that breaks it, and the next step.

>>> from quiltstream.privacy.models.classes import MixingBounds
>>> from quiltstream.privacy.quilts.calibration import mqm_approx
>>> bounds = MixingBounds(pi_min=0.2, gap=0.75)
>>> day = QuiltRelease.of(mqm_approx(bounds, epsilon=1.0, length=400))
>>> sequential([day, day, day])
3.0
>>> distant_segments(day, QuiltRelease.of(mqm_approx(bounds, epsilon=0.5, length=400), start=800))
1.0

The ledger needs none of them and is never above any of them. For an account (`theorem_bounds`) each theorem composes
the quilts' loss of a charge, or of a segment, alone, from the same belief and influence tables. So the quilts are never
above any of them, and the ledger never above the quilts:

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
from functools import cached_property
from typing import TypeAlias

import numpy as np

from ..models.belief import Belief
from ..models.markov_chain import MarkovChain, check_chain
from ..quilts.calibration import Calibration
from ..quilts.influence import Quilt, SidedInfluence
from ..validation import PrivacyError, a_slot, as_list, instance, number, positive
from .charges import OUTWARD, Span
from .quilt_account import Quilts, WorstQuilt, quilts_of

_QUILT_METHODS = ("mqm", "pairwise")

_OUTWARD = 4 * OUTWARD

#: Why there is no bound on an account without charges.
NOTHING = "does not apply: nothing is charged"

#: Why there is none where the belief changes.
CHANGES = "does not apply: it is about one belief, and the belief changes at a slot"

#: The worst slot of some charges alone by the quilts, rounded outward.
Alone: TypeAlias = Callable[[Iterable[Span]], WorstQuilt]


class TheoremDoesNotApply(PrivacyError):  # noqa: N818 - the public name says what happened
    """A composition theorem whose condition does not hold.

    Attributes:
        theorem: Its name.
        condition: What it needs.
        found: What was given instead.
    """

    def __init__(self, theorem: str, condition: str, found: str, advice: str) -> None:
        """Make the message from its parts."""
        self.theorem, self.condition, self.found, self.advice = theorem, condition, found, advice
        super().__init__(f"{theorem} needs {condition}, but {found}: {advice}")

    def __reduce__(self) -> tuple[type[TheoremDoesNotApply], tuple[str, str, str, str]]:
        return TheoremDoesNotApply, (self.theorem, self.condition, self.found, self.advice)


@dataclass(frozen=True, slots=True)
class QuiltRelease:
    """A release over one window by the Markov Quilt Mechanism.

    Attributes:
        start: First slot of the window.
        stop: Slot after the last; None for an endless stream.
        epsilon: What it was calibrated for.
        quilts: The active quilt of each slot; one for all where the calibration has only that.
        method: How it was calibrated, the name that ``Calibration`` has.
    """

    start: int
    stop: int | None
    epsilon: float
    quilts: tuple[Quilt, ...]
    method: str = "mqm-approx"

    def __post_init__(self) -> None:
        start = a_slot("start", self.start, "give the first slot of the window")
        if self.stop is not None:
            a_slot("stop", self.stop, "give the slot after the last", least=start + 1)
        positive("epsilon", self.epsilon, "give the epsilon of the release")
        for quilt in as_list("quilts", self.quilts, "quilts, each a Quilt"):
            instance("quilts", quilt, Quilt)

    @classmethod
    def of(cls, calibration: Calibration, start: int = 0) -> QuiltRelease:
        """The release that a calibration is for, from a slot on."""
        instance("calibration", calibration, Calibration, advice="see mqm_approx")
        start = a_slot("start", start, "give the first slot of the window")
        stop = None if calibration.length is None else start + calibration.length
        return cls(start, stop, calibration.epsilon, (calibration.quilt,), calibration.method)


def _quilt_releases(theorem: str, releases: Sequence[QuiltRelease]) -> None:
    for place, release in enumerate(as_list("releases", releases, "releases, each a QuiltRelease")):
        instance(f"releases[{place}]", release, QuiltRelease, advice="see QuiltRelease.of")
    if not len(releases):
        raise TheoremDoesNotApply(theorem, "at least 1 release(s)", "there are 0", "give the releases to compose")
    for release in releases:
        if not release.method.startswith(_QUILT_METHODS):
            raise TheoremDoesNotApply(
                theorem,
                "releases by the Markov Quilt Mechanism",
                f"one is by {release.method!r}",
                "other Pufferfish mechanisms need not compose at all; charge a ledger if its loss per slot is bounded",
            )


def same_quilts(releases: Sequence[QuiltRelease]) -> float:
    """[SWC17] Theorem 4.4: K releases of one window with the same active quilts cost K times the largest epsilon.

    Raises:
        TheoremDoesNotApply: If the windows, the methods or the quilts differ.
    """
    name = "[SWC17] Theorem 4.4"
    _quilt_releases(name, releases)
    for what, values in (
        ("releases of the same window", {(release.start, release.stop) for release in releases}),
        ("the same quilts in all releases", {release.quilts for release in releases}),
    ):
        if len(values) > 1:
            shown = " and ".join(str(value) for value in sorted(values, key=str)[:2])
            raise TheoremDoesNotApply(name, what, f"there are {shown}", "add the epsilons up ([SC17] Theorem 3.7)")
    return len(releases) * max(release.epsilon for release in releases)


def sequential(releases: Sequence[QuiltRelease]) -> float:
    """[SC17] Theorem 3.7: releases by the Markov Quilt Mechanism on one series cost the sum of their epsilons.

    Raises:
        TheoremDoesNotApply: If a release is by another mechanism.
    """
    _quilt_releases("[SC17] Theorem 3.7", releases)
    return math.fsum(release.epsilon for release in releases)


def two_segments(first: tuple[int, int, float], second: tuple[int, int, float], influence: SidedInfluence) -> float:
    """[SC17] Theorem 3.1: two segments of one chain, each released by any Pufferfish mechanism.

    With T2 the last slot of the first segment and T3 the first of the second, the loss of the secrets in the two
    segments is at most max(min(eA + eB, eA + e(X_T3 | X_T2)), min(eB + eA, eB + e(X_T2 | X_T3))): given all of the
    first segment and its output, the second output sees the secret through X_T3 alone, whose law is a mixture of those
    given X_T2; likewise backwards. e(X_T3 | X_T2) is what X_T2 reveals about X_T3, the largest over pairs. Secrets
    between the segments are not covered.

    The sum eA + eB, on which both minima fall back, holds for any mechanism too: P(oB | X_T2) is a mixture over X_T3 of
    P(oB | X_T3), whose values lie within e^eB of each other because X_T3 is a secret of the second segment, so the
    second output multiplies the odds of the first by at most e^eB.

    Args:
        first: First slot, slot after the last, and epsilon of the earlier segment.
        second: The same of the later one.
        influence: Tables of the belief.

    Raises:
        TheoremDoesNotApply: If the segments are empty, overlap or are out of order, or an epsilon is not above 0.
    """
    name = "[SC17] Theorem 3.1"
    instance("influence", influence, SidedInfluence, advice="see sided_influence")
    for what, segment in (("first", first), ("second", second)):
        start, stop, epsilon = _segment(what, segment)
        if stop <= start or not (math.isfinite(epsilon) and epsilon > 0):
            raise TheoremDoesNotApply(
                name,
                "segments with slots and a finite epsilon above 0",
                f"one is [{start}, {stop}) with epsilon {epsilon!r}",
                "give start, stop and epsilon of each",
            )
    if second[0] < first[1]:
        raise TheoremDoesNotApply(
            name,
            "two segments one after the other",
            f"the second begins at slot {second[0]} and the first ends before slot {first[1]}",
            "give the earlier one first; overlapping releases add up ([SC17] Theorem 3.7)",
        )
    ahead, back = edge_influence(influence, second[0] - first[1] + 1)
    return _either_side(first[2], second[2], ahead, back)


def _segment(name: str, segment: tuple[int, int, float]) -> tuple[int, int, float]:
    advice = "give the first slot, the slot after the last, and epsilon"
    values = as_list(name, segment, f"three numbers: {advice}")
    if len(values) != 3:  # noqa: PLR2004 - as the message says
        raise TypeError(f"{name} has {len(values)} values, but must have three: {advice}")
    return a_slot(name, values[0], advice), a_slot(name, values[1], advice), number(name, values[2], advice)


def _either_side(first: float, second: float, ahead: float, back: float) -> float:
    return max(min(first + second, first + ahead), min(first + second, second + back))


def edge_influence(influence: SidedInfluence, lag: int) -> tuple[float, float]:
    """The largest influence over pairs on the slot ``lag`` later, and on the slot ``lag`` earlier.

    Beyond the reach of the tables their last entries stand for it, from above.
    """
    if not len(influence.left):
        return 0.0, 0.0
    column = min(lag, influence.reach) - 1
    return float(influence.right[:, column].max()), float(influence.left[:, column].max())


def distant_segments(first: QuiltRelease, second: QuiltRelease) -> float:
    """[SC17] Theorem 3.3: two MQMApprox segments with two-sided active quilts, far apart, cost the larger epsilon.

    The gap must be at least as long as the longer segment. Why that is enough: the quilt (a, b) of the denser release
    has a + b - 1 slots inside, fewer than its window and so than the gap. Placed at any slot it holds slots of at most
    one of the windows.

    Raises:
        TheoremDoesNotApply: If a release is by another method, has a one-sided active quilt or no end, or the gap is
            shorter than the longer segment.
    """
    name = "[SC17] Theorem 3.3"
    _quilt_releases(name, (first, second))
    if second.start < first.start:
        first, second = second, first
    for release in (first, second):
        if release.method != "mqm-approx":
            raise TheoremDoesNotApply(
                name, "releases by MQMApprox", f"one is by {release.method!r}", "add the epsilons up"
            )
        if not release.quilts or any(quilt.left is None or quilt.right is None for quilt in release.quilts):
            shown = next((quilt for quilt in release.quilts if quilt.card is None), "none")
            raise TheoremDoesNotApply(
                name, "two-sided active quilts", f"one is ({shown})", "add the epsilons up, or use longer windows"
            )
        if release.stop is None:
            raise TheoremDoesNotApply(
                name, "two segments with an end", "one is endless", "an endless stream composes by the ledger"
            )
        wide = [quilt for quilt in release.quilts if (quilt.card or 0) >= release.stop - release.start]
        if wide:
            raise TheoremDoesNotApply(
                name,
                "active quilts that fit their segments",
                f"one holds {wide[0].card} slots and the segment has {release.stop - release.start}",
                "add the epsilons up, or use longer windows",
            )
    ends = (first.stop or 0, second.stop or 0)
    gap, longer = second.start - ends[0], max(ends[0] - first.start, ends[1] - second.start)
    if gap < longer:
        raise TheoremDoesNotApply(
            name,
            f"a gap at least as long as the longer segment, {longer} slots",
            f"the gap is {max(gap, 0)}",
            "leave a longer gap, or charge a ledger, which needs none",
        )
    return max(first.epsilon, second.epsilon)


def nearly_independent(first: float, second: float, divergence: float) -> float:
    """[SC17] Theorem 3.6: two segments whose joint law is close to the product of their laws cost eA + eB + 2E.

    E is the max-divergence between the joint law of the segments and the product of their laws, the larger of both
    directions (``joint_divergence``).

    Raises:
        TheoremDoesNotApply: If an epsilon is not above 0, or E is not finite and at least 0.
    """
    name = "[SC17] Theorem 3.6"
    advice = "give the epsilon of each segment and the divergence between them"
    first, second = number("first", first, advice), number("second", second, advice)
    divergence = number("divergence", divergence, advice)
    for epsilon in (first, second):
        if not (math.isfinite(epsilon) and epsilon > 0):
            raise TheoremDoesNotApply(name, "epsilons finite and above 0", f"one is {epsilon!r}", "check the releases")
    if not (math.isfinite(divergence) and divergence >= 0):
        raise TheoremDoesNotApply(
            name,
            "a finite max-divergence between the joint law and the product",
            f"it is {divergence!r}",
            "leave a gap after which every state can follow every other",
        )
    return first + second + 2 * divergence


def joint_divergence(chain: MarkovChain, gap: int) -> float:
    """E of [SC17] Theorem 3.6 for two segments of a stationary chain: max over x, y of |log P^gap(x, y) / pi(y)|.

    The segments meet in X_T2 and X_T3 only, ``gap`` = T3 - T2 slots apart, and P(X_A, X_B) / (P(X_A) P(X_B)) is
    P(X_T3 | X_T2) / P(X_T3). Infinite where some state cannot follow another after so many slots.

    Raises:
        ChainError: If the chain is reducible.
        ValueError: If the gap is not at least 1, or the chain has a fixed start.
    """
    check_chain("chain", chain)
    gap = a_slot("gap", gap, "give the slots from the end of one segment to the start of the other", least=1)
    if chain.initial is not None:
        raise ValueError("the chain has a fixed initial distribution: E is for a chain that starts stationary")
    power = np.linalg.matrix_power(chain.transition, gap)
    with np.errstate(divide="ignore"):
        return float(np.abs(np.log(power / chain.stationary[np.newaxis, :])).max())


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
    """Two windows one after the other, and what the charges of each lose alone."""

    windows: tuple[tuple[int, int], tuple[int, int]]
    worst: tuple[WorstQuilt, WorstQuilt]
    releases: tuple[int, int]

    @property
    def gap(self) -> int:
        """Slots from the last of the first window to the first of the second."""
        return self.windows[1][0] - self.windows[0][1] + 1


@dataclass(frozen=True)
class _Account:
    """All charges of an account, first slot, slot after the last and loss per slot, and its beliefs' influence."""

    spans: tuple[Span, ...]
    pricers: Sequence[Quilts]
    alone: Alone

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
        """The two segments that some theorems are about; a `_Silent` where the charges are none."""
        if len(self.windows) != 2:  # noqa: PLR2004 - the theorems are about two segments
            raise _Silent(f"it is about two segments, and there are {len(self.windows)} different windows")
        first, second = self.windows
        if second[0] < first[1]:
            raise _Silent(f"the windows {list(first)} and {list(second)} share slots")
        groups = [[span for span in self.spans if span[:2] == window] for window in self.windows]
        worst = [self.alone(group) for group in groups]
        return _Segments((first, second), (worst[0], worst[1]), (len(groups[0]), len(groups[1])))

    def edges(self, lag: int) -> tuple[float, float]:
        """`edge_influence` of the worst belief."""
        edges = [edge_influence(_kept(pricer), lag) for pricer in self.pricers]
        return max(ahead for ahead, _ in edges), max(back for _, back in edges)


def theorem_bounds(
    spans: Sequence[Span], beliefs: Sequence[Belief], alone: Alone, *, changes: bool
) -> Mapping[str, TheoremBound]:
    """Every theorem's bound on the loss of an account under beliefs held side by side, or why it does not apply.

    They are rounded outward by more than the account's own loss is, so that rounding never puts them below it.
    """
    if not spans or changes:
        return {name: TheoremBound(None, CHANGES if spans else NOTHING) for name in _THEOREMS}
    account = _Account(tuple(spans), [quilts_of(belief) for belief in beliefs], alone)
    return {name: _bound_of(theorem, account) for name, theorem in _THEOREMS.items()}


def _bound_of(theorem: Callable[[_Account], float], account: _Account) -> TheoremBound:
    try:
        return TheoremBound(theorem(account) * (1 + _OUTWARD))
    except _Silent as why:
        return TheoremBound(None, f"does not apply: {why}")
    except TheoremDoesNotApply as refusal:
        return TheoremBound(None, f"does not apply: it needs {refusal.condition}, but {refusal.found}")


def _same_quilts(account: _Account) -> float:
    if len(account.windows) > 1:
        raise _Silent(f"{len(account.windows)} different windows cannot share their quilts")
    # with the quilts of the densest release, all of them stay within its loss
    densest = max(account.spans, key=lambda span: span[2])
    return len(account.spans) * account.alone([densest]).loss


def _adjacent(account: _Account) -> float:
    segments = account.segments
    if segments.gap > 1:
        raise _Silent(
            f"{segments.gap - 1} slots lie between the windows; their secrets are in the account and not in the theorem"
        )
    first, second = segments.worst
    return _either_side(first.loss, second.loss, *account.edges(segments.gap))


def _kept(pricer: Quilts) -> SidedInfluence:
    """The tables without rows that decide nothing."""
    return SidedInfluence(pricer.left, pricer.right, (), pricer.tables.basis)


def _distant(account: _Account) -> float:
    segments, pricers = account.segments, account.pricers
    if len(pricers) > 1 or len(pricers[0].rows) != 1 or pricers[0].tables.pairs:
        raise _Silent("it is about MQMApprox, and the belief is not one of mixing bounds")
    if segments.releases != (1, 1):
        raise _Silent("a window was released more than once")
    releases: list[QuiltRelease] = []
    for (start, stop), worst in zip(segments.windows, segments.worst, strict=True):
        quilt, slot = worst.quilt or Quilt(None, None), worst.slot or 0
        if slot - (quilt.left or 0) < start or slot + (quilt.right or 0) >= stop:
            raise _Silent("the quilt of the worst slot leaves its window")
        releases.append(QuiltRelease(start, stop, worst.loss, (quilt,)))
    return distant_segments(*releases)


def _product(account: _Account) -> float:
    # P(X_T3) is a mixture of the rows of P^gap, so the largest influence bounds E whatever the start
    divergence = account.edges(account.segments.gap)[0]
    first, second = account.segments.worst
    return nearly_independent(first.loss, second.loss, divergence)


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
    "[SWC17] 4.4": _same_quilts,
    "[SC17] 3.1": _adjacent,
    "[SC17] 3.3": _distant,
    "[SC17] 3.6": _product,
    "[SC17] 3.7": _sequential,
    "[BHGKM] 6.2": _curves,
}
