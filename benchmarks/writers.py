"""How long processes that write to one SQLite ledger at once wait for each other.

Run: python benchmarks/writers.py [WINDOWS] [FOLDER]. So many processes each publish so many windows of a domain of
their own, one call a window; milliseconds of a call, from its beginning until its rows are on record. Each process
publishes two windows before, because its first charge prices the belief.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier

import numpy as np

from quiltstream.privacy import LaplaceHistogram, MixingBounds, mqm_approx
from quiltstream.schemas.roster import Roster
from quiltstream.schemas.slots import Schedule, SlotGrid, Window
from quiltstream.schemas.states import StateSpace
from quiltstream.store import BlockToPublish, DomainSpec, NoisyBlock, QuerySpec, Registration, Store

WRITERS = (1, 2, 8, 24)
WARMING = 2
SPACE = StateSpace((250.0, 500.0, 1000.0), unit="W")
HOMES = 20


def register(store: Store, number: int, windows: int) -> Registration:
    """A domain with one daily query."""
    belief = MixingBounds(pi_min=0.2, gap=0.75)
    domain = DomainSpec(
        name=f"homes-{number}",
        grid=SlotGrid(interval_us=3_600_000_000).to_dict(),
        states=SPACE.to_dict(),
        belief=belief.to_dict(),
        model_id="by hand",
        guarantee="stream",
        budget=2.0,
        missing="public",
    )
    mechanism = LaplaceHistogram.from_sigma(SPACE.size, mqm_approx(belief, epsilon=1.0).sigma)
    query = QuerySpec(
        name="daily",
        domain=domain.name,
        scale=mechanism.scale,
        release_epsilon_dp=mechanism.epsilon_dp,
        mechanism="mqm-approx",
        schedule=Schedule(size=24, every=24, start=0, stop=24 * windows),
        schedule_given=True,
        roster=Roster.of(f"home-{number}-{home}" for home in range(HOMES)),
        roster_given=True,
        shards=1,
    )
    return store.register(domain, query)


def draft(held: Registration, window: Window) -> BlockToPublish:
    """A window whose counts are drawn by chance."""

    def draw() -> NoisyBlock:
        counts = np.random.default_rng().integers(-1000, 1000, (HOMES, SPACE.size), dtype=np.int64)
        return NoisyBlock(held.query.roster.shard_keys(0, 1), np.full(HOMES, 24, dtype=np.int64), counts)

    return BlockToPublish(window, 0, draw)


def write(url: str, held: Registration, begin: Barrier, found: Queue[list[float]]) -> None:
    """Publish all windows of a query, one call each, and say how long each call took, in seconds."""
    taken: list[float] = []
    with Store(url, create=True) as store:
        for number, window in enumerate(held.query.schedule.windows()):
            if number == WARMING:
                begin.wait()
            before = time.monotonic()
            store.publish(held, [draft(held, window)])
            taken.append(time.monotonic() - before)
    found.put(taken[WARMING:])


def measure(writers: int, windows: int, folder: str | None) -> None:
    """Print one row."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(dir=folder) as place:
        url = f"sqlite:///{place}/ledger.db"
        with Store(url, create=True) as store:
            held = [register(store, number, WARMING + windows) for number in range(writers)]
        begin, found = context.Barrier(writers + 1), context.Queue()
        processes = [context.Process(target=write, args=(url, one, begin, found)) for one in held]
        for process in processes:
            process.start()
        begin.wait()
        before = time.monotonic()
        taken = np.concatenate([found.get() for _ in processes]) * 1e3
        rate = taken.size / (time.monotonic() - before)
        for process in processes:
            process.join()
    median, late, worst = np.median(taken), np.percentile(taken, 99), taken.max()
    print(f"{writers:>7} {rate:>13.0f} {median:>9.1f} {late:>9.1f} {worst:>9.1f} {worst / median:>14.0f}")


def main() -> None:
    windows = int(sys.argv[1]) if sys.argv[1:] else 100
    print(f"{'writers':>7} {'windows a s':>13} {'median':>9} {'p99':>9} {'worst':>9} {'worst / median':>14}")
    for writers in WRITERS:
        measure(writers, windows, sys.argv[2] if sys.argv[2:] else None)


if __name__ == "__main__":
    main()
