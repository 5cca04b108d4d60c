"""Every chain near a given one, also one that changes in time.

At every slot t the kernel of a member from t to t + 1 has all its rows within tau of those of P in total variation, and
the kernel from t back to t - 1, under the marginals that the member has, all its rows within tau of those of P*. The
second does not follow from the first: a tau on P alone moves the reversed rows by far more.

Its account has one number for each direction, by the contraction of m steps (:mod:`.dobrushin`):

    eta_m of a member <= eta_m(P) + 2 tau (1 + eta_1(P) + ... + eta_{m-1}(P))

Proof. Let K_1 ... K_m be kernels of a member. From a state x,

    x K_1 ... K_m - x P^m = sum over j of (x K_1 ... K_{j-1}) (K_j - P) P^{m-j}.

The mean of rows of K_j - P has mass 0 and a total variation of at most tau, and P^{m-j} shrinks that by eta_{m-j}(P);
so each of two laws m slots on is within tau (1 + ... + eta_{m-1}(P)) of that of P. The same holds back in time. QED.

>>> from quiltstream.privacy.accounting import endless
>>> near = Neighbourhood(MarkovChain([[0.9, 0.1], [0.4, 0.6]]), 0.05)
>>> [round(1 / endless(Neighbourhood(near.chain, tau), 1.0).density, 2) for tau in (0.0, 0.01, 0.05)]
[3.74, 3.95, 5.03]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..accounting.directions import MixingCurve, Pair
from ..chains import ChainError, MarkovChain
from .dobrushin import contraction

#: Numbers of slots m of the curves.
_STEPS = tuple(range(1, 65))

#: What sums of some dozen numbers of up to some dozen may be off by.
_OUTWARD = 1e-12


@dataclass(frozen=True)
class Neighbourhood:
    """All chains, also changing in time, whose rows in both directions are within tau of those of a chain.

    Attributes:
        chain: P, irreducible; its initial distribution is not used.
        tau: Total variation between rows, from 0 to 1.

    Raises:
        ChainError: Tau is out of range, or the chain has a state that is left for ever.
    """

    chain: MarkovChain
    tau: float

    def __post_init__(self) -> None:
        tau: Any = self.tau
        if isinstance(tau, bool) or not isinstance(tau, int | float) or not 0 <= tau <= 1:
            raise ChainError(f"tau is {tau!r:.40}, but must be a total variation from 0 to 1: give for example 0.01")
        if not self.chain.is_irreducible:
            raise ChainError(
                "the chain is reducible: some state is left for ever, so its reversed rows are not known: merge rare "
                "bins, or smooth the counts"
            )

    def directions(self) -> tuple[Pair, ...]:
        """One number for each direction; of a tau that is too large none has a bound at any density."""
        return (tuple(MixingCurve(tuple(zip(_STEPS, self._near(eta), strict=True))) for eta in self._curves),)  # pyright: ignore[reportReturnType] - two of them

    @property
    def _curves(self) -> tuple[np.ndarray, np.ndarray]:
        return contraction(MarkovChain(self.chain.transition), _STEPS)

    def _near(self, eta: np.ndarray) -> list[float]:
        moved = 2 * self.tau * np.concatenate([[1.0], 1.0 + np.cumsum(eta[:-1])])
        return np.minimum(1.0, (eta + moved) * (1 + _OUTWARD)).tolist()

    def check_interval(self, interval_us: int) -> None:
        """Nothing: the class may be about slots of any length."""

    def to_dict(self) -> dict[str, Any]:
        """A plain form for JSON."""
        return {"kind": "neighbourhood", "transition": self.chain.transition.tolist(), "tau": self.tau}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Neighbourhood:
        """Read the form that ``to_dict`` writes.

        Raises:
            ChainError: A field is missing or makes no neighbourhood.
        """
        for name in ("transition", "tau"):
            if name not in data:
                raise ChainError(f"a neighbourhood needs the field {name}: add it")
        return cls(MarkovChain(data["transition"]), data["tau"])
