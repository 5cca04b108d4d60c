"""Whether the time of a release shows its counts: releases of two very different inputs in random order, compared.

Run: python benchmarks/timing.py [releases of each input] [seed]

One release is what the release step does to a block: noise, ledger and rows. The inputs have the same totals: all cells
of each series in one bin, or spread over all bins. Four comparisons are printed, each with the difference of the mean
times and its band of 95 %, and with the p-values of the tests of Mann and Whitney (places) and of Kolmogorov and
Smirnov (laws): the noise alone, the whole release, the rows that are made of it, and, to show what the tests can find,
a release that takes 1 % longer for one of the inputs. Times are those of the processor, which other processes disturb
less than the clock. Nothing is asserted.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import ks_2samp, mannwhitneyu

from quiltstream.schemas.releases import LIVE
from quiltstream.schemas.roster import Roster
from quiltstream.schemas.settings.job import Settings
from quiltstream.store.codec import NoisyBlock
from quiltstream.store.exports import rows_of
from quiltstream.store.specs import BlockToPublish, Record, layout_of
from quiltstream.store.store import Store
from quiltstream.transforms.plan import make_plan

SERIES, BINS, SLOTS = 50, 5, 48


def compared(what: str, times: dict[bool, list[float]]) -> None:
    """Print one comparison."""
    one, other = np.array(times[False]) * 1e6, np.array(times[True]) * 1e6
    # the slowest hundredth are those of the machine
    ends = [np.sort(found)[: len(found) * 99 // 100] for found in (one, other)]
    band = 1.96 * float(np.sqrt(sum(found.var(ddof=1) / len(found) for found in ends)))
    between = float(ends[1].mean() - ends[0].mean())
    mean, spread = float(ends[0].mean()), float(ends[0].std(ddof=1))
    tests: list[Any] = [mannwhitneyu(one, other), ks_2samp(one, other)]
    places, laws = (float(test.pvalue) for test in tests)
    print(f"{what:<34} {mean:>9.1f} {spread:>8.1f} {between:>+9.2f} +- {band:<7.2f} {places:>9.3g} {laws:>9.3g}")


def main(releases: int, seed: int) -> None:
    """Time the releases and print the table."""
    print(f"{releases:,} releases of each input, {SERIES} series, {BINS} bins, seed {seed}; microseconds")
    print(f"{'':<34} {'mean':>9} {'s.d.':>8} {'difference of means':>20} {'places p':>11} {'laws p':>9}")
    draw = random.Random(seed)  # noqa: S311 - the order of measurements, not noise
    inputs = {False: np.zeros((SERIES, BINS), np.int64), True: np.full((SERIES, BINS), SLOTS // BINS, np.int64)}
    inputs[False][:, 0] = SLOTS
    inputs[True][:, 0] += SLOTS % BINS
    with (
        tempfile.TemporaryDirectory() as folder,
        Store(f"sqlite:///{Path(folder) / 'ledger.db'}", create=True) as store,
    ):
        plan = make_plan(
            Settings.parse(
                {
                    "slots": {"interval": "30min", "origin": "2000-01-01"},
                    "states": {"edges": [250.0, 500.0, 1000.0, 2000.0], "unit": "W"},
                    "model": {"pi_min": 0.05, "gap": 0.3},
                    "windows": {"size": "1d", "start": "2000-01-01", "stop": "2040-01-01"},
                    "privacy": {"epsilon": 1.0},
                    "query": "load",
                    "domain": "homes",
                    "ledger": f"sqlite:///{Path(folder) / 'ledger.db'}",
                    "shards": 1,
                }
            )
        )
        roster = Roster.of([f"home {n}" for n in range(SERIES)])
        held = store.register(plan.domain, plan.query(plan.schedule, roster, schedule_given=True, roster_given=True))
        mechanism = plan.histogram_of(held, plan.schedule.size)
        order = [True, False] * releases
        draw.shuffle(order)
        noise, whole, rows, slower = ({False: list[float](), True: list[float]()} for _ in range(4))

        def timed(into: dict[bool, list[float]], kind: bool, work: Callable[[], Any]) -> Any:
            begin = time.thread_time()
            result = work()
            into[kind].append(time.thread_time() - begin)
            return result

        for number, kind in enumerate(order):
            counts = inputs[kind]
            timed(noise, kind, lambda counts=counts: mechanism.randomise(counts))
            window = held.query.schedule.window_at(number * SLOTS)
            keys = layout_of(held, window).keys(0)

            def block(counts: Any = counts, keys: tuple[str, ...] = keys) -> NoisyBlock:
                return NoisyBlock(
                    keys=keys, totals=counts.sum(axis=1), counts=mechanism.randomise(counts), completeness=LIVE
                )

            draft = BlockToPublish(window, 0, block)
            found: list[Record] = timed(whole, kind, lambda draft=draft: store.publish(held, [draft]))
            timed(rows, kind, lambda record=found[0]: rows_of(held, record))
        for kind, times in whole.items():
            slower[kind] = [one * (1.01 if kind else 1.0) for one in times]
    compared("noise of a block", noise)
    compared("release of a block", whole)
    compared("rows of a block", rows)
    compared("release, one input 1 % slower", slower)


if __name__ == "__main__":
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else 4_000,
        int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**32),  # noqa: S311 - as above
    )
