"""The general Markov Quilt Mechanism on a Bayesian network ([SWC17] Definitions 4.1 and 4.2, Algorithm 2).

A Markov quilt of X_i is a set X_Q that makes X_i independent of a set X_R; the rest, X_N, with X_i in it, is nearby. If
X_Q tells at most e < epsilon about X_i (max-influence), then Laplace noise of scale L card(X_N) / (epsilon - e) hides
X_i: group privacy covers the nearby variables, independence the remote ones.

>>> network = BayesianNetwork.from_chain(MarkovChain([[0.9, 0.1], [0.4, 0.6]], [0.8, 0.2]), length=3)
>>> for quilt in network_quilts(network, "X2", epsilon=10.0):  # the worked example of [SWC17] section 4.2
...     print(quilt.quilt, len(quilt.nearby), round(quilt.influence, 4), round(quilt.score, 4))
('X1', 'X3') 1 3.5835 0.1558
('X1',) 2 1.7918 0.2437
('X3',) 2 1.7918 0.2437
() 3 0.0 0.3
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ..models.markov_chain import FloatArray, MarkovChain, check_chain, frozen
from ..models.periodic import SUM_TOLERANCE
from ..validation import PrivacyError, accepted_loss, numbers, whole
from .joint import LARGEST_JOINT

Names: TypeAlias = tuple[str, ...]


class NetworkError(PrivacyError):
    """A graph that is not acyclic, a table that does not fit it, or a variable that is not in it."""


@dataclass(frozen=True, init=False, repr=False, eq=False)
class BayesianNetwork:
    """Variables X_1..X_n, each with parents and a table P(X | parents); the joint law is the product of the tables.

    Attributes:
        parents: the parents of every variable, in the order of the axes of its table.
        tables: the tables, read-only: one axis per parent, then one for the variable, along which it sums to 1.

    Raises:
        NetworkError: a parent is unknown, there is a cycle, or a table does not fit or is none of probabilities.
    """

    parents: Mapping[str, Names]
    tables: Mapping[str, FloatArray]

    def __init__(self, parents: Mapping[str, Sequence[str]], tables: Mapping[str, npt.ArrayLike]) -> None:
        above = {name: tuple(given) for name, given in parents.items()}
        known = {parent for given in above.values() for parent in given} | {*tables}
        if not above or known - {*above} or {*above} - {*tables}:
            raise NetworkError("parents and tables must name the same variables, at least one, and parents among them")
        try:
            order = [*TopologicalSorter(above).static_order()]
        except CycleError as error:
            raise NetworkError(f"parents has a cycle, {error.args[1]}: turn an arrow or leave one out") from None
        kept: dict[str, FloatArray] = {}
        for name in order:
            kept[name] = _table(name, tables[name], [kept[parent].shape[-1] for parent in above[name]])
        object.__setattr__(self, "parents", above)
        object.__setattr__(self, "tables", {name: kept[name] for name in above})

    def __repr__(self) -> str:
        return f"BayesianNetwork({', '.join(self.names)})"

    @classmethod
    def from_chain(cls, chain: MarkovChain, length: int) -> BayesianNetwork:
        """The chain X1 -> X2 -> ... of a window of slots."""
        check_chain("chain", chain)
        slots = whole("length", length, "give the slots of a window", least=1, most=LARGEST_JOINT)
        names = [f"X{slot}" for slot in range(1, slots + 1)]
        start = chain.stationary if chain.initial is None else chain.initial
        return cls(
            {name: names[place - 1 : place] if place else [] for place, name in enumerate(names)},
            {name: chain.transition if place else start for place, name in enumerate(names)},
        )

    @property
    def names(self) -> Names:
        """The variables, in the order in which they were given."""
        return tuple(self.parents)

    def states(self, name: str) -> int:
        """How many states a variable has."""
        return self.tables[self.checked(name)].shape[-1]

    def checked(self, name: str) -> str:
        """The name itself; a `NetworkError` where the network has no such variable."""
        if name not in self.tables:
            raise NetworkError(
                f"variable {name!r:.40} is not in the network: it has {', '.join(map(repr, self.names))}"
            )
        return name

    def ancestors(self, names: Iterable[str]) -> frozenset[str]:
        """Some variables with all variables above them."""
        found, stack = set[str](), [self.checked(name) for name in names]
        while stack:
            name = stack.pop()
            if name not in found:
                found.add(name)
                stack.extend(self.parents[name])
        return frozenset(found)

    def separated_from(self, name: str, given: Iterable[str]) -> Names:
        """All variables that the graph makes independent of one variable, given others (d-separation).

        By the ball that travels along trails ("Bayes ball"): from a variable entered from below it goes on to parents
        and children, unless the variable is given; from one entered from above it goes on to the children unless the
        variable is given, and to the parents if it or a descendant is given (a collider). What the ball cannot reach is
        separated.

        Raises:
            NetworkError: a variable is unknown, or is given itself.
        """
        known = {self.checked(other) for other in given}
        if self.checked(name) in known:
            raise NetworkError(f"given contains the variable {name!r} itself: leave it out")
        opened = self.ancestors(known)
        seen, stack = set[tuple[str, bool]](), [(name, True)]  # a variable, and whether the ball comes from below
        while stack:
            here, from_below = stack.pop()
            if (here, from_below) in seen:
                continue
            seen.add((here, from_below))
            if here not in known:
                stack.extend((child, False) for child in self.names if here in self.parents[child])
            if (from_below and here not in known) or (not from_below and here in opened):
                stack.extend((parent, True) for parent in self.parents[here])
        reached = {here for here, _ in seen}
        return tuple(other for other in self.names if other not in reached and other not in known)


def _table(name: str, values: npt.ArrayLike, parents: list[int]) -> FloatArray:
    array = numbers(f"table of {name!r}", values)
    if array.ndim != len(parents) + 1 or list(array.shape[:-1]) != parents or not array.size:
        raise NetworkError(
            f"table of {name!r} has shape {array.shape}, but must have one axis per parent, of {parents} states, and "
            "one for the variable itself"
        )
    sums = array.sum(axis=-1, keepdims=True)
    if not (array >= 0).all() or not (np.abs(sums - 1) <= SUM_TOLERANCE).all():
        raise NetworkError(
            f"table of {name!r} must have probabilities that sum to 1 within {SUM_TOLERANCE:g} along the last axis: "
            "mend the entry, or divide by the sum if that is what was meant"
        )
    return frozen(array / sums)


Factor: TypeAlias = tuple[Names, FloatArray]
"""Variables, and a table of logarithms with an axis for each."""


def log_marginal(network: BayesianNetwork, names: Sequence[str]) -> FloatArray:
    """The logarithm of P(X_names), one axis per name in the given order; minus infinity where the probability is 0.

    By elimination: only the variables and their ancestors matter, and the others are summed out one by one, each time
    the one that makes the smallest table. In logarithms, because probabilities of many rare events multiply to numbers
    below the range of floats, while only their ratios decide about influence.

    Raises:
        NetworkError: a variable is unknown, or a table would have more than 2^22 entries.
    """
    needed = network.ancestors(names)
    with np.errstate(divide="ignore"):
        factors: list[Factor] = [
            ((*network.parents[name], name), np.log(network.tables[name])) for name in network.names if name in needed
        ]

    def beside(name: str) -> Names:
        touched = (other for own, _ in factors if name in own for other in own if other != name)
        return tuple(dict.fromkeys(touched))

    hidden = sorted(needed - set(names), key=network.names.index)
    while hidden:
        name = min(hidden, key=lambda one: math.prod(map(network.states, beside(one))))
        hidden.remove(name)
        scope = beside(name)
        product = _multiplied(network, [factor for factor in factors if name in factor[0]], (*scope, name))
        factors = [*(factor for factor in factors if name not in factor[0]), (scope, log_sum(product))]
    return _multiplied(network, factors, tuple(names))


def log_sum(values: FloatArray) -> FloatArray:
    """The logarithm of the sum of exponentials along the last axis."""
    return np.logaddexp.reduce(values, axis=-1)


def _multiplied(network: BayesianNetwork, factors: Sequence[Factor], names: Names) -> FloatArray:
    sizes = [network.states(name) for name in names]
    if math.prod(sizes) > 2**22:
        raise NetworkError(
            f"exact inference needs a table of {math.prod(sizes)} entries, the limit is 2^22: use a network with fewer "
            "states or parents"
        )
    product = np.zeros(sizes)
    for own, values in factors:
        places = [names.index(name) for name in own]
        shape = [size if place in places else 1 for place, size in enumerate(sizes)]
        product += np.transpose(values, np.argsort(places)).reshape(shape)
    return product


@dataclass(frozen=True, slots=True)
class NetworkQuilt:
    """A Markov quilt of one variable, and what it gives at one epsilon."""

    nearby: Names  # X_N, the variable that is hidden first
    quilt: Names  # X_Q
    remote: Names  # X_R, all that d-separation makes independent of the variable given the quilt
    influence: float  # max-influence of the quilt; infinite where it can rule a state out
    score: float  # card(X_N) / (epsilon - influence); infinite where the influence is not below epsilon


@dataclass(frozen=True, slots=True)
class NetworkCalibration:
    """How much noise a query on the network's variables needs."""

    epsilon: float  # the target
    sigma: float  # noise scale per unit of L1 sensitivity
    quilt: NetworkQuilt  # the quilt that decides, that of the variable that needs most noise
    member: int  # which network of the class it belongs to, from 0

    @property
    def epsilon_dp(self) -> float:
        """Loss per variable, 1 / sigma."""
        return 1 / self.sigma


