"""Faults on the ledger of record, counted: what broke, what was published twice, charged twice or missing after it.

Run: python benchmarks/faults_store.py [URL]. Without a URL it makes SQLite files. A job is broken at every boundary it
crosses (before and after each statement, before and after each commit), or with less and less room for the files, or
run by several processes at once, and then run again.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import secrets
import signal
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import event
from sqlalchemy.engine import Engine
from sqlalchemy.engine.default import DefaultDialect

from quiltstream.privacy import LaplaceHistogram, Ledger, MixingBounds, mqm_approx
from quiltstream.schemas.roster import Roster
from quiltstream.schemas.slots import Schedule, SlotGrid
from quiltstream.schemas.states import StateSpace
from quiltstream.store import Block, DomainSpec, Draft, QuerySpec, Registration, Store, StoreError

BELIEF = MixingBounds(pi_min=0.2, gap=0.75)
SPACE = StateSpace((250.0, 500.0), unit="W")
WINDOWS = 4
SHARDS = 2
RACES = 8

Rows = dict[tuple[int, int], tuple[str, bytes]]


@dataclass
class Tally:
    """What was counted over all breaks of one kind."""

    breaks: int = 0
    errors: int = 0
    rows: int = 0
    changed: int = 0
    twice: int = 0
    missing: int = 0
    over: int = 0
    wrong: int = 0


def register(store: Store, name: str) -> Registration:
    """A query of a few windows whose whole schedule costs at most the budget."""
    mechanism = LaplaceHistogram.from_sigma(SPACE.size, mqm_approx(BELIEF, epsilon=1.0).sigma)
    domain = DomainSpec(
        name=name,
        grid=SlotGrid(interval_us=1_800_000_000).to_dict(),
        states=SPACE.to_dict(),
        belief=BELIEF.to_dict(),
        model_id="by hand",
        guarantee="stream",
        budget=1.0,
        missing="public",
    )
    query = QuerySpec(
        name="daily",
        domain=name,
        scale=mechanism.scale,
        release_epsilon_dp=mechanism.epsilon_dp,
        mechanism="mqm-approx",
        schedule=Schedule(size=48, every=48, start=0, stop=48 * WINDOWS),
        schedule_given=True,
        roster=Roster.of([f"home-{number}" for number in range(10)]),
        roster_given=True,
        shards=SHARDS,
    )
    return store.register(domain, query)


def publish(store: Store, held: Registration) -> Rows:
    """All windows in two batches, the later ones first."""

    def draft(window: Any, shard: int) -> Draft:
        keys = held.query.roster.shard_keys(shard, SHARDS)

        def draw() -> Block:
            counts = np.random.default_rng().integers(-1000, 1000, (len(keys), SPACE.size), dtype=np.int64)
            return Block(keys, np.full(len(keys), 48, dtype=np.int64), counts)

        return Draft(window, shard, draw)

    windows = list(held.query.schedule.windows())
    found: Rows = {}
    for part in (windows[WINDOWS // 2 :], windows[: WINDOWS // 2]):
        for record in store.publish(held, [draft(window, shard) for window in part for shard in range(SHARDS)]):
            assert record.block is not None
            found[record.window.start, record.shard] = (record.entry.entry_id, record.block.counts.tobytes())
    return found


class Boundaries:
    """Calls a function at one boundary; counts them all."""

    def __init__(self, at: int, breaks: Callable[[], None]) -> None:
        self.crossed = 0
        self._at, self._breaks = at, breaks
        self._commit = DefaultDialect.do_commit

    def _cross(self, *_: Any) -> None:
        self.crossed += 1
        if self.crossed == self._at:
            self._breaks()

    def __enter__(self) -> Boundaries:  # noqa: PYI034 - Self needs Python 3.11
        cross, commit = self._cross, self._commit

        def do_commit(self: DefaultDialect, dbapi_connection: Any) -> None:
            cross()
            commit(self, dbapi_connection)
            cross()

        event.listen(Engine, "before_cursor_execute", cross)
        event.listen(Engine, "after_cursor_execute", cross)
        DefaultDialect.do_commit = do_commit
        return self

    def __exit__(self, *_: object) -> None:
        event.remove(Engine, "before_cursor_execute", self._cross)
        event.remove(Engine, "after_cursor_execute", self._cross)
        DefaultDialect.do_commit = self._commit


def _lost() -> None:
    raise sqlite3.OperationalError("disk I/O error")


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _in_child(url: str, name: str, at: int) -> None:
    with Store(url) as store:
        held = register(store, name)
        with Boundaries(at, _die):
            publish(store, held)


def _without_room(url: str, name: str, pages: int) -> None:
    # without the signal a write beyond the limit is an error, as on a full disk
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096 * pages, 4096 * pages))
    with Store(url) as store:
        publish(store, register(store, name))


def _in_time(url: str, name: str, _at: int) -> None:
    with Store(url) as store:
        publish(store, register(store, name))


CHILDREN: dict[str, tuple[Callable[[str, str, int], None], int]] = {
    "killed": (_in_child, 1),
    "disk full": (_without_room, 1),
    "raced": (_in_time, 3),
}


def broken(url: str, kind: str, name: str, at: int) -> tuple[bool, bool]:
    """Break a job at one boundary: whether that boundary was reached, and whether the job ended with an error."""
    if kind in CHILDREN:
        work, count = CHILDREN[kind]
        context = multiprocessing.get_context("spawn")
        children = [context.Process(target=work, args=(url, name, at)) for _ in range(count)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        failed = any(child.exitcode != 0 for child in children)
        return (at <= RACES if kind == "raced" else failed), failed
    failed = False
    with Store(url) as store:
        held = register(store, name)
        with Boundaries(at, _lost) as boundaries:
            try:
                publish(store, held)
            except StoreError:
                failed = True
        return boundaries.crossed >= at, failed


def check(url: str, name: str, tally: Tally) -> None:
    """Run the job again, and compare with what was on record before."""
    with Store(url) as store:
        held = register(store, name)
        before = {
            (record.window.start, record.shard): (record.entry.entry_id, record.block.counts.tobytes())
            for record in store.records(name, "daily")
            if record.block is not None
        }
        after = publish(store, held)
        entries = store.entries(name)
        account = Ledger(BELIEF)
        loss = account.replay((entry.window_start, entry.window_stop, entry.epsilon_dp) for entry in entries)
        said = store.summary(name)
        tally.rows += len(after)
        tally.changed += sum(after[place] != row for place, row in before.items())
        tally.twice += len(entries) - len({entry.window_start for entry in entries})
        tally.missing += len(list(store.missing(held)))
        tally.over += said.loss > said.budget
        tally.wrong += said.loss != loss


def main(url: str | None = None) -> None:
    """Print the table."""
    print(
        f"{'fault':<16} {'breaks':>7} {'errors':>7} {'rows':>6} {'changed':>8} {'charged twice':>14} {'missing':>8} "
        f"{'over budget':>12} {'wrong loss':>11}"
    )
    with tempfile.TemporaryDirectory() as folder:
        for kind, stride in (("connection lost", 1), ("killed", 6), ("disk full", 5), ("raced", 1)):
            if kind == "disk full" and url is not None:
                continue
            address = url or f"sqlite:///{folder}/{secrets.token_hex(4)}.db"
            with Store(address) as store:
                store.domains()
            tally, at = Tally(), 1
            while True:
                name = f"homes-{secrets.token_hex(8)}"
                reached, failed = broken(address, kind, name, at)
                if not reached:
                    break
                tally.breaks += 1
                tally.errors += failed
                check(address, name, tally)
                at += stride
            print(
                f"{kind:<16} {tally.breaks:>7} {tally.errors:>7} {tally.rows:>6} {tally.changed:>8} {tally.twice:>14} "
                f"{tally.missing:>8} {tally.over:>12} {tally.wrong:>11}"
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
