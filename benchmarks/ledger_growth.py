"""Does a ledger in PostgreSQL become slower as it grows? Windows a second and bytes at each size.

Run: python benchmarks/ledger_growth.py [SECONDS] [FEEDERS]. Makes a server of its own, and in its ledger one domain
a feeder, each with an endless hourly query. Then, until SECONDS have gone:

- 8 processes publish one window a call, each in a domain of its own, and are timed;
- the ledger grows by the hours of ten years for more feeders. The rows of these are copies of published rows, with
  domains of their own: the tables and their indexes have the size of so many feeders. The domains of
  the writers, which alone are read, are as they were published.

The first writer's domain has ten years of its own where SECONDS allow. The last line has the ratios of the end to the
beginning.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa
from sample_ledger import HOMES, SPACE, WARMING, database, draft, homes, raced, register

from quiltstream.schemas.slots import Schedule, Window
from quiltstream.store import Registration, Store

WRITERS = 8
WINDOWS = 60
YEAR = 24 * 365
YEARS = 10
BATCH = 24 * 28
HOURLY = Schedule(size=1, every=1, start=0, stop=None)


def hour(start: int) -> Window:
    """The window of a slot."""
    return Window(start, start + 1)


@dataclass(frozen=True)
class Row:
    """One line of the table: windows and bytes of the ledger, and what its writers took."""

    windows: int
    bytes: int
    longest: int
    rate: float
    commits: float
    wal: float
    median_ms: float
    late_ms: float


@dataclass
class Growth:
    """A ledger that grows.

    Attributes:
        url: of the database.
        held: the registered queries, the writers' first.
        ends: how many windows each of the writers' domains has.
        copies: how many feeders are copies of ten years.
    """

    url: str
    held: list[Registration]
    ends: list[int]
    copies: int = 0

    def __post_init__(self) -> None:
        self.engine = sa.create_engine(self.url, isolation_level="AUTOCOMMIT")

    def ask(self, statement: str) -> Any:
        """One value."""
        with self.engine.connect() as connection:
            return connection.execute(sa.text(statement)).scalar()

    def size(self) -> int:
        """Bytes of all tables and indexes."""
        return int(self.ask("SELECT pg_database_size(current_database())"))

    def measure(self) -> Row:
        """Let the writers publish."""
        self.engine.dispose()
        tasks = [
            (held, [hour(end + number) for number in range(WARMING + WINDOWS)])
            for held, end in zip(self.held[:WRITERS], self.ends, strict=True)
        ]
        before: list[Any] = []
        taken, seconds = raced(self.url, tasks, lambda: before.extend(self.counters()))
        written, ended = (float(now - then) for now, then in zip(self.counters(), before, strict=True))
        self.ends = [end + WARMING + WINDOWS for end in self.ends]
        windows = int(self.ask("SELECT count(*) FROM quiltstream_log WHERE key LIKE 'entry/%'"))
        return Row(
            windows,
            self.size(),
            max(self.ends),
            taken.size / seconds,
            ended / taken.size,
            written / taken.size,
            float(np.median(taken)),
            float(np.percentile(taken, 99)),
        )

    def counters(self) -> tuple[Any, int]:
        """Bytes of the server's log, and transactions on record."""
        self.ask("SELECT pg_stat_clear_snapshot()")
        commits = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
        return self.ask("SELECT pg_current_wal_lsn() - '0/0'"), int(self.ask(commits))

    def publish(self, until: float) -> None:
        """Publish ten years in the first domain, a month a call, while there is time."""
        with Store(self.url) as store:
            while self.ends[0] < YEARS * YEAR and time.monotonic() < until:
                hours = range(self.ends[0], self.ends[0] + BATCH)
                store.publish(self.held[0], [draft(self.held[0], hour(start)) for start in hours])
                self.ends[0] += BATCH

    def copy(self) -> None:
        """Copy the first domain's rows for one more feeder."""
        given = {"source": "feeder-0", "target": self.held[WRITERS + self.copies].domain.name}
        self.copies += 1
        rows = "seq, key, body, blob FROM quiltstream_log WHERE domain = :source AND seq > 2"
        with self.engine.connect() as connection:
            connection.execute(sa.text(f"INSERT INTO quiltstream_log SELECT :target, {rows}"), given)


def show(row: Row, copies: int) -> None:
    print(
        f"{copies:>7} {row.windows:>11,} {row.bytes / 1e6:>9,.0f} {row.bytes / row.windows:>9,.0f} {row.longest:>13,} "
        f"{row.rate:>10.0f} {row.commits:>9.2f} {row.wal / 1e3:>8.1f} {row.median_ms:>8.1f} {row.late_ms:>7.1f}",
        flush=True,
    )


def main(seconds: int = 600, feeders: int = 100) -> None:
    began = time.monotonic()
    with database() as url:
        with Store(url, create=True) as store:
            held = [register(store, f"feeder-{n}", "hourly", HOURLY, homes(n)) for n in range(WRITERS + feeders)]
        growth = Growth(url, held, [0] * WRITERS)
        empty = growth.size()
        print(f"{WRITERS} writers, {HOMES} rows of {SPACE.size} bins a window; empty ledger {empty / 1e6:.0f} MB")
        print(
            f"{'feeders':>7} {'windows':>11} {'MB':>9} {'bytes/w':>9} {'longest query':>13} "
            f"{'windows/s':>10} {'commits/w':>9} {'WAL kB/w':>8} {'ms':>8} {'p99 ms':>7}"
        )
        rows = [growth.measure()]
        show(rows[-1], 0)
        rows.append(growth.measure())
        show(rows[-1], 0)
        growth.publish(began + seconds / 2)
        rows.append(growth.measure())
        show(rows[-1], 0)
        step = 0.0
        for number in range(feeders):
            before = time.monotonic()
            if before + 1.2 * step > began + seconds:
                break
            growth.copy()
            step = time.monotonic() - before
            if number + 1 in (1, 2, 5, 10, 20, 50, 100):
                rows.append(growth.measure())
                show(rows[-1], number + 1)
        rows += [growth.measure(), growth.measure()]
        for row in rows[-2:]:
            show(row, growth.copies)
        first, last = rows[1], rows[-1]
        print(
            f"the end beside the beginning: {last.windows / first.windows:,.0f} times the windows, "
            f"{last.bytes / first.bytes:,.0f} times the bytes, {last.rate / first.rate:.2f} times the windows a second"
        )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
