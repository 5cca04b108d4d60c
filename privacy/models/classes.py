"""Classes of chains: what may be believed when no single chain is.

``MixingBounds`` is every chain that visits its rarest state often enough and mixes fast enough; ``FiniteClass`` is a
list of chains; ``AnyInitial`` is a list of transition matrices with every start; ``BinaryInterval`` is every chain of
two states whose probabilities to stay lie in two intervals.

>>> MixingBounds.of([MarkovChain([[0.9, 0.1], [0.4, 0.6]]), MarkovChain([[0.8, 0.2], [0.3, 0.7]])]).kind
'multiplicative'
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import numpy.typing as npt

from ..validation import positive
from .markov_chain import ChainError, MarkovChain

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
        _same_states("FiniteClass", members)
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


@dataclass(frozen=True, slots=True)
class AnyInitial:
    """Some transition matrices, each with every initial distribution ([SWC17] App. C.4).

    With M_n[x, x'] = max_y log(P^n(y, x') / P^n(y, x)), the influence of the slot a earlier on slot i is at most
    M_{i-1}[x, x'] + M_a[x', x], and some start comes as close to it as one likes. M_n never rises with n (mediant
    inequality) and i > a, so M_a[x, x'] + M_a[x', x] holds at every slot.

    Attributes:
        chains: The matrices as chains; their start is not used.

    Raises:
        ChainError: If there is none, if one is no transition matrix, or if they differ in their number of states.
    """

    chains: tuple[MarkovChain, ...]

    def __init__(self, transitions: Iterable[npt.ArrayLike]) -> None:
        members = tuple(MarkovChain(transition) for transition in transitions)
        _same_states("AnyInitial", members)
        object.__setattr__(self, "chains", members)

    @property
    def states(self) -> int:
        """Number of states k of every member."""
        return self.chains[0].states

    def to_dict(self) -> dict[str, Any]:
        """A plain form for JSON."""
        return {"kind": "any-initial", "transitions": [chain.transition.tolist() for chain in self.chains]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AnyInitial:
        """Read the form that ``to_dict`` writes.

        Raises:
            ChainError: If the field is missing or a member is no transition matrix.
        """
        if "transitions" not in data:
            raise ChainError(
                "a class of any initial distribution needs the field transitions, a list of matrices: add it"
            )
        return cls(data["transitions"])


@dataclass(frozen=True, slots=True)
class BinaryInterval:
    """Every chain of two states whose probabilities to stay lie in two intervals, with every initial distribution.

    *The worst members.* Write u = 1 - P(0, 0), v = 1 - P(1, 1), lambda = 1 - u - v, F_n for the table of the slot n
    later. A chain of two states is reversible, so M_n[x', x] = log(pi(x) / pi(x')) + F_n[x, x'], and every influence of
    ``AnyInitial`` on either side is a sum of entries of F: the slot a earlier has F_{i-1}[x', x] + F_a[x, x']. It is
    enough to follow these. With s = lambda^n,

        F_n[0, 1] = log(1 + s (u + v) / (v (1 - s)))      where s >= 0,
        F_n[0, 1] = -log(1 + s (u + v) / (u (1 - s)))     where s < 0,

    and F_n[1, 0] is the same with u and v exchanged.

    1. lambda >= 0: s (u + v) / (v (1 - s)) = 1 / (v (lambda^-1 + ... + lambda^-n)), as u + v = 1 - lambda. It falls as
       u or v grows: both lessen lambda, and v grows itself.
    2. lambda < 0, n odd, m = -lambda: m^n (u + v) / (u (1 + m^n)) rises with v plainly. Its logarithm has the
       derivative n / (m (1 + m^n)) - v / (u (u + v)) in u, which is not negative: m = u + v - 1 <= u, and for n = 1 it
       is 1 / (m (u + v)) - v / (u (u + v)) with v <= 1 and m <= u; for n >= 3 the first term is at least 3 / (2 u), the
       second at most 1 / u.
    3. lambda < 0, n even: m^n (u + v) / (v (1 - m^n)) rises with u plainly. Its logarithm has the derivative
       n / (m (1 - m^n)) - u / (v (u + v)) in v, and m <= v makes the first term at least n / v, the second at most
       1 / v.

    So where lambda >= 0 every entry at every lag rises with both probabilities to stay, where lambda <= 0 it falls with
    both. From any member of the first kind the straight way to the corner of the largest probabilities stays of that
    kind; likewise down to the corner of the smallest. At most these two members decide, whatever the quilt, slot and
    secret pair; both are in the class, so nothing is lost.

    Attributes:
        stay_0: Least and largest P(0, 0).
        stay_1: Least and largest P(1, 1).

    Raises:
        ChainError: If an interval is not two probabilities, the smaller one first.
    """

    stay_0: tuple[float, float]
    stay_1: tuple[float, float]

    def __post_init__(self) -> None:
        object.__setattr__(self, "stay_0", _interval("stay_0", self.stay_0))
        object.__setattr__(self, "stay_1", _interval("stay_1", self.stay_1))

    @property
    def states(self) -> int:
        """Number of states of every member, 2."""
        return 2

    @property
    def worst(self) -> AnyInitial:
        """The one or two members that decide every influence."""
        corners = list(zip(self.stay_0, self.stay_1, strict=True))
        low, high = (Fraction(first) + Fraction(second) for first, second in corners)
        kept = corners[1:] if low >= 1 else corners[:1] if high <= 1 else corners
        return AnyInitial([[first, 1 - first], [1 - second, second]] for first, second in dict.fromkeys(kept))

    def contains(self, chain: MarkovChain) -> bool:
        """Whether a chain lies in the class; its initial distribution does not matter."""
        if chain.states != self.states:
            return False
        first, second = float(chain.transition[0, 0]), float(chain.transition[1, 1])
        return self.stay_0[0] <= first <= self.stay_0[1] and self.stay_1[0] <= second <= self.stay_1[1]

    @property
    def bounds(self) -> MixingBounds:
        """The least pi_min and the least gap of all members, which are reversible.

        Raises:
            ChainError: If a member does not mix, or never visits one of its states.
        """
        (stay_0, stay_1), (most_0, most_1) = zip(self.stay_0, self.stay_1, strict=True)
        rare = [_share(1 - most_1, 1 - stay_0), _share(1 - most_0, 1 - stay_1)]
        slowest = max(abs(most_0 + most_1 - 1), abs(stay_0 + stay_1 - 1))
        return MixingBounds(pi_min=min(_MAX_PI_MIN, *rare), gap=2 * max(0.0, 1 - slowest), kind="reversible")

    def to_dict(self) -> dict[str, Any]:
        """A plain form for JSON."""
        return {"kind": "binary-interval", "stay_0": list(self.stay_0), "stay_1": list(self.stay_1)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> BinaryInterval:
        """Read the form that ``to_dict`` writes.

        Raises:
            ChainError: If a field is missing or no interval of probabilities.
        """
        for name in ("stay_0", "stay_1"):
            if name not in data:
                raise ChainError(f"a binary interval needs the field {name}, two probabilities: add it")
        return cls(data["stay_0"], data["stay_1"])


Belief: TypeAlias = MarkovChain | FiniteClass | MixingBounds | AnyInitial | BinaryInterval

Read = TypeVar("Read")


def belief_from_dict(data: Mapping[str, Any]) -> Belief:
    """Read any belief by its ``kind``.

    Raises:
        ChainError: If the kind is not known, or the fields do not make such a belief.
    """
    readers = {
        "markov-chain": MarkovChain.from_dict,
        "finite-class": FiniteClass.from_dict,
        "mixing-bounds": MixingBounds.from_dict,
        "any-initial": AnyInitial.from_dict,
        "binary-interval": BinaryInterval.from_dict,
    }
    kind = data.get("kind")
    if kind in ("dobrushin-bounds", "periodic-chain"):
        raise ChainError(
            f"belief of kind {kind} has no quilts, which the quilt account and its mechanisms need: fit a model with "
            "--belief pooled or --belief series"
        )
    if not isinstance(kind, str) or kind not in readers:
        raise ChainError(f"belief kind is {kind!r:.40}, but must be one of {', '.join(readers)}")
    return read_by(readers[kind], data)


def read_by(reader: Callable[[Mapping[str, Any]], Read], data: Mapping[str, Any]) -> Read:
    """What a reader makes of the plain form of a belief.

    Raises:
        ChainError: If the fields do not make such a belief.
    """
    try:
        return reader(data)
    except ChainError:
        raise
    except (TypeError, KeyError, ValueError, AttributeError, IndexError, ArithmeticError, RecursionError) as error:
        raise ChainError(
            f"belief of kind {data['kind']} has a field that is missing or of another type ({type(error).__name__}); "
            "make it with to_dict() of a belief"
        ) from error


def check_belief(belief: object) -> None:
    """Refuse what is none of the beliefs.

    Raises:
        TypeError: Then.
    """
    if not isinstance(belief, Belief):
        names = ", ".join(kind.__name__ for kind in get_args(Belief))
        raise TypeError(f"belief is a {type(belief).__name__}, but must be one of {names}: make one of it first")


def mixing_bounds(belief: Belief) -> MixingBounds:
    """The bounds that hold for a belief: itself, or those of its chains.

    Raises:
        ChainError: If a chain is reducible or does not mix.
        TypeError: If it is no belief.
    """
    check_belief(belief)
    if isinstance(belief, MixingBounds):
        return belief
    if isinstance(belief, BinaryInterval):
        return belief.bounds
    return MixingBounds.of(belief if isinstance(belief, MarkovChain) else belief.chains)


def starts_stationary(belief: Belief) -> bool:
    """Whether every chain of a belief starts in its stationary distribution."""
    if isinstance(belief, MarkovChain):
        return belief.initial is None
    return isinstance(belief, FiniteClass) and all(chain.initial is None for chain in belief.chains)


def _same_states(name: str, members: tuple[MarkovChain, ...]) -> None:
    if not members:
        raise ChainError(f"{name} got no chain: give at least one")
    sizes = sorted({chain.states for chain in members})
    if len(sizes) > 1:
        raise ChainError(f"the chains of {name} have {sizes} states: fit them all over the same bins")


def _interval(name: str, values: Any) -> tuple[float, float]:
    advice = "give the least and the largest probability to stay"
    try:
        low, high = (math.nan if isinstance(value, bool | str | bytes) else float(value) for value in values)
    except (TypeError, ValueError):
        raise ChainError(f"{name} is {values!r}, but must be two numbers: {advice}") from None
    if not 0 <= low <= high <= 1:
        raise ChainError(f"{name} is ({low!r}, {high!r}), but must have 0 <= least <= largest <= 1: {advice}")
    return low + 0.0, high + 0.0


def _share(part: float, rest: float) -> float:
    """The part of the whole, part / (part + rest), rounded down; 0 where both are 0."""
    return max(0.0, part / (part + rest) * (1 - 2.0**-50)) if part > 0 else 0.0


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
