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
from sample_ledger import draft, homes, register

from quiltstream.schemas.slots import Schedule
from quiltstream.store import Registration, Store

WRITERS = (1, 2, 8, 24)
WARMING = 2


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
            daily = Schedule(size=24, every=24, start=0, stop=24 * (WARMING + windows))
            held = [register(store, f"homes-{one}", "daily", daily, homes(one)) for one in range(writers)]
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
