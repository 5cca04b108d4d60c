"""Numbers of series, and which of them are in the roster of a window.

A roster may change between windows, and workers may know different versions of it while a job runs. So series are
numbered over all versions, in the order in which they joined, shard by shard: a series keeps its row in its shard's
cells for ever, and those that join come after it. Cells that different workers encoded fit together, and only the
counting of a window, whose roster is charged by then, looks at which series are in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...schemas.digests import stable_hashes
from ...schemas.roster import Roster
from ...store.specs import Registration
from ..common.batches import Bools, Ints, ReadingColumns

#: A batch's names are looked up in a table of the roster made anew, unless the roster has this many times more names.
_TABLE = 16

#: Rosters whose places are remembered: those of windows that are counted at once.
_REMEMBERED = 4


@dataclass(frozen=True)
class Members:
    """Where each series of a query lives. Series are numbered shard by shard, so a shard's cells are adjacent rows."""

    place: dict[str, int]
    names: pa.Array  # the series in the order of their numbers, Arrow text
    first: Ints  # number of the first series of each shard, and the number of series, shape (shards + 1,)
    group: Ints  # number of the only group of each series in the newest roster that has it, or -1, shape (n,)
    groups: dict[str, int]

    @classmethod
    def of(cls, registration: Registration) -> Members:
        """Place every series by its stable hash, those of a shard in the order in which they joined."""
        # the newest last
        rosters = tuple(one.roster for one in registration.versions) or (registration.query.roster,)
        return _members_of(registration.series, registration.query.shards, rosters)

    @classmethod
    def made(cls, series: tuple[str, ...], shards: int, rosters: tuple[Roster, ...]) -> Members:
        """Place series by their stable hash."""
        shard = (stable_hashes(series) % np.uint64(shards)).astype(np.int64)
        order = np.argsort(shard, kind="stable")
        names = [series[i] for i in order.tolist()]
        groups: dict[str, int] = {}
        only: dict[str, tuple[str, ...]] = {}
        for roster in rosters:
            if roster.kind == "group":
                only |= roster.groups_of
                groups |= {name: len(groups) + i for i, name in enumerate(sorted(set(roster.keys) - groups.keys()))}
        return cls(
            place={name: i for i, name in enumerate(names)},
            names=pa.array(names, pa.utf8()),
            first=np.concatenate([[0], np.cumsum(np.bincount(shard, minlength=shards))]),
            group=np.array(
                [groups[mine[0]] if len(mine := only.get(name, ())) == 1 else -1 for name in names], dtype=np.int64
            ),
            groups=groups,
        )

    @property
    def shards(self) -> int:
        """Parallel parts."""
        return len(self.first) - 1

    @property
    def occupied(self) -> list[int]:
        """The shards that hold a series."""
        return np.flatnonzero(np.diff(self.first)).tolist()

    def shard_rows(self, shard: int) -> range:
        """The numbers of a shard's series."""
        return range(int(self.first[shard]), int(self.first[shard + 1]))

    def numbers(self, names: pa.Array) -> Ints:
        """The number of each name, -1 where no roster has it."""
        if len(self.names) <= _TABLE * len(names):
            found = pc.call_function("index_in", [names.cast(pa.utf8())], pc.SetLookupOptions(self.names)).fill_null(-1)
            return found.to_numpy(zero_copy_only=False).astype(np.int64)
        return np.array([self.place.get(name, -1) for name in names.to_pylist()], dtype=np.int64)

    def mask(self, roster: Roster) -> Bools:
        """Which series are in a roster, shape (n,)."""
        mask = np.zeros(len(self.place), dtype=np.bool_)
        mask[[self.place[name] for name in roster.series]] = True
        return mask


#: Several steps of a job number the same series.
_members_of = lru_cache(maxsize=_REMEMBERED)(Members.made)


