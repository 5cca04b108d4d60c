"""What a query published in a stretch of slots, summed by key: released rows and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...schemas.slots import Window
from ...store.layout import classes_of, layout_of, total_is_public
from ...store.records import Store
from ...store.specs import Registration

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Published:
    """Released histograms of the keys that are in every window of a stretch, summed over its windows and classes.

    Attributes:
        counts: noisy counts, int64, shape (n, k).
        totals: cells counted, int64, shape (n,).
        members: series that each key sums over, int64, shape (n,).
        draws: draws of noise in each count at most: the windows of the stretch times the classes of slots.
        slots: slots in the windows.
    """

    counts: Ints
    totals: Ints
    members: Ints
    draws: int
    slots: int


def published_between(store: Store, held: Registration, stretch: Window) -> Published | None:
    """The rows of record of the windows that fill a stretch without overlap.

    Args:
        store: the ledger.
        held: the query.
        stretch: from where to where.

    Returns:
        ``None`` where a window lacks a block, no key is in all of them, the number of cells is not public, or a bin
        is more than one state.
    """
    if held.query.bins is not None:
        return None
    size, classes = held.query.schedule.size, len(classes_of(held))
    windows = [Window(start, start + size) for start in range(stretch.start, stretch.stop - size + 1, size)]
    if not windows or not total_is_public(held) or not all(map(held.query.schedule.contains, windows)):
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
        slots=size * len(windows),
    )


__all__ = ["Published", "published_between"]
