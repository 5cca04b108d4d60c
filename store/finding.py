"""Which release ids are on record: those of a sink that are not say that the ledger forgot charges."""

from __future__ import annotations

from collections.abc import Sequence

from ..schemas.releases import release_ids
from ..schemas.slots import SlotGrid, Window
from . import reading
from .database import Database
from .layout import layout_of
from .specs import Registration


def strike(database: Database, registration: Registration, starts: Sequence[int], wanted: set[str]) -> None:
    """Take the release ids that a query has on record out of some that are looked for, the newest windows first.

    Args:
        database: the ledger.
        registration: the query.
        starts: first slots of its windows, rising.
        wanted: the ids; changed in place.
    """
    names = (registration.domain.name, registration.query.name)
    grid = SlotGrid(**registration.domain.grid)
    size, every = registration.query.schedule.size, registration.query.schedule.every
    for at in range(len(starts), 0, -reading.WINDOWS):
        if not wanted:
            return
        page = starts[max(0, at - reading.WINDOWS) : at]
        with database.read() as connection:
            _, blocks = reading.finished(connection, *names, range(page[0], page[-1] + every))
        for start, shard in blocks:
            window = (grid.time_of(start), grid.time_of(start + size))
            keys = layout_of(registration, Window(start, start + size)).keys(shard)
            wanted.difference_update(release_ids(*names, registration.digest, window, keys))
