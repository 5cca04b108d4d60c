"""Classes of chains: what may be believed when no single chain is.

``MixingBounds`` is every chain that visits its rarest state often enough and mixes fast enough; ``FiniteClass`` is a
list of chains; ``AnyInitial`` is a list of transition matrices with every start; ``BinaryInterval`` is every chain of
two states whose probabilities to stay lie in two intervals.

>>> MixingBounds.of([MarkovChain([[0.9, 0.1], [0.4, 0.6]]), MarkovChain([[0.8, 0.2], [0.3, 0.7]])]).kind
'multiplicative'
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from ..validation import as_list, choice, float_above, instance, number, positive
from .belief import Belief, ChainError
from .couplings import FloatArray
from .directions import STEPS, AnyStart, MixingCurve, Pair
from .markov_chain import MarkovChain, chains_of, check_chain

GapKind = Literal["unknown", "multiplicative", "reversible"]

#: The rarest of two states or more has at most this probability.
MAX_PI_MIN = 0.5


@dataclass(frozen=True, eq=False)
class MixingBounds(Belief):
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

    named = "mixing-bounds"
    written = ("pi_min", "gap", "gap_kind")
    optional = ("gap_kind",)

    pi_min: float
    gap: float
    kind: GapKind = "unknown"

    def __post_init__(self) -> None:
        try:
            choice("kind", self.kind, get_args(GapKind))
        except ValueError as error:
            raise ChainError(str(error)) from None
        _bound("pi_min", self.pi_min, MAX_PI_MIN, "give the rarest state a floor, or merge rare bins")
        limit = 1.0 if self.kind == "multiplicative" else 2.0
        _bound(f"gap of kind {self.kind}", self.gap, limit, "merge rare bins, or smooth the counts")
        object.__setattr__(self, "pi_min", float(self.pi_min))
        object.__setattr__(self, "gap", float(self.gap))

    @property
    def rho(self) -> float:
        """Contraction of mean-zero functions per step.

        sqrt(1 - g) for the gap of P P*, else 1 - g/2, which is valid for both.
        """
        return math.sqrt(1 - self.gap) if self.kind == "multiplicative" else 1 - self.gap / 2

    @property
    def bounds(self) -> MixingBounds:
        """The class itself."""
        return self

    @property
    def any_start(self) -> bool:
        """Always."""
        return True

    @property
    def witnesses(self) -> tuple[MarkovChain, ...]:
        """The chain of two states that has the smallest pi_min and gap of the class."""
        return (two_states(self.rho * (1 - 1e-12), self.pi_min),)

    def stationary_range(self, states: int) -> tuple[FloatArray, FloatArray]:
        """From pi_min up: a state may be as frequent as it likes."""
        return np.full(states, self.pi_min), np.ones(states)

    def directions(self) -> tuple[Pair, ...]:
        """One number for each direction, from any start.

        Ahead, the chi-square norm of 1_x/pi(x) - 1_x'/pi(x') is at most sqrt(2/pi_min) and shrinks by rho a slot; half
        of it bounds the total variation. Back, the weights of an unknown start lie within 1/pi_min of the stationary
        ones.
        """
        steps: list[int] = [*STEPS]
        # the account remembers a number for each slot of the longest block; a class that forgets next to nothing within
        # a million has no bound but all the density
        while steps[-1] < 2**20 and self.rho ** steps[-1] > 1e-17:
            steps.append(steps[-1] * 5 // 4)

        def curve(factor: float) -> MixingCurve:
            # rho is a float near the true one, and what it is off by grows with the power
            up = ((m, 1 + max(1e-13, m * 2.0**-52)) for m in steps)
            return MixingCurve(tuple((m, min(1.0, self.rho**m * factor * raised)) for m, raised in up))

        return ((curve(1 / math.sqrt(2 * self.pi_min)), curve(1 / self.pi_min - 1)),)

    @classmethod
    def of(cls, chains: MarkovChain | Iterable[MarkovChain], *, reversible: bool = False) -> MixingBounds:
        """The smallest bounds that hold for some chains: the least pi_min and the least gap among them.

        Both are in double precision: the gap of k states may be off by some k 2^-52.

        Args:
            chains: One chain or several; initial distributions do not matter.
            reversible: Use twice the gap of P instead of the gap of P P*; every chain must be reversible.

        Raises:
            ChainError: If a chain is reducible, does not mix, or is not reversible though ``reversible`` is asked for.
        """
        members = [chains] if isinstance(chains, MarkovChain) else as_list("chains", chains, "chains: give [chain]")
        if not members:
            raise ChainError("MixingBounds.of got no chain: give at least one")
        for place, chain in enumerate(members):
            check_chain(f"chains[{place}]", chain)
        return cls(
            # a chain of one state has pi_min 1; any bound up to it is true
            pi_min=min(MAX_PI_MIN, *(chain.pi_min for chain in members)),
            gap=min(_gap(chain, reversible=reversible) for chain in members),
            kind="reversible" if reversible else "multiplicative",
        )

    def covers(self, chain: MarkovChain) -> bool:
        """Whether a chain lies in the class: rarest state and gap, of the same kind, at least as large.

        Bounds of unknown kind hold for a chain if either of its gaps is large enough. A reducible chain is never
        covered.
        """
        check_chain("chain", chain)
        if not chain.is_irreducible or chain.pi_min < self.pi_min:
            return False
        by_product = self.kind != "reversible" and chain.gap >= self.gap
        return by_product or (
            self.kind != "multiplicative" and chain.is_reversible and chain.reversible_gap >= self.gap
        )


@dataclass(frozen=True, eq=False, init=False)
class _Listed(Belief):
    """The part of a belief that lists its chains."""

    chains: tuple[MarkovChain, ...]

    def __init__(self, chains: Iterable[MarkovChain]) -> None:
        name = type(self).__name__
        members = tuple(as_list("chains", chains, "chains, each one MarkovChain: give [chain]", ChainError))
        if not members:
            raise ChainError(f"{name} got no chain: give at least one")
        other = next((one for one in members if not isinstance(one, MarkovChain)), None)
        if other is not None:
            raise ChainError(f"{name} got a {type(other).__name__}: its members are chains, each one MarkovChain")
        members = tuple(MarkovChain(*chain.arguments) if chain.kept else chain for chain in members)
        sizes = sorted({chain.states for chain in members})
        if len(sizes) > 1:
            raise ChainError(f"the chains of {name} have {sizes} states: fit them all over the same bins")
        object.__setattr__(self, "chains", members)

    @property
    def states(self) -> int:
        """Number of states k of every member."""
        return self.chains[0].states

    @property
    def members(self) -> tuple[MarkovChain, ...]:
        """The chains; of a class with any start, whatever theirs is."""
        return self.chains


@dataclass(frozen=True, eq=False, init=False)
class FiniteClass(_Listed):
    """A list of chains over the same states; the loss is the worst among them.

    Attributes:
        chains: The members, at least one.

    Raises:
        ChainError: If there is none, or if they differ in their number of states.
    """

    named = "finite-class"
    written = ("chains",)

    def directions(self) -> tuple[Pair, ...]:
        """Those of each chain.

        Raises:
            ChainError: A chain has a fixed start, or is reducible.
        """
        return tuple(pair for chain in self.chains for pair in chain.directions())

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> FiniteClass:
        """Read the form that ``form`` writes, of chains and nothing else."""
        return super().from_dict({**data, "chains": list(map(_member, data["chains"]))} if "chains" in data else data)


@dataclass(frozen=True, eq=False, init=False)
class AnyInitial(_Listed):
    """Some transition matrices, each with every initial distribution ([SWC17] App. C.4).

    With M_n[x, x'] = max_y log(P^n(y, x') / P^n(y, x)), the influence of the slot a earlier on slot i is at most
    M_{i-1}[x, x'] + M_a[x', x], and where every state can be entered some start comes as close to it as one likes. M_n
    never rises with n (mediant inequality) and i > a, so M_a[x, x'] + M_a[x', x] holds at every slot.

    Attributes:
        chains: The matrices as chains; their start is not used.

    Raises:
        ChainError: If there is none, if one is no transition matrix, or if they differ in their number of states.
    """

    named = "any-initial"
    written = ("transitions",)

    def __init__(self, transitions: MarkovChain | Iterable[npt.ArrayLike | MarkovChain]) -> None:
        given = [transitions] if isinstance(transitions, MarkovChain) else transitions
        wanted = "transition matrices, or chains, whose start is not used: give [P], the matrices P[x][y] in a list"
        chains = chains_of("transitions", as_list("transitions", given, wanted, ChainError))
        _Listed.__init__(self, [one if one.initial is None else MarkovChain(one.transition) for one in chains])

    @property
    def any_start(self) -> bool:
        """Always."""
        return True

    def directions(self) -> tuple[Pair, ...]:
        """The kernel ahead and the odds of an unknown start back, of each matrix."""
        return tuple((chain.ahead, AnyStart.of(chain.transition)) for chain in self.chains)

    def form(self) -> dict[str, Any]:
        """A plain form for JSON."""
        return {"kind": self.named, "transitions": [chain.transition.tolist() for chain in self.chains]}


@dataclass(frozen=True, eq=False)
class BinaryInterval(Belief):
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

    named = "binary-interval"
    written = ("stay_0", "stay_1")

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

    @property
    def members(self) -> tuple[MarkovChain, ...]:
        """The one or two members that decide every influence."""
        return self.worst.chains

    @property
    def any_start(self) -> bool:
        """Always."""
        return True

    @property
    def words(self) -> str:
        """The two intervals."""
        (low, high), (other_low, other_high) = self.stay_0, self.stay_1
        return (
            f"every chain of 2 states that stays in state 0 with probability {low:g} to {high:g} and in state 1 with "
            f"probability {other_low:g} to {other_high:g}"
        )

    def stationary_range(self, states: int) -> tuple[FloatArray, FloatArray]:  # noqa: ARG002 - it has two
        """From the corners of the two intervals."""
        low, high = (_share_of_first(self.stay_0[one], self.stay_1[1 - one]) for one in (0, 1))
        return np.array([low, 1 - high]), np.array([high, 1 - low])

    def directions(self) -> tuple[Pair, ...]:
        """Those of the worst members, from any start."""
        return self.worst.directions()

    @property
    def bounds(self) -> MixingBounds:
        """The least pi_min and the least gap of all members, which are reversible.

        Raises:
            ChainError: If a member does not mix, or never visits one of its states.
        """
        (stay_0, stay_1), (most_0, most_1) = zip(self.stay_0, self.stay_1, strict=True)
        rare = [_share(1 - most_1, 1 - stay_0), _share(1 - most_0, 1 - stay_1)]
        slowest = max(abs(Fraction(most_0) + Fraction(most_1) - 1), abs(Fraction(stay_0) + Fraction(stay_1) - 1))
        # rounded down
        gap = max(0.0, -float_above(2 * (slowest - 1)))
        return MixingBounds(pi_min=min(MAX_PI_MIN, *rare), gap=gap, kind="reversible")


def two_states(eigenvalue: float, rare: float) -> MarkovChain:
    """The reversible chain of two states with this second eigenvalue, the first state with this probability.

    The total variation between its two m-step rows is the m-th power of the eigenvalue, in both directions of time; the
    gap of P P* is 1 - eigenvalue^2.
    """
    laws = np.array([[rare, 1 - rare]] * 2)
    return MarkovChain(eigenvalue * np.eye(2) + (1 - eigenvalue) * laws)


def mixing_bounds(belief: Belief) -> MixingBounds:
    """The bounds that hold for a belief: its own, or those of its members.

    Raises:
        ChainError: If a chain is reducible or does not mix, or the class bounds neither pi_min nor a gap.
    """
    instance("belief", belief, Belief)
    if (bounds := belief.bounds) is not None:
        return bounds
    if not belief.members:
        raise ChainError(
            f"{type(belief).__name__} bounds neither the rarest state nor a spectral gap, which quilts need: use "
            "forward_backward, or fit a model with --belief pooled"
        )
    return MixingBounds.of(belief.members)


def check_mixing_bounds(bounds: object) -> None:
    """Refuse what is no mixing bounds by a TypeError."""
    instance("bounds", bounds, MixingBounds, advice="see mixing_bounds, which makes them of a belief")


def stated_chains(belief: Belief, what: str) -> tuple[MarkovChain, ...]:
    """The chains of a belief that has a law of its own: each with one initial distribution.

    Raises:
        TypeError: It is another belief, or none.
    """
    chains = () if getattr(belief, "any_start", True) else belief.members
    if not chains:
        raise TypeError(
            f"belief is a {type(belief).__name__}, but {what} needs chains with one start each: give a MarkovChain or "
            "a FiniteClass"
        )
    return chains


def _member(data: Mapping[str, Any]) -> MarkovChain:
    kind, more = data.get("kind", "markov-chain"), set(data) - {"kind", "transition", "initial"}
    if kind != "markov-chain" or more:
        what = f"of kind {kind!r:.40}" if not more else f"with a field {min(more, key=str)!r:.40}"
        raise ChainError(f"a finite class has a member {what}, but its members are of kind markov-chain: correct it")
    return MarkovChain.from_dict(data)


def _interval(name: str, values: Any) -> tuple[float, float]:
    advice = "give the least and the largest probability to stay, for example (0.8, 0.95)"
    try:
        low, high = (number(name, value, advice) for value in values)
    except (TypeError, ValueError):
        raise ChainError(f"{name} is {values!r:.40}, but must be two numbers: {advice}") from None
    if not 0 <= low <= high <= 1:
        raise ChainError(f"{name} is ({low!r}, {high!r}), but must have 0 <= least <= largest <= 1: {advice}")
    return low + 0.0, high + 0.0


def _share_of_first(stay_0: float, stay_1: float) -> float:
    return (1 - stay_1) / ((1 - stay_0) + (1 - stay_1))


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
    if gap < 1e-12:
        raise ChainError(f"the gap of the chain is {gap!r}, which cannot be told from 0: {advice}")
    return gap
