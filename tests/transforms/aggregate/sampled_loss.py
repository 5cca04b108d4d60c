"""How much outputs of many runs tell of a secret, at least: a lower confidence bound of the Pufferfish loss.

A run draws one of two states of a slot and ends with an output. If the loss is at most l, then every event E has
P(E | x) <= exp(l) P(E | x') ([SWC17] Definition 2.1), so log(low / high) is at most l, whatever E is, where low is a
lower confidence bound of P(E | x) and high an upper one of P(E | x'). Both are those of Clopper and Pearson (1934),
exact for any number of runs. The event is chosen on one half of the runs and its bound taken from the other half, as in
Ding, Wang, Wang, Zhang and Kifer, *Detecting Violations of Differential Privacy* (CCS 2018); with m events each of the
2 m bounds has the error probability alpha / (2 m). So all bounds hold together with a probability of at least
1 - alpha, and a sampled loss above the loss that is promised is a false alarm with a probability of at most alpha.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SampledLoss:
    loss: float  # the largest lower bound of log P(E | x) / P(E | x') over the events that were tried; may be negative
    family: str  # which outputs the event is made of
    state: int  # the state x that makes the event more likely
    runs: tuple[int, int]  # how many runs of the second half had one state, and how many the other
    hits: tuple[int, int]  # in how many of them the event happened


def lower_bound(hits: int, runs: int, alpha: float) -> float:
    """The lower bound of Clopper and Pearson: above the probability of an event with probability at most ``alpha``."""
    return float(beta.ppf(alpha, hits, runs - hits + 1)) if hits else 0.0


def upper_bound(hits: int, runs: int, alpha: float) -> float:
    """The upper bound of Clopper and Pearson: below the probability of an event with probability at most ``alpha``."""
    return float(beta.isf(alpha, hits + 1, runs - hits)) if hits < runs else 1.0


def ratio_bound(hits: tuple[int, int], runs: tuple[int, int], alpha: float) -> float:
    """A lower bound of log P(E | x) / P(E | x'), wrong with probability at most ``alpha``."""
    low, high = lower_bound(hits[0], runs[0], alpha / 2), upper_bound(hits[1], runs[1], alpha / 2)
    return math.log(low / high) if low else -math.inf


def sampled_loss(views: Mapping[str, tuple[Ints, Ints]], alpha: float) -> SampledLoss:
    """Choose events on the first half of the runs, and bound the loss by the second half.

    Args:
        views: families of what an attacker sees -> the secret of each run, 0 or 1, shape (runs,), and the output, shape
            (runs, numbers), of few different rows. The runs of a family are independent and in no order.
        alpha: the probability that the bound is wrong at most.
    """
    tried = alpha / (2 * len(views))
    found: list[SampledLoss] = []
    for family, (states, seen) in views.items():
        half = len(states) // 2
        # an output by its number among the different ones
        named = np.unique(seen, axis=0, return_inverse=True)[1].reshape(-1)
        each = np.zeros((2, int(named.max()) + 1), dtype=np.int64)
        np.add.at(each, (states[:half], named[:half]), 1)
        for state in (0, 1):
            hit = _event(each[state], each[1 - state], tried)[named[half:]]
            runs, hits = _two(states[half:], state, np.ones_like(hit)), _two(states[half:], state, hit)
            found.append(SampledLoss(ratio_bound(hits, runs, tried), family, state, runs, hits))
    return max(found, key=lambda one: one.loss)


def _two(states: Ints, state: int, which: NDArray[np.bool_]) -> tuple[int, int]:
    return int(np.count_nonzero(which & (states == state))), int(np.count_nonzero(which & (states != state)))


def _event(here: Ints, there: Ints, alpha: float) -> NDArray[np.bool_]:
    """The outputs whose bound is highest, of those sets that have the most telling ones: shape (outputs,)."""
    telling = (here + 1) / (there + 1) * (there.sum() + 2) / (here.sum() + 2)
    order = np.argsort(-telling, kind="stable")
    runs = (int(here.sum()), int(there.sum()))
    hits = np.stack([np.cumsum(here[order]), np.cumsum(there[order])])
    # the same bound as that of the other half, for all sets at once
    with np.errstate(divide="ignore", invalid="ignore"):
        low: Any = beta.ppf(alpha / 2, hits[0], runs[0] - hits[0] + 1)
        high: Any = beta.isf(alpha / 2, hits[1] + 1, runs[1] - hits[1])
        bounds = np.log(np.nan_to_num(low)) - np.log(np.where(hits[1] < runs[1], high, 1.0))
    event = np.zeros(len(order), dtype=np.bool_)
    event[order[: int(bounds.argmax()) + 1]] = True
    return event
