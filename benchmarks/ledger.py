"""What a charge costs, by belief and schedule, and how an account of any length stays as quick.

Run: python benchmarks/ledger.py

Milliseconds of this process alone. A belief is used in three steps, and the table keeps them apart:

- *once*: the influence tables of the belief, powers of the matrix included, and the bounds of its blocks. A
  process does this once for a belief, before its first charge.
- *first* and *largest*: the first charge of a schedule and the dearest of its first sixty, when the tables are there
  and nothing of the schedule has been seen: prices of new places. That is what must stay below 50 ms for 51 states.
- *later*: the median of the last charges, on a schedule already seen.

The rows below that charge an account that is long already, and fold one as it goes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from quiltstream.privacy import Ledger, MarkovChain, MixingBounds
from quiltstream.privacy.models.belief import Belief
from quiltstream.privacy.quilts.influence import sided_influence

STATES = 51


def slow_chain(states: int, seed: int = 1) -> MarkovChain:
    """A chain that moves to neighbouring bins for the most part, as power by the minute does."""
    generator = np.random.default_rng(seed)
    steps = np.exp(-np.abs(np.subtract.outer(np.arange(states), np.arange(states))) / 1.5)
    matrix = steps * generator.uniform(0.5, 1.5, (states, states)) + 0.002
    matrix += np.eye(states) * 3
    return MarkovChain(matrix / matrix.sum(axis=1, keepdims=True))


def mixed_chain(states: int, seed: int = 2) -> MarkovChain:
    """A chain without any order among its states, of which many pairs decide somewhere."""
    matrix = np.random.default_rng(seed).exponential(1.0, (states, states)) ** 2 + 0.01 + 4 * np.eye(states)
    return MarkovChain(matrix / matrix.sum(axis=1, keepdims=True))


def milliseconds(work: Callable[[], Any]) -> float:
    """How long a piece of work takes, once."""
    # the time of this process alone, so that a busy machine does not count
    start = time.process_time()
    work()
    return (time.process_time() - start) * 1e3


def forget(belief: Belief) -> None:
    """Drop what the process remembers, so that every price is computed."""
    belief.memory.clear()
    Ledger(belief)


def charges(ledger: Ledger, spans: list[tuple[int, int, float]]) -> list[float]:
    """Milliseconds of each charge, one after another."""
    return [milliseconds(lambda span=span: ledger.charge(*span)) for span in spans]


def row(belief: str, what: str, first: float, largest: float, last: float) -> None:
    print(f"{belief:<26} {what:<46} {first:>9.2f} {largest:>9.2f} {last:>9.3f}")


def measure(name: str, belief: Belief) -> None:
    """Five schedules under one belief, each on a new account and with nothing remembered but the tables."""
    made = milliseconds(lambda: forget(belief))
    density = Ledger(belief).density_for(1.0)
    reach = sided_influence(belief).reach
    day = max(8, reach // 2)
    schedules = {
        "adjacent windows": [(day * j, day * (j + 1), density) for j in range(60)],
        "windows with gaps": [(day * j, day * j + day // 2, 1.5 * density) for j in range(60)],
    }
    generator = np.random.default_rng(3)
    starts = generator.integers(0, 20 * day, 60)
    sizes = generator.integers(1, 3 * day, 60)
    schedules["random windows, all different"] = [
        (int(start), int(start + size), float(density * rate))
        for start, size, rate in zip(starts, sizes, generator.uniform(0.02, 0.5, 60), strict=True)
    ]
    row(name, f"once (reach {reach})", made, made, made)
    for what, spans in schedules.items():
        forget(belief)
        taken = charges(Ledger(belief), spans)
        row(name, what, taken[0], max(taken), float(np.median(taken[-10:])))


def main() -> None:
    print(f"{'belief':<26} {'milliseconds a charge':<46} {'first':>9} {'largest':>9} {'later':>9}")
    measure("mixing bounds", MixingBounds(pi_min=0.02, gap=0.1))
    measure("ordered chain, k = 51", slow_chain(STATES))
    measure("unordered chain, k = 51", mixed_chain(STATES))
    bounds = MixingBounds(pi_min=0.2, gap=0.75)
    count = 100_000
    ledger = Ledger(bounds)
    ledger.replay((50 * j, 50 * j + 20, 0.01) for j in range(count))
    taken = charges(ledger, [(50 * (count + j), 50 * (count + j) + 20, 0.01) for j in range(20)])
    row("mixing bounds", f"after {count:,} windows with gaps", taken[0], max(taken), float(np.median(taken)))


if __name__ == "__main__":
    main()
