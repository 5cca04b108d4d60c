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

from sample_ledger import draft, homes, register
from sqlalchemy import event
from sqlalchemy.engine import Engine

from quiltstream.schemas.slots import Schedule, Window
from quiltstream.store import BlockToPublish, Registration, Store

HOURS = {"hourly": 1, "daily": 24, "weekly": 168}
WEEKS_A_YEAR = 52


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


def window(held: Registration, number: int) -> BlockToPublish:
    """One window of a query."""
    size = held.query.schedule.size
    return draft(held, Window(number * size, (number + 1) * size))


def week_of(held: Registration, week: int) -> list[BlockToPublish]:
    """All windows of a query in one week."""
    count = 168 // held.query.schedule.size
    return [window(held, number) for number in range(week * count, (week + 1) * count)]


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
            "first charge": lambda: store.publish(held, [window(held, hour)]),
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
            queries = {
                name: register(store, "homes", name, Schedule(hours, hours, 0, None), homes(0))
                for name, hours in HOURS.items()
            }
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
