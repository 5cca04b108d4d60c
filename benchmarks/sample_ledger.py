"""What the benchmarks of ledgers publish: queries in domains of their own, and blocks with counts drawn by chance."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quiltstream.privacy import LaplaceHistogram, MixingBounds, mqm_approx
from quiltstream.schemas.roster import Roster
from quiltstream.schemas.slots import Schedule, SlotGrid, Window
from quiltstream.schemas.states import StateSpace
from quiltstream.store import BlockToPublish, DomainSpec, NoisyBlock, QuerySpec, Registration, Store

ROOT = Path(__file__).resolve().parents[1]
HOUR_US = 3_600_000_000

#: Bins and series of a query, where a benchmark has none of its own.
SPACE = StateSpace((250.0, 500.0, 1000.0), unit="W")
HOMES = 20


def servers(name: str) -> Any:
    """A module of the end-to-end tests, which start and end the servers."""
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))
    return import_module(f"tests.e2e.{name}")


def homes(number: int) -> Roster:
    """The series of one domain of many: those of two domains are never the same."""
    return Roster.of(f"home-{number}-{home}" for home in range(HOMES))


def register(
    store: Store,
    domain: str,
    query: str,
    schedule: Schedule,
    roster: Roster,
    *,
    space: StateSpace = SPACE,
    interval_us: int = HOUR_US,
    budget: float = 2.0,
    header: Mapping[str, Any] | None = None,
) -> Registration:
    """Put a query on record, in one shard and with the noise of epsilon 1."""
    belief = MixingBounds(pi_min=0.2, gap=0.75)
    mechanism = LaplaceHistogram.from_sigma(space.size, mqm_approx(belief, epsilon=1.0).sigma)
    return store.register(
        DomainSpec(
            name=domain,
            grid=SlotGrid(interval_us=interval_us).to_dict(),
            states=space.to_dict(),
            belief=belief.to_dict(),
            model_id="by hand",
            guarantee="stream",
            budget=budget,
            missing="public",
        ),
        QuerySpec(
            name=query,
            domain=domain,
            scale=mechanism.scale,
            release_epsilon_dp=mechanism.epsilon_dp,
            mechanism="mqm-approx",
            schedule=schedule,
            schedule_given=True,
            roster=roster,
            roster_given=True,
            shards=1,
            header=dict(header or {}),
        ),
    )


def draft(held: Registration, window: Window) -> BlockToPublish:
    """A window whose counts are drawn by chance."""

    def draw() -> NoisyBlock:
        counts = np.random.default_rng().integers(-1000, 1000, (HOMES, SPACE.size), dtype=np.int64)
        totals = np.full(HOMES, window.stop - window.start, dtype=np.int64)
        return NoisyBlock(held.query.roster.shard_keys(0, 1), totals, counts)

    return BlockToPublish(window, 0, draw)


@contextmanager
def database() -> Generator[str]:
    """The address of a PostgreSQL server of its own."""
    postgres = servers("postgres")
    server = postgres.PostgresServer(postgres.find_binaries())
    try:
        yield server.url
    finally:
        server.close()


#: The first windows of a writer are not timed: its first charge prices the belief.
WARMING = 2


def _write(url: str, held: Registration, windows: Sequence[Window], begin: Barrier, found: Queue[list[float]]) -> None:
    taken: list[float] = []
    with Store(url) as store:
        for number, window in enumerate(windows):
            if number == WARMING:
                begin.wait()
            before = time.monotonic()
            store.publish(held, [draft(held, window)])
            taken.append(time.monotonic() - before)
    found.put(taken[WARMING:])


def raced(
    url: str, tasks: Sequence[tuple[Registration, Sequence[Window]]], begun: Callable[[], Any] = lambda: None
) -> tuple[npt.NDArray[np.float64], float]:
    """Milliseconds of each call of processes that publish at once, one window a call; and the seconds of all of them.

    Args:
        url: of the ledger.
        tasks: what each process publishes; nothing of the ledger may be open in this one.
        begun: called when the first timed call begins.
    """
    context = multiprocessing.get_context("fork")
    begin, found = context.Barrier(len(tasks) + 1), context.Queue()
    processes = [context.Process(target=_write, args=(url, *task, begin, found)) for task in tasks]
    for process in processes:
        process.start()
    begin.wait()
    before = time.monotonic()
    begun()
    taken = np.concatenate([found.get() for _ in processes]) * 1e3
    seconds = time.monotonic() - before
    for process in processes:
        process.join()
    return taken, seconds
