"""Ten years of hourly, daily and weekly windows over one domain: what a window costs at the beginning and at the end.

Run: python benchmarks/ten_years.py [YEARS]. It really publishes every window, a week at a time, and prints at the
beginning and at the end of each year measured what one window costs that is published alone.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import event
from sqlalchemy.engine import Engine

from quiltstream.privacy import LaplaceHistogram, MixingBounds, mqm_approx
from quiltstream.schemas.roster import Roster
from quiltstream.schemas.slots import Schedule, SlotGrid, Window
from quiltstream.schemas.states import StateSpace
from quiltstream.store import BlockToPublish, DomainSpec, NoisyBlock, QuerySpec, Registration, Store

HOURS = {"hourly": 1, "daily": 24, "weekly": 168}
WEEKS_A_YEAR = 52
SPACE = StateSpace((250.0, 500.0, 1000.0), unit="W")
SERIES = tuple(f"home-{number}" for number in range(20))
MEASURED = {"hourly": 168, "daily": 7, "weekly": 1}
GENERATOR = np.random.default_rng(1)


@dataclass
class Cost:
    """What windows published one by one cost together."""

    windows: int = 0
    statements: int = 0
    seconds: float = 0.0
    cpu: float = 0.0


class Statements:
    """Counts SQL statements."""

    def __init__(self) -> None:
        self.count = 0
        event.listen(Engine, "before_cursor_execute", self._one)

    def _one(self, *_: Any) -> None:
        self.count += 1


def register(store: Store) -> dict[str, Registration]:
    """Three endless queries that share a budget of 1."""
    belief = MixingBounds(pi_min=0.2, gap=0.75)
    domain = DomainSpec(
        name="homes",
        grid=SlotGrid(interval_us=3_600_000_000).to_dict(),
        states=SPACE.to_dict(),
        belief=belief.to_dict(),
        model_id="by hand",
        guarantee="stream",
        budget=1.0,
        missing="public",
    )
    mechanism = LaplaceHistogram.from_sigma(SPACE.size, 3.001 * mqm_approx(belief, epsilon=1.0).sigma)
    return {
        name: store.register(
            domain,
            QuerySpec(
                name=name,
                domain="homes",
                scale=mechanism.scale,
                release_epsilon_dp=mechanism.epsilon_dp,
                mechanism="mqm-approx",
                schedule=Schedule(size=hours, every=hours, start=0, stop=None),
                schedule_given=True,
                roster=Roster.of(SERIES),
                roster_given=True,
                shards=1,
            ),
        )
        for name, hours in HOURS.items()
    }


def draft(held: Registration, number: int) -> BlockToPublish:
    """One window of a query."""
    size = held.query.schedule.size

    def draw() -> NoisyBlock:
        counts = GENERATOR.integers(-1000, 1000, (len(SERIES), SPACE.size), dtype=np.int64)
        return NoisyBlock(held.query.roster.shard_keys(0, 1), np.full(len(SERIES), size, dtype=np.int64), counts)

    return BlockToPublish(Window(number * size, (number + 1) * size), 0, draw)


def week_of(held: Registration, week: int) -> list[BlockToPublish]:
    """All windows of a query in one week."""
    count = 168 // held.query.schedule.size
    return [draft(held, number) for number in range(week * count, (week + 1) * count)]


def measure(store: Store, queries: dict[str, Registration], week: int, statements: Statements) -> dict[str, Cost]:
    """Publish one week window by window."""
    found: dict[str, Cost] = {}
    for name, held in queries.items():
        cost = found[name] = Cost()
        for one in week_of(held, week):
            before, start, used = statements.count, time.perf_counter(), time.process_time()
            store.publish(held, [one])
            cost.seconds += time.perf_counter() - start
            # a busy machine or disk does not count here
            cost.cpu += time.process_time() - used
            cost.statements += statements.count - before
            cost.windows += 1
    return found


def read(path: Path, held: Registration, hour: int) -> dict[str, float]:
    """Seconds of CPU for what a process does with a ledger that is there; ``ledger show`` with its imports."""
    found: dict[str, float] = {}
    with Store(f"sqlite:///{path}") as store:
        for what, work in {
            "opening": lambda: store.store_id,
            "first charge": lambda: store.publish(held, [draft(held, hour)]),
            "SQLite's own check": store.check,
        }.items():
            start = time.process_time()
            work()
            found[what] = time.process_time() - start
    command = [str(Path(sys.executable).with_name("quiltstream")), "ledger", "show", str(path)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - of this package
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found["ledger show"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return found


def main(years: int = 10) -> None:
    """Print the table."""
    statements = Statements()
    rows: list[tuple[str, int, dict[str, Cost], float, int]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        with Store(f"sqlite:///{path}", create=True) as store:
            queries = register(store)
            last = years * WEEKS_A_YEAR - 1
            for week in range(last + 1):
                if week in (1, last // 2, last):
                    found = measure(store, queries, week, statements)
                    rows.append((f"week {week + 1}", week, found, store.summary("homes").loss, path.stat().st_size))
                else:
                    for held in queries.values():
                        store.publish(held, week_of(held, week))
            charged = store.summary("homes").charged
        start = time.perf_counter()
        with Store(f"sqlite:///{path}", create=True) as store:
            for held in queries.values():
                store.publish(held, [week_of(held, last + 1)[0]])
        restart = time.perf_counter() - start
        size = path.stat().st_size
        reading = read(path, queries["hourly"], (last + 2) * 168)
    print(
        f"{'':<10} {'windows':<8} {'statements a window':>20} {'ms a window':>12} {'ms of CPU':>10} {'loss':>9} "
        f"{'file MB':>8}"
    )
    for label, _, found, loss, bytes_ in rows:
        for name, cost in found.items():
            print(
                f"{label:<10} {name:<8} {cost.statements / cost.windows:>20.1f} "
                f"{1e3 * cost.seconds / cost.windows:>12.2f} {1e3 * cost.cpu / cost.windows:>10.2f} "
                f"{loss:>9.6f} {bytes_ / 1e6:>8.1f}"
            )
    print(
        f"{charged:,} windows in {years} years, 2 rows each (a charge and a block); {size / charged:,.0f} bytes a "
        f"window; a job that starts anew publishes its first window of each query in {restart:.2f} s together"
    )
    print("s of CPU: " + ", ".join(f"{what} {seconds:.2f}" for what, seconds in reading.items()))


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
