"""How long processes that write to one SQLite ledger at once wait for each other.

Run: python benchmarks/writers.py [WINDOWS] [FOLDER]. So many processes each publish so many windows of a domain of
their own, one call a window; milliseconds of a call, from its beginning until its rows are on record. Each process
publishes two windows before, because its first charge prices the belief.
"""

from __future__ import annotations

import sys
import tempfile

import numpy as np
from sample_ledger import WARMING, homes, raced, register

from quiltstream.schemas.slots import Schedule
from quiltstream.store import Store

WRITERS = (1, 2, 8, 24)


def measure(writers: int, windows: int, folder: str | None) -> None:
    """Print one row."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        url = f"sqlite:///{place}/ledger.db"
        with Store(url, create=True) as store:
            daily = Schedule(size=24, every=24, start=0, stop=24 * (WARMING + windows))
            held = [register(store, f"homes-{one}", "daily", daily, homes(one)) for one in range(writers)]
        taken, seconds = raced(url, [(one, list(one.query.schedule.windows())) for one in held])
    median, late, worst = np.median(taken), np.percentile(taken, 99), taken.max()
    rate = taken.size / seconds
    print(f"{writers:>7} {rate:>13.0f} {median:>9.1f} {late:>9.1f} {worst:>9.1f} {worst / median:>14.0f}")


def main() -> None:
    windows = int(sys.argv[1]) if sys.argv[1:] else 100
    print(f"{'writers':>7} {'windows a s':>13} {'median':>9} {'p99':>9} {'worst':>9} {'worst / median':>14}")
    for writers in WRITERS:
        measure(writers, windows, sys.argv[2] if sys.argv[2:] else None)


if __name__ == "__main__":
    main()
