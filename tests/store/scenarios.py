"""What jobs do at once in the schedules of the interleaver: each a few transactions of the store, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import cycle
from typing import Any

import numpy as np

from quiltstream.schemas.roster import Roster
from quiltstream.schemas.slots import Window
from quiltstream.store import BudgetRefused, Store
from quiltstream.store.codec import NoisyBlock
from quiltstream.store.errors import StoreConflict
from quiltstream.store.specs import BeliefChange, BlockToPublish, QuerySpec, Registration

from .interleaver import Job, Scenario, World
from .samples import OTHER, SPACE, domain, query

#: Draws of a block of each shape, which come in turn: many more than a schedule makes, so that no two of it are alike.
_DRAWS = 32
_ROSTER = Roster.of(("m1", "m2"))


def _query(name: str = "weekly", windows: int = 2) -> QuerySpec:
    return query(name, size=4, windows=windows, shards=1, roster=_ROSTER)


@lru_cache
def _blocks(keys: tuple[str, ...], total: int) -> Iterator[NoisyBlock]:
    drawn = np.random.default_rng().integers(-1000, 1000, (_DRAWS, len(keys), SPACE.size), dtype=np.int64)
    return cycle([NoisyBlock(keys, np.full(len(keys), total, dtype=np.int64), counts) for counts in drawn])


def _drafts(held: Registration, windows: Iterable[Window]) -> list[BlockToPublish]:
    def one(window: Window) -> BlockToPublish:
        def draw() -> NoisyBlock:
            return next(_blocks(held.roster_of(window).shard_keys(0, 1), held.query.schedule.size))

        return BlockToPublish(window, 0, draw)

    return [one(window) for window in windows]


def _windows(held: Registration) -> list[Window]:
    return list(held.query.schedule.windows())


def _one_by_one(name: str) -> Job:
    def job(world: World, store: Store) -> None:
        held = world.memory[name]
        for window in _windows(held):
            world.publish(store, held, _drafts(held, [window]))

    return job


def _backward(name: str) -> Job:
    def job(world: World, store: Store) -> None:
        held = world.memory[name]
        world.publish(store, held, _drafts(held, _windows(held)[::-1]))

    return job


def _published(store: Store) -> dict[str, Any]:
    return {"weekly": store.register(domain(), _query())}


#: Two jobs publish the same windows, and one of them begins again after it was killed.
RACE = Scenario("race", _published, ((_one_by_one("weekly"), _backward("weekly")), (_backward("weekly"),)))


def _two_queries(store: Store) -> dict[str, Any]:
    of = domain(budget=0.6)
    return {name: store.register(of, _query(name, windows=3)) for name in ("first", "second")}


def _raise(_world: World, store: Store) -> None:
    store.raise_budget("homes", 1.0)


#: Two queries share a budget that admits some of their windows, and it is raised meanwhile.
BUDGET = Scenario("budget", _two_queries, ((_backward("first"),), (_backward("second"),), (_raise,)))


def _charged_first(world: World, store: Store) -> None:
    held = world.memory["weekly"]
    for window in _windows(held):
        while True:
            held = store.charge_windows(held, [window])
            with suppress(StoreConflict):
                world.publish(store, held, _drafts(held, [window]))
                break


def _charged_by_publishing(world: World, store: Store) -> None:
    with suppress(StoreConflict):
        _backward("weekly")(world, store)


def _join(world: World, store: Store) -> None:
    store.join(world.memory["weekly"], [("m3", None)])


#: A series joins while one job charges windows before it publishes them, and another does not.
ROSTERS = Scenario("rosters", _published, ((_charged_first,), (_join,), (_charged_by_publishing,)))


def _believe(_world: World, store: Store) -> None:
    with suppress(BudgetRefused):
        store.change_belief("homes", BeliefChange("joined", OTHER.to_dict(), "model-2"))


#: A belief joins while windows are published.
BELIEFS = Scenario("beliefs", _published, ((_one_by_one("weekly"),), (_believe,)))


def _from_the_start(name: str, other: str) -> Job:
    def job(world: World, store: Store) -> None:
        with suppress(BudgetRefused):
            store.register(domain(budget=0.5), _query(other))
        with suppress(BudgetRefused):
            held = store.register(domain(budget=0.5), _query(name))
            world.publish(store, held, _drafts(held, _windows(held)[-1:]))

    return job


#: Two jobs register the same two queries, in opposite order, of which the budget admits less than both.
FIRST = Scenario("first", lambda _: {}, ((_from_the_start("a", "b"),), (_from_the_start("b", "a"),)))
