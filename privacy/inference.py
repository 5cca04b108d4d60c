"""Exact inference in a Bayesian network: marginals by variable elimination, in logarithms.

Logarithms because probabilities of many rare events multiply to numbers below the range of floats, while only their
ratios decide about influence.

>>> import numpy as np
>>> from quiltstream.privacy.chains import MarkovChain
>>> network = BayesianNetwork.from_chain(MarkovChain([[0.9, 0.1], [0.4, 0.6]], [0.8, 0.2]), length=3)
>>> np.exp(log_marginal(network, ["X3"])).round(6).tolist()
[0.8, 0.2]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .chains import FloatArray
from .networks import BayesianNetwork, NetworkError

LARGEST_FACTOR = 2**22
"""The most entries of a table that elimination may form."""


@dataclass(frozen=True, slots=True)
class _Factor:
    """A table of logarithms over some variables, one axis each."""

    names: tuple[str, ...]
    values: FloatArray

    def spread(self, names: Sequence[str]) -> FloatArray:
        """The same table with the axes of a longer list of variables."""
        order = sorted(range(len(self.names)), key=lambda axis: names.index(self.names[axis]))
        sizes = dict(zip(self.names, self.values.shape, strict=True))
        return np.transpose(self.values, order).reshape([sizes.get(name, 1) for name in names])


def log_marginal(network: BayesianNetwork, names: Sequence[str]) -> FloatArray:
    """The logarithm of P(X_names), one axis per name in the given order; minus infinity where the probability is 0.

    Only the variables and their ancestors matter. The others are summed out one by one, each time the one that makes
    the smallest table.

    Args:
        network: The network.
        names: The variables to keep, each once; none gives an array of one entry, 0.

    Raises:
        NetworkError: If a variable is unknown or repeated, or a table would have more than `LARGEST_FACTOR` entries.
    """
    kept = tuple(names)
    if len(set(kept)) != len(kept):
        raise NetworkError(f"names has a variable twice: {', '.join(map(repr, kept))}")
    needed = network.ancestors(kept)
    with np.errstate(divide="ignore"):
        factors = [
            _Factor((*network.parents[name], name), np.log(network.tables[name]))
            for name in network.names
            if name in needed
        ]
    hidden = sorted(needed - set(kept), key=network.names.index)
    while hidden:
        name = min(hidden, key=lambda candidate: _size(network, _scope(factors, candidate)))
        hidden.remove(name)
        touched = [factor for factor in factors if name in factor.names]
        scope = _scope(factors, name)
        product = _multiply(network, touched, (*scope, name))
        factors = [factor for factor in factors if name not in factor.names]
        factors.append(_Factor(scope, log_sum(product)))
    return _multiply(network, factors, kept)


def log_sum(values: FloatArray) -> FloatArray:
    """The logarithm of the sum of exponentials along the last axis."""
    top = values.max(axis=-1, keepdims=True)
    shift = np.where(np.isneginf(top), 0.0, top)
    with np.errstate(divide="ignore"):
        return np.log(np.exp(values - shift).sum(axis=-1)) + shift[..., 0]


def _scope(factors: Sequence[_Factor], name: str) -> tuple[str, ...]:
    """The variables that summing one out brings together."""
    scope = dict.fromkeys(other for factor in factors if name in factor.names for other in factor.names)
    scope.pop(name, None)
    return tuple(scope)


def _size(network: BayesianNetwork, names: Sequence[str]) -> int:
    return math.prod(network.states(name) for name in names)


def _multiply(network: BayesianNetwork, factors: Sequence[_Factor], names: Sequence[str]) -> FloatArray:
    size = _size(network, names)
    if size > LARGEST_FACTOR:
        raise NetworkError(
            f"exact inference needs a table over {len(names)} variables with {size} entries, but at most "
            f"{LARGEST_FACTOR} are formed: use smaller quilts, or a network with fewer states or parents"
        )
    product = np.zeros([network.states(name) for name in names])
    for factor in factors:
        product = product + factor.spread(names)
    return product
