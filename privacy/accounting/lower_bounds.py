"""What an endless stream of raw counts loses at least, whatever the account.

For every v in {0,1}^k a slot has outputs whose likelihood is proportional to e^(d v(x)), d its loss per slot. After x
the same v in every slot has the chance r(x), with r the right Perron vector of P diag(e^(d v)), before x the chance
l(x), the same with P* (``docs/mathematics.md``). So

    loss  >=  the largest less the least over x of  d v(x) + log r(x) + log l(x).

>>> from quiltstream.privacy.models.markov_chain import MarkovChain
>>> round(lower_bound(MarkovChain([[0.9, 0.1], [0.4, 0.6]]), 1.0), 3)
3.336
"""

from __future__ import annotations

import itertools

import numpy as np

from ..models.couplings import FloatArray
from ..models.markov_chain import MarkovChain, check_chain
from ..validation import accepted_loss, positive


def lower_bound(chain: MarkovChain, epsilon: float) -> float:
    """A sigma below which an endless stream of raw counts with Laplace noise loses more than epsilon.

    It is the limit for long windows, which have one v in all their slots. The slot itself tells d, so the noise of
    entry DP is a limit, too; for chains that alternate it may be the only one.

    Args:
        chain: Stationary and irreducible.
        epsilon: Target, finite and at least 2^-46.
    """
    density = accepted_loss(epsilon)
    check_chain("chain", chain)
    # all vectors take longer, so they come once the thresholds have settled
    for vectors in (_thresholds(chain.states), _vectors(chain.states)):
        for _ in range(20):
            losses = _losses(chain, density, vectors)
            best = int(losses.argmax())
            if losses[best] <= epsilon * (1 + 1e-9):
                break
            low = 0.0
            for _ in range(60):
                middle = (low + density) / 2
                told = float(_losses(chain, middle, vectors[best : best + 1])[0])
                low, density = (low, middle) if told >= epsilon else (middle, density)
    return 1 / density


def least_loss(chain: MarkovChain, density: float) -> float:
    """Epsilon that an endless stream of raw counts in adjoining windows of any length loses at least.

    Independent Laplace noise of a larger scale is that of a smaller one with more noise added, so what is lost does not
    fall with the density: a density above 30 is taken as 30.

    Args:
        chain: Stationary and irreducible.
        density: Loss per slot of the releases, finite and above 0.
    """
    check_chain("chain", chain)
    density = positive("density", density, "give the loss per slot of the releases")
    return float(_losses(chain, density, _vectors(chain.states)).max())


def _losses(chain: MarkovChain, density: float, vectors: FloatArray) -> FloatArray:
    """What each vector tells, shape (n,)."""
    density = min(density, 30.0)  # so that no exponential overflows
    logs = density * vectors
    for kernel in (chain.transition, chain.reversal):
        logs = logs + _perron(kernel, density, vectors)
    return logs.max(axis=1) - logs.min(axis=1)


def _perron(kernel: FloatArray, density: float, vectors: FloatArray) -> FloatArray:
    """The logarithm of r for each vector, its largest entry 0, shape (n, k).

    The product over 2m slots is the square of that over m slots, and each doubling squares what is left of the other
    eigenvectors. Rows of a product are divided by their sums, which are r.
    """
    products = kernel[None] * np.exp(density * (vectors - 1))[:, None, :]
    logs = np.zeros(vectors.shape)
    for turn in range(40):
        if turn:
            products = (products * np.exp(logs)[:, None, :]) @ products
        sums = products.sum(axis=2)
        products /= sums[:, :, None]
        before, logs = logs, logs + np.log(sums)
        # what the other slots tell above it is not followed, so that no exponential underflows
        logs = np.maximum(logs - logs.max(axis=1, keepdims=True), -300.0)
        if turn and np.abs(logs - before).max() <= 2.0**-43:
            break
    return logs


def _vectors(states: int) -> FloatArray:
    """All v that are not constant over the states; beyond 12 states the thresholds of their order."""
    if states > 12:
        return _thresholds(states)
    return np.array(list(itertools.product((0.0, 1.0), repeat=states))[1:-1])


def _thresholds(states: int) -> FloatArray:
    places = np.arange(states)
    found = (places[None] >= places[1:, None]).astype(float)
    return np.concatenate([found, 1 - found])
