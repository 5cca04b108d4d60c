"""The Markov Quilt Mechanism on a Bayesian network ([SWC17] Definitions 4.1 and 4.2, Algorithm 2).

A Markov quilt of X_i is a set X_Q that makes X_i independent of a set X_R; the rest, X_N, with X_i in it, is nearby. If
X_Q tells at most e < epsilon about X_i (max-influence), then Laplace noise of scale L card(X_N) / (epsilon - e) hides
X_i: group privacy covers the nearby variables, independence the remote ones.

>>> from quiltstream.privacy.models.markov_chain import MarkovChain
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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ..models.joint_distribution import BayesianNetwork, NetworkError, check_network, log_marginal, log_sum
from ..validation import accepted_loss, as_list, instance, whole

LARGEST_SEARCH = 2**16
"""The most quilts that are enumerated for one variable."""


@dataclass(frozen=True, slots=True)
class NetworkQuilt:
    """A Markov quilt of one variable, and what it gives at one epsilon.

    Attributes:
        node: The variable that it hides.
        nearby: X_N, the variable itself among them.
        quilt: X_Q.
        remote: X_R, all that d-separation makes independent of the variable given the quilt.
        influence: Max-influence of the quilt; infinite where it can rule a state out.
        score: card(X_N) / (epsilon - influence); infinite where the influence is not below epsilon.
    """

    node: str
    nearby: tuple[str, ...]
    quilt: tuple[str, ...]
    remote: tuple[str, ...]
    influence: float
    score: float


@dataclass(frozen=True, slots=True)
class NetworkCalibration:
    """How much noise a query on the network's variables needs.

    Attributes:
        epsilon: The target.
        sigma: Noise scale per unit of L1 sensitivity: Laplace noise of scale ``sensitivity * sigma``.
        quilt: The quilt that decides, that of the variable that needs most noise.
        member: Which network of the class it belongs to, from 0.
        method: Name of the method.
    """

    epsilon: float
    sigma: float
    quilt: NetworkQuilt
    member: int
    method: str = "mqm-network"

    @property
    def epsilon_dp(self) -> float:
        """Loss per variable, 1 / sigma."""
        return 1 / self.sigma


def max_influence(network: BayesianNetwork, node: str, quilt: Iterable[str]) -> float:
    """Max-influence of a quilt on one variable ([SWC17] Definition 4.1).

    The largest log P(X_Q | X_i = a) / P(X_Q | X_i = b) over states a, b of the variable and states of the quilt.

    States of X_i with probability 0 are no secrets and do not count. Infinite where a state of the quilt is possible
    with a and impossible with b.

    Raises:
        NetworkError: If a variable is unknown, the node is in its own quilt, or exact inference is too large.
    """
    check_network("network", network)
    known = tuple(dict.fromkeys(network.checked(name) for name in as_list("quilt", quilt, "names of variables")))
    if network.checked(node) in known:
        raise NetworkError(f"quilt contains the variable {node!r} that it is to hide: leave it out")
    if not known:
        return 0.0
    table = log_marginal(network, (*known, node)).reshape(-1, network.states(node))
    prior = log_sum(table.T)
    possible = np.isfinite(prior)
    given = table[:, possible] - prior[possible]
    rows = given[np.isfinite(given).any(axis=1)]
    return max(0.0, float((rows.max(axis=1) - rows.min(axis=1)).max()))


def network_quilts(
    network: BayesianNetwork,
    node: str,
    epsilon: float,
    quilts: Iterable[Iterable[str]] | None = None,
    *,
    size: int | None = None,
) -> tuple[NetworkQuilt, ...]:
    """The quilts of one variable with their influences and scores, the best first.

    Where all sets are tried, one that contains another with the same variables nearby is left out: it tells no less.

    Args:
        network: The network.
        node: The variable.
        epsilon: Target, finite and at least 2^-46.
        quilts: The sets X_Q to try; None for all of them. The empty one is always tried: its remote variables are
            those independent of the node, and where there are none it is the trivial quilt of score n / epsilon.
        size: Where all are tried, the most variables of one quilt; None for no limit.

    Raises:
        NetworkError: If a variable is unknown, a quilt contains the node, or there are too many quilts.
    """
    target = accepted_loss(epsilon)
    check_network("network", network)
    found = [_scored(network, *parts, target) for parts in _candidates(network, node, quilts, size)]
    return tuple(sorted(found, key=lambda entry: (entry.score, len(entry.quilt))))


def network_mqm(
    networks: BayesianNetwork | Iterable[BayesianNetwork],
    epsilon: float,
    quilts: Mapping[str, Iterable[Iterable[str]]] | None = None,
    *,
    size: int | None = None,
) -> NetworkCalibration:
    """The general Markov Quilt Mechanism ([SWC17] Algorithm 2): sigma = max over theta and X_i of the best score.

    Every member of the class uses its own best quilts; the guarantee is a statement about each member, so this needs no
    more noise than one choice of quilts for all of them.

    Args:
        networks: One network, or those of a class Theta.
        epsilon: Target, finite and at least 2^-46.
        quilts: For each variable the sets X_Q to try; variables that are left out, and None, try all sets.
        size: Where all are tried, the most variables of one quilt; None for no limit.

    Raises:
        NetworkError: If the class is empty, a variable is unknown, or there are too many quilts or too large tables.
    """
    target = accepted_loss(epsilon)
    members = as_list("networks", networks, "networks") if isinstance(networks, Iterable) else [networks]
    if not members:
        raise NetworkError("networks is empty: give at least one")
    for member, network in enumerate(members):
        check_network(f"networks[{member}]", network)
    instance("quilts", {} if quilts is None else quilts, Mapping, advice="give the quilts of variables by their names")
    given = {} if quilts is None else dict(quilts)
    found: list[NetworkCalibration] = []
    for member, network in enumerate(members):
        for name in given:
            network.checked(name)
        bests = (_best(network, node, target, given.get(node), size) for node in network.names)
        found += (NetworkCalibration(target, best.score, best, member) for best in bests)
    return max(found, key=lambda one: one.sigma)


def _best(
    network: BayesianNetwork, node: str, epsilon: float, quilts: Iterable[Iterable[str]] | None, size: int | None
) -> NetworkQuilt:
    """The quilt of least score; influence is computed only while fewer nearby variables could still win."""
    best: NetworkQuilt | None = None
    for nearby, quilt, remote in sorted(_candidates(network, node, quilts, size), key=lambda parts: len(parts[0])):
        if best is None or len(nearby) / epsilon < best.score:
            entry = _scored(network, nearby, quilt, remote, epsilon)
            best = entry if best is None or entry.score < best.score else best
    if best is None:  # pragma: no cover - the empty quilt is always tried
        raise NetworkError(f"variable {node!r} has no quilt")
    return best


_Parts = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]


def _candidates(
    network: BayesianNetwork, node: str, quilts: Iterable[Iterable[str]] | None, size: int | None
) -> list[_Parts]:
    """The quilts to try as (nearby with the node first, quilt, remote)."""
    others = [name for name in network.names if name != network.checked(node)]
    if quilts is None:
        most = len(others) if size is None else whole("size", size, "give the most variables of a quilt", least=0)
        number = sum(math.comb(len(others), count) for count in range(min(most, len(others)) + 1))
        if number > LARGEST_SEARCH:
            raise NetworkError(
                f"variable {node!r} has {number} sets that could be quilts, but at most {LARGEST_SEARCH} are tried: "
                "limit their size, or give the quilts"
            )
        sets: list[tuple[str, ...]] = [
            chosen for count in range(min(most, len(others)) + 1) for chosen in itertools.combinations(others, count)
        ]
    else:
        wanted = "quilts, each a list of names"
        given = (as_list("quilts", one, "names of variables") for one in as_list("quilts", quilts, wanted))
        named = (tuple(dict.fromkeys(network.checked(name) for name in one)) for one in given)
        sets = list(dict.fromkeys([(), *named]))
    found: list[_Parts] = []
    smaller: dict[tuple[str, ...], list[frozenset[str]]] = {}
    for chosen in sets:
        remote = network.separated_from(node, chosen)
        away = {*chosen, *remote}
        nearby = (node, *(name for name in others if name not in away))
        # a larger quilt with the same variables nearby tells no less, so it never wins
        rivals = smaller.setdefault(nearby, [])
        if quilts is None and any(rival <= frozenset(chosen) for rival in rivals):
            continue
        rivals.append(frozenset(chosen))
        found.append((nearby, chosen, remote))
    return found


def _scored(
    network: BayesianNetwork, nearby: tuple[str, ...], quilt: tuple[str, ...], remote: tuple[str, ...], epsilon: float
) -> NetworkQuilt:
    influence = max_influence(network, nearby[0], quilt)
    score = len(nearby) / (epsilon - influence) if influence < epsilon else math.inf
    return NetworkQuilt(nearby[0], nearby, quilt, remote, influence, score)
