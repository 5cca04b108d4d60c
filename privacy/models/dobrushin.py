"""Classes of chains, also changing in time, by contraction in total variation (Dobrushin).

For all slots t and all states x, x' that are possible at t, the total variation between the law of X_{t+m} given x and
that given x' is at most eta_m, and likewise for X_{t-m} with a second curve. The chain may change in time; nothing is
said about rare states. The second curve is about the marginals that the chain really has: it does not follow from the
first, and that of a chain in its steady state does not hold for the same chain from another start. So no class of this
module may be switched to: after a switch the marginals are those that the chain before it left.

    side(d) = min over m with eta_m e^{m d} < 1 of  m d + log((1 - eta_m) / (1 - eta_m e^{m d}))
    loss   <= side_forward + side_backward - d

Proof. L(p, q; D) <= log(1 + eta (e^D - 1)) for eta the total variation and D the largest entry (G / min G lies in
[1, e^D], and p.G - q.G <= eta (max G - min G)); with a block of m slots of density d the number of a side obeys
D <= m d + log(1 + eta_m (e^D - 1)), whose fixed point is the formula. QED. Contraction in total variation is from
Dobrushin (1956); for private mechanisms from Balle, Barthe, Gaboardi, Geumlek (2019).

In every chain eta_{a+b} <= eta_a eta_b, but a curve gains nothing by that: a block of a + b slots with eta_a eta_b is
never below a block of a after a block of b, whose fixed point is not below the smaller of the two.

>>> from quiltstream.privacy.models.markov_chain import MarkovChain
>>> from quiltstream.privacy.accounting import endless
>>> chain = MarkovChain([[0.9, 0.1], [0.43, 0.57]])
>>> bounds = DobrushinBounds.of(chain, steps=(1, 2, 4)).rounded(2)
>>> bounds.forward
((1, 0.48), (2, 0.23), (4, 0.05))
>>> bounds.covers(chain), round(1 / endless(bounds, 1.0).density, 3)
(True, 3.539)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from typing import Any, TypeAlias

import numpy as np

from ..validation import NO_NUMBERS, as_list, instance, whole
from .belief import Belief, ChainError
from .classes import two_states
from .couplings import FloatArray
from .directions import STEPS, MixingCurve, Pair
from .kernels import lost_variation
from .markov_chain import MarkovChain
from .periodic import PeriodicChain

Curve: TypeAlias = tuple[tuple[int, float], ...]
"""Bounds eta_m by m, ascending."""


@dataclass(frozen=True, eq=False)
class DobrushinBounds(Belief):
    """Every chain, also changing in time, whose m-step kernels in both directions are within eta_m in total variation.

    Attributes:
        forward: Pairs (m, eta_m), m slots ahead; m ascending, eta_m in [0, 1] and never rising.
        backward: The same for m slots back, under the marginals that the chain has.

    Raises:
        ChainError: A direction is missing, a curve rises or never falls below 1, or a number is out of range.
    """

    named = "dobrushin-bounds"
    written = ("forward", "backward")

    forward: Curve
    backward: Curve

    def __init__(
        self,
        forward: Mapping[int, float] | Iterable[tuple[int, float]],
        backward: Mapping[int, float] | Iterable[tuple[int, float]],
    ) -> None:
        object.__setattr__(self, "forward", _curve("forward", forward))
        object.__setattr__(self, "backward", _curve("backward", backward))

    @classmethod
    def of(
        cls,
        chains: PeriodicChain | Iterable[PeriodicChain],
        steps: Sequence[int] = STEPS,
    ) -> DobrushinBounds:
        """The smallest curves that hold for some chains, each in its steady state, rounded up.

        Args:
            chains: One or several, stationary or periodic.
            steps: The m of the curves, in any order.

        Raises:
            ChainError: A chain has a fixed start or no steady state, or none contracts within the steps; an m is out of
                range.
        """
        one = isinstance(chains, PeriodicChain)
        members = [chains] if one else as_list("chains", chains, "chains: give [chain]")
        if not members:
            raise ChainError("DobrushinBounds.of got no chain: give at least one")
        steps = sorted({_steps("steps", m) for m in as_list("steps", steps, "slots m, for example (1, 8, 48)")})
        if not steps:
            raise ChainError("steps is empty: give the slots m of the curves, for example (1, 8, 48)")
        pairs = [contraction(one, steps) for one in members]
        forward, backward = (np.max([pair[side] for pair in pairs], axis=0).tolist() for side in (0, 1))
        return cls(zip(steps, forward, strict=True), zip(steps, backward, strict=True))

    @property
    def words(self) -> str:
        """The class in words."""
        return "every chain of the contraction class"

    def rounded(self, digits: int) -> DobrushinBounds:
        """The class with every eta rounded up to some decimals, from 1 to 12: a larger one."""
        digits = whole("digits", digits, "give the decimals to keep, for example 3", least=1, most=12)

        unit = Decimal(1).scaleb(-digits)

        def up(curve: Curve) -> Curve:
            # a decimal that is not below a float has a nearest float that is not below it either
            return tuple((m, float(Decimal(eta).quantize(unit, rounding=ROUND_CEILING))) for m, eta in curve)

        return DobrushinBounds(up(self.forward), up(self.backward))

    def covers(self, chain: PeriodicChain) -> bool:
        """Whether a chain in its steady state is a member, in double precision.

        Raises:
            ChainError: The chain has a fixed start, or no unique steady state.
        """
        return all(
            eta_m <= eta + lost_variation(chain.states, m) + m * kernel.rounding
            for kernel, curve in zip(chain.both_ways, (self.forward, self.backward), strict=True)
            for eta_m, (m, eta) in zip(kernel.variations([m for m, _ in curve]), curve, strict=True)
        )

    @property
    def witnesses(self) -> tuple[MarkovChain, ...]:
        """Chains of two states whose second eigenvalue is the largest that both curves allow."""
        power = min((eta ** (1 / m) for m, eta in (*self.forward, *self.backward)), default=0.0) * (1 - 1e-12)
        return tuple(two_states(power, rare) for rare in (0.5, 0.1, 0.01)) if power > 0 else ()

    def directions(self) -> tuple[Pair, ...]:
        """One number for each direction, each by its own curve."""
        return ((MixingCurve(self.forward), MixingCurve(self.backward)),)


def contraction(chain: PeriodicChain, steps: Sequence[int] = STEPS) -> tuple[FloatArray, FloatArray]:
    """The largest total variation between rows of m-step kernels of a chain in its steady state, rounded up.

    Args:
        chain: Stationary, or periodic.
        steps: The m, ascending, at least 1.

    Returns:
        Forward and backward, over all slots and all states possible there, each of shape (number of steps,).

    Raises:
        ChainError: The chain has a fixed start, or no unique steady state.
    """
    instance("chain", chain, PeriodicChain)
    ahead, back = chain.both_ways
    return ahead.variations(steps), back.variations(steps)


def _curve(name: str, given: Any) -> Curve:
    """Check one curve."""
    advice = "give a bound on the total variation after m slots for each m, for example {1: 0.8, 8: 0.3, 48: 0.01}"
    try:
        pairs = sorted(given.items() if isinstance(given, Mapping) else [(m, eta) for m, eta in given])
        numbers = [(_steps(name, m), math.nan if isinstance(eta, NO_NUMBERS) else float(eta) + 0.0) for m, eta in pairs]
    except ChainError:
        raise
    except (TypeError, ValueError):
        raise ChainError(f"{name} must be pairs of slots m and a bound eta_m: {advice}") from None
    if not numbers:
        other = "backward" if name == "forward" else "forward"
        raise ChainError(f"{name} is empty, and the curve of {other} does not bound this direction of time: {advice}")
    if len(numbers) > 1_000:
        raise ChainError(f"{name} has {len(numbers)} points, but may have at most 1000: give fewer m")
    _check_falling(name, numbers)
    return tuple(numbers)


def _check_falling(name: str, numbers: Sequence[tuple[int, float]]) -> None:
    for m, eta in numbers:
        if not 0 <= eta <= 1:
            raise ChainError(f"{name}: eta_{m} is {eta!r}, but a total variation lies in [0, 1]: mend it")
    for (m, eta), (later, after) in itertools.pairwise(numbers):
        if m == later:
            raise ChainError(f"{name}: eta_{m} is given twice: give it once")
        if after > eta:
            raise ChainError(
                f"{name}: eta_{later} is {after!r}, above eta_{m} = {eta!r}, but the total variation of no chain rises "
                "with the number of slots: mend the curve"
            )
    if numbers[-1][1] >= 1:
        raise ChainError(
            f"{name}: every eta is 1, so the class holds chains that never forget and no noise is enough for it: give "
            "a bound below 1 at some m"
        )


def _steps(name: str, m: Any) -> int:
    if isinstance(m, bool) or not isinstance(m, int | np.integer) or not 1 <= m <= 100_000:
        raise ChainError(
            f"{name}: m is {m!r:.40}, but must be a whole number of slots from 1 to 100000: mend the curve"
        )
    return int(m)
