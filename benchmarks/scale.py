"""The constants of a deployment's size: bytes, transactions, draws and CPU of one of each thing.

Run: python benchmarks/scale.py. Prints the table of constants of `docs/explanation/scale.md`; its other tables are
multiples of them. Times are CPU of one process, which a busy machine changes less than a clock. It makes a PostgreSQL
server of its own.
"""

from __future__ import annotations

import gc
import io
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import sqlalchemy as sa
from sample_ledger import database, register

from quiltstream.privacy import LaplaceHistogram
from quiltstream.schemas.readings import READING_SCHEMA
from quiltstream.schemas.roster import Roster
from quiltstream.schemas.slots import Schedule, Window
from quiltstream.schemas.states import StateSpace
from quiltstream.schemas.table_files import RELEASES, in_one, write_stream
from quiltstream.store import BlockToPublish, NoisyBlock, Record, Registration, Store
from quiltstream.store.exports import rows_of
from quiltstream.transforms.sinks import release_messages

ROOT = Path(__file__).resolve().parents[1]
SPACE = StateSpace(tuple(100.0 * (edge + 1) for edge in range(49)), unit="W")
ROWS = 1_000
FEW, MANY = 200, 600
NAMES = 200_000
_Format = Literal["parquet", "avro", "jsonl", "csv"]
FORMATS: tuple[_Format, ...] = ("parquet", "avro", "jsonl", "csv")

#: What each constant is, and how it is measured.
MEANING: dict[str, tuple[str, str]] = {
    "ns a draw": ("noise", "CPU, a million draws of the discrete Laplace law, sigma 84"),
    "us a row": ("CPU of a row of 50 bins", "noise, SQLite and the row, 1,000 rows a block"),
    "us a row, Parquet": ("more for its file", "the same rows, written"),
    "ms a block": ("CPU of a block", "the call of a block of one row, SQLite"),
    "bytes a window, SQLite": ("charge and block", "growth of the file, one row a window"),
    "bytes a row, SQLite": ("more for a row", "growth of the file, 1,000 rows a window"),
    "bytes a window, PostgreSQL": ("charge and block", "growth of tables and indexes"),
    "bytes a row, PostgreSQL": ("more for a row", "the same, 1,000 rows a window"),
    "WAL bytes a window": ("PostgreSQL's log", "the same, one row a window, one call each"),
    "WAL bytes a row": ("more for a row", "the same, 1,000 rows a window"),
    "transactions a block": ("one call", "commits that the server counts"),
    "bytes a row, parquet": ("a sink's file", "1,000 rows of 50 bins"),
    "bytes a row, avro": ("a sink's file", "the same rows"),
    "bytes a row, jsonl": ("a sink's file", "the same rows"),
    "bytes a row, csv": ("a sink's file", "the same rows"),
    "bytes a message, avro": ("a sink's topic", "the same rows, key and headers with them"),
    "bytes a message, json": ("a sink's topic", "the same rows"),
    "bytes a name, ledger": ("the roster of a query", "200,000 names of 12 letters in groups of 100, compressed"),
    "bytes a name, memory": ("the roster in a process", "growth of its memory, the same names"),
    "bytes a reading, memory": ("a batch of readings", "Arrow, names of 12 letters"),
}


def cpu(work: Callable[[], Any]) -> float:
    """Seconds of CPU."""
    before = time.process_time()
    work()
    return time.process_time() - before


def names(number: int) -> Roster:
    """Series in groups of 100."""
    return Roster(tuple((f"meter-{one:06}", f"feeder-{one // 100:05}") for one in range(number)))


MECHANISM = LaplaceHistogram.from_sigma(SPACE.size, 84.4445)


def windows_of(store: Store, rows: int) -> Registration:
    """A query with an endless schedule of one slot, one row for each group."""
    return register(
        store,
        f"of-{rows}",
        "windows",
        Schedule(size=1, every=1, start=0, stop=None),
        Roster(tuple((f"of-{rows}-{one:06}", f"feeder-{one:05}") for one in range(rows))),
        space=SPACE,
        interval_us=1_800_000_000,
        budget=1e6,
        header={
            "half_width_95": MECHANISM.half_width(0.95),
            "quilt": [15, 13],
            "model_provenance": "by hand",
            "epsilon": 1.0,
        },
    )


def publish(store: Store, held: Registration, windows: range) -> list[Record]:
    """Publish windows with real noise, one call each."""
    keys = held.query.roster.shard_keys(0, 1)

    def draw() -> NoisyBlock:
        counts = MECHANISM.randomise(np.full((len(keys), SPACE.size), 96, dtype=np.int64))
        return NoisyBlock(keys, np.full(len(keys), 100, dtype=np.int64), counts)

    found: list[Record] = []
    for start in windows:
        found += store.publish(held, [BlockToPublish(Window(start, start + 1), 0, draw)])
    return found