def max_influence(network: BayesianNetwork, node: str, quilt: Iterable[str]) -> float:
    """Max-influence of a quilt on one variable ([SWC17] Definition 4.1).

    The largest log P(X_Q | X_i = a) / P(X_Q | X_i = b) over states a, b of the variable and states of the quilt. States
    of X_i with probability 0 are no secrets and do not count. Infinite where a state of the quilt is possible with a
    and impossible with b.
    """
    known = tuple(dict.fromkeys(quilt))
    if node in known:
        raise NetworkError(f"quilt contains the variable {node!r} that it is to hide: leave it out")
    table = log_marginal(network, (*known, node)).reshape(-1, network.states(node))
    prior = log_sum(table.T)
    given = table[:, np.isfinite(prior)] - prior[np.isfinite(prior)]
    rows = given[np.isfinite(given).any(axis=1)]
    return max(0.0, float((rows.max(axis=1) - rows.min(axis=1)).max())) if known else 0.0


def network_quilts(network: BayesianNetwork, node: str, epsilon: float) -> tuple[NetworkQuilt, ...]:
    """The quilts of one variable with their influences and scores, the best first.

    All but those that contain another with the same variables nearby, which tell no less. The empty one is among them:
    where it has nothing remote it is group privacy.

    Raises:
        NetworkError: the variable is unknown, or there are more than 2^16 sets that could be quilts.
    """
    target = accepted_loss(epsilon)
    found = [_scored(network, *parts, target) for parts in _candidates(network, node)]
    return tuple(sorted(found, key=lambda entry: (entry.score, len(entry.quilt))))


