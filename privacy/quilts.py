"""How much noise: the Markov Quilt Mechanism's calibration ([SWC17] Algorithms 2 to 4).

>>> from quiltstream.privacy.classes import MixingBounds
>>> calibration = mqm_approx(MixingBounds(pi_min=0.2, gap=0.75), epsilon=1.0, length=100)
>>> round(calibration.sigma, 4), calibration.quilt
(31.7098, Quilt(left=15, right=13))
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from . import search
from .chains import ChainError
from .checks import positive, whole
from .classes import Belief, MixingBounds, mixing_bounds
from .influence import MAX_LAGS, PairLabel, lemma_4_8

_EPSILON_ADVICE = "give the loss you accept, for example 1.0"


@dataclass(frozen=True, slots=True)
class Quilt:
    """The Markov quilt {X_{i-left}, X_{i+right}} of a slot i; a side that is None is absent.

    Attributes:
        left: Distance to the slot before, in slots.
        right: Distance to the slot after, in slots.
    """

    left: int | None
    right: int | None

    @property
    def card(self) -> int | None:
        """Number of slots nearer than a two-sided quilt, a + b - 1.

        None when a side is absent, where it depends on the slot.
        """
        return None if self.left is None or self.right is None else self.left + self.right - 1

    def __str__(self) -> str:
        back = "to the start" if self.left is None else f"{self.left} slots back"
        ahead = "to the end" if self.right is None else f"{self.right} slots ahead"
        return f"{back}, {ahead}"


@dataclass(frozen=True, slots=True)
class Calibration:
    """How much noise a release over one window, or over every window of an endless stream, needs.

    Attributes:
        epsilon: The target.
        sigma: Noise scale per unit of L1 sensitivity: Laplace noise of scale ``sensitivity * sigma``.
        quilt: The quilt that decides.
        node: Its slot in the window, from 1; None for an endless stream, where every slot is alike.
        influence: Max-influence of the quilt.
        length: Slots of the window; None for an endless stream.
        method: Name of the method.
        pair: The secret pair that decides (member, x, x'); None where the method has one bound for all.
        assumptions: What the number rests on, one sentence each.
    """

    epsilon: float
    sigma: float
    quilt: Quilt
    node: int | None
    influence: float
    length: int | None
    method: str
    pair: PairLabel | None
    assumptions: tuple[str, ...]

    @property
    def epsilon_dp(self) -> float:
        """Loss per slot, 1 / sigma: what a ledger is charged for every slot."""
        return 1 / self.sigma


def lemma_4_9_reach(bounds: MixingBounds, epsilon: float) -> int:
    """a* = 2 ceil(log((e^{eps/6} + 1) / (e^{eps/6} - 1) / pi_min) / g) ([SWC17] Lemma 4.9).

    In a window of at least 8 a* slots the middle slot decides, with a quilt {X_{i-a}, X_{i+b}} of a + b <= 4 a*.

    Raises:
        ValueError: If epsilon is not finite and above 0.
    """
    epsilon = positive("epsilon", epsilon, _EPSILON_ADVICE)
    # (e^x + 1) / (e^x - 1) = 1 / tanh(x / 2), which neither overflows nor cancels
    return 2 * math.ceil(-(math.log(math.tanh(epsilon / 12)) + math.log(bounds.pi_min)) / bounds.gap)


def _shortcut_note(epsilon: float, reach: int, length: int) -> str:
    return (
        f"epsilon {epsilon} needs windows of at least {8 * reach} slots for the Lemma 4.9 shortcut; "
        f"this window has {length}: every slot and quilt was tried (Algorithm 4)"
    )


def mqm_approx(belief: Belief, epsilon: float, length: int | None = None) -> Calibration:
    """MQMApprox ([SWC17] Algorithm 4): noise from pi_min and the gap alone.

    A window of at least 8 a* slots, or an endless stream, needs only its middle slot (Lemma 4.9); a shorter one has
    every slot and every quilt tried, the empty quilt of sigma = length / epsilon among them.

    Args:
        belief: Mixing bounds; a chain or a finite class is reduced to the bounds that hold for it.
        epsilon: Target, finite and above 0.
        length: Slots of the window; None for an endless stream, whose every slot then stays within epsilon for ever
            if all its windows are released with this noise (theory of the ledger).

    Raises:
        ChainError: If a chain does not mix, or so slowly that its quilts are too wide to tabulate.
        ValueError: If epsilon or length is out of range.
    """
    epsilon = positive("epsilon", epsilon, _EPSILON_ADVICE)
    bounds = mixing_bounds(belief)
    reach = lemma_4_9_reach(bounds, epsilon)
    if length is not None:
        length = whole("length", length, "give the slots of a window, or None for an endless stream", least=1)
    short = length is not None and length < 8 * reach
    lags = length - 1 if length is not None and short else 4 * reach
    if lags > MAX_LAGS:
        raise ChainError(
            f"pi_min {bounds.pi_min:g} and gap {bounds.gap:g} at epsilon {epsilon:g} give quilts over {lags} slots, "
            f"but at most {MAX_LAGS} are tried: use a belief that mixes faster (fewer states, longer slots), "
            "or shorter windows"
        )
    single = lemma_4_8(bounds, np.arange(1, lags + 1))
    notes = (
        f"pi_min at least {bounds.pi_min:.6g} and gap ({bounds.kind}) at least {bounds.gap:.6g}, "
        "any initial distribution (Lemma 4.8)",
    )
    if length is not None and short:
        node, choice = search.every_node(2 * single, single, epsilon, length)
        notes += (_shortcut_note(epsilon, reach, length),)
    else:
        node = None if length is None else (length + 1) // 2
        # f(a*) <= epsilon / 6, so the quilt has influence at most epsilon / 2; one slot further for the rounding of a*
        choice = search.endless(2 * single, single, epsilon, reach + 1)
    return Calibration(
        epsilon=epsilon,
        sigma=choice.sigma,
        quilt=Quilt(choice.left, choice.right),
        node=node,
        influence=choice.influence,
        length=length,
        method="mqm-approx",
        pair=None,
        assumptions=notes,
    )