def of_sqlite() -> dict[str, float]:
    """Bytes and CPU of SQLite, and the bytes of the rows in each form."""
    found: dict[str, float] = {}
    bytes_: dict[int, float] = {}
    seconds: dict[int, float] = {}
    for rows, windows in ((1, MANY), (ROWS, FEW)):
        count = windows
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "ledger.db"

            def size(path: Path = path) -> int:
                with Store(f"sqlite:///{path}", create=True):
                    pass
                return path.stat().st_size

            with Store(f"sqlite:///{path}", create=True) as store:
                held = windows_of(store, rows)
                publish(store, held, range(20))
            before = size()
            with Store(f"sqlite:///{path}", create=True) as store:
                publish(store, held, range(20, 21))
                seconds[rows] = cpu(partial(publish, store, held, range(21, 20 + count))) / (count - 1)
                if rows == ROWS:
                    found |= of_rows(held, publish(store, held, range(20 + count, 21 + count)))
                    count += 1
            bytes_[rows] = (size() - before) / count
    found["ms a block"] = 1e3 * seconds[1]
    found["us a row"] = 1e6 * (seconds[ROWS] - seconds[1]) / (ROWS - 1) + found.pop("us to build a row")
    found["bytes a window, SQLite"] = bytes_[1]
    found["bytes a row, SQLite"] = (bytes_[ROWS] - bytes_[1]) / (ROWS - 1)
    return found


def of_rows(held: Registration, records: list[Record]) -> dict[str, float]:
    """Bytes of a released row in each form."""
    batch = rows_of(held, records[0])
    found = {"us to build a row": 1e6 * cpu(lambda: [rows_of(held, records[0]) for _ in range(50)]) / 50 / ROWS}
    table = RELEASES.sorted(RELEASES.table([batch]))
    for format_ in FORMATS:
        stream = io.BytesIO()
        taken = cpu(partial(write_stream, stream, format_, in_one(table), RELEASES))
        found[f"bytes a row, {format_}"] = len(stream.getvalue()) / ROWS
        if format_ == "parquet":
            found["us a row, Parquet"] = 1e6 * taken / ROWS
    for format_ in ("avro", "json"):
        sent = release_messages(batch, format_)
        found[f"bytes a message, {format_}"] = (
            sum(
                len(key or b"") + len(value) + sum(len(name) + len(text) for name, text in headers)
                for key, value, headers in sent
            )
            / ROWS
        )
    return found


def of_postgresql() -> dict[str, float]:
    """Bytes of PostgreSQL's tables, indexes and log."""
    bytes_: dict[int, float] = {}
    log: dict[int, float] = {}
    commits = 0.0
    with database() as url:
        engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")

        def ask(statement: str) -> Any:
            with engine.connect() as connection:
                done = connection.execute(sa.text(statement))
                return done.scalar() if done.returns_rows else None

        size, position = "SELECT pg_database_size(current_database())", "SELECT pg_current_wal_lsn() - '0/0'"
        ended = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
        for rows, count in ((1, MANY), (ROWS, FEW)):
            with Store(url, create=True) as store:
                held = windows_of(store, rows)
                publish(store, held, range(20))
                ask("CHECKPOINT")
                before, written, done = int(ask(size)), int(ask(position)), int(ask(ended))
                publish(store, held, range(20, 20 + count))
            time.sleep(1.5)  # the server counts commits of a connection when it ends, or after a second
            log[rows] = (int(ask(position)) - written) / count
            if rows == 1:
                commits = (int(ask(ended)) - done) / count
            ask("VACUUM")
            bytes_[rows] = (int(ask(size)) - before) / count
        engine.dispose()
    return {
        "bytes a window, PostgreSQL": bytes_[1],
        "bytes a row, PostgreSQL": (bytes_[ROWS] - bytes_[1]) / (ROWS - 1),
        "WAL bytes a window": log[1],
        "WAL bytes a row": (log[ROWS] - log[1]) / (ROWS - 1),
        "transactions a block": commits,
    }


def _resident() -> int:
    """Bytes of memory of this process."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize()


def _memory(queue: Any) -> None:
    gc.collect()
    before = _resident()
    held = names(NAMES)
    _ = held.keys, held.members, held.series, held.groups_of
    queue.put((_resident() - before) / NAMES)


def of_rosters() -> dict[str, float]:
    """Bytes of a series' name."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_memory, args=(queue,))
    process.start()
    memory = queue.get(timeout=120)
    process.join()
    number = 100_000
    columns = [
        pa.array([f"meter-{one:06}" for one in range(number)]),
        pa.array(np.arange(number), pa.timestamp("us", "UTC")),
        pa.array(np.ones(number)),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=READING_SCHEMA)
    return {
        "bytes a name, ledger": len(names(NAMES).packed) / NAMES,
        "bytes a name, memory": memory,
        "bytes a reading, memory": batch.nbytes / number,
    }


def of_noise() -> dict[str, float]:
    """CPU of a draw."""
    counts = np.zeros((20_000, SPACE.size), dtype=np.int64)
    return {"ns a draw": 1e9 * min(cpu(lambda: MECHANISM.randomise(counts)) for _ in range(3)) / counts.size}


def measured() -> dict[str, float]:
    """Every constant."""
    found = of_noise() | of_sqlite() | of_postgresql() | of_rosters()
    return {name: found[name] for name in MEANING if name in found}


def main() -> None:
    print("| constant | of | value | how it was measured |\n| --- | --- | --- | --- |")
    for name, number in measured().items():
        print(f"| {name} | {MEANING[name][0]} | {number:,.4g} | {MEANING[name][1]} |")


if __name__ == "__main__":
    main()