def network_mqm(networks: BayesianNetwork | Iterable[BayesianNetwork], epsilon: float) -> NetworkCalibration:
    """The general Markov Quilt Mechanism ([SWC17] Algorithm 2): sigma = max over theta and X_i of the best score.

    Every member of the class uses its own best quilts; the guarantee is a statement about each member, so this needs no
    more noise than one choice of quilts for all of them. Errors are those of `network_quilts`.
    """
    target = accepted_loss(epsilon)
    members = [networks] if isinstance(networks, BayesianNetwork) else list(networks)
    if not members:
        raise NetworkError("networks is empty: give at least one")
    found: list[NetworkCalibration] = []
    for member, network in enumerate(members):
        for node in network.names:
            best = _best(network, node, target)
            found.append(NetworkCalibration(target, best.score, best, member))
    return max(found, key=lambda one: one.sigma)


def _best(network: BayesianNetwork, node: str, epsilon: float) -> NetworkQuilt:
    """The quilt of least score; influence is computed only while fewer nearby variables could still win."""
    first, *rest = sorted(_candidates(network, node), key=lambda parts: len(parts[0]))
    best = _scored(network, *first, epsilon)
    for parts in rest:
        if len(parts[0]) / epsilon < best.score:
            best = min(best, _scored(network, *parts, epsilon), key=lambda one: one.score)
    return best


def _candidates(network: BayesianNetwork, node: str) -> Iterator[tuple[Names, Names, Names]]:
    """The quilts to try as (nearby with the node first, quilt, remote)."""
    others = [name for name in network.names if name != network.checked(node)]
    if len(others) > 16:  # noqa: PLR2004 - 2^16 sets
        raise NetworkError(f"variable {node!r} has 2^{len(others)} sets that could be quilts, the limit is 2^16")
    smaller: dict[Names, list[frozenset[str]]] = {}
    sets = (itertools.combinations(others, count) for count in range(len(others) + 1))
    for chosen in itertools.chain.from_iterable(sets):
        remote = network.separated_from(node, chosen)
        nearby = (node, *(name for name in others if name not in {*chosen, *remote}))
        rivals = smaller.setdefault(nearby, [])
        if not any(rival <= frozenset(chosen) for rival in rivals):
            rivals.append(frozenset(chosen))
            yield nearby, chosen, remote


def _scored(network: BayesianNetwork, nearby: Names, quilt: Names, remote: Names, epsilon: float) -> NetworkQuilt:
    influence = max_influence(network, nearby[0], quilt)
    score = len(nearby) / (epsilon - influence) if influence < epsilon else math.inf
    return NetworkQuilt(nearby, quilt, remote, influence, score)