@dataclass(frozen=True)
class Presence:
    """Which series are in the roster of a window that contains a step."""

    starts: Ints  # step at which the first window of each version but the first starts, shape (versions - 1,)
    masks: Bools  # which series each version has, shape (versions, n)
    overlap: int  # in how many windows a step lies

    @classmethod
    def of(cls, registration: Registration, members: Members) -> Presence | None:
        """Of a query; ``None`` where its only roster has every series."""
        versions, schedule = registration.versions, registration.query.schedule
        if not versions:
            return None
        starts = [schedule.number_of(version.start) for version in versions[1:]]
        masks = np.array([members.mask(version.roster) for version in versions])
        return None if masks.all() else cls(np.array(starts, dtype=np.int64), masks, schedule.overlap)

    def absent(self, numbers: Ints, steps: Ints) -> Bools:
        """Which readings count in no window, shape (n,)."""
        lowest = np.searchsorted(self.starts, steps - self.overlap + 1, side="right")
        highest = np.searchsorted(self.starts, steps, side="right")
        pairs = lowest * len(self.masks) + highest
        absent = np.zeros(len(steps), dtype=np.bool_)
        for pair in np.unique(pairs).tolist():  # versions that meet in the batch, not readings
            low, high = divmod(pair, len(self.masks))
            outside = ~np.logical_or.reduce(self.masks[low : high + 1])
            absent |= (pairs == pair) & outside[numbers]
        return absent


@dataclass(frozen=True, slots=True)
class GroupRows:
    """Where the series of one shard count in one shard of groups."""

    target: int
    keys: int
    rows: Ints
    places: Ints
    needed: int


@dataclass(frozen=True)
class RosterRows:
    """Where the cells of each shard of series count under one roster."""

    rows: tuple[Ints, ...] = ()
    groups: tuple[tuple[GroupRows, ...], ...] = ()

    @classmethod
    def of(cls, roster: Roster, members: Members) -> RosterRows:
        """Under a roster."""
        shards = members.shards
        if roster.kind == "group":
            return cls(groups=_group_rows(roster, members))
        return cls(
            rows=tuple(
                np.array([members.place[key] for key in roster.shard_keys(shard, shards)], dtype=np.int64)
                - members.first[shard]
                for shard in range(shards)
            )
        )


def _group_rows(roster: Roster, members: Members) -> tuple[tuple[GroupRows, ...], ...]:
    shards = members.shards
    targets = [roster.shard_keys(target, shards) for target in range(shards)]
    home = {key: (target, place) for target, keys in enumerate(targets) for place, key in enumerate(keys)}
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    needed = [0] * shards
    for shard in range(shards):
        for row, number in enumerate(members.shard_rows(shard)):
            # a series that is not in this roster counts nowhere
            for group in roster.groups_of.get(members.names[number].as_py(), ()):
                target, place = home[group]
                found.setdefault((shard, target), []).append((row, place))
                needed[target] |= 1 << shard
    plan: list[list[GroupRows]] = [[] for _ in range(shards)]
    for (shard, target), pairs in sorted(found.items()):
        rows, places = np.array(pairs).T
        plan[shard].append(GroupRows(target, len(targets[target]), rows, places, needed[target]))
    return tuple(tuple(parts) for parts in plan)


@dataclass
class RosterRowsCache:
    """The places of the rosters that are in use; it belongs to one worker."""

    _held: dict[str, RosterRows] = field(default_factory=dict[str, RosterRows])

    def of(self, registration: Registration, roster: Roster) -> RosterRows:
        """Under a roster of a query; a row never moves, so they hold for every later revision as well."""
        found = self._held.get(roster.digest)
        if found is None:
            while len(self._held) >= _REMEMBERED:
                del self._held[next(iter(self._held))]
            found = self._held[roster.digest] = RosterRows.of(roster, Members.of(registration))
        return found


def first_sight(columns: ReadingColumns, chosen: Bools) -> tuple[tuple[str, str | None], ...]:
    """The series of some readings, each with the group that its earliest one names, ties by the group's name."""
    if not chosen.any():
        return ()
    distinct = columns.names.dictionary_encode()
    series, times = distinct.indices.to_numpy()[columns.series[chosen]], columns.times[chosen]
    if columns.groups is None or columns.group is None:
        return tuple((name, None) for name in distinct.dictionary.take(pa.array(np.unique(series))).to_pylist())
    groups = columns.groups.to_pylist()
    ranks = np.argsort(np.argsort(np.array(groups, dtype=object)))[columns.group[chosen]]
    order = np.lexsort((ranks, times, series))
    first = order[np.flatnonzero(np.diff(series[order], prepend=-1))]
    names = distinct.dictionary.take(pa.array(series[first])).to_pylist()
    return tuple((name, groups[code]) for name, code in zip(names, columns.group[chosen][first].tolist(), strict=True))


def newest(one: Registration | None, other: Registration) -> Registration:
    """Of two registrations of a query, the one with more of its rosters."""
    if one is None or one.digest != other.digest or one.revision < other.revision:
        return other
    return one
