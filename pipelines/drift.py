"""Drift of a query, tested on its released rows alone (``privacy.estimation.drift``).

The test costs nothing, and its result may be published. There is one look for every stretch of whole windows of a week
or more, numbered from the first window of the schedule; a look that is made again reads the same rows, and all looks
for ever raise a false alarm with probability 0.001 at most. A stretch in which the belief changes is not looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..privacy.estimation.drift import Drift, drift_test
from ..privacy.models.serialisation import belief_from_dict
from ..schemas.slots import DAY_US, Schedule, SlotGrid, Window, format_instant
from ..schemas.states import StateSpace
from ..store.specs import TRANSITIONS, Registration, classes_of, layout_of, total_is_public
from ..store.store import Store
from .errors import CommandError

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Published:
    """Released histograms of the keys that are in every window of a stretch, summed over its windows and classes."""

    counts: Ints  # noisy counts, int64, shape (n, k)
    totals: Ints  # cells counted, int64, shape (n,)
    members: Ints  # series that each key sums over, int64, shape (n,)
    draws: int  # draws of noise in each count at most: the windows of the stretch times the classes of slots


def published_between(store: Store, held: Registration, stretch: Window) -> Published | None:
    """The rows of record of the windows that fill a stretch without overlap.

    Returns:
        ``None`` where a window lacks a block, no key is in all of them, the number of cells is not public, or a bin
        is more than one state.
    """
    if held.query.bins is not None:
        return None
    schedule, classes = held.query.schedule, len(classes_of(held))
    windows, start = list[Window](), stretch.start
    while start < (window := schedule.window_at(start)).stop <= stretch.stop:
        windows.append(window)
        start = window.stop
    if not windows or not total_is_public(held) or not all(map(schedule.contains, windows)):
        return None
    wanted = {window.start for window in windows}
    found: dict[str, list[tuple[Ints, int, int]]] = {}
    seen: set[tuple[int, int]] = set()
    held = store.current(held)
    for record in store.records(held.domain.name, held.query.name, after=(windows[0].start, -1)):
        if record.window.start > windows[-1].start:
            break
        if record.window.start not in wanted or record.block is None:
            continue
        seen.add((record.window.start, record.shard))
        members = layout_of(held, record.window).members(record.shard).tolist()
        block = record.block
        rows, columns = block.counts.shape
        whole_slots = block.counts.reshape(rows, classes, columns // classes).sum(axis=1)
        for key, counts, total, count in zip(block.keys, whole_slots, block.totals.tolist(), members, strict=True):
            found.setdefault(key, []).append((counts, total, count))
    if any((one.start, shard) not in seen for one in windows for shard in layout_of(held, one).occupied):
        return None
    whole = [rows for rows in found.values() if len(rows) == len(windows) and len({row[2] for row in rows}) == 1]
    if not whole:
        return None
    return Published(
        counts=np.array([np.sum([row[0] for row in rows], axis=0) for rows in whole], dtype=np.int64),
        totals=np.array([sum(row[1] for row in rows) for rows in whole], dtype=np.int64),
        members=np.array([rows[0][2] for rows in whole], dtype=np.int64),
        draws=len(windows) * classes,
    )


History = tuple[tuple[int | None, dict[str, Any]], ...]
"""Beliefs that follow each other, each from a slot on."""

#: Shortest stretch that is judged at once.
_STRETCH_US = 7 * DAY_US

_ALPHA = 1e-3


def stretch_of(schedule: Schedule, grid: SlotGrid, number: int) -> Window:
    """The slots of a stretch, numbered from 1: windows, one behind the other, of about a week together."""
    windows = -(-_STRETCH_US // (schedule.size * grid.interval_us))
    if schedule.calendar is None:
        start = schedule.first + (number - 1) * windows * schedule.size
        return Window(start, start + windows * schedule.size)
    first = schedule.number_of(schedule.first) + (number - 1) * windows
    return Window(schedule.start_of(first), schedule.start_of(first + windows))


def stretches_by(schedule: Schedule, grid: SlotGrid, slot: int) -> int:
    """How many stretches are over at a slot."""
    windows = -(-_STRETCH_US // (schedule.size * grid.interval_us))
    if schedule.calendar is None:
        return max(0, (slot - schedule.first) // (windows * schedule.size))
    return schedule.ended_by(slot) // windows


def looked_at(store: Store, held: Registration) -> tuple[int, list[str]]:
    """How many stretches of a query on record were judged, and what they say that contradict the belief.

    Raises:
        CommandError: none can be judged.
        StoreError: the ledger cannot be read.
    """
    why = _never(held)
    if why is not None:
        raise CommandError(f"query {held.query.name!r}: drift is not judged: {why}; see docs/model.md")
    grid, schedule = SlotGrid(**held.domain.grid), held.query.schedule
    missing = next(store.missing(held), None)
    over = stretches_by(schedule, grid, schedule.covered.stop if missing is None else missing[0].start)
    judged, news = 0, list[str]()
    for number in range(1, over + 1):
        stretch = stretch_of(schedule, grid, number)
        found = _judged(store, held, stretch, number)
        if found is None or not found.judged:
            continue
        judged += 1
        if found.drifted:
            news.append(_text(held, grid, stretch, found))
    return judged, news


def _judged(store: Store, held: Registration, stretch: Window, number: int) -> Drift | None:
    """One stretch against every belief that holds; ``None`` where rows are missing, or no belief holds in all."""
    found = published_between(store, held, stretch)
    if found is None:
        return None
    beliefs = [_believed(history, stretch.start, stretch.stop) for history in held.domain.histories]
    whole = [one for one in beliefs if one is not None]
    if len(whole) < len(beliefs):
        return None
    judged = [
        drift_test(
            belief_from_dict(belief),
            found.counts,
            held.query.scale,
            found.totals,
            members=found.members,
            windows=found.draws,
            before=stretch.start - (held.query.schedule.first if since is None else since),
            alpha=_ALPHA / (number * (number + 1)),  # of all looks for ever together it is _ALPHA
        )
        for since, belief in whole
    ]
    # a class is contradicted only if all of it is
    return next((one for one in judged if not one.drifted), judged[0])


def _text(held: Registration, grid: SlotGrid, found_in: Window, found: Drift) -> str:
    stretch = " to ".join(format_instant(grid.time_of(slot)) for slot in (found_in.start, found_in.stop))
    labels = StateSpace.from_dict(held.domain.states).labels
    state = "" if found.state is None else f" ({labels[found.state]})"
    return (
        f"the rows released for {stretch} contradict the belief in force: {found.reason}{state}; it has "
        f"{found.share:.3g} of the cells, and the belief allows {found.expected:.3g}. What the ledger says rests "
        "on that belief: fit a model anew, and see docs/model.md"
    )


def _never(held: Registration) -> str | None:
    """Why no stretch of a query can be judged, if that is so."""
    if held.query.mechanism in ("none", TRANSITIONS):
        return "its rows are no noisy histograms of states"
    if held.query.most > 1:
        return "a series is in several groups"
    if held.query.bins is not None:
        return "bins are several states each"
    for *_, (_, belief) in held.domain.histories:
        if not belief_from_dict(belief).has_quilts:
            return f"there is no test for a belief of kind {belief['kind']}"
    return None


def _believed(history: History, start: int, stop: int) -> tuple[int | None, dict[str, Any]] | None:
    """What is believed in all slots of a stretch, and since when; ``None`` where that changes within."""
    since, belief = [one for one in history if one[0] is None or one[0] < stop][-1]
    return None if since is not None and since > start else (since, belief)
