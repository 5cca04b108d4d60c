"""Classes of chains: what may be believed when no single chain is.

``MixingBounds`` is every chain that visits its rarest state often enough and mixes fast enough; ``FiniteClass`` is a
list of chains.

>>> MixingBounds.of([MarkovChain([[0.9, 0.1], [0.4, 0.6]]), MarkovChain([[0.8, 0.2], [0.3, 0.7]])]).kind
'multiplicative'
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from .chains import ChainError, MarkovChain
from .checks import positive

GapKind = Literal["unknown", "multiplicative", "reversible"]

_MAX_PI_MIN = 0.5
_MAX_GAP = {"unknown": 2.0, "multiplicative": 1.0, "reversible": 2.0}
_ZERO_GAP = 1e-12
"""A computed gap below this cannot be told from 0 in double precision."""


@dataclass(frozen=True, slots=True)
class MixingBounds:
    """Every chain, with any initial distribution, whose pi_min and gap are at least these.

    [SWC17] Lemma 4.8 and App. C.4.

    Attributes:
        pi_min: Smallest stationary probability allowed, in (0, 1/2].
        gap: Smallest spectral gap allowed.
        kind: Which gap it is. ``multiplicative``: of P P*, in (0, 1]. ``reversible``: twice the absolute gap of a
            reversible P, in (0, 2]. ``unknown``: either of them.

    Raises:
        ChainError: If a bound lies outside its range.
    """

    pi_min: float
    gap: float
    kind: GapKind = "unknown"

    def __post_init__(self) -> None:
        if self.kind not in get_args(GapKind):
            raise ChainError(f"kind is {self.kind!r}, but must be one of {', '.join(get_args(GapKind))}")
        _bound("pi_min", self.pi_min, _MAX_PI_MIN, "give the rarest state a floor, or merge rare bins")
        _bound(f"gap of kind {self.kind}", self.gap, _MAX_GAP[self.kind], "merge rare bins, or smooth the counts")
        object.__setattr__(self, "pi_min", float(self.pi_min))
        object.__setattr__(self, "gap", float(self.gap))

    @property
    def rho(self) -> float:
        """Contraction of mean-zero functions per step.

        sqrt(1 - g) for the gap of P P*, else 1 - g/2, which is valid for both.
        """
        return math.sqrt(1 - self.gap) if self.kind == "multiplicative" else 1 - self.gap / 2

    @classmethod
    def of(cls, chains: MarkovChain | Iterable[MarkovChain], *, reversible: bool = False) -> MixingBounds:
        """The smallest bounds that hold for some chains: the least pi_min and the least gap among them.

        Args:
            chains: One chain or several; initial distributions do not matter.
            reversible: Use twice the gap of P instead of the gap of P P*; every chain must be reversible.

        Raises:
            ChainError: If a chain is reducible, does not mix, or is not reversible though ``reversible`` is asked for.
        """
        members = [chains] if isinstance(chains, MarkovChain) else list(chains)
        if not members:
            raise ChainError("MixingBounds.of got no chain: give at least one")
        return cls(
            # a chain of one state has pi_min 1; any bound up to it is true
            pi_min=min(_MAX_PI_MIN, *(chain.pi_min for chain in members)),
            gap=min(_gap(chain, reversible=reversible) for chain in members),
            kind="reversible" if reversible else "multiplicative",
        )

    def covers(self, chain: MarkovChain) -> bool:
        """Whether a chain lies in the class: rarest state and gap, of the same kind, at least as large.

        Bounds of unknown kind hold for a chain if either of its gaps is large enough. A reducible chain is never
        covered.
        """
        if not chain.is_irreducible or chain.pi_min < self.pi_min:
            return False
        by_product = self.kind != "reversible" and chain.gap >= self.gap
        return by_product or (
            self.kind != "multiplicative" and chain.is_reversible and chain.reversible_gap >= self.gap
        )

    def to_dict(self) -> dict[str, Any]:
        """A plain form for JSON."""
        return {"kind": "mixing-bounds", "pi_min": self.pi_min, "gap": self.gap, "gap_kind": self.kind}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MixingBounds:
        """Read the form that ``to_dict`` writes.

        Raises:
            ChainError: If a field is missing or out of range.
        """
        for name in ("pi_min", "gap"):
            if name not in data:
                raise ChainError(f"mixing bounds need the field {name}: add it")
        return cls(data["pi_min"], data["gap"], data.get("gap_kind", "unknown"))


@dataclass(frozen=True, slots=True)
class FiniteClass:
    """A list of chains over the same states; the loss is the worst among them.

    Attributes:
        chains: The members, at least one.

    Raises:
        ChainError: If there is none, or if they differ in their number of states.
    """

    chains: tuple[MarkovChain, ...]

    def __init__(self, chains: Iterable[MarkovChain]) -> None:
        members = tuple(chains)
        if not members:
            raise ChainError("FiniteClass got no chain: give at least one")
        sizes = sorted({chain.states for chain in members})
        if len(sizes) > 1:
            raise ChainError(f"the chains of a FiniteClass have {sizes} states: fit them all over the same bins")
        object.__setattr__(self, "chains", members)

    @property
    def states(self) -> int:
        """Number of states k of every member."""
        return self.chains[0].states

    def to_dict(self) -> dict[str, Any]:
        """A plain form for JSON."""
        return {"kind": "finite-class", "chains": [chain.to_dict() for chain in self.chains]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> FiniteClass:
        """Read the form that ``to_dict`` writes.

        Raises:
            ChainError: If a field is missing or a member is not a chain.
        """
        if "chains" not in data:
            raise ChainError("a finite class needs the field chains, a list of chains: add it")
        return cls(MarkovChain.from_dict(chain) for chain in data["chains"])


Belief: TypeAlias = MarkovChain | FiniteClass | MixingBounds


def belief_from_dict(data: Mapping[str, Any]) -> Belief:
    """Read any belief by its ``kind``.

    Raises:
        ChainError: If the kind is not known, or the fields do not make such a belief.
    """
    readers = {
        "markov-chain": MarkovChain.from_dict,
        "finite-class": FiniteClass.from_dict,
        "mixing-bounds": MixingBounds.from_dict,
    }
    kind = data.get("kind")
    if kind not in readers:
        raise ChainError(f"belief kind is {kind!r}, but must be one of {', '.join(readers)}")
    return readers[kind](data)


def mixing_bounds(belief: Belief) -> MixingBounds:
    """The bounds that hold for a belief: itself, or those of its chains."""
    if isinstance(belief, MixingBounds):
        return belief
    return MixingBounds.of(belief.chains if isinstance(belief, FiniteClass) else belief)


def _bound(name: str, value: float, limit: float, advice: str) -> None:
    try:
        number = positive(name, value, advice)
    except ValueError as error:
        raise ChainError(str(error)) from None
    if number > limit:
        raise ChainError(f"{name} is {number!r}, but must be at most {limit:g}: no chain exceeds it, check the number")


def _gap(chain: MarkovChain, *, reversible: bool) -> float:
    advice = "merge rare bins, or smooth the counts"
    if chain.period > 1:
        raise ChainError(f"the chain is periodic with period {chain.period}, so it never mixes: {advice}")
    if not reversible and chain.gap_multiplicity > 1:
        raise ChainError(
            f"P P* is reducible though P is not: it falls into {chain.gap_multiplicity} classes, has the eigenvalue 1 "
            f"that often, and its gap is 0: {advice} (every rare transition given some weight), "
            "or use an exact method for this chain"
        )
    gap = chain.reversible_gap if reversible else chain.gap
    if gap < _ZERO_GAP:
        raise ChainError(f"the gap of the chain is {gap!r}, which cannot be told from 0: {advice}")
    return gap
